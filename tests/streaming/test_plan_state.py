"""What a checkpoint holds, and what is refused as one."""

from __future__ import annotations

import json
from collections import UserDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming import StateError, StateMismatch
from streaming.plan import make_state, read_state
from streaming.plan.state import MAX_EPOCH

VALUES = st.none() | st.integers() | st.text(max_size=5)
FINGERPRINTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)
FINE = {"version": 1, "fingerprint": {"seed": 7}, "epoch": 3, "position": 640}


@given(FINGERPRINTS, st.integers(0, MAX_EPOCH - 1), st.integers(0, 2**62 - 1))
def test_a_state_comes_back_through_json(fingerprint: dict[str, Any], epoch: int, position: int) -> None:
    """Four entries, of any size of number, that JSON keeps as they are."""
    state = make_state(fingerprint, epoch=epoch, position=position)
    assert state == {"version": 1, "fingerprint": fingerprint, "epoch": epoch, "position": position}
    assert read_state(json.loads(json.dumps(state)), fingerprint) == (epoch, position)


def test_a_state_is_a_copy() -> None:
    """Changing the fingerprint later leaves the state alone."""
    fingerprint = {"seed": 7}
    state = make_state(fingerprint, epoch=3, position=640)
    fingerprint["seed"] = 8
    assert state == FINE


def test_any_mapping_will_do() -> None:
    """Checkpoints may come back in containers of another kind, with entries that others added."""
    assert read_state(UserDict(FINE, note="mine"), UserDict(seed=7)) == (3, 640)


@given(FINGERPRINTS, FINGERPRINTS)
def test_each_difference_is_named_with_both_values(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """A fingerprint is accepted if and only if no entry differs; the error names those that do, and no others."""
    state = make_state(saved, epoch=0, position=0)
    differing = {name for name in saved.keys() | now.keys() if saved.get(name) != now.get(name)}
    if not differing:
        assert read_state(state, now) == (0, 0)
        return
    with pytest.raises(StateMismatch) as caught:
        read_state(state, now)
    for name in "abcd":
        text = f"{name}: saved {saved.get(name)!r}, now {now.get(name)!r}"
        assert (text in str(caught.value)) == (name in differing)


@pytest.mark.parametrize("state", [None, 7, "state", [1, 2], b"{}"])
def test_what_is_no_dict_is_no_state(state: object) -> None:
    """The error says what a state is, and what came instead."""
    with pytest.raises(StateError, match=f"not {type(state).__name__}"):
        read_state(state, {})


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_other_versions_are_refused(version: object) -> None:
    """The version of the state and the one that can be read are named."""
    with pytest.raises(StateError, match=f"the state has version {version!r}; this release reads version 1"):
        read_state(FINE | {"version": version}, {"seed": 7})
    with pytest.raises(StateError, match="version None"):
        read_state({}, {})


@pytest.mark.parametrize("name", ["epoch", "position"])
@pytest.mark.parametrize("value", [-1, 1.0, "3", None, True])
def test_epoch_and_position_are_counts(name: str, value: object) -> None:
    """Negative numbers, fractions, text and truth values are refused, and so is a state without them."""
    with pytest.raises(StateError, match="lacks fingerprint, epoch or position"):
        read_state(FINE | {name: value}, {"seed": 7})
    with pytest.raises(StateError, match="lacks fingerprint, epoch or position"):
        read_state({k: v for k, v in FINE.items() if k != name}, {"seed": 7})


@pytest.mark.parametrize("fingerprint", [None, "ab12", [("seed", 7)]])
def test_a_fingerprint_is_a_dict(fingerprint: object) -> None:
    """Anything else is refused as no state at all, not as that of another dataset."""
    with pytest.raises(StateError) as caught:
        read_state(FINE | {"fingerprint": fingerprint}, {"seed": 7})
    assert type(caught.value) is StateError


def test_numbers_beyond_the_limits_are_refused() -> None:
    """An epoch of 2**31 and a position of 2**62 are no epoch and no position."""
    for epoch, position in ((MAX_EPOCH, 0), (0, 1 << 62)):
        with pytest.raises(StateError, match="not what they should be"):
            read_state(make_state({}, epoch=epoch, position=position), {})
