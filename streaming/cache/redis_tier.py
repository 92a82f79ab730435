"""A shared tier in Redis or Valkey.

    shardstream:chunk:<group>/<entry>    data and footer
    shardstream:sizes:<group>            hash: bytes of each entry
    shardstream:bytes                    hash: bytes of each group; their sum is what a limit bounds
    shardstream:used                     hash: when a job last used each group, seconds since 1970
    shardstream:label                    hash: what each group is

Keys of any other name are never touched.  An entry and its account change in one transaction, so a client that is
killed leaves both or none.  Where the server itself drops keys (maxmemory), the account is set right by a count of all
entries, every ten minutes; until then a limit can be missed, or hold for less than it says.  Room is looked for just
before an entry is sent: what several machines send at the same moment can come on top of the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from shardwriter.format import Buffer

from .backend import DAY, HOUR, NAME, RECOUNT, WRITING, Fault, Put

if TYPE_CHECKING:
    from redis import Redis
    from redis.client import Pipeline

PREFIX: Final = "shardstream:"
CHUNK: Final = PREFIX + "chunk:"
SIZES: Final = PREFIX + "sizes:"
BYTES: Final = PREFIX + "bytes"
USED: Final = PREFIX + "used"
LABEL: Final = PREFIX + "label"
COUNTING: Final = PREFIX + "counting"
"""There while one client counts, or has just counted: one is enough."""
_PAGE: Final = 1000
_READ: Final = 1 << 18
"""Bytes of one read of a socket: 64 KiB take the client written in Python half as long again."""
_ACCOUNT: Final = """
local change = 0
for i = 2, #ARGV do
    local old = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or 0)
    local new = redis.call('STRLEN', KEYS[i + 1])
    if new > 0 then
        redis.call('HSET', KEYS[1], ARGV[i], new)
    else
        redis.call('HDEL', KEYS[1], ARGV[i])
    end
    change = change + new - old
end
return redis.call('HINCRBY', KEYS[2], ARGV[1], change)
"""
"""Set the account of some entries of a group right; keys: sizes, bytes, entries; arguments: group, entries."""
_SUM: Final = """
local total = 0
for _, size in ipairs(redis.call('HVALS', KEYS[1])) do total = total + tonumber(size) end
if total == 0 then return redis.call('HDEL', KEYS[2], ARGV[1]) end
return redis.call('HSET', KEYS[2], ARGV[1], total)
"""
"""Set the account of a group right where those of its entries are; keys: sizes, bytes; argument: group."""
_DROP: Final = """
if (redis.call('HGET', KEYS[3], ARGV[1]) or '') ~= ARGV[2] then return 0 end
local entries = redis.call('HKEYS', KEYS[1])
for _, entry in ipairs(entries) do redis.call('UNLINK', ARGV[3] .. entry) end
redis.call('UNLINK', KEYS[1])
for i = 2, 4 do redis.call('HDEL', KEYS[i], ARGV[1]) end
return #entries
"""
"""Drop a group, unless it was used since; keys: sizes, bytes, used, label; arguments: group, last use, prefix."""


class RedisBackend:
    """As Backend, over one database of a server.

    Connecting and each wait for bytes may take half of `patience`, so that `get` takes no longer than that.  Raises
    ValueError or TypeError for a URL or options that the client refuses; nothing is connected yet.
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
        self._reading = _client(url, options or {}, patience / 2)
        self._writing = _client(url, options or {}, patience * WRITING)
        self._limit = limit
        self._now = now
        self._marked: dict[str, float] = {}
        """When this process last marked a group as used."""
        self._counted = float("-inf")

    def get(self, name: str, size: int) -> Buffer | None:  # noqa: ARG002
        """As Backend."""
        with _faults():
            found = self._reading.get(CHUNK + name)
        return found if isinstance(found, bytes) else None

    def put(self, name: str, data: bytes) -> Put:
        """As Backend."""
        group, _, entry = name.partition("/")
        with _faults():
            if self._writing.exists(CHUNK + name):
                return "present"
            if not self._fits(len(data), group):
                return "refused"
            with self._writing.pipeline(transaction=True) as pipe:
                pipe.set(CHUNK + name, data)
                _account(pipe, group, [entry])
                if self._now() - self._marked.get(group, float("-inf")) > HOUR:
                    self._mark(pipe, group)
                pipe.execute()
        return "stored"

    def delete(self, name: str) -> None:
        """As Backend."""
        group, _, entry = name.partition("/")
        with _faults(), self._writing.pipeline(transaction=True) as pipe:
            pipe.unlink(CHUNK + name)
            _account(pipe, group, [entry])
            pipe.execute()

    def use(self, group: str, label: str) -> None:
        """As Backend."""
        with _faults(), self._writing.pipeline(transaction=True) as pipe:
            self._mark(pipe, group)
            pipe.hset(LABEL, group, label)
            pipe.execute()

    def close(self) -> None:
        """As Backend."""
        for client in (self._reading, self._writing):
            client.connection_pool.disconnect(inuse_connections=False)

    def _mark(self, pipe: Pipeline, group: str) -> None:
        now = self._now()
        pipe.hset(USED, group, repr(now))
        self._marked[group] = now

    def _fits(self, size: int, group: str) -> bool:
        """Whether there is room, made by dropping groups where need be."""
        if self._limit is None:
            return True
        if size > self._limit:
            return False
        now = self._now()
        if now - self._counted >= RECOUNT:
            self._counted = now
            self._count()
        return self._total() + size <= self._limit or self._make_room(size, group)

    def _total(self) -> int:
        return sum(int(each) for each in self._writing.hvals(BYTES))

    def _make_room(self, size: int, own: str) -> bool:
        """Drop groups that nobody has used for a day, the least recently used first, until `size` bytes fit."""
        now = self._now()
        used = {_text(group): when for group, when in self._writing.hgetall(USED).items()}
        for raw in self._writing.hkeys(BYTES):
            group = _text(raw)
            if group not in used:  # the server has dropped the mark: a day from now on
                self._writing.hsetnx(USED, group, repr(now))
        idle = sorted((float(when), group, when) for group, when in used.items() if group not in self._marked)
        for last, group, when in idle:
            if now - last < DAY or group == own:
                continue
            keys = (SIZES + group, BYTES, USED, LABEL)
            self.evicted += int(self._writing.eval(_DROP, len(keys), *keys, group, when, f"{CHUNK}{group}/"))
            if self._total() + size <= (self._limit or 0):
                return True
        return False

    def _count(self) -> None:
        """Set the account right by what is there, unless another client does or has just done so."""
        if not self._writing.set(COUNTING, 1, nx=True, ex=round(RECOUNT)):
            return
        groups: dict[str, set[str]] = {_text(raw): set() for raw in self._writing.hkeys(BYTES)}
        for raw in self._writing.scan_iter(match=CHUNK + "*", count=_PAGE):
            name = _text(raw).removeprefix(CHUNK)
            if NAME.fullmatch(name):
                group, _, entry = name.partition("/")
                groups.setdefault(group, set()).add(entry)
        for group, found in groups.items():
            known = {_text(raw) for raw in self._writing.hkeys(SIZES + group)}
            entries = sorted(found | known)
            for start in range(0, len(entries), _PAGE):
                _account(self._writing, group, entries[start : start + _PAGE])
            self._writing.eval(_SUM, 2, SIZES + group, BYTES, group)


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")


def _account(client: Redis | Pipeline, group: str, entries: list[str]) -> None:
    keys = [SIZES + group, BYTES, *(f"{CHUNK}{group}/{entry}" for entry in entries)]
    client.eval(_ACCOUNT, len(keys), *keys, group, *entries)


def _client(url: str, options: Mapping[str, Any], seconds: float) -> Redis:
    from redis import ConnectionPool, Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as Broken
    from redis.retry import Retry

    settings: dict[str, Any] = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "socket_read_size": _READ,
        "socket_keepalive": True,
        "protocol": 2,  # one answer less to wait for when connecting
        # A connection that was idle for long may be gone; whatever else fails is not tried again.
        "retry": Retry(NoBackoff(), 1, supported_errors=(Broken,)),
        "retry_on_error": [Broken],
    }
    pool = ConnectionPool.from_url(url, **(settings | dict(options)))
    pool.make_connection()  # connects nothing, and raises TypeError for an option that is not known
    return Redis(connection_pool=pool)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn what the client raises into Fault."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, ValueError) as error:
        raise _fault(error) from None


def _fault(error: Exception) -> Fault:
    """What an error of the client means for the tier."""
    from redis import exceptions as of

    kinds: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        ((of.AuthenticationError, of.AuthorizationError), "login"),
        (of.NoPermissionError, "permission"),
        (of.OutOfMemoryError, "full"),
        (of.ReadOnlyError, "read-only"),
        ((of.TimeoutError, TimeoutError), "slow"),
        ((of.ConnectionError, OSError), "unreachable"),
    ]
    return Fault(next((kind for types, kind in kinds if isinstance(error, types)), "failed"), str(error))
