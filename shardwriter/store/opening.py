"""From a URL to its store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..errors import StoreError
from .base import Store
from .fsspec_client import FsspecConnector
from .local import LocalStore
from .obstore_client import ObstoreConnector
from .options import DEADLINE, Options, check_seconds
from .remote import RemoteStore
from .urls import ENCODED, redact, scheme_of, text_of, trim

OBSTORE: Final = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"})
"""Schemes that obstore serves; others are fsspec's."""


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store:
    """The store at `url`.  Nothing is opened, read or connected yet.

    >>> open_store("data/cc3m"), open_store("s3://bucket/cc3m", {"endpoint_url": "http://127.0.0.1:9000"})
    (<store data/cc3m>, <store s3://bucket/cc3m>)

    Options for s3, gs, az, abfs and http: endpoint_url, key, secret, token (or access_key_id, secret_access_key,
    session_token), region, anon, profile, path_style, allow_http, requester_pays, and, in seconds, timeout,
    read_timeout, connect_timeout.  Credentials that are not given come from the usual places: the AWS_ variables,
    profiles in ~/.aws, roles.  Any other scheme takes the storage options of its fsspec filesystem; folders take none.
    For all but folders, `deadline` is the number of seconds for which reads are tried again, by default 120.
    Raises StoreError for a scheme or an option that is not known.
    """
    text = text_of(url)
    given = dict(options or {})
    scheme = "" if isinstance(url, os.PathLike) else scheme_of(text)
    if scheme in ("", "file"):
        # Options that hold for a whole list of URLs do no harm to the local ones among them.
        return LocalStore(url)
    if scheme in OBSTORE:
        return _object_store(scheme, text, Options.parse(given))
    _check_known(scheme)
    deadline = given.pop("deadline", None)
    deadline = DEADLINE if deadline is None else deadline
    check_seconds("deadline", deadline)
    return RemoteStore(redact(trim(text)), FsspecConnector(trim(text), given), deadline)


def _object_store(scheme: str, url: str, options: Options) -> Store:
    base, _, query = url.partition("?") if scheme in ENCODED else (url, "", "")
    authority, _, prefix = base[len(scheme) + len("://") :].partition("/")
    azure = scheme in ("az", "abfs", "abfss")
    if (options.key is None) != (options.secret is None) and not azure:  # there, a signature can do for the secret
        raise StoreError("the storage options 'key' and 'secret' go together")
    if "@" in authority and not azure:  # there, the part before it is the container
        login, _, authority = authority.rpartition("@")
        options = options.with_login(login)
    if not authority:
        raise StoreError(f"{redact(url)!r} names no bucket or host", hint=f"write {scheme}://bucket/folder")
    prefix = prefix.strip("/")
    public = f"{scheme}://{authority}" + (f"/{prefix}" if prefix else "")
    connector = ObstoreConnector(scheme, authority, prefix, options.with_query(query))
    return RemoteStore(public, connector, options.deadline)


def _check_known(scheme: str) -> None:
    from fsspec import available_protocols

    for part in scheme.split("::"):
        if part not in available_protocols():
            raise StoreError(
                f"no storage is known for the scheme {part!r}",
                hint="use a path, s3://, gs://, az://, http:// or a scheme of an installed fsspec package",
            )
