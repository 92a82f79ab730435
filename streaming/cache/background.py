"""Work that nobody waits for: one thread, a bounded queue.

>>> background = Background(most=64 << 20)
>>> background.submit(lambda: store(data), size=len(data))
True
>>> background.close(wait=True)
0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock, Thread
from typing import Final

from ..own_threads import OURS, may_wait

Job = Callable[[], None]
LONGEST: Final = 15.0
"""Seconds that closing waits for jobs, and then for the one in hand."""


class Background:
    """Jobs that are done in order by one thread, which is there only while there are any.

    A job must not raise.  `most` bounds the sizes of the jobs that are not done, all together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # What is collected can close things, and collection can happen while the lock is held.
        self._lock = RLock()
        self._jobs: deque[tuple[Job, int]] = deque()
        self._held = 0
        self._thread: Thread | None = None
        self._working = False
        self._closed = False

    def has_room(self, size: int) -> bool:
        """Whether a job of this size would be taken now; one that is larger than the bound is taken alone."""
        with self._lock:
            return not self._closed and (self._held + size <= self._most or not self._held)

    def submit(self, job: Job, size: int = 0) -> bool:
        """Have it done; False where there is no room for it, or no more is taken."""
        with self._lock:
            if not self.has_room(size) and (size or self._closed):
                return False
            if not self._working:
                thread = Thread(target=self._work, name=f"{OURS}put", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends, or there are too many threads
                    return False
                self._thread, self._working = thread, True
            self._jobs.append((job, size))
            self._held += size
            return True

    def close(self, *, wait: bool) -> int:
        """Take no more; finish all jobs with `wait`, else only the one in hand.  How many with a size were left out.

        Where that takes longer than half a minute, the rest is left out, and the thread ends with the job in hand.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
        awaited = thread if may_wait() else None
        if awaited is not None and wait:
            awaited.join(LONGEST)
        with self._lock:
            left = sum(size > 0 for _, size in self._jobs)
            self._held -= sum(size for _, size in self._jobs)
            self._jobs.clear()
        if awaited is not None:
            awaited.join(LONGEST)
        return left

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working = False
                    return
                job, size = self._jobs.popleft()
            try:
                job()
            finally:
                del job  # and with it the bytes
                with self._lock:
                    self._held -= size
