"""What a Cache is told."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from streaming import Cache, PlanError


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("1.5 kb", 1500), ("2GiB", 2 << 30), ("512MiB", 512 << 20), ("7", 7), (7, 7), ("1tb", 10**12)],
)
def test_sizes(text: Any, size: int) -> None:
    """Sizes are bytes, or numbers with a unit, of a thousand or of 1,024."""
    assert Cache(memory_bytes=text).memory_bytes == size


@pytest.mark.parametrize("text", ["", "ten", "10XB", "-1GB", -1, True, 1.5, "GB"])
def test_sizes_that_are_none(text: Any) -> None:
    """What is no size is refused, and the argument is named."""
    with pytest.raises(PlanError, match="memory_bytes"):
        Cache(memory_bytes=text)


@pytest.mark.parametrize(
    "options",
    [{"disk_bytes": 1}, {"shared_bytes": 1}, {"shared_options": {}}, {"disk": "s3://bucket/x"}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    """An option of a tier that is not there is refused, and a URL where a folder is meant."""
    with pytest.raises(PlanError):
        Cache(**options)


def test_no_secret_is_shown_or_pickled() -> None:
    """Neither a password in the URL nor options that grant access are in a repr or a pickle."""
    cache = Cache(shared="redis://me:hunter2@host:6379/0", shared_options={"secret": "hunter3", "region": "eu"})
    assert "hunter" not in repr(cache)
    stored = pickle.dumps(cache)
    assert b"hunter" not in stored
    again = pickle.loads(stored)
    assert (again.shared, dict(again.shared_options)) == ("redis://me@host:6379/0", {"region": "eu"})


def test_what_is_given_is_shown() -> None:
    """A repr has what was given, and nothing else."""
    assert repr(Cache(disk="/ssd", disk_bytes="1kB")) == "Cache(disk='/ssd', disk_bytes=1000)"
