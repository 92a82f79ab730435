"""Small datasets of numbered samples, and what a plan says of them; what workers run must be importable from here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tars

from shardwriter import index_shards
from streaming import StreamingDataset

COUNTS = (8, 8, 3, 0, 1, 12, 5)
"""Samples of each shard of the dataset that most tests read: 37 in all, one shard is empty."""


def write_numbered(folder: Path, counts: Sequence[int] = COUNTS, *, index: bool = True) -> Path:
    """Shards of samples 0, 1, 2, ... with fields cls (the number) and txt; `index`: make the index too."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for i, count in enumerate(counts):
        (folder / f"shard-{i:03d}.tar").write_bytes(tars.tar(tars.numbered(count, first)))
        first += count
    if index:
        index_shards(folder, workers=1, progress=False)
    return folder


def write_samples(folder: Path, samples: Iterable[tuple[str, bytes]], name: str = "shard-000.tar") -> Path:
    """One shard of these members, indexed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(tars.tar(samples))
    index_shards(folder, workers=1, progress=False)
    return folder


def numbers(items: Iterable[Any]) -> list[list[int]]:
    """The sample numbers of each batch, or of each sample as a list of one."""
    return [cls.tolist() if hasattr(cls := item["cls"], "tolist") else [cls] for item in items]


def flat(items: Iterable[Any]) -> list[int]:
    """The sample numbers of all batches or samples, one after the other."""
    return [n for batch in numbers(items) for n in batch]


def planned(dataset: StreamingDataset, epoch: int) -> list[list[int]]:
    """The sample numbers of the whole epoch as the plan has them: one list for each position that holds samples."""
    starts = np.cumsum([0, *dataset.plan.counts])
    cursor = dataset.plan.epoch(epoch).cursor()
    refs = [cursor.samples(np.array([p])) for p in range(dataset.plan.total)]
    return [(starts[r.shards] + r.indices).tolist() for r in refs]


def by_position(ranks: Sequence[Sequence[Any]]) -> list[Any]:
    """What the ranks gave, laid out by position."""
    steps = max(map(len, ranks), default=0)
    return [rank[step] for step in range(steps) for rank in ranks if step < len(rank)]


# What a child process calls.


def begin(epochs: Any, worker: int, pass_ids: Sequence[int], answers: Any) -> None:
    """Begin these passes as this worker and put what they answer."""
    answers.put([epochs.begin(p, worker) for p in pass_ids])


def open_and_read(folder: str, start: Any, answers: Any) -> None:
    """Open a dataset together with others; put the numbers read, or the error."""
    start.wait()
    try:
        answers.put(flat(StreamingDataset(folder, threads=0)))
    except Exception as error:  # noqa: BLE001  (whatever it is, the parent shows it)
        answers.put(repr(error))


# Transforms that worker processes can unpickle.


def draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add a random number to a sample."""
    return sample | {"draw": rng.random()}


class Unpicklable(Exception):
    """An exception that pickle can't make again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class FailAt:
    """A transform that fails at some numbers."""

    def __init__(self, *at: int) -> None:
        self.at = at

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:  # noqa: D102
        if sample["cls"] in self.at:
            raise Unpicklable(1, sample["cls"])
        return sample


class KillAt:
    """A transform with which a worker kills itself at one number."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:  # noqa: D102
        if sample["cls"] == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


def slow(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Take a random time up to 2 ms."""
    time.sleep(rng.random() * 0.002)
    return sample
