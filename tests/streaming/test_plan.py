"""Plan: arguments, numbers, text, comparison."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from plans import batch_samples, plans

from streaming import FixedBatch, Plan, PlanError, Shuffle
from streaming.plan import TailReport


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"counts": np.full(20, 100), "batch": FixedBatch(32), "shuffle": True, "seed": 7, "world_size": 2},
            """\
2,000 samples in 20 shards, read along 4 lanes (Shuffle(shards=4, buffer=10000), seed 7)
62 full micro-batches of FixedBatch(32) and a short one of 16: 31 steps on each of 2 ranks
tail "drop": 16 of 2,000 samples left out each epoch (0.80 %)
workers per rank that read no byte twice: 1, 2""",
        ),
        (
            {"counts": np.full(1000, 10_000), "batch": FixedBatch(250, size=224), "world_size": 64},
            """\
10,000,000 samples in 1,000 shards, read along 1 lane (in order)
40,000 full micro-batches of FixedBatch(250, size=(224, 224)): 625 steps on each of 64 ranks
tail "pad": 0 samples in 0 micro-batches given again, flagged
workers per rank that read no byte twice: any (each micro-batch is one run of the dataset)""",
        ),
        (
            {"counts": np.array([3]), "tail": "uneven", "world_size": 4, "shuffle": Shuffle(2, 5), "seed": -1},
            """\
3 samples in 1 shard, read along 1 lane (Shuffle(shards=2, buffer=5), seed -1)
single samples: 1 step on 3 of 4 ranks, one less on the others
tail "uneven": every sample exactly once
readers share lanes (1 lane, 4 ranks) and read ranges of the same shards""",
        ),
        (
            {"counts": np.array([1]), "batch": FixedBatch(1), "world_size": 3},
            """\
1 sample in 1 shard, read along 1 lane (in order)
1 full micro-batch of FixedBatch(1): 1 step on each of 3 ranks
tail "pad": 2 samples in 2 micro-batches given again, flagged
workers per rank that read no byte twice: any (each micro-batch is one run of the dataset)""",
        ),
        (
            {"counts": np.array([], dtype=int), "shuffle": True},
            """\
0 samples in 0 shards, read along 1 lane (Shuffle(shards=4, buffer=10000), seed 0)
single samples: 0 steps on 1 rank
tail "drop": 0 of 0 samples left out each epoch (0.00 %)
workers per rank that read no byte twice: 1""",
        ),
    ],
)
def test_a_plan_prints_itself(arguments: dict[str, Any], text: str) -> None:
    """Samples, shards, lanes, steps, what the tail does, and which workers read no byte twice."""
    assert str(Plan.make(**arguments)) == text


def test_what_is_left_open_is_filled_in() -> None:
    """Lanes by the number of shards, the tail by whether there is a shuffle."""
    counts = np.full(50, 10)
    plain, mixed = Plan.make(counts), Plan.make(counts, shuffle=True)
    assert (plain.lanes, plain.tail, plain.shuffle, batch_samples(plain)) == (1, "pad", None, 1)
    assert (mixed.lanes, mixed.tail, mixed.shuffle) == (12, "drop", Shuffle())
    assert Plan.make(counts, shuffle=Shuffle(shards=1)).lanes == 48
    assert Plan.make(counts, lanes=7).lanes == 7
    assert Plan.make(counts, tail="drop").tail == "drop"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tail": "keep"}, "tail='keep': it is one of drop, pad, uneven"),
        ({"lanes": 0}, "lanes=0: a plan has at least 1 lane"),
        ({"lanes": 2.0}, "lanes=2.0: a plan has at least 1 lane"),
        ({"lanes": True}, "lanes=True: a plan has at least 1 lane"),
        ({"seed": 1.0}, "seed=1.0 is not a whole number"),
        ({"seed": True}, "seed=True is not a whole number"),
        ({"seed": None}, "seed=None is not a whole number"),
        (
            {"batch": 32},
            "batch=32: give FixedBatch(n), PixelBudget(pixels), CostBudget(column, cost), or None for single samples",
        ),
        ({"sticky": 1}, "sticky=1: it is True or False"),
        ({"shuffle": 10_000}, "shuffle=10000: give True, False or Shuffle(shards=, buffer=)"),
        ({"shuffle": "no"}, "shuffle='no': give True, False or Shuffle(shards=, buffer=)"),
        ({"world_size": 0}, "rank 0 of world size 0: ranks count from 0 to world_size - 1"),
        ({"counts": np.array([3, -1])}, "counts are no list of sample counts"),
        ({"counts": np.array([[3, 1]])}, "counts are no list of sample counts"),
        ({"counts": np.array([3.5])}, "counts are no list of sample counts"),
        ({"counts": np.array(["3"])}, "counts are no list of sample counts"),
    ],
)
def test_arguments_that_make_no_plan_are_refused(arguments: dict[str, Any], message: str) -> None:
    """The error shows the argument and says what is wanted."""
    with pytest.raises(PlanError) as caught:
        Plan.make(**{"counts": np.array([3, 4])} | arguments)
    assert str(caught.value).startswith(message)


def test_a_plan_keeps_its_counts() -> None:
    """Counts that the caller changes later, lists, and unsigned counts make no difference."""
    counts = np.array([3, 4], dtype=np.uint32)
    plan = Plan.make(counts)
    counts[0] = 9
    assert plan == Plan.make([3, 4])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="read-only"):
        plan.counts[0] = 9


@given(plans())
def test_numbers_of_a_plan_agree(plan: Plan) -> None:
    """Samples, micro-batches, positions and steps follow from the counts, and a repeat names what it repeats."""
    assert plan.samples == sum(plan.counts.tolist())
    assert plan.full == plan.samples // batch_samples(plan)
    assert plan.total == plan.epoch(0).total == -(-plan.samples // batch_samples(plan))
    assert plan.end == len(plan) * plan.world_size
    for position in range(plan.end):
        assert plan.source(position) == (position % plan.total, position >= plan.total)
    assert str(plan).count("\n") == 3 + plan.sticky


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_no_samples_make_no_steps(counts: list[int], tail: Any) -> None:
    """An empty dataset has epochs without a step, on any layout, and nothing for the tail to do."""
    for batch in (None, FixedBatch(3)):
        plan = Plan.make(np.array(counts, dtype=int), batch=batch, shuffle=True, lanes=3, tail=tail, world_size=5)
        assert (len(plan), plan.total, plan.end) == (0, 0, 0)
        assert [plan.steps(start=start, rank=4) for start in (0, 1, 10)] == [0, 0, 0]
        assert plan.tail_report() == TailReport(0, 0, 0)
        assert plan.epoch(0).total == 0


@pytest.mark.parametrize(
    ("batch", "tail", "report", "steps"),
    [
        (None, "pad", TailReport(0, 13, 13), 1),
        (FixedBatch(2), "pad", TailReport(0, 14 * 2 - 14 // 2, 14), 1),
        (None, "drop", TailReport(3, 0, 0), 0),
        (None, "uneven", TailReport(0, 0, 0), 1),
    ],
)
def test_more_ranks_than_samples(batch: FixedBatch | None, tail: Any, report: TailReport, steps: int) -> None:
    """A padded epoch goes round the dataset several times; the report counts each."""
    plan = Plan.make(np.array([1, 2]), batch=batch, tail=tail, world_size=16)
    assert (plan.tail_report(), len(plan)) == (report, steps)


def test_the_fingerprint_is_what_the_order_depends_on() -> None:
    """It survives JSON, names each part, and leaves out ranks, tail and the size of images."""
    plan = Plan.make(np.array([3, 4]), batch=FixedBatch(2, size=8), shuffle=Shuffle(2, 5), seed=2**80, dataset="ab12")
    assert json.loads(json.dumps(plan.fingerprint())) == {
        "order": 1, "dataset": "ab12", "samples": 7, "shards": 2, "batch": "FixedBatch(2)",
        "shuffle": "Shuffle(shards=2, buffer=5)", "seed": 2**80, "lanes": 1,
    }  # fmt: skip
    for same in ({"world_size": 3}, {"tail": "pad"}, {"batch": FixedBatch(2)}):
        assert replace(plan, **same).fingerprint() == plan.fingerprint()


def test_plans_of_other_counts_have_other_fingerprints() -> None:
    """Also without a name for the dataset, and with as many samples and shards."""
    assert Plan.make(np.array([3, 4])).fingerprint() != Plan.make(np.array([4, 3])).fingerprint()


@given(plans(), plans())
def test_plans_compare_by_what_they_are(one: Plan, other: Plan) -> None:
    """Equal plans hash equally and have equal arguments; a pickled one is equal; other things are not."""
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert hash(again) == hash(one)
    alike = [
        (
            p.counts.tolist(),
            p.batch,
            p.shuffle,
            p.seed,
            p.lanes,
            p.tail,
            p.world_size,
            p.dataset,
            p.sticky and p.shuffle,
        )
        for p in (one, other)
    ]
    assert (one == other) == (alike[0] == alike[1])
    assert one != "plan"
