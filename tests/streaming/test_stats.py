"""Counting, and saying which stage binds."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.monitor import Gpu
from streaming.stats import BUSY, FREE, STAGES, Counters, Stats, summed

WAITING = Stats(seconds=10.0, waited=5.0, asked=20, threads=2, cores=8, cpu=10.0)
"""A trainer that waited for half of its time, on a machine that has cores left."""


def test_sums_by_name() -> None:
    """Amounts of a name add up, seconds of a stage too, also where the stage raises; totals are a copy."""
    counters = Counters()
    counters.add("batches", 1)
    counters.add("batches", 2)
    before = counters.totals()
    with pytest.raises(KeyError), counters.timed("decode"):
        raise KeyError
    with counters.timed("decode"):
        pass
    assert before == {"batches": 3}
    assert counters.totals()["batches"] == 3
    assert counters.totals()["decode"] > 0


def test_threads_count_together() -> None:
    """Nothing that threads add at the same time is lost."""
    counters = Counters()

    def work() -> None:
        for _ in range(2_000):
            counters.add("samples", 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.totals() == {"samples": 8_000}


class _Counting:
    """Counts when it is collected, as an iterator that nobody closed does; only a collection finds it."""

    def __init__(self, counters: Counters) -> None:
        self.counters, self.itself = counters, self

    def __del__(self) -> None:
        self.counters.add("collected", 1)


@pytest.mark.timeout(60)
def test_collections_may_count_at_any_moment() -> None:
    """A collection in the middle of counting, whose finalizers count too, neither hangs nor loses anything."""
    counters, before = Counters(), gc.get_threshold()
    gc.freeze()  # so that collections are quick
    try:
        for allocations in range(1, 60):
            gc.collect()
            gc.disable()
            _Counting(counters)
            gc.set_threshold(allocations)
            gc.enable()
            counters.totals()
            gc.collect()
            assert counters.totals()["collected"] == allocations
    finally:
        gc.enable()
        gc.set_threshold(*before)
        gc.unfreeze()


def test_what_workers_and_trainer_counted() -> None:
    """Stages, bytes, threads and processor time of all workers add to what the trainer knows; names that are no
    figures are left out; whole figures are whole.
    """
    worker = {"fetch": 1.5, "decode": 2.0, "collate": 0.5, "bytes_read": 100.0, "threads": 4, "cpu": 3.0, "other": 9.0}
    trainer = {"seconds": 8.0, "waited": 2.0, "samples": 64.0, "batches": 2.0, "asked": 2, "ready": True, "cpu": 1.0}
    gpu = Gpu(0.5, 1, 2)
    found = summed([worker, worker, {}], trainer, cores=16, gpu=gpu)
    assert found == Stats(
        seconds=8.0, waited=2.0, batches=2, samples=64, bytes_read=200, fetch=3.0, decode=4.0, collate=1.0,
        threads=8, asked=2, ready=1, cpu=7.0, cores=16, gpu=gpu,
    )  # fmt: skip
    assert type(found.bytes_read) is int
    assert type(found.ready) is int
    assert trainer["cpu"] == 1.0


figures = st.builds(
    Stats,
    seconds=st.floats(0, 1e6), waited=st.floats(0, 1e6), samples=st.integers(0, 1 << 40), decode=st.floats(0, 1e6),
    threads=st.integers(0, 64), asked=st.integers(0, 1000), cpu=st.floats(0, 1e6), cores=st.integers(1, 128),
)  # fmt: skip


@given(figures, figures)
def test_between_two_moments(earlier: Stats, later: Stats) -> None:
    """A difference has what was counted between two moments; threads, cores and the GPU are those of the later."""
    later = replace(later, gpu=Gpu(0.25, 1, 2))
    since = later - earlier
    assert since.samples == later.samples - earlier.samples
    assert since.waited == later.waited - earlier.waited
    assert (since.threads, since.cores, since.gpu) == (later.threads, later.cores, later.gpu)
    assert later - Stats() == later


@given(figures)
def test_figures_for_a_log(stats: Stats) -> None:
    """as_dict() has every figure and what binds, and is plain enough for JSON; the line can always be made."""
    found = json.loads(json.dumps(stats.as_dict()))
    assert found["samples"] == stats.samples
    assert found["binds"] == stats.binds()
    assert stats.binds() in str(stats)


@pytest.mark.parametrize("stats", [Stats(), Stats(seconds=3.0), Stats(asked=3)])
def test_before_the_first_batch(stats: Stats) -> None:
    """Before anything was asked for, or any time has passed, that is what is said."""
    assert stats.binds() == "nothing was read yet"


def test_a_trainer_that_does_not_wait() -> None:
    """Where data lies ready nearly all the time, the trainer binds, however busy the threads are."""
    busy = replace(WAITING, waited=10 * FREE * 0.9, decode=20.0)
    assert busy.binds() == "the trainer binds: it waited for data 4% of the time"
    assert not replace(busy, waited=10 * FREE).binds().startswith("the trainer binds")


@pytest.mark.parametrize("stage", STAGES)
def test_threads_that_are_busy(stage: str) -> None:
    """Where threads are busy while the trainer waits, the stage that takes most binds, and what helps is said."""
    others = dict.fromkeys(STAGES, 1.0)
    said = replace(WAITING, **(others | {stage: 15.0})).binds()
    assert said.startswith(f"the trainer waited 50% of the time; {stage} binds: 2 threads worked 85% of the time")
    assert ("nearer storage" in said) == (stage == "fetch")
    assert ("threads or workers" in said) == (stage != "fetch")
    alone = replace(WAITING, threads=1, **{stage: 12.0}).binds()
    assert "1 thread worked 100%" in alone
    assert replace(WAITING, threads=0, **{stage: 30.0}).binds().count("100%") == 1


def test_a_processor_that_is_busy() -> None:
    """Where all cores are busy more threads would not help: the processor binds, and the stage that takes most of it
    is named.
    """
    said = replace(WAITING, cpu=75.0, decode=19.0, fetch=1.0).binds()
    assert said == (
        "the trainer waited 50% of the time; the processor binds: all 8 cores are busy, most of it with decode"
    )


@pytest.mark.parametrize("decode", [0.0, 20 * BUSY])
def test_threads_that_are_idle(decode: float) -> None:
    """Where the trainer waits though threads are idle, no stage is blamed; what else it can be is said."""
    said = replace(WAITING, decode=decode).binds()
    assert said.startswith(f"the trainer waited 50% of the time, but 2 threads idled {1 - decode / 20:.0%} of it")
    assert "ahead_bytes" in said


def test_the_line() -> None:
    """Rates, the share of what was ready, processor, skipped samples and the GPU stand in one line."""
    stats: Any = replace(WAITING, samples=12_340, bytes_read=5_000_000, ready=15, decode=18.0)
    line = str(stats)
    assert line.startswith("1,234 samples/s, 0.5 MB/s read, 75% of batches were ready, cpu 1.0 of 8 cores; the trainer")
    assert "\n" not in line
    assert "skipped" not in line
    assert "3 skipped" in str(replace(stats, skipped=3))
    assert "gpu busy 93%, 1.5 of 80.0 GB" in str(replace(stats, gpu=Gpu(0.93, 1_500_000_000, 80_000_000_000)))
