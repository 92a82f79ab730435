"""Who is reading."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import PlanError
from streaming.place import THREADS, Place, choose_workers, cores, resolve_place


def test_alone_without_a_word() -> None:
    """Without arguments and environment there is one rank."""
    assert resolve_place() == Place(0, 1, 1)


def test_arguments_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank and world size that are passed are taken, whatever RANK and WORLD_SIZE say."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_place(1, 2) == Place(1, 2, 1)


def test_environment_as_torchrun_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK, WORLD_SIZE and LOCAL_WORLD_SIZE are read."""
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert resolve_place() == Place(5, 8, 4)


@pytest.mark.parametrize(("local", "expected"), [("16", 2), ("0", 1)])
def test_local_ranks_are_between_one_and_all(monkeypatch: pytest.MonkeyPatch, local: str, expected: int) -> None:
    """A LOCAL_WORLD_SIZE that can't be is brought into the range of what can be."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    assert resolve_place(0, 2).local_world_size == expected


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Only one of RANK and WORLD_SIZE would let each process read everything, so it is an error."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(PlanError, match=r"only one is set.*torchrun"):
        resolve_place()


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2)])
def test_half_the_arguments_are_refused(rank: int | None, world_size: int | None) -> None:
    """Rank without world size, or the reverse, is an error."""
    with pytest.raises(PlanError, match="go together"):
        resolve_place(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_ranks_out_of_range_are_refused(rank: int, world_size: int) -> None:
    """A rank that the world size has no place for is an error with both numbers."""
    with pytest.raises(PlanError, match=f"rank {rank} of world size {world_size}"):
        resolve_place(rank, world_size)


def test_variables_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what it holds."""
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(PlanError, match="RANK is 'one'"):
        resolve_place()


_GROUP = """
import sys, torch.distributed as dist
from streaming.place import resolve_place
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
print(resolve_place().rank, resolve_place().world_size)
dist.destroy_process_group()
print(resolve_place().rank, resolve_place().world_size)
"""


def _python(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def test_a_process_group_goes_before_the_environment(tmp_path: object) -> None:
    """While torch.distributed is initialised its numbers hold, behind that the environment's again."""
    assert _python(_GROUP, f"{tmp_path}/rendezvous", RANK="3", WORLD_SIZE="4") == "0 1\n3 4\n"


def test_torch_is_not_loaded_to_find_out() -> None:
    """Asking for the place loads no torch: a program that has not loaded it has started no process group."""
    code = "import sys; from streaming.place import resolve_place; resolve_place(); print('torch' in sys.modules)"
    assert _python(code) == "False\n"


def test_cores_are_those_that_this_process_may_use() -> None:
    """A process bound to one core counts one, however many the machine has."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + (
        "from streaming.place import cores; print(cores())"
    )
    assert _python(code) == "1\n"
    assert cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("mine", "ranks", "threads", "chosen"),
    [
        (1, 1, None, (1, 1)),
        (2, 1, None, (1, 2)),
        (8, 1, None, (4, 2)),
        (9, 1, None, (4, 2)),
        (64, 8, None, (4, 2)),
        (2, 8, None, (1, 1)),
        (16, 1, 3, (8, 3)),
        (16, 1, 0, (8, 0)),
    ],
)
def test_workers_chosen(
    monkeypatch: pytest.MonkeyPatch, mine: int, ranks: int, threads: int | None, chosen: tuple[int, int]
) -> None:
    """One worker for every two of the cores that a rank has, which are shared among their threads; threads that are
    given stay.
    """
    monkeypatch.setattr("streaming.place.cores", lambda: mine)
    assert choose_workers(Place(0, ranks, ranks), threads) == chosen


@given(st.integers(1, 512), st.integers(1, 64))
def test_workers_and_threads_fit_the_cores(mine: int, ranks: int) -> None:
    """Whatever there is, each rank has a worker with a thread, and no more threads than cores where these suffice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streaming.place.cores", lambda: mine)
        workers, threads = choose_workers(Place(0, ranks, ranks))
    assert workers >= 1
    assert 1 <= threads <= THREADS
    assert workers * threads <= max(1, mine // ranks)
