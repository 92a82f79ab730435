"""Plans of many shapes for property tests, and what they should give, worked out the slow and plain way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streaming.plan import (
    ColumnStatistics,
    CostBudget,
    FixedBatch,
    PixelBudget,
    Plan,
    Share,
    Shuffle,
    make_state,
    read_state,
)
from streaming.plan.keys import uniform
from streaming.plan.layout import TAILS

Sample = tuple[int, int]
"""(shard, index)"""
Given = tuple[list[Sample], bool]
"""The samples of a position, and whether they are a repeat."""

COUNTS = st.lists(st.sampled_from([0, 1, 2]) | st.integers(0, 14), max_size=9) | st.lists(
    st.integers(0, 70), max_size=1
)
"""Samples of shards: empty ones, single samples, no shard at all, and one giant."""
RANKS = st.integers(1, 16)
WORKERS = st.integers(0, 5)
"""Workers of each rank; 0 is the trainer's own process."""
BUFFERS = st.integers(1, 9) | st.just(10_000)
SHUFFLES = (
    st.builds(Shuffle, shards=st.integers(1, 2), buffer=BUFFERS)
    | st.builds(Shuffle, shards=st.integers(1, 5), buffer=BUFFERS)
    | st.none()
)
BATCHES = st.none() | st.builds(FixedBatch, st.integers(1, 9))
SEEDS = st.integers(-5, 5) | st.integers()
EPOCHS = st.integers(0, 5) | st.integers(0, 2**31 - 1)


@st.composite
def plans(draw: st.DrawFn, *, counts: st.SearchStrategy[list[int]] = COUNTS, tails: Any = TAILS) -> Plan:
    """Any plan that can be made."""
    return Plan.make(
        np.array(draw(counts), dtype=np.int64),
        batch=draw(BATCHES),
        shuffle=draw(SHUFFLES) or False,
        seed=draw(SEEDS),
        lanes=draw(st.none() | st.integers(1, 3) | st.integers(1, 12)),
        tail=draw(st.sampled_from(tails)),
        world_size=draw(RANKS),
        sticky=draw(st.booleans()),
    )


KINDS = ("equal", "two", "heavy", "giant", "small")
"""How the sizes of a dataset are distributed."""


def values(kind: str, n: int, random: np.random.Generator, most: int) -> Any:
    """`n` whole numbers of at least 1; `most` is about the largest, but for the giant one."""
    if kind == "equal":
        return np.full(n, most // 3 + 1)
    if kind == "two":
        return random.choice([most // 20 + 1, most // 2 + 1], n)
    if kind == "small":
        return random.integers(1, 4, n)
    found = np.clip(np.exp(random.normal(np.log(most / 10), 1.2, n)), 1, most).astype(np.int64)
    if kind == "giant" and n:
        found[random.integers(n)] = 20 * most
    return found


SOME = st.lists(st.integers(4, 40) | st.sampled_from([0, 1, 33]), min_size=2, max_size=8)
MANY = st.integers(0, 7).flatmap(lambda n: SOME if n else COUNTS)
"""Samples of shards, mostly so many that they form several batches."""


@st.composite
def sized(draw: st.DrawFn, *, column: str, most: int = 300, counts: Any = MANY) -> ColumnStatistics:
    """Shards of samples with a column, or of images where it is `pixels`."""
    kind, numbers = draw(st.sampled_from(KINDS)), draw(counts)
    random, total = np.random.default_rng(draw(st.integers(0, 2**32))), sum(numbers)
    columns = {column: values(kind, total, random, most)}
    if column == "pixels":
        columns = {side: values(kind, total, random, most) for side in ("height", "width")}
    if column == "tokens":
        columns["tokens"] = np.where(random.random(total) < 0.1, 0, columns["tokens"])
    if column == "seconds":
        columns["seconds"] = columns["seconds"] / 7
    edges = np.cumsum([0, *numbers])
    return ColumnStatistics([{n: c[a:b] for n, c in columns.items()} for a, b in pairwise(edges)])


def limits(statistics: ColumnStatistics, column: str) -> st.SearchStrategy[float]:
    """Budgets from less than one sample to more than all of them."""
    every = np.concatenate([statistics.columns(s)[column] for s in range(len(statistics.counts))] or [np.ones(1)])
    every = every if len(every) else np.ones(1)
    mean, largest = float(every.mean()), float(every.max())
    some = [float(every.min()) / 2, largest / 2, largest, 2 * largest, float(every.sum()), 3 * float(every.sum()) + 1]
    factor = st.sampled_from([1.5, 2.0, 3.3, 5.0, 8.0, 15.0]) | st.floats(0.7, 8)
    return st.integers(0, 3).flatmap(
        lambda n: factor.map(lambda x: x * (mean or 1.0)) if n else st.sampled_from(some).map(lambda x: x or 1.0)
    )


@st.composite
def pixel_budgets(draw: st.DrawFn, statistics: ColumnStatistics, mode: Any) -> PixelBudget:
    """Any budget of pixels for some images."""
    most = max(1, int(draw(limits(statistics, "pixels"))))
    longest = draw(st.sampled_from([None, None, 150, 60, 20, 1]) | st.integers(1, 400))
    if mode != "bucket":
        return PixelBudget(most, mode=mode, longest=longest, oversize=draw(st.sampled_from(["alone", "skip"])))
    upscale, area = draw(st.booleans()), draw(st.sampled_from([None, None, 5000]) | st.integers(1, 40_000))
    if draw(st.sampled_from([True, True, False])):
        multiple = draw(st.sampled_from([n for n in (1, 2, 8, 32) if n * n <= most]))
        return PixelBudget(most, multiple=multiple, area=area, longest=longest, upscale=upscale)
    # Each image fits into the smallest one's bucket, or into that of a single pixel.
    sizes = [np.stack([statistics.columns(s)[n] for n in ("height", "width")]) for s in range(len(statistics.counts))]
    h, w = (int(side) for side in np.concatenate([*sizes, np.full((2, 1), 300)], axis=1).min(axis=1))
    side = st.sampled_from([max(1, min(n, math.isqrt(most))) for n in (10, 20, 40, 80, 160)])
    shapes = set(draw(st.lists(st.tuples(side, side), min_size=1, max_size=4)))
    return PixelBudget(most, buckets=sorted({(h, w) if h * w <= most else (1, 1), *shapes}), upscale=upscale)


@st.composite
def budget_plans(draw: st.DrawFn, kind: str, *, counts: Any = MANY, tails: Any = TAILS) -> Plan:
    """Any plan with a budget: of pixels in mode "bucket", "pad" or "pack", or of costs, "padded" or "packed"."""
    batch: PixelBudget | CostBudget
    if kind in ("bucket", "pad", "pack"):
        statistics = draw(sized(column="pixels", counts=counts))
        batch = draw(pixel_budgets(statistics, kind))
    else:
        column = draw(st.sampled_from(["tokens", "seconds"]))
        statistics = draw(sized(column=column, counts=counts))
        most = draw(limits(statistics, column))
        whole = draw(st.booleans()) and most >= 1
        oversize = draw(st.sampled_from(["alone", "skip"]))
        batch = CostBudget(column, int(most) if whole else most, pad=kind == "padded", oversize=oversize)
    return Plan.make(
        statistics,
        batch=batch,
        shuffle=draw(SHUFFLES) or False,
        seed=draw(SEEDS),
        lanes=draw(st.none() | st.integers(1, 3) | st.integers(1, 12)),
        tail=draw(st.sampled_from(tails)),
        world_size=draw(RANKS),
        together=draw(st.sampled_from([1, 2, 3, 8])),
        sticky=draw(st.booleans()),
    )


def batch_samples(plan: Plan) -> int:
    """Samples of a full micro-batch of a plan without a budget."""
    return plan.batch.samples if isinstance(plan.batch, FixedBatch) else 1


def on_ranks(plan: Plan, world_size: int) -> Plan:
    """The same plan for another number of ranks."""
    return replace(plan, world_size=world_size)


def all_samples(counts: Any) -> list[Sample]:
    """Every sample of a dataset, in the order of its shards."""
    return [(shard, index) for shard, count in enumerate(counts) for index in range(int(count))]


def block_samples(epoch: Any, lane: int, block: int) -> list[Sample]:
    """All samples of a block in the order in which the lane gives them."""
    shards, starts = epoch.order.block_parts(lane, block)
    inside = [(s, i) for s, n in zip(shards.tolist(), np.diff(starts).tolist(), strict=True) for i in range(n)]
    return [inside[i] for i in epoch.order.block_order(lane, block).tolist()]


def lane_order(epoch: Any, lane: int) -> list[Sample]:
    """The samples of a lane, one block after the other."""
    blocks = -(-epoch.order.lane_shards.shape[1] // epoch.order.block_shards)
    return [sample for block in range(blocks) for sample in block_samples(epoch, lane, block)]


def by_hand(epoch: Any) -> list[list[Sample]]:
    """The micro-batches of an epoch by position: lanes take turns, and what is left in them forms the last ones."""
    size = int(epoch.capacity[0])
    lanes = [lane_order(epoch, lane) for lane in range(len(epoch.order.lane_shards))]
    full = [[lane[i : i + size] for i in range(0, len(lane) - size + 1, size)] for lane in lanes]
    turns = [batches[j] for j in range(max(map(len, full))) for batches in full if j < len(batches)]
    pool = [s for lane in lanes for s in lane[len(lane) // size * size :]]
    return turns + [pool[i : i + size] for i in range(0, len(pool), size)]


def by_hand_groups(epoch: Any) -> list[list[Sample]]:
    """The same for several groups of similar samples, whose runs of batches are merged by time."""
    merged: list[tuple[float, int, list[list[Sample]]]] = []
    rests: list[tuple[float, int, list[list[Sample]]]] = []
    short: list[list[Sample]] = []
    lanes = [lane_order(epoch, lane) for lane in range(len(epoch.order.lane_shards))]
    of_shard = {shard: epoch.group_of(shard) for lane in lanes for shard, _ in lane}
    seed, number, groups, together = epoch.order.seed, epoch.order.epoch, len(epoch.capacity), epoch.together
    plain = epoch.order.in_order or groups == 1
    phases = [0.5] * groups if plain else uniform(groups, seed, "phases", number).tolist()
    for group, size in enumerate(epoch.capacity.tolist()):
        own = [[s for s in lane if of_shard[s[0]][s[1]] == group] for lane in lanes]
        full = [[lane[i : i + size] for i in range(0, len(lane) - size + 1, size)] for lane in own]
        turns = [batches[j] for j in range(max(map(len, full))) for batches in full if j < len(batches)]
        pool = [s for lane in own for s in lane[len(lane) // size * size :]]
        turns += [pool[i : i + size] for i in range(0, len(pool) - size + 1, size)]
        short += [rest for rest in [pool[len(pool) // size * size :]] if rest]
        runs = len(turns) // together
        merged += [((i + phases[group]) / runs, group, turns[i * together :][:together]) for i in range(runs)]
        left = turns[runs * together :]
        rests += [((i + phases[group]) / len(left), group, [batch]) for i, batch in enumerate(left)]
    return [batch for part in (merged, rests) for _, _, run in sorted(part) for batch in run] + short


def straight(epoch: Any) -> list[list[Sample]]:
    """The micro-batches of an epoch by position, as one cursor gives them."""
    cursor = epoch.cursor()
    refs = [cursor.samples(np.array([p])) for p in range(epoch.total)]
    return [list(zip(r.shards.tolist(), r.indices.tolist(), strict=True)) for r in refs]


def read(plan: Plan, epoch: Any, *, workers: int = 0, start: int = 0, run: int = 1) -> dict[int, Given]:
    """What all readers of a layout give, by position; single samples are planned in runs of `run` at a time."""
    given: dict[int, Given] = {}
    for rank in range(plan.world_size):
        for worker in range(max(1, workers)):
            share = Share(rank, plan.world_size, worker, max(1, workers), start)
            turns = np.arange(share.turns(plan.steps(start=start, rank=rank)))
            found = reader(plan, epoch, share.positions(turns).tolist(), run if plan.batch is None else 1)
            assert not found.keys() & given.keys()
            given |= found
    return given


def reader(plan: Plan, epoch: Any, positions: list[int], run: int) -> dict[int, Given]:
    """What one reader gives at the positions of its share."""
    given: dict[int, Given] = {}
    cursor = epoch.cursor(capacity=2)
    for low in range(0, len(positions), run):
        these = positions[low : low + run]
        sources = [plan.source(p) for p in these]
        refs = cursor.samples(np.array([p for p, _ in sources], dtype=np.int64))
        samples = list(zip(refs.shards.tolist(), refs.indices.tolist(), strict=True))
        parts = [samples] if run == 1 else [[s] for s in samples]
        given |= {p: (part, again) for p, part, (_, again) in zip(these, parts, sources, strict=True)}
    return given


def expected(plan: Plan, straight: list[list[Sample]], positions: range) -> dict[int, Given]:
    """What should come at some positions; behind the last sample an epoch starts over."""
    return {p: (straight[p % len(straight)], p >= len(straight)) for p in positions}


def check_rest(plan: Plan, sequence: list[Any], number: int, start: int, workers: int, run: int = 1) -> None:
    """All readers of a layout together give exactly the rest of an epoch from a position on."""
    given = read(plan, plan.epoch(number), workers=workers, start=start, run=run)
    end = {
        "drop": max(start, plan.full - (plan.full - start) % plan.world_size),
        "pad": start + -(-max(0, plan.total - start) // plan.world_size) * plan.world_size,
        "uneven": plan.total,
    }[plan.tail]
    assert given == expected(plan, sequence, range(start, end))


def check_resumes(plan: Plan, sequence: list[Any], number: int, second: int, workers: int) -> None:
    """A state taken after any step of an epoch goes on, on `second` ranks, with exactly the rest."""
    again = on_ranks(plan, second)
    for position in range(0, plan.total + plan.world_size, plan.world_size):
        state = json.loads(json.dumps(make_state(plan.fingerprint(), epoch=number, position=position)))
        assert read_state(state, again.fingerprint()) == (number, position)
        check_rest(again, sequence, number, position, workers)


def check_in_any_order(plan: Plan, number: int, order: Iterable[int]) -> None:
    """A cursor that keeps next to nothing gives, whatever it gave before, the samples of a position."""
    sequence, cursor = straight(plan.epoch(number)), plan.epoch(number).cursor(1)
    for position in order:
        refs = cursor.samples(np.array([position]))
        assert list(zip(refs.shards.tolist(), refs.indices.tolist(), strict=True)) == sequence[position]


class Asked(ColumnStatistics):
    """Columns that note for which shards they were asked."""

    def __init__(self, shards: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(shards)
        self.asked: list[int] = []

    def columns(self, shard: int) -> Any:
        """Columns of one shard."""
        self.asked.append(shard)
        return super().columns(shard)
