"""What a checkpoint holds: a version, what the order depends on, the epoch, and how many micro-batches are done.

>>> state = make_state({"dataset": "ab12", "seed": 7}, epoch=3, position=640)
>>> read_state(state, {"dataset": "ab12", "seed": 7})
(3, 640)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import StateError, StateMismatch

STATE_VERSION: Final = 1
MAX_EPOCH: Final = 1 << 31
"""Epochs are below this: their numbers travel between processes in 31 bits."""


def make_state(fingerprint: Mapping[str, Any], *, epoch: int, position: int) -> dict[str, Any]:
    """The state after the first `position` micro-batches of `epoch`, over all ranks together.  It is JSON-able."""
    return {"version": STATE_VERSION, "fingerprint": dict(fingerprint), "epoch": epoch, "position": position}


def read_state(state: object, fingerprint: Mapping[str, Any]) -> tuple[int, int]:
    """(epoch, position) of a state that belongs to `fingerprint`.

    Raises StateError for something that is no state, and StateMismatch, naming each difference with both values, for
    the state of another dataset or configuration.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict with version, fingerprint, epoch and position, not {type(state).__name__}")
    if state.get("version") != STATE_VERSION:
        raise StateError(f"the state has version {state.get('version')!r}; this release reads version {STATE_VERSION}")
    saved, epoch, position = state.get("fingerprint"), state.get("epoch"), state.get("position")
    if not isinstance(saved, Mapping) or not _count(epoch, MAX_EPOCH) or not _count(position, 1 << 62):
        raise StateError("the state lacks fingerprint, epoch or position, or they are not what they should be")
    differing = [name for name in {**saved, **fingerprint} if saved.get(name) != fingerprint.get(name)]
    if differing:
        details = "; ".join(f"{n}: saved {saved.get(n)!r}, now {fingerprint.get(n)!r}" for n in differing)
        raise StateMismatch(
            f"the state belongs to another dataset or configuration: {details}",
            hint="open the dataset as it was when the state was saved, or start anew",
        )
    return int(epoch), int(position)  # type: ignore[arg-type]


def _count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
