"""Every error that this package raises on purpose.

    ShardError
    ├── FormatError            bytes that break a rule of FORMAT.md (also a ValueError); has .rule
    │   ├── HeaderError        a tar header that is damaged or that makes no sense
    │   ├── TruncatedShard     the shard ends before its end mark
    │   ├── TrailingData       bytes other than zero follow the end mark
    │   ├── UnsupportedShard   not a tar, or a kind of tar that can't be read at random
    │   ├── GroupingError      members of a sample are apart, or one comes twice
    │   └── IndexFormatError   a sidecar or manifest that is damaged
    ├── IndexMismatch          the index and the shard (or two parts of an index) disagree
    ├── NameRefused            a key or field name that other readers would read differently (also a ValueError)
    ├── EncodeError            a value that its field can't hold (also a ValueError)
    ├── DecodeError            bytes that are not what their field says (also a ValueError)
    ├── SourceError            a dataset to convert that is not as described (also a ValueError)
    ├── DestinationError       a place to write to that already holds something (also a FileExistsError)
    ├── StoreError             storage failed (also an OSError)
    │   ├── ObjectNotFound     no such object or file (also a FileNotFoundError)
    │   └── ObjectChanged      the object is no longer the one that the index describes
    └── MissingExtra           an optional package is needed (also an ImportError)

Each carries what is known of `shard`, `key`, `field`, `offset` (bytes from the start of the shard) and `hint` (what to
do); code close to the bytes raises the bare fact, and the outermost call adds the rest once with `at()`.  All can be
pickled, and all can be made from a message alone, since torch's worker processes re-create them that way.
"""

from __future__ import annotations

from typing import Any, Self

__all__ = [
    "DecodeError",
    "DestinationError",
    "EncodeError",
    "FormatError",
    "GroupingError",
    "HeaderError",
    "IndexFormatError",
    "IndexMismatch",
    "MissingExtra",
    "NameRefused",
    "ObjectChanged",
    "ObjectNotFound",
    "ShardError",
    "SourceError",
    "StoreError",
    "TrailingData",
    "TruncatedShard",
    "UnsupportedShard",
]

_CONTEXT = ("shard", "key", "field", "offset")


class ShardError(Exception):
    """Base of all errors of shardstream.

    >>> str(ShardError("cut short", shard="a.tar", offset=512, hint="upload it again"))
    'cut short (shard a.tar, offset 512): upload it again'
    """

    def __init__(
        self,
        fact: str = "",
        *,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
        rule: str | None = None,
    ) -> None:
        super().__init__(fact)
        self.fact = fact
        self.shard = shard
        self.key = key
        self.field = field
        self.offset = offset
        self.hint = hint
        self.rule = rule

    def at(
        self,
        *,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> Self:
        """Fill in what is not known yet; what the place that raised knew better stays.  Returns the error itself."""
        self.shard = shard if self.shard is None else self.shard
        self.key = key if self.key is None else self.key
        self.field = field if self.field is None else self.field
        self.offset = offset if self.offset is None else self.offset
        self.hint = hint if self.hint is None else self.hint
        return self

    def __str__(self) -> str:
        known = [f"{name} {value}" for name in _CONTEXT if (value := getattr(self, name)) is not None]
        if self.rule is not None:
            known.append(f"rule {self.rule}")
        text = f"{self.fact} ({', '.join(known)})" if known else self.fact
        return f"{text}: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fact, {name: getattr(self, name) for name in (*_CONTEXT, "hint", "rule")})


def _rebuild(cls: type[ShardError], fact: str, context: dict[str, Any]) -> ShardError:
    return cls(fact, **context)


class FormatError(ShardError, ValueError):
    """Bytes break a rule of FORMAT.md; `rule` names it, for example "T4"."""


class HeaderError(FormatError):
    """A tar header is damaged or makes no sense."""


class TruncatedShard(FormatError):
    """The shard ends before its end mark."""


class TrailingData(FormatError):
    """Bytes other than zero follow the end mark: rubbish, or a second archive."""


class UnsupportedShard(FormatError):
    """Not a tar, or a kind of tar that shardstream does not read."""


class GroupingError(FormatError):
    """The members of a sample are apart, or one of its fields comes twice."""


class IndexFormatError(FormatError):
    """A sidecar or a manifest is damaged or of an unknown version."""


class IndexMismatch(ShardError):
    """The index and the shard, or two parts of the index, disagree."""


class NameRefused(ShardError, ValueError):
    """A key or a field name that other readers of tar shards would read differently."""


class EncodeError(ShardError, ValueError):
    """A value that its field can't hold."""


class DecodeError(ShardError, ValueError):
    """Bytes that are not what their field name says."""


class SourceError(ShardError, ValueError):
    """A dataset to convert is not as described."""


class DestinationError(ShardError, FileExistsError):
    """The place to write to already holds a dataset, or a part of one."""


class StoreError(ShardError, OSError):
    """Storage failed after all retries."""


class ObjectNotFound(StoreError, FileNotFoundError):
    """No such object or file."""


class ObjectChanged(StoreError):
    """The object is not, or no longer, the one that the index describes."""


class MissingExtra(ShardError, ImportError):
    """An optional package is needed for this; the message names the extra to install."""
