"""Trying again: until a deadline, after pauses that grow, and not before a busy server wants it.

>>> tries = Tries(Pauses(), deadline=120.0)
>>> tries.until_done(attempt)                  # attempt raises Again where another try may help
b'...'
"""

from __future__ import annotations

import copy
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ..errors import StoreError
from .base import always

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

FEW: Final = 3
"""Tries where it is not known whether trying again can help."""
_FIRST: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds of back-off, at most: after the first failure, and after many."""
_SLICE: Final = 0.2
"""Seconds between two looks at whether the result is still wanted."""
_SILENCE: Final = 1.0
"""Seconds for which a busy server that did not say how long to wait is not asked for it again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error of a client means."""

    error: StoreError
    again: bool = False
    """Another try may cure it."""
    doubtful: bool = False
    """Nobody knows whether it does, so a few tries must do."""
    busy: bool = False
    """The server asked for fewer requests (429, 503)."""
    retry_after: float | None = None
    """The seconds that a busy server wants to be left alone, where the error tells."""
    expired: bool = False
    """The credentials have, or may have, expired: a client made anew may find better ones."""


class Again(Exception):
    """A failure that another try may cure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Pauses:
    """Until when a busy server wants to be left alone by the requests of one store in this process."""

    def __init__(self) -> None:
        self.fact = ""
        """What the server said to the request that was refused last."""
        self._lock = threading.Lock()
        self._ends = 0.0
        self._known = 0.0
        self._silent = 0.0

    def left(self) -> float:
        """Seconds from now; 0.0 where nothing is to be waited for."""
        return max(0.0, self._ends - time.monotonic())

    def refused(self, sent: float, failure: Failure, ask: Callable[[], float | None]) -> None:
        """Learn how long to wait after a request, sent at that time, met a busy server.

        `ask` finds out, None where it can't.  It is called by one thread at a time, and not for requests that were
        under way when the current pause became known.
        """
        with self._lock:
            if failure.retry_after is None and (sent < self._known or time.monotonic() < self._silent):
                return
            self._known = math.inf  # for the others, until this thread knows
        seconds = failure.retry_after
        try:
            seconds = ask() if seconds is None else seconds
        finally:
            with self._lock:
                self._known = time.monotonic()
                if seconds is None:
                    self._silent = self._known + _SILENCE
                elif self._known + seconds > self._ends:
                    self._ends, self.fact = self._known + seconds, failure.error.fact


class Tries:
    """The tries of one call.

    They end `deadline` seconds from now, or with `most` of them where that is given, and as soon as `wanted` says that
    nobody waits for the result.
    """

    def __init__(
        self, pauses: Pauses, deadline: float, wanted: Callable[[], bool] = always, most: int | None = None
    ) -> None:
        self.pauses = pauses
        self.wanted = wanted
        self.renewed = False
        """Whether a client was made anew already."""
        self._deadline = deadline
        self._most = most
        self._began = time.monotonic()
        self._ends = self._began + deadline if most is None else math.inf
        self._count = 1
        self._in_a_row = 0

    def until_done(self, attempt: Callable[[], T]) -> T:
        """The result of `attempt`.  Raises the StoreError of the last failure, which says how often it was tried."""
        import tenacity

        # Not tenacity's own jitter: it draws from Python's global generator, which the user may have seeded.
        jitter, longest = random.Random(), tenacity.wait_exponential(multiplier=_FIRST, max=_LONGEST)  # noqa: S311

        def wait(state: RetryCallState) -> float:
            self._in_a_row += 1
            state = copy.copy(state)
            state.attempt_number = self._in_a_row
            return min(jitter.random() * longest(state) + self.pauses.left(), max(0.0, self._ends - time.monotonic()))

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Again), stop=self._stops, wait=wait, sleep=self._sleep, reraise=True
        )
        try:
            result: T = retrying(self._counted, attempt)
            return result
        except Again as again:
            error = again.failure.error
        raise self._told(error)

    def progressed(self) -> None:
        """Note that a part of the attempt went well: pauses are short again."""
        self._in_a_row = 0

    def hold(self) -> None:
        """Wait as long as the server wants to be left alone.

        Raises StoreError at once where that is past the deadline, or where nobody waits for the result.
        """
        if left := self.pauses.left():
            self._sleep(left)
        self.check_wanted()

    def check_wanted(self) -> None:
        """Raise StoreError where nobody waits for the result any more."""
        if not self.wanted():
            raise StoreError("reading was given up", hint="nothing waits for these bytes any more")

    def _counted(self, attempt: Callable[[], T]) -> T:
        self.hold()
        return attempt()

    def _stops(self, state: RetryCallState) -> bool:
        self._count = state.attempt_number
        failed = state.outcome.exception() if state.outcome else None
        most = FEW if isinstance(failed, Again) and failed.failure.doubtful else self._most
        return time.monotonic() >= self._ends or (most is not None and state.attempt_number >= most)

    def _sleep(self, seconds: float) -> None:
        """Wait that long, and longer where the server asks for it meanwhile."""
        until = time.monotonic() + seconds
        while (left := max(until - time.monotonic(), self._pause())) > 0:
            self.check_wanted()
            time.sleep(min(left, _SLICE))

    def _pause(self) -> float:
        """What is left of the server's pause.  Raises StoreError where that is longer than this call may wait."""
        left = self.pauses.left()
        if left == 0 or left <= min(self._deadline, self._ends - time.monotonic()):
            return left
        raise self._told(
            StoreError(
                f"{self.pauses.fact}, and asks to wait for {left:.0f} s, past the deadline of {self._deadline:g} s",
                hint="raise the storage option deadline, or send fewer requests at a time",
            )
        )

    def _told(self, error: StoreError) -> StoreError:
        """The error, which also says how often and how long it was tried."""
        if self._count > 1:
            error.fact += f" ({self._count} tries in {time.monotonic() - self._began:.3g} s)"
            error.args = (error.fact,)
        return error
