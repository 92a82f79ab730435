"""A cache folder that is open in this process: its lock, its ledger, the groups in use, and room in it.

>>> opened = OpenFolder("/ssd/cache", limit=500 * 10**9)
>>> opened.groups.use("3c6e0b8a", "s3://bucket/cc3m")
'/ssd/cache/3c6e0b8a'
>>> opened.close()
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from . import layout
from .budget import Budget
from .groups import Groups
from .locks import lock, try_lock, unlock
from .room import Room


class OpenFolder:
    """Opens the folder, and makes it where there is none; parameters as for Room.

    The first process to open it counts what is there and removes what others that were killed left behind.  Raises
    StoreError for a folder that is no cache and holds other things, OSError where the disk fails.
    """

    def __init__(
        self,
        folder: str,
        limit: int | None,
        *,
        evicted: Callable[[int], None] = lambda _: None,
        recount_every: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        folder = os.path.realpath(folder)
        self._marker = layout.open_marker(folder)
        try:
            alone = try_lock(self._marker, fcntl.LOCK_EX)
            lock(self._marker, fcntl.LOCK_SH)
            self.budget = Budget(folder, limit)
        except BaseException:
            os.close(self._marker)
            raise
        self.groups = Groups(folder, self.budget, clock)
        self.room = Room(folder, self.budget, evicted=evicted, recount_every=recount_every, clock=clock)
        try:
            if self.budget.writable:
                self.budget.recount(recount_every, alone=alone)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it all."""
        self.groups.close()
        self.budget.close()
        marker, self._marker = self._marker, -1
        if marker >= 0:
            unlock(marker)
            os.close(marker)
