"""Which epoch, and from where: agreed upon between the trainer's process and its workers without a lock or a barrier.

>>> epochs = Epochs()
>>> epochs.request(epoch=3, position=40)
>>> epochs.begin(1, worker=0), epochs.begin(1, worker=1), epochs.begin(2, worker=0)
((3, 40), (3, 40), (4, 0))

A pass is one iteration over the dataset, by however many workers.  All workers of a pass call `begin` with the same
pass_id, and all get the same answer: the first pass after a request starts where the request says, and each pass after
it is the next epoch.  A worker that comes a second time with the same pass_id (trainers may seed torch alike before
each epoch) has begun another pass, too.

The state is a few 64-bit words in memory that forked and spawned workers share: some that only the trainer's process
writes before a pass starts, one that every worker of a pass writes with the same value, in one store, so that it does
not matter who comes first, and one for each worker, in which it notes the pass that it began last.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

_EPOCH_BITS: Final = 31
_SERIAL_BITS: Final = 8
_TAG_BITS: Final = 23
_WORKERS: Final = 1024


class Epochs:
    """The next epoch and position; see above.  Pickling keeps the memory shared only with a child being started."""

    def __init__(self) -> None:
        # Serial, epoch and position of the last request; the current pass; whether workers read it; the pass before;
        # the workers' own notes.
        self._words = _shared(np.array([0, 0, 0, -1, 0, -1] + [-1] * _WORKERS, dtype=np.int64))

    def request(self, *, epoch: int, position: int = 0) -> None:
        """The next pass is this epoch, from this position on."""
        words = self._array()
        serial, current = int(words[0]), int(words[3])
        if current >= 0 and _unpack(current)[0] == serial:  # the last request has been used
            words[0] = (serial + 1) % (1 << _SERIAL_BITS)
        words[1], words[2], words[4] = epoch, position, 0

    def begin(self, pass_id: int, worker: int = 0) -> tuple[int, int]:
        """(epoch, position) at which the pass starts."""
        words = self._array()
        serial, epoch, position, current = words[:4].tolist()
        tag = pass_id % (1 << _TAG_BITS)
        if current < 0 or _unpack(current)[0] != serial:
            self._enter(_pack(serial, tag, first=True, epoch=epoch), worker)
            return epoch, position
        _, running, first, running_epoch = _unpack(current)
        if running == tag and words[6 + worker % _WORKERS] != current:
            self._enter(current, worker)
            return running_epoch, position if first else 0
        before = int(words[5])
        if running != tag and before >= 0 and _unpack(before)[1] == tag and words[6 + worker % _WORKERS] != before:
            # A worker that comes late, when the trainer has left its pass and others have begun the next one.
            words[6 + worker % _WORKERS] = before
            return _unpack(before)[3], 0
        self._enter(_pack(serial, tag, first=False, epoch=running_epoch + 1), worker)
        return running_epoch + 1, 0

    def begin_at(self, pass_id: int, epoch: int, worker: int = 0) -> None:
        """The pass is this epoch, as a state says that was loaded inside its workers."""
        tag = pass_id % (1 << _TAG_BITS)
        self._enter(_pack(int(self._array()[0]), tag, first=False, epoch=epoch), worker)

    def _enter(self, word: int, worker: int) -> None:
        words = self._array()
        if words[3] != word:
            words[5] = words[3]
        words[3] = words[6 + worker % _WORKERS] = word

    def mark(self, *, in_workers: bool) -> None:
        """Say whether worker processes read the current pass."""
        self._array()[4] = in_workers

    @property
    def in_workers(self) -> bool:
        """Whether worker processes have begun the last pass."""
        return bool(self._array()[4])

    def upcoming(self) -> tuple[int, int]:
        """(epoch, position) at which the next pass will start."""
        serial, epoch, position, current = self._array()[:4].tolist()
        if current < 0 or _unpack(current)[0] != serial:
            return epoch, position
        return _unpack(current)[3] + 1, 0

    def _array(self) -> NDArray[np.int64]:
        array: NDArray[np.int64] = self._words.numpy()
        return array

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.context import get_spawning_popen

        # A pickle that is kept or sent elsewhere holds numbers; a child of this process shares the memory.
        return {"words": self._words if get_spawning_popen() is not None else self._array().copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        words = state["words"]
        self._words = words if isinstance(words, torch.Tensor) else _shared(words)


def _shared(words: NDArray[np.int64]) -> torch.Tensor:
    tensor = torch.from_numpy(words.copy())
    # Without shared memory (some sandboxes) the epoch advances in this process and in forked workers' copies only.
    with contextlib.suppress(RuntimeError):
        tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _pack(serial: int, tag: int, *, first: bool, epoch: int) -> int:
    return (((serial << _TAG_BITS | tag) << 1 | int(first)) << _EPOCH_BITS) | epoch


def _unpack(word: int) -> tuple[int, int, bool, int]:
    """(serial, tag, first, epoch)."""
    epoch = word & ((1 << _EPOCH_BITS) - 1)
    word >>= _EPOCH_BITS
    return word >> (_TAG_BITS + 1), word >> 1 & ((1 << _TAG_BITS) - 1), bool(word & 1), epoch
