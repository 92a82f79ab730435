"""Several nodes, each with a disk tier of its own that holds a part of what it reads."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from shardwriter import ShardWriter
from streaming import Cache, FixedBatch, Shuffle, StreamingDataset, StreamingLoader
from streaming.stats import Stats

SHARDS, EACH, SIZE = 32, 10, 10_000
NODES = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """32 shards of about 240 kB, each one chunk."""
    folder = tmp_path_factory.mktemp("nodes") / "data"
    with ShardWriter(folder, max_samples=EACH) as writer:
        for i in range(SHARDS * EACH):
            writer.write({"__key__": f"{i:06d}", "bin": np.random.default_rng(i).bytes(SIZE)})
    return str(folder)


def _epochs(data: str, folder: Path, *, share: float, epochs: int, sticky: bool) -> list[list[Stats]]:
    """What each node did in each epoch; a node's disk holds `share` of what it reads in an epoch.  Epochs are whole."""
    bytes_each = EACH * (SIZE + 512 + 240) * SHARDS // NODES
    loaders = []
    for rank in range(NODES):
        train = StreamingDataset(
            data, batch=FixedBatch(5), shuffle=Shuffle(shards=1), seed=1, decode=False, lanes=8, sticky=sticky,
            cache=Cache(disk=folder / f"ssd-{rank}", disk_bytes=round(share * bytes_each)), rank=rank, world_size=NODES,
        )  # fmt: skip
        loaders.append(StreamingLoader(train, workers=0))
    found: list[list[Stats]] = [[] for _ in loaders]
    for _ in range(epochs):
        seen: dict[str, int] = {}
        for loader, stats in zip(loaders, found, strict=True):
            before = loader.stats()
            for batch in loader:
                seen |= {k: zlib.crc32(d) for k, d in zip(batch["__key__"], batch["bin"], strict=True)}
            stats.append(loader.stats() - before)
        right = {f"{i:06d}": zlib.crc32(np.random.default_rng(i).bytes(SIZE)) for i in range(SHARDS * EACH)}
        assert seen == right
    for loader in loaders:
        loader.close()
    return found


def _mean(found: list[list[Stats]], epoch: int) -> float:
    return float(np.mean([stats[epoch].hits["disk"] for stats in found]))


def test_sticky_lanes_keep_caches_warm(data: str, tmp_path: Path) -> None:
    """With sticky lanes each node finds in later epochs what it read in the first, as far as its disk holds it;
    without, it reads other shards each time.
    """
    whole = _epochs(data, tmp_path / "whole", share=1.5, epochs=3, sticky=True)
    assert _mean(whole, 0) == 0
    assert _mean(whole, 1) == _mean(whole, 2) == 1.0
    half = _epochs(data, tmp_path / "half", share=0.55, epochs=3, sticky=True)
    assert _mean(half, 1) == _mean(half, 2) == 0.5
    loose = _epochs(data, tmp_path / "loose", share=0.55, epochs=3, sticky=False)
    assert _mean(loose, 1) < 0.35


def test_room_goes_to_what_the_next_epoch_needs(data: str, tmp_path: Path) -> None:
    """Without sticky lanes a node drops shards that it does not read next for those that it does, so that its disk
    gives more than the share of the dataset that it holds.
    """
    found = _epochs(data, tmp_path, share=0.55, epochs=6, sticky=False)
    later = float(np.mean([_mean(found, epoch) for epoch in range(2, 6)]))
    assert later > 0.55 / NODES
