"""Which shards some ranks read in an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import mixed_plans
from plans import EPOCHS, budget_plans, plans, reader, straight

from streaming import FixedBatch, Mix, Plan, PlanError, Shuffle
from streaming.plan import ColumnStatistics, CostBudget, Share
from streaming.plan.taken import Taken

pytestmark = pytest.mark.usefixtures("few_bins_throughout")


KINDS: dict[str, st.SearchStrategy[Plan]] = {
    "plain": plans(),
    **{kind: budget_plans(kind) for kind in ("bucket", "pad", "pack", "padded", "packed")},
    **{f"{kind} by sample": mixed_plans("sample", kind) for kind in ("single", "fixed", "bucket", "padded")},
    **{f"{kind} by batch": mixed_plans("batch", kind) for kind in ("single", "fixed", "bucket", "padded", "pack")},
}


def read_by(plan: Plan, number: int, ranks: set[int], start: int = 0) -> set[int]:
    """The shards of all samples that the ranks get, one position after the other."""
    epoch, found = plan.epoch(number), set[int]()
    for rank in ranks:
        share = Share(rank, plan.world_size, start=start)
        positions = share.positions(np.arange(share.turns(plan.steps(start=start, rank=rank))))
        given = reader(plan, epoch, positions.tolist(), 1)
        found |= {shard for samples, _ in given.values() for shard, _ in samples}
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=30)
def test_no_shard_that_is_read_is_missing(kind: str, data: st.DataObject) -> None:
    """For plans of all kinds, any ranks, and from any position on; shards without samples are never among them."""
    plan, number, start = data.draw(KINDS[kind]), data.draw(EPOCHS), data.draw(st.integers(0, 50))
    ranks = data.draw(st.sets(st.integers(0, plan.world_size - 1)))
    found = plan.shards_of_ranks(number, ranks, start=start)
    assert found.tolist() == sorted(set(found.tolist()))
    assert read_by(plan, number, ranks, start) <= set(found.tolist())
    assert plan.counts[found].all()
    own = plan.own_shards(number, ranks, start=start).tolist()
    assert own == sorted(set(own))
    assert plan.counts[own].all()


@pytest.mark.parametrize("kind", ["plain", "bucket", "pack", "fixed by batch"])
@given(st.data())
@settings(max_examples=30)
def test_the_shards_of_each_position(kind: str, data: st.DataObject) -> None:
    """Those of its samples are among them, and what is more shares a block with one of these."""
    plan = data.draw(KINDS[kind])
    epoch = plan.epoch(1)
    for position, samples in enumerate(straight(epoch)):
        wanted = {shard for shard, _ in samples}
        found = set(np.flatnonzero(epoch.shards_read(Taken.whole(position, position + 1))).tolist())
        assert wanted <= found
        if kind == "plain":
            order = epoch.order  # type: ignore[union-attr]
            blocks = [order.block_parts(*at)[0].tolist() for at in np.ndindex(plan.lanes, order.blocks)]
            assert all(any(shard in block and wanted & set(block) for block in blocks) for shard in found)


@given(plans(), EPOCHS)
def test_all_ranks_read_all_that_is_given(plan: Plan, number: int) -> None:
    """Every shard with samples, but for what tail="drop" leaves out; and no rank reads none."""
    every = np.flatnonzero(plan.counts).tolist()
    found = plan.shards_of_ranks(number, range(plan.world_size)).tolist()
    assert found == every or plan.tail == "drop"
    assert plan.own_shards(number, range(plan.world_size)).tolist() == every
    assert plan.shards_of_ranks(number, []).tolist() == plan.own_shards(number, []).tolist() == []


@pytest.mark.parametrize("sticky", [False, True])
def test_ranks_that_divide_the_lanes_read_their_own(sticky: bool) -> None:
    """With shards of whole batches nothing is pooled: rank r has the lanes l with l % ranks == r, and no other."""
    plan = Plan.make(
        np.full(64, 96), batch=FixedBatch(8), shuffle=Shuffle(2, 50), lanes=8, world_size=4, sticky=sticky, seed=5
    )
    for number in range(3):
        lanes = plan.epoch(number).order.lane_shards  # type: ignore[union-attr]
        for ranks in ({1}, {0, 3}):
            wanted = sorted(s for lane in range(8) if lane % 4 in ranks for s in lanes[lane].tolist())
            assert plan.shards_of_ranks(number, ranks).tolist() == wanted
            assert plan.own_shards(number, ranks).tolist() == wanted
            assert sorted(read_by(plan, number, ranks)) == wanted
        shifted = plan.shards_of_ranks(number, {0}, start=3).tolist()
        assert shifted == plan.shards_of_ranks(number, {3}).tolist()
        assert plan.own_shards(number, {0}, start=3).tolist() == shifted


def test_what_is_left_of_an_epoch() -> None:
    """From a late position on only the shards of the last blocks are read; behind the end, none."""
    plan = Plan.make(np.full(64, 96), batch=FixedBatch(8), shuffle=Shuffle(2, 50), lanes=8, world_size=4)
    rest = plan.shards_of_ranks(1, {2}, start=plan.total - 32).tolist()
    lanes = plan.epoch(1).order.lane_shards  # type: ignore[union-attr]
    assert rest == sorted([*lanes[2, -2:].tolist(), *lanes[6, -2:].tolist()])
    assert plan.shards_of_ranks(1, {2}, start=plan.total).tolist() == []


def test_similar_samples_in_runs_of_all_ranks() -> None:
    """With a budget ranks keep to their lanes where they divide `together`; of other lanes they read the ends alone."""
    random = np.random.default_rng(0)
    shards = [{"tokens": random.integers(1, 100, 400)} for _ in range(160)]
    found = {}
    for together in (8, 1):
        plan = Plan.make(
            ColumnStatistics(shards), batch=CostBudget("tokens", 150), shuffle=Shuffle(1, 100), seed=1, lanes=8,
            world_size=8, together=together, sticky=True,
        )  # fmt: skip
        found[together] = len(plan.shards_of_ranks(0, {3}))
        assert plan.keeps_lanes == (together == 8)
        own = [plan.own_shards(number, {3}).tolist() for number in range(3)]
        assert own[0] == own[1] == own[2]
        assert len(own[0]) == (20 if together == 8 else 160)
    assert found[1] == 160
    assert 20 <= found[8] <= 100


def test_a_part_of_a_source() -> None:
    """Of a source of which an epoch takes a part, the shards of the other passes' places are not read."""
    for by, length in (("sample", 400), ("batch", 100)):
        plan = Plan.make(
            np.full(200, 20), batch=FixedBatch(4), shuffle=Shuffle(1), lanes=4,
            mix=Mix({"a": 1, "b": 1}, by=by, length=length), sources=[100, 100],
        )  # fmt: skip
        shards = [set(plan.shards_of_ranks(number, {0}).tolist()) for number in range(10)]
        assert all(10 <= len(part) <= 60 for part in shards)
        assert set.union(*shards) == set(range(200))


def test_ranks_that_are_not_there_are_refused() -> None:
    """As anywhere else."""
    plan = Plan.make(np.full(4, 4), world_size=2)
    for ranks in ([2], [0, -1]):
        for ask in (plan.shards_of_ranks, plan.own_shards):
            with pytest.raises(PlanError, match="ranks count from 0"):
                ask(0, ranks)
