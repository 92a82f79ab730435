"""StreamingLoader: workers, states, errors, and that nothing is left behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reading import FailAt, KillAt, draw, numbers, planned, slow, write_samples

from streaming import (
    DecodeError,
    FieldMissing,
    FixedBatch,
    PlanError,
    StateMismatch,
    StreamingDataset,
    StreamingLoader,
    TooManySkipped,
    TransformError,
    WorkerError,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
    pytest.mark.usefixtures("forkserver"),
]
# Spawned workers import torch, which takes seconds; what does not depend on how they start uses the fork server.
START = "forkserver"


def _open(source: str | Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"batch": FixedBatch(2), "shuffle": True, "seed": 5, "threads": 1, **options})


def _loader(dataset: StreamingDataset, workers: int, **options: Any) -> StreamingLoader:
    return StreamingLoader(dataset, workers=workers, **{"start": START, **options})


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_of_the_plan(small: str, workers: int, device: str | None) -> None:
    """Any number of workers gives the plan's batches, `len` of them, epoch after epoch, and epochs that are set."""
    dataset = _open(small)
    with _loader(dataset, workers, device=device, threads=2) as loader:
        assert len(loader) == len(dataset) == 18
        for epoch in (0, 1):
            batches = list(loader)
            assert numbers(batches) == planned(dataset, epoch)[:18]
            assert batches[0]["cls"].device == torch.device("cpu")
        loader.set_epoch(6)
        assert numbers(loader) == planned(dataset, 6)[:18]
        assert numbers(loader) == planned(dataset, 7)[:18]


def test_spawned_workers(small: str, nothing_left: Callable[[], None]) -> None:
    """The default start of workers works too, and leaves nothing behind."""
    dataset = _open(small, transform=draw)
    with StreamingLoader(dataset, workers=1) as loader:
        assert numbers(loader) == planned(dataset, 0)[:18]
        assert numbers(loader) == planned(dataset, 1)[:18]
    nothing_left()


def test_ranks(small: str) -> None:
    """Loaders of several ranks give together the plan."""
    ranks = [_open(small, rank=r, world_size=2) for r in range(2)]
    got = []
    for rank in ranks:
        with _loader(rank, 2) as loader:
            got.append(numbers(loader))
    assert [got[p % 2][p // 2] for p in range(18)] == planned(ranks[0], 0)[:18]


@pytest.mark.parametrize("batch", [FixedBatch(2), None])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_states_are_exact_while_workers_run_ahead(small: str, workers: int, batch: FixedBatch | None) -> None:
    """The state behind any batch resumes to the next one, on any number of workers, and the epoch after it is whole."""
    dataset = _open(small, batch=batch)
    steps = len(dataset)
    plan = planned(dataset, 0)[:steps]
    states = []
    with _loader(dataset, workers, prefetch=4) as loader:
        states.append(loader.state_dict())
        for _ in loader:
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert loader.state_dict() == states[-1]
    for i, others in zip((0, 1, 7, steps - 1, steps), (0, 1, 2, 1, 0), strict=True):
        resumed = _open(small, batch=batch)
        with _loader(resumed, others) as loader:
            loader.load_state_dict(states[i])
            assert loader.state_dict() == states[i]
            if i < steps:
                assert numbers(loader) == plan[i:]
            assert numbers(loader) == planned(dataset, 1)[:steps]


def test_states_loaded_into_a_running_loader(small: str) -> None:
    """A loader in use can be set back, as often as wanted, also from the middle of an epoch."""
    dataset = _open(small)
    with _loader(dataset, 2) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
        for _ in range(2):
            loader.load_state_dict(state)
            assert numbers(loader) == planned(dataset, 0)[5:18]
        with pytest.raises(StateMismatch):
            loader.load_state_dict(_open(small, seed=6).state_dict())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_states_count_what_was_skipped(tmp_path: Path, workers: int) -> None:
    """Single samples that are skipped count as steps: a state behind one of them goes on behind it, and the order
    stays, whatever the number of workers.
    """
    bad = (1, 2, 6)
    folder = write_samples(tmp_path / "data", [(f"{i:02d}.cls", b"x" if i in bad else b"%d" % i) for i in range(12)])
    options = {"batch": None, "shuffle": False, "on_error": "skip"}
    good = [n for n in range(12) if n not in bad]
    with _loader(_open(folder, **options), workers) as loader:
        assert numbers(loader) == [[n] for n in good]
        assert loader.skipped == 3
        loader.set_epoch(0)
        states = {}
        for sample in loader:
            states[sample["cls"]] = loader.state_dict()
    for number in (0, 3, 5, 7):
        with _loader(_open(folder, **options), workers) as loader:
            loader.load_state_dict(states[number])
            assert numbers(loader) == [[n] for n in good if n > number]


def test_skips_of_all_workers_are_counted(small: str) -> None:
    """`skipped` sums over workers and epochs."""
    with _loader(
        _open(small, on_error="skip", batch=FixedBatch(6), shuffle=False, transform=FailAt(3, 20)), 2
    ) as loader:
        for epochs in (1, 2):
            assert sum(len(b["__skipped__"]) for b in loader) == 2
            assert loader.skipped == 2 * epochs


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_early(small: str, workers: int, nothing_left: Callable[[], None]) -> None:
    """A break is followed by the next epoch; behind close no thread and no process is left, also if it comes in the
    middle, and the loader can be used again.
    """
    dataset = _open(small, transform=slow)
    loader = _loader(dataset, workers)
    for _ in loader:
        break
    assert numbers(loader) == planned(dataset, 1)[:18]
    for _ in loader:
        break
    loader.close()
    nothing_left()
    assert numbers(loader) == planned(dataset, 3)[:18]
    loader.close()
    loader.close()
    nothing_left()


def test_with_ends_the_workers_whatever_happens(small: str, nothing_left: Callable[[], None]) -> None:
    """An exception of the user's own inside the block leaves nothing behind."""

    def train() -> None:
        with _loader(_open(small), 2) as loader:
            for _ in loader:
                raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        train()
    nothing_left()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_errors_keep_what_they_know(small: str, workers: int, nothing_left: Callable[[], None]) -> None:
    """An error in a worker comes with its class, shard, key and field, behind the batches before it."""
    for options, kind, key, field in (
        ({"transform": FailAt(9)}, TransformError, "000009", None),
        ({"fields": ["cls", "jpg"]}, FieldMissing, "000000", "jpg"),
        ({"decode": {"txt": _refuse_five}}, DecodeError, "000005", "txt"),
    ):
        loader = _loader(_open(small, shuffle=False, **options), workers)
        seen = []
        with pytest.raises(kind) as caught:  # noqa: PT012  (what comes before the error counts)
            for batch in loader:
                seen += batch["cls"].tolist()
        assert caught.value.key == key  # type: ignore[attr-defined]
        assert caught.value.field == field  # type: ignore[attr-defined]
        assert caught.value.shard.endswith(f"shard-00{int(key) // 8}.tar")  # type: ignore[attr-defined]
        assert seen == list(range(int(key) // 2 * 2))
        loader.close()
        nothing_left()


def _refuse_five(data: bytes) -> str:
    if data == b"text 5":
        raise DecodeError("not this one")
    return data.decode()


def test_too_many_skips_in_a_worker(small: str) -> None:
    """The limit of skipped samples holds in workers too."""
    dataset = _open(small, on_error="skip", skip_limit=1, batch=FixedBatch(12), transform=FailAt(1, 2, 3, 4))
    with _loader(dataset, 1) as loader, pytest.raises(TooManySkipped, match="more than 1 samples"):
        list(loader)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_a_killed_worker_is_named(small: str, start: str, nothing_left: Callable[[], None]) -> None:
    """A worker that SIGKILL ends is an error that names it and the signal, with a hint; the other worker ends too."""
    dataset = _open(small, shuffle=False, transform=KillAt(18))  # step 9: worker 1 of 2
    loader = _loader(dataset, 2, start=start)
    with pytest.raises(WorkerError, match=r"worker 1 \(process \d+\) was killed by signal 9 \(SIGKILL\).*memory"):
        list(loader)
    nothing_left()


@pytest.mark.parametrize("batch", [FixedBatch(2), None])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_continuous_epochs(
    small: str, workers: int, batch: FixedBatch | None, nothing_left: Callable[[], None]
) -> None:
    """With the next epoch begun early, epochs, states, jumps and early leaving are as without."""
    dataset = _open(small, batch=batch, transform=draw)
    steps = len(dataset)
    loader = _loader(dataset, workers, continuous=True, threads=2)
    for epoch in range(3):
        assert numbers(loader) == planned(dataset, epoch)[:steps]
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (3, 0)
    loader.set_epoch(7)
    assert numbers(loader) == planned(dataset, 7)[:steps]
    for taken, _ in enumerate(loader, start=1):
        if taken == 4:
            break
    state = loader.state_dict()
    assert numbers(loader) == planned(dataset, 9)[:steps]
    loader.load_state_dict(state)
    assert numbers(loader) == planned(dataset, 8)[4:steps]
    assert numbers(loader) == planned(dataset, 9)[:steps]
    loader.close()
    nothing_left()


class NoteEpochs:
    """Notes, in a file, each time it sees sample 0."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:  # noqa: D102
        if sample["cls"] == 0:
            with self.path.open("a") as file:
                file.write("seen\n")
        return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_the_next_epoch_is_ready(small: str, tmp_path: Path, workers: int) -> None:
    """While the trainer is behind the last batch of an epoch, the first of the next is read, if it asked for that."""
    for continuous in (True, False):
        path = tmp_path / f"seen-{continuous}"
        dataset = _open(small, shuffle=False, transform=NoteEpochs(path))
        with _loader(dataset, workers, continuous=continuous, threads=1) as loader:
            list(loader)
            deadline = time.monotonic() + (20 if continuous else 0.3)
            while time.monotonic() < deadline and path.read_text().count("seen") < 2:
                time.sleep(0.01)
            assert path.read_text().count("seen") == (2 if continuous else 1)
            assert numbers(loader)[0] == [0, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_two_iterations_at_once(small: str, workers: int) -> None:
    """An iteration that is gone on with after another has begun is an error, never a mixture of the two."""
    dataset = _open(small)
    with _loader(dataset, workers) as loader:
        first = iter(loader)
        next(first)
        assert numbers(loader) == planned(dataset, 1)[:18]
        with pytest.raises(PlanError, match="another iteration over this loader has begun"):
            next(first)
        assert numbers(loader) == planned(dataset, 2)[:18]


@pytest.mark.parametrize("workers", [0, 1])
def test_views(small: str, workers: int) -> None:
    """decode="views" gives memoryviews of the mapped shard, or from a worker its bytes."""
    with _loader(_open(small, decode="views", shuffle=False), workers) as loader:
        batch = next(iter(loader))
        assert {type(text) for text in batch["txt"]} == {bytes if workers else memoryview}
        assert [bytes(text) for text in batch["txt"]] == [b"text 0", b"text 1"]


def test_workers_chosen(small: str) -> None:
    """workers="auto" makes a choice that can be read, and reads with it; other words are refused."""
    loader = StreamingLoader(_open(small), workers="auto", start=START)
    assert loader.workers >= 1
    assert loader.threads is not None
    assert repr(loader).endswith(f"{loader.threads} threads in {loader.workers} worker processes, device None>")
    assert repr(StreamingLoader(_open(small), workers=0)).startswith("<StreamingLoader: 1 threads in the trainer's")
    with loader:
        assert numbers(loader) == planned(loader.dataset, 0)[:18]
    with pytest.raises(PlanError, match="workers='many'"):
        StreamingLoader(_open(small), workers="many")  # type: ignore[arg-type]


class Double:
    """A step on the device."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:  # noqa: D102
        return batch | {"twice": 2 * batch["cls"]}


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_step_on_the_device(small: str, workers: int, device: str | None) -> None:
    """device_transform gets each batch as it is on the device, and what it gives is given."""
    with _loader(_open(small), workers, device=device, device_transform=Double()) as loader:
        for batch in loader:
            assert torch.equal(batch["twice"], 2 * batch["cls"])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_statistics(small: str, workers: int) -> None:
    """stats() counts what was given, what was read and what was skipped, over epochs and over restarts of workers."""
    dataset = _open(small, on_error="skip", batch=FixedBatch(6), shuffle=False, transform=FailAt(3, 20))
    with _loader(dataset, workers, threads=2) as loader:
        assert "nothing was read yet" in str(loader.stats())
        for epochs in (1, 2, 3):
            before = loader.stats()
            assert sum(len(b["cls"]) for b in loader) == 35
            assert loader.stats().samples == 35 * epochs
            since = loader.stats() - before
            assert (since.batches, since.samples, since.skipped) == (7, 35, 2)
            assert since.bytes_read >= sum(len(f"{n}text {n}") for n in range(37))
            assert since.decode > 0
            assert 0 < since.waited <= since.seconds
            assert since.threads == 2 * max(1, workers)
            if epochs == 2:
                loader.close()
        assert "samples/s" in str(loader.stats())
        assert json.loads(json.dumps(loader.stats().as_dict()))["batches"] == 21


@pytest.mark.parametrize("arguments", [{"workers": -1}, {"prefetch": 0}])
def test_arguments_that_make_no_sense(small: str, arguments: dict[str, int]) -> None:
    """Numbers below their least are refused with what they are."""
    with pytest.raises(PlanError, match="at least 0, 1 and 0"):
        StreamingLoader(_open(small), **arguments)


def test_threads_are_the_loader_s_own(small: str) -> None:
    """threads= of a loader is checked, and leaves the dataset that it reads as it was."""
    dataset = _open(small, threads=3)
    with pytest.raises(PlanError, match="threads=-1"):
        StreamingLoader(dataset, threads=-1)
    for workers in (0, 1):
        with _loader(dataset, workers, threads=2) as loader:
            loader.set_epoch(0)
            assert numbers(loader) == planned(dataset, 0)[: len(dataset)]
    assert dataset.recipe.threads == 3
