"""S3, Google, Azure and HTTP through obstore."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtra, ObjectChanged, ObjectNotFound, StoreError
from . import forks
from .credentials import EXPIRED, RENEW, resolve
from .obstore_stores import S3, WEB, login_headers, make_store, web_root
from .options import Options
from .refused import BUSY, ask_server
from .remote import CUT, REPLACED, Client
from .retrying import Failure
from .urls import join_url
from .versions import if_match, version_of

if TYPE_CHECKING:
    from obstore import GetOptions

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3}) ?([^:\n]*)")
_REPLY: Final = re.compile(r"<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?")
_CAUSES: Final = {
    "TimedOut": "timed out",
    "Timeout": "timed out",
    "IncompleteBody": "the connection was closed early",
    "IncompleteMessage": "the connection was closed early",
}
"""What to say for the causes that obstore has but a name for."""
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"|\b(' + "|".join(_CAUSES) + r")\b")
_OTHER_RANGE: Final = re.compile(r"Requested (\d+\.\.\d+), got (\d+\.\.\d+)")
_GENERIC: Final = re.compile(r"^(?:Generic \w+ error: )?(?:HTTP error: )?")
_RETRY: Final = frozenset({408, 425, 429})
_WRITE_TRIES: Final = 7
"""Of writing, listing and deleting: about ten seconds where nothing answers, a minute where it stalls."""
_LOGIN: Final = (
    "check the credentials: the options key and secret, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
    "anon=True reads public data without any"
)
_REGION: Final = "the bucket is in another region: pass the option region"
_NOT_ALLOWED: Final = "check the URL and endpoint_url: plain web servers can be read but not listed or written to"
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
        """An obstore client; where there is none, or in a forked child, where it would hang, one of fsspec's."""
        from . import fsspec_client

        if not forks.obstore_is_there():
            client = fsspec_client.other_client(self.scheme, self.authority, self.prefix, self.options)
            if client is None:
                raise MissingExtra(f"{self.scheme}:// needs obstore", hint="pip install obstore")
            return client
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
    """Requests to one bucket, container or host.

    Reads are done once, since RemoteStore tries them again; for the rest, that is left to obstore.
    """

    def __init__(self, place: ObstoreConnector) -> None:
        from obstore.exceptions import BaseError

        self.errors: tuple[type[Exception], ...] = (BaseError, OSError, ValueError)
        self._hint = _STRIPPED if place.options.stripped else _LOGIN
        # HTTP has no buckets: its path is part of the client's URL, where percent escapes and the query belong.
        self._root = f"{place.prefix}/" if place.prefix and place.scheme not in WEB else ""
        options, self._provider = resolve(place.options) if place.scheme in S3 else (place.options, None)
        self._place = replace(place, options=options)
        self._reading = self._open(options.for_reading(), tries=1)
        self._writing: Any = None
        self._answered = False

    def _open(self, options: Options, tries: int) -> Any:
        place = self._place
        try:
            return make_store(place.scheme, place.authority, place.prefix, options, self._provider, tries)
        except self.errors as error:
            text = str(error).partition("\n\nDebug source")[0]
            hint = "check the URL and the storage options"
            raise StoreError(f"{place.scheme}:// can't be opened: {text}", hint=hint) from None

    def head(self, name: str) -> tuple[int, str | None]:
        """As Client."""
        import obstore

        meta = obstore.head(self._reading, self._root + name)
        self._answered = True
        return meta["size"], version_of(meta["e_tag"], meta["last_modified"])

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[memoryview, str | None]:
        """As Client."""
        import obstore

        options: GetOptions = {"range": (start, end)}
        if tag := if_match(version):
            options["if_match"] = tag
        reply = obstore.get(self._reading, self._root + name, options=options)
        body, meta = memoryview(reply.bytes()), reply.meta
        self._answered = True
        return body, version_of(meta["e_tag"], meta["last_modified"], like=version)

    def _writer(self) -> Any:
        if self._writing is None:
            self._writing = self._open(self._place.options, _WRITE_TRIES)
        return self._writing

    def list(self, folder: str) -> Iterator[tuple[str, int, str | None]]:
        """As Client."""
        import obstore

        for chunk in obstore.list(self._writer(), (self._root + folder) or None, chunk_size=1000):
            for meta in chunk:
                version = version_of(meta["e_tag"], meta["last_modified"])
                yield meta["path"].removeprefix(self._root), meta["size"], version

    def put(self, name: str, data: bytes | Path) -> None:
        """As Client; large files go in parts, which the storage joins at the end or drops."""
        import obstore

        obstore.put(self._writer(), self._root + name, data, chunk_size=16 << 20, max_concurrency=4)

    def delete(self, name: str) -> None:
        """As Client."""
        import obstore

        try:
            obstore.delete(self._writer(), self._root + name)
        except FileNotFoundError:
            return

    def retry_after(self, name: str) -> float | None:
        """As Client; obstore shows no headers of a refusal, so the server is asked once more by other means."""
        import obstore

        place, options = self._place, self._place.options
        headers: dict[str, str] = {}
        if place.scheme in WEB:
            url = join_url(web_root(place.scheme, place.authority, place.prefix, options), name)
            headers = login_headers(options)
        elif options.anon or (options.token and place.scheme not in S3):
            return None  # there is nothing to sign with
        else:
            try:
                url = obstore.sign(self._reading, "GET", self._root + name, timedelta(minutes=5))
            except self.errors:
                return None
        return ask_server(url, headers, options.for_reading().connect_timeout)

    def explain(self, error: Exception) -> Failure:
        """As Client."""
        from obstore.exceptions import NotSupportedError, PreconditionError, UnauthenticatedError

        text, _, debug = str(error).partition("\n\nDebug source")
        match = _STATUS.search(text)
        if isinstance(error, FileNotFoundError) and (not match or match[1] == "404"):  # 405 is one, too, for obstore
            return Failure(ObjectNotFound("no such object", hint="check the bucket and the name"))
        if isinstance(error, PreconditionError):
            return Failure(ObjectChanged("the object has been replaced", hint=REPLACED))
        if "non-partial response" in text or (isinstance(error, NotSupportedError) and "Range" in text):
            hint = "use one that does, such as nginx; python -m http.server does not"
            return Failure(StoreError("the server does not serve parts of files", hint=hint))
        asked_a_role = "169.254.169.254" in text or "169.254.170.2" in text  # the last of the usual places
        if asked_a_role or (isinstance(error, UnauthenticatedError) and not match):
            # Where a role has given credentials before, it will again.
            again = asked_a_role and self._answered
            return Failure(StoreError(f"no credentials were found: {_tail(text)}", hint=self._hint), again)
        if match:
            return self._explain_status(int(match[1]), match[2].strip(), _REPLY.search(text))
        if "redirect" in text:
            hint = _REGION if self._place.scheme in S3 else "check the URL"
            return Failure(StoreError("the server answered with a redirect to nowhere", hint=hint))
        if isinstance(error, ValueError):
            return Failure(StoreError(_tail(text)))
        if isinstance(error, OSError):
            return Failure(StoreError(error.strerror or str(error)))
        if other := _OTHER_RANGE.search(text):
            fact = f"the server sent the bytes {other[2]} instead of {other[1]}"
            return Failure(StoreError(fact, hint="check what stands between here and the storage"), again=True)
        if "BadScheme" in debug:
            return Failure(StoreError("the endpoint is not encrypted", hint="allow it with the option allow_http=True"))
        cause = _cause(debug)
        fact = f"{_tail(text)}: {cause}" if cause else _tail(text)
        return Failure(StoreError(fact, hint="check endpoint_url and the network"), again=True)

    def _explain_status(self, status: int, reason: str, reply: re.Match[str] | None) -> Failure:
        fact = f"the server answered {status} {reason}".rstrip()
        code, message = (reply[1], reply[2] or "") if reply else ("", "")
        if code:
            fact += f": {code}" + (f", {message}" if message else "")
        if code == "NoSuchBucket":
            return Failure(ObjectNotFound(fact, hint="check the name of the bucket and endpoint_url"))
        if status == 404:
            return Failure(ObjectNotFound(fact, hint="check the URL"))
        if status < 500 and (code in EXPIRED or "expired" in message.lower()):
            return Failure(StoreError(fact, hint=RENEW), expired=True)
        if status in (401, 403) or "AccessKey" in code:
            return Failure(StoreError(fact, hint=self._hint))
        if status == 400 and not code and self._place.scheme in S3:  # all that a HEAD shows of expired credentials
            return Failure(StoreError(fact, hint=f"the credentials may have expired; else {self._hint}"), expired=True)
        if status in (301, 307):
            return Failure(StoreError(fact, hint=_REGION))
        if status == 416:
            return Failure(StoreError("the object ends before the bytes asked for", hint=CUT))
        if status in (405, 501):
            return Failure(StoreError(fact, hint=_NOT_ALLOWED))
        again = status >= 500 or status in _RETRY
        hint = "the storage is busy or out of order: try later, or with fewer requests" if again else None
        return Failure(StoreError(fact, hint=hint), again, busy=status in BUSY)


def _cause(debug: str) -> str:
    """What the lowest layer says, in the first words of it that tell something."""
    for match in _CAUSE.finditer(debug):
        if said := match[1] or _CAUSES.get(match[2]):
            return said
    return ""


def _tail(text: str) -> str:
    """The part of obstore's message that says what went wrong, without timings and counts."""
    return _GENERIC.sub("", text.rpartition(" - ")[2].partition("\n")[0].strip())
