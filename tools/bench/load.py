"""Samples per second of this package and of webdataset, on the same shards, in the same run.

    python tools/bench/make_dataset.py bench-data/cc3m
    python tools/bench/load.py bench-data/cc3m
    python tools/bench/load.py bench-data/cc3m --json      # one line of JSON for each figure

raw            single samples as bytes, in order, one process
raw shuffled   the same in random order; webdataset with a buffer of 10,000 samples
raw batches    lists of bytes, 64 samples each
decoded        uint8 batches [64, 3, 224, 224]: scaled to cover, cropped at the centre; as many threads, or DataLoader
               workers, as there are cores; for webdataset the better of workers and its own process
first batch    seconds from the end of the imports to the first of those batches, in one process

Every measurement is a process of its own, ours and theirs in turn; a few items go before the clock starts, except for
the first batch.  Both sides have to give the same keys and bytes, or nothing is measured.  Figures are medians, and the
ratio is ours / webdataset: more is better for samples/s, less for seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

BATCH, SIDE, WARM = 64, 224, 4
CORES = len(os.sched_getaffinity(0))


class Figure(NamedTuple):
    """One line of the report: ways to measure it, of which the better median counts."""

    what: str
    ours: list[str]
    theirs: list[str]
    unit: str = "samples/s"


FIGURES = [
    Figure("raw", ["ours raw"], ["webdataset raw"]),
    Figure("raw shuffled", ["ours raw shuffled"], ["webdataset raw shuffled"]),
    Figure("raw batches", ["ours raw batches"], ["webdataset raw batches"]),
    Figure("decoded", ["ours decoded"], ["webdataset decoded, workers", "webdataset decoded, one process"]),
    Figure("first batch", ["ours first batch"], ["webdataset first batch"], "s"),
]


def ours(data: str, **options: Any) -> Any:
    """Our dataset; `batched` and `decoded` as in the figures."""
    from streaming import FixedBatch, StreamingDataset

    decoded, batched = options.pop("decoded", False), options.pop("batched", False)
    batch = FixedBatch(BATCH, size=SIDE if decoded else None) if batched else None
    return StreamingDataset(data, batch=batch, decode=decoded, rank=0, world_size=1, **options)


def theirs(data: str, *, decoded: bool = False, batched: bool = False, shuffle: bool = False, workers: int = 0) -> Any:
    """The same with webdataset, as its documentation builds pipelines."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    shards = sorted(glob(f"{data}/*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards) if shuffle else False)
    if shuffle:
        dataset = dataset.shuffle(10_000)
    if decoded:
        dataset = dataset.decode("pil").map_dict(jpg=to_tensor)
    if batched:
        dataset = dataset.to_tuple("__key__", "jpg", "txt").batched(BATCH)
    return DataLoader(dataset, batch_size=None, num_workers=workers) if workers else dataset


def to_tensor(image: Any) -> Any:
    """A Pillow image as uint8 [3, SIDE, SIDE]: scaled to cover, cropped at the centre."""
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(image, (SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)


WAYS: dict[str, Callable[[str], Any]] = {
    "ours raw": lambda data: ours(data),
    "ours raw shuffled": lambda data: ours(data, shuffle=True, tail="uneven"),
    "ours raw batches": lambda data: ours(data, batched=True),
    "ours decoded": lambda data: ours(data, batched=True, decoded=True, threads=CORES),
    "ours first batch": lambda data: ours(data, batched=True, decoded=True),
    "webdataset raw": lambda data: theirs(data),
    "webdataset raw shuffled": lambda data: theirs(data, shuffle=True),
    "webdataset raw batches": lambda data: theirs(data, batched=True),
    "webdataset decoded, workers": lambda data: theirs(data, batched=True, decoded=True, workers=CORES),
    "webdataset decoded, one process": lambda data: theirs(data, batched=True, decoded=True),
    "webdataset first batch": lambda data: theirs(data, batched=True, decoded=True),
}


def columns(item: Any) -> tuple[Any, Any, Any]:
    """(keys, images, texts) of an item of either side; single ones, or of a batch."""
    return (item["__key__"], item["jpg"], item["txt"]) if isinstance(item, dict) else tuple(item)


def count(items: Iterator[Any]) -> tuple[int, int]:
    """Samples, and bytes of their images and texts."""
    samples = size = 0
    for item in items:
        keys, images, texts = columns(item)
        if isinstance(keys, str):
            samples += 1
            size += len(images) + len(texts)
        else:
            samples += len(keys)
            size += images.nbytes if hasattr(images, "nbytes") else sum(map(len, images))
            size += sum(map(len, texts))
    return samples, size


def measure(way: str, data: str) -> dict[str, Any]:
    """One measurement, in this process: samples, bytes, seconds."""
    for name in ("torch", "webdataset", "streaming.dataset"):  # importing is not part of what is measured
        import_module(name)
    start = time.perf_counter()
    dataset = WAYS[way](data)
    items = iter(dataset)
    if way.endswith("first batch"):
        samples, size = count(iter([next(items)]))
        return {"samples": samples, "bytes": size, "seconds": time.perf_counter() - start}
    for _ in range(WARM):
        next(items, None)
    del items
    start = time.perf_counter()
    samples, size = count(iter(WAYS[way](data)))
    return {"samples": samples, "bytes": size, "seconds": time.perf_counter() - start}


def content(side: str, data: str) -> dict[str, Any]:
    """Samples, and a digest over keys and bytes in order."""
    digest, samples = hashlib.sha256(), 0
    for item in WAYS[f"{side} raw"](data):
        key, image, text = columns(item)
        digest.update(b"\0".join([key.encode(), image, text]))
        samples += 1
    return {"samples": samples, "digest": digest.hexdigest()}


def child(*arguments: str) -> dict[str, Any]:
    """Run this file for one measurement."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compare(data: str, figures: list[Figure], repeats: int) -> Iterator[dict[str, Any]]:
    """The figures, one after the other."""
    contents = {side: child(data, "--content", side) for side in ("ours", "webdataset")}
    if contents["ours"] != contents["webdataset"]:
        raise SystemExit(f"the two sides do not give the same samples: {contents}")
    for figure in figures:
        runs: dict[str, list[dict[str, Any]]] = {}
        for _ in range(repeats):
            for way in (*figure.ours, *figure.theirs):
                runs.setdefault(way, []).append(child(data, "--way", way))
        given = {(run["samples"], run["bytes"]) for way in runs.values() for run in way}
        if len(given) > 1:
            raise SystemExit(f"{figure.what}: not all gave the same number of samples and bytes: {given}")
        ours, theirs = (max(_score(runs[way], figure.unit) for way in ways) for ways in (figure.ours, figure.theirs))
        yield {
            "what": figure.what,
            "ours": round(abs(ours), 3),
            "webdataset": round(abs(theirs), 3),
            "ratio": round(ours / theirs, 3),
            "unit": figure.unit,
            "repeats": repeats,
            "samples": min(given)[0],
            "bytes": min(given)[1],
        }


def _score(runs: list[dict[str, Any]], unit: str) -> float:
    """The median; seconds are negative, so that more is better."""
    scores = [float(-run["seconds"] if unit == "s" else run["samples"] / run["seconds"]) for run in runs]
    return statistics.median(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a folder that make_dataset.py made")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each figure")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", choices=[figure.what for figure in FIGURES], help="may be repeated")
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--content", choices=["ours", "webdataset"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("shardstream").setLevel(logging.ERROR)
    if args.way or args.content:
        print(json.dumps(measure(args.way, args.data) if args.way else content(args.content, args.data)))
        return
    figures = [figure for figure in FIGURES if not args.only or figure.what in args.only]
    if not args.json:
        print(f"{args.data}, {CORES} cores, medians of {args.repeats}")
        print(f"{'':14}{'ours':>12}{'webdataset':>12}{'ratio':>8}")
    for line in compare(args.data, figures, args.repeats):
        digits = 3 if line["unit"] == "s" else 0
        row = f"{line['what']:14}{line['ours']:12,.{digits}f}{line['webdataset']:12,.{digits}f}{line['ratio']:8.2f}"
        print(json.dumps(line) if args.json else f"{row}  {line['unit']}", flush=True)


if __name__ == "__main__":
    main()
