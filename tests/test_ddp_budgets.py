"""Training on real ranks, started by torchrun and in step by gloo, with a budget of each kind.

Each step reduces gradients: a rank with a batch more or less than another would be seen by the reduction, or hang and
time out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import IMAGE, entries, write
from torchrun import torchrun

from streaming import CostBudget, PixelBudget, StreamingDataset

TRAINER = Path(__file__).with_name("ddp_budgets.py")
SEED = 3
BUDGETS: dict[str, dict[str, Any]] = {
    "bucket": {"max_pixels": 5000, "buckets": [[12, 12], [12, 20], [20, 12], [24, 24]], "crop": "random"},
    "pad": {"max_pixels": 12_000, "mode": "pad", "longest": 60},
    "pack": {"max_pixels": 12_000, "mode": "pack"},
    "tokens": {"column": "tokens", "max_cost": 150},
}
TAILS = {"bucket": "drop", "pad": "pad", "pack": "drop", "tokens": "pad"}
Lines = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """100 samples in 7 shards."""
    return write(tmp_path_factory.mktemp("ddp") / "data", entries(100, seed=1), each=15)


def case(name: str, mode: str, source: str, **more: Any) -> dict[str, Any]:
    """A case for ddp_budgets.py."""
    kind = "pixels" if "max_pixels" in BUDGETS[mode] else "cost"
    usual = {"state": None, "stop": None, "seed": SEED}
    return {"name": name, "kind": kind, "budget": BUDGETS[mode], "tail": TAILS[mode], "source": source} | usual | more


def run(ranks: int, cases: list[dict[str, Any]], folder: Path) -> dict[str, Lines]:
    """Run the cases on `ranks` ranks; name -> lines of each rank."""
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(cases))
    torchrun(ranks, TRAINER, folder / "cases.json")
    return {
        each["name"]: [
            [json.loads(line) for line in (folder / f"{each['name']}-{rank}.jsonl").read_text().splitlines()]
            for rank in range(ranks)
        ]
        for each in cases
    }


def straight(source: str, mode: str) -> list[list[int]]:
    """The sequence that one process gives, with every sample in it, and the budget."""
    kind = PixelBudget if "max_pixels" in BUDGETS[mode] else CostBudget
    dataset = StreamingDataset(
        source, batch=kind(**BUDGETS[mode]), fields={"image": IMAGE, "cls": "cls"} if kind is PixelBudget else ["cls"],
        shuffle=True, seed=SEED, tail="uneven", threads=0, rank=0, world_size=1,
    )  # fmt: skip
    return [batch["cls"].tolist() for batch in dataset]


def by_position(lines: Lines) -> list[dict[str, Any]]:
    """The steps of all ranks, which are equally many, in the order of the one sequence."""
    steps = [ranks[:-1] for ranks in lines]
    return [line for step in zip(*steps, strict=True) for line in step]


def check_run(lines: Lines, mode: str, stop: int | None = None) -> None:
    """All ranks have done the same steps, within the budget, and have learnt the same."""
    ends = [rank[-1] for rank in lines]
    assert all(end["steps"] == ends[0]["steps"] == len(rank) - 1 for end, rank in zip(ends, lines, strict=True))
    assert stop is None or ends[0]["steps"] == stop
    assert all(end["state"] == ends[0]["state"] for end in ends)
    assert all(end["weights"] == ends[0]["weights"] for end in ends)
    assert all(np.isfinite(end["loss"]) for end in ends)
    most = BUDGETS[mode].get("max_pixels", BUDGETS[mode].get("max_cost"))
    assert all(line["held"] <= most for rank in lines for line in rank[:-1])


def test_training_by_budget_stopped_and_resumed_on_other_ranks(source: str, tmp_path: Path) -> None:
    """Two ranks train a whole epoch in equal steps, `len` of them, in every mode; stopped in the middle and resumed on
    three ranks, together they have had the one sequence, each sample exactly once.
    """
    wanted = {mode: straight(source, mode) for mode in BUDGETS}
    middle = {mode: len(batches) // 4 for mode, batches in wanted.items()}
    cases = [case(f"{mode}-whole", mode, source) for mode in BUDGETS]
    cases += [case(f"{mode}-part", mode, source, stop=middle[mode]) for mode in BUDGETS]
    first = run(2, cases, tmp_path / "two")
    states = {mode: first[f"{mode}-part"][0][-1]["state"] for mode in BUDGETS}
    cases = [case(mode, mode, source, state=states[mode]) for mode in BUDGETS]
    second = run(3, cases, tmp_path / "three")
    for mode, batches in wanted.items():
        assert sorted(n for batch in batches for n in batch) == list(range(100))
        whole, part, rest = first[f"{mode}-whole"], first[f"{mode}-part"], second[mode]
        for lines, stop in ((whole, None), (part, middle[mode]), (rest, None)):
            check_run(lines, mode, stop)
        assert {line["len"] for line in by_position(whole)} == {whole[0][-1]["steps"]}
        _check_sequence(by_position(whole), batches, mode, ranks=2)
        assert (states[mode]["epoch"], states[mode]["position"]) == (0, 2 * middle[mode])
        _check_sequence(by_position(part) + by_position(rest), batches, mode, ranks=3)


def _check_sequence(given: list[dict[str, Any]], batches: list[list[int]], mode: str, ranks: int) -> None:
    """The given batches are the straight sequence; only the tail is cut, or given again and flagged."""
    numbers = [line["numbers"] for line in given]
    repeats = [line["again"] for line in given]
    if TAILS[mode] == "pad":
        assert len(batches) <= len(given) < len(batches) + ranks
        assert numbers == [*batches, *batches][: len(given)]
        assert repeats == [position >= len(batches) for position in range(len(given))]
    else:
        assert numbers == batches[: len(given)]
        assert not any(repeats)
        samples = [n for batch in numbers for n in batch]
        assert len(set(samples)) == len(samples)
        assert len(given) > len(batches) - ranks - 4, "what is left out is less than a step, and the short batches"
