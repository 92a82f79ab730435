"""A shared tier in a store: a bucket, or a folder that several machines mount.

    <url>/<group>/<entry>.shardstream    data and footer
    <url>/<group>/.used                  when a job last used the group, and what it is

Objects of any other name are never touched, nor counted.  Several machines share a limit without talking to each other:
each counts all objects when it first stores one and every ten minutes, and its own in between, so what others store
meanwhile can come on top of the limit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from shardwriter.errors import ObjectNotFound, ShardError
from shardwriter.format import Buffer
from shardwriter.store import open_store
from shardwriter.store.base import is_temporary
from shardwriter.store.opening import OBSTORE
from shardwriter.store.urls import scheme_of

from .backend import DAY, HOUR, NAME, RECOUNT, WRITING, Fault, Put

SUFFIX: Final = ".shardstream"
MARK: Final = "/.used"
SPARE: Final = 1 << 30
"""Room that is made at a time, at most, so that it doesn't take long."""
_ANSWERED: Final = re.compile(r"answered (\d{3})")
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class StoreBackend:
    """As Backend, over a Store.

    The tries of `get` end after half of `patience`, and the last one can take the other half.  A folder has no
    time-outs, so a network file system that hangs is waited for.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None,
        limit: int | None,
        *,
        patience: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.evicted = 0
        self._reading = open_store(url, _patient(url, options or {}, patience / 2))
        self._writing = open_store(url, _patient(url, options or {}, patience * WRITING))
        self._limit = limit
        self._patience = patience
        self._now = now
        self._marked: dict[str, float] = {}
        """When this process last marked a group as used."""
        self._labels: dict[str, str] = {}
        self._total = 0
        self._counted = self._sought = float("-inf")

    def get(self, name: str, size: int) -> Buffer | None:
        """As Backend."""
        started = time.monotonic()
        try:
            return self._reading.read_view(name + SUFFIX, 0, size)
        except ObjectNotFound:
            return None
        except ShardError as error:
            fault = _fault(error)
        # An object that was cut short is no fault of the store; not asked where it takes long to answer.
        if time.monotonic() - started < self._patience / 2 and self._has_other_size(name, size):
            return b""
        raise fault

    def put(self, name: str, data: bytes) -> Put:
        """As Backend."""
        group = name.partition("/")[0]
        try:
            if self._is_there(name + SUFFIX):
                return "present"
            if not self._fits(len(data), group):
                return "refused"
            if self._now() - self._marked.get(group, float("-inf")) > HOUR:
                self._mark(group)
            self._writing.write(name + SUFFIX, data)
        except ShardError as error:
            raise _fault(error) from None
        self._total += len(data)
        return "stored"

    def delete(self, name: str) -> None:
        """As Backend."""
        try:
            self._writing.delete(name + SUFFIX)
        except ShardError as error:
            raise _fault(error) from None

    def use(self, group: str, label: str) -> None:
        """As Backend."""
        self._labels[group] = label
        try:
            self._mark(group)
        except ShardError as error:
            raise _fault(error) from None

    def close(self) -> None:
        """As Backend: the clients close their connections when nothing refers to them any more."""

    def _has_other_size(self, name: str, size: int) -> bool:
        try:
            return self._reading.info(name + SUFFIX).size != size
        except ShardError:
            return False

    def _is_there(self, key: str) -> bool:
        try:
            self._writing.info(key)
        except ObjectNotFound:
            return False
        return True

    def _mark(self, group: str) -> None:
        now = self._now()
        text = json.dumps({"shardstream": 1, "used": now, "label": self._labels.get(group, "")})
        self._writing.write(group + MARK, text.encode())
        self._marked[group] = now

    def _fits(self, size: int, group: str) -> bool:
        """Whether there is room, made by dropping groups where need be."""
        if self._limit is None:
            return True
        if size > self._limit:
            return False
        now = self._now()
        if now - self._counted >= RECOUNT:
            self._count()
        if self._total + size > self._limit and now - self._sought >= RECOUNT:
            self._make_room(size, group)
        return self._total + size <= self._limit

    def _count(self) -> dict[str, dict[str, int]]:
        """Sizes of all entries by group and key; notes their total."""
        groups: dict[str, dict[str, int]] = {}
        for info in self._writing.list():
            stem = info.name.removesuffix(SUFFIX)
            if stem != info.name and NAME.fullmatch(stem):
                groups.setdefault(stem.partition("/")[0], {})[info.name] = info.size
            elif info.name.endswith(MARK) and NAME.fullmatch(info.name):
                groups.setdefault(info.name.removesuffix(MARK), {})
        self._total = sum(sum(sizes.values()) for sizes in groups.values())
        self._counted = self._now()
        if self._writing.path is not None:
            _sweep(self._writing.path, groups)
        return groups

    def _make_room(self, size: int, own: str) -> None:
        """Drop groups that nobody has used for a day, the least recently used first, until there is room for a while.

        Where that is not enough, the next try is in ten minutes.
        """
        limit = self._limit or 0
        enough = max(limit - min(limit // 16, SPARE), 0)
        groups = self._count()
        last = {group: used for group in groups if group != own and (used := self._last_use(group)) is not None}
        for group in sorted(last, key=lambda group: last[group]):
            if self._now() - last[group] < DAY:
                break
            for key, length in groups[group].items():
                if self._total + size <= enough:
                    return
                self._writing.delete(key)
                self._total -= length
                self.evicted += 1
            if self._last_use(group) == last[group]:
                self._writing.delete(group + MARK)
        self._sought = self._now()

    def _last_use(self, group: str) -> float | None:
        """When a group was last used; None where this process uses it, or it is not ours.

        One without a mark is given one, so that it can be dropped a day from now.
        """
        if group in self._marked or group in self._labels:
            return None
        try:
            mark = json.loads(self._writing.read(group + MARK))
            return float(mark["used"]) if "shardstream" in mark else None
        except ObjectNotFound:
            self._mark(group)
            return self._marked.pop(group)
        except (ValueError, TypeError, KeyError):
            return None


def _patient(url: str, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Options of a store that waits so long for an answer, where they don't say otherwise."""
    times = ("timeout", "read_timeout", "connect_timeout") if scheme_of(url) in OBSTORE else ()
    return dict.fromkeys((*times, "deadline"), seconds) | dict(options)


def _fault(error: ShardError) -> Fault:
    """What an error of a store means for the tier."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno is not None:
        return Fault("full" if cause.errno in _NO_ROOM else errno.errorcode.get(cause.errno, "failed"), str(error))
    answered = _ANSWERED.search(error.fact)
    return Fault(answered[0] if answered else "failed", str(error))


def _sweep(folder: Path, groups: Mapping[str, object]) -> None:
    """Remove what writers of our groups that were killed have left in a folder."""
    for group in groups:
        try:
            with os.scandir(folder / group) as found:
                old = [each for each in found if is_temporary(each.name) and _age(each) > DAY]
            for each in old:
                os.unlink(each.path)
        except OSError:
            continue  # somebody else's, or gone meanwhile: it can wait


def _age(entry: os.DirEntry[str]) -> float:
    return time.time() - entry.stat(follow_symlinks=False).st_mtime
