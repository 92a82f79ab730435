"""How long a busy server wants to be left alone, where the client does not show the headers of its answer."""

from __future__ import annotations

import email.utils
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

BUSY: Final = frozenset({429, 503})
"""Statuses by which a server asks for fewer requests."""


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """The Retry-After among the headers, which is a number of seconds or a date; None without one that makes sense.

    >>> seconds_to_wait({"Retry-After": "7"})
    7.0
    >>> date = "Sun, 06 Nov 1994 08:49:"
    >>> seconds_to_wait({"Retry-After": date + "37 GMT", "Date": date + "30 GMT"})
    7.0
    """
    named = {name.lower(): value for name, value in headers.items()}
    value = named.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    until = date_of(value)
    if until is None:
        return None
    now = date_of(named.get("date", "")) or datetime.now(UTC)  # by the server's own clock where it shows that
    return max(0.0, (until - now).total_seconds())


def ask_server(url: str, headers: Mapping[str, str], timeout: float) -> float | None:
    """Ask for one byte and return the seconds to wait: 0.0 where it came, None where the answer does not tell.

    The URL may be a signed one; it is shown nowhere.
    """
    request = urllib.request.Request(url, headers={"Range": "bytes=0-0", **headers})  # noqa: S310
    try:
        with urllib.request.build_opener(_Here).open(request, timeout=timeout):
            return 0.0
    except urllib.error.HTTPError as error:
        with error:
            return seconds_to_wait(dict(error.headers)) if error.code in BUSY else None
    except (OSError, http.client.HTTPException, ValueError):
        return None


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, since the answer of this server is what counts."""

    def redirect_request(self, *args: Any) -> None:  # noqa: ARG002
        return None


def date_of(text: str) -> datetime | None:
    """The moment that an HTTP date names; None for what is no date."""
    try:
        found = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
