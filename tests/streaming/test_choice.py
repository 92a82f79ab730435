"""Which fields are read, and under which names they are given."""

from __future__ import annotations

import pytest

from streaming import FieldMissing
from streaming.choice import FieldChoice


def test_all_fields() -> None:
    """Without a choice each field comes under its own name."""
    choice = FieldChoice(None)
    assert choice.read(("jpg", "txt")) == ("jpg", "txt")
    assert choice.select({"jpg": b"1", "txt": b"2"}) == {"jpg": ("jpg", b"1"), "txt": ("txt", b"2")}


def test_a_list_of_fields() -> None:
    """Of alternatives the first that a sample has is taken, under the name of the first; only these are read."""
    choice = FieldChoice(["jpg;png;webp", "txt"])
    assert choice.read(("json", "png", "webp", "txt")) == ["png", "webp", "txt"]
    assert choice.select({"webp": b"w", "png": b"p", "txt": b"t"}) == {"jpg": ("png", b"p"), "txt": ("txt", b"t")}
    assert choice.select({"txt": b"t", "jpg": b"j", "png": b"p"})["jpg"] == ("jpg", b"j")


def test_a_dict_of_fields() -> None:
    """A dict gives new names; one field may be given twice."""
    choice = FieldChoice({"image": "jpg;png", "a": "txt", "b": "txt"})
    chosen = choice.select({"png": b"p", "txt": b"t"})
    assert chosen == {"image": ("png", b"p"), "a": ("txt", b"t"), "b": ("txt", b"t")}


def test_fields_that_no_alternative_gives() -> None:
    """A sample without any of the alternatives is an error that lists them, and names the field."""
    with pytest.raises(FieldMissing, match="'jpg;png'") as caught:
        FieldChoice({"image": "jpg;png"}).select({"txt": b"t"})
    assert caught.value.field == "image"
