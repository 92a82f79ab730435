"""What a cache folder holds, for people, and removing it.

>>> print(describe("/ssd/cache"))
/ssd/cache: 1,204 entries of 1 dataset, 5,049,941,104 bytes
    s3://bucket/cc3m  (3c6e0b8a): 1,204 entries, 5,049,940,832 bytes, in use now
>>> print(clear("/ssd/cache"))
/ssd/cache: removed 0 entries, 0 bytes; kept, since in use: s3://bucket/cc3m
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from shardwriter.errors import StoreError

from . import layout
from .budget import Budget
from .groups import remove_empty, unused
from .locks import lock, open_file, unlock


@dataclass(frozen=True, slots=True)
class GroupView:
    """One dataset in a cache: its folder, its URL as far as known, what there is of it, when it was last used."""

    group: str
    label: str
    entries: int
    bytes: int
    last_use: str
    """ISO 8601, UTC."""
    in_use: bool

    @property
    def title(self) -> str:
        """What it is called, for people."""
        return self.label or self.group

    def __str__(self) -> str:
        used = "in use now" if self.in_use else f"last used {self.last_use}"
        name = f"{self.label}  ({self.group})" if self.label else self.group
        return f"{name}: {_entries(self.entries)}, {self.bytes:,} bytes, {used}"


@dataclass(frozen=True, slots=True)
class CacheView:
    """A cache folder: all bytes of its files, and its datasets, the one used last first."""

    folder: str
    bytes: int
    groups: tuple[GroupView, ...]

    def __str__(self) -> str:
        count = len(self.groups)
        datasets = f"{count:,} dataset{'' if count == 1 else 's'}"
        entries = _entries(sum(group.entries for group in self.groups))
        return "\n    ".join([f"{self.folder}: {entries} of {datasets}, {self.bytes:,} bytes", *map(str, self.groups)])


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was removed from a cache folder, and the datasets that stay since they are in use."""

    folder: str
    removed: int
    bytes: int
    kept: tuple[GroupView, ...]

    def __str__(self) -> str:
        text = f"{self.folder}: removed {_entries(self.removed)}, {self.bytes:,} bytes"
        return f"{text}; kept, since in use: {', '.join(group.title for group in self.kept)}" if self.kept else text


def describe(folder: str | os.PathLike[str]) -> CacheView:
    """What a cache folder holds; changes nothing.  Raises StoreError where it is no cache, or can't be read."""
    with _cache(folder) as path:
        groups: list[GroupView] = []
        for group in layout.groups(path):
            with suppress(FileNotFoundError):  # removed just now
                groups.append(_view(group))
        groups.sort(key=lambda group: group.last_use, reverse=True)
        own = sum(layout.size_of(os.path.join(path, name)) for name in (layout.MARKER, layout.LEDGER))
        return CacheView(path, own + sum(group.bytes for group in groups), tuple(groups))


def clear(folder: str | os.PathLike[str]) -> Cleared:
    """Remove every dataset that no process uses; files that are not the cache's own stay, and so does the folder.

    Raises StoreError for a folder that is no cache, or that can't be changed.
    """
    removed, freed, kept = 0, 0, []
    with _cache(folder) as path, _shared(path):
        budget = Budget(path, None)
        try:
            for group in list(layout.groups(path)):
                with unused(group) as alone:
                    if not alone:
                        kept.append(_view(group, in_use=True))
                        continue
                    for file in layout.files(group):
                        if file.name != layout.USE:
                            freed += budget.remove(file.path)
                            removed += file.name.endswith(layout.CHUNK)
                    remove_empty(group, budget)
        finally:
            budget.close()
    return Cleared(path, removed, freed, tuple(kept))


def _view(group: str, in_use: bool | None = None) -> GroupView:
    files = list(layout.files(group))
    with unused(group) as alone:
        used = not alone if in_use is None else in_use
    return GroupView(
        group=os.path.basename(group),
        label=_label(layout.use_path(group)),
        entries=sum(file.name.endswith(layout.CHUNK) for file in files),
        bytes=sum(file.size for file in files),
        last_use=datetime.fromtimestamp(os.lstat(layout.use_path(group)).st_mtime, UTC).isoformat(timespec="seconds"),
        in_use=used,
    )


def _label(path: str) -> str:
    fd = open_file(path, os.O_RDONLY)
    try:
        text = os.pread(fd, 4096, 0).decode(errors="replace")
    finally:
        os.close(fd)
    return "".join(c for c in text if c.isprintable())


@contextmanager
def _cache(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The real path of a cache folder; the system's errors become ours."""
    path = os.path.realpath(folder)
    try:
        layout.require_marker(path)
        yield path
    except StoreError:
        raise
    except OSError as error:
        fact = f"{path}: {error.strerror or error}"
        raise StoreError(fact, hint="check the permissions of the folder") from error


@contextmanager
def _shared(folder: str) -> Iterator[None]:
    """Be one of the processes that use the folder."""
    fd = layout.open_marker(folder)
    try:
        lock(fd, fcntl.LOCK_SH)
        yield
    finally:
        unlock(fd)
        os.close(fd)


def _entries(count: int) -> str:
    return f"{count:,} entr{'y' if count == 1 else 'ies'}"
