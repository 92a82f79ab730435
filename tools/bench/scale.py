"""Open and plan a dataset of a billion samples in 100,000 shards: seconds and memory.

    python tools/bench/scale.py
    python tools/bench/scale.py --samples 3000000 --shards 300 --json

Only the manifest exists (a synthetic one, in a temporary folder), with all that the manifest of an image-text dataset
has: names, sizes, counts, digests, totals of widths and heights, and a histogram of image sizes.  One process opens the
folder as a StreamingDataset (shuffled, FixedBatch(256)) and says where the first batch of rank 0 of 64 lies, and the
one at 95 % of the epoch.  Another one does the same with the plan alone, without torch.  `torch_mb` is what importing
torch and the dataset took, `peak_mb` the most that was resident, torch included.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from shardwriter.aggregate import HistogramTable
from shardwriter.format import MANIFEST, pack_strings
from shardwriter.table import Manifest

CELLS = 200
"""Cells of the size histogram: what photographs between 100 and 2,000 pixels fall into."""
BATCH, WORLD = 256, 64


def write_manifest(folder: Path, samples: int, shards: int) -> int:
    """Write the manifest of a dataset that does not exist; its size in bytes."""
    rng = np.random.default_rng(0)
    counts = np.full(shards, samples // shards, "<u8")
    counts[: samples % shards] += 1
    offsets, text = pack_strings([f"shard-{i:06d}.tar" for i in range(shards)])
    histogram = HistogramTable(
        np.arange(CELLS, dtype="<u4"),
        rng.integers(0, 200, (shards, CELLS), dtype="<u2"),
        np.ones((CELLS, 2, 2)),
    )
    manifest = Manifest(
        name_offsets=offsets,
        name_bytes=text,
        sizes=counts * 25_000,
        samples=counts,
        digests=rng.integers(0, 256, (shards, 32), dtype=np.uint8),
        totals={name: rng.random((shards, 3)) for name in ("height", "width")},
        histograms={"size": histogram},
        meta={"fields": {"jpg": samples, "txt": samples}},
    )
    return (folder / MANIFEST).write_bytes(manifest.to_bytes())


def memory(entry: str) -> float:
    """MB of this process: "VmRSS" is what is resident now, "VmHWM" what has been at most, mapped files included.

    The peak that getrusage knows would be the parent's if that was higher.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[entry].split()[0]) * 1024 / 1e6


class Clock:
    """Seconds since the last call."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def __call__(self) -> float:
        before, self._at = self._at, time.perf_counter()
        return round(self._at - before, 4)


def with_dataset(folder: str) -> dict[str, Any]:
    """Through StreamingDataset, as a training would."""
    import streaming.dataset as module
    from streaming.plan import FixedBatch

    start, clock = memory("VmRSS"), Clock()
    dataset = module.StreamingDataset(
        folder, batch=FixedBatch(BATCH), shuffle=True, tail="pad", rank=0, world_size=WORLD
    )
    result: dict[str, Any] = {"open_s": clock()}
    steps = len(dataset)
    result |= {"steps": steps, "len_s": clock()} | _plan(dataset.plan, clock)
    return result | {
        "torch_mb": round(start),
        "growth_mb": round(memory("VmHWM") - start),
        "peak_mb": round(memory("VmHWM")),
    }


def with_plan(folder: str) -> dict[str, Any]:
    """The manifest and the plan alone."""
    from shardwriter.open import load_manifest
    from shardwriter.store import open_store
    from streaming.plan import FixedBatch, Plan

    start, clock = memory("VmRSS"), Clock()
    manifest = load_manifest(open_store(folder))
    batch, name = FixedBatch(BATCH), manifest.digest()
    plan = Plan.make(manifest.samples, batch=batch, shuffle=True, tail="pad", world_size=WORLD, dataset=name)
    result: dict[str, Any] = {"open_s": clock()}
    steps = len(plan)
    result |= {"steps": steps, "len_s": clock()} | _plan(plan, clock)
    if "torch" in sys.modules:
        raise SystemExit("the plan has loaded torch")
    return result | {
        "start_mb": round(start),
        "growth_mb": round(memory("VmHWM") - start),
        "peak_mb": round(memory("VmHWM")),
    }


def _plan(plan: Any, clock: Clock) -> dict[str, Any]:
    first = plan.epoch(0).cursor().samples(np.array([0]))
    result = {"first_batch_s": clock()}
    # A fresh plan of the epoch, as a resumed run makes it.
    late = plan.epoch(0).cursor().samples(np.array([int(plan.full * 0.95)]))
    result["batch_at_95_percent_s"] = clock()
    if not len(first) == len(late) == min(BATCH, plan.samples):
        raise SystemExit(f"batches of {len(first)} and {len(late)} samples")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000_000)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each of the two processes")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.getLogger("shardstream").setLevel(logging.ERROR)
    if args.measure:
        way, folder = args.measure
        print(json.dumps((with_dataset if way == "dataset" else with_plan)(folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write_manifest(Path(folder), args.samples, args.shards)
        if not args.json:
            print(f"{args.samples:,} samples in {args.shards:,} shards, a manifest of {size / 1e6:,.0f} MB")
        for way in ("dataset", "plan"):
            command = [sys.executable, str(Path(__file__).resolve()), "--measure", way, folder]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            if args.json:
                given = {"what": way, "samples": args.samples, "shards": args.shards, "manifest_mb": round(size / 1e6)}
                print(json.dumps(given | result))
            else:
                print(f"{way:8} " + ", ".join(f"{name} {value:,}" for name, value in result.items()))


if __name__ == "__main__":
    main()
