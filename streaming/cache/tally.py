"""What a tier of the cache did: entries and bytes of each kind.

>>> tally = Tally(("hits", "misses"))
>>> tally.add("hits", 4096)
>>> tally.totals()
{'hits': 1, 'hits_bytes': 4096, 'misses': 0, 'misses_bytes': 0}
"""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Tally:
    """Counts by kind; safe to share between threads."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._totals = {name: 0 for kind in kinds for name in (kind, f"{kind}_bytes")}

    def add(self, kind: str, size: int) -> None:
        """One more entry of a kind, of so many bytes."""
        with self._lock:
            self._totals[kind] += 1
            self._totals[f"{kind}_bytes"] += size

    def totals(self) -> dict[str, int]:
        """All counts as they are now."""
        with self._lock:
            return dict(self._totals)
