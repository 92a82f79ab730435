"""The errors: what they say, what they are, and that they survive on their way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

import shardwriter.errors as errors
from shardwriter.errors import ShardError

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_survive_pickling_and_copying(cls: type[ShardError]) -> None:
    """Class, text and context are the same after pickling and copying."""
    error = cls("cut short", shard="a.tar", key="k", field="jpg", offset=0, hint="copy it again", rule="T2")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert str(again) == str(error) == "cut short (shard a.tar, key k, field jpg, offset 0, rule T2): copy it again"
        assert vars(again) == vars(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_can_be_made_from_a_message(cls: type[ShardError]) -> None:
    """A message alone, or none, makes an error, as torch's workers need."""
    assert str(cls("it broke")) == "it broke"
    assert str(cls()) == ""


@pytest.mark.parametrize(
    ("cls", "bases"),
    [
        (errors.TruncatedShard, (errors.FormatError, ValueError)),
        (errors.NameRefused, (ShardError, ValueError)),
        (errors.DestinationError, (ShardError, FileExistsError)),
        (errors.ObjectNotFound, (errors.StoreError, FileNotFoundError, OSError)),
        (errors.ObjectChanged, (errors.StoreError, OSError)),
        (errors.MissingExtra, (ShardError, ImportError)),
    ],
)
def test_errors_are_also_pythons_own(cls: type[ShardError], bases: tuple[type[Exception], ...]) -> None:
    """Code that catches Python's usual errors catches these."""
    assert all(issubclass(cls, base) for base in (*bases, ShardError))


def test_context_is_added_once() -> None:
    """What the place that raised knew stays; the edge fills in the rest."""
    error = ShardError("cut short", offset=0, shard="inner.tar")
    assert error.at(shard="outer.tar", offset=9, key="k", field="f", hint="h") is error
    assert (error.shard, error.offset, error.key, error.field, error.hint) == ("inner.tar", 0, "k", "f", "h")


def test_the_tree_in_the_docstring_is_whole() -> None:
    """Every class is drawn in the tree, under its own parent, and is listed in __all__."""
    drawn = {line.split("── ")[1].split()[0] for line in str(errors.__doc__).splitlines() if "── " in line}
    assert drawn | {"ShardError"} == set(errors.__all__)
