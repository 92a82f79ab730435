"""Keeps what was used last, by number and weight.

>>> recent = Recent(1, spare=0)
>>> recent.put("a", 1, weight=5), recent.put("b", 2, weight=5), recent.get("a")
(1, 2, None)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
SPARE: Final = 1 << 22


class Recent(Generic[K, V]):
    """At least the `least` entries that were used last, and as many more as together weigh at most `spare`."""

    def __init__(self, least: int, *, spare: int = SPARE) -> None:
        self._least = max(1, least)
        self._spare = spare
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """The entry of a key, which is then the one used last; None where it is not kept."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, *, weight: int) -> V:
        """Keep a new entry, and let go of those used least lately; gives the entry."""
        self._weight += weight - self._entries.pop(key, (value, 0))[1]
        self._entries[key] = value, weight
        while len(self._entries) > self._least and self._weight > self._spare:
            self._weight -= self._entries.popitem(last=False)[1][1]
        return value
