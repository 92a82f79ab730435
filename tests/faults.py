"""A proxy in front of a real server that breaks connections, answers for it, or slows it down.

>>> with Proxy(s3.endpoint, latency=0.03, rate=40e6) as proxy:
...     store = open_store(bucket, s3.options | {"endpoint_url": proxy.url})
...     proxy.faults = [status(503, retry_after=1), reset(3 << 20, times=2)]
...     store.read("a.tar")
...     len(proxy.requests), proxy.sent

The Host header passes through as the client sent it, so signatures hold where the client's endpoint is the proxy.
As a command, `python tests/faults.py http://127.0.0.1:8333 --latency 0.03 --rate 40e6` prints the URL of a proxy in a
process of its own, which ends with its standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self
from urllib.parse import urlsplit

Span = tuple[int, int | None]
"""First byte and last byte of a Range header; None for its open end."""
Only = Callable[[str, str, Span | None], bool]
"""Whether (method, path with its query, range) is meant."""
Kind = Literal["reset", "fin", "stall", "shorten", "status", "ignore_range"]

ALWAYS: Final = None
"""As `times`: for every response."""
_CHUNK: Final = 1 << 18
_CODES: Final = {429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)$")


@dataclass(frozen=True)
class Request:
    """What a client asked, and on which connection."""

    method: str
    path: str
    range: Span | None
    headers: dict[str, str]
    """By lower-case names."""
    time: float
    """time.monotonic() when its head had come."""
    connection: int


@dataclass
class Fault:
    """What happens to `times` responses; made by the functions below."""

    kind: Kind
    after: int = 0
    times: int | None = 1
    only: Only | None = None
    code: int = 0
    error: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def reset(after: int, times: int | None = 1, only: Only | None = None) -> Fault:
    """The connection is reset when `after` bytes of a longer body have been sent."""
    return Fault("reset", after, times, only)


def fin(after: int, times: int | None = 1, only: Only | None = None) -> Fault:
    """The connection is closed properly when `after` bytes of a longer body have been sent."""
    return Fault("fin", after, times, only)


def stall(after: int, times: int | None = 1, only: Only | None = None) -> Fault:
    """Nothing more comes when `after` bytes of a longer body have been sent; the connection stays open."""
    return Fault("stall", after, times, only)


def shorten(to: int, times: int | None = 1, only: Only | None = None) -> Fault:
    """A longer body is cut to `to` bytes, and the headers agree with that."""
    return Fault("shorten", to, times, only)


def ignore_range(times: int | None = 1, only: Only | None = None) -> Fault:
    """A request for a part is answered with 200 and the whole object.

    Where the part is signed, the server can't be asked for all, and bytes outside of it are zeros.
    """
    return Fault("ignore_range", 0, times, only)


def status(
    code: int,
    *,
    error: str | None = None,
    retry_after: float | str | None = None,
    times: int | None = 1,
    only: Only | None = None,
) -> Fault:
    """The server answers with this status and S3's error code, and is not asked."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Fault("status", 0, times, only, code, error or _CODES.get(code, "Refused"), headers)


class Proxy:
    """Forwards HTTP/1.1 to `upstream`, and does to the responses what `faults` says.

    `faults` is a list, of which the first entry that means the request and has times left is used up by one, or a
    function of the Request.  `only` limits all faults; by default to GET.  Faults in the middle of a body pass by
    bodies that are not longer.  All attributes can be set at any time: `latency` in seconds before each reply, `rate`
    in bytes a second for each connection.
    """

    def __init__(
        self,
        upstream: str,
        faults: Sequence[Fault] | Callable[[Request], Fault | None] = (),
        *,
        latency: float = 0.0,
        rate: float | None = None,
        port: int = 0,
        only: Only = lambda method, path, span: method == "GET",
    ) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.faults = faults
        self.latency = latency
        self.rate = rate
        self.port = port
        self.only = only
        self.requests: list[Request] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._sent: list[int] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        with self._lock:
            for each in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._listener.close()

    @property
    def sent(self) -> int:
        """Bytes of bodies that were sent to clients so far."""
        return sum(self._sent)

    def count(self, number: int, sent: int) -> None:
        """Add to the bytes that connection `number` has sent."""
        self._sent[number] += sent

    def record(self, request: Request) -> Fault | None:
        """Note a request, and tell what happens to its response."""
        with self._lock:
            self.requests.append(request)
            asked = (request.method, request.path, request.range)
            if not self.only(*asked):
                return None
            if callable(self.faults):
                return self.faults(request)
            for fault in self.faults:
                if fault.times != 0 and (fault.only is None or fault.only(*asked)):
                    return fault
            return None

    def use(self, fault: Fault) -> bool:
        """Use the fault once; False where another connection was first."""
        with self._lock:
            if fault.times is not None:
                if fault.times <= 0:
                    return False
                fault.times -= 1
            return True

    @contextlib.contextmanager
    def held(self, sock: socket.socket) -> Iterator[socket.socket]:
        """Close the socket at the end of the block, or wake its thread when the proxy stops."""
        with self._lock:
            self._open.add(sock)
        try:
            if self.stopping.is_set():
                raise ConnectionAbortedError
            yield sock
        finally:
            with self._lock:
                self._open.discard(sock)
                sock.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="fault-proxy")
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # the proxy stops
            self._sent.append(0)
            self._start(_Connection(self, sock, self.connections).serve)
            self.connections += 1


class _Peer:
    """One side of a connection: heads are read through a buffer, bodies past it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.ahead = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def until(self, mark: bytes) -> bytes:
        """Bytes up to and with `mark`; none where the peer closed before it."""
        while (end := self.ahead.find(mark)) < 0:
            more = self.sock.recv(_CHUNK)
            if not more:
                return b""
            self.ahead += more
        cut = end + len(mark)
        found, self.ahead = self.ahead[:cut], self.ahead[cut:]
        return found

    def read_into(self, buffer: memoryview) -> int:
        """Some bytes; 0 where the peer closed."""
        if self.ahead:
            taken = min(len(buffer), len(self.ahead))
            buffer[:taken], self.ahead = self.ahead[:taken], self.ahead[taken:]
            return taken
        return self.sock.recv_into(buffer)


class _Break(Exception):
    """The fault has ended the connection."""


class _Connection:
    """One client, with a connection of its own to the server."""

    def __init__(self, proxy: Proxy, sock: socket.socket, number: int) -> None:
        self.proxy = proxy
        self.client = _Peer(sock)
        self.number = number
        self.buffer = memoryview(bytearray(_CHUNK))

    def serve(self) -> None:
        """Requests one after the other, until either side has enough."""
        hold = self.proxy.held
        with contextlib.suppress(OSError, _Break), hold(self.client.sock), hold(self.connect()) as upstream:
            self.server = _Peer(upstream)
            while (head := self.client.until(b"\r\n\r\n")) and self.exchange(head):
                pass

    def connect(self) -> socket.socket:
        """A connection to the server."""
        return socket.create_connection(self.proxy.upstream)

    def exchange(self, head: bytes) -> bool:
        """One request and its response; whether the connection can go on."""
        first, headers = _parsed(head)
        method, path = first.split(" ")[:2]
        match = _RANGE.match(headers.get("range", ""))
        span = (int(match[1]), int(match[2]) if match[2] else None) if match else None
        fault = self.proxy.record(Request(method, path, span, headers, time.monotonic(), self.number))
        if fault and fault.kind == "status" and self.proxy.use(fault):
            self.proxy.stopping.wait(self.proxy.latency)
            return self.refuse(fault, method, headers)
        if fault and fault.kind == "ignore_range" and "range;" not in headers.get("authorization", ""):
            if span and self.proxy.use(fault):
                head = re.sub(rb"(?im)^range:[^\r\n]*\r\n", b"", head)
            fault = None
        self.server.sock.sendall(head)
        if "100-continue" not in headers.get("expect", ""):
            self.relay(self.client, self.server, _length(headers), None, counted=False)
        return self.respond(method, headers, fault)

    def respond(self, method: str, asked: dict[str, str], fault: Fault | None) -> bool:
        """Send the server's response on."""
        while True:
            head = self.server.until(b"\r\n\r\n")
            if not head:
                return False
            first, headers = _parsed(head)
            code = int(first.split(" ")[1])
            if code >= 200:
                break
            self.client.sock.sendall(head)
            if code == 100:
                self.relay(self.client, self.server, _length(asked), None, counted=False)
        if self.proxy.latency:
            self.proxy.stopping.wait(self.proxy.latency)
        bodiless = method == "HEAD" or code in (204, 304)
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = 0 if bodiless else _length(headers) if chunked or "content-length" in headers else None
        in_body = fault is not None and fault.kind != "status" and code < 300
        if not (fault and in_body and length and length > fault.after and self.proxy.use(fault)):
            fault = None
        if fault and fault.kind == "shorten" and length:
            self.client.sock.sendall(_shortened(head, fault.after))
            self.relay(self.server, self.client, fault.after, None)
            self.relay(self.server, None, length - fault.after, None)
            return True
        if fault and fault.kind == "ignore_range" and "content-range" in headers:
            self.widen(head, headers["content-range"])
            return True
        self.client.sock.sendall(head)
        if chunked and not bodiless:
            self.chunks()
        else:
            self.relay(self.server, self.client, length, fault)
        return length is not None and headers.get("connection", "").lower() != "close"

    def widen(self, head: bytes, content_range: str) -> None:
        """Send a part on as if it were the whole, with zeros around it."""
        first, last, total = map(int, re.findall(r"\d+", content_range))
        head = re.sub(rb"(?im)^content-range:[^\r\n]*\r\n", b"", head)
        head = re.sub(rb"(?im)^(content-length:)[^\r\n]*", rb"\1 %d" % total, head)
        self.client.sock.sendall(re.sub(rb"^(\S+) [^\r\n]*", rb"\1 200 OK", head))
        self.client.sock.sendall(bytes(first))
        self.relay(self.server, self.client, last + 1 - first, None)
        self.client.sock.sendall(bytes(total - last - 1))

    def refuse(self, fault: Fault, method: str, headers: dict[str, str]) -> bool:
        """Answer in the server's place."""
        body = f"<?xml version='1.0'?><Error><Code>{fault.error}</Code><Message>injected</Message></Error>".encode()
        going_on = _length(headers) == 0
        lines = [f"HTTP/1.1 {fault.code} Injected", f"Content-Length: {len(body)}", "Content-Type: application/xml"]
        lines += [f"{name}: {value}" for name, value in fault.headers.items()]
        lines += [] if going_on else ["Connection: close"]
        self.client.sock.sendall("\r\n".join([*lines, "", ""]).encode() + (b"" if method == "HEAD" else body))
        return going_on

    def chunks(self) -> None:
        """Send a chunked body on."""
        while line := self.server.until(b"\r\n"):
            self.client.sock.sendall(line)
            size = int(line.partition(b";")[0], 16)
            if size == 0:
                while (trailer := self.server.until(b"\r\n")) not in (b"\r\n", b""):
                    self.client.sock.sendall(trailer)
                self.client.sock.sendall(b"\r\n")
                return
            self.relay(self.server, self.client, size, None)
            self.client.sock.sendall(self.server.until(b"\r\n"))

    def relay(
        self, source: _Peer, sink: _Peer | None, length: int | None, fault: Fault | None, *, counted: bool = True
    ) -> None:
        """Send `length` bytes on, or all until the source closes; the fault acts after some of them."""
        left = length if fault is None else fault.after
        due = time.monotonic()
        while left is None or left > 0:
            got = source.read_into(self.buffer if left is None else self.buffer[:left])
            if not got:
                if left is None:
                    return
                raise _Break
            if sink is not None:
                rate = self.proxy.rate
                if counted and rate:
                    due = max(due, time.monotonic() - 0.05) + got / rate
                    if (early := due - time.monotonic()) > 0:
                        self.proxy.stopping.wait(early)
                if counted:  # before the client can have them
                    self.proxy.count(self.number, got)
                sink.sock.sendall(self.buffer[:got])
            left = None if left is None else left - got
        if fault is not None:
            self.end(fault)

    def end(self, fault: Fault) -> None:
        """End the connection in the middle of the body."""
        if fault.kind == "stall":
            while self.client.sock.recv(_CHUNK):
                pass
        elif fault.kind == "reset":
            self.client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _Break


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(headers: dict[str, str]) -> int:
    return int(headers.get("content-length", 0))


def _shortened(head: bytes, to: int) -> bytes:
    """The head of a response with `to` bytes."""
    head = re.sub(rb"(?im)^(content-length:)[^\r\n]*", rb"\1 %d" % to, head)

    def span(match: re.Match[bytes]) -> bytes:
        return b"%s %d-%d/%s" % (match[1], int(match[2]), int(match[2]) + to - 1, match[3])

    return re.sub(rb"(?im)^(content-range: *bytes) +(\d+)-\d+/([^\r\n]*)", span, head)


def main() -> None:
    """Run a proxy until standard input ends."""
    parser = argparse.ArgumentParser(description="a proxy with latency and a rate for each connection")
    parser.add_argument("upstream")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each reply")
    parser.add_argument("--rate", type=float, help="bytes a second for each connection")
    given = parser.parse_args()
    with Proxy(given.upstream, latency=given.latency, rate=given.rate) as proxy:
        sys.stdout.write(f"{proxy.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
