"""URLs of shards: taken apart, joined, and shown without credentials.

A path without scheme and the URLs of object stores are literal; `file`, `http` and `https` URLs are percent-encoded, as
everywhere.  A query (a presigned URL, a shared access signature) belongs to the root and goes with every request.
"""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote, unquote

from ..errors import StoreError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z0-9+.-]+)*)://")
_COLLAPSED: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_QUERY: Final = re.compile(r"(https?://[^\s?\"'<>]*)\?[^\s\"'<>)]*")
_USER: Final = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)([^/\s@:]*):[^/\s@]*@")
ENCODED: Final = frozenset({"file", "http", "https"})
"""Schemes whose URLs are percent-encoded."""


def text_of(url: str | os.PathLike[str]) -> str:
    """`url` as text; a Path is always a local path, so one that was made from a URL is refused."""
    if isinstance(url, str):
        return url
    text = os.fspath(url)
    if match := _COLLAPSED.match(text):
        raise StoreError(
            f"the path {text!r} was a URL before it became a Path, which drops a slash",
            hint=f"pass it as text: '{match[1]}://...'",
        )
    return text


def scheme_of(url: str) -> str:
    """The scheme in lower case, "" for a plain path.  Raises StoreError for `pipe:`, which would run a command.

    >>> scheme_of("S3://bucket/x"), scheme_of("/data/50% #1 {a}.tar")
    ('s3', '')
    """
    if url.startswith("pipe:"):
        raise StoreError(
            "'pipe:' URLs run a command and are not read",
            hint="use the storage's own URL, such as s3://bucket/x.tar; './pipe:x' for a file of that name",
        )
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def split_url(url: str | os.PathLike[str]) -> tuple[str, str]:
    """Root and name of one object.

    >>> split_url("s3://b/x/y.tar"), split_url("/a/b.tar"), split_url("b.tar")
    (('s3://b/x', 'y.tar'), ('/a', 'b.tar'), ('.', 'b.tar'))
    >>> split_url("https://host/x/a%20b.tar?sig=1")
    ('https://host/x?sig=1', 'a b.tar')

    The name is "" where the URL names a bucket or ends with a slash.
    """
    text = text_of(url)
    scheme = scheme_of(text)
    if not scheme:
        root, slash, name = text.rpartition("/")
        return (root or slash or "."), name
    base, mark, query = text.partition("?") if scheme in ENCODED else (text, "", "")
    start = len(scheme) + len("://")
    slash_at = base.rfind("/", start)
    if slash_at < 0:
        return base + mark + query, ""
    name = base[slash_at + 1 :]
    root = base[:slash_at] if slash_at > start or scheme != "file" else base[: slash_at + 1]
    return root + mark + query, unquote(name) if scheme in ENCODED else name


def join_url(root: str, name: str) -> str:
    """The URL of an object of a store; the inverse of split_url.

    >>> join_url("s3://b/x", "y.tar"), join_url(".", "b.tar"), join_url("https://host/x?sig=1", "a b.tar")
    ('s3://b/x/y.tar', 'b.tar', 'https://host/x/a%20b.tar?sig=1')
    """
    scheme = scheme_of(root)
    if not scheme:
        return name if root in ("", ".") else _slashed(root) + name
    if scheme not in ENCODED:
        return _slashed(root) + name
    base, mark, query = root.partition("?")
    return _slashed(base) + quote(name) + mark + query


def _slashed(root: str) -> str:
    return root if root.endswith("/") else root + "/"


def trim(url: str) -> str:
    """`url` without slashes at its end; the root folder stays."""
    scheme = scheme_of(url)
    start = len(scheme) + len("://") if scheme else 0
    shortened = url[:start] + url[start:].rstrip("/")
    return shortened + "/" if url.endswith("/") and len(shortened) == start and scheme in ("", "file") else shortened


def without_password(url: str) -> str:
    """`url` with the user in it but not the password: sftp://me:pw@host/x becomes sftp://me@host/x."""
    return _USER.sub(r"\1\2@", url)


def redact(text: str) -> str:
    """`text` with the passwords and queries of all URLs in it left out.

    >>> redact("GET https://me:pw@host/a.tar?X-Amz-Signature=abc failed")
    'GET https://host/a.tar failed'
    """
    return _USER.sub(r"\1", _QUERY.sub(r"\1", text))
