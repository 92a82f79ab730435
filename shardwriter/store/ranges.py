"""One range of an object: asked for whole, and after a failure in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .retrying import Again

PIECE: Final = 1 << 20
"""Bytes of one request after one for more has failed; a connection that keeps breaking lets that much through."""


class Range:
    """The bytes [start, end) and how many of them have come.

    >>> wanted = Range(0, 8 << 20)
    >>> tries.until_done(lambda: wanted.read(get))          # get(start, end) does one request
    <memory at 0x...>
    """

    def __init__(self, start: int, end: int) -> None:
        self.at = start
        """Where the next request begins; what lies before it has come."""
        self._start = start
        self._end = end
        self._step = end - start
        self._kept: memoryview | None = None

    def read(self, get: Callable[[int, int], memoryview]) -> memoryview:
        """All the bytes, of which this call asks for those that have not come yet.  Raises what `get` raises."""
        while True:
            stop = min(self.at + self._step, self._end)
            try:
                part = get(self.at, stop)
            except Again as again:
                if not again.failure.busy:  # to a busy server, several requests for one would be no help
                    self._split()
                raise
            if self._kept is None:
                return part
            self._kept[self.at - self._start : stop - self._start] = part
            self.at = stop
            if stop == self._end:
                return self._kept.toreadonly()

    def _split(self) -> None:
        if self._kept is None and self._step > PIECE:
            self._step = PIECE
            self._kept = memoryview(bytearray(self._end - self._start))
