"""A plan in words.

>>> describe(Plan.make(np.full(20, 100), batch=FixedBatch(32))).splitlines()[0]
'2,000 samples in 20 shards, read along 1 lane (in order)'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .batching import FixedBatch
from .buckets import fill
from .budgets import CostBudget, PixelBudget
from .groups import Groups
from .mixed import BatchMixture

if TYPE_CHECKING:
    from .plan import Plan, TailReport


def describe(plan: Plan) -> str:
    """Samples, order, batches, budget, tail and workers, a line each."""
    order = f"{plan.shuffle}, seed {plan.seed}" if plan.shuffle else "in order"
    samples, shards = number(plan.samples, "sample"), number(len(plan.counts), "shard")
    lines = [f"{samples} in {shards}, read along {number(plan.lanes, 'lane')} ({order})"]
    if plan.mix is not None:
        lines.append(_mix(plan))
    if plan.sticky:
        lines.append(describe_sticky(plan))
    ranks = f"each of {plan.world_size} ranks" if plan.world_size > 1 else "1 rank"
    more = plan.total % plan.world_size
    if plan.tail == "uneven" and more:
        ranks = f"{more} of {plan.world_size} ranks, one less on the others"
    steps = f"{number(plan.steps(), 'step')} on {ranks}"
    if plan.batch is None:
        lines.append(f"single samples: {steps}")
    else:
        lines.append(f"{number(plan.full, 'full micro-batch')} of {plan.batch}{_short(plan)}: {steps}")
    return "\n".join([*lines, *_budget(plan), describe_tail(plan, plan.tail_report()), _workers(plan)])


def _mix(plan: Plan) -> str:
    found = plan.mixture
    taken = [int(q) for q in found.taken] if found is not None else []
    by = plan.mix.by if plan.mix is not None else "sample"
    shares = ", ".join(f"{n:,} ({100 * n / max(1, sum(taken)):.1f} %)" for n in taken)
    short = ""
    if isinstance(found, BatchMixture) and found.dropped:
        short = f"; each pass leaves out {number(found.dropped, 'sample')} in short batches"
    return f"mixed by {by}, an epoch takes of its {number(len(taken), 'source')}: {shares}{short}"


def _short(plan: Plan) -> str:
    short = plan.total - plan.full
    if isinstance(plan.batch, FixedBatch) and plan.mix is None:
        return f" and a short one of {plan.samples % plan.batch.samples}" if short else ""
    return f" and {number(short, 'short one')}" if short else ""


def _budget(plan: Plan) -> list[str]:
    lines = []
    if isinstance(plan.groups, Groups) and isinstance(plan.batch, PixelBudget | CostBudget):
        sizes = plan.groups.capacity.tolist()
        share = float((fill(plan.groups, plan.batch.limit) * plan.groups.samples).sum() / max(1, plan.samples))
        lines.append(
            f"{number(len(sizes), 'group')} of similar samples, {min(sizes, default=0):,} to "
            f"{max(sizes, default=0):,} in a batch, which take {100 * share:.1f} % of the budget"
        )
    return [*lines, describe_oversize(plan)] if plan.oversize else lines


def describe_oversize(plan: Plan) -> str:
    """What happens to samples over the budget."""
    done = "left out" if getattr(plan.batch, "oversize", "alone") == "skip" else "each in a batch of its own"
    return f"{number(plan.oversize, 'sample')} over the budget: {done}"


def describe_sticky(plan: Plan) -> str:
    """What a plan with sticky lanes comes to for the ranks."""
    if plan.shuffle is None:
        return "sticky: without shuffle lanes have the same shards in every epoch anyway"
    lasting = "sticky: lanes keep their shards over epochs"
    if plan.mix is not None:
        return f"{lasting}, but ranks share them: passes over a source begin anywhere in an epoch"
    if plan.keeps_lanes:
        return f"{lasting}, and ranks their lanes"
    what = "lanes and together" if isinstance(plan.groups, Groups) else "lanes"
    return f"{lasting}, but ranks share them: choose {what} that {number(plan.world_size, 'rank')} divide"


def describe_tail(plan: Plan, tail: TailReport) -> str:
    """What the tail policy does to an epoch, of which `tail` is the report."""
    share = f"({100 * tail.dropped_samples / max(1, plan.samples):.2f} %)"
    if plan.tail == "drop":
        if plan.mix is not None:  # an epoch may hold less than the dataset, or more
            return f'tail "drop": {number(tail.dropped_samples, "sample")} left out each epoch'
        left_out = f"{tail.dropped_samples:,} of {number(plan.samples, 'sample')}"
        return f'tail "drop": {left_out} left out each epoch {share}'
    if plan.tail == "pad":
        again = f"{number(tail.repeated_samples, 'sample')} in {number(tail.repeated_batches, 'micro-batch')}"
        return f'tail "pad": {again} given again, flagged'
    return 'tail "uneven": every sample exactly once'


def _workers(plan: Plan) -> str:
    good = plan.good_workers()
    if good is None:
        return "workers per rank that read no byte twice: any (each micro-batch is one run of the dataset)"
    if good:
        twice = "no byte" if plan.kinds == 1 else "few bytes"  # groups have runs of batches, and a rest that all share
        return f"workers per rank that read {twice} twice: {', '.join(map(str, good))}"
    lanes, ranks = number(plan.lanes, "lane"), number(plan.world_size, "rank")
    return f"readers share lanes ({lanes}, {ranks}) and read ranges of the same shards"


def number(n: int, what: str) -> str:
    """3,000 shards, 1 shard."""
    return f"{n:,} {what}{'' if n == 1 else 'es' if what.endswith('ch') else 's'}"
