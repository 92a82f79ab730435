"""Worker processes: how they start, fail and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from reading import FailAt, numbers, planned, write_numbered

from streaming import FixedBatch, PlanError, StreamingDataset, StreamingLoader, TransformError, WorkerError

pytestmark = pytest.mark.usefixtures("forkserver")


def _open(source: str | Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"batch": FixedBatch(2), "shuffle": True, "seed": 5, "threads": 1, **options})


def _loader(source: str | Path, workers: int = 1, start: str = "forkserver", **options: Any) -> StreamingLoader:
    return StreamingLoader(_open(source, **options), workers=workers, start=start)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_forked_workers(small: str, nothing_left: Callable[[], None]) -> None:
    """Workers may be forked too; each ends with the loader though it was born with the others' connections."""
    with _loader(small, 3, start="fork") as loader:
        assert numbers(loader) == planned(loader.dataset, 0)[:18]
    nothing_left()


def test_a_transform_that_can_not_be_sent(small: str, nothing_left: Callable[[], None]) -> None:
    """A lambda is refused with what to do, before anything is read, and nothing is left behind."""
    loader = _loader(small, 2, transform=lambda sample, rng: sample)
    with pytest.raises(PlanError, match=r"can't be sent to a worker process.*top of a module, or use workers=0"):
        next(iter(loader))
    nothing_left()


def test_the_traceback_of_a_worker(small: str) -> None:
    """An error in a worker comes with the traceback that it had there."""
    with (
        _loader(small, transform=FailAt(*range(37))) as loader,
        pytest.raises(TransformError, match="FailAt") as caught,
    ):
        next(iter(loader))
    text = str(caught.value.__cause__)
    assert "Traceback (most recent call last)" in text
    assert "raise Unpicklable" in text


def unpicklable(samples: Any) -> Any:
    """A batch that no process can send."""
    return {"cls": [s["cls"] for s in samples], "later": lambda: 1}


def leave(samples: Any) -> Any:
    """A collate function that ends its process."""
    sys.exit(3)


def huge(samples: Any) -> Any:
    """A batch in memory that does not exist."""
    raise MemoryError("no room for it")


@pytest.mark.parametrize(
    ("collate", "kind", "match"),
    [
        (unpicklable, TransformError, "a list can't be sent from the worker process"),
        (huge, TransformError, "no room for it"),
    ],
)
def test_batches_that_can_not_be_made(
    small: str, collate: Any, kind: type[Exception], match: str, nothing_left: Callable[[], None]
) -> None:
    """What goes wrong with a batch in a worker is an error in the trainer, and ends the workers."""
    loader = _loader(small, 2, collate=collate)
    with pytest.raises(kind, match=match):
        next(iter(loader))
    nothing_left()


def test_an_exit_in_a_worker_does_not_hang(small: str, nothing_left: Callable[[], None]) -> None:
    """A function of the user's that ends its worker is an error that names the code, not an endless wait."""
    loader = _loader(small, 1, collate=leave)
    with pytest.raises(WorkerError, match=r"worker 0 \(process \d+\) ended with code 3"):
        next(iter(loader))
    nothing_left()


class Images:
    """Makes each sample carry an array that is large enough for shared memory."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:  # noqa: D102
        return sample | {"big": np.full(self.size, sample["cls"], np.uint8)}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_may_be_kept(small: str, workers: int, nothing_left: Callable[[], None]) -> None:
    """All batches of two epochs, kept or let go in any order, hold what they held when they came."""
    dataset = _open(small, transform=Images(100_000), tail="uneven")
    with StreamingLoader(dataset, workers=workers, start="forkserver") as loader:
        kept = [batch for _ in range(2) for batch in loader]
        assert len(kept) == 2 * 19
        for batch in kept:
            assert torch.equal(batch["big"], batch["cls"].to(torch.uint8)[:, None].expand(-1, 100_000))
        parts = [batch["big"][0, :3] for batch in kept[::5]]
        values = [batch["cls"][0] for batch in kept[::5]]
        del kept, batch
        assert [part.tolist() for part in parts] == [[int(value)] * 3 for value in values]
        del parts
    nothing_left()


@pytest.mark.parametrize("workers", [0, 1])
def test_memory_is_used_again(small: str, workers: int) -> None:
    """Batches that are let go lie in a few places only, epoch after epoch."""
    dataset = _open(small, transform=Images(200_000))
    places = set()
    with StreamingLoader(dataset, workers=workers, start="forkserver") as loader:
        for _ in range(4):
            for batch in loader:
                places.add(batch["big"].data_ptr())
                del batch
    assert len(places) <= 8, "of 72 batches"


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_memory_stays_flat(tmp_path: Path, workers: int) -> None:
    """From the second to the twentieth epoch the process and its workers grow by less than 20 MB together."""
    folder = write_numbered(tmp_path / "data", [40] * 4)
    me = psutil.Process()

    def used() -> int:
        processes = [me, *(c for c in me.children(recursive=True) if "serve" in "".join(c.cmdline()) or workers)]
        return sum(p.memory_full_info().uss for p in processes)

    dataset = _open(folder, batch=FixedBatch(8), transform=Images(100_000))
    sizes = []
    with StreamingLoader(dataset, workers=workers, threads=2, start="forkserver") as loader:
        for _ in range(20):
            assert sum(1 for _ in loader) == 20
            sizes.append(used())
    assert sizes[-1] - sizes[1] < 20 << 20


SCRIPT = """
    import sys, time
    from streaming import FixedBatch, StreamingDataset, StreamingLoader

    def main():
        dataset = StreamingDataset(sys.argv[1], batch=FixedBatch(2), rank=0, world_size=1, on_error="raise")
        loader = StreamingLoader(dataset, workers={workers}, threads=1)
        for batch in loader:
            print("ready", flush=True)
            {then}

    if __name__ == "__main__":
        main()
"""


def _script(
    tmp_path: Path, small: str, then: str, workers: int = 1
) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A program in its own process group that reads with workers; it and they, once it has a batch."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT).format(then=then, workers=workers))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, str(path), small],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process, psutil.Process(process.pid).children(recursive=True)


def _all_ended(children: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(children, timeout=30)
    return not alive


@pytest.mark.timeout(120)
def test_ctrl_c(tmp_path: Path, small: str) -> None:
    """Ctrl-C, which all processes of a terminal get, ends the program with one traceback, and its workers."""
    process, children = _script(tmp_path, small, "time.sleep(60)", workers=2)
    assert len(children) >= 2
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT or process.returncode == 1
    assert errors.count("Traceback") == 1, errors
    assert "KeyboardInterrupt" in errors
    assert _all_ended(children)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("then", "code"), [("os._exit(7)", 7), ("sys.exit(5)", 5), ("1 / 0", 1), ("break", 0), ("pass", 0)]
)
def test_however_a_program_ends(tmp_path: Path, small: str, then: str, code: int) -> None:
    """Workers end with the program, which needs no close(), and say nothing."""
    process, children = _script(tmp_path, small, then.replace("os.", "import os; os."))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.count("Traceback") == (code == 1), errors
    assert _all_ended(children)


@pytest.mark.timeout(120)
def test_a_program_that_is_killed(tmp_path: Path, small: str) -> None:
    """Workers of a program that SIGKILL ends notice it and end."""
    process, children = _script(tmp_path, small, "time.sleep(60)")
    process.kill()
    process.communicate(timeout=60)
    assert _all_ended(children)


def which(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Say which process decoded a sample."""
    return sample | {"pid": os.getpid()}


def test_workers_stay(small: str) -> None:
    """The same two processes, neither of them the trainer's, read all epochs, in turns."""
    with _loader(small, 2, transform=which) as loader:
        epochs = [[int(batch["pid"][0]) for batch in loader] for _ in range(3)]
    assert os.getpid() not in epochs[0]
    assert len(set(epochs[0])) == 2
    assert epochs == [epochs[0][:2] * 9] * 3
