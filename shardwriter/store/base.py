"""What every store can do."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ..errors import StoreError

PART: Final = 8 << 20
"""Bytes of one request where a whole object is read."""
_TEMPORARY: Final = re.compile(r"\.shardstream-[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A file or object: name relative to the store's root, size in bytes, and what tells it from its successors.

    The version is an ETag, else made of the time of the last change, None where the storage shows neither.
    """

    name: str
    size: int
    version: str | None


def always() -> bool:
    """True: the result is wanted in any case."""
    return True


class Store(Protocol):
    """Named byte strings under one root URL.

    >>> store = open_store("/data/cc3m")
    >>> store.write("a.tar", b"0123456789")
    >>> store.read_range("a.tar", 2, 5)
    b'234'

    Names are relative, with "/" between parts, and literal: blanks, "%", "#", quotes and braces are just characters.
    Every method raises ObjectNotFound for a name that is not there (where that matters) and StoreError for any other
    failure, after retries where a retry can help.
    """

    url: str
    """The root as given, without credentials and without a slash at the end."""
    path: Path | None
    """The folder of a local store, else None."""

    def info(self, name: str) -> ObjectInfo:
        """Size and version.  Raises ObjectNotFound."""

    def read(self, name: str) -> bytes:
        """All bytes, in memory; meant for index files.  Raises ObjectNotFound."""

    def read_range(self, name: str, start: int, end: int, *, version: str | None = None) -> bytes:
        """Exactly the bytes [start, end).

        Raises StoreError where the object ends before `end`, and ObjectChanged where `version` (of an ObjectInfo) is
        given and the object has been replaced since.
        """

    def read_view(
        self, name: str, start: int, end: int, *, version: str | None = None, wanted: Callable[[], bool] = always
    ) -> memoryview:
        """What read_range gives, as a read-only view, without a copy where the storage allows.

        >>> bytes(store.read_view("a.tar", 2, 5))
        b'234'

        `wanted` is asked between tries and while waiting for the next; once it says False, since nobody waits for the
        bytes any more, StoreError is raised.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Everything whose name starts with `prefix`, at any depth, sorted by name; nothing for a missing folder."""

    def write(self, name: str, data: bytes) -> None:
        """Store `data` as `name`, which shows the old content or the new one and never a part."""

    def write_file(self, name: str, path: Path) -> None:
        """Hand over a finished local file, with the promise of `write`.  Once stored, `path` is gone."""

    def delete(self, name: str) -> None:
        """Remove `name`; no error where it is not there."""

    def writable(self) -> bool:
        """Whether files can be created here (locally; True for all others, which only a write can tell)."""


def check_name(name: str) -> str:
    """Return `name` if it stays under the root and means the same to every storage, else raise StoreError."""
    if not name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(
            f"{name!r} is not the name of an object",
            hint="names are relative to the store's root and have no empty part, '.' or '..'",
        )
    return name


def check_range(start: int, end: int) -> None:
    """Raise StoreError unless [start, end) is a half-open byte range."""
    if not 0 <= start <= end:
        raise StoreError(f"[{start}, {end}) is not a byte range")


def folder_of(name: str) -> str:
    """`name` up to and with its last slash; "" without one."""
    return name[: name.rfind("/") + 1]


def temporary_name() -> str:
    """A fresh name for a file that is still being written; listings leave such names out."""
    return f".shardstream-{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Whether `name` was made by temporary_name, in any folder."""
    return _TEMPORARY.fullmatch(name[len(folder_of(name)) :]) is not None
