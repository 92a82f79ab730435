"""Pictures of plans."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import CostBudget, FixedBatch, MissingExtra, PixelBudget, Plan, PlanError
from streaming.plan import ColumnStatistics
from streaming.plan_report import cells, report
from streaming.plot import draw, figure

START = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def planned(batch: Any) -> Plan:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(5, 0.6, (2, 500, 2))).astype(np.int32) + 1
    shards = [{"width": s[:, 0], "height": s[:, 1], "tokens": s[:, 0]} for s in sizes]
    return Plan.make(ColumnStatistics(shards), batch=batch, shuffle=True)


@pytest.mark.parametrize("suffix", START)
def test_a_plan_becomes_a_file(tmp_path: Path, suffix: str) -> None:
    """Of the kind that its name says."""
    plan = planned(PixelBudget(400_000))
    draw(plan, report(plan), tmp_path / f"plan{suffix}")
    assert (tmp_path / f"plan{suffix}").read_bytes().startswith(START[suffix])


@pytest.mark.parametrize(
    "batch",
    [PixelBudget(400_000), PixelBudget(400_000, mode="pad"), PixelBudget(400_000, mode="pad", longest=128)],
)
def test_sizes_show_a_rectangle_around_each_bucket(batch: PixelBudget) -> None:
    """Each holds the cells of its bucket; the shapes are marked; bars show the shares of samples and budget."""
    plan = planned(batch)
    found = report(plan)
    sizes, upper, lower, *_ = figure(found, cells(plan)).axes
    assert len(sizes.patches) == len(found.buckets)
    shapes = np.asarray(sizes.collections[1].get_offsets())
    assert sorted(map(tuple, shapes.tolist())) == sorted((b.shape[1], b.shape[0]) for b in found.buckets)
    shares = [bar.get_height() for bar in upper.patches]  # type: ignore[attr-defined]
    assert sum(shares) == pytest.approx(100)
    assert shares[0] == pytest.approx(100 * found.buckets[0].sample_share)
    assert lower.patches[0].get_height() > 0  # type: ignore[attr-defined]


def test_costs_are_drawn_along_one_axis(tmp_path: Path) -> None:
    """Each bucket is a span under which its samples lie."""
    plan = planned(CostBudget("tokens", 5000))
    found = report(plan)
    axes = figure(found, cells(plan)).axes[0]
    assert axes.get_xlabel() == "tokens"
    assert len(axes.patches) == len(cells(plan).samples) + len(found.buckets)
    draw(plan, found, tmp_path / "plan.png")


@pytest.mark.parametrize("batch", [FixedBatch(4), PixelBudget(400_000, mode="pack")])
def test_plans_without_buckets_are_refused(tmp_path: Path, batch: Any) -> None:
    """There is nothing to draw, and no file is left."""
    plan = planned(batch)
    with pytest.raises(PlanError, match="has no buckets to draw"):
        draw(plan, report(plan), tmp_path / "plan.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["plan", "plan.gif", "png"])
def test_other_kinds_of_files_are_refused(tmp_path: Path, name: str) -> None:
    """The error lists those that are drawn."""
    plan = planned(PixelBudget(400_000))
    with pytest.raises(PlanError, match=r"ends with \.png, \.svg, \.pdf"):
        draw(plan, report(plan), tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    plan = planned(PixelBudget(400_000))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"shardstream\[plot\]"):
        draw(plan, report(plan), tmp_path / "plan.png")


def test_drawing_changes_no_setting_of_a_program(tmp_path: Path) -> None:
    """Neither pyplot nor a window system is loaded, and importing the module loads no matplotlib."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import streaming.plot
assert "matplotlib" not in sys.modules
import test_plot
plan = test_plot.planned(test_plot.PixelBudget(400_000))
streaming.plot.draw(plan, test_plot.report(plan), {str(tmp_path / "plan.png")!r})
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
