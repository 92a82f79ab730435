"""Starts real training processes, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def torchrun(ranks: int, script: Path, *arguments: object, more: Mapping[str, str] | None = None) -> str:
    """What `ranks` processes of a script print; fails with it where one of them fails, or hangs for two minutes."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, script, *arguments]
    return python(*command, more={"OMP_NUM_THREADS": "1", **(more or {})})


def python(*arguments: object, more: Mapping[str, str] | None = None, timeout: float = 120, code: int = 0) -> str:
    """What a Python process prints, on both streams; fails unless it ends with `code` in time."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), **(more or {})}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise AssertionError(f"no end after {timeout} s:\n{printed}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, f"ended with {process.returncode}:\n{printed}"
    return printed
