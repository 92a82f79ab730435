"""Asking for what later items need, in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from streaming.ahead import MORE, Ahead
from streaming.plan import SampleRefs


class Listening:
    """Writes down what it is asked, and waits where the test says so."""

    def __init__(self) -> None:
        self.prepared: list[int] = []
        self.asked: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def prepare(self, refs: SampleRefs) -> None:
        """As Fetcher."""
        self.prepared.append(int(refs.shards[0]))

    def ask(self, refs: SampleRefs) -> None:
        """As Fetcher."""
        self.go.wait(30)
        self.asked.append(int(refs.shards[0]))


def _refs(number: int | None) -> SampleRefs | None:
    return None if number is None else SampleRefs(np.full(10, number), np.arange(10))


def test_items_come_in_order_and_are_all_asked_for(nothing_left: Callable[[], None]) -> None:
    """Each item is given once, in order, and what it needs is asked for once, in the same order."""
    listening = Listening()
    ahead = Ahead(listening, depth=50)
    items: list[int | None] = [0, 1, None, *range(2, 30), None]
    assert list(ahead.through(items, _refs)) == items
    ahead.close()
    assert listening.asked == listening.prepared == list(range(30))


def test_the_first_item_is_given_at_once() -> None:
    """The first item does not wait for others to be looked at; then a few more are each time, up to the depth."""
    listening = Listening()
    ahead = Ahead(listening, depth=100)
    seen = []
    for item in ahead.through(range(60), _refs):
        seen.append(len(listening.prepared) - item)
    ahead.close()
    assert seen[0] == 1
    assert seen[1] <= 1 + MORE + 1
    assert max(seen) <= 12  # ten samples each
    assert max(seen) >= 10


def test_asking_does_not_hold_up_the_items() -> None:
    """While what is asked waits for room, items are given all the same."""
    listening = Listening()
    listening.go.clear()
    ahead = Ahead(listening, depth=50)
    assert list(ahead.through(range(20), _refs)) == list(range(20))
    assert listening.asked == []
    listening.go.set()
    ahead.close()
    assert listening.asked == list(range(20))


def test_items_are_taken_as_they_are_given() -> None:
    """No more is taken from the source than the depth, however long it is."""
    taken: list[int] = []

    def endless() -> Any:
        number = 0
        while True:
            taken.append(number)
            yield number
            number += 1

    ahead = Ahead(Listening(), depth=50)
    items = ahead.through(endless(), _refs)
    assert [next(items) for _ in range(100)] == list(range(100))
    ahead.close()
    assert len(taken) <= 100 + 6
