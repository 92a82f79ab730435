"""Medians and ratios of a figure, as a dict for JSON and as a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from figures import Figure, Way

Runs = Mapping[str, list[dict[str, Any]]]
"""Label of a way -> what its measurements printed."""


def summary(figure: Figure, runs: Runs, failed: Mapping[str, str]) -> dict[str, Any]:
    """The median, least and most of each way; `ratio` says how many times better the way is that `against` names.

    Better is more for samples/s, less for seconds and MB.
    """
    values = {way.label: [value(figure, run) for run in runs[way.label]] for way in figure.ways if runs.get(way.label)}
    medians = {label: statistics.median(found) for label, found in values.items()}
    best = {side: _best(figure, medians, side) for side in ("ours", "peers")}
    ways = []
    for way in figure.ways:
        if way.label not in medians:
            continue
        found = values[way.label]
        line = {"way": way.label, "median": medians[way.label], "least": min(found), "most": max(found)}
        against = way.against or (None if way.side == "ours" else best["ours"])
        if against in medians:
            line |= {"against": against, "ratio": _ratio(figure, medians[against], medians[way.label])}
        ways.append(line | _beside(runs[way.label]))
    result: dict[str, Any] = {"figure": figure.name, "about": figure.about, "unit": figure.unit, "ways": ways}
    if best["ours"] and best["peers"]:
        ratio = _ratio(figure, medians[best["ours"]], medians[best["peers"]])
        result |= {"best_of_ours": best["ours"], "best_peer": best["peers"], "ratio_of_the_best": ratio}
    return result | {"failed": dict(failed)}


def value(figure: Figure, run: Mapping[str, Any]) -> float:
    """The number of a measurement that the figure is about."""
    if figure.unit == "samples/s":
        return float(run["rated"] / run["seconds"])
    return float(run[{"s": "seconds", "MB": "peak_mb", "busy/idle": "value"}[figure.unit]])


def table(summary: Mapping[str, Any]) -> str:
    """For people."""
    ways = summary["ways"]
    width = max([len(line["way"]) for line in ways] + [20])
    extra = [name for name in ("cpu_s_per_1000", "anonymous_mb") if any(name in line for line in ways)]
    heads = {"cpu_s_per_1000": "CPU s/1000", "anonymous_mb": "without files"}
    lines = [
        f"{summary['figure']}: {summary['about']}",
        f"  {'':{width}}{summary['unit']:>12}{'least':>10}{'most':>10}{'ratio':>8}"
        + "".join(f"{heads[name]:>15}" for name in extra),
    ]
    for line in ways:
        numbers = "".join(
            f"{_number(line[name], summary['unit']):>{wide}}"
            for name, wide in (("median", 12), ("least", 10), ("most", 10))
        )
        more = "".join(f"{line[name]:15.2f}" if name in line else f"{'':15}" for name in extra)
        ratio = f"{line['ratio']:8.2f}" if "ratio" in line else f"{'':8}"
        against = f"  of {line['against']}" if "ratio" in line else ""
        lines.append(f"  {line['way']:{width}}{numbers}{ratio}{more}{against}")
    if "ratio_of_the_best" in summary:
        both = f"{summary['best_of_ours']}, against the best peer, {summary['best_peer']}"
        lines.append(f"  the best of ours, {both.removeprefix('ours, ')}: {summary['ratio_of_the_best']:.2f}")
    lines.extend(f"  {label}: FAILED, {why}" for label, why in summary["failed"].items())
    return "\n".join(lines)


def _best(figure: Figure, medians: Mapping[str, float], side: str) -> str | None:
    """The best way of ours, or of the peers; a way that is compared with one of its own side does not count."""
    found = [way.label for way in figure.ways if way.label in medians and _counts(figure, way, side)]
    pick = max if figure.better == "more" else min
    return pick(found, key=lambda label: medians[label], default=None)


def _counts(figure: Figure, way: Way, side: str) -> bool:
    if figure.name in ("resume", "busy trainer") or way.side == "limit":
        return False
    return (way.side == "ours") == (side == "ours")


def _ratio(figure: Figure, against: float, this: float) -> float:
    return against / this if figure.better == "more" else this / against


def _beside(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Processor seconds for 1,000 samples, and memory without files, where they were measured."""
    beside = {}
    if all("cpu" in run and run.get("rated") for run in runs):
        beside["cpu_s_per_1000"] = statistics.median(1000 * run["cpu"] / run["rated"] for run in runs)
    if all("anonymous_mb" in run for run in runs):
        beside["anonymous_mb"] = statistics.median(run["anonymous_mb"] for run in runs)
    return beside


def _number(number: float, unit: str) -> str:
    return f"{number:,.0f}" if unit in ("samples/s", "MB") else f"{number:,.3f}"
