"""The names that the two packages promise, their errors, and the size of their files."""

from __future__ import annotations

import inspect
import pickle
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import shardwriter
import shardwriter.errors
import streaming
import streaming.errors
from shardwriter import ShardError

WRITER = [
    "DecodeError",
    "DestinationError",
    "EncodeError",
    "FormatError",
    "GroupingError",
    "HeaderError",
    "IndexFormatError",
    "IndexMismatch",
    "MissingExtra",
    "NameRefused",
    "ObjectChanged",
    "ObjectNotFound",
    "ShardError",
    "ShardWriter",
    "SourceError",
    "StoreError",
    "TrailingData",
    "TruncatedShard",
    "UnsupportedShard",
    "convert",
    "index_shards",
    "sources",
    "verify_shards",
]
STREAMING = [
    "BatchError",
    "Cache",
    "CostBudget",
    "DatasetNotFound",
    "DecodeError",
    "FieldMissing",
    "FixedBatch",
    "FormatError",
    "IndexMismatch",
    "MissingExtra",
    "Mix",
    "ObjectChanged",
    "ObjectNotFound",
    "PixelBudget",
    "Plan",
    "PlanError",
    "ShardError",
    "Shuffle",
    "StateError",
    "StateMismatch",
    "StoreError",
    "StreamError",
    "StreamingDataset",
    "StreamingLoader",
    "TooManySkipped",
    "TransformError",
    "WorkerError",
]
PACKAGES = pytest.mark.parametrize(
    ("package", "names"), [(shardwriter, WRITER), (streaming, STREAMING)], ids=["shardwriter", "streaming"]
)


def own_errors(package: ModuleType) -> dict[str, type[ShardError]]:
    """The error classes that a package defines itself."""
    home = f"{package.__name__}.errors"
    classes = [c for c in vars(import_module(home)).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert all(issubclass(c, ShardError) for c in classes)
    return {c.__name__: c for c in classes if issubclass(c, ShardError) and c.__module__ == home}


ERRORS = [error for package in (shardwriter, streaming) for error in own_errors(package).values()]


@PACKAGES
def test_the_public_names_are_these(package: ModuleType, names: list[str]) -> None:
    """A name that comes or goes is a decision: it changes this list too.  Each is sorted, once, and in dir()."""
    assert package.__all__ == sorted(set(names))
    assert set(names) <= set(dir(package))


@PACKAGES
def test_every_public_name_is_there_and_explained(package: ModuleType, names: list[str]) -> None:
    """It resolves, to the same object each time, has a docstring of its own, and can be imported with a star."""
    for name in names:
        value = getattr(package, name)
        assert getattr(package, name) is value
        assert value.__doc__
        assert not inspect.isclass(value) or "__doc__" in vars(value)
    scope: dict[str, object] = {}
    exec(f"from {package.__name__} import *", scope)
    assert set(names) <= scope.keys()


@PACKAGES
@pytest.mark.parametrize("name", ["Missing", "__wrapped__", "np", ""])
def test_unknown_names_are_attribute_errors(package: ModuleType, names: list[str], name: str) -> None:
    """The error names package and attribute; hasattr says no."""
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute '{name}'"):
        getattr(package, name)
    assert not hasattr(package, name)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_keep_what_they_know_when_pickled(error: type[ShardError]) -> None:
    """Class, text and every piece of context come back."""
    full = error("cut short", shard="a.tar", key="k", field="jpg", offset=512, hint="again", rule="T4")
    again = pickle.loads(pickle.dumps(full))
    assert type(again) is error
    assert str(again) == str(full) == "cut short (shard a.tar, key k, field jpg, offset 512, rule T4): again"
    assert vars(again) == vars(full)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_can_be_made_from_a_message(error: type[ShardError]) -> None:
    """Worker processes of torch make them anew that way; they are still what they were and take context."""
    made = error("it broke")
    assert str(made) == made.fact == "it broke"
    assert str(made.at(key="k")) == "it broke (key k)"
    assert isinstance(made, ShardError)


@PACKAGES
def test_every_error_is_reachable_from_its_package(package: ModuleType, names: list[str]) -> None:
    """An error can be caught by a name that the user can import; what streaming lists of the writer's is the same."""
    own = own_errors(package)
    assert own
    for name, error in own.items():
        assert name in names
        assert getattr(package, name) is error
    errors = import_module(f"{package.__name__}.errors")
    assert set(errors.__all__) == {name for name in names if isinstance(vars(errors).get(name), type)}
    for name in set(STREAMING) & set(WRITER):
        assert getattr(streaming, name) is getattr(shardwriter, name)


@PACKAGES
def test_the_tree_of_errors_is_as_drawn(package: ModuleType, names: list[str]) -> None:
    """The docstring shows every error below its base, with the standard exception that it is as well."""
    own = own_errors(package)
    drawn = {}
    above = ["ShardError"]
    for line in (import_module(f"{package.__name__}.errors").__doc__ or "").splitlines():
        found = re.match(r"(\s*(?:│   )*)[├└]── (\w+)( .*)?$", line)
        if not found or found[2] not in own:
            continue
        name, text = found[2], found[3] or ""
        depth = found[1].count("│") + 1
        above[depth:] = [name]
        also = re.search(r"\(also (?:an? )?(\w+)\)", text)
        drawn[name] = (above[depth - 1], also[1] if also else None)
    bases = {name: [base.__name__ for base in error.__bases__] for name, error in own.items() if name != "ShardError"}
    assert drawn == {name: (base, also[0] if also else None) for name, (base, *also) in bases.items()}


def test_all_errors_live_in_the_trees() -> None:
    """No module defines an error of its own kind elsewhere."""
    for package in (shardwriter, streaming):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    known, seen = set(ERRORS), [ShardError]
    while seen:
        error = seen.pop()
        assert error in known or not error.__module__.startswith(("shardwriter", "streaming"))
        seen += error.__subclasses__()


@PACKAGES
def test_no_file_is_longer_than_400_lines(package: ModuleType, names: list[str]) -> None:
    """A longer one holds more than one idea."""
    files = sorted(Path(package.__path__[0]).rglob("*.py"))
    assert len(files) > 10
    assert {file.name: n for file in files if (n := len(file.read_text().splitlines())) > 400} == {}
