"""StreamingDataset under torch's DataLoader and torchdata's StatefulDataLoader, with real worker processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reading import FailAt, draw, flat, numbers, planned, write_numbered
from torch.utils.data import DataLoader, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from streaming import FixedBatch, ShardError, StateError, StreamingDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
    pytest.mark.usefixtures("forkserver"),
]


def _open(source: object, **options: Any) -> StreamingDataset:
    options = {"batch": FixedBatch(4), "shuffle": True, "seed": 3, "threads": 1, **options}
    return StreamingDataset(source, **options)  # type: ignore[arg-type]


def _loader(dataset: StreamingDataset, workers: int, start: str = "fork", **options: Any) -> DataLoader[Any]:
    if workers:
        options = {"multiprocessing_context": start, **options}
    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)


LAYOUTS = [
    ("fork", 0, False),
    *((start, workers, kept) for start in ("fork", "forkserver") for workers in (1, 2, 5) for kept in (False, True)),
    ("spawn", 2, True),
    pytest.param("spawn", 3, False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("start", "workers", "persistent"), LAYOUTS)
def test_workers_change_nothing(small: str, start: str, workers: int, persistent: bool) -> None:
    """However many workers are started in whatever way, kept or not: `len` batches, those of the plan, and epochs that
    advance by themselves and by set_epoch.
    """
    dataset = _open(small)
    loader = _loader(dataset, workers, start, persistent_workers=persistent)
    for epoch in (0, 1):
        assert len(loader) == len(dataset)
        assert numbers(loader) == planned(dataset, epoch)[: len(dataset)]
    dataset.set_epoch(7)
    assert numbers(loader) == planned(dataset, 7)[: len(dataset)]


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_before_iter(small: str, persistent: bool) -> None:
    """set_epoch holds for the pass that follows, also for workers that run already, forwards and backwards."""
    dataset = _open(small)
    loader = _loader(dataset, 2, persistent_workers=persistent)
    for epoch in (4, 0, 2, 2):
        dataset.set_epoch(epoch)
        assert numbers(loader) == planned(dataset, epoch)[: len(dataset)]
    assert numbers(loader) == planned(dataset, 3)[: len(dataset)]


def test_set_epoch_many_times(small: str) -> None:
    """Hundreds of calls of set_epoch between two passes are as good as the last of them."""
    dataset = _open(small)
    loader = _loader(dataset, 2, persistent_workers=True)
    for epoch in (1, 5):
        for other in range(300):
            dataset.set_epoch(other)
        dataset.set_epoch(epoch)
        assert numbers(loader) == planned(dataset, epoch)[: len(dataset)]


def test_set_epoch_while_workers_read(small: str) -> None:
    """set_epoch in the middle of a pass leaves that pass as it is and holds for the next."""
    dataset = _open(small)
    loader = _loader(dataset, 2, persistent_workers=True)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(3)]
    dataset.set_epoch(6)
    assert numbers([*first, *iterator]) == planned(dataset, 0)[: len(dataset)]
    assert numbers(loader) == planned(dataset, 6)[: len(dataset)]


@pytest.mark.parametrize("persistent", [False, True])
def test_passes_left_early(small: str, persistent: bool) -> None:
    """Behind a pass that was left early comes the next epoch, whole."""
    dataset = _open(small)
    loader = _loader(dataset, 2, persistent_workers=persistent)
    for epoch in range(3):
        iterator = iter(loader)
        assert numbers([next(iterator)]) == planned(dataset, epoch)[:1]
        del iterator
    assert numbers(loader) == planned(dataset, 3)[: len(dataset)]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_with_workers(small: str, world_size: int, workers: int) -> None:
    """Ranks that read with workers give together the plan, equally many each."""
    ranks = [_open(small, batch=FixedBatch(2), rank=r, world_size=world_size) for r in range(world_size)]
    got = [numbers(_loader(rank, workers)) for rank in ranks]
    steps = len(ranks[0])
    assert [len(g) for g in got] == [steps] * world_size
    plan = planned(ranks[0], 0)
    assert [got[p % world_size][p // world_size] for p in range(steps * world_size)] == plan[: steps * world_size]


def test_fewer_shards_than_readers(tmp_path: Path) -> None:
    """3 shards of 8 samples, 4 ranks with 2 workers, batches of 2: 3 batches on each rank, all 24 samples once."""
    folder = write_numbered(tmp_path / "data", [8, 8, 8])
    got = [numbers(_loader(_open(folder, batch=FixedBatch(2), rank=r, world_size=4), 2)) for r in range(4)]
    assert [len(g) for g in got] == [3] * 4
    assert sorted(n for g in got for batch in g for n in batch) == list(range(24))


def test_draws_do_not_depend_on_workers(small: str) -> None:
    """A transform draws the same numbers in 0, 1 and 3 workers, and others for each sample."""
    draws = [torch.cat([b["draw"] for b in _loader(_open(small, transform=draw), n)]).tolist() for n in (0, 1, 3)]
    assert draws[0] == draws[1] == draws[2]
    assert len(set(draws[0])) == len(draws[0])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_memory_where_there_is_none(small: str, workers: int) -> None:
    """pin_memory=True on a machine without an accelerator changes nothing."""
    dataset = _open(small)
    assert numbers(_loader(dataset, workers, pin_memory=True)) == planned(dataset, 0)[: len(dataset)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batched_by_the_data_loader(small: str, workers: int) -> None:
    """Un-batched samples are batched by torch's DataLoader; all 37 come once."""
    dataset = _open(small, batch=None, tail="uneven")
    batches = list(DataLoader(dataset, batch_size=4, num_workers=workers))
    assert sorted(n for b in batches for n in b["cls"].tolist()) == list(range(37))
    assert {len(b["txt"]) for b in batches} <= {1, 2, 3, 4}
    if workers == 0:
        assert [n for b in batches for n in b["cls"].tolist()] == [n for [n] in planned(dataset, 0)]


def test_a_webdataset_pipeline(small: str) -> None:
    """Un-batched raw samples feed an existing webdataset pipeline: its decoder, its tuples, its batches."""
    import webdataset

    dataset = _open(small, batch=None, decode=False, tail="uneven")
    stages = (webdataset.decode(), webdataset.to_tuple("cls", "txt"), webdataset.batched(8))
    pipeline = webdataset.DataPipeline(dataset, *stages)
    batches = list(pipeline)
    order = [n for [n] in planned(dataset, 0)]
    assert [int(n) for labels, _ in batches for n in labels] == order
    assert [t for _, texts in batches for t in texts] == [f"text {n}" for n in order]


def test_states_of_the_batches_are_exact_while_workers_run_ahead(small: str) -> None:
    """`__state__` of the last batch that was seen is exact, however far the workers are; it resumes on any layout."""
    dataset = _open(small, batch=FixedBatch(2))
    plan = planned(dataset, 0)[: len(dataset)]
    iterator = iter(_loader(dataset, 2, prefetch_factor=4))
    for steps in range(1, 7):
        state = json.loads(json.dumps(next(iterator)["__state__"]))
        assert state["position"] == steps
    for workers in (0, 1, 3):
        resumed = _open(small, batch=FixedBatch(2))
        resumed.load_state_dict(state)
        loader = _loader(resumed, workers)
        assert numbers(loader) == plan[6:]
        assert numbers(loader) == planned(dataset, 1)[: len(dataset)], "the next pass is the next epoch"
        assert numbers(loader) == planned(dataset, 2)[: len(dataset)]


def test_states_loaded_into_running_workers(small: str) -> None:
    """load_state_dict holds for the next pass of persistent workers too."""
    dataset = _open(small, batch=FixedBatch(2))
    loader = _loader(dataset, 2, persistent_workers=True)
    state = list(loader)[4]["__state__"]
    for _ in range(2):
        dataset.load_state_dict(state)
        assert numbers(loader) == planned(dataset, 0)[5 : len(dataset)]
    assert numbers(loader) == planned(dataset, 1)[: len(dataset)]


def test_no_state_of_a_dataset_that_workers_read(small: str) -> None:
    """state_dict of the trainer's dataset can't know what was seen, so it raises and says what to save instead."""
    dataset = _open(small)
    list(_loader(dataset, 2))
    with pytest.raises(StateError, match="__state__"):
        dataset.state_dict()
    dataset.set_epoch(3)
    assert dataset.state_dict()["epoch"] == 3
    list(dataset)
    assert dataset.state_dict()["epoch"] == 4


def test_errors_come_out_of_workers(small: str) -> None:
    """An error in a worker ends the loop with its class, and its text names sample and shard."""
    with pytest.raises(ShardError, match=r"Unpicklable: 1 and 9") as caught:
        list(_loader(_open(small, transform=FailAt(9)), 2))
    assert "000009" in str(caught.value)
    assert "shard-001.tar" in str(caught.value)


@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_is_left_of_the_workers(small: str, persistent: bool, nothing_left: Callable[[], None]) -> None:
    """Leaving early ends workers and threads with the loader."""
    loader = _loader(_open(small), 2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    del iterator, loader
    nothing_left()


def _stateful(dataset: StreamingDataset, workers: int) -> Any:
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, snapshot_every_n_steps=1)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("batch", [FixedBatch(2), None])
def test_stateful_data_loader(small: str, batch: FixedBatch | None, workers: int) -> None:
    """Torchdata's StatefulDataLoader resumes behind exactly what it gave, from the start and from several stops."""
    dataset = _open(small, batch=batch)
    plan = planned(dataset, 0)[: len(dataset)]
    for stop in (0, 1, 7, len(plan) - 1):
        loader = _stateful(_open(small, batch=batch), workers)
        iterator = iter(loader)
        assert numbers(next(iterator) for _ in range(stop)) == plan[:stop]
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator
        resumed = _stateful(_open(small, batch=batch), workers)
        resumed.load_state_dict(state)
        assert numbers(resumed) == plan[stop:]
        assert numbers(resumed) == planned(dataset, 1)[: len(dataset)]


@pytest.mark.parametrize("when", ["last batch", "end"])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_stateful_data_loader_at_the_end(small: str, workers: int, when: str) -> None:
    """A state taken behind the last batch goes on with the next epoch, whole; one that is taken before the loop has
    ended gives with workers an empty pass first: torchdata's own rule, since it had not seen the end.
    """
    loader, dataset = _stateful(_open(small), workers), _open(small)
    iterator = iter(loader)
    assert numbers(next(iterator) for _ in range(len(dataset))) == planned(dataset, 0)[: len(dataset)]
    if when == "end":
        assert list(iterator) == []
    resumed = _stateful(_open(small), workers)
    resumed.load_state_dict(loader.state_dict())
    if workers and when == "last batch":
        assert list(resumed) == []
    for epoch in (1, 2):
        assert numbers(resumed) == planned(dataset, epoch)[: len(dataset)]


def test_states_of_a_worker_belong_to_that_worker(small: str) -> None:
    """A state that worker 0 of 2 wrote is refused by worker 0 of 1, with both."""
    states: list[Any] = []
    loader = _stateful(_open(small), 2)
    iterator = iter(loader)
    next(iterator)
    _find(loader.state_dict(), states)
    assert [s["worker"][:2] for s in states] == [[0, 2], [1, 2]]
    with pytest.raises(StateError, match="worker 0 of 2 was loaded into worker 0 of 1"):
        list(_loader(_open(small), 1, worker_init_fn=lambda _: _dataset_here().load_state_dict(states[0])))


def _dataset_here() -> StreamingDataset:
    info = get_worker_info()
    assert info is not None
    return info.dataset  # type: ignore[no-any-return]


def _find(value: Any, found: list[Any]) -> None:
    """Gather what our dataset stored in a state of torchdata's."""
    if isinstance(value, dict):
        if "worker" in value and "fingerprint" in value:
            found.append(value)
        for part in value.values():
            _find(part, found)


def test_flat_reading_is_what_workers_share(small: str) -> None:
    """Two workers read each sample once, between them."""
    assert sorted(flat(_loader(_open(small, batch=None, tail="uneven"), 2))) == list(range(37))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_advance_where_torch_is_seeded_alike_each_time(small: str, persistent: bool) -> None:
    """A trainer that seeds torch in the same way before each epoch, and so its workers, still gets the next epoch."""
    dataset = _open(small)
    loader = _loader(dataset, 2, persistent_workers=persistent)
    for epoch in range(3):
        torch.manual_seed(0)
        assert numbers(loader) == planned(dataset, epoch)[: len(dataset)]
