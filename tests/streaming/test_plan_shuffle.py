"""The order inside a block of shards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import PlanError, Shuffle
from streaming.plan.keys import uniform
from streaming.plan.shuffle import block_order

SIZES = st.lists(st.integers(0, 60), max_size=5)
BUFFERS = st.integers(1, 80) | st.just(10_000)
SEEDS = st.integers()


def order(sizes: list[int], buffer: int | None, seed: int, *, epoch: int = 0, lane: int = 0, block: int = 0) -> Any:
    shuffle = None if buffer is None else Shuffle(len(sizes) or 1, buffer)
    return block_order(np.array(sizes, dtype=np.int64), shuffle, seed, epoch=epoch, lane=lane, block=block)


@given(SIZES, BUFFERS, SEEDS)
def test_a_block_gives_each_sample_once(sizes: list[int], buffer: int, seed: int) -> None:
    """The order is a permutation of the block, whatever its shards' sizes; without shuffle it counts up."""
    assert sorted(order(sizes, buffer, seed).tolist()) == list(range(sum(sizes)))
    assert order(sizes, None, seed).tolist() == list(range(sum(sizes)))


@given(SIZES, BUFFERS, SEEDS)
def test_no_sample_moves_by_the_buffer_or_more(sizes: list[int], buffer: int, seed: int) -> None:
    """Against the interleaved order, which a buffer of 1 leaves as it is, each place changes by less than `buffer`."""
    interleaved, moved = np.argsort(order(sizes, 1, seed)), np.argsort(order(sizes, buffer, seed))
    assert (np.abs(moved - interleaved) < buffer).all()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), SEEDS)
def test_shards_are_interleaved_in_proportion(sizes: list[int], seed: int) -> None:
    """With a buffer of 1 each shard keeps its own order, and its j-th sample is due at (j + phase) / size."""
    total, starts = sum(sizes), np.cumsum([0, *sizes])
    got = order(sizes, 1, seed)
    if total < 2:
        return
    phases = uniform(total + len(sizes), seed, "block", 0, 0, 0)[total:].tolist()
    due = {
        int(start) + j: (j + phase) / size
        for start, size, phase in zip(starts, sizes, phases, strict=False)
        for j in range(size)
    }
    assert got.tolist() == sorted(due, key=lambda sample: due[sample])
    for place in range(total + 1):
        for k, size in enumerate(sizes):
            seen = ((got[:place] >= starts[k]) & (got[:place] < starts[k + 1])).sum()
            assert abs(seen - place * size / total) <= 1 + len(sizes) * size / total


@given(st.integers(2, 5), st.integers(5, 60), st.integers(1, 40), SEEDS)
def test_the_first_samples_come_from_all_shards(shards: int, size: int, buffer: int, seed: int) -> None:
    """Each shard of a block has given a sample after twice as many samples as there are shards, and the buffer."""
    first = order([size] * shards, buffer, seed)[: 2 * shards + buffer]
    assert set((first // size).tolist()) == set(range(shards))


@pytest.mark.parametrize("buffer", [2, 16, 400])
def test_samples_do_move(buffer: int) -> None:
    """In a large block the farthest move is more than half the buffer, and nearly every sample moves."""
    sizes = [500] * 4
    interleaved, moved = np.argsort(order(sizes, 1, 5)), np.argsort(order(sizes, buffer, 5))
    far = np.abs(moved - interleaved)
    assert far.max() >= buffer / 2
    assert far.mean() >= buffer / 8


def test_a_large_buffer_mixes_evenly() -> None:
    """With a buffer of the block's size or more each of the 24 orders of four samples comes about equally often."""
    seen = Counter(tuple(order([3, 1], 4, 1, epoch=e).tolist()) for e in range(4800))
    assert len(seen) == 24
    assert sum((n - 200) ** 2 / 200 for n in seen.values()) < 49.7  # chi-square, 23 degrees of freedom, 0.1 %


@pytest.mark.parametrize("buffer", [3, 10_000])
def test_blocks_have_orders_of_their_own(buffer: int) -> None:
    """Seed, epoch, lane and block each change the order."""
    sizes = [20, 20]
    base = {"epoch": 1, "lane": 1, "block": 1}
    orders = [order(sizes, buffer, seed, **base) for seed in (0, 1)]
    orders += [order(sizes, buffer, 0, **base | {name: 2}) for name in base]
    assert len({str(o.tolist()) for o in orders}) == 5


def test_a_block_of_4_billion_samples_is_refused() -> None:
    """Samples of a block are numbered with 32 bits; the error says what to change."""
    for shuffle in (None, Shuffle(2)):
        with pytest.raises(PlanError, match="a block of 4294967296 samples: use smaller shards"):
            block_order(np.array([1 << 31, 1 << 31]), shuffle, 0, epoch=0, lane=0, block=0)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "4", None])
def test_shuffle_wants_whole_numbers(value: Any) -> None:
    """Shards and buffer are whole numbers of at least 1."""
    with pytest.raises(PlanError, match="at least 1"):
        Shuffle(shards=value)
    with pytest.raises(PlanError, match="at least 1"):
        Shuffle(buffer=value)


def test_shuffle_is_a_value() -> None:
    """It prints as it is written, compares, hashes and can't be changed."""
    assert repr(Shuffle()) == "Shuffle(shards=4, buffer=10000)"
    assert {Shuffle(4, 10_000), Shuffle()} == {Shuffle(shards=4)}
    with pytest.raises(AttributeError):
        Shuffle().shards = 5  # type: ignore[misc]
