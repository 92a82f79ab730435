"""Ranges of remote objects: several requests in flight, and a stalled one asked for again.

>>> with Transfers() as transfers:
...     data = transfers.read(store, "x-000000.tar", 0, 4 << 20, version)

Retries, checks of length and version, and pauses that a server asks for are the store's (see Store.read_view); here is
what takes more than one request.  One that takes much longer than others do is asked for a second time, over another
connection, and the first answer counts: a connection that stalls would otherwise hold everything up until its time-out.
What has not come at the store's deadline is an error.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import RLock
from typing import Final, Self

from shardwriter.errors import StoreError
from shardwriter.store import Store, join_url

from .cache.memory import CLOSED
from .own_threads import OURS
from .stats import Counters

REQUESTS: Final = 16
"""Requests in flight for one reader."""
HEDGES: Final = 4
"""Requests that are made again, at a time."""
PART: Final = 8 << 20
"""Largest range of one request."""
RAMP: Final = (1 << 20, 1 << 20, 2 << 20, 2 << 20)
"""Parts of the first reads, when there is little else to be in flight, so that the first batch is there sooner."""
FIRST_HEDGE: Final = 3.0
"""Seconds after which a request is made again while it is not known how long they take."""
LEAST_HEDGE: Final = 1.0
"""Never sooner than this, in seconds, ..."""
SLOW: Final = 4.0
"""... and only after so many times the usual time."""
FREE_HEDGES: Final = 4
"""Requests that may be made again at once; above that, one of HEDGE_SHARE: a server that is slow in all it does gets no
more to do.
"""
HEDGE_SHARE: Final = 20
KNOWN: Final = 8
GRACE: Final = 5.0
"""Seconds behind the deadline in which the store may still say what was wrong."""


class Part:
    """A range that is being asked for, once or twice."""

    def __init__(self, store: Store, name: str, low: int, high: int, version: str | None) -> None:
        self.store, self.name, self.low, self.high, self.version = store, name, low, high, version
        self.started: float | None = None
        """When the first request went out; before that it waits for its turn."""
        self.requests: list[Future[memoryview]] = []

    @property
    def settled(self) -> bool:
        """Whether the bytes are there, or will not come."""
        return self.come or all(request.done() for request in self.requests)

    @property
    def come(self) -> bool:
        """Whether the bytes are there."""
        return any(_succeeded(request) for request in self.requests)

    @property
    def age(self) -> float:
        """Seconds since the first request went out."""
        return 0.0 if self.started is None else time.monotonic() - self.started

    def wait(self, seconds: float) -> None:
        """Wait until one more request is done, or so many seconds."""
        if len(self.requests) > 1:
            wait([r for r in self.requests if not r.done()], timeout=seconds, return_when=FIRST_COMPLETED)
            return
        with suppress(TimeoutError, CancelledError):
            self.requests[0].exception(timeout=seconds)

    def result(self) -> memoryview:
        """The bytes; where none came, the error of the first request."""
        request = next((r for r in self.requests if _succeeded(r)), self.requests[0])
        if request.cancelled():
            raise StoreError(CLOSED)
        return request.result()

    def check(self) -> None:
        """Raise StoreError behind the deadline: the store keeps it itself; this is for a request that just hangs."""
        deadline = getattr(self.store, "deadline", None)
        if deadline is not None and self.age > deadline + GRACE:
            raise StoreError(
                f"nothing came in {self.age:.0f} seconds",
                shard=join_url(self.store.url, self.name),
                offset=self.low,
                hint="check the network, or raise the storage option deadline",
            )


class Transfers:
    """Requests of one reader.  Close it, or use it in a `with`; safe to share between threads."""

    def __init__(self, counters: Counters | None = None) -> None:
        self._counters = counters or Counters()
        self._lock = RLock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._closed = False
        self._usual: deque[float] = deque(maxlen=64)
        """Seconds that the last requests took."""
        self._reads = self._asked = self._hedged = 0

    def read(self, store: Store, name: str, low: int, high: int, version: str | None) -> memoryview:
        """The bytes [low, high) of an object, several parts of it at a time where that is sooner.

        Raises StoreError, ObjectChanged, ObjectNotFound.
        """
        size = self._part_size()
        parts = [
            self.ask(store, name, at, min(at + size, high), version) for at in range(low, max(high, low + 1), size)
        ]
        if len(parts) == 1:
            return self.wait(parts[0])
        whole = memoryview(bytearray(high - low))
        for part in parts:
            whole[part.low - low : part.high - low] = self.wait(part)
        return whole.toreadonly()

    def ask(self, store: Store, name: str, low: int, high: int, version: str | None) -> Part:
        """Begin to ask for the bytes [low, high); `wait` has them."""
        part = Part(store, name, low, high, version)
        with self._lock:
            self._asked += 1
        part.requests.append(self._pool("read", REQUESTS).submit(self._request, part))
        return part

    def wait(self, part: Part) -> memoryview:
        """The bytes of a part.  Raises as read."""
        while not part.settled:
            if self._closed:
                raise StoreError(CLOSED)
            part.check()
            left = self._patience() - part.age
            if len(part.requests) > 1 or left > 0:
                part.wait(min(left, LEAST_HEDGE) if left > 0 else LEAST_HEDGE)
            elif not self._again(part):
                part.wait(LEAST_HEDGE)
        return part.result()

    def _request(self, part: Part) -> memoryview:
        began = time.monotonic()
        part.started = part.started or began
        data = part.store.read_view(
            part.name, part.low, part.high, version=part.version, wanted=lambda: self._wants(part)
        )
        with self._lock:
            self._usual.append(time.monotonic() - began)
        self._counters.add("fetched", len(data))
        return data

    def _wants(self, part: Part) -> bool:
        return not self._closed and not part.come

    def _patience(self) -> float:
        """Seconds after which a request is made again."""
        with self._lock:
            known = sorted(self._usual)
        return max(LEAST_HEDGE, SLOW * known[len(known) // 2]) if len(known) >= KNOWN else FIRST_HEDGE

    def _again(self, part: Part) -> bool:
        """Ask for a part a second time, where that is allowed."""
        with self._lock:
            allowed = self._hedged < FREE_HEDGES + self._asked // HEDGE_SHARE
            self._hedged += allowed
        if allowed:
            self._counters.add("hedged", 1)
            part.requests.append(self._pool("again", HEDGES).submit(self._request, part))
        return allowed

    def _part_size(self) -> int:
        with self._lock:
            read, self._reads = self._reads, self._reads + 1
        return RAMP[read] if read < len(RAMP) else PART

    def _pool(self, name: str, size: int) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise StoreError(CLOSED)
            if name not in self._pools:
                self._pools[name] = ThreadPoolExecutor(size, thread_name_prefix=f"{OURS}{name}")
            return self._pools[name]

    def stop(self) -> None:
        """Try nothing again, and ask for nothing more."""
        self._closed = True

    def close(self) -> None:
        """End the threads.  Requests that are under way are not tried again; one that stalls is not waited for, and
        its thread ends with its time-out.
        """
        with self._lock:
            self._closed = True
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _succeeded(request: Future[memoryview]) -> bool:
    return request.done() and not request.cancelled() and request.exception() is None
