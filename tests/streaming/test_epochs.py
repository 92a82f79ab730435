"""Which epoch a pass is, for any number of processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import reading
from hypothesis import given
from hypothesis import strategies as st

from streaming.epochs import Epochs


def _children(start: str, epochs: Epochs, passes: Sequence[Sequence[int]]) -> list[Any]:
    """What each child answers that begins these passes, one child after the other."""
    context: Any = multiprocessing.get_context(start)
    answers = context.SimpleQueue()
    out = []
    for worker, pass_ids in enumerate(passes):
        process = context.Process(target=reading.begin, args=(epochs, worker, pass_ids, answers))
        process.start()
        out.append(answers.get())
        process.join(60)
        assert process.exitcode == 0
    return out


def test_passes_without_a_request() -> None:
    """The first pass is epoch 0 from its start, each later one the next; all who ask for a pass get one answer."""
    epochs = Epochs()
    assert epochs.upcoming() == (0, 0)
    for pass_id, worker, epoch in ((5, 0, 0), (5, 1, 0), (9, 1, 1), (9, 0, 1), (7, 0, 2)):
        assert epochs.begin(pass_id, worker) == (epoch, 0)
        assert epochs.upcoming() == (epoch + 1, 0)


def test_requests() -> None:
    """The pass behind a request starts where it says, for all who ask; the one behind it is the next epoch's start."""
    epochs = Epochs()
    epochs.begin(1)
    epochs.request(epoch=7, position=40)
    assert epochs.upcoming() == (7, 40)
    assert [epochs.begin(2, 0), epochs.begin(2, 1), epochs.begin(3, 0)] == [(7, 40), (7, 40), (8, 0)]


def test_the_last_request_counts() -> None:
    """Of several requests before a pass the last one holds, also one for the same epoch again."""
    epochs = Epochs()
    for epoch in (3, 1, 4):
        epochs.request(epoch=epoch)
    assert epochs.begin(1) == (4, 0)
    epochs.request(epoch=4, position=2)
    assert [epochs.begin(2), epochs.begin(3)] == [(4, 2), (5, 0)]


def test_more_requests_than_serial_numbers() -> None:
    """Requests keep working behind the 256th, whether passes come in between or not."""
    epochs = Epochs()
    for i in range(600):
        epochs.request(epoch=i, position=i)
        assert epochs.begin(i) == (i, i)
    for i in range(600):
        epochs.request(epoch=i)
    assert epochs.begin(1_000) == (599, 0)


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 40))), max_size=30))
def test_any_sequence(steps: list[tuple[int, int] | None]) -> None:
    """Any mixture of requests and passes answers as the sentences above say."""
    epochs, upcoming = Epochs(), (0, 0)
    for pass_id, step in enumerate(steps):
        if step is None:
            assert [epochs.begin(pass_id, worker) for worker in range(3)] == [upcoming] * 3
            upcoming = (upcoming[0] + 1, 0)
        else:
            epochs.request(epoch=step[0], position=step[1])
            upcoming = step
        assert epochs.upcoming() == upcoming


def test_begin_at_goes_on_from_a_loaded_state() -> None:
    """A pass that a worker says is epoch 5 is followed by epoch 6."""
    epochs = Epochs()
    epochs.begin_at(1, 5, worker=0)
    assert [epochs.begin(1, worker=1), epochs.begin(2, worker=0)] == [(5, 0), (6, 0)]


def test_a_worker_begins_a_pass_once() -> None:
    """Passes that carry the same number, as with the same seed each time, are told apart by who came before."""
    epochs = Epochs()
    epochs.request(epoch=2, position=3)
    for answer in ((2, 3), (3, 0), (4, 0)):
        assert [epochs.begin(7, worker) for worker in (1, 0, 2)] == [answer] * 3


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_children_share(start: str) -> None:
    """Children that begin passes advance the parent, and a request of the parent reaches children, old and new."""
    epochs = Epochs()
    epochs.request(epoch=2, position=6)
    assert _children(start, epochs, [[1, 2], [2]]) == [[(2, 6), (3, 0)], [(3, 0)]]
    assert epochs.upcoming() == (4, 0)
    epochs.request(epoch=9)
    assert _children(start, epochs, [[3]]) == [[(9, 0)]]
    assert epochs.begin(4) == (10, 0)


def test_children_at_once() -> None:
    """Workers that begin the same pass at the same moment agree."""
    epochs = Epochs()
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=reading.begin, args=(epochs, i, [0], answers)) for i in range(8)]
    for process in processes:
        process.start()
    assert [answers.get() for _ in processes] == [[(0, 0)]] * 8
    for process in processes:
        process.join(60)
    assert epochs.upcoming() == (1, 0)


def test_marks() -> None:
    """Whether workers read is remembered until the trainer reads itself or asks for an epoch."""
    epochs = Epochs()
    assert not epochs.in_workers
    epochs.mark(in_workers=True)
    assert epochs.in_workers
    epochs.request(epoch=1)
    assert not epochs.in_workers


@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy])
def test_copies_keep_numbers_and_part(copied: Any) -> None:
    """A pickled or copied object goes on from the same numbers, and then on its own."""
    epochs = Epochs()
    epochs.request(epoch=3, position=4)
    other = copied(epochs)
    assert other.begin(1) == (3, 4)
    assert epochs.upcoming() == (3, 4)
    assert other.upcoming() == (4, 0)


def test_a_worker_that_comes_late_keeps_its_pass() -> None:
    """A worker that begins a pass when others have begun the next one gets the older epoch, and then theirs."""
    epochs = Epochs()
    assert [epochs.begin(1, 0), epochs.begin(2, 0)] == [(0, 0), (1, 0)]
    assert [epochs.begin(1, 1), epochs.begin(2, 1)] == [(0, 0), (1, 0)]
    assert [epochs.begin(3, 1), epochs.begin(3, 0)] == [(2, 0), (2, 0)]
