"""Plans with a mix for property tests, and what they should give, worked out the slow and plain way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st
from plans import RANKS, SEEDS, SHUFFLES, Sample, limits, pixel_budgets, sized, straight

from streaming import CostBudget, FixedBatch, Mix, Plan, PlanError
from streaming.plan.keys import uniform
from streaming.plan.layout import TAILS
from streaming.plan.mixed import BatchMixture, SampleMixture

SOURCE = st.lists(st.integers(0, 5) | st.sampled_from([0, 1, 20]), min_size=1, max_size=4).filter(any)
"""Samples of the shards of one source."""
SOURCES = st.lists(st.just([1]) | SOURCE, min_size=1, max_size=3)
WEIGHTS = st.floats(0.01, 10) | st.integers(1, 5) | st.sampled_from([1e-9, 1e9])
OVERSIZE: list[Literal["alone", "skip"]] = ["alone", "skip"]


@st.composite
def mixed_plans(draw: st.DrawFn, by: Any, kind: str, *, sources: Any = SOURCES, tails: Any = TAILS) -> Plan:
    """Any plan with a mix."""
    counts = draw(sources)
    every = [n for shards in counts for n in shards]
    known: Any = np.array(every)
    batch: Any = {"single": None, "fixed": FixedBatch(draw(st.integers(1, 9)))}.get(kind)
    if kind in ("bucket", "pad", "pack"):
        known = draw(sized(column="pixels", counts=st.just(every)))
        batch = draw(pixel_budgets(known, kind))
    elif kind in ("padded", "packed"):
        known = draw(sized(column="tokens", counts=st.just(every)))
        most, oversize = draw(limits(known, "tokens")), draw(st.sampled_from(OVERSIZE))
        batch = CostBudget("tokens", most, pad=kind == "padded", oversize=oversize)
    length = draw(st.none() | st.integers(1, 2 * sum(every) + 5))
    try:
        return Plan.make(
            known,
            batch=batch,
            shuffle=draw(SHUFFLES) or False,
            seed=draw(SEEDS),
            lanes=draw(st.none() | st.integers(1, 4)),
            tail=draw(st.sampled_from(tails)),
            world_size=draw(RANKS),
            together=draw(st.sampled_from([1, 2, 3, 8])),
            sticky=draw(st.booleans()),
            mix=Mix({str(i): draw(WEIGHTS) for i in range(len(counts))}, by=by, length=length),
            sources=[len(shards) for shards in counts],
        )
    except PlanError as error:
        if "has no samples" not in str(error):
            raise
        reject()  # all samples of a source are over the budget, and left out


def source_of(plan: Plan, sample: Sample) -> int:
    """Which source a sample is of."""
    return next(i for i, (low, high) in enumerate(plan.sources) if low <= sample[0] < high)


def phases(plan: Plan, n: int, number: int) -> list[float]:
    """Where in their first interval merged lists begin."""
    return uniform(n, plan.seed, "phases", number).tolist() if plan.shuffle and n > 1 else [0.5] * n


def in_runs(lists: list[list[Any]], together: int, begin: list[float]) -> list[Any]:
    """Lists merged by time, so many items of one at a time; then what fills no run."""
    runs, rest = [], []
    for i, items in enumerate(lists):
        whole = len(items) // together
        runs += [((k + begin[i]) / whole, i, items[k * together :][:together]) for k in range(whole)]
        left = items[whole * together :]
        rest += [((k + begin[i]) / len(left), i, [item]) for k, item in enumerate(left)]
    return [item for part in (runs, rest) for _, _, run in sorted(part, key=lambda x: x[:2]) for item in run]


def endless(first: int, n: int, one_pass: Callable[[int], list[Any]], size: int) -> list[Any]:
    """Items first ... first + n - 1 of the passes over a source, laid end to end."""
    passes = {number: one_pass(number)[:size] for number in {i // size for i in range(first, first + n)}}
    assert all(len(items) == size for items in passes.values())
    return [passes[i // size][i % size] for i in range(first, first + n)]


def moved(batches: list[list[Sample]], start: int) -> list[list[Sample]]:
    """Batches whose shards are counted from another one."""
    return [[(shard + start, index) for shard, index in batch] for batch in batches]


def by_hand(plan: Plan, number: int) -> list[list[Sample]]:
    """The micro-batches of an epoch by position: the passes over each source, of which each epoch takes its part."""
    found = plan.mixture
    if isinstance(found, BatchMixture):
        lists = [batches_of(plan, found, i, number) for i in range(len(found.quota))]
        return in_runs(lists, plan.together, phases(plan, len(lists), number))
    assert isinstance(found, SampleMixture)
    full, short = [], []
    for group, size in enumerate(found.capacity.tolist()):
        samples = samples_of_group(plan, found, group, number)
        batches = [samples[i : i + size] for i in range(0, len(samples), size)]
        batches = [sorted(batch, key=lambda s: source_of(plan, s)) for batch in batches]
        full.append(batches[: len(samples) // size])
        short += batches[len(samples) // size :]
    return in_runs(full, plan.together, phases(plan, len(full), number)) + short


def batches_of(plan: Plan, found: BatchMixture, i: int, number: int) -> list[list[Sample]]:
    """The batches that an epoch takes of one source."""

    def one_pass(k: int) -> list[list[Sample]]:
        return moved(straight(plan.plans[i].one_pass(k)), found.starts[i])

    return endless(number * found.quota[i], found.quota[i], one_pass, found.sizes[i])


def samples_of_group(plan: Plan, found: SampleMixture, group: int, number: int) -> list[Sample]:
    """The samples of a group that an epoch takes of all sources, merged by time."""
    merged: list[tuple[float, int, Sample]] = []
    begin = phases(plan, len(found.starts), number)
    for i, start in enumerate(found.starts):

        def one_pass(k: int, i: int = i, start: int = start) -> list[Sample]:
            epoch = found.one_pass(i, k, found.pieces(i))
            batches = moved(straight(epoch), start)
            return [s for p, batch in enumerate(batches) if epoch.bucket(p) == group for s in batch]

        quota, held = int(found.quota[i, group]), int(found.sizes[i, group])
        items = endless(number * quota, quota, one_pass, held) if quota else []
        merged += [((k + begin[i]) / quota, i, sample) for k, sample in enumerate(items)]
    return [sample for _, _, sample in sorted(merged, key=lambda x: x[:2])]
