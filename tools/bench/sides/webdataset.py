"""webdataset reads our shards as they are; it has no index, and no state to resume from."""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob
from typing import Any

from .common import BATCH, DECODERS, PER_SHARD, Again, fit, loader, samples

MODULES = ["torch", "PIL.Image", "webdataset"]


def write(folder: str, out: str) -> None:
    import webdataset as wds

    with wds.ShardWriter(f"{out}/shard-%06d.tar", maxcount=PER_SHARD, verbose=0) as writer:
        for sample in samples(folder):
            writer.write(sample)


def _dataset(data: str, *, shuffle: bool = False) -> Any:
    import webdataset as wds

    shards = sorted(glob(f"{data}/*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards) if shuffle else False)
    return dataset.shuffle(10_000) if shuffle else dataset


def raw(data: str, shuffle: bool = False, batched: bool = False) -> Any:
    """A shuffle is a buffer of 10,000 samples."""
    dataset = _dataset(data, shuffle=shuffle)
    if not batched:
        return dataset
    dataset = dataset.to_tuple("__key__", "jpg", "txt").batched(BATCH)
    return Again(lambda: _named(dataset))


def batches(data: str, workers: int = 0, decoder: str = "pillow") -> Iterator[Any]:
    dataset = _dataset(data)
    if decoder == "pillow":
        dataset = dataset.decode("pil").map_dict(jpg=fit)
    else:
        dataset = dataset.map_dict(jpg=DECODERS[decoder], txt=_text)
    dataset = dataset.to_tuple("__key__", "jpg", "txt").batched(BATCH)
    return _named(loader(dataset, workers, batch_size=None) if workers else dataset)


def start(data: str) -> Iterator[Any]:
    return batches(data)


def _named(items: Any) -> Iterator[dict[str, Any]]:
    for keys, pictures, texts in items:
        yield {"__key__": keys, "jpg": pictures, "txt": texts}


def _text(data: bytes) -> str:
    return data.decode("utf-8")
