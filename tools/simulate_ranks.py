"""What budgets do for many ranks: how long ranks wait for each other, what is padded, how large batches are.

    python tools/simulate_ranks.py
    python tools/simulate_ranks.py --ranks 8 --samples 300000 --json

No image is read: a CC3M-like set of sizes (tools/web_sizes.py) is planned, and every batch of one epoch is looked at.
At each step all ranks wait for the one whose batch costs most; `idle` is the share of the time that they wait, if time
is proportional to cost (pixels, padding included).  `max/mean` is the costliest batch of a step beside the mean one.
`waste` is the share of the pixels that is padding; `useful` is the share of all ranks' time that is spent neither on
padding nor waiting.  `kept` are the pixels that are left of an image's own once it is scaled down and cut.  `over` is
the share of batches that exceed the budget.

Beside the plans of this library stand three ways in which batches are made without one:

(a) fixed    a fixed number of random samples, padded to the largest; as many as fill the budget on average
(b) sorted   each rank for itself sorts buffers of its samples by area and cuts where the padded batch would exceed the
             budget, then shuffles the batches of a buffer
(c) dealt    each rank takes whole shards and cuts in the order in which the samples come

Their ranks have unequal steps.  Here those that are done wait for the last one; in training they would hang.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from web_sizes import web_shards

from streaming.plan import ColumnStatistics, EpochPlan, Groups, PixelBudget, Plan, Statistics
from streaming.plan.costs import capped

LONGEST = 512
AREA = 224 * 224
BUFFER = 10_000
KEPT_BLOCKS = 4096
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """The batches of one epoch, in order: cost, pixels of the images themselves, and samples of each, [n]."""

    costs: Ints
    native: Ints
    samples: Ints

    def __getitem__(self, which: slice | Ints) -> Batches:
        return Batches(self.costs[which], self.native[which], self.samples[which])


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    batches: str
    ranks: int
    steps: tuple[int, int]
    """Of the rank with the fewest, and of that with the most."""
    idle: float
    ratio: tuple[float, float, float] | None
    """max / mean of a step: mean, 99th percentile, worst; None where ranks have no step in common."""
    waste: float
    useful: float
    kept: float | None
    samples: tuple[int, float, int]
    """Of a batch: least, mean, greatest."""
    over: float

    @staticmethod
    def head() -> str:
        names = "batches | steps | idle | max/mean | p99 | worst | waste | useful | kept | samples in a batch | over"
        return f"| {names} |\n|---|{'---:|' * names.count('|')}"

    def line(self) -> str:
        steps = f"{self.steps[0]:,}" if self.steps[0] == self.steps[1] else f"{self.steps[0]:,}-{self.steps[1]:,}"
        ratio = " | ".join(f"{x:.4f}" for x in self.ratio) if self.ratio else "- | - | -"
        kept = "-" if self.kept is None else percent(self.kept)
        samples = f"{self.samples[0]:,}-{self.samples[2]:,}, mean {self.samples[1]:,.1f}"
        shares = " | ".join(percent(x) for x in (self.waste, self.useful))
        cells = (self.batches, steps, percent(self.idle), ratio, shares, kept, samples, percent(self.over))
        return f"| {' | '.join(cells)} |"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share else "0"


class Sizes:
    """Heights and widths of all samples, and where each shard begins."""

    def __init__(self, statistics: Statistics, longest: int | None = None) -> None:
        shards = [statistics.columns(shard) for shard in range(len(statistics.counts))]
        self.height = np.concatenate([c["height"] for c in shards]).astype(np.int64)
        self.width = np.concatenate([c["width"] for c in shards]).astype(np.int64)
        if longest is not None:
            self.height, self.width = capped(self.height, self.width, longest)
        self.area = self.height * self.width
        self.starts = np.concatenate([[0], np.cumsum(statistics.counts)])

    def padded(self, order: Ints, begins: Ints) -> Batches:
        """The batches that begin at some places of an order of samples."""
        if not len(order):
            return Batches(begins[:0], begins[:0], begins[:0])
        samples = np.diff(begins, append=len(order))
        height = np.maximum.reduceat(self.height[order], begins)
        width = np.maximum.reduceat(self.width[order], begins)
        return Batches(samples * height * width, np.add.reduceat(self.area[order], begins), samples)


def planned(plan: Plan, statistics: Statistics) -> tuple[Batches, float | None]:
    """All batches of the first epoch of a plan, and the share of the pixels that is kept where images are cut."""
    epoch = plan.epoch(0)
    positions = range(plan.total)
    if isinstance(epoch, EpochPlan) and isinstance(plan.groups, Groups) and bucketed(plan):
        area = np.prod(np.array(plan.groups.shapes, dtype=np.int64), axis=1)
        groups, samples = (np.array(x) for x in zip(*(sized(epoch, p) for p in positions), strict=True))
        costs = samples * area[groups]
        native = float(statistics.sums("pixels").sum())
        return Batches(costs, costs, samples), float((plan.groups.samples * area).sum()) / native
    cursor = epoch.cursor(KEPT_BLOCKS)
    sizes = Sizes(statistics, getattr(plan.batch, "longest", None))
    found = [sizes.starts[refs.shards] + refs.indices for refs in (cursor.samples(np.array([p])) for p in positions)]
    begins = np.concatenate([[0], np.cumsum([len(x) for x in found])])[:-1]
    batches = sizes.padded(np.concatenate(found), begins)
    return (batches if isinstance(epoch, EpochPlan) else Batches(batches.native, batches.native, batches.samples)), None


def bucketed(plan: Plan) -> bool:
    return isinstance(plan.batch, PixelBudget) and plan.batch.mode == "bucket"


def sized(epoch: EpochPlan, position: int) -> tuple[int, int]:
    """(group, samples) of a position."""
    runs = epoch.runs(position)
    return runs[0].group, sum(run.high - run.low for run in runs)


def greedy(sizes: Sizes, order: Ints, budget: int) -> Ints:
    """Where batches begin that are cut, in order, when one more sample would be over the budget."""
    begins, n, high, wide = [0], 0, 0, 0
    for i, (h, w) in enumerate(zip(sizes.height[order].tolist(), sizes.width[order].tolist(), strict=True)):
        n, high, wide = n + 1, max(high, h), max(wide, w)
        if n > 1 and n * high * wide > budget:
            begins.append(i)
            n, high, wide = 1, h, w
    return np.array(begins, dtype=np.int64)


def fixed(sizes: Sizes, budget: int, ranks: int, rng: np.random.Generator) -> list[Batches]:
    """(a): the batch is the largest whose mean padded cost is within the budget."""
    order = rng.permutation(len(sizes.area))

    def batches(n: int) -> Batches:
        return sizes.padded(order[: len(order) // n * n], np.arange(0, len(order) // n * n, n))

    low, high = 1, max(2, int(2 * budget // sizes.area.mean()))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if batches(middle).costs.mean() <= budget else (low, middle)
    every = batches(low)
    steps = len(every.costs) // ranks
    return [every[np.arange(rank, steps * ranks, ranks)] for rank in range(ranks)]


def by_area(sizes: Sizes, budget: int, ranks: int, rng: np.random.Generator) -> list[Batches]:
    """(b): sort and cut."""

    def of_rank(mine: Ints) -> Iterator[Batches]:
        for low in range(0, len(mine), BUFFER):
            buffer = mine[low : low + BUFFER]
            buffer = buffer[np.argsort(sizes.area[buffer], kind="stable")]
            batches = sizes.padded(buffer, greedy(sizes, buffer, budget))
            yield batches[rng.permutation(len(batches.costs))]

    order = rng.permutation(len(sizes.area))
    return [joined(list(of_rank(order[rank::ranks]))) for rank in range(ranks)]


def dealt(sizes: Sizes, budget: int, ranks: int, rng: np.random.Generator) -> list[Batches]:
    """(c): whole shards."""
    shards = rng.permutation(len(sizes.starts) - 1)

    def of_rank(mine: Ints) -> Batches:
        orders = [sizes.starts[s] + rng.permutation(sizes.starts[s + 1] - sizes.starts[s]) for s in mine]
        order = np.concatenate([np.zeros(0, np.int64), *orders])
        return sizes.padded(order, greedy(sizes, order, budget))

    return [of_rank(shards[rank::ranks]) for rank in range(ranks)]


def joined(parts: list[Batches]) -> Batches:
    columns = zip(*((b.costs, b.native, b.samples) for b in parts), strict=True)
    return Batches(*(np.concatenate(column) for column in columns)) if parts else Batches(*[np.zeros(0, np.int64)] * 3)


def in_turn(batches: Batches, ranks: int, steps: int) -> list[Batches]:
    """Positions of a plan: rank r has position step * ranks + r."""
    return [batches[slice(rank, steps * ranks, ranks)] for rank in range(ranks)]


def row(name: str, of_ranks: list[Batches], budget: int, kept: float | None = None) -> Row:
    lengths = [len(b.costs) for b in of_ranks]
    costs = np.zeros((max(lengths), len(of_ranks)))
    for rank, batches in enumerate(of_ranks):
        costs[: lengths[rank], rank] = batches.costs
    every = joined(of_ranks)
    common = costs[: min(lengths)]
    ratio = None
    if len(common):
        ratios = common.max(axis=1) / common.mean(axis=1)
        ratio = (float(ratios.mean()), float(np.percentile(ratios, 99)), float(ratios.max()))
    busy = costs.mean(axis=1).sum() / costs.max(axis=1).sum()
    own = every.native.sum() / every.costs.sum()
    return Row(
        name, len(of_ranks), (min(lengths), max(lengths)),
        idle=float(1 - busy),
        ratio=ratio,
        waste=float(1 - own),
        useful=float(busy * own),
        kept=kept,
        samples=(int(every.samples.min()), float(every.samples.mean()), int(every.samples.max())),
        over=float((every.costs > budget).mean()),
    )  # fmt: skip


def budgets(pixels: int) -> dict[str, PixelBudget]:
    """The batches to compare, and what they are called."""
    return {
        "bucket": PixelBudget(pixels),
        f"bucket, area={AREA}": PixelBudget(pixels, area=AREA),
        f"pad, longest={LONGEST}": PixelBudget(pixels, mode="pad", longest=LONGEST),
        "pad": PixelBudget(pixels, mode="pad"),
        "pack": PixelBudget(pixels, mode="pack"),
        'pack, oversize="skip"': PixelBudget(pixels, mode="pack", oversize="skip"),
    }


BY_HAND: dict[str, Callable[[Sizes, int, int, np.random.Generator], list[Batches]]] = {
    "(a) fixed": fixed,
    "(b) sorted": by_area,
    "(c) dealt": dealt,
}


def plan_rows(statistics: ColumnStatistics, options: argparse.Namespace) -> Iterator[tuple[Row, str]]:
    """Of each plan a row for each number of ranks, and what it says about itself."""
    for name, budget in budgets(options.budget).items():
        for together in options.together:
            if together != options.together[0] and (budget.mode == "pack" or budget.area):
                continue  # bins are all of one kind; small buckets have little to gain
            made = {
                ranks: Plan.make(
                    statistics, batch=budget, shuffle=True, seed=options.seed, world_size=ranks, together=together
                )
                for ranks in options.ranks
                if ranks >= together or together == options.together[0]
            }
            if not made:
                continue
            # The sequence of batches is the same for any number of ranks.
            first = next(iter(made.values()))
            # An oversize="skip" counts samples among those that it left: the plan's own statistics do, too.
            batches, kept = planned(first, first.statistics or statistics)
            label = name if together == options.together[0] else f"{name}, together={together}"
            for ranks, plan in made.items():
                if plan.steps():  # a small set may have too few batches for so many ranks
                    yield row(label, in_turn(batches, ranks, plan.steps()), options.budget, kept), f"{label}: {plan}"


def hand_rows(statistics: ColumnStatistics, options: argparse.Namespace) -> Iterator[Row]:
    for longest in (None, LONGEST):
        sizes = Sizes(statistics, longest)
        for name, make in BY_HAND.items():
            for ranks in options.ranks:
                rng = np.random.default_rng(options.seed)
                label = name if longest is None else f"{name}, longest={longest}"
                batches = make(sizes, options.budget, ranks, rng)
                if any(len(b.costs) for b in batches):
                    yield row(label, batches, options.budget)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--samples", type=int, default=3_318_333)
    parser.add_argument("--per-shard", type=int, default=10_000)
    parser.add_argument("--budget", type=int, default=224 * 224 * 256)
    parser.add_argument("--together", type=int, nargs="+", default=[8, 64], help="of the plans; the first is for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON a row")
    parser.add_argument("--verbose", action="store_true", help="print the plans, too")
    options = parser.parse_args()
    statistics = ColumnStatistics(web_shards(options.samples, options.per_shard, options.seed))
    rows = []
    for found, text in plan_rows(statistics, options):
        rows.append(found)
        if options.verbose:
            print(text, flush=True)
    rows += hand_rows(statistics, options)
    if options.json:
        for found in rows:
            print(json.dumps(asdict(found)))
        return
    mean = statistics.sums("pixels").sum() / max(1, options.samples)
    shards = len(statistics.counts)
    print(f"{options.samples:,} samples in {shards} shards, {mean:,.0f} pixels on average; budget {options.budget:,}")
    print(f"seed {options.seed}; every batch of one epoch; together={options.together[0]} unless another is named")
    for ranks in options.ranks:
        print(f"\n{ranks} ranks\n\n{Row.head()}")
        for found in rows:
            if found.ranks == ranks:
                print(found.line())


if __name__ == "__main__":
    main()
