"""FixedBatch."""

from __future__ import annotations

from typing import Any

import pytest

from streaming import FixedBatch, PlanError


@pytest.mark.parametrize("samples", [0, -1, 1.0, True, "8", None])
def test_a_batch_has_a_whole_number_of_samples(samples: Any) -> None:
    """Anything but a whole number of at least 1 is refused and shown."""
    with pytest.raises(PlanError, match="a batch has at least 1 sample") as caught:
        FixedBatch(samples)
    assert repr(samples) in str(caught.value)


@pytest.mark.parametrize("size", [0, -1, (224,), (224, 0), (1, 2, 3), (2.0, 2), "ab", [224, 224], 1.5, (), True])
def test_a_size_is_height_and_width(size: Any) -> None:
    """Anything but one or two whole numbers of at least 1 is refused and shown."""
    with pytest.raises(PlanError, match=r"give \(height, width\) in pixels"):
        FixedBatch(8, size=size)


def test_one_number_is_both_sides() -> None:
    """A square is written with one number."""
    assert FixedBatch(8, size=32).size == (32, 32)
    assert FixedBatch(8, size=32) == FixedBatch(8, size=(32, 32)) != FixedBatch(8, size=(32, 33))
    assert FixedBatch(8).size is None


def test_it_prints_as_it_is_written() -> None:
    """The repr makes the same object again."""
    for batch in (FixedBatch(8), FixedBatch(8, size=(32, 48))):
        assert eval(repr(batch)) == batch
    assert repr(FixedBatch(8)) == "FixedBatch(8)"
    assert repr(FixedBatch(8, size=(32, 48))) == "FixedBatch(8, size=(32, 48))"


def test_the_size_of_images_is_no_part_of_the_order() -> None:
    """Only the number of samples decides which samples form a batch."""
    assert FixedBatch(8, size=32).order_key == FixedBatch(8).order_key != FixedBatch(9).order_key


def test_it_is_a_value() -> None:
    """It hashes by value and can't be changed."""
    assert len({FixedBatch(8, size=32), FixedBatch(8, size=(32, 32)), FixedBatch(8)}) == 2
    with pytest.raises(AttributeError):
        FixedBatch(8).samples = 9  # type: ignore[misc]
