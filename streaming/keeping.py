"""What the next epoch reads here: by this caches decide what stays.

>>> keeping = Keeping(plan, place, names=catalog.shard_name)
>>> keeping.begin(epoch=0, share=Share(rank=1, world_size=16, worker=0, workers=2))
>>> keeping.mine(17)                              # does this reader read shard 17 in epoch 1?
False

A job on one machine reads everything in every epoch, so that any chunk is as good as another.  Where several machines
share an epoch, each reads other shards in the next one (unless lanes are sticky): then room for those is made by what
the next epoch does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from .chunks import ShardName
from .place import Place
from .plan import Plan, Share

Spare = Callable[[str], bool]


class Keeping:
    """The shards of the next epoch, worked out when they are first asked for; safe to share between threads."""

    def __init__(self, plan: Plan, place: Place, names: Callable[[int], ShardName]) -> None:
        self._plan = plan
        self._place = place
        self._names = names
        self._lock = Lock()
        self._epoch = 0
        self._share = Share()
        self._known: dict[str, frozenset[int]] = {}
        self._spare: Spare | None = None

    def begin(self, epoch: int, share: Share) -> None:
        """An epoch begins, of which this reader reads a share."""
        with self._lock:
            if (epoch, share.worker, share.workers) != (self._epoch, self._share.worker, self._share.workers):
                self._known, self._spare = {}, None
            self._epoch, self._share = epoch, share

    def mine(self, shard: int) -> bool:
        """Whether this reader reads a shard in the next epoch, as far as lanes tell."""
        share = self._share
        readers = share.world_size * share.workers
        if readers == 1:
            return True
        return shard in self._shards("mine", readers, [share.rank + share.world_size * share.worker])

    def spare(self, shard: int) -> Spare | None:
        """What may go from the disk for chunks of a shard: entries of this dataset's shards that this machine does not
        read in the next epoch, if it reads that one; None: nothing.  The same function in all of an epoch.

        What other datasets keep below the same URL is not known here, and never spare.
        """
        if self.alone or shard not in self._here():
            return None
        with self._lock:
            found = self._spare
        if found is None:
            here = self._here()
            others = frozenset(self._names(s).shard for s in range(len(self._plan.counts)) if s not in here)

            def found(entry: str) -> bool:
                return entry.partition("-")[0] in others

            with self._lock:
                self._spare = found
        return found

    @property
    def alone(self) -> bool:
        """Whether all ranks are on this machine."""
        return self._place.local_world_size >= self._place.world_size

    def _here(self) -> frozenset[int]:
        """The shards that the ranks of this machine, which launchers number one after the other, read next."""
        each = self._place.local_world_size
        first = self._place.rank // each * each
        ranks = range(first, min(first + each, self._place.world_size))
        return self._shards("here", self._place.world_size, list(ranks))

    def _shards(self, what: str, readers: int, ranks: list[int]) -> frozenset[int]:
        with self._lock:
            found, epoch = self._known.get(what), self._epoch
        if found is None:
            found = frozenset(replace(self._plan, world_size=readers).own_shards(epoch + 1, ranks).tolist())
            with self._lock:
                self._known[what] = found
        return found
