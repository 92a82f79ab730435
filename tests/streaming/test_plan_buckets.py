"""From sizes to buckets, and to bounds that batches are padded to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from plans import pixel_budgets, sized

from streaming import CostBudget, PixelBudget, Plan, PlanError
from streaming.plan import ColumnStatistics, Groups
from streaming.plan.buckets import MOST_GROUPS, even, fill, make_groups
from streaming.plan.costs import capped

Sizes = NDArray[np.int64]


def images(*sizes: tuple[int, int, int]) -> ColumnStatistics:
    """A shard of images, (how many, height, width) of each size."""
    height = np.concatenate([np.full(n, h) for n, h, _ in sizes])
    width = np.concatenate([np.full(n, w) for n, _, w in sizes])
    return ColumnStatistics([{"height": height, "width": width}])


def by_group(groups: Groups, statistics: ColumnStatistics) -> list[Sizes]:
    """The (height, width) of the images of each group, [n, 2]."""
    columns = [statistics.columns(s) for s in range(len(statistics.counts))]
    sizes = np.concatenate([np.stack([c["height"], c["width"]], axis=1) for c in columns] or [np.zeros((0, 2))])
    which = np.concatenate([groups.of(c) for c in columns] or [np.zeros(0)])
    return [sizes[which == g] for g in range(len(groups))]


def check_counts(groups: Groups, statistics: ColumnStatistics, most: float) -> None:
    """Every sample is counted in its group; a full batch holds as many as fit, or fewer to fill all alike."""
    for shard in range(len(statistics.counts)):
        found = np.bincount(groups.of(statistics.columns(shard)), minlength=len(groups))
        assert found.tolist() == groups.counts[shard].tolist()
    for n, samples, shape in zip(groups.capacity.tolist(), groups.samples.tolist(), groups.shapes, strict=True):
        cost = math.prod(shape)
        fit = max(1, min(1 << 16, int(most / cost) if cost else 1 << 16))
        fit -= fit > 1 and fit * cost > most
        assert n <= fit
        assert n == fit or samples // n == -(-samples // fit)
    assert (groups.samples > 0).all()


@given(st.data())
@settings(max_examples=40)
def test_buckets_lie_within_their_images(data: st.DataObject) -> None:
    """Without `upscale` no image is scaled up but to a side of one step; sides are multiples of it; nothing is larger
    than `longest` and `area` allow.
    """
    statistics = data.draw(sized(column="pixels"))
    budget = data.draw(pixel_budgets(statistics, "bucket").filter(lambda b: b.buckets is None))
    groups = make_groups(budget, statistics, data.draw(st.sampled_from([1, 4, 64])))
    check_counts(groups, statistics, budget.max_pixels)
    assert (groups.capacity * np.prod(np.array(groups.shapes).reshape(-1, 2), axis=1) <= budget.max_pixels).all()
    assert len(set(groups.shapes)) == len(groups)
    held = by_group(groups, statistics)
    largest = max([int(sizes.max()) for sizes in held], default=0)
    step = budget.multiple * (1 + largest // (1024 * budget.multiple))  # a side has at most 1,024 steps
    for shape, sizes in zip(groups.shapes, held, strict=True):
        for axis, side in enumerate(shape):
            assert side % budget.multiple == 0
            assert side <= max(step, sizes[:, axis].min()) or budget.upscale
            assert side <= max(step, budget.longest or side)
        if budget.area and min(shape) > step:
            assert math.prod(shape) <= budget.area * (1 + 1e-9)


@given(st.data())
@settings(max_examples=50)
def test_given_buckets_are_used_as_they_are(data: st.DataObject) -> None:
    """Groups are those of the given buckets that are the best for some images, and fit within them where they must."""
    statistics = data.draw(sized(column="pixels"))
    budget = data.draw(pixel_budgets(statistics, "bucket").filter(lambda b: b.buckets is not None))
    groups = make_groups(budget, statistics, 4)
    check_counts(groups, statistics, budget.max_pixels)
    assert set(groups.shapes) <= set(budget.buckets or ())
    assert len(set(groups.shapes)) == len(groups)
    for shape, sizes in zip(groups.shapes, by_group(groups, statistics), strict=True):
        assert budget.upscale or (sizes >= np.array(shape)).all()


@given(st.data())
@settings(max_examples=50)
def test_bounds_to_pad_to_hold_every_image(data: st.DataObject) -> None:
    """After those above `longest` are scaled down."""
    statistics = data.draw(sized(column="pixels"))
    budget = data.draw(pixel_budgets(statistics, "pad"))
    groups = make_groups(budget, statistics, data.draw(st.sampled_from([1, 4, 64])))
    check_counts(groups, statistics, budget.max_pixels)
    for shape, sizes in zip(groups.shapes, by_group(groups, statistics), strict=True):
        height, width = capped(sizes[:, 0], sizes[:, 1], budget.longest or 10**9)
        assert height.max() <= shape[0]
        assert width.max() <= shape[1]


@given(st.sampled_from(["tokens", "seconds"]), st.floats(0.5, 5000), st.data())
@settings(max_examples=50)
def test_bounds_of_costs_hold_every_sample(column: str, most: float, data: st.DataObject) -> None:
    """The same for a column of whole numbers or of fractions, zeros included."""
    statistics = data.draw(sized(column=column))
    groups = make_groups(CostBudget(column, most), statistics, 4)
    check_counts(groups, statistics, most)
    for shard in range(len(statistics.counts)):
        columns = statistics.columns(shard)
        bounds = np.array([shape[0] for shape in groups.shapes] or [0.0])
        assert (columns[column] <= bounds[groups.of(columns)]).all()


@given(st.integers(1, 500), st.integers(1, 3000))
def test_batches_are_filled_alike(fit: int, samples: int) -> None:
    """As many full batches as there were with a short one, and fewer samples left than there are batches."""
    n = int(even(np.array([fit]), np.array([samples]))[0])
    batches = -(-samples // fit)
    assert 1 <= n <= fit
    if n < fit:
        assert samples // n == batches
        assert samples % n < batches


def test_a_large_dataset_keeps_its_batches_full() -> None:
    """Where short batches hold next to nothing, a group that could not fill its batches leaves them short."""
    fit = np.array([100, 100, 100])
    assert even(fit, np.array([1_000_090, 150, 10_090])).tolist() == [100, 100, 100]
    assert even(np.array([400, 100]), np.array([399 * 50, 1_000_000])).tolist() == [399, 100]
    assert even(fit, np.array([90, 150, 190])).tolist() == [90, 75, 95]


@pytest.mark.parametrize("size", [(224, 224), (640, 480), (100, 3000)])
def test_images_of_one_size_are_one_group(size: tuple[int, int]) -> None:
    """Padded to that size exactly; in buckets cut to the nearest shape below it that fills the budget well."""
    statistics = images((1000, *size))
    padded = make_groups(PixelBudget(40 * math.prod(size), mode="pad"), statistics, 4)
    assert padded.shapes == (size,)
    assert padded.capacity.tolist() == [40]
    (shape,) = make_groups(PixelBudget(40 * math.prod(size)), statistics, 4).shapes
    assert all(s - 96 <= side <= s for s, side in zip(size, shape, strict=True))


def test_two_sizes_are_two_groups_where_both_are_many() -> None:
    """A few images of another size join the others instead, where padding them costs less than a short batch."""
    many = make_groups(PixelBudget(10**6, mode="pad"), images((1000, 100, 100), (1000, 100, 300)), 1)
    assert many.shapes == ((100.0, 100.0), (100.0, 300.0))
    few = make_groups(PixelBudget(10**6, mode="pad"), images((1000, 100, 299), (3, 100, 300)), 1)
    assert few.shapes == ((100.0, 300.0),)


def test_given_buckets_get_the_images_made_for_them() -> None:
    """An image of a bucket's own size goes there; others to the one that cuts least away."""
    shapes = [(512, 512), (448, 576), (576, 448), (256, 256)]
    statistics = images(*((10, h, w) for h, w in shapes), (5, 1024, 1024), (5, 900, 1152))
    groups = make_groups(PixelBudget(512 * 512 * 8, buckets=shapes), statistics, 1)
    found = {
        shape: {tuple(size) for size in sizes.tolist()}
        for shape, sizes in zip(groups.shapes, by_group(groups, statistics), strict=True)
    }
    assert found == {
        (512, 512): {(512, 512), (1024, 1024)},
        (448, 576): {(448, 576), (900, 1152)},
        (576, 448): {(576, 448)},
        (256, 256): {(256, 256)},
    }


def test_images_smaller_than_every_bucket_are_an_error() -> None:
    """The error says how many and how small; `upscale` allows them."""
    statistics = images((10, 300, 300), (3, 100, 90))
    with pytest.raises(PlanError, match="3 images may be smaller than every bucket, the smallest about 100 x 90"):
        make_groups(PixelBudget(10**6, buckets=[(256, 256)]), statistics, 1)
    groups = make_groups(PixelBudget(10**6, buckets=[(256, 256)], upscale=True), statistics, 1)
    assert groups.samples.tolist() == [13]


def test_sides_of_huge_images_are_multiples_of_a_multiple() -> None:
    """The table of shapes stays small, whatever the largest image."""
    groups = make_groups(PixelBudget(10**11, multiple=16), images((100, 65_000, 65_000)), 1)
    (shape,) = groups.shapes
    assert all(side % 16 == 0 and 60_000 <= side <= 65_000 for side in shape)


@pytest.mark.parametrize("kind", ["bucket", "pad", "cost"])
def test_groups_are_limited(kind: Any) -> None:
    """However many sizes there are, and the fewer the more shards."""
    random = np.random.default_rng(3)
    columns = {"height": random.integers(20, 4000, 3000), "width": random.integers(20, 4000, 3000)}
    budget = CostBudget("pixels", 10**7) if kind == "cost" else PixelBudget(10**7, mode=kind)
    assert len(make_groups(budget, ColumnStatistics([columns]), 1)) <= MOST_GROUPS


def web_sizes(n: int) -> ColumnStatistics:
    """Sizes as web photos have them: half in a few stock sizes, half of any size and shape."""
    random = np.random.default_rng(1)
    long = np.clip(np.exp(random.normal(np.log(700), 0.45, n)), 64, 4000)
    aspect = np.exp(random.normal(np.log(1.35), 0.25, n)) ** np.where(random.random(n) < 0.25, -1, 1)
    free = np.round(np.stack([np.where(aspect < 1, long, long / aspect), np.where(aspect < 1, long * aspect, long)]))
    usual = np.array([(338, 450), (300, 450), (450, 300), (683, 1024), (480, 640), (500, 500), (800, 1200)]).T
    height, width = np.where(random.random(n) < 0.5, usual[:, random.integers(0, 7, n)], free).astype(np.int32)
    cuts = np.arange(0, n, n // 20)[1:]
    return ColumnStatistics(
        [{"height": h, "width": w} for h, w in zip(np.split(height, cuts), np.split(width, cuts), strict=True)]
    )


def test_web_photos_fill_their_batches() -> None:
    """Full batches take over 93 % of the budget, bounds are at most 20 % padding, and buckets keep 70 % of pixels."""
    statistics = web_sizes(40_000)
    pixels = sum(float(x) for x in statistics.sums("pixels"))
    for mode in ("pad", "bucket"):
        budget: Any = PixelBudget(224 * 224 * 256, mode=mode)
        plan = Plan.make(statistics, batch=budget, shuffle=True)
        assert isinstance(plan.groups, Groups)
        taken = sum(n * math.prod(s) for n, s in zip(plan.groups.samples.tolist(), plan.groups.shapes, strict=True))
        share = float((fill(plan.groups, budget.max_pixels) * plan.groups.samples).sum() / plan.samples)
        assert share > 0.93
        if mode == "pad":
            assert pixels / taken > 0.8
        else:
            assert taken / pixels > 0.7


def test_no_sample_makes_no_group() -> None:
    """No shard, or none with a sample."""
    for shards in ([], [{"height": np.zeros(0, np.int32), "width": np.zeros(0, np.int32)}]):
        for budget in (PixelBudget(5000), PixelBudget(5000, mode="pad"), PixelBudget(5000, buckets=[(9, 9)])):
            groups = make_groups(budget, ColumnStatistics(shards), 1)
            assert len(groups) == groups.total == 0
            assert groups.counts.shape == (len(shards), 0)
