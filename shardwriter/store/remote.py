"""Object storage as a store: ranges with known lengths, pinned versions, retries, and no secret in sight.

The clients behind it (obstore, fsspec, s3fs) do single requests and say what their errors mean; the rest is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ..errors import ObjectChanged, StoreError
from .base import ObjectInfo, check_name, check_range, folder_of, is_temporary
from .urls import join_url, redact

T = TypeVar("T")

TRIES: Final = 3
"""Attempts of our own at each request, on top of the client's."""
CUT: Final = "it was cut short or replaced; upload it again, or make its index again"
"""Hint for an object that is shorter than its index says."""


class Client(Protocol):
    """Single requests below the root of a store."""

    errors: tuple[type[Exception], ...]
    """What its methods raise, besides StoreError."""

    def head(self, name: str) -> tuple[int, str | None]:
        """Size and version."""

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[bytes, str | None]:
        """The bytes [start, end), or fewer where the reply was short, and the version that they are of, if known."""

    def list(self, folder: str) -> Iterable[tuple[str, int, str | None]]:
        """Name, size and version of all below `folder`, which is "" or ends with a slash."""

    def put(self, name: str, data: bytes | Path) -> None:
        """Store the bytes, or those of a file, all or nothing."""

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""

    def explain(self, error: Exception) -> tuple[StoreError, bool]:
        """What an error means, and whether trying again can help."""


class Connector(Protocol):
    """What it takes to make a client: plain data, so that it can be pickled."""

    def connect(self) -> Client:
        """A client for this process."""

    def without_secrets(self) -> Connector:
        """The same, to be pickled."""

    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show."""


class _Retry(Exception):
    """A failure that another try may cure."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(error)
        self.error = error


class RemoteStore:
    """Objects under one URL.

    Pickling keeps credentials that were given as arguments only while a child process is being started with it; any
    other pickle, such as one that lands in a file, goes without, and is then used with those of the usual places.
    """

    def __init__(self, url: str, connector: Connector) -> None:
        self.url: str = url
        self.path: Path | None = None
        self._connector = connector
        self._clients: dict[int, Client] = {}

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def __getstate__(self) -> dict[str, Any]:
        starting_child = get_spawning_popen() is not None
        connector = self._connector if starting_child else self._connector.without_secrets()
        return {"url": self.url, "connector": connector}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["connector"])  # type: ignore[misc]

    def __copy__(self) -> RemoteStore:
        return RemoteStore(self.url, self._connector)

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteStore:
        return RemoteStore(self.url, self._connector)  # a copy within the process keeps its credentials

    def info(self, name: str) -> ObjectInfo:
        """As Store."""
        size, version = self._call(lambda client: client.head(check_name(name)), name)
        return ObjectInfo(name, size, version)

    def read(self, name: str) -> bytes:
        """As Store."""
        info = self.info(name)
        return self.read_range(name, 0, info.size, version=info.version)

    def read_range(self, name: str, start: int, end: int, *, version: str | None = None) -> bytes:
        """As Store; an empty range asks nothing of the storage."""

        def get(client: Client) -> bytes:
            check_range(start, end)
            check_name(name)
            if start == end:
                return b""
            data, found = client.get(name, start, end, version)
            if version is not None and found is not None and found != version:
                raise ObjectChanged(f"the object has been replaced: version {found}, not {version}")
            if len(data) == end - start:
                return data
            size, _ = client.head(name)
            if size < end:
                raise StoreError(f"the object has {size} bytes, not the {end} asked for", hint=CUT)
            raise _Retry(StoreError(f"{len(data)} bytes came instead of {end - start}", hint="check the network"))

        return self._call(get, name, start)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """As Store."""
        found = self._call(lambda client: list(client.list(folder_of(prefix))), prefix)
        named = (ObjectInfo(*each) for each in found if each[0].startswith(prefix) and not is_temporary(each[0]))
        return iter(sorted(named, key=lambda info: info.name))

    def write(self, name: str, data: bytes) -> None:
        """As Store."""
        self._call(lambda client: client.put(check_name(name), data), name)

    def write_file(self, name: str, path: Path) -> None:
        """As Store."""
        self._call(lambda client: client.put(check_name(name), path), name)
        path.unlink()

    def delete(self, name: str) -> None:
        """As Store."""
        self._call(lambda client: client.delete(check_name(name)), name)

    def writable(self) -> bool:
        """Always True: only a write can tell."""
        return True

    def _client(self) -> Client:
        pid = os.getpid()
        if pid not in self._clients:
            self._clients = {pid: self._connector.connect()}
        return self._clients[pid]

    def _call(self, action: Callable[[Client], T], name: str, offset: int | None = None) -> T:
        """Do it, again where that can help, and let errors say what they are about."""
        import tenacity

        def attempt() -> T:
            client = self._client()
            try:
                return action(client)
            except StoreError:
                raise
            except client.errors as error:
                meaning, transient = client.explain(error)
                # The client's own error may quote a signed URL, so it is not chained: tracebacks would show it.
                raise (_Retry(meaning) if transient else meaning) from None

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
            retry=tenacity.retry_if_exception_type(_Retry),
            reraise=True,
        )
        try:
            return retrying(attempt)
        except _Retry as retry:
            failure: StoreError = retry.error
        except StoreError as error:
            failure = error
        failure.fact = self._clean(failure.fact)
        failure.args = (failure.fact,)
        raise failure.at(shard=join_url(self.url, name), offset=offset)

    def _clean(self, text: str) -> str:
        for secret in self._connector.secrets():
            text = text.replace(secret, "***")
        return redact(text)
