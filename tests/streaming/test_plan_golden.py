"""Orders that every release must give.

A difference here means that runs resumed from older states would read other samples.  If that is wanted, raise
ORDER_VERSION in streaming/plan/plan.py, so that older states are refused, and write the file anew:

    python tests/streaming/test_plan_golden.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import CostBudget, FixedBatch, Mix, PixelBudget, Plan, Shuffle
from streaming.plan import ColumnStatistics, SampleGenerators
from streaming.plan.plan import ORDER_VERSION

GOLDEN = Path(__file__).parents[1] / "golden" / "orders.json"
PLANS: dict[str, dict[str, Any]] = {
    "in order": {"counts": [3, 0, 1, 2]},
    "in order, batches, lanes": {"counts": [3, 0, 7, 2, 4], "batch": FixedBatch(2), "lanes": 2},
    "whole blocks mixed": {"counts": [4, 5, 1, 3, 0, 6], "shuffle": Shuffle(2, 100), "seed": 7},
    "small buffer": {"counts": [9, 7, 8, 6], "shuffle": Shuffle(4, 3), "seed": 7},
    "default lanes": {"counts": [2] * 12, "shuffle": True, "batch": FixedBatch(3), "seed": 0},
    "odd lanes": {"counts": [5, 9, 2, 7, 1], "shuffle": Shuffle(1, 4), "batch": FixedBatch(4), "lanes": 3, "seed": 1},
    "large negative seed": {"counts": [3, 3, 3], "shuffle": Shuffle(3, 5), "seed": -(2**70)},
    "buckets": {
        "counts": [30, 0, 25, 31], "batch": PixelBudget(60_000, multiple=16), "shuffle": Shuffle(2, 20), "seed": 3,
        "lanes": 2, "together": 2,
    },
    "buckets of the user's own": {
        "counts": [20, 20], "batch": PixelBudget(30_000, buckets=[(64, 64), (48, 80), (128, 96)], upscale=True),
        "seed": 3,
    },
    "padded": {
        "counts": [25, 9, 30], "batch": PixelBudget(200_000, mode="pad", longest=160), "shuffle": True, "seed": 5,
    },
    "packed": {
        "counts": [30, 0, 25, 31, 1], "batch": PixelBudget(150_000, mode="pack", oversize="skip"),
        "shuffle": Shuffle(3, 30), "seed": 7, "lanes": 2,
    },
    "frames, padded": {"counts": [30, 25], "batch": CostBudget("frames", 4000), "shuffle": Shuffle(1, 9), "seed": 1},
    "seconds, packed in order": {"counts": [30, 25], "batch": CostBudget("seconds", 20.5, pad=False), "seed": 1},
    "sticky": {
        "counts": [5, 9, 2, 7, 1, 0, 4, 3], "shuffle": Shuffle(2, 6), "batch": FixedBatch(3), "lanes": 2, "seed": 7,
        "sticky": True,
    },
    "sticky, one lane": {"counts": [2, 1, 3, 2, 1], "shuffle": Shuffle(1, 4), "seed": 0, "sticky": True},
    "sticky, buckets": {
        "counts": [30, 0, 25, 31], "batch": PixelBudget(60_000, multiple=16), "shuffle": Shuffle(2, 20), "seed": 3,
        "lanes": 2, "together": 2, "sticky": True,
    },
    "sticky, packed": {
        "counts": [30, 0, 25, 31, 1], "batch": PixelBudget(150_000, mode="pack", oversize="skip"),
        "shuffle": Shuffle(1, 30), "seed": 7, "lanes": 2, "sticky": True,
    },
    "sticky, mixed by sample": {
        "counts": [5, 4, 6, 3, 2, 4], "shuffle": Shuffle(1, 5), "batch": FixedBatch(4), "seed": 2, "sticky": True,
        "mix": Mix({"a": 1, "b": 1}, length=16), "sources": [3, 3],
    },
    "sticky, mixed by batch": {
        "counts": [5, 4, 6, 3, 2, 4], "shuffle": Shuffle(1, 5), "batch": FixedBatch(2), "seed": 2, "sticky": True,
        "mix": Mix({"a": 2, "b": 1}, by="batch", length=9), "sources": [3, 3],
    },
}  # fmt: skip


def sized(counts: list[int]) -> ColumnStatistics:
    """Shards of samples whose sizes follow from whole numbers alone: of any shape, with a large one now and then."""
    shards = []
    for shard, count in enumerate(counts):
        i = np.arange(count) + 100 * shard
        large = 1 + 3 * (i % 29 == 5)
        height, width = (40 + i * 37 % 101) * large, (40 + i * 53 % 97) * large
        shards.append({"height": height, "width": width, "frames": 10 + i * i % 503, "rate": np.full(count, 48)})
    return ColumnStatistics(shards)


def orders(arguments: dict[str, Any]) -> list[list[list[list[int]]]]:
    """Two epochs, each a list of micro-batches, each a list of [shard, index]."""
    budget = isinstance(arguments.get("batch"), PixelBudget | CostBudget)
    counts = sized(arguments["counts"]) if budget else np.array(arguments["counts"])
    plan = Plan.make(**arguments | {"counts": counts})
    epochs = []
    for number in range(2):
        cursor = plan.epoch(number).cursor()
        refs = [cursor.samples(np.array([p])) for p in range(plan.total)]
        epochs.append([[list(s) for s in zip(r.shards.tolist(), r.indices.tolist(), strict=True)] for r in refs])
    return epochs


def augmentation() -> list[list[int]]:
    """The first two words of a few samples' generators."""
    places = [(0, 0, 0, 0), (7, 1, 3, 12), (-(2**70), 2, 99_999, 9_999)]
    return [SampleGenerators(s, e).of(shard, i).bit_generator.random_raw(2).tolist() for s, e, shard, i in places]


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", PLANS)
def test_orders_are_as_in_every_release(name: str) -> None:
    """The samples of two epochs, batch by batch, are those in the file; see above if they are not."""
    assert orders(PLANS[name]) == golden()["orders"][name]


def test_augmentation_is_as_in_every_release() -> None:
    """The generators of samples start with the words in the file."""
    assert augmentation() == golden()["augmentation"]


def test_the_file_is_of_this_order_version() -> None:
    """Order version and file change together, and the file holds no plan that is not tested."""
    assert golden()["order_version"] == ORDER_VERSION
    assert golden()["orders"].keys() == PLANS.keys()


if __name__ == "__main__":
    content = {
        "order_version": ORDER_VERSION,
        "augmentation": augmentation(),
        "orders": {name: orders(arguments) for name, arguments in PLANS.items()},
    }
    GOLDEN.write_text(json.dumps(content, indent=None, separators=(",", ":")).replace('],"', '],\n"') + "\n")
