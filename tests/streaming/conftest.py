"""A small dataset, and an environment in which no other job's ranks or caches show."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from budgeted import SAMPLES
from pictures import write
from reading import write_numbered


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An indexed dataset of 37 samples in 7 shards of different sizes; tests must not change it."""
    return str(write_numbered(tmp_path_factory.mktemp("small") / "data"))


@pytest.fixture(scope="session")
def forkserver() -> None:
    """A running fork server that has loaded torch, so that workers it starts need not; it ends with the tests."""
    from multiprocessing.forkserver import _forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(["streaming.dataset", "streaming.loader"])
    _forkserver.ensure_running()  # type: ignore[attr-defined]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shardstream"


@pytest.fixture
def nothing_left() -> Iterator[Callable[[], None]]:
    """A function that waits until no thread, process, shared memory or open shard is left that was not there
    at the start, or fails.
    """
    threads = set(threading.enumerate())
    me = psutil.Process()
    children = set(me.children(recursive=True))
    gc.collect()
    files = _open_files()

    def check() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            new_threads = [t for t in threading.enumerate() if t not in threads]
            new_children = [c for c in me.children(recursive=True) if c not in children and not _lasting(c)]
            gc.collect()  # exceptions and their tracebacks hold on to generators until then
            new_files = _open_files() - files
            if not new_threads and not new_children and not new_files:
                return
            time.sleep(0.05)
        pytest.fail(f"left behind: {new_threads}, {new_children}, {new_files}")

    yield check
    check()


def _open_files() -> Counter[str]:
    """How many pieces of nameless memory and shards this process has open."""
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            kind = next((k for k in ("/memfd:shardstream", ".tar") if k in target), None)
            if kind is not None:
                found[kind] += 1
    return found


def _lasting(process: psutil.Process) -> bool:
    """Whether this is the helper that Python itself keeps for shared memory until it exits."""
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def few_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small units and blocks, so that the few samples here are packed in several; in this process only."""
    _set_few_bins(monkeypatch)


@pytest.fixture(scope="module")
def few_bins_throughout() -> Iterator[None]:
    """The same for all tests of a module, as those need that draw their own plans."""
    with pytest.MonkeyPatch.context() as patch:
        _set_few_bins(patch)
        yield


def _set_few_bins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("streaming.plan.packing.UNIT_BINS", 3)
    patch.setattr("streaming.plan.making.BLOCK_BINS", 5)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The samples that most tests of budgets read, in 6 shards."""
    return write(tmp_path_factory.mktemp("budgets") / "data", SAMPLES)
