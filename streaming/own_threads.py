"""Threads of this package: how they are called, and what they may not do.

>>> may_wait()
True
"""

from __future__ import annotations

from threading import current_thread
from typing import Final

OURS: Final = "shardstream-"
"""What the names of this package's threads begin with."""


def may_wait() -> bool:
    """Whether this thread may wait for those that work ahead.

    An iterator that nobody closes is closed where it is collected, which can be in one of these threads, in the middle
    of what others wait for.
    """
    return not current_thread().name.startswith(OURS)
