"""Versions of objects: strong ETags, else the time of the last change.

>>> version_of('"v1"', modified), version_of('W/"v1"', modified), version_of(None, None)
('"v1"', 'modified:1994-11-06T08:49:37', None)
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_MODIFIED: Final = "modified:"


def version_of(tag: str | None, modified: datetime | None, like: str | None = None) -> str | None:
    """The version that a reply shows: of the same kind as `like` where that is given, None where it shows none."""
    strong = tag if tag and not tag.startswith("W/") else None
    if strong and not (like or "").startswith(_MODIFIED):
        return strong
    if like is not None and not like.startswith(_MODIFIED):
        return None
    if modified is None or modified.timestamp() <= 0:  # obstore's for servers that do not tell
        return None
    return f"{_MODIFIED}{modified.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def if_match(version: str | None) -> str | None:
    """What can be sent as If-Match to have the server compare: ETags only."""
    return None if version is None or version.startswith(_MODIFIED) else version
