"""The whole way once: images with captions -> shards -> training on two ranks -> a stop -> going on with one rank.

    python tools/demo.py                        # makes 2,000 images
    python tools/demo.py --data photos          # takes photos/captions.tsv: caption, tab, file

Everything is written under --out.  The report says what was written, read and checked; the exit code is 1 if the run
that went on did not see exactly the samples that were left.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from demo_images import make_images

from shardwriter import ShardError, convert, sources
from streaming import FixedBatch, Plan, StreamingDataset

TRAIN: Final = Path(__file__).resolve().parent.parent / "examples" / "train_ddp.py"
EPOCHS: Final = 2
RANKS: Final = 2
SEED: Final = 7
Seen = dict[tuple[int, int], list[str]]
"""(epoch, position) -> keys of that micro-batch."""


@dataclass(frozen=True)
class Layout:
    """How many samples a shard and a batch hold, so that small datasets too have several lanes and some steps."""

    shard: int
    batch: int

    @classmethod
    def of(cls, samples: int) -> Layout:
        return cls(shard=max(1, min(100, samples // 16)), batch=max(1, min(32, samples // 16)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with captions.tsv (default: images are made)")
    parser.add_argument("--images", type=int, default=2000, help="how many images to make")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for everything that is written")
    parser.add_argument("--recheck", action="store_true", help="only check again what the last run logged")
    args = parser.parse_args()
    if args.data and not (args.data / "captions.tsv").is_file():
        parser.error(f"{args.data} holds no captions.tsv (a caption, a tab and a file name in each line)")
    logging.getLogger("shardstream").setLevel(logging.ERROR)  # it would say what the printed plan says of the tail
    try:
        if not args.recheck:
            write(args)
        return read_back(args)
    except ShardError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def write(args: argparse.Namespace) -> None:
    """From images with captions to shards."""
    for name in ("images", "shards", "run", "resumed"):
        shutil.rmtree(args.out / name, ignore_errors=True)
    images = args.data or prepare(args.out / "images", args.images)
    with (images / "captions.tsv").open(encoding="utf-8") as lines:
        layout = Layout.of(sum(1 for line in lines if line.strip()))
    source = sources.table(images / "captions.tsv", columns=["txt", "jpg"])
    # One process: more would take longer to start than so few samples take to write.
    say("shards", str(convert(source, args.out / "shards", max_samples=layout.shard, workers=1)))


def read_back(args: argparse.Namespace) -> int:
    """From shards through both training runs to the checks; the exit code."""
    shards, first, second = (args.out / name for name in ("shards", "run", "resumed"))
    batch = Layout.of(StreamingDataset(shards).plan.samples).batch
    dataset, alone = (
        StreamingDataset(shards, batch=FixedBatch(batch, size=64), shuffle=True, seed=SEED, rank=0, world_size=ranks)
        for ranks in (RANKS, 1)
    )
    say("plan", *str(dataset.plan).splitlines())
    steps = len(dataset)
    stop = steps + max(1, steps // 2)
    if not args.recheck:
        common = ["--data", shards, "--epochs", EPOCHS, "--batch", batch, "--seed", SEED]
        say("run 1", f"{RANKS} ranks x 2 workers, to be stopped in epoch 1 after step {stop - steps} of {steps}")
        train(RANKS, *common, "--workers", 2, "--out", first, "--stop-after", stop)
        report(first)
        second.mkdir()
        shutil.copy(first / "checkpoint.pt", second)
        say("run 2", "1 rank x 1 worker, from the checkpoint to the end of epoch 1")
        train(1, *common, "--workers", 1, "--out", second, "--resume")
        report(second)
    return check(dataset, alone.plan, seen(first, RANKS), seen(second, 1), stop)


def prepare(folder: Path, count: int) -> Path:
    """Make the embedded dataset."""
    start = time.perf_counter()
    make_images(folder, count, seed=SEED)
    say("images", f"{count:,} with captions, made in {time.perf_counter() - start:.1f} s")
    return folder


def train(ranks: int, *arguments: Any) -> None:
    """Run the training example under torchrun; what it prints is shown only if it fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, TRAIN]
    done = subprocess.run(
        [str(part) for part in (*command, *arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # torchrun would set it too, and say so in eight lines
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\ndemo: training ended with code {done.returncode}")


def report(out: Path) -> None:
    """What the first rank wrote about each epoch."""
    for epoch in read(out / "epochs.jsonl"):
        ranks = "each rank" if epoch["ranks"] > 1 else "the one rank"
        rate = f"{epoch['samples_per_s']:,.0f} samples/s"
        say("", f"epoch {epoch['epoch']}: {epoch['steps']} steps on {ranks}, loss {epoch['loss']:.4f}, {rate}")


def seen(out: Path, ranks: int) -> Seen:
    """The sample logs of all ranks, by epoch and position."""
    logs = [line for rank in range(ranks) for line in read(out / f"samples-{rank}.jsonl")]
    found = {(line["epoch"], line["position"]): line["keys"] for line in logs}
    if len(found) != len(logs):
        sys.exit("demo: two ranks logged the same position")
    return found


def check(dataset: StreamingDataset, alone: Plan, before: Seen, after: Seen, stop: int) -> int:
    """Compare both logs with the plan and with each other; the exit code."""
    plan, last = dataset.plan, EPOCHS - 1
    steps = plan.steps()
    cut = (stop - steps) * RANKS
    left = range(cut, cut + alone.steps(start=cut))
    wanted_before = [(0, p) for p in range(steps * RANKS)] + [(last, p) for p in range(cut)]
    wanted_after = [(last, p) for p in left]
    everything = {key for i in range(len(dataset.catalog)) for key in keys_of(dataset, i)}
    had, got = samples_of(before, last), samples_of(after, last)
    dropped = everything - set(had) - set(got)
    checks = {
        f"every rank of run 1 took {stop} steps; its samples are those of the plan, by position": (
            before == expected(dataset, wanted_before)
        ),
        f"run 2 saw positions {left.start}-{left.stop - 1} of epoch {last}, the ones that were left, as planned": (
            after == expected(dataset, wanted_after)
        ),
        f"epoch {last}: {len(had):,} samples before the stop + {len(got):,} after + {len(dropped):,} dropped by the "
        f"tail = {len(everything):,}, none twice": (
            len(had) + len(got) == len(set(had) | set(got)) and len(dropped) == alone.tail_report(last).dropped_samples
        ),
    }
    say("checks", *(f"{'ok  ' if passed else 'FAIL'}  {text}" for text, passed in checks.items()))
    return 0 if all(checks.values()) else 1


def expected(dataset: StreamingDataset, places: Iterable[tuple[int, int]]) -> Seen:
    """The keys that the plan and the index have at each (epoch, position)."""
    cursors = {epoch: dataset.plan.epoch(epoch).cursor() for epoch in range(EPOCHS)}
    out = {}
    for epoch, position in places:
        refs = cursors[epoch].samples(np.array([position]))
        pairs = zip(refs.shards.tolist(), refs.indices.tolist(), strict=True)
        out[epoch, position] = [dataset.catalog.table(shard).key(index) for shard, index in pairs]
    return out


def keys_of(dataset: StreamingDataset, shard: int) -> list[str]:
    table = dataset.catalog.table(shard)
    return [table.key(i) for i in range(len(table))]


def samples_of(log: Seen, epoch: int) -> list[str]:
    return [key for (e, _), keys in log.items() if e == epoch for key in keys]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def say(title: str, *lines: str) -> None:
    for i, line in enumerate(lines):
        print(f"{title if i == 0 else '':<12}{line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
