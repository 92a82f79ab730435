"""StreamingDataset with budgets: samples that are too large, not chosen, damaged or unknown, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from budgeted import BUDGETS, EVERY, SAMPLES, Budget, check_batches, cost_of, image_of, numbers_of, open_budget, same
from pictures import RATE, Entry, enlarge, key, write
from reading import by_position

from shardwriter import ShardWriter
from shardwriter.format import INDEX_SUFFIX
from shardwriter.table import ShardTable
from streaming import BatchError, CostBudget, IndexMismatch, PixelBudget, PlanError, TooManySkipped

# Samples over the budget.

SMALL: dict[str, Budget] = {
    "pad": PixelBudget(2600, mode="pad"),
    "longest": PixelBudget(1300, mode="pad", longest=50),
    "pack": PixelBudget(2600, mode="pack"),
    "pack longest": PixelBudget(1300, mode="pack", longest=50),
    "tokens": CostBudget("tokens", 33),
    "seconds": CostBudget("seconds", 0.09),
    "tokens packed": CostBudget("tokens", 33, pad=False),
    "frames packed": CostBudget("frames", 720.5, pad=False),
}


def _over(budget: Budget) -> set[int]:
    """The samples that are over a budget by themselves."""
    if isinstance(budget, CostBudget):
        return {n for n, entry in enumerate(SAMPLES) if cost_of(budget, entry) > budget.max_cost}
    images = [image_of(entry, budget) for entry in SAMPLES]
    return {n for n, image in enumerate(images) if image.shape[1] * image.shape[2] > budget.max_pixels}


@pytest.mark.parametrize("budget", SMALL.values(), ids=SMALL)
@pytest.mark.usefixtures("few_bins")
def test_samples_over_the_budget(source: str, budget: Budget, caplog: pytest.LogCaptureFixture) -> None:
    """They come alone, or are left out, counted and reported on rank 0 before the first batch; or they are an error
    with their number.
    """
    over = _over(budget)
    assert 2 < len(over) < len(SAMPLES) / 2
    alone = open_budget(source, budget, rank=0, world_size=1)
    assert f"{len(over)} samples over the budget: each in a batch of its own" in caplog.text
    batches = list(alone)
    assert len(batches) == len(alone)
    assert sorted(numbers_of(batches)) == list(range(len(SAMPLES)))
    assert {n for batch in batches for n in batch["cls"].tolist() if n in over and len(batch["cls"]) == 1} == over
    check_batches(alone, batches)
    caplog.clear()
    skipping = open_budget(source, replace(budget, oversize="skip"))
    assert f"{len(over)} samples over the budget: left out" in caplog.text
    batches = list(skipping)
    assert len(batches) == len(skipping)
    assert sorted(numbers_of(batches)) == sorted(set(range(len(SAMPLES))) - over)
    check_batches(skipping, batches)
    caplog.clear()
    open_budget(source, budget, rank=1, world_size=2)
    assert "over the budget" not in caplog.text
    with pytest.raises(PlanError, match=rf"^{len(over)} samples are over the budget of .* by themselves.*oversize="):
        open_budget(source, replace(budget, oversize="error"))


def test_no_sample_over_the_budget(source: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where none is, oversize="error" refuses nothing and nothing is reported, whichever samples are left out."""
    for where in (None, "pixels <= 2600"):
        most = 2600 if where else 72 * 72
        budget = PixelBudget(most, mode="pad", oversize="error")
        batches = list(open_budget(source, budget, where=where))
        assert sorted(numbers_of(batches)) == [n for n, e in enumerate(SAMPLES) if e.height * e.width <= most]
    assert not caplog.records


# Predicates, and samples that can't be read.


@EVERY
@pytest.mark.parametrize("where", ["width >= 20 and height < 50", "seconds > 0.04 or tokens % 2 == 0"])
@pytest.mark.usefixtures("few_bins")
def test_predicates(source: str, budget: Budget, where: str) -> None:
    """Exactly the samples for which the predicate holds are there, each once, in exactly `len` batches."""

    def holds(entry: Entry) -> bool:
        if where.startswith("width"):
            return entry.width >= 20 and entry.height < 50
        return len(entry.sound) > 0.04 * RATE or len(entry.tokens) % 2 == 0

    dataset = open_budget(source, budget, where=where)
    batches = list(dataset)
    assert len(batches) == len(dataset)
    assert sorted(numbers_of(batches)) == [n for n, entry in enumerate(SAMPLES) if holds(entry)]
    check_batches(dataset, batches)
    ranks = [open_budget(source, budget, where=where, rank=r, world_size=2) for r in range(2)]
    assert same(by_position([list(rank) for rank in ranks]), list(open_budget(source, budget, where=where)))


@pytest.mark.parametrize("mode", ["bucket", "pad", "pack"])
def test_damaged_images(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """Under on_error="skip" an image whose size is known and whose pixels are cut away is left out of its batch, named
    and counted; the others of the batch are whole.
    """
    samples = list(SAMPLES[:40])
    bad = (3, 17, 30)
    for n in bad:
        samples[n] = replace(samples[n], image=samples[n].image[: -len(samples[n].image) // 3])
    source = write(tmp_path / "data", samples)
    options = {"mode": mode} | ({"multiple": 8} if mode == "bucket" else {})
    dataset = open_budget(source, PixelBudget(9000, **options), on_error="skip")
    batches = list(dataset)
    assert len(batches) == len(dataset)
    fresh = [batch for batch in batches if not batch["__repeat__"].any()]  # others replace a batch without any
    assert sorted(numbers_of(fresh)) == sorted(set(range(40)) - set(bad))
    assert sorted(name for batch in batches for name in batch["__skipped__"]) == [key(n) for n in bad]
    assert dataset.skips.count == len(bad)
    assert all(key(n) in caplog.text for n in bad)
    for batch in fresh:
        del batch["__skipped__"], batch["__repeat__"]
    check_batches(dataset, fresh, samples)
    with pytest.raises(TooManySkipped, match="more than 2"):
        list(open_budget(source, PixelBudget(9000, **options), on_error="skip", skip_limit=2))


@pytest.mark.parametrize("mode", ["pad", "pack"])
def test_transforms_that_break_the_budget(source: str, mode: str) -> None:
    """A transform that enlarges images beyond the budget is an error that names key, field and both numbers."""
    dataset = open_budget(source, PixelBudget(12_000, mode=mode), transform=enlarge)
    with pytest.raises(BatchError, match=r"images take [\d,]+ pixels together, 12,000 are allowed") as caught:
        list(dataset)
    assert caught.value.field == "image"
    assert caught.value.key in {key(n) for n in range(len(SAMPLES))}


# What makes no plan.


@pytest.mark.parametrize("mode", ["bucket", "given", "pad", "longest", "pack", "pack longest"])
def test_images_of_unknown_size(tmp_path: Path, mode: str) -> None:
    """Samples without an image, or with one whose size can't be read, are an error with their number; with the
    predicate that the error gives they are left out.
    """
    with ShardWriter(tmp_path / "data", max_samples=5) as writer:
        for i, entry in enumerate(SAMPLES[:20]):
            image = b"no image" if i == 3 else entry.image
            sample = {"__key__": key(i), "cls": i} | ({} if i in (8, 9) else {entry.field: image})
            writer.write(sample)
    budget = BUDGETS[mode]
    with pytest.raises(PlanError, match=r"3 samples have no image, or one whose size.*where='pixels > 0'"):
        open_budget(tmp_path / "data", budget)
    dataset = open_budget(tmp_path / "data", budget, where="pixels > 0")
    assert sorted(numbers_of(dataset)) == [n for n in range(20) if n not in (3, 8, 9)]


def test_columns_that_are_missing(tmp_path: Path) -> None:
    """A dataset without any image has no sizes, and a column that it lacks is named."""
    with ShardWriter(tmp_path / "data") as writer:
        writer.write({"__key__": "a", "cls": 1}, columns={"debt": -3})
    for mode in ("bucket", "pad", "pack"):
        with pytest.raises(PlanError, match="the index has no sizes of images"):
            open_budget(tmp_path / "data", PixelBudget(12_000, mode=mode))
    for pad in (True, False):
        with pytest.raises(PlanError, match="the index has no column 'tokens'"):
            open_budget(tmp_path / "data", CostBudget("tokens", 10, pad=pad))
        with pytest.raises(PlanError, match="'debt' has values below 0, such as -3"):
            open_budget(tmp_path / "data", CostBudget("debt", 10, pad=pad))


@EVERY
def test_sidecars_of_other_sizes(source: str, tmp_path: Path, budget: Budget) -> None:
    """A sidecar whose numbers are not those that the manifest counted is an error, not a batch over the budget."""
    shutil.copytree(source, tmp_path / "data")
    for path in (tmp_path / "data").glob(f"shard-*{INDEX_SUFFIX}"):
        table = ShardTable.from_bytes(path.read_bytes())
        columns = {name: np.full_like(values, values.max()) for name, values in table.columns.items()}
        path.write_bytes(replace(table, columns=columns).to_bytes())
    with pytest.raises(IndexMismatch, match=r"sidecars? .*manifest counted|not among those that the manifest counted"):
        list(open_budget(tmp_path / "data", budget))


@EVERY
def test_budgets_that_leave_no_batch(source: str, budget: Budget, caplog: pytest.LogCaptureFixture) -> None:
    """tail="drop" without a full batch for each rank is an error with the numbers; "pad" gives again, and says so."""
    many = 1 + open_budget(source, budget).plan.total
    with pytest.raises(
        PlanError, match=rf"tail='drop' leaves no batch: 90 samples in .* full micro-batches for {many} ranks"
    ):
        open_budget(source, budget, tail="drop", rank=0, world_size=many)
    assert not caplog.records
    ranks = [list(open_budget(source, budget, tail="pad", rank=r, world_size=many)) for r in range(many)]
    assert "given again" in caplog.text
    assert [len(batches) for batches in ranks] == [1] * many
    first = [batch for batch in by_position(ranks) if not batch["__repeat__"].any()]
    assert sorted(numbers_of(first)) == list(range(90))


def test_empty_datasets(tmp_path: Path) -> None:
    """A dataset without samples gives no batch under any budget, and no error."""
    with ShardWriter(tmp_path / "data"):
        pass
    for budget in BUDGETS.values():
        dataset = open_budget(tmp_path / "data", budget)
        assert (len(dataset), list(dataset)) == (0, [])


@EVERY
def test_predicates_that_choose_nothing(source: str, budget: Budget) -> None:
    """Where a predicate leaves nothing there is no batch, and no error."""
    dataset = open_budget(source, budget, where="tokens > 1000")
    assert (len(dataset), list(dataset)) == (0, [])
