"""What a shared tier asks of the service behind it, and how that says what went wrong."""

from __future__ import annotations

import re
from typing import Final, Literal, Protocol

from shardwriter.format import Buffer

NAME: Final = re.compile(r"[0-9a-z][0-9a-z.-]{0,79}/[0-9a-z][0-9a-z.-]{0,79}")
"""The name of an entry: group and entry."""
DAY: Final = 24 * 3600.0
"""Seconds for which no job may have used a group before it is dropped to make room."""
HOUR: Final = 3600.0
"""Seconds after which a job says again that it uses a group."""
RECOUNT: Final = 600.0
"""Seconds after which the bytes of all entries are counted anew, since others put and drop some too."""
WRITING: Final = 5.0
"""How many times as long as reading, storing may wait for an answer: nobody waits for it."""

Put = Literal["stored", "present", "refused"]
"""What became of an entry: stored; there already; refused, as there is no room."""


class Fault(Exception):
    """The service failed; `kind` is what one warning is given for."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Backend(Protocol):
    """Sealed entries by name, in a place that several machines reach; every method raises Fault, and nothing else.

    Nothing is connected before the first call.  `get` is called by many threads, the others by one.
    """

    evicted: int
    """Entries that were dropped to make room."""

    def get(self, name: str, size: int) -> Buffer | None:
        """The entry, of `size` bytes where it is whole; None where there is none."""

    def put(self, name: str, data: bytes) -> Put:
        """Keep an entry, unless it is there, or does not fit and no room can be made."""

    def delete(self, name: str) -> None:
        """Remove an entry."""

    def use(self, group: str, label: str) -> None:
        """Note that a job uses the group now."""

    def close(self) -> None:
        """Let go of all connections."""
