"""Open and plan a dataset of a billion samples in 100,000 shards: seconds and memory.

    python tools/bench/scale.py
    python tools/bench/scale.py --samples 3000000 --shards 300 --json

Only the index exists, in a temporary folder: the manifest with all that one of an image-text dataset has (names, sizes,
counts, digests, totals of columns, histograms), and a sidecar for each shard, of which only as many differ as shards
have different sizes of images.  One process opens the folder as a StreamingDataset (shuffled, FixedBatch(256)) and says
where the first batch of rank 0 of 64 lies, and the one at 95 % of the epoch.  Another one does the same with a
PixelBudget, and one with the plan alone, without torch.  `torch_mb` is what importing torch and the dataset took,
`peak_mb` the most that was resident, torch included.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from web_sizes import web_sizes

from shardwriter.aggregate import aggregate, combine
from shardwriter.format import INDEX_SUFFIX, MANIFEST, pack_strings
from shardwriter.table import Manifest, ShardTable

DIFFERENT = 64
"""Sidecars that differ; the others are links to them."""
BATCH, PIXELS, WORLD = 256, 224 * 224 * 256, 64


def write_index(folder: Path, samples: int, shards: int) -> int:
    """Write the index of a dataset that does not exist; the size of its manifest in bytes."""
    rng = np.random.default_rng(0)
    each, kinds = samples // shards, min(DIFFERENT, shards)
    columns = [web_sizes(each, rng) for _ in range(kinds)]
    digests = rng.integers(0, 256, (kinds, 32), dtype=np.uint8)
    name_offsets, text = pack_strings([f"shard-{i:06d}.tar" for i in range(shards)])
    key_offsets, keys = pack_strings([f"{i:06d}" for i in range(each)])
    kind = np.arange(shards) % kinds
    for i in range(kinds):
        meta = {"bytes": 25_000 * each, "sha256": digests[i].tobytes().hex()}
        none = np.zeros((each, 0), "<u4")
        table = ShardTable((), np.arange(each, dtype="<u4"), none, none, key_offsets, keys, columns[i], meta)
        (folder / f"shard-{i:06d}.tar{INDEX_SUFFIX}").write_bytes(table.to_bytes())
    for i in range(kinds, shards):
        os.link(folder / f"shard-{kind[i]:06d}.tar{INDEX_SUFFIX}", folder / f"shard-{i:06d}.tar{INDEX_SUFFIX}")
    found = [aggregate(c) for c in columns]
    few = {name: combine([a.histograms[name] for a in found], sizes=name == "size") for name in found[0].histograms}
    manifest = Manifest(
        name_offsets=name_offsets,
        name_bytes=text,
        sizes=np.full(shards, 25_000 * each, "<u8"),
        samples=np.full(shards, each, "<u8"),
        digests=digests[kind],
        totals={name: np.array([a.totals[name] for a in found])[kind] for name in found[0].totals},
        histograms={name: table._replace(counts=table.counts[kind]) for name, table in few.items()},
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


def with_dataset(folder: str, *, pixels: bool) -> dict[str, Any]:
    """Through StreamingDataset, as a training would."""
    import streaming.dataset as module
    from streaming.plan import FixedBatch, PixelBudget

    start, clock = memory("VmRSS"), Clock()
    batch = PixelBudget(PIXELS) if pixels else FixedBatch(BATCH)
    dataset = module.StreamingDataset(folder, batch=batch, shuffle=True, tail="pad", rank=0, world_size=WORLD)
    result: dict[str, Any] = {"open_s": clock()}
    steps = len(dataset)
    result |= {"steps": steps, "len_s": clock()} | _plan(dataset.plan, clock)
    return result | {
        "torch_mb": round(start),
        "growth_mb": round(memory("VmHWM") - start),
        "peak_mb": round(memory("VmHWM")),
    }


def with_plan(folder: str) -> dict[str, Any]:
    """The index and the plan alone, with a PixelBudget."""
    from streaming.catalog import open_catalog
    from streaming.plan import PixelBudget, Plan

    start, clock = memory("VmRSS"), Clock()
    catalog = open_catalog(folder)
    batch, name = PixelBudget(PIXELS), catalog.digest()
    plan = Plan.make(catalog, batch=batch, shuffle=True, tail="pad", world_size=WORLD, dataset=name)
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


WAYS = {
    "fixed": lambda folder: with_dataset(folder, pixels=False),
    "pixels": lambda folder: with_dataset(folder, pixels=True),
    "plan": with_plan,
}


def _plan(plan: Any, clock: Clock) -> dict[str, Any]:
    first = plan.epoch(0).cursor().samples(np.array([0]))
    result = {"first_batch_s": clock()}
    # A fresh plan of the epoch, as a resumed run makes it.
    late = plan.epoch(0).cursor().samples(np.array([int(plan.full * 0.95)]))
    result["batch_at_95_percent_s"] = clock()
    if not len(first) or not len(late):
        raise SystemExit(f"batches of {len(first)} and {len(late)} samples")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000_000)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each process")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.getLogger("shardstream").setLevel(logging.ERROR)
    if args.measure:
        way, folder = args.measure
        print(json.dumps(WAYS[way](folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write_index(Path(folder), args.samples, args.shards)
        if not args.json:
            print(f"{args.samples:,} samples in {args.shards:,} shards, a manifest of {size / 1e6:,.0f} MB")
        for way in WAYS:
            command = [sys.executable, str(Path(__file__).resolve()), "--measure", way, folder]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            if args.json:
                given = {"what": way, "samples": args.samples, "shards": args.shards, "manifest_mb": round(size / 1e6)}
                print(json.dumps(given | result))
            else:
                print(f"{way:7} " + ", ".join(f"{name} {value:,}" for name, value in result.items()))


if __name__ == "__main__":
    main()
