"""StreamingLoader at its limits: few steps, many loaders, abandoned passes, other threads, interrupts, forks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import numbers, planned, write_numbered, write_samples

from streaming import FixedBatch, PlanError, StreamingDataset, StreamingLoader, WorkerError

pytestmark = [pytest.mark.usefixtures("forkserver"), pytest.mark.timeout(120)]


def _open(source: str | Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"batch": FixedBatch(2), "shuffle": True, "seed": 5, "threads": 1, **options})


def _loader(dataset: StreamingDataset, workers: int, **options: Any) -> StreamingLoader:
    return StreamingLoader(dataset, workers=workers, **{"start": "forkserver", **options})


def _exit_codes(loader: StreamingLoader) -> list[int | None]:
    """A list into which the exit codes of the workers come when they have ended."""
    codes: list[int | None] = []
    for process in loader._source._processes:  # type: ignore[union-attr]
        process.close = lambda process=process: codes.append(process.exitcode)  # type: ignore[method-assign, misc]
    return codes


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_same_start_once_more(small: str, workers: int, continuous: bool) -> None:
    """An epoch that is begun anew while an iteration over it is still held comes from its start, not from where that
    is.
    """
    dataset = _open(small)
    with _loader(dataset, workers, continuous=continuous) as loader:
        held = iter(loader)
        for _ in range(3):
            next(held)
        loader.set_epoch(0)
        assert numbers(loader) == planned(dataset, 0)[:18]
        assert numbers(loader) == planned(dataset, 1)[:18]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iteration_whose_loader_was_closed(small: str, workers: int, nothing_left: Callable[[], None]) -> None:
    """Going on with it is an error that says so; a new iteration works."""
    loader = _loader(_open(small), workers)
    held = iter(loader)
    next(held)
    loader.close()
    with pytest.raises(PlanError, match="or it was closed"):
        next(held)
    nothing_left()
    with loader:
        assert numbers(loader) == planned(loader.dataset, 1)[:18]


@pytest.mark.parametrize(("workers", "batch"), [(0, None), (0, FixedBatch(2)), (3, None), (3, FixedBatch(2))])
@pytest.mark.parametrize("continuous", [False, True])
def test_fewer_steps_than_workers(tmp_path: Path, workers: int, continuous: bool, batch: FixedBatch | None) -> None:
    """A rank may have fewer steps than it has workers, or none: each epoch has what there is, as often as asked."""
    folder = write_samples(tmp_path / "data", [(f"{i}.cls", b"%d" % i) for i in range(3)])
    for rank in (0, 3):
        dataset = _open(folder, shuffle=False, tail="uneven", rank=rank, world_size=4, batch=batch)
        with _loader(dataset, workers, continuous=continuous) as loader:
            for _ in range(3):
                assert numbers(loader) == planned(dataset, 0)[rank : rank + 1]


def test_workers_without_a_step_wait(small: str) -> None:
    """A worker that has no step in any epoch waits for a word, also where epochs are begun early: it runs through no
    epochs, and ends when it is told to, by itself.
    """
    dataset = _open(small, batch=FixedBatch(30), shuffle=False, tail="drop")
    with _loader(dataset, 3, continuous=True) as loader:
        assert len(list(loader)) == 1
        codes = _exit_codes(loader)
    assert codes == [0, 0, 0]  # not -15: none had to be killed


class Long:
    """Makes samples of which a message is nearly as long as a message may be that goes through the pipe."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:  # noqa: D102
        return sample | {"text": "x" * 28_000}


def test_passes_that_are_abandoned(tmp_path: Path) -> None:
    """However many passes are begun and left, no two ends wait for each other: what nobody took goes first, though it
    fills the pipes; and the next whole epoch is whole.
    """
    folder = write_numbered(tmp_path / "data", [40])
    dataset = _open(folder, transform=Long())
    with _loader(dataset, 2, prefetch=8) as loader:
        for _ in range(320):
            next(iter(loader))
        assert numbers(loader) == planned(dataset, 320)[:20]


def test_loaders_side_by_side(small: str, nothing_left: Callable[[], None]) -> None:
    """Several loaders can be read in turns, one inside the other, and on other threads than the main one."""
    one, two = _open(small), _open(small, seed=6)
    got: list[list[list[int]]] = []
    with _loader(one, 1) as first, _loader(two, 0, threads=2) as second:
        for epoch, (a, b) in enumerate(zip(first, second, strict=True)):
            assert numbers([a, b]) == [planned(one, 0)[epoch], planned(two, 0)[epoch]]
        for step, batch in enumerate(first):
            if step % 9 == 0:
                assert len(numbers(second)) == 18
            got.append(numbers([batch]))
        threads = [threading.Thread(target=lambda use=use: got.append(numbers(use))) for use in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(len, got[-2:])) == [18, 18]
    nothing_left()


def _train(folder: str, answers: Any) -> None:
    try:
        answers.put(len(list(_loader(_open(folder), 1))))
    except PlanError as error:
        answers.put(str(error))
    with _loader(_open(folder), 0) as loader:
        answers.put(len(list(loader)))


def test_trainers_that_are_daemons(small: str) -> None:
    """A daemon process may have no children: it is told so, and reads in its own threads."""
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    process = context.Process(target=_train, args=(small, answers), daemon=True)
    process.start()
    assert "may not start worker processes: use workers=0" in answers.get(timeout=100)
    assert answers.get(timeout=100) == 18
    process.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_processes_that_were_forked_meanwhile(small: str) -> None:
    """Workers end with their loader, by themselves, though another process has its connections too; and the collection
    of the loader in that process ends nothing.
    """
    loader = _loader(_open(small), 2)
    first = iter(loader)
    next(first)
    ends = [os.pipe(), os.pipe()]
    child = os.fork()
    if child == 0:
        try:
            del first
            loader.close()
            os.write(ends[0][1], b"closed")
            os.read(ends[1][0], 1)
        finally:
            os._exit(0)
    assert os.read(ends[0][0], 6) == b"closed"
    assert len(list(first)) == 17
    codes = _exit_codes(loader)
    loader.close()
    assert codes == [0, 0]  # not -15: none had to be killed
    os.write(ends[1][1], b"x")
    os.waitpid(child, 0)
    for end in (*ends[0], *ends[1]):
        os.close(end)


class Masked:
    """Says, as a worker begins, whether Ctrl-C is held back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        held = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with self.path.open("a") as file:
            file.write(f"{held}\n")

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:  # noqa: D102
        return sample


_SPAWNING = """
import sys
from pathlib import Path
import test_loader_limits as limits
if __name__ == "__main__":
    dataset = limits._open(sys.argv[1], transform=limits.Masked(Path(sys.argv[2])))
    with limits.StreamingLoader(dataset, workers=1) as loader:
        next(iter(loader))
"""


def _run(code: str, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program, whose workers import it anew, with the tests at hand."""
    path.write_text(textwrap.dedent(code))
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), str(here.parents[1])])
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_workers_start_without_ctrl_c(tmp_path: Path, small: str) -> None:
    """From their first moment on workers do not see Ctrl-C, the first one that a program starts included."""
    done = _run(_SPAWNING, tmp_path / "program.py", small, str(tmp_path / "seen"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text().split() == ["True"]


_UNGUARDED = """
import sys
import test_loader_limits as limits
list(limits.StreamingLoader(limits._open(sys.argv[1])))
"""


def test_programs_without_a_guard(tmp_path: Path, small: str) -> None:
    """A program whose main code would run in its workers, too, ends with an error that says what is missing."""
    done = _run(_UNGUARDED, tmp_path / "program.py", small)
    assert done.returncode == 1
    assert "WorkerError: worker 0" in done.stderr.splitlines()[-1]
    assert "guards its main code with `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]


def test_a_worker_that_dies_between_epochs(small: str, nothing_left: Callable[[], None]) -> None:
    """It is an error of the next iteration, which names it; the one after that has new workers."""
    loader = _loader(_open(small), 2)
    assert len(list(loader)) == 18
    process = loader._source._processes[1]  # type: ignore[union-attr]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(WorkerError, match=r"worker 1 \(process \d+\) was killed by signal 9"):
        list(loader)
    assert numbers(loader) == planned(loader.dataset, 2)[:18]
    loader.close()
    nothing_left()
