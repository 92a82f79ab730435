"""PixelBudget and CostBudget: what they accept, refuse and show."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import CostBudget, PixelBudget, PlanError


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (PixelBudget(224 * 224 * 512), "PixelBudget(25690112)"),
        (PixelBudget(5000, mode="pad", longest=64), "PixelBudget(5000, mode='pad', longest=64)"),
        (PixelBudget(5000, mode="pack", oversize="skip"), "PixelBudget(5000, mode='pack', oversize='skip')"),
        (PixelBudget(5000, buckets=[[50, 40]]), "PixelBudget(5000, buckets=((50, 40),))"),  # type: ignore[list-item]
        (PixelBudget(5000, multiple=16, area=900, upscale=True, longest=99, crop="random"),
         "PixelBudget(5000, multiple=16, area=900, upscale=True, longest=99, crop='random')"),
        (CostBudget("seconds", 2.5), "CostBudget('seconds', 2.5)"),
        (CostBudget("tokens", 7, pad=False, oversize="error"), "CostBudget('tokens', 7, pad=False, oversize='error')"),
    ],
)  # fmt: skip
def test_a_budget_shows_as_it_is_written(budget: PixelBudget | CostBudget, text: str) -> None:
    """Its text makes an equal one, leaves out what is at its default, and is the name of its order."""
    assert repr(budget) == text == budget.order_key
    assert eval(text) == budget
    assert hash(eval(text)) == hash(budget)


WRONG: list[dict[str, Any]] = [
    *({"max_pixels": value} for value in (0, -1, 2.5, True, "1", None, 1 << 52, math.nan)),
    *({"multiple": value} for value in (0, -32, 1.5, True, None)),
    *({"area": value} for value in (0, 1.5, "9")),
    *({"longest": value} for value in (0, 2.0, False)),
    *({"mode": value} for value in ("Bucket", "", None, 3)),
    *({"crop": value} for value in ("centre", None)),
    *({"mode": "pad", "oversize": value} for value in ("drop", None, True)),
    {"upscale": 1},
    *({"buckets": value} for value in ([], [(0, 5)], [(5, -1)], [(5,)], [(5, 5, 5)], [(5.0, 5)], [7], [(5, 5)] * 2)),
    {"buckets": [(200, 200)]},  # over the budget
    {"multiple": 101},  # as is its square
]  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG, ids=repr)
def test_no_budget_of_pixels_from(arguments: dict[str, Any]) -> None:
    """What is out of range or of another type is refused, and the error names it."""
    with pytest.raises(PlanError) as caught:
        PixelBudget(**{"max_pixels": 10_000, **arguments})
    assert any(name in str(caught.value) for name in [*arguments, "bucket", "over the budget"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "pad", "buckets": [(9, 9)]},
        {"mode": "pad", "multiple": 16},
        {"mode": "pad", "area": 90},
        {"mode": "pad", "upscale": True},
        {"mode": "pad", "crop": "random"},
        {"mode": "pack", "multiple": 64},
        {"mode": "pack", "crop": "random"},
        {"oversize": "skip"},
        {"buckets": [(9, 9)], "multiple": 16},
        {"buckets": [(9, 9)], "area": 50},
        {"buckets": [(9, 9)], "longest": 50},
    ],
    ids=repr,
)
def test_options_without_a_meaning_are_refused(arguments: dict[str, Any]) -> None:
    """An option that the mode, or buckets of the user's own, would ignore is an error that names it."""
    with pytest.raises(PlanError, match="has no meaning") as caught:
        PixelBudget(10_000, **arguments)
    assert f"{list(arguments)[-1]}=" in str(caught.value)


@pytest.mark.parametrize("column", ["", None, 3, b"tokens"])
def test_a_cost_needs_the_name_of_a_column(column: Any) -> None:
    """Anything but text that is not empty is refused."""
    with pytest.raises(PlanError, match="name of a column"):
        CostBudget(column, 5)


@pytest.mark.parametrize("cost", [0, -1, 0.0, -0.5, math.nan, math.inf, True, "5", None, 1 << 52])
def test_a_cost_is_a_positive_number(cost: Any) -> None:
    """Zero, negative, unbounded and nameless numbers are refused."""
    with pytest.raises(PlanError, match="a positive number is needed"):
        CostBudget("tokens", cost)


@pytest.mark.parametrize("arguments", [{"pad": 1}, {"pad": None}, {"oversize": "drop"}, {"oversize": None}], ids=repr)
def test_no_budget_of_costs_from(arguments: dict[str, Any]) -> None:
    """Other options are checked as well."""
    with pytest.raises(PlanError, match=next(iter(arguments))):
        CostBudget("tokens", 5, **arguments)


@given(st.integers(1, (1 << 52) - 1), st.sampled_from(["pad", "pack"]))
def test_any_number_of_pixels_is_a_budget(pixels: int, mode: Any) -> None:
    """From a single pixel on; buckets need room for one image."""
    assert PixelBudget(pixels, mode=mode).max_pixels == pixels
    if pixels >= 32 * 32:
        assert PixelBudget(pixels).max_pixels == pixels


def test_budgets_cannot_be_changed() -> None:
    """They are part of what a plan is."""
    with pytest.raises(AttributeError):
        PixelBudget(5000).max_pixels = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        CostBudget("tokens", 3).pad = False  # type: ignore[misc]
