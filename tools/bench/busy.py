"""A trainer that keeps the interpreter busy, and one that only waits: what each gets from the same loader.

A step of the trainer takes 80 % of the time in which the loader makes a batch, so that the loader is what binds: the
busy one runs a loop of pure Python, as much as takes that time alone, the idle one sleeps as long.  They take turns in
one process, a few batches each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

SHARE = 0.8
WARM, TURN, TURNS = 8, 16, 4


def compare(side: Any, data: str, workers: int, threads: int) -> dict[str, Any]:
    """Samples per second of both trainers, medians of their turns, and busy / idle."""
    from streaming import StreamingLoader

    loops = _loops_per_second()
    with StreamingLoader(side.dataset(data), workers=workers, threads=threads) as loader:
        items = _endless(loader)
        _take(items, WARM, 0.0, 0)
        samples, seconds = _take(items, TURN, 0.0, 0)
        step = SHARE * seconds / TURN
        idle: list[float] = []
        busy: list[float] = []
        for _ in range(TURNS):
            for rates, sleep, burn in ((idle, step, 0), (busy, 0.0, round(step * loops))):
                samples, seconds = _take(items, TURN, sleep, burn)
                rates.append(samples / seconds)
        items.close()
    medians = statistics.median(idle), statistics.median(busy)
    return {"idle": medians[0], "busy": medians[1], "value": medians[1] / medians[0], "step": step}


def _take(items: Iterator[Any], steps: int, sleep: float, burn: int) -> tuple[int, float]:
    """Samples and seconds of some steps of a trainer."""
    samples, start = 0, time.perf_counter()
    for _ in range(steps):
        if sleep:
            time.sleep(sleep)
        _burn(burn)
        samples += len(next(items)["__key__"])
    return samples, time.perf_counter() - start


def _endless(loader: Any) -> Any:
    """Full batches, epoch after epoch."""
    while True:
        yield from loader


def _burn(loops: int) -> None:
    while loops:
        loops -= 1


def _loops_per_second() -> float:
    """Alone, before the loader has started anything: the best of a few."""
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        _burn(1_000_000)
        best = max(best, 1_000_000 / (time.perf_counter() - start))
    return best
