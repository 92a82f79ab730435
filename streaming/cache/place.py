"""Where a shared tier is: its URL, its options, and the service behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.context import get_spawning_popen
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from shardwriter.errors import MissingExtra, StoreError
from shardwriter.store.options import plain_only, secret_values
from shardwriter.store.urls import redact, scheme_of, trim

from .backend import Backend

REDIS: Final = frozenset({"redis", "rediss"})


@dataclass(frozen=True)
class Place:
    """URL and options, which may hold secrets: they are not shown, and only pickled for a child process to start with.

    >>> Place("redis://me:pw@host/1", {}).public
    'redis://host/1'
    """

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)

    @property
    def is_redis(self) -> bool:
        """Whether Redis's own client is needed."""
        return scheme_of(self.url) in REDIS

    @property
    def public(self) -> str:
        """The URL without user, password and query."""
        if not self.is_redis:
            return redact(trim(self.url))
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return {"url": self.url, "options": self.options}
        return {"url": self.public, "options": plain_only(self.options)}

    def clean(self, text: str) -> str:
        """What Redis's client said, without the secrets of URL and options; stores see to theirs themselves."""
        if not self.is_redis:
            return text
        rest = self.url.partition("://")[2]
        login, _, query = rest.rpartition("@")[0], *rest.partition("?")[1:]
        password = login.partition(":")[2]
        secrets = (password, unquote(password), *secret_values(dict(parse_qsl(query))), *secret_values(self.options))
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        return redact(text)

    def connect(self, limit: int | None, patience: float, now: Callable[[], float]) -> Backend:
        """A backend of this process, which connects when it is used.  Raises StoreError, MissingExtra."""
        if not self.is_redis:
            from .store_tier import StoreBackend

            return StoreBackend(self.url, self.options, limit, patience=patience, now=now)
        if find_spec("redis") is None:
            raise MissingExtra(f"{self.public} needs Redis's client", hint="pip install 'shardstream[redis]'")
        from .redis_tier import RedisBackend

        try:
            return RedisBackend(self.url, self.options, limit, patience=patience, now=now)
        except (TypeError, ValueError) as error:
            # What is wrong with a URL quotes it, and a password with it; with an option, its name.
            why = f": {error}" if isinstance(error, TypeError) else ""
            hint = "write redis://host:port/db; options are keyword arguments of redis.Redis"
            raise StoreError(f"the shared cache {self.public} can't be opened{why}", hint=hint) from None
