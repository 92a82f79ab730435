"""What a worker process runs, on a thread of this one, word by word."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from reading import FailAt, Unpicklable, flat, planned

from streaming import DecodeError, FixedBatch, StreamingDataset, TransformError, WorkerError
from streaming.buffers import Buffers
from streaming.channel import Receiver, Sender
from streaming.worker import Work, _Gone, _portable, _Worker, raised


def _open(source: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"batch": FixedBatch(2), "shuffle": True, "seed": 5, "threads": 1, **options})


class _Trainer:
    """The trainer's end, and a worker at the other."""

    def __init__(self, dataset: StreamingDataset, **options: Any) -> None:
        given = {"worker": 0, "workers": 1, "threads": 1, "prefetch": 2, "continuous": False, **options}
        self.dataset = dataset
        self.connection, there = multiprocessing.Pipe()
        self.receiver = Receiver(self.connection, Buffers())
        self._sender = Sender(there)
        self.ended: BaseException | None = None
        self.worker = _Worker(self._sender, Work(dataset.recipe, **given))
        self._thread = threading.Thread(target=self._serve, name="worker", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001  (what it is, the test looks at)
            self.ended = error
        self._sender.close()

    def run(self, number: int, epoch: int = 0, start: int = 0) -> None:
        """Ask for a pass."""
        self.connection.send(("run", number, epoch, start))

    def message(self, *, took: bool = True) -> tuple[dict[str, Any], Any]:
        """The next message, whatever it is."""
        header, items = self.receiver.receive(lambda _: True)
        if took:
            self.took()
        return header, items

    def took(self, count: int = 1) -> None:
        """Say that messages were taken."""
        self.connection.send(("took", count, self.receiver.unused()))

    def quiet(self) -> bool:
        """Whether no message comes for a while."""
        return not self.connection.poll(0.2)

    def close(self) -> None:
        """End the connection, and wait for the worker."""
        self.connection.close()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def trainer(nothing_left: Callable[[], None]) -> Iterator[Callable[..., _Trainer]]:
    """Makes trainers; their workers end with the test, because the connection does."""
    made: list[_Trainer] = []

    def make(*arguments: Any, **options: Any) -> _Trainer:
        made.append(_Trainer(*arguments, **options))
        return made[-1]

    yield make
    while made:
        made[-1].close()
        assert isinstance(made.pop().ended, _Gone)
    nothing_left()


def test_its_part_of_a_pass(small: str, trainer: Callable[..., _Trainer]) -> None:
    """A worker sends its own turns of the pass that is asked for, each with what it is of, and then waits."""
    dataset = _open(small)
    talk = trainer(dataset, worker=1, workers=3)
    assert talk.quiet()
    talk.run(7, epoch=2, start=3)
    got = [talk.message() for _ in range(5)]
    assert flat(items[0] for _, items in got) == [n for batch in planned(dataset, 2)[4:18:3] for n in batch]
    for i, (header, [batch]) in enumerate(got):
        assert (header["run"], header["epoch"], header["count"], header["skipped"]) == (7, 2, 1, 0)
        assert header["totals"]["threads"] == 1
        assert header["totals"]["cpu"] > 0
        assert batch["__state__"]["position"] == (3 + 3 * i + 1 + 1) % 18
    assert talk.quiet()


def test_no_more_than_prefetch(small: str, trainer: Callable[..., _Trainer]) -> None:
    """At most `prefetch` messages are on the way; several that were taken can be told of at once."""
    talk = trainer(_open(small), prefetch=3)
    talk.run(1)
    for _ in range(3):
        talk.message(took=False)
    assert talk.quiet()
    talk.took(2)
    for _ in range(2):
        talk.message(took=False)
    assert talk.quiet()


def test_another_pass_meanwhile(small: str, trainer: Callable[..., _Trainer]) -> None:
    """A worker that waits for room begins another pass when it is told to; what it had sent stands before it."""
    dataset = _open(small)
    talk = trainer(dataset, prefetch=2)
    talk.run(1)
    while not talk.connection.poll(1):
        pass
    talk.run(2, epoch=5)
    seen = []
    while len(seen) < 18:
        header, items = talk.message()
        if header["run"] == 2:
            assert header["epoch"] == 5
            seen += items
        else:
            assert not seen
    assert flat(seen) == [n for batch in planned(dataset, 5)[:18] for n in batch]


def test_passes_that_go_on(small: str, trainer: Callable[..., _Trainer]) -> None:
    """Where passes are continuous the next epoch follows by itself, from its start, under the same number."""
    dataset = _open(small)
    talk = trainer(dataset, continuous=True)
    talk.run(4, epoch=1, start=16)
    got = [talk.message() for _ in range(2 + 18 + 1)]
    assert [header["epoch"] for header, _ in got] == [1] * 2 + [2] * 18 + [3]
    assert {header["run"] for header, _ in got} == {4}
    assert flat(items[0] for _, items in got[2:20]) == [n for batch in planned(dataset, 2)[:18] for n in batch]
    assert got[1][1][0]["__state__"]["epoch"] == 2
    assert got[2][1][0]["__state__"]["position"] == 1


def test_a_worker_without_steps_hears(small: str, trainer: Callable[..., _Trainer]) -> None:
    """A worker that has no step in a pass goes on to the next only where it ever has one, and hears every word."""
    few = _open(small, batch=FixedBatch(30), tail="drop", shuffle=False)
    talk = trainer(few, worker=1, workers=2, continuous=True)
    talk.run(1)
    assert talk.quiet()
    talk.run(2, epoch=3)
    assert talk.quiet()
    at_the_end = trainer(_open(small), worker=1, workers=2, continuous=True)
    at_the_end.run(1, epoch=0, start=17)
    header, _ = at_the_end.message()
    assert header["epoch"] == 1


def test_errors_are_sent(small: str, trainer: Callable[..., _Trainer]) -> None:
    """An error comes at its turn with its traceback; the worker then waits for another pass."""
    talk = trainer(_open(small, shuffle=False, transform=FailAt(4)))
    for number in (1, 2):
        talk.run(number)
        assert flat(talk.message()[1]) == [0, 1]
        assert flat(talk.message()[1]) == [2, 3]
        header, failure = talk.message()
        assert header == {"run": number, "epoch": 0, "failed": True}
        error = raised(failure)
        assert isinstance(error, TransformError)
        assert "1 and 4" in str(error)
        assert "raise Unpicklable" in str(error.__cause__)
        assert talk.quiet()


def test_what_can_not_be_sent(small: str, trainer: Callable[..., _Trainer]) -> None:
    """A batch that can't be pickled is an error like any other, that says what to do."""
    talk = trainer(_open(small, collate=lambda samples: {"f": lambda: 1}))
    talk.run(1)
    header, failure = talk.message()
    assert header["failed"]
    assert "can't be sent from the worker process" in str(raised(failure))


def test_batches_are_not_kept(small: str, trainer: Callable[..., _Trainer]) -> None:
    """A batch is no longer the worker's once it is sent: with the trainer's word its memory is free."""
    talk = trainer(_open(small, transform=_large), prefetch=1)
    talk.run(1)
    for _ in range(4):
        talk.message()  # and forget it
    while not talk.connection.poll(1):
        pass
    assert talk.worker._sender.buffers.counts()["used"] <= 4  # the one that waits, those being made, one on its way
    assert talk.worker._sender.buffers.counts()["made"] <= 5


def _large(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return sample | {"x": torch.full((100_000,), sample["cls"])}


def test_errors_that_travel() -> None:
    """Errors of the tree arrive as they are, with all they know; what pickle can't make again keeps its name and text;
    each comes with its traceback.
    """
    known = DecodeError("damaged", key="a", field="jpg")
    for error in (known, Unpicklable(1, 2), ValueError("plain")):
        try:
            raise error
        except Exception as caught:  # noqa: BLE001  (any)
            sent = pickle.loads(pickle.dumps(_portable(caught)))
        arrived = raised(sent)
        assert "Traceback (most recent call last)" in str(arrived.__cause__)
        if error is known:
            assert isinstance(arrived, DecodeError)
            assert (arrived.key, arrived.field) == ("a", "jpg")
        elif isinstance(error, ValueError):
            assert type(arrived) is ValueError
        else:
            assert isinstance(arrived, WorkerError)
            assert "Unpicklable: 1 and 2" in str(arrived)
