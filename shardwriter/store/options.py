"""Options of object storage: checked, and free of secrets where they are shown or pickled."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self
from urllib.parse import unquote

from ..errors import StoreError

_ALIASES: Final = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"}
_SECRETS: Final = ("key", "secret", "token", "query")
DEADLINE: Final = 120.0
"""Seconds for which reads are tried again."""
_SECRET_NAME: Final = re.compile(r"key|secret|token|pass|sas|credential|auth|^user", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """How to reach an object store; what is None or False is left to the usual places.

    `key`, `secret` and `token` are the access key id, its secret and a session token for S3; account name, account key
    and shared access signature for Azure; for Google, `token` is a bearer token; for HTTP, `key` and `secret` are user
    and password, or `token` is a bearer token.  Times are in seconds: `timeout` for a whole request, `read_timeout` for
    a pause within it, `deadline` for all tries of a read.  With `requester_pays`, S3 bills the reader and not the
    bucket's owner.
    """

    endpoint_url: str | None = None
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    region: str | None = None
    anon: bool = False
    profile: str | None = None
    path_style: bool = True
    allow_http: bool = False
    timeout: float = 3600.0
    read_timeout: float = 10.0
    connect_timeout: float = 5.0
    deadline: float = DEADLINE
    requester_pays: bool = False
    query: str = field(default="", repr=False)
    """The query of the URL, without its question mark; it may be a signature."""
    stripped: bool = False
    """Secrets were given as arguments, and left behind when the store was pickled."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Options from keyword arguments.  Raises StoreError for one that is unknown or given twice."""
        known = {f.name for f in fields(cls)} - {"query", "stripped"}
        values: dict[str, Any] = {}
        for name, value in given.items():
            plain = _ALIASES.get(name, name)
            if plain not in known:
                raise StoreError(
                    f"unknown storage option {name!r}", hint=f"known are {', '.join(sorted(known | set(_ALIASES)))}"
                )
            if plain in values:
                raise StoreError(f"the storage option {plain!r} is given twice, also as {name!r}")
            if value is not None:
                values[plain] = value
        for name in ("timeout", "read_timeout", "connect_timeout", "deadline"):
            check_seconds(name, values.get(name, 1))
        if str(values.get("endpoint_url", "")).startswith("http://"):
            values["allow_http"] = True
        return cls(**values)

    def for_reading(self) -> Self:
        """The same with times that let no try of a read go on for long after the deadline."""
        return replace(
            self,
            timeout=min(self.timeout, self.deadline),
            read_timeout=min(self.read_timeout, self.deadline),
            connect_timeout=min(self.connect_timeout, self.deadline),
        )

    def with_login(self, login: str) -> Self:
        """Fill in `user:password` of a URL where no arguments say otherwise."""
        user, _, password = login.partition(":")
        if not user or self.key is not None:
            return self
        return replace(self, key=unquote(user), secret=unquote(password))

    def with_query(self, query: str) -> Self:
        """The same with the query of the URL, which goes with every request."""
        return replace(self, query=query)

    def without_secrets(self) -> Self:
        """The same without anything that grants access."""
        if all(not getattr(self, name) for name in _SECRETS):
            return self
        return replace(self, key=None, secret=None, token=None, query="", stripped=True)

    def secrets(self) -> tuple[str, ...]:
        """What must not appear in any message."""
        return tuple(value for value in (self.secret, self.token, self.query) if value)


def check_seconds(name: str, value: Any) -> None:
    """Raise StoreError unless the option's value is a length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise StoreError(f"the storage option {name!r} is a number of seconds above 0")


def plain_only(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of fsspec without those whose names suggest a secret."""
    return {name: value for name, value in options.items() if not _SECRET_NAME.search(name)}


def secret_values(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The text values of the options that plain_only leaves out."""
    return tuple(str(v) for name, v in options.items() if _SECRET_NAME.search(name) and isinstance(v, str) and v)
