"""What is kept of what was used last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.plan.recent import Recent

CALLS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=40)
"""(key, weight): the entry is asked for, and put where it is not kept."""


@given(CALLS, st.integers(0, 4), st.integers(0, 30))
def test_entries_are_kept_by_number_and_weight(calls: list[tuple[int, int]], least: int, spare: int) -> None:
    """As a list has it: the last `least` used, at least 1, and older ones as long as all weigh at most `spare`."""
    recent: Recent[int, tuple[int, int]] = Recent(least, spare=spare)
    plain: list[tuple[int, int]] = []
    for key, weight in calls:
        found = recent.get(key)
        kept = [entry for entry in plain if entry[0] == key]
        assert found == (kept[0] if kept else None)
        if kept:
            plain.remove(kept[0])
            plain.append(kept[0])
            continue
        assert recent.put(key, (key, weight), weight=weight) == (key, weight)
        plain.append((key, weight))
        while len(plain) > max(1, least) and sum(w for _, w in plain) > spare:
            plain.pop(0)


def test_the_last_entry_is_always_kept() -> None:
    """However heavy it is."""
    recent: Recent[str, int] = Recent(0, spare=3)
    recent.put("a", 1, weight=10**12)
    assert recent.get("a") == 1
    recent.put("b", 2, weight=10**12)
    assert recent.get("a") is None
    assert recent.get("b") == 2


def test_light_entries_are_kept_beyond_the_number() -> None:
    """What weighs little enough together stays."""
    recent: Recent[int, int] = Recent(1)
    for i in range(500):
        recent.put(i, -i, weight=10)
    assert [recent.get(i) for i in range(500)] == [-i for i in range(500)]


def test_an_entry_that_is_put_again_counts_once() -> None:
    """As where two threads fetch the same."""
    recent: Recent[str, int] = Recent(1, spare=10)
    for i in range(50):
        recent.put("a", i, weight=5)
    recent.put("b", 0, weight=5)
    assert (recent.get("a"), recent.get("b")) == (49, 0)
