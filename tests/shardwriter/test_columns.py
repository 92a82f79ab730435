"""The numeric columns of a shard."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardwriter.columns import ColumnBuilder, measure
from shardwriter.errors import EncodeError


def picture(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def wav(frames: int, rate: int) -> bytes:
    head = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"fmt " + head + b"data" + struct.pack("<I", 2 * frames) + bytes(2 * frames)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def test_the_first_image_and_the_first_audio_give_the_plain_names() -> None:
    """Further images and audio give their numbers under their field's name, in the order of the shard."""
    fields = [
        ("a.png", picture(3, 4)), ("b.png", picture(5, 6)), ("l.wav", wav(7, 16000)), ("r.wav", wav(8, 8000)),
        ("txt", b"x"),
    ]  # fmt: skip
    assert measure(fields) == {
        "width": 3, "height": 4, "b.png.width": 5, "b.png.height": 6,
        "frames": 7, "rate": 16000, "r.wav.frames": 8, "r.wav.rate": 8000,
    }  # fmt: skip


def test_an_unreadable_first_image_keeps_its_place() -> None:
    """The plain names belong to the first image field even where its size can't be told."""
    assert measure([("a.png", b"damaged"), ("b.png", picture(5, 6))]) == {"b.png.width": 5, "b.png.height": 6}


def test_unknown_numbers_are_zero_and_empty_columns_are_dropped() -> None:
    """A sample without a readable image has 0; a column of nothing but 0 does not exist."""
    builder = ColumnBuilder()
    for data in (picture(3, 4), b"damaged"):
        builder.add([("png", data), ("wav", b"damaged")])
    builder.add([("txt", b"")])
    assert len(builder) == 3
    assert {name: column.tolist() for name, column in builder.arrays().items()} == {
        "height": [4, 0, 0],
        "width": [3, 0, 0],
    }


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5))
def test_integers_are_exact_in_the_narrowest_type(values: list[int]) -> None:
    """Integers are kept exactly, in 4 bytes where they fit, else in 8."""
    builder = ColumnBuilder()
    for value in values:
        builder.add([], {"n": value})
    column = builder.arrays()["n"]
    assert column.tolist() == values
    assert column.dtype == ("<i4" if all(-(1 << 31) <= v < 1 << 31 for v in values) else "<i8")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9), min_size=1, max_size=5))
def test_floats_are_doubles(values: list[float]) -> None:
    """One float among integers makes the column a double."""
    builder = ColumnBuilder()
    for value in [*values, 0.5]:
        builder.add([], {"x": value})
    column = builder.arrays()["x"]
    assert column.dtype == "<f8"
    assert column.tolist() == [*values, 0.5]


def test_numpys_numbers_are_numbers() -> None:
    """Scalars of numpy count as the numbers that they are; zeros of the user stay."""
    builder = ColumnBuilder()
    builder.add([], {"b": np.int64(0), "a": np.float32(0.5)})
    assert {name: column.tolist() for name, column in builder.arrays().items()} == {"a": [0.5], "b": [0]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1 << 63, "3", None, [1]])
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    """NaN, infinities, too large integers and other types are refused, with the column named."""
    with pytest.raises(EncodeError, match="'n'"):
        ColumnBuilder().add([], {"n": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["", "a\nb", "size", 3])
def test_names_that_an_index_can_not_hold_are_refused(name: object) -> None:
    """Empty, unprintable and reserved names are refused."""
    with pytest.raises(EncodeError, match="name a column"):
        ColumnBuilder().add([], {name: 1})  # type: ignore[dict-item]


def test_a_measured_number_can_not_be_overridden() -> None:
    """What the bytes say wins over the user: the name is refused where both have it."""
    builder = ColumnBuilder()
    with pytest.raises(EncodeError, match="'width' is measured"):
        builder.add([("png", picture(3, 4))], {"width": 9})
    builder.add([("npy", b"features")], {"frames": 9})
    assert builder.arrays()["frames"].tolist() == [9]


def test_a_refused_sample_leaves_no_trace() -> None:
    """Columns that differ from those before are refused, and the samples before stay as they were."""
    builder = ColumnBuilder()
    builder.add([("png", picture(3, 4))], {"tokens": 2})
    for extra in ({}, {"tokens": 3, "more": 1}, {"other": 1}):
        with pytest.raises(EncodeError, match="same columns"):
            builder.add([("png", picture(5, 6))], extra)
    assert {name: column.tolist() for name, column in builder.arrays().items()} == {
        "height": [4],
        "tokens": [2],
        "width": [3],
    }
