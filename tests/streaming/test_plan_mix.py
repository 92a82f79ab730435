"""Several datasets in one epoch: shares, passes, what makes no mix, and which states belong to it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plans import EPOCHS, on_ranks, read, straight

from streaming import CostBudget, FixedBatch, Mix, Plan, PlanError, StateMismatch
from streaming.plan import ColumnStatistics, make_state, read_state
from streaming.plan.chosen import originals
from streaming.plan.mix import Slice, Stretch, quotas, stretches


@pytest.mark.parametrize("by", ["sample", "batch"])
@pytest.mark.parametrize("batch", [None, FixedBatch(4), CostBudget("tokens", 30)])
def test_tiny_sources_and_many_readers(by: Any, batch: Any) -> None:
    """Sources of one sample in one shard, 16 ranks and 5 workers: each epoch has its steps and its shares."""
    shards = [{"tokens": np.array([5])}, {"tokens": np.array([7])}, {"tokens": np.arange(1, 20)}]
    plan = Plan.make(
        ColumnStatistics(shards), batch=batch, shuffle=True, world_size=16, tail="pad", sources=[1, 1, 1],
        mix=Mix({"a": 1, "b": 1, "c": 2}, by=by, length=200),
    )  # fmt: skip
    for number in range(3):
        given = read(plan, plan.epoch(number), workers=5)
        assert len(given) == len(plan) * 16
        counted = Counter(shard for samples, again in given.values() if not again for shard, _ in samples)
        if by == "sample":
            assert counted == {0: 50, 1: 50, 2: 100}
        else:
            assert counted.keys() == {0, 1, 2}


@pytest.mark.parametrize("shuffle", [True, False])
def test_shares_hold_within_an_epoch(shuffle: bool) -> None:
    """By sample each batch holds its share of each source, within two samples; by batch, stretches of batches do."""
    counts = np.full(20, 50)
    for weights in ((0.7, 0.3), (0.9, 0.1)):
        mix = Mix(dict(zip("ab", weights, strict=True)))
        plan = Plan.make(counts, batch=FixedBatch(20), shuffle=shuffle, mix=mix, sources=[5, 15])
        for batch in straight(plan.epoch(1)):
            assert abs(sum(shard < 5 for shard, _ in batch) - 20 * weights[0]) <= 2
        plan = Plan.make(counts, batch=FixedBatch(5), shuffle=shuffle, mix=replace(mix, by="batch"), sources=[5, 15])
        first = [batch[0][0] < 5 for batch in straight(plan.epoch(1))]
        for low in range(0, len(first) - 80, 40):
            assert abs(sum(first[low : low + 80]) - 80 * weights[0]) <= 16


def test_epochs_and_passes_have_orders_of_their_own() -> None:
    """With shuffle each pass over a source is in another order, and sources do not share theirs; without, all are in
    the order of the dataset.
    """
    mix, counts = Mix({"a": 1, "b": 1}, length=100), np.array([25, 25])
    plan = Plan.make(counts, shuffle=True, mix=mix, sources=[1, 1])
    orders = []
    for number in range(2):
        given = [s for batch in straight(plan.epoch(number)) for s in batch]
        for shard in (0, 1):
            own = [index for s, index in given if s == shard]
            orders += [tuple(own[:25]), tuple(own[25:])]
    assert len(set(orders)) == 8
    assert all(sorted(order) == list(range(25)) for order in orders)
    plain = Plan.make(counts, mix=mix, sources=[1, 1])
    given = [s for batch in straight(plain.epoch(3)) for s in batch]
    assert given == [(shard, i % 25) for i in range(50) for shard in (0, 1)]


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"mix": Mix({"a": 2, "b": 2})}, r"mix: saved \[\[0\.33.*, 0\.66.*\], 'sample', None\], now \[\[0\.5, 0\.5\]"),
    ({"mix": Mix({"a": 1, "b": 2}, length=9)}, "mix: saved .*now .* 9]"),
    ({"mix": Mix({"a": 1, "b": 2}, by="batch")}, "mix: saved .*'sample'.*now .*'batch'"),
    ({"mix": None, "sources": ()}, r"mix: saved .*now None.*sources: saved \[2, 1\], now None"),
    ({"sources": [1, 2]}, r"sources: saved \[2, 1\], now \[1, 2\]"),
    ({"together": 3}, "together: saved 8, now 3"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_state_of_another_mix_is_refused(change: dict[str, Any], named: str) -> None:
    """C5: weights, kind, length and sources are named with both values; the places of the sources do not matter."""
    base: dict[str, Any] = {"counts": np.array([3, 4, 5]), "mix": Mix({"a": 1, "b": 2}), "sources": [2, 1]}
    state = make_state(Plan.make(**base).fingerprint(), epoch=1, position=2)
    with pytest.raises(StateMismatch, match=named):
        read_state(state, Plan.make(**base | change).fingerprint())
    moved_away = Plan.make(**base | {"mix": Mix({"c": 1, "d": 2})})
    assert read_state(state, moved_away.fingerprint()) == (1, 2)


def test_a_state_of_another_tail_is_refused_where_passes_differ() -> None:
    """C5: by batch a tail that drops short batches makes the passes shorter, which is another order."""
    base: dict[str, Any] = {"batch": FixedBatch(2), "mix": Mix({"a": 1, "b": 1}, by="batch"), "sources": [1, 1]}
    odd, even = np.array([5, 4]), np.array([4, 4])
    state = make_state(Plan.make(odd, tail="drop", **base).fingerprint(), epoch=1, position=2)
    with pytest.raises(StateMismatch, match=r"passes: saved \[2, 2\], now \[3, 2\]"):
        read_state(state, Plan.make(odd, tail="pad", **base).fingerprint())
    state = make_state(Plan.make(even, tail="drop", **base).fingerprint(), epoch=1, position=2)
    assert read_state(state, Plan.make(even, tail="pad", **base).fingerprint()) == (1, 2)


def test_mixes_that_make_no_plan() -> None:
    """A source without samples, by itself or behind the budget, is named; so are packing by sample and wrong numbers
    of sources.
    """
    mix = Mix({"first": 1, "second": 1})
    with pytest.raises(PlanError, match="'second' has no samples"):
        Plan.make(np.array([3, 0, 0]), mix=mix, sources=[1, 2])
    known = ColumnStatistics([{"tokens": np.array([9, 8])}, {"tokens": np.array([1])}])
    with pytest.raises(PlanError, match="'first' has no samples"):
        Plan.make(known, batch=CostBudget("tokens", 5, oversize="skip"), mix=mix, sources=[1, 1])
    for by in ("sample", "batch"):
        options: dict[str, Any] = {"mix": replace(mix, by=by), "sources": [1, 1]}
        for pad in (True, False):
            if by == "sample" and not pad:
                with pytest.raises(PlanError, match=r"can't be packed.*by=.batch"):
                    Plan.make(known, batch=CostBudget("tokens", 5, pad=pad), **options)
            else:
                assert len(Plan.make(known, batch=CostBudget("tokens", 5, pad=pad), **options))
    for sources in ([3], [1, 1, 1], [1, 1], [2, 2]):
        with pytest.raises(PlanError, match="2 sources"):
            Plan.make(np.array([3, 2, 1]), mix=mix, sources=sources)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"weights": {}}, "source to weight"),
        ({"weights": ["a", "b"]}, "source to weight"),
        ({"weights": {"a": 0}}, "'a' is 0"),
        ({"weights": {"a": -1.5}}, r"'a' is -1\.5"),
        ({"weights": {"a": float("nan")}}, "'a' is nan"),
        ({"weights": {"a": float("inf")}}, "'a' is inf"),
        ({"weights": {"a": True}}, "'a' is True"),
        ({"weights": {"a": "1"}}, "'a' is '1'"),
        ({"weights": {"a": 1}, "by": "shard"}, "by='shard'"),
        ({"weights": {"a": 1}, "length": 0}, "length=0"),
        ({"weights": {"a": 1}, "length": 2.0}, r"length=2\.0"),
        ({"weights": {"a": 1}, "length": True}, "length=True"),
    ],
)
def test_mixes_that_are_none(arguments: dict[str, Any], named: str) -> None:
    """Arguments that make no mix are errors that show them."""
    with pytest.raises(PlanError, match=named):
        Mix(**arguments)


def test_a_mix_shows_as_it_is_written() -> None:
    """What is at its default is left out, and the weights are the mix's own."""
    weights = {"a": 2.0, "b": 1}
    mix = Mix(weights)
    weights["a"] = 7
    assert repr(mix) == "Mix({'a': 2.0, 'b': 1})"
    text = "Mix({'a': 2, 'b': 1}, by='batch', length=3000)"
    assert repr(Mix({"a": 2, "b": 1}, by="batch", length=3000)) == text


def test_the_report_tells_the_shares() -> None:
    """A printed plan says how much of each source an epoch takes, and promises no reading without overlap."""
    plan = Plan.make(np.full(4, 250), batch=FixedBatch(10), shuffle=True, mix=Mix({"a": 7, "b": 3}), sources=[2, 2])
    assert "mixed by sample, an epoch takes of its 2 sources: 700 (70.0 %), 300 (30.0 %)" in str(plan)
    assert plan.good_workers() == [1]
    assert on_ranks(plan, 2).good_workers() == []
    more = Plan.make(
        np.array([3, 30]), batch=FixedBatch(10), tail="drop", mix=Mix({"a": 1, "b": 1}, length=399), sources=[1, 1],
        world_size=16,
    )  # fmt: skip
    assert 'tail "drop": 79 samples left out each epoch' in str(more)


@given(st.lists(st.just(0.0) | st.floats(0.001, 1e6), min_size=1, max_size=8).filter(any), st.integers(0, 5000))
@example([1.0, 1.0, 1.0], 2)
def test_quotas_add_up(shares: list[float], total: int) -> None:
    """Quotas add up to the total, each within one of its share, none for a share of nothing."""
    found = quotas(shares, total)
    assert sum(found) == total
    for n, share in zip(found, shares, strict=True):
        assert abs(n - total * share / math.fsum(shares)) < 1 + 1e-6
        assert n == 0 or share > 0


@given(st.lists(st.just(0) | st.integers(1, 10**6), min_size=1, max_size=8).filter(any), st.integers(0, 5000))
def test_quotas_of_at_least_one(shares: list[int], total: int) -> None:
    """With `least`, each share above 0 has as much, where that is possible; the sum stays the total."""
    found = quotas(shares, total, least=1)
    assert sum(found) == total
    some = [n for n, share in zip(found, shares, strict=True) if share]
    assert min(some) >= (1 if total >= len(some) else 0)
    assert all(n == 0 for n, share in zip(found, shares, strict=True) if not share)


@given(EPOCHS, st.integers(1, 50), st.integers(1, 12), st.data())
def test_stretches_are_what_an_epoch_takes(epoch: int, quota: int, size: int, data: st.DataObject) -> None:
    """Stretches lie end to end over the passes, and hold items low ... high - 1 of the epoch."""
    low = data.draw(st.integers(0, quota))
    high = data.draw(st.integers(low, quota))
    found = stretches(epoch, quota, low, high, size)
    items = [(s.number, i) for s in found for i in range(s.low, s.high)]
    assert items == [divmod(epoch * quota + i, size) for i in range(low, high)]
    assert all(0 <= s.low < s.high <= size for s in found)
    assert all(b == Stretch(a.number + 1, 0, b.high) and a.high == size for a, b in pairwise(found))


def test_a_slice_is_a_dataset_of_its_own() -> None:
    """The statistics of some of the shards are those of a dataset of these shards alone, but for bounds, which hold."""
    shards = [{"tokens": np.array(t)} for t in ([1, 2], [3], [40, 50, 60], [])]
    whole, alone = ColumnStatistics(shards), ColumnStatistics(shards[1:])
    part = Slice(whole, 1, 4)
    assert part.counts.tolist() == alone.counts.tolist()
    assert part.sums("tokens").tolist() == alone.sums("tokens").tolist()
    assert part.columns(1)["tokens"].tolist() == [40, 50, 60]
    assert part.histogram("frames") is None
    table, wanted = part.histogram("tokens"), alone.histogram("tokens")
    assert table is not None
    assert wanted is not None
    held = table.counts.any(axis=0)
    assert table.cells[held].tolist() == wanted.cells.tolist()
    assert table.counts[:, held].tolist() == wanted.counts.tolist()


def test_samples_over_the_budget_are_left_out_of_each_source() -> None:
    """oversize="skip" leaves them out of a mix too, with the indices of the rest found again."""
    shards = [{"tokens": np.array(t)} for t in ([9, 1, 9, 2], [9, 3], [4, 9, 9, 9])]
    for by in ("sample", "batch"):
        plan = Plan.make(
            ColumnStatistics(shards), batch=CostBudget("tokens", 8, oversize="skip"), tail="uneven",
            mix=Mix({"a": 3, "b": 1}, by=by), sources=[2, 1],
        )  # fmt: skip
        assert plan.oversize == 6
        given = np.array([s for n in range(3) for batch in straight(plan.epoch(n)) for s in batch])
        found = originals(plan.statistics, given[:, 0], given[:, 1])
        assert set(zip(given[:, 0].tolist(), found.tolist(), strict=True)) == {(0, 1), (0, 3), (1, 1), (2, 0)}
