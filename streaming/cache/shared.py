"""The shared tier: whole chunks in a place that several machines reach, nearer than the origin.

>>> shared = open_shared("redis://cache-host", limit=50 << 30)
>>> shared.put("3c6e0b8a9c15224a/0-3fd9c0", data)
>>> bytes(shared.get("3c6e0b8a9c15224a/0-3fd9c0", len(data))) == data
True
>>> shared.close(wait=True)

It is never needed.  Whatever fails, or takes longer than `patience`, is a miss: after one warning of a kind the service
is left alone for 5 s, then 10, 20 and so on up to 5 minutes, until it works again.  What is kept stays until room is
needed, and room is only made by dropping groups that no job has used for a day.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock
from typing import Any, Final, TypeVar

from shardwriter.format import Buffer

from .backend import HOUR, NAME, Backend, Fault
from .background import Background
from .place import Place
from .resting import Rest
from .sealed import FOOTER_BYTES, seal, unseal

T = TypeVar("T")

log = logging.getLogger("shardstream")

PATIENCE: Final = 2.0
"""Seconds to wait for an entry: the origin would be as quick."""
QUEUED: Final = 64 << 20
"""Bytes that wait to be stored, at most."""
COUNTERS: Final = (
    "hits", "misses", "stored", "refused", "failed", "damaged", "dropped", "evicted", "hit_bytes", "stored_bytes",
)  # fmt: skip


def open_shared(
    url: str | os.PathLike[str],
    limit: int | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    patience: float = PATIENCE,
) -> SharedTier:
    """The shared tier at `url`; nothing is connected yet.

    >>> open_shared("s3://near/cache", limit=500 << 30), open_shared("/nfs/cache"), open_shared("rediss://me:pw@host/1")
    (<shared tier s3://near/cache>, <shared tier /nfs/cache>, <shared tier rediss://host/1>)

    url        of any store that can be written to, a folder, redis:// or rediss:// (Redis and Valkey)
    limit      bytes that all machines together keep there; None for no limit
    options    storage options, or keyword arguments of redis.Redis
    patience   seconds that `get` waits before it is a miss, through the time-outs of the client; a folder has none

    Raises StoreError for a URL or an option that is not known, MissingExtra where the client is not installed.
    """
    return SharedTier(Place(os.fspath(url), dict(options or {})), limit, patience=patience)


class _Here:
    """What a tier has in one process: connections, a thread, counts."""

    def __init__(self, backend: Backend, steady: Callable[[], float]) -> None:
        self.backend: Backend | None = backend
        self.background = Background(QUEUED)
        # Apart, since what may not be written to, or is full, can still be read from.
        self.reading, self.writing = Rest(steady), Rest(steady)
        self.groups: dict[str, str] = {}
        """Groups that are used, with their labels ..."""
        self.marked = 0.0
        """... and when that was last noted for others to see."""
        self._evicted = 0
        # Whoever is collected can count too, and collection can happen while the lock is held.
        self._lock = RLock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._warned: set[str] = set()

    def count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def counts(self) -> dict[str, int]:
        with self._lock:
            return self._counts | {"evicted": self._evicted + (0 if self.backend is None else self.backend.evicted)}

    def is_first(self, kind: str) -> bool:
        """Whether nobody has been warned of this yet."""
        with self._lock:
            first = kind not in self._warned
            self._warned.add(kind)
            return first

    def close(self, following: Backend | None = None) -> None:
        backend, self.backend = self.backend, following
        if backend is not None:
            self._evicted += backend.evicted
            backend.close()


class SharedTier:
    """Chunks by name, "group/entry" of the letters 0-9a-z.- each; safe to share between threads.

    Pickled, it is URL, limit and options, without what grants access unless a child process is being started with it;
    there, and in a forked child, it starts anew with connections, thread and counts of its own.
    """

    def __init__(
        self,
        place: Place,
        limit: int | None,
        *,
        patience: float = PATIENCE,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url: str = place.public
        self._place = place
        self._limit = limit
        self._patience = patience
        self._clocks = now, steady
        self._processes: dict[int, _Here] = {}
        self._here()

    def __repr__(self) -> str:
        return f"<shared tier {self.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._place, self._limit, self._patience)

    def get(self, name: str, size: int) -> memoryview | None:
        """The `size` bytes of an entry, checked, or None where they can't be had now.

        One that is not whole is as good as none, and removed.
        """
        _check(name)
        here = self._here()
        backend, attempt = here.backend, here.reading.begin()
        if backend is None or attempt is None:
            here.count(misses=1)
            return None
        started = time.monotonic()
        try:
            found = backend.get(name, size + FOOTER_BYTES)
        except Fault as fault:
            here.count(misses=1)
            self._failed(here, fault, here.reading, attempt)
            return None
        took = time.monotonic() - started
        if took <= self._patience:
            here.reading.worked(attempt)
        else:
            self._failed(here, Fault("slow", f"{size} bytes took {took:.1f} s"), here.reading, attempt)
        data = None if found is None else unseal(found, size=size, verify=True)
        if data is not None:
            here.count(hits=1, hit_bytes=size)
            return data
        here.count(misses=1)
        if found is not None:
            here.count(damaged=1)
            self._warn(here, "damaged", f"{name} was not whole: it is fetched from its origin and stored again")
            here.background.submit(partial(self._write, here, lambda backend: backend.delete(name)))
        return None

    def put(self, name: str, data: Buffer) -> None:
        """Have an entry stored by and by, if there is room and it is not there; `data` must not change meanwhile.

        Where the service rests, or is so slow that 64 MB wait to be stored, the entry is left out.
        """
        _check(name)
        here = self._here()
        view = memoryview(data).cast("B")
        if here.writing.is_resting() or not here.background.has_room(len(view)):
            here.count(dropped=1)
            return
        footer = seal(view)  # here, so that data that does change is found not to be whole
        if not here.background.submit(partial(self._store, here, name, view, footer), len(view)):
            here.count(dropped=1)

    def use(self, group: str, label: str = "") -> None:
        """Note, by and by, that a job uses the group; `label` says to people what it is."""
        _check(f"{group}/x")
        here = self._here()
        here.groups[group] = label
        self._mark(here, group, label)

    def counters(self) -> dict[str, int]:
        """What happened in this process: COUNTERS by name; misses hold all that were no hits, whatever the reason."""
        return self._here().counts()

    def rest(self) -> None:
        """Store what was put, end the thread and let go of connections; all start anew when they are needed."""
        here = self._here()
        here.count(dropped=here.background.close(wait=True))
        here.background = Background(QUEUED)
        here.close(self._connect() if here.backend is not None else None)

    def close(self, wait: bool = True) -> None:
        """End the thread and let go of connections; with `wait`, what was put is stored first.  Then all is a miss."""
        here = self._here()
        here.count(dropped=here.background.close(wait=wait))
        here.close()

    def _here(self) -> _Here:
        pid = os.getpid()
        here = self._processes.get(pid)
        if here is None:
            made = _Here(self._connect(), self._clocks[1])
            here = self._processes.setdefault(pid, made)  # those of a parent process stay: their sockets are its own
        now = self._clocks[0]()
        if here.groups and now - here.marked >= HOUR:
            for group, label in list(here.groups.items()):
                self._mark(here, group, label)
        return here

    def _connect(self) -> Backend:
        return self._place.connect(self._limit, self._patience, self._clocks[0])

    def _mark(self, here: _Here, group: str, label: str) -> None:
        here.marked = self._clocks[0]()
        here.background.submit(partial(self._write, here, lambda backend: backend.use(group, label)))

    def _store(self, here: _Here, name: str, data: memoryview, footer: bytes) -> None:
        """In the background: store one entry."""
        result = self._write(here, lambda backend: backend.put(name, b"".join((data, footer))))
        if result is None:
            here.count(dropped=1)
        elif result == "refused":
            here.count(refused=1)
        elif result == "stored":
            here.count(stored=1, stored_bytes=len(data))

    def _write(self, here: _Here, action: Callable[[Backend], T]) -> T | None:
        """In the background: do something, unless the service rests; None where that or the service fails."""
        backend, attempt = here.backend, here.writing.begin()
        if backend is None or attempt is None:
            return None
        try:
            result = action(backend)
        except Fault as fault:
            self._failed(here, fault, here.writing, attempt)
            return None
        here.writing.worked(attempt)
        return result

    def _failed(self, here: _Here, fault: Fault, rest: Rest, attempt: int) -> None:
        here.count(failed=1)
        seconds = rest.failed(attempt)
        what = "stored in" if rest is here.writing else "read from"
        pause = "" if seconds is None else f" nothing is {what} it for {seconds:.0f} s, then longer;"
        self._warn(here, fault.kind, f"{fault};{pause} reading goes on without it")

    def _warn(self, here: _Here, kind: str, text: str) -> None:
        if here.is_first(kind):
            log.warning("the shared cache %s: %s", self.url, self._place.clean(text))


def _again(place: Place, limit: int | None, patience: float) -> SharedTier:
    return SharedTier(place, limit, patience=patience)


def _check(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not group/entry, of 1 to 80 of 0-9a-z.- each, the first no . or -")
