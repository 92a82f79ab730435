"""What planning batches by budget costs, beside decoding the same samples, in one process with one thread.

    python tools/bench/make_dataset.py bench-data/cc3m
    python tools/bench/budgets.py bench-data/cc3m
    python tools/bench/budgets.py bench-data/cc3m --json      # one line of JSON for each kind of batch

plan_s     seconds to open the dataset with its plan, and to say of every batch of an epoch which samples form it
decode_s   seconds to read, decode and collate the batches of an epoch beside that
share      plan_s / decode_s
fill       mean share of the budget that a batch takes, padding included
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from streaming import FixedBatch, PixelBudget, StreamingDataset

PIXELS = 224 * 224 * 64
KINDS = {
    "fixed": FixedBatch(64, size=224),
    "bucket": PixelBudget(PIXELS),
    "pad": PixelBudget(PIXELS, mode="pad"),
    "pack": PixelBudget(PIXELS, mode="pack"),
}


def measure(data: str, kind: str) -> dict[str, Any]:
    """One epoch of one kind of batch."""
    start = time.perf_counter()
    dataset = StreamingDataset(
        data, batch=KINDS[kind], shuffle=True, seed=1, tail="uneven", threads=1, rank=0, world_size=1
    )
    cursor = dataset.plan.epoch(0).cursor(dataset.plan.lanes + 1)
    planned = sum(len(cursor.samples(np.array([p]))) for p in range(dataset.plan.total))
    plan_s = time.perf_counter() - start
    start, samples, pixels = time.perf_counter(), 0, []
    for batch in dataset:
        samples += len(batch["__key__"])
        images = batch["jpg"]
        pixels.append(images.numel() / images.shape[1] if images.ndim == 4 else images.numel() / 3)
    decode_s = time.perf_counter() - start - plan_s  # it plans, too
    if samples != planned:
        raise SystemExit(f"{planned} samples planned, {samples} given")
    fill = float(np.mean(pixels)) / PIXELS
    return {
        "batches": kind, "samples": samples, "steps": len(dataset), "plan_s": round(plan_s, 3),
        "decode_s": round(decode_s, 3), "share": round(plan_s / decode_s, 4), "fill": round(fill, 3),
    }  # fmt: skip


def figures(data: str) -> Iterator[dict[str, Any]]:
    """A line for each kind of batch."""
    for kind in KINDS:
        yield measure(data, kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a folder that make_dataset.py made")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each kind of batch")
    args = parser.parse_args()
    logging.getLogger("shardstream").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for line in figures(args.data):
        print(
            json.dumps(line) if args.json else ", ".join(f"{name} {value}" for name, value in line.items()), flush=True
        )


if __name__ == "__main__":
    main()
