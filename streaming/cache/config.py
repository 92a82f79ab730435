"""Cache: which tiers there are, and how large."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from multiprocessing.context import get_spawning_popen
from typing import Any, Final

from shardwriter.store.options import plain_only
from shardwriter.store.urls import redact, without_password

from ..errors import PlanError

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
Size = int | str


@dataclass(frozen=True)
class Cache:
    """Tiers in which fetched chunks are kept; each is optional.

    >>> Cache(disk="/ssd/cache", disk_bytes="500GB")
    Cache(disk='/ssd/cache', disk_bytes=500000000000)
    >>> Cache(memory_bytes="64GiB", shared="redis://cache-host", shared_bytes="200GB")
    Cache(memory_bytes=68719476736, shared='redis://cache-host', shared_bytes=200000000000)

    disk           a folder of this machine that all its ranks, workers and jobs share; disk_bytes bounds what is in it
    memory_bytes   what the readers of this machine hold of fetched chunks, all together; beyond what shuffling needs,
                   it is kept for the next epoch.  Default: what shuffling needs, up to 1 GiB a reader, and nothing is
                   kept
    shared         a store nearer than the origin, for several machines: a URL of any store, a folder that they mount,
                   or redis://; shared_bytes bounds it.  shared_options: its storage options

    Sizes are bytes, or text such as "10GB" (1e9 each) or "10GiB" (2**30).  With a cache, shards in local folders are
    cached too, as those of a network file system may be.  A cache is never needed: when a tier fails, or is full,
    reading goes on without it.
    """

    disk: str | os.PathLike[str] | None = None
    disk_bytes: Size | None = None
    memory_bytes: Size | None = None
    shared: str | os.PathLike[str] | None = None
    shared_bytes: Size | None = None
    shared_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("disk_bytes", "memory_bytes", "shared_bytes"):
            object.__setattr__(self, name, _bytes(name, getattr(self, name)))
        for tier in ("disk", "shared"):
            if getattr(self, tier) is None and getattr(self, f"{tier}_bytes") is not None:
                raise PlanError(f"Cache({tier}_bytes=...) without {tier}=", hint=f"say where: Cache({tier}=...)")
        if self.shared is None and self.shared_options is not None:
            raise PlanError("Cache(shared_options=...) without shared=", hint="say where: Cache(shared=...)")
        if self.disk is not None and "://" in os.fspath(self.disk):
            raise PlanError(f"Cache(disk={self.disk!r}) is a folder of this machine", hint="use shared= for a URL")

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        plain = {name: redact(value) if isinstance(value, str) else value for name, value in shown.items()}
        return f"Cache({', '.join(f'{name}={value!r}' for name, value in plain.items() if value is not None)})"

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if get_spawning_popen() is None:  # secrets go to child processes that are being started, and nowhere else
            state["shared_options"] = None if self.shared_options is None else plain_only(self.shared_options)
            state["shared"] = without_password(self.shared) if isinstance(self.shared, str) else self.shared
        return state


def _bytes(name: str, value: Size | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise PlanError(f"Cache({name}={value!r}) is not a size", hint='bytes, or text such as "10GB" or "512MiB"')
    power = " kmgtp".index(match[2].lower() or " ")
    unit = 1024 if match[3] else 1000
    return round(float(match[1]) * float(unit) ** power)
