"""Batches on their way to the device.

>>> mover = Mover(torch.device("cuda"), Normalize())
>>> moving = mover.start(batch)          # returns at once
>>> batch = mover.finish(moving)         # what the current stream does from now on sees the batch

On CUDA each tensor is copied to pinned memory and from there on a stream of its own, so that the copy, and the
`transform` that follows it there, run beside what the trainer computes.  Elsewhere all of it happens in `start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

DeviceTransform = Callable[[Any], Any]
_MAY_HOLD: Final = (torch.Tensor, dict, list, tuple)
"""What tensors are looked for in."""


@dataclass
class Moving:
    """A batch on its way: what it will be, and the event behind which it is there (None: it is there)."""

    batch: Any
    event: Any = None


class Mover:
    """Moves batches to one device; None leaves tensors where they are."""

    def __init__(self, device: torch.device | None, transform: DeviceTransform | None = None) -> None:
        self.device = device
        self._transform = transform
        self._stream: Any = None

    @property
    def moves(self) -> bool:
        """Whether there is anything to do."""
        return self.device is not None or self._transform is not None

    @property
    def ahead(self) -> bool:
        """Whether a batch moves while the trainer computes, so that it helps to start the next one early."""
        return self.device is not None and self.device.type == "cuda"

    def start(self, batch: Any) -> Moving:
        """Begin to move a batch."""
        if not self.ahead:
            moved = batch if self.device is None else _moved(batch, self.device)
            return Moving(moved if self._transform is None else self._transform(moved))
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            moved = _moved(batch, self.device, pinned=True)
            if self._transform is not None:
                moved = self._transform(moved)
            return Moving(moved, self._stream.record_event())

    def finish(self, moving: Moving) -> Any:
        """The batch, for the current stream."""
        if moving.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(moving.event)
            for tensor in tensors(moving.batch):
                # Its memory was taken on the side stream: it is not to be used again before the current one is done.
                if tensor.is_cuda:  # a transform may have left others where they were
                    tensor.record_stream(current)
        return moving.batch


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            if isinstance(part, _MAY_HOLD):
                yield from tensors(part)


def _moved(value: Any, device: torch.device | None, *, pinned: bool = False) -> Any:
    """The value with its tensors on the device; what holds none is given as it is."""
    if isinstance(value, torch.Tensor):
        plain = value.device.type == "cpu" and value.layout == torch.strided
        return (value.pin_memory() if pinned and plain else value).to(device, non_blocking=pinned)
    if not any(True for _ in tensors(value)):
        return value
    if isinstance(value, dict):
        return {name: _moved(part, device, pinned=pinned) for name, part in value.items()}
    parts = [_moved(part, device, pinned=pinned) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
