"""Shards on a web server, and servers that misbehave."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardwriter.errors import ObjectChanged, ObjectNotFound, StoreError
from shardwriter.store import contents, open_store

HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
Reply = Callable[["Handler", bytes], None]


@dataclass
class Server:
    """A web server with files in memory; each entry of `faults` answers one GET in place of the right answer."""

    url: str
    files: dict[str, bytes]
    tag: str | None = '"v1"'
    modified: str | None = "Sun, 06 Nov 1994 08:49:37 GMT"
    faults: list[Reply] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def gets(self) -> int:
        """Number of GET requests so far."""
        return sum(method == "GET" for method, _, _ in self.requests)


class Handler(BaseHTTPRequestHandler):
    """Serves ranges, as web servers in front of datasets do."""

    protocol_version = "HTTP/1.1"
    state: Server

    def do_GET(self) -> None:
        """Answer, or do what the next fault says."""
        self.state.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        data = self.state.files.get(self.path.partition("?")[0])
        if data is None:
            self.send_error(404)
        elif self.command == "GET" and self.state.faults:
            self.state.faults.pop(0)(self, data)
        elif "if-match" in self.headers and self.headers["if-match"] != self.state.tag:
            self.send_error(412)
        else:
            self.answer(data)

    do_HEAD = do_GET  # noqa: N815

    def answer(self, data: bytes, *, send: int | None = None, ranges: bool = True) -> None:
        """Reply with `data` or its range; with only `send` bytes of it, and a length that agrees."""
        start, end = 0, len(data)
        if ranges and "range" in self.headers:
            first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(end, int(last) + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        body = data[start:end][:send]
        self.send_header("Content-Length", str(len(body)))
        if self.state.modified:
            self.send_header("Last-Modified", self.state.modified)
        if self.state.tag:
            self.send_header("ETag", self.state.tag)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server with two shards."""
    state = Server("", {"/sets/a%20b.tar": b"0123456789", "/sets/empty": b""})
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state})) as http:
        state.url = f"http://127.0.0.1:{http.server_port}/sets"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def test_files_of_a_web_server(server: Server) -> None:
    """Files are read whole, by range and as a mapping; names are percent-encoded on the way."""
    store = open_store(server.url)
    assert store.info("a b.tar").size == 10
    assert store.read("a b.tar") == b"0123456789"
    assert store.read("empty") == b""
    assert store.read_range("a b.tar", 3, 5) == b"34"
    with contents(store, "a b.tar") as view:
        assert bytes(view) == b"0123456789"
    with pytest.raises(ObjectNotFound):
        store.info("nothing")


def test_query_and_login_go_with_every_request(server: Server) -> None:
    """A signature in the URL's query is sent each time, as is a login; errors and repr show neither."""
    host = server.url.removeprefix("http://")
    store = open_store(f"http://me:p%40ss@{host}?sig=a%2Fb")
    store.read("a b.tar")
    expected = "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert server.requests
    for _, path, headers in server.requests:
        assert path == "/sets/a%20b.tar?sig=a%2Fb"
        assert headers["authorization"] == expected
    server.faults = [lambda handler, data: handler.send_error(400)]
    with pytest.raises(StoreError) as caught:
        store.read_range("a b.tar", 0, 1)
    for text in (str(caught.value), repr(store), store.url, repr(store.__dict__)):
        assert "sig" not in text
        assert "p%40ss" not in text
        assert "p@ss" not in text


def test_web_servers_can_not_be_listed_or_written(server: Server) -> None:
    """Listing and writing are errors that say what a web server can't do."""
    store = open_store(server.url)
    with pytest.raises(StoreError) as listing:
        list(store.list())
    with pytest.raises(StoreError) as writing:
        store.write("new", b"1")
    assert "web servers" in str(listing.value.hint)
    assert "web servers" in str(writing.value.hint)


def test_servers_without_ranges(server: Server) -> None:
    """A server that answers a range with the whole file is an error, never the wrong bytes."""
    server.faults = [lambda handler, data: handler.answer(data, ranges=False)] * 3
    with pytest.raises(StoreError, match="parts of files"):
        open_store(server.url).read_range("a b.tar", 3, 5)


def test_short_replies_are_asked_for_again(server: Server) -> None:
    """A well-formed reply with too few bytes is not data; another try gets them all."""
    server.faults = [lambda handler, data: handler.answer(data, send=2)]
    assert open_store(server.url).read_range("a b.tar", 3, 8) == b"34567"
    assert server.gets() == 2


def test_replies_that_stay_short_are_an_error(server: Server) -> None:
    """When replies are short until the deadline, the error tells how many bytes came, and how often it was tried."""
    server.faults = [lambda handler, data: handler.answer(data, send=2)] * 1000
    with pytest.raises(StoreError, match=r"2 bytes came instead of 5 \(\d+ tries in") as caught:
        open_store(server.url, {"deadline": 0.5}).read_range("a b.tar", 3, 8)
    assert caught.value.offset == 3
    assert server.gets() >= 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_servers_are_asked_again(server: Server, status: int) -> None:
    """Passing failures of the server are waited out."""
    server.faults = [lambda handler, data: handler.send_error(status)] * 2
    assert open_store(server.url).read_range("a b.tar", 3, 8) == b"34567"


def test_cut_connections_are_resumed(server: Server) -> None:
    """A connection that breaks in the middle of the bytes costs a try, not the bytes."""

    def cut(handler: Handler, data: bytes) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 3-7/{len(data)}")
        handler.send_header("Content-Length", "5")
        handler.end_headers()
        handler.wfile.write(data[3:5])
        handler.close_connection = True

    server.faults = [cut]
    assert open_store(server.url).read_range("a b.tar", 3, 8) == b"34567"


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405])
def test_refusals_are_final(server: Server, status: int) -> None:
    """What the server refuses is not asked again, and the status is told."""
    server.faults = [lambda handler, data: handler.send_error(status)] * 5
    with pytest.raises(StoreError) as caught:
        open_store(server.url).read_range("a b.tar", 3, 8)
    assert server.gets() == 1
    assert isinstance(caught.value, ObjectNotFound) == (status == 404)
    assert {404: "no such object", 301: "redirect"}.get(status, str(status)) in str(caught.value)


def test_replaced_files_are_noticed(server: Server) -> None:
    """A file whose ETag is another than asked for is ObjectChanged, also where the server ignores If-Match."""
    store = open_store(server.url)
    version = store.info("a b.tar").version
    assert version == '"v1"'
    server.tag = '"v2"'
    with pytest.raises(ObjectChanged):
        store.read_range("a b.tar", 0, 2, version=version)
    server.faults = [lambda handler, data: handler.answer(data)]
    with pytest.raises(ObjectChanged, match="v2"):
        store.read_range("a b.tar", 0, 2, version=version)


@pytest.mark.parametrize("tag", ['W/"v1"', None])
def test_the_last_change_stands_in_for_a_tag(server: Server, tag: str | None) -> None:
    """Where there is no strong ETag, Last-Modified pins the version; a replaced file of the same size is noticed."""
    server.tag = tag
    store = open_store(server.url)
    version = store.info("a b.tar").version
    assert version == "modified:1994-11-06T08:49:37"
    assert store.read("a b.tar") == b"0123456789"
    assert store.read_range("a b.tar", 3, 5, version=version) == b"34"
    server.modified = "Sun, 06 Nov 1994 08:49:38 GMT"
    with pytest.raises(ObjectChanged, match="08:49:38"):
        store.read_range("a b.tar", 3, 5, version=version)
    assert all("if-match" not in headers for _, _, headers in server.requests)


@pytest.mark.parametrize("tag", ['W/"v1"', None])
def test_servers_that_show_no_version(server: Server, tag: str | None) -> None:
    """With neither a strong ETag nor Last-Modified, the object has no version, and reads go on."""
    server.tag, server.modified = tag, None
    store = open_store(server.url)
    assert store.info("a b.tar").version is None
    assert store.read("a b.tar") == b"0123456789"


@pytest.mark.parametrize(("code", "form"), [(429, "seconds"), (503, "date")])
def test_retry_after(server: Server, code: int, form: str) -> None:
    """A busy server is asked for one byte to see its Retry-After, with the same query and login, and left alone."""
    times: list[float] = []

    def refuse(handler: Handler, data: bytes) -> None:
        handler.send_response(code)  # with the server's own Date
        now = datetime.strptime(handler.date_time_string(), HTTP_DATE)
        handler.send_header("Retry-After", "1" if form == "seconds" else f"{now + timedelta(seconds=1):{HTTP_DATE}}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        times.append(time.monotonic())

    def answer(handler: Handler, data: bytes) -> None:
        times.append(time.monotonic())
        handler.answer(data)

    server.faults = [refuse, refuse, answer]
    store = open_store(server.url.replace("http://", "http://me:pw@") + "?sig=1")
    assert store.read_range("a b.tar", 3, 8) == b"34567"
    refused, asked, again = server.requests
    assert times[2] >= times[1] + (1 if form == "seconds" else 0.001)
    assert asked[:2] == refused[:2] == again[:2] == ("GET", "/sets/a%20b.tar?sig=1")
    assert asked[2]["authorization"] == refused[2]["authorization"] == again[2]["authorization"]
    assert (asked[2]["range"], again[2]["range"]) == ("bytes=0-0", "bytes=3-7")


def test_a_busy_server_that_redirects(server: Server) -> None:
    """The question how long to wait follows no redirect; without an answer to it, plain back-off does."""

    def away(handler: Handler, data: bytes) -> None:
        handler.send_response(302)
        handler.send_header("Location", handler.path)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    server.faults = [lambda handler, data: handler.send_error(429), away]
    assert open_store(server.url).read_range("a b.tar", 3, 8) == b"34567"
    assert server.gets() == 3


def test_silent_servers_time_out(server: Server) -> None:
    """A server that stops in the middle of its reply is left after read_timeout, and asked again."""
    release = threading.Event()

    def stall(handler: Handler, data: bytes) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 3-7/{len(data)}")
        handler.send_header("Content-Length", "5")
        handler.end_headers()
        handler.wfile.write(data[3:5])
        handler.wfile.flush()
        release.wait(30)
        handler.close_connection = True

    server.faults = [stall]
    try:
        assert open_store(server.url, {"read_timeout": 0.3}).read_range("a b.tar", 3, 8) == b"34567"
    finally:
        release.set()


def test_forked_children_read_from_a_web_server(server: Server) -> None:
    """A child forked from a process that has read from the web reads on without a hang, the query included.

    With a password, for which there is no second way, it is told to start otherwise.
    """
    script = f"""
        import os, sys, warnings
        from shardwriter.errors import ObjectChanged, ObjectNotFound, StoreError
        from shardwriter.store import ForkedStoreWarning, open_store
        warnings.simplefilter("ignore", ForkedStoreWarning)
        store = open_store({server.url!r} + "?sig=1")
        version = store.info("a b.tar").version
        def fails(kind, call):
            try:
                call()
            except StoreError as error:
                return type(error) is kind
        if (child := os.fork()) == 0:
            right = [
                store.read("a b.tar") == b"0123456789",
                store.read_range("a b.tar", 3, 5, version=version) == b"34",
                fails(ObjectChanged, lambda: store.read_range("a b.tar", 3, 5, version='"v0"')),
                fails(ObjectNotFound, lambda: store.read_range("nothing", 0, 1)),
                fails(StoreError, lambda: store.read_range("a b.tar", 3, 11)),
                fails(StoreError, lambda: list(store.list())),
                fails(StoreError, lambda: open_store("http://me:pw@127.0.0.1:9").read("a")),
                fails(StoreError, lambda: open_store("gs://bucket").read("a")),
            ]
            print(right, flush=True)
            os._exit(0 if all(right) else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path for _, path, _ in server.requests} == {"/sets/a%20b.tar?sig=1", "/sets/nothing?sig=1"}


def test_google_and_azure_get_their_options(server: Server) -> None:
    """Endpoint and credentials given as options reach the requests to Google and Azure."""
    server.files |= {"/bucket/x%2Fa%20b%2Etar": b"google", "/container/x/a.tar": b"azure!"}
    endpoint = server.url.removesuffix("/sets")
    google = open_store("gs://bucket/x", {"endpoint_url": endpoint, "token": "hush"})
    assert google.read_range("a b.tar", 1, 3) == b"oo"
    assert server.requests[-1][2]["authorization"] == "Bearer hush"
    azure = open_store("az://container/x", {"endpoint_url": endpoint, "key": "account", "secret": "a2V5"})
    assert azure.read_range("a.tar", 1, 3) == b"zu"
    assert server.requests[-1][2]["authorization"].startswith("SharedKey account:")
    signed = open_store("abfs://container/x", {"endpoint_url": endpoint, "key": "account", "token": "sv=1&sig=hush"})
    assert signed.read_range("a.tar", 1, 3) == b"zu"
    assert "sig=hush" in server.requests[-1][1]
    with pytest.raises(StoreError, match="Account"):
        open_store("az://container/x", {"endpoint_url": endpoint, "token": "sv=1&sig=hush"}).read("a")
