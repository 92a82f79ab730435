"""Ranks that are real processes, started by torchrun and in step by gloo, against the straight sequence.

A rank that had a batch more than another would be seen by the reduction in every step, or hang and time out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tars
from torchrun import torchrun

from shardwriter import ShardWriter, index_shards
from streaming import FixedBatch, StreamingDataset

READER = Path(__file__).with_name("ddp_reader.py")
SEED = 11
SIZES = (7, 1, 9, 5, 8, 2, 9, 0, 6, 4, 9, 3, 8, 5)
"""Samples of the shards: 76, so 19 batches of 4, or 25 of 3 and a short one."""
Log = dict[tuple[int, int], list[str]]


def write(folder: Path, sizes: Iterable[int]) -> str:
    """A dataset whose shards hold `sizes` samples."""
    first = 0
    for number, size in enumerate(sizes):
        (folder / f"shard-{number:02d}.tar").write_bytes(tars.tar(tars.numbered(size, first)))
        first += size
    index_shards(folder, workers=1, progress=False)
    return str(folder)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("many"), SIZES)


@pytest.fixture(scope="module")
def lone_shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("lone"), (35,))


def case(name: str, source: str, **more: Any) -> dict[str, Any]:
    """A case for ddp_reader.py."""
    usual = {"batch": 4, "tail": "drop", "loader": "torch", "workers": 0, "epochs": 2, "state": None, "stop": None}
    return {"name": name, "source": source, "seed": SEED} | usual | more


def straight(source: str, batch: int | None, epochs: int = 2, storage: dict[str, Any] | None = None) -> Log:
    """The sequence that one process gives, with every sample in it."""
    dataset = StreamingDataset(
        source, batch=FixedBatch(batch) if batch else None, shuffle=True, seed=SEED, tail="uneven", threads=0,
        storage_options=storage, rank=0, world_size=1,
    )  # fmt: skip
    found: Log = {}
    for epoch in range(epochs):
        for position, item in enumerate(dataset):
            found[epoch, position] = item["__key__"] if batch else [item["__key__"]]
    return found


def run(ranks: int, cases: list[dict[str, Any]], folder: Path, more: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the cases on `ranks` ranks; name -> lines of all ranks."""
    folder.mkdir(exist_ok=True)
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    torchrun(ranks, READER, path, more=more)
    logs = {}
    for each in cases:
        texts = [(folder / f"{each['name']}-{rank}.jsonl").read_text() for rank in range(ranks)]
        logs[each["name"]] = [[json.loads(line) for line in text.splitlines()] for text in texts]
    return logs


def laid_out(lines_of_ranks: list[list[dict[str, Any]]]) -> Log:
    """The logs of all ranks by position; no position may come twice."""
    lines = [line for lines in lines_of_ranks for line in lines[:-1]]
    found = {(line["epoch"], line["position"]): line["keys"] for line in lines}
    assert len(found) == len(lines)
    return found


def check(log: list[list[dict[str, Any]]], wanted: Log, ranks: int, tail: str) -> None:
    """Compare a whole run of two epochs with the straight sequence."""
    total = len(wanted) // 2
    full = sum(len(keys) == len(wanted[0, 0]) for (epoch, _), keys in wanted.items() if epoch == 0)
    steps = full // ranks if tail == "drop" else -(-total // ranks)
    assert [lines[-1]["steps"] for lines in log] == [2 * steps] * ranks
    assert {line["len"] for lines in log for line in lines[:-1]} == {steps}
    expected = {
        (e, p): wanted[e, p if p < total else (p - total) % total] for e in (0, 1) for p in range(steps * ranks)
    }
    assert laid_out(log) == expected
    again = {line["position"] for lines in log for line in lines[:-1] if line["again"]}
    assert again == set(range(total, steps * ranks))


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_and_workers_give_the_straight_sequence(ranks: int, shards: str, lone_shard: str, tmp_path: Path) -> None:
    """Any number of ranks and workers, also with fewer shards than ranks, gives the one sequence in equal steps."""
    cases = [
        case("torch0", shards),
        case("torch2", shards, workers=2),
        case("streaming2", shards, loader="streaming", workers=2),
        case("lone-drop", lone_shard, workers=2, batch=3),
        case("lone-pad", lone_shard, loader="streaming", tail="pad", batch=3),
    ]
    logs = run(ranks, cases, tmp_path)
    for each in cases:
        check(logs[each["name"]], straight(each["source"], each["batch"]), ranks, each["tail"])


def test_a_stopped_run_goes_on_with_other_ranks(shards: str, tmp_path: Path) -> None:
    """Three ranks, then two, then four, each from the other's state, together give the straight sequence."""
    wanted = straight(shards, 4)
    first = run(3, [case("a", shards, workers=2, stop=3)], tmp_path)["a"]
    states = [lines[-1]["state"] for lines in first]
    assert states == [states[0]] * 3
    assert (states[0]["epoch"], states[0]["position"]) == (0, 9)
    second = run(2, [case("b", shards, loader="streaming", workers=1, state=states[0], stop=2)], tmp_path)["b"]
    state = second[0][-1]["state"]
    assert (state["epoch"], state["position"]) == (0, 13)
    third = run(4, [case("c", shards, loader="streaming", state=state)], tmp_path)["c"]
    # From 13 on, four ranks take one step together, and of the second epoch four; the tails are 2 and 3 batches.
    assert [len(lines) - 1 for lines in third] == [1 + 4] * 4
    parts = [laid_out(log) for log in (first, second, third)]
    assert sum(map(len, parts)) == 9 + 4 + 4 + 16
    together = parts[0] | parts[1] | parts[2]
    assert together == {place: wanted[place] for place in [*((0, p) for p in range(17)), *((1, p) for p in range(16))]}


def test_ranks_read_from_object_storage(s3: Any, tmp_path: Path) -> None:
    """Two ranks with two workers each give the straight sequence from S3, with credentials from the environment."""
    url = s3.bucket("ddp") + "/set"
    with ShardWriter(url, max_samples=6, storage_options=s3.options) as writer:
        for number in range(76):
            writer.write({"__key__": f"{number:03d}", "cls": number})
    wanted = straight(url, 4, storage=s3.options)
    cases = [case("s3", url, loader="streaming", workers=2)]
    logs = run(2, cases, tmp_path, more=s3.environment)
    check(logs["s3"], wanted, 2, "drop")


@pytest.mark.slow
def test_all_layouts_give_the_straight_sequence(shards: str, lone_shard: str, tmp_path: Path) -> None:
    """The same over batch sizes, tails, worker counts and sources, batched and not."""
    ranks = 3
    cases = [
        case(f"{tail}-{batch}-{workers}-{number}", source, tail=tail, batch=batch, workers=workers)
        for tail in ("drop", "pad")
        for batch in (None, 1, 3)
        for workers in (0, 3)
        for number, source in enumerate((shards, lone_shard))
    ]
    logs = run(ranks, cases, tmp_path)
    for each in cases:
        check(logs[each["name"]], straight(each["source"], each["batch"]), ranks, each["tail"])
