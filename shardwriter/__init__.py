"""Datasets into sequential WebDataset tar shards, each with an index beside it.

>>> from shardwriter import convert, sources
>>> convert(sources.table("cc3m/train.tsv", columns=["txt", "jpg"], root="cc3m/images"), "s3://bucket/cc3m", workers=16)

Names are loaded when they are first used, so importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import sources
    from .conversion import convert
    from .errors import (
        DecodeError,
        DestinationError,
        EncodeError,
        FormatError,
        GroupingError,
        HeaderError,
        IndexFormatError,
        IndexMismatch,
        MissingExtra,
        NameRefused,
        ObjectChanged,
        ObjectNotFound,
        ShardError,
        SourceError,
        StoreError,
        TrailingData,
        TruncatedShard,
        UnsupportedShard,
    )
    from .index import index_shards
    from .verify import verify_shards
    from .writer import ShardWriter

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
    "ShardWriter",
    "SourceError",
    "StoreError",
    "TrailingData",
    "TruncatedShard",
    "UnsupportedShard",
    "convert",
    "index_shards",
    "sources",
    "verify_shards",
]

_MODULES = {"ShardWriter": "writer", "convert": "conversion", "index_shards": "index", "verify_shards": "verify"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "sources":
        return import_module(".sources", __name__)
    value = getattr(import_module(f".{_MODULES.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
