"""What the next epoch reads here."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.chunks import ShardName
from streaming.keeping import Keeping
from streaming.place import Place
from streaming.plan import FixedBatch, Plan, Share, Shuffle

PLAN = Plan.make(np.full(32, 10), batch=FixedBatch(5), shuffle=Shuffle(shards=1), lanes=16, world_size=4)


def _name(shard: int) -> ShardName:
    return ShardName("group", f"{shard:032x}")


def _read(epoch: int, readers: list[int], world_size: int, plan: Plan = PLAN) -> set[int]:
    """The shards that some readers read, one batch after the other."""
    cursor = plan.epoch(epoch).cursor()
    taken = [p for p in range(plan.total) if p % world_size in readers]
    return {int(s) for p in taken for s in cursor.samples(np.array([p])).shards}


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_reader_knows_its_shards_of_the_next_epoch(epoch: int) -> None:
    """Worker 1 of 2 of rank 2 reads the lanes of reader 6 of 8; exactly their shards are its own."""
    keeping = Keeping(PLAN, Place(2, 4, 1), _name)
    keeping.begin(epoch, Share(2, 4, 1, 2))
    assert {s for s in range(32) if keeping.mine(s)} == _read(epoch + 1, [6], 8)


@pytest.mark.parametrize(("rank", "ranks"), [(0, [0, 1]), (1, [0, 1]), (3, [2, 3])])
def test_a_machine_knows_its_shards_of_the_next_epoch(rank: int, ranks: list[int]) -> None:
    """All ranks of a machine together; entries of the dataset's other shards are spare."""
    keeping = Keeping(PLAN, Place(rank, 4, 2), _name)
    keeping.begin(0, Share(rank, 4))
    wanted = _read(1, ranks, 4)
    assert 0 < len(wanted) < 32
    assert {s for s in range(32) if keeping.spare(s) is not None} == wanted
    spare = keeping.spare(min(wanted))
    assert spare is keeping.spare(max(wanted))
    assert spare is not None
    assert {s for s in range(32) if not spare(_name(s).entry(0, 100))} == wanted
    assert not spare("of-another-dataset")


def test_it_changes_with_the_epoch() -> None:
    """What is worked out for one epoch does not count in the next."""
    keeping = Keeping(PLAN, Place(0, 4, 1), _name)
    found = []
    for epoch in range(4):
        keeping.begin(epoch, Share(0, 4))
        found.append(frozenset(s for s in range(32) if keeping.mine(s)))
        assert found[-1] == _read(epoch + 1, [0], 4)
    assert len(set(found)) > 1


def test_one_machine_needs_everything() -> None:
    """Where all ranks are on one machine nothing is spare, and a single reader reads all again."""
    keeping = Keeping(PLAN, Place(1, 4, 4), _name)
    keeping.begin(0, Share(1, 4))
    assert keeping.alone
    assert keeping.spare(5) is None
    single = Keeping(PLAN, Place(), _name)
    single.begin(0, Share())
    assert all(single.mine(s) for s in range(32))
