"""What a plan comes to, in numbers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming import CostBudget, FixedBatch, PixelBudget, Plan, PlanError
from streaming.plan import ColumnStatistics, Groups, Statistics
from streaming.plan_report import PlanReport, cells, limit, report

SIDES = st.sampled_from([16, 40, 64, 65, 200, 640]) | st.integers(1, 900)
BUDGETS = st.sampled_from(
    [
        PixelBudget(200_000),
        PixelBudget(200_000, area=64 * 64),
        PixelBudget(200_000, mode="pad"),
        PixelBudget(200_000, mode="pad", longest=256),
        PixelBudget(200_000, mode="pad", oversize="skip"),
        PixelBudget(200_000, mode="pack"),
        CostBudget("width", 1500),
        CostBudget("width", 1500.5, pad=False),
    ]
)


def images(*shards: list[tuple[int, int]]) -> ColumnStatistics:
    """A dataset of images of these (width, height)."""
    columns = [np.array(sizes, dtype=np.int32).reshape(-1, 2) for sizes in shards]
    return ColumnStatistics([{"width": c[:, 0], "height": c[:, 1]} for c in columns])


def width_known(statistics: ColumnStatistics) -> ColumnStatistics:
    """The same with a histogram over widths: a column of its own, `tokens`."""
    return ColumnStatistics([{**statistics.columns(s), "tokens": statistics.columns(s)["width"]} for s in range(3)])


def made(statistics: Statistics, batch: Any, **more: Any) -> Plan:
    return Plan.make(statistics, batch=batch, **{"shuffle": True, "seed": 3, **more})


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(SIDES, SIDES), max_size=25), min_size=3, max_size=3), BUDGETS, st.integers(1, 3))
def test_the_parts_add_up_to_the_plan(shards: list[list[tuple[int, int]]], batch: Any, ranks: int) -> None:
    """Steps and counts are the plan's; buckets hold each sample and batch once; shares lie between 0 and 1."""
    if isinstance(batch, CostBudget):
        batch = dataclasses.replace(batch, column="tokens")
    plan = made(width_known(images(*shards)), batch, world_size=ranks)
    found = report(plan, workers=2)
    assert (found.steps, found.samples, found.batches) == (plan.steps(), plan.samples, plan.total)
    if isinstance(plan.groups, Groups):
        assert sum(bucket.samples for bucket in found.buckets) == plan.samples
        assert sum(bucket.batches for bucket in found.buckets) == plan.total
        assert sum(bucket.sample_share for bucket in found.buckets) == pytest.approx(1 if plan.samples else 0)
        assert sum(bucket.batch_share for bucket in found.buckets) == pytest.approx(1 if plan.total else 0)
    shares = [found.fill, found.padding, *(b.fill for b in found.buckets), *(b.padding for b in found.buckets)]
    assert all(share is not None and share >= 0 for share in shares)
    if not found.oversize:
        assert all(share is not None and share <= 1 for share in shares)
    assert json.loads(json.dumps(dataclasses.asdict(found)))["tail"] == "drop"
    assert f": {plan.steps():,} step" in str(found)


def test_sizes_are_those_of_the_batches() -> None:
    """Least, mean and greatest are those of the epoch's own batches, and `fill` is what those cost."""
    statistics = images(*[[(64, 64)] * 40 + [(128, 128)] * 30] * 4)
    plan = made(statistics, PixelBudget(64 * 64 * 20))
    found = report(plan)
    epoch = plan.epoch(0)
    sizes = [len(epoch.cursor().samples(np.array([p]))) for p in range(plan.total)]
    assert found.sizes == (5, pytest.approx(np.mean(sizes)), 20)
    assert (min(sizes), max(sizes)) == (5, 20)
    assert (found.fill, found.padding, found.kept, found.short) == (pytest.approx(1.0), 0.0, pytest.approx(1.0), 0)
    assert [(b.shape, b.batch, b.samples, b.batches) for b in found.buckets] == [
        ((64, 64), 20, 160, 8),
        ((128, 128), 5, 120, 24),
    ]


def test_what_a_bucket_keeps_of_an_image() -> None:
    """Images of 100 x 70 that are cut to 96 x 64 keep 6,144 of their 7,000 pixels."""
    found = report(made(images([(100, 70)] * 50), PixelBudget(96 * 64 * 10)))
    assert [b.shape for b in found.buckets] == [(64, 96)]
    assert found.kept == pytest.approx(6144 / 7000)
    assert found.padding == 0
    assert "images keep about 87.77 % of their pixels" in str(found)


def test_what_padding_adds_at_most() -> None:
    """Images of two sizes in one group count as padded to the larger one, even if a batch holds small ones only."""
    found = report(made(images([(100, 100), (100, 80)] * 10), PixelBudget(200 * 200, mode="pad")))
    assert [(b.shape, b.batch) for b in found.buckets] == [((100.0, 100.0), 4)]
    assert found.padding == pytest.approx(0.1)
    assert found.kept is None
    assert "padding" in str(found)


def test_images_that_are_scaled_down_count_so() -> None:
    """With longest=50 an image of 100 x 60 is one of 50 x 30: nothing is padded where all have one shape."""
    plan = made(images([(100, 60)] * 20), PixelBudget(50 * 30 * 5, mode="pad", longest=50))
    found = report(plan)
    assert [(b.shape, b.batch) for b in found.buckets] == [((30.0, 50.0), 5)]
    assert found.padding == 0
    assert cells(plan).bounds.tolist() == [[[50, 30], [50, 30]]]
    assert cells(plan).sizes


def test_packed_batches_are_looked_at() -> None:
    """The manifest does not say how many samples a bin has: those of one block of shards are counted."""
    plan = made(images(*[[(10, 10)] * 100] * 4), PixelBudget(1000, mode="pack", oversize="skip"))
    found = report(plan)
    assert found.looked_at is not None
    assert 0 < found.looked_at <= plan.total
    assert found.sizes[0] <= found.sizes[1] <= found.sizes[2] <= 10
    assert found.fill == pytest.approx(found.sizes[1] / 10, rel=0.1)
    assert found.buckets == ()
    with pytest.raises(PlanError, match="makes no groups"):
        cells(plan)


@pytest.mark.parametrize("batch", [None, FixedBatch(8)])
def test_batches_without_a_budget(batch: FixedBatch | None) -> None:
    """Fill and padding are unknown; a short batch is told of."""
    plan = made(images([(10, 10)] * 30), batch, shuffle=False, world_size=2)
    found = report(plan)
    assert (found.fill, found.padding, found.kept, found.buckets) == (None, None, None, ())
    assert found.sizes == ((8, 7.5, 8) if batch else (1, 1.0, 1))
    assert ("1 short one among them" in str(found)) == (batch is not None)
    with pytest.raises(PlanError, match="is no budget"):
        limit(plan)


def test_samples_over_the_budget_and_the_tail_are_told_of() -> None:
    """Both are counted: what comes alone, and what is left out or given again so that ranks have equal steps."""
    statistics = images([(10, 10)] * 7 + [(100, 100)])
    batch = PixelBudget(200, mode="pad")
    dropped = report(made(statistics, batch, world_size=2))
    assert (dropped.oversize, dropped.tail) == (1, "drop")
    assert "1 sample over the budget" in str(dropped)
    assert dropped.tail_counts == made(statistics, batch, world_size=2).tail_report()
    assert 'tail "drop": 1 sample left out each epoch (12.50 %)' in str(dropped)
    padded = report(made(statistics, batch, world_size=2, tail="pad"))
    assert "given again, flagged" in str(padded)
    assert "every sample exactly once" in str(report(made(statistics, batch, world_size=2, tail="uneven")))


def test_which_worker_counts_read_no_byte_twice() -> None:
    """For similar samples it goes by the batches that come together, for others by the lanes; 0 workers are one."""
    statistics = images(*[[(64, 64)] * 10] * 64)

    def found(batch: Any, workers: int, **more: Any) -> PlanReport:
        return report(made(statistics, batch, lanes=16, world_size=2, **more), workers)

    bucket = PixelBudget(64 * 64 * 2)
    assert (found(bucket, 0).good_workers, found(bucket, 0).reads_twice) == ([1, 2, 4], False)
    assert found(bucket, 3).reads_twice
    assert "parts of shards are read twice; numbers per rank with which none is: 1, 2, 4" in str(found(bucket, 3))
    assert found(bucket, 8, together=16).good_workers == [1, 2, 4, 8]
    assert found(FixedBatch(4), 8).good_workers == [1, 2, 4, 8]
    assert "8 workers on each of 2 ranks: no byte is read twice" in str(found(FixedBatch(4), 8))
    assert found(bucket, 1, together=1).good_workers == []
    assert "no number of workers" in str(found(bucket, 1, together=1))


def test_in_order_any_number_of_workers_will_do_unless_samples_are_grouped() -> None:
    """A batch of a fixed number is one run of the dataset; one of similar samples is not, so that readers share."""
    statistics = images([(64, 64)] * 50, [(100, 80)] * 50)
    fixed = report(made(statistics, FixedBatch(4), shuffle=False, world_size=3), workers=5)
    assert (fixed.good_workers, fixed.reads_twice) == (None, False)
    assert "nor with any other number" in str(fixed)
    grouped = made(statistics, PixelBudget(64 * 64 * 4), shuffle=False, world_size=3)
    assert grouped.good_workers() == []
    assert report(grouped, workers=5).reads_twice


def test_many_buckets_are_cut_short() -> None:
    """The table shows those with most samples and says how many more there are."""
    rng = np.random.default_rng(0)
    sizes = [(int(w), int(h)) for w, h in np.exp(rng.normal(6, 0.5, (4000, 2)))]
    found = report(made(images(sizes), PixelBudget(1_000_000, mode="pad")))
    assert len(found.buckets) > 24
    assert f"and {len(found.buckets) - 24} more with" in str(found)
    assert [b.samples for b in found.buckets] == sorted((b.samples for b in found.buckets), reverse=True)


@pytest.mark.parametrize("batch", [PixelBudget(4096), PixelBudget(4096, mode="pack"), FixedBatch(3)])
def test_a_dataset_without_samples(batch: Any) -> None:
    """All is zero, and it prints."""
    found = report(made(images([], []), batch))
    assert (found.samples, found.batches, found.steps) == (0, 0, 0)
    assert "0 steps" in str(found)
