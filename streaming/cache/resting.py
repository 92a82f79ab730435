"""Leaving a service alone while it fails.

>>> rest = Rest()
>>> attempt = rest.begin()
>>> rest.failed(attempt), rest.begin()                 # seconds that it rests; no attempt meanwhile
(5.0, None)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Final

SHORTEST: Final = 5.0
"""Seconds of the first rest; each following one is twice as long ..."""
LONGEST: Final = 300.0
"""... up to this."""


class Rest:
    """Whether a service may be asked: not for a while after it failed, and then by one caller first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = RLock()
        self._pause = 0.0
        self._until = 0.0
        self._number = 0
        """Of rests so far: what was begun before the last one says nothing about the time since."""

    def begin(self) -> int | None:
        """An attempt, to be reported as failed or worked; None while the service rests.

        After a rest one caller gets an attempt; the others go on resting until it is reported.
        """
        with self._lock:
            if not self._pause:
                return self._number
            now = self._clock()
            if now < self._until:
                return None
            self._until = now + self._pause
            return self._number

    def is_resting(self) -> bool:
        """Whether there is no attempt now."""
        with self._lock:
            return bool(self._pause) and self._clock() < self._until

    def failed(self, attempt: int) -> float | None:
        """Rest from now on; for how many seconds, or None where other attempts that were under way had that effect."""
        with self._lock:
            if attempt != self._number:
                return None
            self._number += 1
            self._pause = min(max(SHORTEST, 2 * self._pause), LONGEST)
            self._until = self._clock() + self._pause
            return self._pause

    def worked(self, attempt: int) -> None:
        """The service works: no more rests."""
        with self._lock:
            if attempt == self._number:
                self._pause = 0.0
