"""The same function over many shards, in this process or in several, with a progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from .pool import WorkerPool

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    *,
    workers: int | None,
    label: str,
    progress: bool | None,
) -> list[Result]:
    """[function(job) for job in jobs] by `workers` processes (None: one a CPU, at most one a job; 1: this process).

    >>> run_jobs(len, ["a", "bc"], workers=1, label="counting", progress=False)
    [1, 2]

    The first error ends the others' work and is raised.  `progress` shows a bar (None: on terminals).
    """
    from tqdm import tqdm

    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    hidden = None if progress is None else not progress
    with tqdm(total=len(jobs), desc=label, unit=" shards", disable=hidden) as bar:
        done: list[Result] = []
        for result in _results(function, jobs, count):
            done.append(result)
            bar.update()
        return done


def _results(function: Callable[[Job], Result], jobs: Sequence[Job], count: int) -> Iterator[Result]:
    if count <= 1:
        yield from map(function, jobs)
        return
    with WorkerPool(count) as pool:
        yield from pool.map(function, jobs)


def shown_bytes(size: int) -> str:
    """A number of bytes for people.

    >>> shown_bytes(2048), shown_bytes(31_457_280), shown_bytes(96_400_000_000)
    ('2,048 bytes', '31.5 MB', '96.4 GB')
    """
    if size < 1_000_000:
        return f"{size:,} bytes"
    return f"{size / 1e6:,.1f} MB" if size < 1_000_000_000 else f"{size / 1e9:,.1f} GB"
