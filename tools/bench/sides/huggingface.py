"""Hugging Face datasets: Arrow files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .common import BATCH, DECODERS, Again, fit, loader, samples

MODULES = ["torch", "PIL.Image", "datasets"]


def write(folder: str, out: str) -> None:
    import datasets

    datasets.disable_progress_bars()
    columns = datasets.Features(
        {"__key__": datasets.Value("string"), "jpg": datasets.Image(), "txt": datasets.Value("string")}
    )
    # Without a cache of its own the second writing of a folder would only copy what the first made.
    made = datasets.Dataset.from_generator(
        _rows, features=columns, gen_kwargs={"folder": folder}, cache_dir=f"{out}/cache"
    )
    made.save_to_disk(f"{out}/saved")


def _rows(folder: str) -> Iterator[dict[str, Any]]:
    for sample in samples(folder):
        yield sample | {"jpg": {"bytes": sample["jpg"], "path": None}}


def _dataset(data: str, *, decoded: bool) -> Any:
    import datasets

    return datasets.load_from_disk(f"{data}/saved").cast_column("jpg", datasets.Image(decode=decoded))


def raw(data: str) -> Any:
    dataset = _dataset(data, decoded=False)
    return Again(lambda: _unwrapped(dataset))


def _unwrapped(dataset: Any) -> Iterator[dict[str, Any]]:
    for sample in dataset:
        yield sample | {"jpg": sample["jpg"]["bytes"]}


def batches(data: str, workers: int = 0, decoder: str = "pillow") -> Any:
    """A transform on access, as its guide to PyTorch has it."""
    own = decoder == "pillow"  # it opens pictures with Pillow
    dataset = _dataset(data, decoded=own).with_transform(partial(_decoded, None if own else decoder))
    return loader(dataset, workers)


def start(data: str) -> Any:
    return loader(_iterable(data), 0)


def save_state(data: str, at: int, path: str) -> None:
    dataset = _iterable(data)
    for number, _ in enumerate(dataset, start=1):
        if number == at * BATCH:
            Path(path).write_text(json.dumps(dataset.state_dict()))
            return


def resume(data: str, at: int, path: str) -> Any:  # noqa: ARG001 (some sides need it)
    dataset = _iterable(data)
    dataset.load_state_dict(json.loads(Path(path).read_text()))
    return iter(loader(dataset, 0))


def _iterable(data: str) -> Any:
    """Only its iterable datasets have a state."""
    return _dataset(data, decoded=True).to_iterable_dataset().map(_one)


def _one(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"jpg": fit(sample["jpg"])}


def _decoded(decoder: str | None, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    pictures = map(fit, rows["jpg"]) if decoder is None else (DECODERS[decoder](row["bytes"]) for row in rows["jpg"])
    return rows | {"jpg": list(pictures)}
