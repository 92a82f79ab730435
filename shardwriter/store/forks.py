"""Whether this process may use obstore.

obstore's threads do not survive a fork, and a child that calls it hangs for ever, also when it makes a client of its
own.  So the first use is recorded, and children forked after it read through fsspec.
"""

from __future__ import annotations

import os


class ForkedStoreWarning(RuntimeWarning):
    """Storage is read more slowly here, since this process was forked from one that used it already."""


class _Process:
    """The one piece of process-wide state: it describes the process, not any store, and only a fork changes it back."""

    used = False
    inherited = False


def mark_used() -> None:
    """Note that obstore's threads run in this process from now on."""
    _Process.used = True


def obstore_is_there() -> bool:
    """False where obstore has no wheel for the machine, or was taken out."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        return False
    return True


def obstore_is_safe() -> bool:
    """False in a child that was forked, directly or not, from a process that had used obstore."""
    return not _Process.inherited


def _after_fork() -> None:
    _Process.inherited = _Process.inherited or _Process.used
    _Process.used = False


os.register_at_fork(after_in_child=_after_fork)
