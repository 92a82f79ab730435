"""Predicates over columns: what is refused, and that the rest means what Python means by it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming import PlanError
from streaming.plan.where import Where

COLUMNS = {
    "w": np.array([0, 3, 7, 7, -2, 40_000, 5], dtype=np.int32),
    "h": np.array([7, 0, 7, 2, 5, 50_000, -1], dtype=np.int64),
    "u": np.array([0, 1, 255, 3, 9, 2, 2], dtype=np.uint8),
    "f": np.array([0.5, -2.25, 0.0, 1e9, 7.0, 3.5, 0.25]),
    "left.jpg.w": np.array([1, 2, 3, 4, 5, 6, 7], dtype=np.int32),
}


def row_by_row(text: str) -> list[bool | None]:
    """What Python makes of an expression for each row; None where it divides by 0."""
    found: list[bool | None] = []
    for i in range(7):
        row = {name: values[i].item() for name, values in COLUMNS.items()}
        try:
            found.append(bool(eval(text, {"__builtins__": {}, "column": row.__getitem__}, row)))
        except ZeroDivisionError:
            found.append(None)
    return found


NUMBERS = st.integers(0, 9).map(str) | st.sampled_from(["0.5", "2.25", "7.0", "1000", "True", "False"])
NAMES = st.sampled_from(["w", "h", "u", "f", "column('left.jpg.w')"])
LISTED = st.lists(NUMBERS | NUMBERS.map("-{}".format), max_size=3).map(lambda parts: f"[{', '.join(parts)}]")


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def text(*parts: Any) -> st.SearchStrategy[str]:
        return st.tuples(*(p if isinstance(p, st.SearchStrategy) else st.just(p) for p in parts)).map(" ".join)

    math = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    compare = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    return (
        text("(", inner, math, inner, ")")
        | text("(", inner, compare, inner, ")")
        | text("(", inner, compare, inner, compare, inner, ")")
        | text("(", inner, st.sampled_from(["and", "or"]), inner, ")")
        | text("( -", inner, ")")
        | text("( not", inner, ")")
        | text("(", inner, st.sampled_from(["in", "not in"]), LISTED, ")")
        | text("(", inner, compare, inner, st.sampled_from(["in", "not in"]), LISTED, ")")
    )


@given(st.recursive(NUMBERS | NAMES, _larger, max_leaves=7))
@settings(max_examples=150)
def test_values_are_those_of_python(text: str) -> None:
    """For each row as Python evaluates it by itself, but where it refuses to divide by 0."""
    where = Where(text)
    try:
        found = where(COLUMNS)
    except PlanError:  # beyond 64 bits
        return
    assert found.dtype == np.bool_
    assert found.shape == (7,)
    wanted = row_by_row(text)
    assert [None if plain is None else here for here, plain in zip(found.tolist(), wanted, strict=True)] == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("w >= 7", [2, 3, 5]),
        ("w>=5 and h>=5", [2, 5]),
        ("0 < w <= 7", [1, 2, 3, 6]),
        ("w in (3, -2)", [1, 4]),
        ("w not in [7, 0]", [1, 4, 5, 6]),
        ("w in ()", []),
        ("(w or h) > 5", [0, 2, 3, 5]),
        ("(w and h) == 2", [3]),
        ("-(w > 3) < 0", [2, 3, 5, 6]),
        ("(w > 3) + (h > 3) == 2", [2, 5]),
        ("w * h > 1073741824", [5]),
        ("u - 3 < 0", [0, 1, 5, 6]),
        ("1.0 <= column('left.jpg.w') / 2 < 2", [1, 2]),
        ("not f", [2]),
        ("1e999 > f", [0, 1, 2, 3, 4, 5, 6]),
        ("  w > 7  # large ones\n", [5]),
        ("1 > 2", []),
        ("True", [0, 1, 2, 3, 4, 5, 6]),
    ],
)  # fmt: skip
def test_rows_that_are_chosen(text: str, wanted: list[int]) -> None:
    """Small integer types do not overflow, truth values count as numbers, `or` gives what is true of its parts."""
    assert np.flatnonzero(Where(text)(COLUMNS)).tolist() == wanted


def test_division_by_zero_is_no_error() -> None:
    """It gives infinity, or nan, which is neither less nor more than anything; for whole numbers too."""
    for text in ("h / w > 100", "h // w > 100"):
        assert np.flatnonzero(Where(text)(COLUMNS)).tolist() == [0]
    assert not Where("w % 0 == 0")(COLUMNS).any()
    assert Where("w % 0 != 0")(COLUMNS).all()
    assert Where("w == 0 or h / w < 2")(COLUMNS).tolist() == row_by_row("w == 0 or h / w < 2")


HOSTILE = [
    "__import__('os').system('true')", "w.__class__", "(1).__class__", "w.real", "w[0]", "w()", "f(w)", "len(w)",
    "lambda: w", "(lambda: w)()", "[x for x in w]", "{x for x in w}", "{x: 1 for x in w}", "(x for x in w)",
    "all(x for x in w)", "'w'", "w == 'w'", "b'w'", "f'{w}'", "f'{__import__(\"os\")}'", "(w := 3) > 2",
    "w if h else f", "w ** 9 ** 9 ** 9", "1 << 9", "w & 1", "w | 1", "w ^ 1", "~w", "+w", "w @ h", "w is h",
    "w is not None", "None", "...", "1j", "w in h", "w in 'w'", "w in (h, 2)", "w in {1, 2}", "w in (1, 'a')",
    "w in (1,) in (2,)", "w in (1, 2) < 3", "(w, h)", "w, h", "[w]", "*w", "await w", "yield w", "(yield)", "w; h",
    "w = 3", "w += 1", "import os", "del w", "w\nh", "column(w)", "column()", "column('w', 'h')", "column(name='w')",
    "column('w')('h')", "column(*'w')", "column(b'w')", "columns('w')", "column.w", "getattr(w, 'x')", "", "  ",
    "w >", "(w", "w)", ")", "\0", "w\0", "\ud800", "w > 5 \x0c;", "9" * 30 + " > w", "w > 99999999999999999999",
    "0x" + "f" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_anything_else_is_refused(text: str) -> None:
    """Calls, attributes, functions, texts, assignments and so on are no predicates, and nothing of them is run."""
    with pytest.raises(PlanError, match="where="):
        Where(text)


@pytest.mark.parametrize("name", ["__class__", "__builtins__", "__import__", "print", "_", "self", "np", "column"])
def test_names_are_columns_and_nothing_else(name: str) -> None:
    """A name that Python, or this module, knows is no column unless the shard has it."""
    where = Where(f"{name} > 3")
    assert where.names == (name,)
    with pytest.raises(PlanError, match=f"no column '{name}'") as caught:
        where(COLUMNS)
    assert "left.jpg.w" in str(caught.value)
    assert where({name: np.array([3, 4])}).tolist() == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        "-" * 600 + "w", "-" * 4000 + "w", "not " * 900 + "w", "(" * 150 + "w" + ")" * 5, "(" * 4000,
        "+".join(["w"] * 1500) + " > 3", "w" + " < (w" * 200 + ")" * 200, "[" * 3000, "w > 0 and " * 5000 + "True",
        "w" * 5000, " " * 5000 + "(" + "w", "column(" * 300, "w in (" + "1," * 4000 + ")",
    ],
    ids=lambda text: f"{text[:9]}...{len(text)}",
)  # fmt: skip
def test_deep_and_huge_texts_are_refused(text: str) -> None:
    """They exhaust neither the stack nor patience, and the error is short."""
    with pytest.raises(PlanError) as caught:
        Where(text)
    assert len(str(caught.value)) < 1000


def test_an_expression_may_be_as_deep_as_people_write() -> None:
    """80 levels and 300 alternatives are read and evaluated."""
    assert Where("-" * 80 + "w > 0")(COLUMNS).sum() == 5
    assert Where(" or ".join(f"w == {n}" for n in range(300)))(COLUMNS).sum() == 5


@given(st.text() | st.text("wh()<>=+-*/%.,'\"[]:0123456789 \n", max_size=30))
@settings(max_examples=200)
def test_any_text_is_a_predicate_or_refused(text: str) -> None:
    """No text at all raises anything but PlanError, neither when it is read nor when it is called."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Python's own, about texts such as `1or 2`
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = Where(text)(COLUMNS)
        except PlanError:
            return
    assert found.shape == (7,)
    assert found.dtype == np.bool_


@pytest.mark.parametrize("text", [None, 3, True, b"w > 3", ["w > 3"]])
def test_a_predicate_is_text(text: Any) -> None:
    """Anything else is refused by name."""
    with pytest.raises(PlanError, match="where="):
        Where(text)


def test_whole_numbers_beyond_64_bits_are_an_error() -> None:
    """Where a sum or product would wrap around, the error says so; with fractions it is near enough."""
    large = {"id": np.array([1, 1 << 61])}
    for text in ("id * 4 > 0", "id + id + id > 0", "-4 * id < 0"):
        with pytest.raises(PlanError, match="beyond 64 bits"):
            Where(text)(large)
    assert Where("1.0 * id * 4 > 5")(large).tolist() == [False, True]


def test_shards_without_a_sample() -> None:
    """They have no truth values."""
    assert Where("w > 3 and h / w < 2")({name: values[:0] for name, values in COLUMNS.items()}).shape == (0,)


def test_predicates_travel_and_compare() -> None:
    """They are pickled with a dataset, and equal where their text is."""
    where = Where("w > 3 and column('left.jpg.w') > 0")
    assert where.names == ("left.jpg.w", "w")
    again = pickle.loads(pickle.dumps(where))
    assert again == where
    assert again(COLUMNS).tolist() == where(COLUMNS).tolist()
    assert Where("w > 4") != where
