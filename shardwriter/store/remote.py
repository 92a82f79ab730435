"""Object storage as a store: ranges with known lengths, pinned versions, retries, and no secret in sight.

The clients behind it (obstore, fsspec, s3fs) do single requests and say what their errors mean; the rest is here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ..errors import ObjectChanged, StoreError
from .base import PART, ObjectInfo, always, check_name, check_range, folder_of, is_temporary
from .options import DEADLINE
from .ranges import Range
from .retrying import FEW, Again, Failure, Pauses, Tries
from .urls import join_url, redact

T = TypeVar("T")

CUT: Final = "it was cut short or replaced; upload it again, or make its index again"
"""Hint for an object that is shorter than its index says."""
REPLACED: Final = "make its index again"
"""Hint for an object that is another than the index describes."""


class Client(Protocol):
    """Single requests below the root of a store."""

    errors: tuple[type[Exception], ...]
    """What its methods raise, besides StoreError."""

    def head(self, name: str) -> tuple[int, str | None]:
        """Size and version."""

    def get(self, name: str, start: int, end: int, version: str | None) -> tuple[memoryview, str | None]:
        """The bytes [start, end), or fewer where the reply was short, and the version that they are of.

        It is of the same kind as `version`, and None where the reply does not tell.
        """

    def list(self, folder: str) -> Iterable[tuple[str, int, str | None]]:
        """Name, size and version of all below `folder`, which is "" or ends with a slash."""

    def put(self, name: str, data: bytes | Path) -> None:
        """Store the bytes, or those of a file, all or nothing."""

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""

    def explain(self, error: Exception) -> Failure:
        """What an error means, and whether trying again can help."""

    def retry_after(self, name: str) -> float | None:
        """Ask a busy server for how many seconds it wants to be left alone; None where it does not tell."""


class Connector(Protocol):
    """What it takes to make a client: plain data, so that it can be pickled."""

    def connect(self) -> Client:
        """A client for this process."""

    def without_secrets(self) -> Connector:
        """The same, to be pickled."""

    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show."""


class _Process:
    """What the requests of one store share in one process."""

    def __init__(self, connector: Connector) -> None:
        self.pid = os.getpid()
        self.pauses = Pauses()
        self._connector = connector
        self._client: Client | None = None
        self._lock = threading.Lock()

    def client(self, worn: Client | None = None) -> Client:
        """The client of this process, made on first use, and anew where it is still the `worn` one."""
        with self._lock:
            if self._client is None or self._client is worn:
                self._client = self._connector.connect()
            return self._client


class RemoteStore:
    """Objects under one URL.

    Reads are tried again for `deadline` seconds.  Pickling keeps credentials that were given as arguments only while a
    child process is being started with it; any other pickle, such as one that lands in a file, goes without, and is
    then used with those of the usual places.
    """

    def __init__(self, url: str, connector: Connector, deadline: float = DEADLINE) -> None:
        self.url: str = url
        self.path: Path | None = None
        self.deadline: float = deadline
        self._connector = connector
        self._process = _Process(connector)

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def __getstate__(self) -> dict[str, Any]:
        starting_child = get_spawning_popen() is not None
        connector = self._connector if starting_child else self._connector.without_secrets()
        return {"url": self.url, "connector": connector, "deadline": self.deadline}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["connector"], state["deadline"])  # type: ignore[misc]

    def __copy__(self) -> RemoteStore:
        return RemoteStore(self.url, self._connector, self.deadline)

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteStore:
        return RemoteStore(self.url, self._connector, self.deadline)  # a copy within the process keeps its credentials

    def info(self, name: str) -> ObjectInfo:
        """As Store."""
        with self._context(name):
            check_name(name)
            tries = self._tries()
            size, version = tries.until_done(lambda: self._request(tries, name, lambda client: client.head(name)))
            return ObjectInfo(name, size, version)

    def read(self, name: str) -> bytes:
        """As Store."""
        info = self.info(name)
        parts = ((start, min(start + PART, info.size)) for start in range(0, info.size, PART))
        return b"".join([self.read_view(name, start, end, version=info.version) for start, end in parts])

    def read_range(self, name: str, start: int, end: int, *, version: str | None = None) -> bytes:
        """As Store; an empty range asks nothing of the storage."""
        return bytes(self.read_view(name, start, end, version=version))

    def read_view(
        self, name: str, start: int, end: int, *, version: str | None = None, wanted: Callable[[], bool] = always
    ) -> memoryview:
        """As Store; an empty range asks nothing of the storage."""
        span = Range(start, end)
        with self._context(name, lambda: span.at):
            check_range(start, end)
            check_name(name)
            if start == end:
                return memoryview(b"")
            tries = self._tries(wanted)
            pinned = version

            def get(low: int, high: int) -> memoryview:
                nonlocal pinned
                tries.check_wanted()
                part, found = self._request(tries, name, lambda client: _checked(client, name, low, high, pinned))
                tries.progressed()
                pinned = pinned or found  # pieces are of one object, also where the caller knows no version
                return part

            return tries.until_done(lambda: span.read(get))

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

    def _call(self, action: Callable[[Client], T], name: str) -> T:
        """Do what the client tries again by itself."""
        with self._context(name):
            tries = Tries(self._here().pauses, self.deadline, most=FEW)
            return tries.until_done(lambda: self._request(tries, name, action))

    def _tries(self, wanted: Callable[[], bool] = always) -> Tries:
        return Tries(self._here().pauses, self.deadline, wanted)

    def _here(self) -> _Process:
        if self._process.pid != os.getpid():  # in a forked child, where neither client nor locks can be used
            self._process = _Process(self._connector)
        return self._process

    def _request(self, tries: Tries, name: str, action: Callable[[Client], T]) -> T:
        """One request, and a second with a new client where credentials have expired.

        Raises Again where another try may help, else StoreError.
        """
        here = self._here()
        client = here.client()
        while True:
            sent = time.monotonic()
            try:
                return action(client)
            except StoreError:
                raise
            except client.errors as error:
                failure = client.explain(error)
            # The client's own error may quote a signed URL, so it is not chained: tracebacks would show it.
            if not failure.expired or tries.renewed:
                break
            tries.renewed = True
            client = here.client(worn=client)
        if failure.busy:
            here.pauses.refused(sent, failure, lambda: client.retry_after(name))
        raise Again(failure) if failure.again else failure.error

    @contextlib.contextmanager
    def _context(self, name: str, offset: Callable[[], int] | None = None) -> Iterator[None]:
        """Let errors say what they are about, and show no secret."""
        try:
            yield
        except StoreError as error:
            error.fact = self._clean(error.fact)
            error.args = (error.fact,)
            error.at(shard=join_url(self.url, name), offset=offset() if offset else None)
            raise

    def _clean(self, text: str) -> str:
        for secret in self._connector.secrets():
            text = text.replace(secret, "***")
        return redact(text)


def _checked(client: Client, name: str, start: int, end: int, version: str | None) -> tuple[memoryview, str | None]:
    """The bytes [start, end) of that version, and the version that the reply shows.

    Raises Again where fewer came of an object that has them.
    """
    data, found = client.get(name, start, end, version)
    if version is not None and found is not None and found != version:
        raise ObjectChanged(f"the object has been replaced: version {found}, not {version}", hint=REPLACED)
    if len(data) == end - start:
        return data, found
    size, _ = client.head(name)
    if size < end:
        raise StoreError(f"the object has {size} bytes, not the {end} asked for", hint=CUT)
    raise Again(Failure(StoreError(f"{len(data)} bytes came instead of {end - start}", hint="check the network"), True))
