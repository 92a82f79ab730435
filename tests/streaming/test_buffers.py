"""Memory that is used again."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.buffers import SMALL, Buffers

BIG = (4, SMALL)


def test_memory_comes_back_when_nothing_refers_to_it() -> None:
    """The next tensor lies where the last one lay, of whatever type and shape; not before it has ended."""
    buffers = Buffers()
    first = buffers.tensor(BIG)
    place = first.data_ptr()
    assert buffers.tensor(BIG).data_ptr() != place
    del first
    again = buffers.tensor((SMALL // 4, 4), torch.float32)
    assert again.data_ptr() == place or buffers.counts()["made"] == 2
    del again
    assert buffers.counts() == {"made": 2, "used": 0, "free": 2}


@pytest.mark.parametrize(
    "kept",
    [
        lambda t: t[1:2, :3],
        lambda t: t.numpy(),
        lambda t: t.numpy()[2:],
        lambda t: memoryview(t.numpy()),
        lambda t: t.view(torch.int16),
        lambda t: {"deep": [t.T]},
        lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
        lambda t: t.untyped_storage(),
    ],
)
def test_whatever_refers_to_it_keeps_it(kept: Any) -> None:
    """A view, an array, a memoryview, a storage of a tensor keeps its memory from being given again."""
    buffers = Buffers()
    tensor = buffers.tensor(BIG).fill_(7)
    rest: Any = kept(tensor)
    del tensor
    gc.collect()
    buffers.tensor(BIG).fill_(9)
    assert buffers.counts() == {"made": 2, "used": 1, "free": 1}
    del rest
    gc.collect()
    assert buffers.counts() == {"made": 2, "used": 0, "free": 2}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8 * SMALL), st.integers(0, 5)), max_size=60))
def test_no_two_tensors_share_memory(steps: list[tuple[int, int]]) -> None:
    """Whatever is taken and let go in whatever order, each tensor keeps what was written into it."""
    buffers, held = Buffers(keep=20 * SMALL), dict[int, torch.Tensor]()
    for number, (size, place) in enumerate(steps):
        held[place] = buffers.tensor((size,)).fill_(number % 251)
        held[place][-1] = place
        for other, tensor in held.items():
            assert int(tensor[-1]) == other
            assert len(tensor) == 1 or len(torch.unique(tensor[:-1])) == 1
    sizes = sum(len(b.array) for b in buffers._free)
    assert sizes <= 20 * SMALL + 16 * SMALL


def test_layout_and_type() -> None:
    """Shapes and types are as asked for; small tensors have memory of their own."""
    buffers = Buffers()
    images = buffers.tensor((8, 3, 64, 65), channels_last=True)
    assert images.shape == (8, 3, 64, 65)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert buffers.tensor((3, SMALL), torch.bfloat16).dtype == torch.bfloat16
    assert buffers.tensor((0, 5)).shape == (0, 5)
    assert buffers.tensor((2,)).untyped_storage().nbytes() == 2
    assert buffers.counts()["made"] == 2


def test_what_is_free_is_bounded() -> None:
    """More than `keep` bytes do not lie unused, and what is given up is told."""
    dropped: list[int] = []
    buffers = Buffers(keep=10 * SMALL, dropped=lambda buffer: dropped.append(buffer.number))
    held = [buffers.tensor((SMALL * n,)) for n in (2, 4, 8, 16)]
    del held
    counts = buffers.counts()
    assert counts["used"] == 0
    assert counts["free"] + len(dropped) == 4
    assert sum(len(b.array) for b in buffers._free) <= 10 * SMALL


def test_lent_memory_is_in_use_until_it_is_back() -> None:
    """A buffer that was sent elsewhere is free when it is back and its tensor here has ended, in any order."""
    for back_first in (True, False):
        buffers = Buffers()
        tensor: Any = buffers.tensor(BIG)
        buffer = buffers.lend(tensor)
        assert buffer is not None
        assert buffers.lend(tensor) is None, "it is lent already"
        if back_first:
            buffers.back(buffer.number)
            assert buffers.counts()["used"] == 1
            del tensor
        else:
            del tensor
            assert buffers.counts()["used"] == 1
            buffers.back(buffer.number)
        assert buffers.counts() == {"made": 1, "used": 0, "free": 1}
    assert buffers.lend(torch.empty(BIG)) is None
    assert buffers.lend(torch.from_numpy(np.zeros(10, np.uint8))) is None


def test_threads_share_buffers() -> None:
    """Tensors that many threads take at once are apart."""
    buffers, wrong = Buffers(), []

    def work(value: int) -> None:
        for _ in range(100):
            tensor = buffers.tensor(BIG).fill_(value)
            if not bool((tensor == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert buffers.counts()["made"] <= 8
