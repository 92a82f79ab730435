"""States: what they hold, and that a run goes on from them exactly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from reading import by_position, numbers, planned, write_numbered

from streaming import FixedBatch, StateError, StateMismatch, StreamingDataset


def _ranks(source: str, world_size: int = 1, **options: Any) -> list[StreamingDataset]:
    options = {"threads": 0, "shuffle": True, "seed": 11, "batch": FixedBatch(3), **options}
    return [StreamingDataset(source, rank=r, world_size=world_size, **options) for r in range(world_size)]


def _take(ranks: list[StreamingDataset], steps: int) -> tuple[list[list[int]], dict[str, Any]]:
    """The numbers of the first `steps` steps of all ranks by position, and the state behind them."""
    iterators = [iter(rank) for rank in ranks]
    got = [[next(iterator) for _ in range(steps)] for iterator in iterators]
    states = [rank.state_dict() for rank in ranks]
    assert all(state == states[0] for state in states)
    return numbers(by_position(got)), json.loads(json.dumps(states[0]))


def _rest(ranks: list[StreamingDataset], state: dict[str, Any]) -> list[list[int]]:
    for rank in ranks:
        rank.load_state_dict(state)
    got = [list(rank) for rank in ranks]
    assert len({len(items) for items in got}) == 1
    return numbers(by_position(got))


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_resume_from_every_position_on_other_ranks(small: str, world_size: int, tail: str) -> None:
    """After any number of steps, any number of ranks go on with exactly the batches that were left."""
    ranks = _ranks(small, world_size, tail=tail)
    plan = planned(ranks[0], 0)
    for steps in range(len(ranks[0])):
        done, state = _take(_ranks(small, world_size, tail=tail), steps)
        assert state["position"] == steps * world_size
        for others in (1, 2, 3):
            new = _ranks(small, others, tail=tail)
            rest = _rest(new, state)
            left = plan[len(done) :]
            if tail == "drop":
                full = [b for b in left if len(b) == 3]
                whole = len(full) // others * others
                assert rest == full[:whole] if whole else rest == planned(new[0], 1)[: len(rest)]
            else:
                assert rest[: len(left)] == left
                assert rest[len(left) :] == plan[: len(rest) - len(left)]


def test_resume_of_the_resumed(small: str) -> None:
    """States of resumed runs are as good as those of the first: a run in ten pieces on changing ranks is the plan."""
    state: dict[str, Any] | None = None
    got: list[list[int]] = []
    worlds = [1, 2, 3, 1, 2, 1, 1, 1]
    for world_size in worlds:
        ranks = _ranks(small, world_size, batch=FixedBatch(2), tail="pad")
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(state)
        done, state = _take(ranks, 1)
        got += done
    assert got == planned(_ranks(small, batch=FixedBatch(2))[0], 0)[: sum(worlds)]


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_state_right_after_loading_is_the_loaded_one(small: str, taken: int) -> None:
    """Loading and saving at once loses nothing; neither does making an iterator in between."""
    _, state = _take(_ranks(small), taken)
    [dataset] = _ranks(small)
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    iter(dataset)
    assert dataset.state_dict() == state
    [again] = _ranks(small)
    assert _rest([again], dataset.state_dict()) == planned(again, 0)[taken : len(again)]


def test_a_state_before_anything_is_read(small: str) -> None:
    """The state of a fresh dataset stands for the whole first epoch."""
    [dataset] = _ranks(small)
    assert _rest(_ranks(small), dataset.state_dict()) == planned(dataset, 0)[: len(dataset)]


@pytest.mark.parametrize("when", ["last batch", "end"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_end_of_an_epoch(small: str, world_size: int, tail: str, when: str) -> None:
    """A state that is saved behind the last batch, before or after the loop ends, stands for the whole next epoch."""
    ranks = _ranks(small, world_size, tail=tail)
    if when == "end":
        for rank in ranks:
            list(rank)
        state = ranks[0].state_dict()
    else:
        _, state = _take(ranks, len(ranks[0]))
    assert (state["epoch"], state["position"]) == (1, 0)
    new = _ranks(small, world_size, tail=tail)
    first = _rest(new, state)
    second = numbers(by_position([list(rank) for rank in new]))
    steps = len(new[0]) * world_size
    for epoch, got in ((1, first), (2, second)):
        plan = planned(new[0], epoch)
        assert got == (plan + plan)[:steps]


def test_batches_carry_the_state_behind_them(small: str) -> None:
    """`__state__` of a batch is the state to go on behind it."""
    [dataset] = _ranks(small)
    batches = list(dataset)
    for i, batch in enumerate(batches):
        rest = _rest(_ranks(small), batch["__state__"])
        assert rest == (numbers(batches)[i + 1 :] or planned(dataset, 1)[: len(dataset)])


def test_epochs_follow_a_resumed_one(small: str) -> None:
    """Behind the rest of an epoch comes the next epoch, whole."""
    _, state = _take(_ranks(small), 3)
    [dataset] = _ranks(small)
    _rest([dataset], state)
    assert numbers(dataset) == planned(dataset, 1)[: len(dataset)]
    assert numbers(dataset) == planned(dataset, 2)[: len(dataset)]


def test_set_epoch_goes_before_a_loaded_state(small: str) -> None:
    """set_epoch behind load_state_dict starts that epoch from its first batch."""
    _, state = _take(_ranks(small), 3)
    [dataset] = _ranks(small)
    dataset.load_state_dict(state)
    dataset.set_epoch(4)
    assert dataset.state_dict()["epoch"] == 4
    assert numbers(dataset) == planned(dataset, 4)[: len(dataset)]


def test_states_may_be_loaded_behind_a_run(small: str) -> None:
    """A dataset that has been read can be set back to an earlier state, as often as wanted."""
    [dataset] = _ranks(small)
    _, state = _take([dataset], 5)
    for _ in range(2):
        assert _rest([dataset], state) == planned(dataset, 0)[5 : len(dataset)]


@pytest.mark.parametrize("batch", [None, FixedBatch(1)])
def test_single_samples(small: str, batch: FixedBatch | None) -> None:
    """Samples, too, are resumed one by one, though they are read in runs."""
    for taken in (0, 1, 7, 8, 9, 30, 36):
        _, state = _take(_ranks(small, batch=batch), taken)
        [dataset] = _ranks(small, batch=batch)
        assert _rest([dataset], state) == planned(dataset, 0)[taken:]


@pytest.mark.parametrize("batch", [None, FixedBatch(1)])
def test_repeats_behind_a_resume_are_flagged(tmp_path: Path, batch: FixedBatch | None) -> None:
    """Where only the layout of a resumed run makes repeats necessary, they are flagged as those of any other."""
    folder = str(write_numbered(tmp_path / "data", [20, 16]))
    _, state = _take(_ranks(folder, batch=batch, tail="pad"), 2)
    ranks = _ranks(folder, 3, batch=batch, tail="pad")
    assert ranks[0].plan.tail_report().repeated_samples == 0
    for rank in ranks:
        rank.load_state_dict(state)
    flags = [bool(item.get("__repeat__", False)) for item in by_position([list(rank) for rank in ranks])]
    assert flags == [False] * 34 + [True] * 2


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 12}, "seed: saved 11, now 12"),
        ({"batch": FixedBatch(4)}, r"batch: saved 'FixedBatch\(3\)', now 'FixedBatch\(4\)'"),
        ({"shuffle": False}, "shuffle"),
        ({"lanes": 2}, "lanes: saved 1, now 2"),
    ],
)
def test_states_of_another_configuration(small: str, change: dict[str, Any], name: str) -> None:
    """A state of other arguments is refused with both values; the dataset stays as it was."""
    _, state = _take(_ranks(small), 3)
    [dataset] = _ranks(small, **change)
    before = dataset.state_dict()
    with pytest.raises(StateMismatch, match=name):
        dataset.load_state_dict(state)
    assert dataset.state_dict() == before


def test_states_of_another_dataset(small: str, tmp_path: Path) -> None:
    """A state of other shards is refused, also where they have as many samples."""
    _, state = _take(_ranks(small), 3)
    reversed_shards = [f"{small}/shard-{i:03d}.tar" for i in range(6, -1, -1)]
    for source in (write_numbered(tmp_path / "other", [37]), reversed_shards):
        with pytest.raises(StateMismatch, match="dataset: saved"):
            StreamingDataset(source, threads=0, shuffle=True, seed=11, batch=FixedBatch(3)).load_state_dict(state)


def test_copies_of_a_dataset_take_its_states(small: str, tmp_path: Path) -> None:
    """The same shards at another place are the same dataset."""
    _, state = _take(_ranks(small), 3)
    [dataset] = _ranks(shutil.copytree(small, tmp_path / "copy"))
    assert _rest([dataset], state) == planned(dataset, 0)[3 : len(dataset)]


@pytest.mark.parametrize("state", [None, {}, {"version": 99}, {"version": 1}, [1], {"version": 1, "epoch": 0}])
def test_states_that_are_none(small: str, state: Any) -> None:
    """Something that is no state is refused."""
    [dataset] = _ranks(small)
    with pytest.raises(StateError):
        dataset.load_state_dict(state)
