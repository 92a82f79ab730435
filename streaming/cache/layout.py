"""What lies where in a cache folder (LAYOUT.md): names, the marker, and the files that are the cache's own.

>>> split("3c6e0b8a/000017")
('3c6e0b8a', '000017')
>>> [file.name for file in files("/ssd/cache/3c6e0b8a")]
['.use', '000017.chunk']
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from shardwriter.errors import StoreError

from .locks import open_to_lock

MARKER: Final = "shardstream-cache.json"
LEDGER: Final = "shardstream-cache.ledger"
USE: Final = ".use"
CHUNK: Final = ".chunk"
FILL: Final = ".fill"

_VERSION: Final = 1
_MARK: Final = json.dumps({"shardstream cache": _VERSION}).encode() + b"\n"
_GROUP: Final = re.compile(r"(?!shardstream-cache)[0-9a-z-][0-9a-z.-]{0,79}")
_ENTRY: Final = re.compile(r"[0-9a-z.-]{1,80}")
_FILE: Final = re.compile(rf"{_ENTRY.pattern}({re.escape(CHUNK)}|{re.escape(FILL)})|{re.escape(USE)}")
_EMPTY: Final = {"lost+found"}
"""What a file system of its own has in its root from the start."""


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of a group: its name, path and bytes."""

    name: str
    path: str
    size: int


def split(name: str) -> tuple[str, str]:
    """The group and the entry of "group/entry"; raises ValueError for other names."""
    group, _, entry = name.partition("/")
    if not _GROUP.fullmatch(group) or not _ENTRY.fullmatch(entry):
        raise ValueError(
            f"{name!r} is no entry: group/entry, each of 1 to 80 of 0-9 a-z . -, the group without a . first"
        )
    return group, entry


def groups(folder: str) -> Iterator[str]:
    """Paths of the folders of groups: those that hold the file `.use`; links are passed over."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        for entry in found:
            if _GROUP.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and _is_file(use_path(entry.path)):
                yield entry.path


def files(group: str) -> Iterator[CacheFile]:
    """The files of a group's folder that are the cache's own; links are passed over."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(group) as found:
        for entry in found:
            if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    yield CacheFile(entry.name, entry.path, entry.stat(follow_symlinks=False).st_size)


def size_of(path: str) -> int:
    """Bytes of a regular file; 0 where there is none."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0


def use_path(group: str) -> str:
    """The file whose lock says that a group is in use."""
    return os.path.join(group, USE)


def open_marker(folder: str) -> int:
    """Open the folder's marker; a folder that is new or empty gets one first.

    Raises StoreError where the folder holds other things and no marker, or a cache of another version.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, MARKER)
    if not _is_file(path):
        other = sorted(name for name in os.listdir(folder) if name not in _EMPTY and name != MARKER)
        if other and not _is_file(path):  # looked at again, since another process may just have made the cache
            raise StoreError(
                f"the folder {folder} holds {other[0]!r} and is no cache",
                hint=f"a cache deletes what is in it: give it a new folder, such as {os.path.join(folder, 'cache')}",
            )
    fd = open_to_lock(path, os.O_CREAT)
    try:
        mark = os.pread(fd, 4096, 0)
        if not mark:  # new, or made by a process that was killed just then
            os.pwrite(fd, _MARK, 0)
            os.fsync(fd)
        elif mark != _MARK:
            raise StoreError(
                f"the folder {folder} is a cache of another version, or its {MARKER} is damaged",
                hint="delete the folder, or give another one",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_marker(folder: str) -> None:
    """Raise StoreError unless the folder is a cache of this version."""
    if not _is_file(os.path.join(folder, MARKER)):
        raise StoreError(f"{folder} is no cache folder: it has no {MARKER}", hint="give the folder of Cache(disk=...)")
    os.close(open_marker(folder))


def _is_file(path: str) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(os.lstat(path).st_mode)
    return False
