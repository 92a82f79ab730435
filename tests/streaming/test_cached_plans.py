"""Plans of all kinds through chunks and caches: what is in the batches does not depend on how shards are got at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from budgeted import BUDGETS, open_budget, same
from reading import write_numbered

from streaming import Cache, FixedBatch, Mix, Shuffle, StreamingDataset, StreamingLoader
from streaming.access import Access

ACCESS: dict[str, Access | None] = {
    "as chosen": None,
    "chunks": Access(whole=True, cached=True),
    "little memory": Access(whole=True, cached=True, memory=1),
    "tight": Access(whole=True, cached=True, tight=True),
    "ranges": Access(whole=False, cached=True),
}
"""How a reader may get at shards, whatever the plan would choose."""


@pytest.fixture(params=ACCESS)
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of each kind, and small chunks."""
    monkeypatch.setattr("streaming.chunks.CHUNK", 3000)
    access = ACCESS[request.param]
    if access is not None:
        monkeypatch.setattr("streaming.reader.choose_access", lambda *args, **options: access)
    if request.param in ("as chosen", "tight"):
        return Cache(disk=tmp_path / "cache", disk_bytes=40_000)
    return Cache(memory_bytes="1GB")


@pytest.mark.parametrize("name", ["bucket", "pad", "pack", "tokens"])
def test_budgets(source: str, name: str, cache: Cache) -> None:
    """Batches of two epochs are equal to those of mapped shards, for budgets of all kinds."""
    mapped, cached = open_budget(source, BUDGETS[name]), open_budget(source, BUDGETS[name], cache=cache)
    for _ in range(2):
        assert same(list(cached), list(mapped))


@pytest.mark.parametrize("by", ["sample", "batch"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_mixes_and_ranks(tmp_path: Path, cache: Cache, by: Any, ranks: int) -> None:
    """Mixes, by sample and by batch, of ranks that share lanes; a state resumes in the middle."""
    sources = {str(write_numbered(tmp_path / name, counts)): 0.5 for name, counts in (("a", [9, 11, 7]), ("b", [30]))}

    def keys(given: Cache | None, state: dict[str, Any] | None = None) -> list[list[str]]:
        found = []
        for rank in range(ranks):
            train = StreamingDataset(
                Mix(sources, by=by), batch=FixedBatch(4), shuffle=Shuffle(2, 5), seed=2, cache=given,
                rank=rank, world_size=ranks,
            )  # fmt: skip
            if state is not None:
                train.load_state_dict(state)
            batches = list(train)
            found += [batch["__key__"] for batch in batches]
        return found

    assert keys(cache) == keys(None)
    train = StreamingDataset(
        Mix(sources, by=by), batch=FixedBatch(4), shuffle=Shuffle(2, 5), seed=2, rank=0, world_size=ranks
    )
    state = next(iter(train))["__state__"]
    assert keys(cache, state) == keys(None, state)


@pytest.mark.parametrize("name", ["bucket", "pack"])
def test_workers_share_a_disk(source: str, tmp_path: Path, name: str, forkserver: None) -> None:
    """Worker processes that share lanes and a disk give the batches of mapped shards."""
    mapped = open_budget(source, BUDGETS[name])
    cached = open_budget(source, BUDGETS[name], cache=Cache(disk=tmp_path / "cache"))
    with StreamingLoader(cached, workers=2, start="forkserver") as loader:
        assert same(list(loader), list(mapped))


def test_a_part_of_the_samples(source: str, cache: Cache) -> None:
    """With `where` only the chosen samples come, the same as of mapped shards."""
    where = "width >= 24"
    mapped = open_budget(source, BUDGETS["bucket"], where=where)
    assert same(list(open_budget(source, BUDGETS["bucket"], where=where, cache=cache)), list(mapped))
