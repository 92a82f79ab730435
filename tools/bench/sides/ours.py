"""This package: shards with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .common import BATCH, PER_SHARD, SIDE, loader

MODULES = ["torch", "streaming.dataset", "streaming.loader", "shardwriter.conversion"]


def dataset(data: str, **options: Any) -> Any:
    """In order, batches of BATCH, unless `options` say otherwise."""
    from streaming import FixedBatch, StreamingDataset

    whole: dict[str, Any] = {"batch": FixedBatch(BATCH, size=SIDE), "rank": 0, "world_size": 1}
    return StreamingDataset(data, **whole | options)


def write(folder: str, out: str, workers: int | None = None) -> None:
    """Shards with their index; as many processes as there are cores."""
    from shardwriter import convert, sources

    convert(sources.folder(folder), out, workers=workers, max_samples=PER_SHARD, progress=False)


def raw(data: str, decode: Any = False, batched: bool = False, **options: Any) -> Any:
    """Single samples, or batches of BATCH, as they lie in the shards."""
    from streaming import FixedBatch

    return dataset(data, batch=FixedBatch(BATCH) if batched else None, decode=decode, **options)


def batches(data: str, how: str = "process", workers: int = 0, threads: int | None = None) -> Iterator[Any]:
    """`how` is "process": threads of this one; "loader": StreamingLoader; "dataloader": torch's."""
    from streaming import StreamingLoader

    if how == "process":
        yield from dataset(data, threads=threads)
    elif how == "dataloader":
        yield from loader(dataset(data), workers, batch_size=None)
    else:
        with StreamingLoader(dataset(data), workers=workers, threads=threads) as items:
            yield from items


def start(data: str) -> Any:
    return batches(data)


def save_state(data: str, at: int, path: str) -> None:
    """What the batch number `at` would carry: a state holds a position and nothing that has to be gone through."""
    Path(path).write_text(json.dumps(dataset(data).state_dict() | {"position": at}))


def resume(data: str, at: int, path: str) -> Any:  # noqa: ARG001 (some sides need it)
    resumed = dataset(data)
    resumed.load_state_dict(json.loads(Path(path).read_text()))
    return iter(resumed)
