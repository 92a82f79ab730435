"""Every other storage through fsspec, and S3 through s3fs where obstore can't run."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ..errors import MissingExtra, ObjectChanged, ObjectNotFound, StoreError
from .base import folder_of, temporary_name
from .credentials import EXPIRED, RENEW, resolve
from .forks import ForkedStoreWarning
from .options import Options, plain_only, secret_values
from .refused import BUSY, date_of, seconds_to_wait
from .remote import CUT, REPLACED, Client
from .retrying import Failure
from .urls import join_url, without_password
from .versions import if_match, version_of

_FORKED: Final = (
    "this process was forked from one that had used obstore, which can't run here, so it reads through fsspec, slowly: "
    "start workers with forkserver or spawn (DataLoader's multiprocessing_context) to avoid that"
)
_ELSEWHERE: Final = "start this process with forkserver or spawn (DataLoader's multiprocessing_context), not with fork"


@dataclass(frozen=True, slots=True)
class FsspecConnector:
    """A root URL and the storage options that fsspec takes for its scheme."""

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)

    def connect(self) -> Client:
        """A client with a filesystem of its own, made in this process."""
        import fsspec

        scheme = self.url.partition("://")[0]
        try:
            # Instances and listings that fsspec caches may come from another process or be out of date.
            own = {"skip_instance_cache": True, "use_listings_cache": False}
            filesystem, root = fsspec.core.url_to_fs(self.url, **own, **self.options)
        except ImportError as error:
            raise MissingExtra(f"{scheme}:// URLs need a package that is not installed: {error}") from error
        except (TypeError, ValueError, OSError) as error:
            raise StoreError(f"{scheme}:// can't be opened: {error}", hint="check the storage options") from error
        return FsspecClient(filesystem, root)

    def without_secrets(self) -> FsspecConnector:
        """The same, to be pickled, less a password and the options whose names suggest a secret."""
        return replace(self, url=without_password(self.url), options=plain_only(self.options))

    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show."""
        return secret_values(self.options)


class FsspecClient:
    """Requests to an fsspec filesystem.  Names are never patterns: only methods that take them literally are called."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self.errors: tuple[type[Exception], ...] = (OSError, ValueError, NotImplementedError, *_network_errors())
        self._fs = filesystem
        self._root = root.rstrip("/")
        # Async filesystems serve any thread through their event loop; the others are not made for threads.
        lock = contextlib.nullcontext() if filesystem.async_impl else threading.RLock()
        self._lock: contextlib.AbstractContextManager[Any] = lock

    def head(self, name: str) -> tuple[int, str | None]:
        """As Client; fsspec has no common notion of a version."""
        with self._lock:
            info = self._fs.info(self._path(name))
        if info["type"] != "file":
            raise ObjectNotFound("this is a folder, not a file")
        return int(info["size"]), None

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[memoryview, str | None]:  # noqa: ARG002
        """As Client."""
        with self._lock:
            return memoryview(self._fs.cat_file(self._path(name), start=start, end=end)).toreadonly(), None

    def list(self, folder: str) -> Iterator[tuple[str, int, str | None]]:
        """As Client."""
        root = self._root + "/"
        try:
            with self._lock:
                found = self._fs.find(self._path(folder.rstrip("/")), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        for path, info in found.items():
            if path.startswith(root):
                yield path.removeprefix(root), int(info["size"]), self._version(info)

    def put(self, name: str, data: bytes | Path) -> None:
        """As Client: a temporary file and a rename where the filesystem renames, else one upload."""
        from fsspec import AbstractFileSystem

        path = self._path(name)
        with self._lock:
            if type(self._fs).mv is AbstractFileSystem.mv:  # "rename" would be a copy, and no safer than the upload
                self._upload(path, data)
                return
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            temporary = self._path(folder_of(name) + temporary_name())
            try:
                self._upload(temporary, data)
                self._fs.mv(temporary, path)
            except BaseException:
                with contextlib.suppress(*self.errors):
                    self._fs.rm_file(temporary)
                raise

    def delete(self, name: str) -> None:
        """As Client."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def retry_after(self, name: str) -> float | None:  # noqa: ARG002
        """As Client: nothing more than the error has told."""
        return None

    def explain(self, error: Exception) -> Failure:
        """As Client; fsspec's backends have no common errors, so what is not known is tried a few times."""
        text = str(error) or type(error).__name__
        status, headers, code = _answer(error)
        if isinstance(error, FileNotFoundError) or status == 404:
            return Failure(ObjectNotFound("no such object", hint="check the URL"))
        if isinstance(error, IsADirectoryError | NotADirectoryError):
            return Failure(ObjectNotFound("this is a folder, not a file"))
        if status == 412 or "PreconditionFailed" in text or "pre-condition" in text:
            return Failure(ObjectChanged("the object has been replaced", hint=REPLACED))
        if status == 416 or "InvalidRange" in text or "range is not satisfiable" in text:
            return Failure(StoreError("the object ends before the bytes asked for", hint=CUT))
        if code in EXPIRED:
            return Failure(StoreError(text, hint=RENEW), expired=True)
        if isinstance(error, PermissionError) or status in (401, 403) or "credentials" in text:
            return Failure(StoreError(text, hint="check the credentials"))
        if isinstance(error, NotImplementedError):
            return Failure(StoreError(f"this storage can't do that: {text}"))
        told = StoreError(f"{type(error).__name__}: {text}", hint="check the URL, the storage options and the network")
        if status in BUSY:
            return Failure(told, again=True, busy=True, retry_after=seconds_to_wait(headers))
        if status is not None:
            return Failure(told, again=status >= 500 or status in (408, 425))
        if isinstance(error, ValueError):
            return Failure(told)
        passing = isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, *_network_errors()))
        return Failure(told, again=True, doubtful=not passing)

    def _upload(self, path: str, data: bytes | Path) -> None:
        if isinstance(data, Path):
            self._fs.put_file(str(data), path)
        else:
            self._fs.pipe_file(path, data)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _version(self, info: Mapping[str, Any]) -> str | None:  # noqa: ARG002
        return None


class S3FsClient(FsspecClient):
    """S3 through s3fs, with versions pinned as obstore does."""

    def head(self, name: str) -> tuple[int, str | None]:
        """As Client."""
        info = self._fs.info(self._path(name))
        if info["type"] != "file":
            raise ObjectNotFound("no such object", hint="check the bucket and the name")
        return int(info["size"]), self._version(info)

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[memoryview, str | None]:
        """As Client."""
        from fsspec.asyn import sync

        bucket, _, key = self._path(name).partition("/")
        match = {"IfMatch": tag} if (tag := if_match(version)) else {}

        async def fetch() -> tuple[memoryview, str | None]:
            reply = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, Range=_span(start, end), **match)
            async with reply["Body"] as body:
                data = await body.read()
            return memoryview(data), version_of(reply.get("ETag"), reply.get("LastModified"), like=version)

        data, found = sync(self._fs.loop, fetch)
        return data, found

    def put(self, name: str, data: bytes | Path) -> None:
        """As Client; large ones go in parts that the storage joins at the end."""
        self._upload(self._path(name), data)

    def _version(self, info: Mapping[str, Any]) -> str | None:
        return version_of(info.get("ETag"), info.get("LastModified"))


class HttpClient(FsspecClient):
    """Files of a web server through aiohttp, with versions as obstore sees them."""

    def head(self, name: str) -> tuple[int, str | None]:
        """As Client."""
        info = self._fs.info(self._path(name))
        return int(info["size"]), version_of(info.get("ETag"), date_of(info.get("Last-Modified", "")))

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[memoryview, str | None]:
        """As Client; cat_file would show neither the status nor the headers."""
        from fsspec.asyn import sync

        headers = {"Range": _span(start, end)} | ({"If-Match": tag} if (tag := if_match(version)) else {})

        async def fetch() -> tuple[memoryview, str | None]:
            session = await self._fs.set_session()
            async with session.get(self._fs.encode_url(self._path(name)), headers=headers) as reply:
                reply.raise_for_status()
                if reply.status != 206:
                    raise StoreError(
                        "the server does not serve parts of files", hint="use one that does, such as nginx"
                    )
                modified = date_of(reply.headers.get("Last-Modified", ""))
                return memoryview(await reply.read()), version_of(reply.headers.get("ETag"), modified, like=version)

        data, found = sync(self._fs.loop, fetch)
        return data, found

    def list(self, folder: str) -> Iterator[tuple[str, int, str | None]]:
        """As Client: never, which is what obstore finds on plain web servers."""
        raise StoreError(f"a web server can't be listed, so not {folder!r}", hint="name the shards one by one")

    def _path(self, name: str) -> str:
        return join_url(self._root, name)


def forked_client(scheme: str, authority: str, prefix: str, options: Options) -> Client:
    """A client for a process in which obstore would hang; it says that it is slower."""
    client = other_client(scheme, authority, prefix, options)
    if client is None:
        raise StoreError(
            f"{scheme}:// can't be used in a process forked from one that has used object storage", hint=_ELSEWHERE
        )
    warnings.warn(_FORKED, ForkedStoreWarning, stacklevel=2)
    return client


def other_client(scheme: str, authority: str, prefix: str, options: Options) -> Client | None:
    """A client that needs no obstore; S3, and the web without a login, have one."""
    root = f"{authority}/{prefix}" if prefix else authority
    if scheme in ("s3", "s3a"):
        return s3fs_client(root, options)
    if scheme in ("http", "https") and options.key is None and options.token is None:
        return _http_client(f"{scheme}://{root}" + (f"?{options.query}" if options.query else ""), options)
    return None


def _http_client(root: str, options: Options) -> Client:
    try:
        from aiohttp import ClientTimeout
        from fsspec.implementations.http import HTTPFileSystem
    except ImportError:
        raise MissingExtra(
            "reading from the web without obstore, or in a process forked from one that has used it, needs aiohttp",
            hint=f"{_ELSEWHERE}, or pip install 'shardstream[s3]'",
        ) from None
    options = options.for_reading()
    limits = ClientTimeout(total=options.timeout, sock_connect=options.connect_timeout, sock_read=options.read_timeout)
    filesystem = HTTPFileSystem(client_kwargs={"timeout": limits}, skip_instance_cache=True, use_listings_cache=False)
    return HttpClient(filesystem, root)


def s3fs_client(root: str, options: Options) -> Client:
    """S3 through s3fs, with the same options as for obstore."""
    try:
        from s3fs import S3FileSystem
    except ImportError:
        raise MissingExtra(
            "reading S3 without obstore, or in a process forked from one that has used it, needs s3fs",
            hint=f"{_ELSEWHERE}, or pip install 'shardstream[s3]'",
        ) from None
    resolved, _ = resolve(options)
    filesystem = S3FileSystem(
        anon=options.anon,
        key=options.key,
        secret=options.secret,
        token=options.token,
        profile=options.profile,
        endpoint_url=resolved.endpoint_url,
        requester_pays=options.requester_pays,
        client_kwargs={"region_name": resolved.region} if resolved.region else {},
        config_kwargs={
            "connect_timeout": options.connect_timeout,
            "read_timeout": options.read_timeout,
            "s3": {"addressing_style": "path" if options.path_style else "virtual"},
        },
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    return S3FsClient(filesystem, root)


def _span(start: int, end: int) -> str:
    return f"bytes={start}-{end - 1}"


def _answer(error: BaseException | None) -> tuple[int | None, Mapping[str, str], str]:
    """Status, headers and code of the answer that an error of aiohttp, botocore, requests or httpx is about."""
    while error is not None:
        reply = getattr(error, "response", None)
        if isinstance(reply, Mapping):
            about = reply.get("ResponseMetadata", {})
            return about.get("HTTPStatusCode"), about.get("HTTPHeaders", {}), reply.get("Error", {}).get("Code", "")
        status = getattr(error, "status", None) or getattr(reply, "status_code", None)
        if isinstance(status, int):
            return status, getattr(error, "headers", None) or getattr(reply, "headers", None) or {}, ""
        error = error.__cause__
    return None, {}, ""


def _network_errors() -> tuple[type[Exception], ...]:
    """Errors of the network libraries that a filesystem has loaded; they are not OSErrors, and often come through."""
    names = {"aiohttp": ("ClientError",), "botocore.exceptions": ("BotoCoreError", "ClientError")}
    return tuple(getattr(sys.modules[m], n) for m, ns in names.items() if m in sys.modules for n in ns)
