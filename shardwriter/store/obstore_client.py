"""S3, Google, Azure and HTTP through obstore."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ObjectChanged, ObjectNotFound, StoreError
from . import forks
from .credentials import resolve
from .options import Options
from .remote import CUT, Client

if TYPE_CHECKING:
    from obstore import GetOptions

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3}) ?([^:\n]*)")
_REPLY: Final = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"|(?:source|kind): (TimedOut|Timeout|BadScheme)')
_RETRY: Final = frozenset({408, 425, 429})
_LOGIN: Final = (
    "check the credentials: the options key and secret, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
    "anon=True reads public data without any"
)
_STRIPPED: Final = (
    "credentials given as arguments are not pickled, so set them in this process's environment or in a profile"
)


@dataclass(frozen=True, slots=True)
class ObstoreConnector:
    """Where the objects are: `authority` is the bucket, container or host, `prefix` the path below it."""

    scheme: str
    authority: str
    prefix: str
    options: Options

    def connect(self) -> Client:
        """An obstore client; in a forked child, where obstore would hang, one of fsspec's."""
        from . import fsspec_client

        if not forks.obstore_is_safe():
            return fsspec_client.forked_client(self.scheme, self.authority, self.prefix, self.options)
        forks.mark_used()
        return ObstoreClient(self)

    def without_secrets(self) -> ObstoreConnector:
        """The same, to be pickled."""
        return replace(self, options=self.options.without_secrets())

    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show."""
        return self.options.secrets()


class ObstoreClient:
    """Requests to one bucket, container or host."""

    def __init__(self, place: ObstoreConnector) -> None:
        from obstore.exceptions import BaseError

        self.errors: tuple[type[Exception], ...] = (BaseError, OSError, ValueError)
        self._hint = _STRIPPED if place.options.stripped else _LOGIN
        # HTTP has no buckets: its path is part of the client's URL, where percent escapes and the query belong.
        self._root = f"{place.prefix}/" if place.prefix and place.scheme not in ("http", "https") else ""
        try:
            self._store = _make(place)
        except StoreError:
            raise
        except self.errors as error:
            text = str(error).partition("\n\nDebug source")[0]
            hint = "check the URL and the storage options"
            raise StoreError(f"{place.scheme}:// can't be opened: {text}", hint=hint) from None

    def head(self, name: str) -> tuple[int, str | None]:
        """As Client."""
        import obstore

        meta = obstore.head(self._store, self._root + name)
        return meta["size"], _strong(meta["e_tag"])

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[bytes, str | None]:
        """As Client."""
        import obstore

        options: GetOptions = {"range": (start, end)}
        if version is not None:
            options["if_match"] = version
        reply = obstore.get(self._store, self._root + name, options=options)
        return bytes(reply.bytes()), _strong(reply.meta["e_tag"])

    def list(self, folder: str) -> Iterator[tuple[str, int, str | None]]:
        """As Client."""
        import obstore

        for chunk in obstore.list(self._store, (self._root + folder) or None, chunk_size=1000):
            for meta in chunk:
                yield meta["path"].removeprefix(self._root), meta["size"], _strong(meta["e_tag"])

    def put(self, name: str, data: bytes | Path) -> None:
        """As Client; large files go in parts, which the storage joins at the end or drops."""
        import obstore

        obstore.put(self._store, self._root + name, data, chunk_size=16 << 20, max_concurrency=4)

    def delete(self, name: str) -> None:
        """As Client."""
        import obstore

        try:
            obstore.delete(self._store, self._root + name)
        except FileNotFoundError:
            return

    def explain(self, error: Exception) -> tuple[StoreError, bool]:
        """As Client."""
        from obstore.exceptions import NotSupportedError, PreconditionError, UnauthenticatedError

        text, _, debug = str(error).partition("\n\nDebug source")
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound("no such object", hint="check the bucket and the name"), False
        if isinstance(error, PreconditionError):
            return ObjectChanged("the object has been replaced", hint="make its index again"), False
        if isinstance(error, NotSupportedError) and "Range" in text:
            hint = "use one that does, such as nginx; python -m http.server does not"
            return StoreError("the server does not serve parts of files", hint=hint), False
        match = _STATUS.search(text)
        asked_a_role = "169.254.169.254" in text or "169.254.170.2" in text  # the last of the usual places
        if asked_a_role or (isinstance(error, UnauthenticatedError) and not match):
            return StoreError(f"no credentials were found: {_tail(text)}", hint=self._hint), False
        if match:
            return self._explain_status(int(match[1]), match[2].strip(), _REPLY.search(text))
        if isinstance(error, ValueError):
            return StoreError(_tail(text)), False
        if isinstance(error, OSError):
            return StoreError(error.strerror or str(error)), False
        cause = _CAUSE.search(debug)
        if cause and cause[2] == "BadScheme":
            return StoreError("the endpoint is not encrypted", hint="allow it with the option allow_http=True"), False
        fact = f"{_tail(text)}: {cause[1] or 'timed out'}" if cause else _tail(text)
        return StoreError(fact, hint="check endpoint_url and the network"), True

    def _explain_status(self, status: int, reason: str, reply: re.Match[str] | None) -> tuple[StoreError, bool]:
        fact = f"the server answered {status} {reason}".rstrip()
        if reply:
            fact += f": {reply[1]}" + (f", {reply[2]}" if reply[2] else "")
        if reply and reply[1] == "NoSuchBucket":
            return ObjectNotFound(fact, hint="check the name of the bucket and endpoint_url"), False
        if status == 404:
            return ObjectNotFound(fact, hint="check the URL"), False
        if status in (401, 403) or (reply and "AccessKey" in reply[1]):
            return StoreError(fact, hint=self._hint), False
        if status in (301, 307):
            return StoreError(fact, hint="the bucket is in another region: pass the option region"), False
        if status == 416:
            return StoreError("the object ends before the bytes asked for", hint=CUT), False
        if status in (405, 501):
            return StoreError(fact, hint="plain web servers can be read but not listed or written to"), False
        return StoreError(fact), status >= 500 or status in _RETRY


def _tail(text: str) -> str:
    """The part of obstore's message that says what went wrong, without timings and counts."""
    return text.rpartition(" - ")[2].partition("\n")[0].strip()


def _strong(tag: str | None) -> str | None:
    """An ETag that can pin a version; weak ones never match."""
    return tag if tag and not tag.startswith("W/") else None


def _make(place: ObstoreConnector) -> Any:
    from obstore import store as stores

    options = place.options
    common: dict[str, Any] = {
        # Times over all tries of one request: about ten seconds where nothing answers, a minute where it stalls.
        "retry_config": {"max_retries": 6, "retry_timeout": timedelta(minutes=5)},
        "client_options": {
            "timeout": _seconds(options.timeout),
            "read_timeout": _seconds(options.read_timeout),
            "connect_timeout": _seconds(options.connect_timeout),
        },
    }
    if place.scheme in ("s3", "s3a"):
        options, provider = resolve(options)
        config = _given(
            endpoint=_endpoint(options, place.authority), region=options.region, skip_signature=options.anon or None
        )
        config["virtual_hosted_style_request"] = not options.path_style
        if provider is not None:
            common["credential_provider"] = provider
        _allow_http(common, options)
        return stores.S3Store(place.authority, config=config, **common)
    _allow_http(common, options)
    if place.scheme == "gs":
        config = _given(base_url=options.endpoint_url, skip_signature=options.anon or None, bearer_token=options.token)
        return stores.GCSStore(place.authority, config=config, **common)
    if place.scheme in ("az", "abfs", "abfss"):
        config = _given(
            endpoint=options.endpoint_url, account_name=options.key, account_key=options.secret, sas_key=options.token,
            skip_signature=options.anon or None,
        )  # fmt: skip
        return stores.AzureStore.from_url(f"{place.scheme}://{place.authority}", config=config, **common)
    if options.key is not None:
        login = base64.b64encode(f"{options.key}:{options.secret}".encode()).decode()
        common["client_options"]["default_headers"] = {"authorization": f"Basic {login}"}
    common["client_options"]["allow_http"] = True  # for HTTP, the URL itself says so
    query = f"?{options.query}" if options.query else ""
    path = f"/{place.prefix}" if place.prefix else ""
    return stores.HTTPStore.from_url(f"{place.scheme}://{place.authority}{path}{query}", **common)


def _allow_http(common: dict[str, Any], options: Options) -> None:
    if options.allow_http:
        common["client_options"]["allow_http"] = True


def _endpoint(options: Options, bucket: str) -> str | None:
    """The endpoint as obstore wants it, with the bucket the host where requests carry it there."""
    if options.path_style or options.endpoint_url is None:
        return options.endpoint_url
    scheme, _, rest = options.endpoint_url.partition("://")
    return f"{scheme}://{bucket}.{rest}"


def _given(**config: Any) -> Any:
    return {name: value for name, value in config.items() if value is not None}


def _seconds(value: float) -> str:
    return f"{round(value * 1000)}ms"
