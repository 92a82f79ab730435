"""Places for a shared tier of the cache, of each kind, and what lies in them seen past the tier."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import mock

from valkey_server import ValkeyServer

from shardwriter.store import Store, open_store
from streaming.cache import redis_tier, store_tier
from streaming.cache.place import Place
from streaming.cache.sealed import FOOTER_BYTES
from streaming.cache.shared import SharedTier

DATA: Final = random.Random(0).randbytes(50_000)
STORED: Final = len(DATA) + FOOTER_BYTES
"""Bytes of DATA with its footer."""


class Raw(Protocol):
    """What lies under the tier, seen past it."""

    def keys(self) -> set[str]:
        """Names of all entries and all that is foreign."""

    def read(self, name: str) -> bytes:
        """The bytes of an entry as they are stored."""

    def damage(self, name: str, data: bytes) -> None:
        """Replace what is stored of an entry."""

    def add_foreign(self) -> set[str]:
        """Store things of other names, which the tier must leave alone; their names."""


class RawStore:
    """A folder or a bucket."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def keys(self) -> set[str]:
        """As Raw."""
        names = {info.name for info in self.store.list()}
        return {name.removesuffix(store_tier.SUFFIX) for name in names if not name.endswith(store_tier.MARK)}

    def read(self, name: str) -> bytes:
        """As Raw."""
        return self.store.read(name + store_tier.SUFFIX)

    def damage(self, name: str, data: bytes) -> None:
        """As Raw."""
        self.store.write(name + store_tier.SUFFIX, data)

    def add_foreign(self) -> set[str]:
        """As Raw."""
        names = {"notes.txt", "old/notes.txt", "old/deep/x", "Photos/a.jpg", "photos/.hidden"}
        for name in names:
            self.store.write(name, DATA)
        return names


class RawValkey:
    """A database of a Valkey server."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def keys(self) -> set[str]:
        """As Raw."""
        names = {name.decode() for name in self.client.scan_iter()}
        ours = {name.removeprefix(redis_tier.CHUNK) for name in names if name.startswith(redis_tier.CHUNK)}
        return ours | {name for name in names if not name.startswith(redis_tier.PREFIX)}

    def read(self, name: str) -> bytes:
        """As Raw."""
        data: bytes = self.client.get(redis_tier.CHUNK + name)
        return data

    def damage(self, name: str, data: bytes) -> None:
        """As Raw."""
        self.client.set(redis_tier.CHUNK + name, data)

    def add_foreign(self) -> set[str]:
        """As Raw."""
        names = {"old/a", "chunk:old/a", "shardstream"}
        for name in names:
            self.client.set(name, DATA)
        return names


class Where:
    """A place for a shared tier, empty at first; tiers that a test opens are closed with it."""

    def __init__(self, url: str, options: Mapping[str, Any], raw: Raw) -> None:
        self.url, self.options, self.raw = url, options, raw
        self._opened: list[SharedTier] = []

    def open(self, limit: int | None = None, *, now: Callable[[], float] | None = None) -> SharedTier:
        """A tier there; `now` is its clock."""
        place = Place(self.url, self.options)
        tier = SharedTier(place, limit, patience=10.0, **({} if now is None else {"now": now}))
        self._opened.append(tier)
        return tier

    def put(self, *names: str, limit: int | None = None, now: Callable[[], float] | None = None) -> dict[str, int]:
        """Put DATA under each name, wait until that is done, and tell what was counted."""
        tier = self.open(limit, now=now)
        for name in names:
            tier.put(name, DATA)
        tier.close(wait=True)
        return tier.counters()

    def close(self) -> None:
        """Close all tiers that were opened."""
        for tier in self._opened:
            tier.close(wait=False)

    def sent_to_child(self, limit: int | None = None) -> str:
        """A pickled tier as a child process gets it when it is started, secrets and all, in hexadecimal digits."""
        with mock.patch("streaming.cache.place.get_spawning_popen", return_value=True):
            return pickle.dumps(self.open(limit)).hex()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_700_000_000.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.at


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Where]:
    """A folder that is not there yet."""
    with contextlib.closing(Where(str(path), {}, RawStore(open_store(path)))) as where:
        yield where


@contextlib.contextmanager
def bucket(s3: Any) -> Iterator[Where]:
    """A part of a fresh bucket of an S3 server."""
    url = s3.bucket("shared") + "/cache"
    with contextlib.closing(Where(url, s3.options, RawStore(open_store(url, s3.options)))) as where:
        yield where


@contextlib.contextmanager
def database(server: ValkeyServer) -> Iterator[Where]:
    """A database of a Valkey server, emptied."""
    url = f"redis://127.0.0.1:{server.port}/0"
    with server.client() as client:
        client.flushall()
        with contextlib.closing(Where(url, {"password": server.password}, RawValkey(client))) as where:
            yield where
