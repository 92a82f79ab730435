"""How shards are got at, by what a reader owns and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streaming.access import AHEAD, MEMORY, Access, choose_access, working_set
from streaming.cache import Cache
from streaming.chunks import CHUNK
from streaming.plan import FixedBatch, Groups, Mix, Plan, Shuffle

CC3M = Plan.make(np.full(332, 10_000), batch=FixedBatch(64), shuffle=True)
SIZE = 332 * 10_000 * 24_000


def _access(plan: Plan = CC3M, readers: int = 64, cache: Cache | None = None, **changed: Any) -> Access:
    given: dict[str, Any] = {"local_readers": 8, "size": SIZE, "samples": 3_320_000}
    return choose_access(plan, readers=readers, cache=cache, **(given | changed))


def test_a_reader_with_lanes_of_its_own_fetches_whole_chunks() -> None:
    """Readers that own lanes fetch whole chunks; those that share lanes ask for ranges."""
    assert CC3M.lanes == 64
    assert _access(readers=64).whole
    assert _access(readers=32).whole
    assert not _access(readers=24).whole
    assert not _access(readers=128).whole


def test_what_must_be_held_follows_from_the_shuffle() -> None:
    """The samples that a lane displaces, and a chunk of each of its open shards, count for each lane."""
    one = working_set(CC3M, 64, SIZE)
    assert one == 10_000 * 24_000 + 4 * CHUNK
    assert working_set(CC3M, 32, SIZE) == 2 * one
    straight = Plan.make(np.full(332, 10_000), batch=FixedBatch(64), lanes=2)
    assert working_set(straight, 1, SIZE) == 2 * 2 * CHUNK
    whole = Plan.make(np.full(4, 100), batch=FixedBatch(10), shuffle=Shuffle(buffer=10**6), lanes=1)
    assert working_set(whole, 1, 1000) == 1000


def test_more_than_there_is_memory_for_is_asked_for_by_ranges() -> None:
    """A reader of many lanes would hold too much, unless the user gives it the memory or a disk."""
    assert not _access(readers=1, local_readers=1).whole
    assert _access(readers=1, local_readers=1, cache=Cache(memory_bytes="20GB")).whole
    assert _access(readers=1, local_readers=1, cache=Cache(disk="/ssd")).whole


def test_readers_that_share_lanes_share_a_disk() -> None:
    """Where a disk lies between, readers of one lane fetch whole chunks, which the others find there; from a shared
    tier each would fetch them for itself.
    """
    assert _access(readers=128, cache=Cache(disk="/ssd")).whole
    assert not _access(readers=128, cache=Cache(shared="/nfs")).whole
    assert _access(readers=64, cache=Cache(shared="/nfs")).whole


def test_groups_and_mixes_keep_fewer_readers_apart() -> None:
    """With groups of similar samples readers have lanes of their own where runs of micro-batches keep them apart; in a
    mix only a reader that is alone has.
    """
    big = Cache(memory_bytes="1TB")
    budget = replace(CC3M, together=8, groups=object.__new__(Groups))
    assert [_access(budget, readers=n, cache=big).whole for n in (8, 16, 64)] == [True, False, False]
    mixed = replace(CC3M, mix=Mix({"a": 0.5, "b": 0.5}))
    assert [_access(mixed, readers=n, local_readers=1, cache=big).whole for n in (1, 2)] == [True, False]


def test_memory_is_shared_out() -> None:
    """What the user gives is for all readers of the machine; what shuffling does not need is kept."""
    access = _access(cache=Cache(memory_bytes="16GB"))
    assert access.memory == 2 * 10**9 - AHEAD
    assert access.keep == 2 * 10**9 - AHEAD - working_set(CC3M, 64, SIZE)
    assert (_access().memory, _access().keep) == (MEMORY, 0)
    assert _access(cache=Cache(memory_bytes=0)).keep == 0


def test_a_cache_takes_local_shards_too() -> None:
    """With a cache local shards are not mapped; the share of the samples that is read at all is noted."""
    assert _access(cache=Cache(disk="/ssd")).cached
    assert not _access().cached
    assert _access(samples=6_640_000).chosen == 0.5
