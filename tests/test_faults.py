"""The proxy by which the tests break connections does what it says, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import ALWAYS, Proxy, fin, ignore_range, reset, shorten, stall, status

BODY = bytes(range(256)) * 400


class Handler(BaseHTTPRequestHandler):
    """Serves ranges of BODY, echoes what is put, and has a chunked answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The body, or its range; in chunks where the path says so."""
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for i in range(0, len(BODY), 5000):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(BODY[i : i + 5000]), BODY[i : i + 5000]))
            self.wfile.write(b"0\r\n\r\n")
            return
        first, _, last = self.headers.get("range", f"bytes=0-{len(BODY) - 1}").removeprefix("bytes=").partition("-")
        body = BODY[int(first) : int(last) + 1]
        self.send_response(206 if "range" in self.headers else 200)
        if "range" in self.headers:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(BODY)}")
        self.reply(body if self.command == "GET" else b"", len(body))

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        """Send back what came."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.reply(body, len(body))

    def reply(self, body: bytes, length: int) -> None:
        """End the headers and send the body."""
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay quiet."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """A plain web server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def connect(proxy: Proxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=0.5)


def fetch(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    with connection.getresponse() as reply:
        return reply.read()


def test_what_passes_is_unchanged(upstream: str) -> None:
    """Requests of several kinds on one connection get the server's own answers, and are noted."""
    with Proxy(upstream) as proxy:
        connection = connect(proxy)
        for path in ("/a?x=1", "/chunked"):
            assert fetch(connection, path) == BODY
        connection.request("GET", "/a", headers={"Range": "bytes=5-9"})
        assert connection.getresponse().read() == BODY[5:10]
        connection.request("HEAD", "/a")
        assert connection.getresponse().read() == b""
        connection.request("PUT", "/a", BODY * 10)
        assert connection.getresponse().read() == BODY * 10
        connection.close()
        assert [(r.method, r.path, r.range, r.connection) for r in proxy.requests] == [
            ("GET", "/a?x=1", None, 0), ("GET", "/chunked", None, 0), ("GET", "/a", (5, 9), 0), ("HEAD", "/a", None, 0),
            ("PUT", "/a", None, 0),
        ]  # fmt: skip
        assert proxy.requests[0].headers["host"] == proxy.url.removeprefix("http://")
        assert proxy.sent == 12 * len(BODY) + 5


def test_bodies_that_break(upstream: str) -> None:
    """Resets, early ends and stalls come after so many bytes, as often as asked, and only to what is meant."""
    with Proxy(upstream) as proxy:
        proxy.faults = [
            reset(1000),
            fin(1000, times=2, only=lambda method, path, span: path == "/a"),
            stall(1000, ALWAYS),
        ]
        short = http.client.IncompleteRead
        errors = [
            ("/b", ConnectionResetError),
            ("/a", short),
            ("/a", short),
            ("/a", TimeoutError),
            ("/b", TimeoutError),
        ]
        for path, error in errors:
            with contextlib.closing(connect(proxy)) as connection, pytest.raises(error):
                fetch(connection, path)
        connection = connect(proxy)
        connection.request("GET", "/a", headers={"Range": "bytes=0-999"})
        assert connection.getresponse().read() == BODY[:1000]  # not longer than the fault lets through
        connection.close()


def test_answers_in_the_server_s_place(upstream: str) -> None:
    """Statuses with Retry-After, short answers and whole ones are well formed, and the connection goes on."""
    with Proxy(upstream) as proxy:
        connection = connect(proxy)
        proxy.faults = [status(503, retry_after=7), shorten(1000), ignore_range()]

        def ask() -> tuple[int, dict[str, str], bytes]:
            connection.request("GET", "/a", headers={"Range": "bytes=10-5009"})
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()

        code, headers, body = ask()
        assert (code, headers["retry-after"]) == (503, "7")
        assert b"<Code>SlowDown</Code>" in body
        code, headers, body = ask()
        assert (code, headers["content-range"]) == (206, f"bytes 10-1009/{len(BODY)}")
        assert body == BODY[10:1010]
        code, headers, body = ask()
        assert (code, "content-range" in headers, body) == (200, False, BODY)
        assert ask()[2] == BODY[10:5010]
        assert proxy.connections == 1
        connection.close()


def test_nothing_is_left_behind(upstream: str) -> None:
    """After the block no thread and no socket of the proxy is left, whatever clients were doing."""
    here = psutil.Process()
    threads, files = threading.active_count(), here.num_fds()
    with Proxy(upstream, latency=0.01, rate=1e6) as proxy:
        connections = [connect(proxy) for _ in range(4)]
        proxy.faults = [stall(1000, times=2)]
        for connection in connections:
            connection.request("GET", "/a")
        replies = [connection.getresponse() for connection in connections]
        assert [len(reply.read(1000)) for reply in replies] == [1000] * 4
    for each in (*replies, *connections):
        each.close()
    assert not [each for each in threading.enumerate() if each.name == "fault-proxy"]
    end = time.monotonic() + 30
    while time.monotonic() < end and (here.num_fds() > files or threading.active_count() > threads):
        time.sleep(0.01)  # the server's own threads and sockets take a moment
    assert here.num_fds() <= files
    assert threading.active_count() <= threads


def test_a_proxy_of_its_own_process(upstream: str) -> None:
    """As a command, the proxy prints its URL, and ends with its input."""
    command = [sys.executable, str(Path(__file__).parent / "faults.py"), upstream, "--latency", "0.01"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/a")
        assert connection.getresponse().read() == BODY
        connection.close()
        process.stdin.close()
        assert process.wait(10) == 0
