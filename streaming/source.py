"""What the user named: a folder, single shards, patterns, or a list of these, as (root, shard names).

>>> list_shards(["a-{000..001}.tar"])
[Listing(root='.', names=('a-000.tar', 'a-001.tar'), whole=False)]

A name that exists as it is written goes before any pattern in it, so that "photos {a,b}.tar" can be read too.  Braces
are bash's ({000..331}, {a,b}); * ? and [ ] match within one part of a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from shardwriter.format import SHARD_SUFFIXES
from shardwriter.index import list_shards as stored_shards
from shardwriter.store import open_store, split_url

from .errors import DatasetNotFound

Source = str | os.PathLike[str]
_BRACES: Final = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_GLOB: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Listing:
    """Shards below one root URL, in reading order; `whole` if the user named the folder itself (names is empty
    then).
    """

    root: str
    names: tuple[str, ...]
    whole: bool


def list_shards(source: Source | Sequence[Source], options: Mapping[str, Any] | None = None) -> list[Listing]:
    """Shards of each root, in the order in which the source names them.

    Raises DatasetNotFound for a pattern that matches nothing.
    """
    items = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not items:
        raise DatasetNotFound("the list of shards is empty")
    listings: list[Listing] = []
    for item in items:
        for listing in _resolve(item, options):
            last = listings[-1] if listings else None
            if last is not None and last.root == listing.root and not last.whole and not listing.whole:
                listings[-1] = Listing(last.root, last.names + listing.names, whole=False)
            else:
                listings.append(listing)
    return listings


def _resolve(item: Source, options: Mapping[str, Any] | None) -> Iterator[Listing]:
    text = os.fspath(item)
    root, name = split_url(item)
    if os.path.isdir(text):
        yield Listing(text, (), whole=True)
        return
    if name and os.path.isfile(text):
        yield Listing(root, (name,), whole=False)
        return
    for pattern in _braces(text):
        root, name = split_url(pattern)
        if _GLOB.search(pattern) and not pattern.startswith(("http://", "https://")):
            yield _glob(pattern, options)
        elif name.endswith(SHARD_SUFFIXES):
            yield Listing(root, (name,), whole=False)
        else:
            yield Listing(pattern, (), whole=True)


def _braces(text: str) -> Iterable[str]:
    if not _BRACES.search(text):
        return [text]
    from braceexpand import braceexpand

    try:
        return list(braceexpand(text, escape=False))
    except ValueError as error:
        raise DatasetNotFound(f"the braces of {text!r} are not balanced ({error})") from None


def _glob(pattern: str, options: Mapping[str, Any] | None) -> Listing:
    parts: list[str] = []
    root = pattern
    while _GLOB.search(root):
        root, name = split_url(root)
        parts.insert(0, name)
    fixed = parts[0][: _GLOB.search(parts[0]).start()] if _GLOB.search(parts[0]) else ""  # type: ignore[union-attr]
    names = [info.name for info in open_store(root, options).list(fixed) if _matches(info.name, parts)]
    if not names:
        raise DatasetNotFound(f"the pattern {pattern!r} matches no shard", hint="check the folder and the spelling")
    return Listing(root, tuple(names), whole=False)


def _matches(name: str, parts: list[str]) -> bool:
    given = name.split("/")
    return (
        len(given) == len(parts)
        and name.endswith(SHARD_SUFFIXES)
        and all(fnmatchcase(g, p) for g, p in zip(given, parts, strict=True))
    )


def shards_below(root: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Names of all shards in a folder, sorted; hidden files and folders are passed over.  Raises DatasetNotFound."""
    names = [info.name for info in stored_shards(open_store(root, options))]
    if not names:
        raise DatasetNotFound(
            f"no shard (*.tar, *.tgz, *.tar.gz) in {root!r}", hint="check the folder, or write a dataset there first"
        )
    return names
