"""Samples to batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streaming import BatchError
from streaming.batch import collate, size_of


def _column(*values: Any) -> Any:
    return collate([{"__key__": str(i), "x": v} for i, v in enumerate(values)])["x"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((1, 2), torch.int64),
        ((-(1 << 63), (1 << 63) - 1), torch.int64),
        ((True, False), torch.bool),
        ((0.5, 1.5), torch.float32),
        ((1, 0.5), torch.float32),
        ((np.int16(3), np.int16(4)), torch.int16),
        ((np.float64(3), np.float64(4)), torch.float64),
        ((np.bool_(True), np.bool_(False)), torch.bool),
    ],
)
def test_numbers_become_a_tensor(values: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Whole numbers, truth values and floats become [n] of the kind that the docstring names; numpy's keep theirs."""
    column = _column(*values)
    assert column.dtype == dtype
    assert column.tolist() == list(values)


@pytest.mark.parametrize(
    "values",
    [("a", "b"), (b"a", b"b"), ({"a": 1}, {}), ([1], [2]), (1, "b"), (1 << 63, 0), (None, 1), (True, 1), (None, None)],
)
def test_everything_else_is_a_list(values: tuple[Any, ...]) -> None:
    """Text, bytes, dicts, mixtures and numbers beyond 64 bits stay a list of n, in order, unchanged."""
    column = _column(*values)
    assert column == list(values)
    assert isinstance(column, list)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float16", "float32", "float64", "bool", "complex64"])
def test_arrays_are_stacked(dtype: str) -> None:
    """Arrays and tensors of equal shape become [n, ...] of their own type, whatever their strides."""
    arrays = [np.arange(6).reshape(3, 2).T.astype(dtype) + np.array(i, dtype) for i in range(3)]
    for values in (arrays, [torch.from_numpy(a.copy()) for a in arrays], [a[:, ::-1] for a in arrays]):
        column = _column(*values)
        assert column.shape == (3, 2, 3)
        assert np.array_equal(column.numpy(), np.stack([np.asarray(v) for v in values]))
        assert column.numpy().dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((torch.zeros(2, 3), torch.zeros(3, 2)), r"float32 \[2, 3\] and float32 \[3, 2\]"),
        ((torch.zeros(2), torch.zeros(2, dtype=torch.uint8)), r"float32 \[2\] and uint8 \[2\]"),
        ((torch.zeros(2), "text"), r"float32 \[2\] and str"),
        ((np.zeros(2), np.zeros(3)), r"float64 \[2\] and float64 \[3\]"),
    ],
)
def test_values_that_differ(values: tuple[Any, ...], names: str) -> None:
    """Arrays of other shape or type are an error with key, field and both shapes, and with what to do."""
    with pytest.raises(BatchError, match=names) as caught:
        _column(*values)
    assert (caught.value.key, caught.value.field) == ("1", "x")
    assert "size=" in str(caught.value.hint)


@pytest.mark.parametrize("other", [{"y": 1}, {}, {"x": 1, "y": 1}])
def test_fields_that_differ(other: dict[str, int]) -> None:
    """Samples with other fields are an error with both keys and the fields."""
    with pytest.raises(BatchError, match=r"different fields: .*'[xy]'.*'one'") as caught:
        collate([{"__key__": "one", "x": 1}, {"__key__": "two", **other}])
    assert caught.value.key == "two"


def test_no_samples() -> None:
    """There is no batch of nothing."""
    with pytest.raises(BatchError):
        collate([])


def test_batches_own_their_memory() -> None:
    """Changing a sample's array afterwards does not change the batch."""
    array = np.zeros(3)
    column = _column(array)
    array[:] = 9
    assert column.tolist() == [[0, 0, 0]]


LEAVES = st.one_of(st.binary(max_size=50), st.text(max_size=50), st.integers(), st.none(), st.booleans())


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)))
def test_sizes_are_those_of_the_parts(value: Any) -> None:
    """The size of nested values is the sum over what they hold."""

    def total(value: Any) -> int:
        if isinstance(value, (bytes, str)):
            return len(value)
        if isinstance(value, (list, dict)):
            return sum(total(v) for v in (value.values() if isinstance(value, dict) else value))
        return 64

    assert size_of(value) == total(value)


def test_sizes_of_arrays() -> None:
    """Arrays and tensors count their bytes."""
    assert size_of({"a": torch.zeros(2, 3), "b": np.zeros(5, np.int16), "c": (b"xy",)}) == 24 + 10 + 2
