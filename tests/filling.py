"""Processes that use one cache folder, and a second opinion on what is in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchrun import ROOT

from streaming.cache.disk import DiskTier
from streaming.cache.sealed import FOOTER_BYTES

MARKER = "shardstream-cache.json"
LEDGER = "shardstream-cache.ledger"

FILLER = """
import os, random, sys, time
from filling import content
from streaming.cache.disk import DiskTier

folder, limit, seed, entries, size, passes, group = sys.argv[1], *map(int, sys.argv[2:7]), sys.argv[7]
order = random.Random(seed)
with DiskTier(folder, limit or None, recount_every=0.05) as tier:
    tier.use(group, f"s3://bucket/{group}")
    print("ready", flush=True)
    for _ in range(passes):
        for n in order.sample(range(entries), entries):
            name = f"{group}/{n}"
            data = tier.get(name, size)
            if data is None:
                def make():
                    time.sleep(order.random() * 0.004)
                    return content(n, size)
                data, made = tier.fill(name, size, make)
                if made:
                    print("made", n, flush=True)
            assert data == content(n, size), n
    print("done", tier.counters()["failed"], flush=True)
    sys.stdin.read(1)
"""


def content(n: int, size: int) -> bytes:
    """The bytes of entry n."""
    return (b"%09d." % n * (size // 10 + 1))[:size]


def start(
    folder: Path,
    *,
    limit: int = 0,
    seed: int = 0,
    entries: int = 20,
    size: int = 5000,
    passes: int = 1,
    group: str = "g",
) -> subprocess.Popen[str]:
    """A process that reads all entries some times in an order of its own, and says what it made; limit 0: none.

    At the end it holds the group until its input ends.
    """
    numbers = map(str, (limit, seed, entries, size, passes))
    return subprocess.Popen(
        [sys.executable, "-c", FILLER, str(folder), *numbers, group],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def finish(process: subprocess.Popen[str]) -> list[int]:
    """Let the process end; which entries it made.  Fails unless it ended well and without faults of the disk."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = out.split("\n")
    assert "done 0" in lines
    return [int(line.removeprefix("made ")) for line in lines if line.startswith("made ")]


@contextlib.contextmanager
def ended(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """Kill what still runs when the block ends."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()


def weigh(folder: Path) -> int:
    """Bytes of all files below the folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(parent, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


class Watcher:
    """Looks again and again at how much is in a folder, `looks` times; `most` is the most that it saw.

    It holds the ledger meanwhile, so that it doesn't add up files that were never there together.
    """

    def __init__(self, folder: Path) -> None:
        self.most = self.looks = 0
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.001):
            with contextlib.suppress(FileNotFoundError), open(self._folder / LEDGER, "rb") as ledger:
                fcntl.flock(ledger, fcntl.LOCK_EX)
                self.most = max(self.most, weigh(self._folder))
                self.looks += 1

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def entries(folder: Path, group: str = "g") -> set[str]:
    """Names of the entries of a group that have files."""
    return {path.name.removesuffix(".chunk") for path in (folder / group).glob("*.chunk")}


def overhead(folder: Path) -> int:
    """Bytes of the cache's own small files."""
    return sum(path.stat().st_size for path in [folder / MARKER, folder / LEDGER, *folder.glob("*/.use")])


def limit_for(count: int, size: int, label: str = "") -> int:
    """The limit with which exactly so many entries of one group fit."""
    marker = len('{"shardstream cache": 1}\n')
    return count * (size + FOOTER_BYTES) + marker + 32 + (len(label) + 1 if label else 0)


def fill(tier: DiskTier, name: str, data: bytes = b"x" * 1000, **more: object) -> bool:
    """Fill an entry; whether it is stored now."""
    found, _ = tier.fill(name, len(data), lambda: data, **more)  # type: ignore[arg-type]
    assert found == data
    kept = tier.get(name, len(data))
    assert kept is None or kept == data
    return kept is not None
