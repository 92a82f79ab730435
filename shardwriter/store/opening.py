"""From a URL to its store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..errors import StoreError
from .base import Store
from .local import LocalStore
from .urls import scheme_of, text_of

OBJECT_SCHEMES: Final = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"})


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store:  # noqa: ARG001
    """The store at `url`.  Nothing is opened, read or connected yet."""
    text = text_of(url)
    scheme = "" if isinstance(url, os.PathLike) else scheme_of(text)
    if scheme in ("", "file"):
        return LocalStore(url)
    raise StoreError(f"no storage is known for {scheme}://")
