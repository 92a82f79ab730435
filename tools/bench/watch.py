"""Runs a measurement and, where asked, watches the memory of its whole process tree.

Memory is PSS, the proportional set size of Linux: what processes share is counted once, files that are mapped are
counted as far as they are resident.  `anonymous_mb` leaves the files out: page cache that the kernel can take back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INTERVAL = 0.05
LIMIT = 900
"""Seconds after which a measurement has failed."""


class Failed(Exception):
    """A measurement that ended with an error, which is the text."""


def run(command: list[str], environment: Mapping[str, str], *, memory: bool = False) -> dict[str, Any]:
    """The line of JSON that a measurement prints, with `peak_mb` and `anonymous_mb` where its memory is watched."""
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    peak = Peak(process.pid)
    try:
        with peak if memory else contextlib.nullcontext():
            printed, complaints = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {LIMIT} s") from None
    finally:
        # What it has left behind, or all of it where it hangs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        last = [line for line in (complaints + printed).splitlines() if line.strip()]
        raise Failed(f"ended with code {process.returncode}: {' | '.join(last[-2:])}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result | peak.result() if memory else result


class Peak:
    """The most that a process and its descendants hold, looked at every INTERVAL."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = self._anonymous = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def result(self) -> dict[str, float]:
        return {"peak_mb": self._peak / 1e6, "anonymous_mb": self._anonymous / 1e6}

    def _look(self) -> None:
        import psutil

        while not self._over.is_set():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(self._pid)
                sizes = [_pss(process.pid) for process in (root, *root.children(recursive=True))]
                self._peak = max(self._peak, sum(pss for pss, _ in sizes))
                self._anonymous = max(self._anonymous, sum(pss - files for pss, files in sizes))
            time.sleep(INTERVAL)


def _pss(pid: int) -> tuple[int, int]:
    """Bytes of a process, and how many of them are of files; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0, 0
    sizes = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return tuple(int(sizes[name].split()[0]) * 1024 for name in ("Pss", "Pss_File"))  # type: ignore[return-value]
