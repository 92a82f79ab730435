"""Batches on their way to the device; CUDA is made up: what counts is which calls are made, and in which order."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from reading import numbers, planned

from streaming import DecodeError, FixedBatch, StreamingDataset, StreamingLoader, TransformError
from streaming.device import Mover, tensors

CUDA = torch.device("cuda")
Pair = namedtuple("Pair", "left right")


class _Cuda:
    """Notes what is asked of it; tensors stay where they are, and know whether they were moved."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.streams = ["main"]
        self.started = 0

    def Stream(self, device: Any) -> Any:  # noqa: N802
        """The only side stream."""
        self.log.append("made stream")
        return self

    def record_event(self) -> str:
        self.started += 1
        self.log.append(f"event {self.started} on {self.streams[-1]}")
        return f"event {self.started}"

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        assert stream is self
        self.streams.append("side")
        yield
        self.streams.pop()

    def current_stream(self, device: Any) -> Any:
        cuda, name = self, self.streams[-1]

        class Current:
            def __repr__(self) -> str:
                return name

            def wait_event(self, event: str) -> None:
                cuda.log.append(f"{name} waits for {event}")

        return Current()


class _Tensor(torch.Tensor):
    """A tensor that notes how it is moved."""

    cuda_log: list[str]
    on_cuda = False

    def pin_memory(self, device: Any = None) -> Any:
        self.cuda_log.append("pin")
        return self

    def to(self, *arguments: Any, **options: Any) -> Any:
        self.cuda_log.append(f"to {arguments[0]} {options}")
        moved = fake(self, self.cuda_log)
        moved.on_cuda = True
        return moved

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.on_cuda

    def record_stream(self, stream: Any) -> None:
        self.cuda_log.append(f"record {stream}")


def fake(tensor: torch.Tensor, log: list[str]) -> _Tensor:
    """The tensor as one that notes."""
    found = tensor.as_subclass(_Tensor)
    found.cuda_log = log
    return found


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    """Stands in for torch.cuda."""
    made = _Cuda()
    for name in ("Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    return made


def test_where_nothing_moves() -> None:
    """Without a device or a transform there is nothing to do; a batch passes as it is."""
    mover, batch = Mover(None), {"x": torch.ones(2), "txt": ["a", "b"]}
    assert not mover.moves
    assert not mover.ahead
    assert mover.finish(mover.start(batch)) is batch


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_without_cuda(device: torch.device | None) -> None:
    """On the CPU the transform gets the batch at once, and nothing is sent ahead."""
    mover = Mover(device, lambda batch: batch | {"twice": 2 * batch["x"]})
    assert mover.moves
    assert not mover.ahead
    moving = mover.start({"x": torch.ones(2)})
    assert moving.event is None
    assert mover.finish(moving)["twice"].tolist() == [2, 2]


def test_other_devices() -> None:
    """Tensors are moved wherever they lie in a batch: in dicts, lists and named tuples, also of dicts; what holds none
    is given as it is.
    """
    x, text, meta = torch.ones(2), ["a", "b"], [{"a": [1]}, {"a": [2]}]
    targets = [{"boxes": x, "name": "cat"}, {"boxes": x, "name": "dog"}]
    batch = {"x": x, "txt": text, "json": meta, "targets": targets, "pair": Pair(x, 1), "both": (x, x), "none": None}
    moved = Mover(torch.device("meta")).start(batch).batch
    assert {t.device.type for t in tensors(moved)} == {"meta"}
    assert len(list(tensors(moved))) == len(list(tensors(batch))) == 6
    assert moved["txt"] is text
    assert moved["json"] is meta
    assert moved["none"] is None
    assert type(moved["pair"]) is Pair
    assert moved["pair"].right == 1
    assert type(moved["both"]) is tuple
    assert [target["name"] for target in moved["targets"]] == ["cat", "dog"]
    assert x.device.type == "cpu"


def test_batches_that_are_no_dicts() -> None:
    """What a collate of the user's gives, a tensor or a tuple, is moved as well."""
    mover = Mover(torch.device("meta"))
    assert mover.start(torch.ones(2)).batch.device.type == "meta"
    assert [t.device.type for t in mover.start((torch.ones(2), [torch.ones(1)])).batch[1]] == ["meta"]
    assert mover.start("text").batch == "text"


def test_the_order_of_calls(cuda: _Cuda) -> None:
    """On CUDA a tensor is pinned and copied on the side stream, without waiting; the transform runs there, too; an
    event follows.  The current stream waits for it, and each tensor's memory is kept until that stream is done.
    """

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        cuda.log.append(f"transform on {cuda.streams[-1]}")
        return batch

    mover = Mover(CUDA, transform)
    assert mover.moves
    assert mover.ahead
    moving = mover.start({"x": fake(torch.ones(2), cuda.log), "many": [fake(torch.ones(2), cuda.log)], "txt": ["a"]})
    copied = ["pin", "to cuda {'non_blocking': True}"]
    assert cuda.log == ["made stream", *copied, *copied, "transform on side", "event 1 on side"]
    cuda.log.clear()
    mover.finish(moving)
    assert cuda.log == ["main waits for event 1", "record main", "record main"]
    cuda.log.clear()
    mover.finish(mover.start({"x": fake(torch.ones(2), cuda.log)}))
    assert "made stream" not in cuda.log


def test_what_can_not_be_pinned(cuda: _Cuda) -> None:
    """Tensors that are not plain CPU memory are copied without; tensors that a transform leaves on the CPU have no
    stream to wait for.
    """
    log = cuda.log

    class Elsewhere(_Tensor):
        layout = torch.sparse_coo

    sparse = fake(torch.ones(2), log).as_subclass(Elsewhere)
    sparse.cuda_log = log
    mover = Mover(CUDA, lambda batch: batch | {"kept": fake(torch.ones(1), log)})
    mover.finish(mover.start({"x": sparse}))
    assert "pin" not in log
    assert log.count("record main") == 1


class Loop:
    """What a trainer sees of a loader whose batches go to the made-up CUDA."""

    def __init__(self, cuda: _Cuda, loader: StreamingLoader) -> None:
        self.cuda, self.loader, self.ahead = cuda, loader, list[int]()

    def run(self) -> list[list[int]]:
        """The sample numbers of an epoch, noting how many batches are on their way beside the one given."""
        got: list[list[int]] = []
        before = self.cuda.started
        for batch in self.loader:
            got += numbers([batch])
            self.ahead.append(self.cuda.started - before - len(got))
        return got


def _loop(cuda: _Cuda, source: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Loop:
    """A loader in this process; its tensors stay where they are."""
    monkeypatch.setattr("streaming.device._moved", lambda batch, device, *, pinned=False: batch)
    monkeypatch.setattr("streaming.device.tensors", lambda batch: iter(()))
    options = {"batch": FixedBatch(2), "shuffle": True, "seed": 5, "threads": 2, **options}
    return Loop(cuda, StreamingLoader(StreamingDataset(source, **options), workers=0, device="cuda"))


def test_no_batch_is_lost(cuda: _Cuda, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches sent ahead each epoch is whole and in order, and states count what was given, not what was sent."""
    loop = _loop(cuda, small, monkeypatch)
    with loop.loader as loader:
        plan = [planned(loader.dataset, epoch)[:18] for epoch in range(3)]
        assert loop.run() == plan[0]
        assert loop.run() == plan[1]
        assert cuda.started == 36
        assert set(loop.ahead) <= {0, 1}
        for taken, _ in enumerate(loader, start=1):
            assert loader.state_dict()["position"] == taken
            if taken == 5:
                break
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert loop.run() == plan[2][5:]


@pytest.mark.parametrize("ready", [True, False])
def test_one_ahead_where_it_is_ready(cuda: _Cuda, small: str, monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    """The next batch is sent ahead where it lies ready; where it does not, the trainer does not wait for it."""
    monkeypatch.setattr("streaming.inprocess.InProcess.ready", lambda self, worker: ready)
    loop = _loop(cuda, small, monkeypatch)
    with loop.loader as loader:
        assert loop.run() == planned(loader.dataset, 0)[:18]
    assert loop.ahead == [int(ready)] * 17 + [0]


def _refuse_nine(data: bytes) -> int:
    if data == b"9":
        raise DecodeError("not this one")
    return int(data)


@pytest.mark.parametrize("ready", [True, False])
def test_errors_ahead_come_at_their_turn(
    cuda: _Cuda, small: str, monkeypatch: pytest.MonkeyPatch, ready: bool, nothing_left: Callable[[], None]
) -> None:
    """An error in the batch that is sent ahead is raised behind the batch before it."""
    monkeypatch.setattr("streaming.inprocess.InProcess.ready", lambda self, worker: ready)
    loop = _loop(cuda, small, monkeypatch, shuffle=False, decode={"cls": _refuse_nine})
    seen: list[int] = []
    with loop.loader as loader:
        with pytest.raises(DecodeError, match="not this one"):  # noqa: PT012  (what comes before the error counts)
            for batch in loader:
                seen += batch["cls"] if isinstance(batch["cls"], list) else batch["cls"].tolist()
        assert seen == list(range(8))
        assert loader.state_dict()["position"] == 4
    nothing_left()


def test_iterations_do_not_mix(cuda: _Cuda, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that an iteration had sent ahead is not given, nor counted, when another has begun."""
    monkeypatch.setattr("streaming.inprocess.InProcess.ready", lambda self, worker: True)
    loop = _loop(cuda, small, monkeypatch)
    with loop.loader as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)
        state = loader.state_dict()
        with pytest.raises(ValueError, match="another iteration over this loader has begun"):
            next(first)
        assert loader.state_dict() == state
        assert len(list(second)) == 17


def test_errors_of_the_transform(cuda: _Cuda, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a step on the device is raised as it is, and the next iteration works."""
    loop = _loop(cuda, small, monkeypatch)
    calls = iter([None, TransformError("mine"), *[None] * 50])

    def transform(batch: Any) -> Any:
        error = next(calls)
        if error is not None:
            raise error
        return batch

    loop.loader._mover = Mover(CUDA, transform)
    with loop.loader as loader:
        with pytest.raises(TransformError, match="mine"):
            loop.run()
        assert loop.run() == planned(loader.dataset, 1)[:18]
