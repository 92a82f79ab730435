"""The contracts of plans with a mix: same order, equal steps, whole shares, permuted passes, hard budget, resume."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import by_hand, mixed_plans, source_of
from plans import (
    EPOCHS,
    RANKS,
    WORKERS,
    Sample,
    check_in_any_order,
    check_resumes,
    expected,
    on_ranks,
    read,
    straight,
)

from streaming import CostBudget, PixelBudget, Plan
from streaming.plan import Groups
from streaming.plan.costs import capped
from streaming.plan.layout import TAILS
from streaming.plan.mixed import BatchMixture

FEW = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=2).filter(any), min_size=1, max_size=3)
BY_SAMPLE = ["single", "fixed", "bucket", "pad", "padded"]
BY_BATCH = [*BY_SAMPLE, "pack", "packed"]
KINDS = [("sample", kind) for kind in BY_SAMPLE] + [("batch", kind) for kind in BY_BATCH]
each_kind = pytest.mark.parametrize(("by", "kind"), KINDS)


pytestmark = pytest.mark.usefixtures("few_bins_throughout")


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_an_epoch_takes_its_part_of_the_passes(by: str, kind: str, data: st.DataObject) -> None:
    """The sequence is as worked out the slow and plain way, for any epoch, however far away."""
    plan, number = data.draw(mixed_plans(by, kind)), data.draw(EPOCHS)
    assert straight(plan.epoch(number)) == by_hand(plan, number)


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_the_order_is_the_same_on_any_layout(by: str, kind: str, data: st.DataObject) -> None:
    """C1: laid out by position, any ranks and workers give the one sequence of the epoch, with any tail."""
    plan, number = data.draw(mixed_plans(by, kind)), data.draw(EPOCHS)
    sequence = straight(plan.epoch(number))
    for world_size in (plan.world_size, data.draw(RANKS)):
        other = on_ranks(plan, world_size)
        assert other.fingerprint() == plan.fingerprint()
        stop = other.total if other.tail == "uneven" else other.end
        given = read(other, other.epoch(number), workers=data.draw(WORKERS), run=data.draw(st.integers(1, 9)))
        assert given == expected(other, sequence, range(stop))


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_every_rank_has_the_same_number_of_steps_in_each_epoch(by: str, kind: str, data: st.DataObject) -> None:
    """C2: known from the numbers of the index alone, the same in every epoch, and what the ranks then give."""
    plan, start = data.draw(mixed_plans(by, kind)), data.draw(st.integers(0, 40))
    for number in (0, 1, 2, data.draw(EPOCHS)):
        epoch = plan.epoch(number)
        assert epoch.total == plan.total
        assert [epoch.cursor().size(p) for p in range(plan.total)] == [len(b) for b in straight(epoch)]
    steps = [plan.steps(start=start, rank=rank) for rank in range(plan.world_size)]
    assert len(plan) == plan.steps()
    assert max(steps) - min(steps) <= (1 if plan.tail == "uneven" else 0)
    found = read(plan, plan.epoch(1), workers=data.draw(WORKERS), start=start)
    assert Counter((p - start) % plan.world_size for p in found) == {r: n for r, n in enumerate(steps) if n}


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_each_epoch_takes_what_was_promised(by: str, kind: str, data: st.DataObject) -> None:
    """Each source gives, in every epoch, exactly `taken` samples (or batches), within one of its share of the weights;
    a batch of a mix by batch is of one source.
    """
    plan = data.draw(mixed_plans(by, kind))
    assert plan.mix is not None
    assert plan.mixture is not None
    taken, weights = list(plan.mixture.taken), [Fraction(w) for w in plan.mix.weights.values()]
    if plan.mix.length is not None:
        assert sum(taken) == plan.mix.length
    elif by == "sample":
        assert sum(taken) == plan.counts.sum()
    else:
        assert sum(taken) == sum(p.full if plan.tail == "drop" and p.full else p.total for p in plan.plans)
    for n, weight in zip(taken, weights, strict=True):
        assert abs(n - sum(taken) * weight / sum(weights)) < 1
    for number in (0, 1, data.draw(EPOCHS)):
        batches = [[source_of(plan, s) for s in batch] for batch in straight(plan.epoch(number))]
        assert all(len(set(batch)) == 1 for batch in batches) or by == "sample"
        given = Counter(s for batch in batches for s in (batch if by == "sample" else batch[:1]))
        assert [given[i] for i in range(len(taken))] == taken


@pytest.mark.parametrize("kind", ["single", "fixed"])
@given(st.data())
@settings(max_examples=25)
def test_no_sample_comes_again_before_all_have_come(kind: str, data: st.DataObject) -> None:
    """By sample: what a source gives over the epochs are permutations of it, one after the other, where an epoch holds
    a part of one as well as where it holds many.
    """
    plan, epochs = data.draw(mixed_plans("sample", kind)), data.draw(st.integers(1, 6))
    streams: list[list[Sample]] = [[] for _ in plan.sources]
    for number in range(epochs):
        for sample in [s for batch in straight(plan.epoch(number)) for s in batch]:
            streams[source_of(plan, sample)].append(sample)
    for (low, high), stream in zip(plan.sources, streams, strict=True):
        n = int(plan.counts[low:high].sum())
        for first in range(0, len(stream), n):
            window = stream[first : first + n]
            assert len(set(window)) == len(window)
        assert all(index < plan.counts[shard] for shard, index in stream)


@pytest.mark.parametrize("kind", ["bucket", "pad", "padded"])
@given(st.data())
@settings(max_examples=12)
def test_similar_samples_come_in_permutations_too(kind: str, data: st.DataObject) -> None:
    """By sample with a budget the same holds for the samples of each group."""
    plan, epochs = data.draw(mixed_plans("sample", kind)), data.draw(st.integers(1, 5))
    assert isinstance(plan.groups, Groups)
    streams: dict[tuple[int, int], list[Sample]] = {}
    for number in range(epochs):
        cursor = plan.epoch(number).cursor()
        for position, batch in enumerate(straight(plan.epoch(number))):
            for sample in batch:
                streams.setdefault((source_of(plan, sample), cursor.bucket(position)), []).append(sample)
    for (source, group), stream in streams.items():
        low, high = plan.sources[source]
        n = int(plan.groups.counts[low:high, group].sum())
        for first in range(0, len(stream), n):
            window = stream[first : first + n]
            assert len(set(window)) == len(window)


@pytest.mark.parametrize("kind", BY_BATCH)
@given(st.data())
@settings(max_examples=8)
def test_no_batch_comes_again_before_all_have_come(kind: str, data: st.DataObject) -> None:
    """By batch: a pass gives each sample once, but for short batches where the tail drops them."""
    plan, epochs = data.draw(mixed_plans("batch", kind)), data.draw(st.integers(1, 5))
    found = plan.mixture
    assert isinstance(found, BatchMixture)
    streams: list[list[list[Sample]]] = [[] for _ in plan.sources]
    for number in range(epochs):
        for batch in straight(plan.epoch(number)):
            streams[source_of(plan, batch[0])].append(batch)
    for (low, high), size, stream in zip(plan.sources, found.sizes, streams, strict=True):
        for first in range(0, len(stream), size):
            window = [s for batch in stream[first : first + size] for s in batch]
            assert len(set(window)) == len(window)
            if plan.tail != "drop" and len(stream) >= first + size:
                assert len(window) == plan.counts[low:high].sum()


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_the_tail_is_what_the_report_says(by: str, kind: str, data: st.DataObject) -> None:
    """C3: of each epoch and each tail, how many samples are left out or come again."""
    plan, number = data.draw(mixed_plans(by, kind)), data.draw(st.integers(0, 3))
    for tail in TAILS:
        other = Plan.make(
            plan.statistics or plan.counts, batch=plan.batch, shuffle=plan.shuffle or False, seed=plan.seed, tail=tail,
            world_size=plan.world_size, together=plan.together, mix=plan.mix, sticky=plan.sticky,
            sources=[high - low for low, high in plan.sources],
        )  # fmt: skip
        sequence = straight(other.epoch(number))
        given = read(other, other.epoch(number))
        report = other.tail_report(number)
        again = [samples for samples, repeat in given.values() if repeat]
        missing = set(range(other.total)) - given.keys()
        assert report.dropped_samples == sum(len(sequence[p]) for p in missing)
        assert report.repeated_samples == sum(map(len, again))
        assert report.repeated_batches == len(again)
        assert not missing or tail == "drop"
        assert not again or tail == "pad"
        assert str(other)


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_no_batch_is_over_its_budget(by: str, kind: str, data: st.DataObject) -> None:
    """C4: padding included; a sample that is too large by itself comes alone."""
    plan = data.draw(mixed_plans(by, kind))
    for number in (0, data.draw(EPOCHS)):
        cursor = plan.epoch(number).cursor()
        for position, samples in enumerate(straight(plan.epoch(number))):
            if isinstance(plan.batch, PixelBudget | CostBudget):
                alone = len(samples) == 1 and kind != "bucket"
                assert alone or cost(plan, samples, cursor.bucket(position)) <= limit(plan)
            else:
                size = plan.batch.samples if plan.batch else 1
                assert len(samples) == size or (len(samples) < size and (position >= plan.full or by == "batch"))


def limit(plan: Plan) -> float:
    return plan.batch.max_pixels if isinstance(plan.batch, PixelBudget) else plan.batch.max_cost  # type: ignore[union-attr]


def cost(plan: Plan, samples: list[Sample], bucket: int) -> float:
    """What a batch takes of its budget, padding included."""
    assert plan.statistics is not None
    columns = [plan.statistics.columns(shard) for shard, _ in samples]
    if isinstance(plan.batch, CostBudget):
        tokens = [int(c["tokens"][i]) for c, (_, i) in zip(columns, samples, strict=True)]
        return len(tokens) * max(tokens) if plan.batch.pad else sum(tokens)
    assert isinstance(plan.batch, PixelBudget)
    if plan.batch.mode == "bucket":
        parts = plan.plans or (plan,)
        shapes = [shape for part in parts if isinstance(part.groups, Groups) for shape in part.groups.shapes]
        return len(samples) * math.prod(shapes[bucket])
    height, width = (
        np.array([c[name][i] for c, (_, i) in zip(columns, samples, strict=True)]) for name in ("height", "width")
    )
    height, width = capped(height, width, plan.batch.longest or 1 << 20)
    return float(len(samples) * height.max() * width.max() if plan.batch.mode == "pad" else (height * width).sum())


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_a_run_resumes_from_every_position(by: str, kind: str, data: st.DataObject) -> None:
    """C5: a state taken after any step goes on, on other ranks and workers, with exactly the rest."""
    plan, second = data.draw(mixed_plans(by, kind, sources=FEW)), data.draw(RANKS)
    number, workers = data.draw(EPOCHS), data.draw(WORKERS)
    check_resumes(plan, straight(plan.epoch(number)), number, second, workers)


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_equal_fingerprints_are_equal_orders(by: str, kind: str, data: st.DataObject) -> None:
    """C5: a plan with another tail either has the same sequence or another fingerprint; a pickled one has both."""
    plan = data.draw(mixed_plans(by, kind))
    sequences = [straight(plan.epoch(n)) for n in (0, 1)]
    assert json.loads(json.dumps(plan.fingerprint())) == plan.fingerprint()
    others = [pickle.loads(pickle.dumps(plan)), *(replace(plan, tail=tail) for tail in TAILS)]
    for other in others:
        if other.fingerprint() == plan.fingerprint():
            assert [straight(other.epoch(n)) for n in (0, 1)] == sequences
    assert others[0] == plan
    assert others[0].fingerprint() == plan.fingerprint()


@each_kind
@given(st.data())
@settings(max_examples=8)
def test_positions_may_be_asked_for_in_any_order(by: str, kind: str, data: st.DataObject) -> None:
    """A cursor that keeps next to nothing gives, whatever it gave before, the samples of a position."""
    plan, number = data.draw(mixed_plans(by, kind)), data.draw(EPOCHS)
    check_in_any_order(plan, number, data.draw(st.permutations(range(plan.total)))[:20])


CHECKS = [
    test_an_epoch_takes_its_part_of_the_passes,
    test_the_order_is_the_same_on_any_layout,
    test_every_rank_has_the_same_number_of_steps_in_each_epoch,
    test_each_epoch_takes_what_was_promised,
    test_the_tail_is_what_the_report_says,
    test_no_batch_is_over_its_budget,
    test_a_run_resumes_from_every_position,
    test_equal_fingerprints_are_equal_orders,
]


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("test_"))
def test_many_more_plans(check: Any, by: str, kind: str) -> None:
    """All of this holds for many more plans of each kind."""

    @given(st.data())
    @settings(max_examples=35)
    def many(data: st.DataObject) -> None:
        check.hypothesis.inner_test(by, kind, data)

    many()
