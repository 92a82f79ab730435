"""Batches from one process to another: what arrives, and whose memory it is."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming import TransformError, WorkerError
from streaming.buffers import SMALL, Buffers
from streaming.channel import Receiver, Sender

Pair = namedtuple("Pair", "a b")


class Ends:
    """Both ends of a channel in one process: what is sent is received at once."""

    def __init__(self, hold: int = 2, keep: int = 64 << 20) -> None:
        here, there = multiprocessing.Pipe(duplex=True)
        self.sender = Sender(there, keep=keep)
        self.receiver = Receiver(here, Buffers(), hold=hold)

    def through(self, item: Any, *, wanted: bool = True) -> Any:
        """The item, as it arrives."""
        self.sender.send(item, run=1)
        header, got = self.receiver.receive(lambda _: wanted)
        assert header == {"run": 1}
        for number in self.receiver.unused():
            self.sender.buffers.back(number)
        return got

    def used(self) -> int:
        """Buffers of the sender that are in use."""
        for number in self.receiver.unused():
            self.sender.buffers.back(number)
        return int(self.sender.buffers.counts()["used"])

    def close(self) -> None:
        """Both ends."""
        self.sender.close()
        self.receiver.connection.close()


@pytest.fixture
def ends() -> Any:
    found = Ends()
    yield found
    found.close()


def same(a: Any, b: Any) -> bool:
    """Whether two items are equal, types, shapes and all."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and (a.numel() == 0 or torch.equal(a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


arrays = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 100, shape).astype(dtype),
    st.lists(st.integers(0, 70), min_size=0, max_size=3),
    st.sampled_from(["u1", "i2", "i8", "f2", "f4", "f8", "?", "c8", ">i4"]),
    st.integers(0, 9),
)
tensors = st.builds(
    lambda array, transpose: torch.from_numpy(array.copy()).T if transpose and array.ndim == 2 else
    torch.from_numpy(array.copy()),
    arrays.filter(lambda a: a.dtype.isnative),
    st.booleans(),
)  # fmt: skip
items = st.recursive(
    st.one_of(arrays, tensors, st.text(), st.binary(), st.integers(), st.none(), st.binary(min_size=90, max_size=99)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4), st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(items, max_size=4))
def test_what_is_sent_arrives(sent: list[Any]) -> None:
    """Tensors and arrays of any type, size and layout in any containers arrive equal, one after the other."""
    ends = Ends()
    try:
        got = [ends.through(item) for item in sent]
        assert all(map(same, sent, got))
    finally:
        ends.close()


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float32", "bool", "complex64"])
def test_types_and_layouts(ends: Ends, dtype: str) -> None:
    """Each type arrives, small and large, dense, transposed, channels-last and expanded."""
    kind = getattr(torch, dtype)
    for n in (2, 200):
        whole = (torch.arange(3 * n * n * 4) % 2).reshape(4, 3, n, n).to(kind)
        for tensor in (
            whole,
            whole.transpose(1, 3),
            whole.contiguous(memory_format=torch.channels_last),
            whole[:1].expand(4, 3, n, n),
            whole[1:3],
            whole[..., 0],
        ):
            got = ends.through({"x": tensor})["x"]
            assert same(tensor, got)
    image = ends.sender.buffers.tensor((4, 3, 200, 200), channels_last=True).fill_(3)
    got = ends.through([image])[0]
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert same(image, got)


def test_a_tensor_in_a_buffer_is_not_copied(ends: Ends) -> None:
    """What was written into a buffer of the sender's is the same memory at the other end."""
    tensor = ends.sender.buffers.tensor((4, SMALL))
    tensor.fill_(1)
    got = ends.through({"x": tensor, "again": tensor, "part": tensor[1:]})
    tensor.fill_(5)
    assert same(got["x"], tensor)
    assert got["again"].data_ptr() == got["x"].data_ptr()
    assert got["part"].data_ptr() == got["x"][1:].data_ptr()
    assert ends.sender.buffers.counts()["made"] == 1
    other = ends.through({"x": tensor})["x"]  # it is lent already: this one is a copy
    tensor.fill_(6)
    assert int(other[0, 0]) == 5


def test_buffers_come_back(ends: Ends) -> None:
    """A buffer is the sender's again when nothing refers to its tensors, at both ends; one batch after the other needs
    three buffers, however many batches there are.
    """
    for i in range(20):
        tensor = ends.sender.buffers.tensor((4, SMALL)).fill_(i)
        got = ends.through({"x": tensor, "text": ["a"] * 10})
        del tensor
        assert int(got["x"][3, 3]) == i
    assert ends.sender.buffers.counts()["made"] == 3
    view = got["x"][2].numpy()
    del got
    gc.collect()
    assert ends.used() == 1
    assert view[0] == 19
    del view
    gc.collect()
    assert ends.used() == 0


def test_a_trainer_that_keeps_batches_gets_copies(ends: Ends) -> None:
    """All batches may be kept: they stay as they were, and the sender's buffers do not run out."""
    kept = []
    for i in range(12):
        kept.append(ends.through([ends.sender.buffers.tensor((4, SMALL)).fill_(i)])[0])
    assert [int(tensor.float().mean()) for tensor in kept] == list(range(12))
    assert ends.receiver.copies == 10
    assert ends.sender.buffers.counts()["made"] <= 4


def test_large_text_goes_through_memory_too(ends: Ends) -> None:
    """Pickles beyond a few kB do not go through the pipe, whose other end may not be read for a while."""
    item = {"jpg": [bytes([i]) * 20_000 for i in range(64)], "txt": ["x" * 100] * 64}
    for _ in range(3):
        ends.sender.send(item)
    for _ in range(3):
        assert ends.receiver.receive(lambda _: True)[1] == item
    assert ends.used() == 0


def test_views_arrive_as_bytes(ends: Ends) -> None:
    """A memoryview, which is of the sender's own memory, arrives as bytes."""
    assert ends.through([memoryview(b"abc"), memoryview(b"x" * 100_000)]) == [b"abc", b"x" * 100_000]


def test_messages_that_are_not_wanted(ends: Ends) -> None:
    """What is not wanted is not unpacked, and its buffers are free at once."""
    assert ends.through({"x": torch.ones(4, SMALL), "text": ["y" * SMALL]}, wanted=False) is None
    assert ends.used() == 0
    assert same(ends.through({"x": torch.ones(4, SMALL)}), {"x": torch.ones(4, SMALL)})


class Temporary:
    """Pickles to arrays that exist while it is pickled only."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return np.copy, (np.full(SMALL, self.value),)


def test_arrays_that_pickling_makes(ends: Ends) -> None:
    """Arrays that are made while an item is pickled are not taken for one another."""
    got = ends.through([Temporary(i) for i in range(8)])
    assert [set(array.tolist()) for array in got] == [{i} for i in range(8)]


def test_what_is_not_plain_numbers(ends: Ends) -> None:
    """Sparse tensors, parameters and object arrays arrive by plain pickling."""
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(ends.through(sparse).to_dense(), torch.eye(3))
    parameter = torch.nn.Parameter(torch.ones(3))
    got = ends.through(parameter)
    assert isinstance(got, torch.nn.Parameter)
    objects = np.array([{"a": 1}, None], dtype=object)
    assert ends.through(objects).tolist() == objects.tolist()


def test_what_can_not_be_pickled(ends: Ends) -> None:
    """It is an error that names its type, and the channel goes on."""
    for item in (lambda: 1, {"x": torch.ones(4, SMALL), "lock": threading.Lock()}):
        with pytest.raises(TransformError, match="can't be sent from the worker"):
            ends.through(item)
    assert ends.used() == 0
    assert ends.through([1]) == [1]


def test_memory_that_is_not_there(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no shared memory is to be had, the error says how much was wanted, and nothing stays open."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WorkerError, match=r"no [\d,]+ bytes of shared memory"):
        ends.sender.buffers.tensor((4, SMALL))
    assert len(os.listdir("/proc/self/fd")) == before


def test_buffers_of_other_sizes_are_given_up_at_both_ends() -> None:
    """Batches of ever new sizes do not pile up memory or descriptors, at either end."""
    ends = Ends(keep=1 << 20)
    try:
        before = len(os.listdir("/proc/self/fd"))
        for i in range(1, 40):
            got = ends.through([ends.sender.buffers.tensor((i * SMALL,)).fill_(i)])[0]
            assert int(got[-1]) == i
            del got
        ends.used()
        ends.through(None)
        assert len(ends.receiver._mapped) <= 6
        assert len(os.listdir("/proc/self/fd")) - before <= 2 * 6
    finally:
        ends.close()
