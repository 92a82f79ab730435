"""Draws a plan: its buckets over the sizes of the dataset, the samples in each, and how full their batches are.

>>> draw(plan, report(plan), "plan.png")

It needs matplotlib (`pip install 'shardstream[plot]'`); no window is opened, and no setting of matplotlib changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .errors import MissingExtra, PlanError
from .plan import Plan
from .plan_report import Bucket, Cells, PlanReport, cells, shape_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg", ".pdf")
_BARS: Final = 32
"""Buckets that get a bar: those with most samples; what the others hold is one more."""
_INK, _ACCENT, _SOFT = "#1f2933", "#c2410c", "#3b6ea5"


def require() -> None:
    """Raise MissingExtra where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("plots need matplotlib", hint="pip install 'shardstream[plot]'") from None


def draw(plan: Plan, report: PlanReport, path: str | os.PathLike[str]) -> None:
    """Draw a plan that has buckets, or bounds to pad to, into a file (.png, .svg, .pdf).

    Raises MissingExtra, and PlanError for a plan without buckets or another kind of file.
    """
    require()
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise PlanError(f"plot {str(path)!r}", hint=f"name a file that ends with {', '.join(FORMATS)}")
    if not report.buckets:
        raise PlanError(f"{report.batch} has no buckets to draw", hint="plan with a budget in mode 'bucket' or 'pad'")
    image = BytesIO()
    figure(report, cells(plan)).savefig(image, format=target.suffix[1:].lower(), dpi=150)
    target.write_bytes(image.getvalue())


def figure(report: PlanReport, found: Cells) -> Figure:
    """The picture itself: sizes on the left, bars by bucket on the right."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(13, 7), layout="constrained")
    left, upper, lower = _axes(drawn)
    if found.sizes:
        _sizes(left, report, found)
    else:
        _values(left, report, found)
    _bars(upper, lower, report.buckets)
    drawn.suptitle(f"{report.batch}: {report.batches:,} batches of {report.samples:,} samples", color=_INK)
    return drawn


def _axes(drawn: Figure) -> tuple[Axes, Axes, Axes]:
    grid = drawn.add_gridspec(2, 2, width_ratios=(1.15, 1))
    left, upper = drawn.add_subplot(grid[:, 0]), drawn.add_subplot(grid[0, 1])
    return left, upper, drawn.add_subplot(grid[1, 1], sharex=upper)


def _sizes(axes: Axes, report: PlanReport, found: Cells) -> None:
    """Cells by width and height, and each bucket as the rectangle of the sizes that are in it."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    middle = np.sqrt(found.bounds[:, 0] * found.bounds[:, 1])
    order = np.argsort(found.samples)
    shown = axes.scatter(
        middle[order, 0], middle[order, 1], c=found.samples[order], s=26, marker="s", linewidths=0, cmap="Blues",
        norm=LogNorm(vmin=0.5, vmax=max(1, int(found.samples.max()))), zorder=2,
    )  # fmt: skip
    axes.figure.colorbar(shown, ax=axes, label="samples of similar size", shrink=0.6)
    for group in np.unique(found.groups).tolist():
        inside = found.bounds[found.groups == group]
        low, high = inside[:, 0].min(axis=0) * 0.985, inside[:, 1].max(axis=0) * 1.015
        axes.add_patch(
            Rectangle(tuple(low), *(high - low), fill=False, edgecolor=_ACCENT, linewidth=0.8, alpha=0.6, zorder=3)
        )
    heights, widths = np.array([bucket.shape for bucket in report.buckets]).T
    what = "cut to" if report.kept is not None else "padded to at most"
    axes.scatter(
        widths, heights, s=16, facecolors="white", edgecolors=_ACCENT, zorder=4, label=f"what images are {what}"
    )
    axes.set(
        xscale="log", yscale="log", xlabel="width in pixels", ylabel="height in pixels",
    )  # fmt: skip
    scaled = f", scaled down to {found.longest:,}" if found.longest is not None else ""
    axes.set_title(f"Sizes{scaled}, and buckets around them", loc="left")
    _plain_ticks(axes.xaxis)
    _plain_ticks(axes.yaxis)
    axes.legend(loc="upper left", frameon=False)


def _values(axes: Axes, report: PlanReport, found: Cells) -> None:
    """Samples by cost, and each bucket as the rectangle of the costs that are in it."""
    low, high = found.bounds[:, 0, 0], found.bounds[:, 1, 0]
    axes.bar((low + high) / 2, found.samples, width=np.maximum(high - low, high * 0.02), color=_SOFT, zorder=2)
    top = float(found.samples.max())
    for i, group in enumerate(np.unique(found.groups).tolist()):
        inside = found.groups == group
        axes.axvspan(float(low[inside].min()), float(high[inside].max()), color=_ACCENT, alpha=0.08 + 0.1 * (i % 2))
    axes.vlines([bucket.shape[0] for bucket in report.buckets], 0, top, color=_ACCENT, linewidth=0.8, zorder=3)
    axes.set(xscale="log", xlabel=found.name, ylabel="samples")
    axes.set_title("Costs, and what they are padded to at most", loc="left")
    _plain_ticks(axes.xaxis)


def _plain_ticks(axis: Any) -> None:
    """512, not 5.12 x 10^2."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=2, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def _bars(upper: Axes, lower: Axes, buckets: Sequence[Bucket]) -> None:
    """Share of the samples, and of the budget, by bucket."""
    shown, rest = buckets[:_BARS], buckets[_BARS:]
    labels = [shape_text(bucket.shape) for bucket in shown]
    shares = [100 * bucket.sample_share for bucket in shown]
    upper.bar(range(len(shown)), shares, color=_SOFT)
    if rest:
        upper.bar(len(shown), 100 * sum(bucket.sample_share for bucket in rest), color="#9aa5b1")
        labels.append(f"{len(rest):,} more")
    upper.set(ylabel="% of the samples")
    upper.set_title(f"Samples by bucket ({'height x width' if len(buckets[0].shape) == 2 else 'cost'})", loc="left")
    upper.tick_params(axis="x", labelbottom=False)
    own = [100 * bucket.fill * (1 - bucket.padding) for bucket in shown]
    padding = [100 * bucket.fill * bucket.padding for bucket in shown]
    lower.bar(range(len(shown)), own, color=_SOFT)
    title = "What a full batch takes of the budget"
    if any(padding):
        lower.bar(range(len(shown)), padding, bottom=own, color="#f0c9b0")
        title += " (pale: padding, at most)"
    lower.axhline(100, color=_INK, linewidth=0.8)
    lower.set(ylim=(0, 108), ylabel="% of the budget")
    lower.set_title(title, loc="left")
    lower.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
