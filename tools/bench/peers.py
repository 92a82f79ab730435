"""How fast this package is beside others, on the same dataset, in one run on this machine.

    python tools/bench/peers.py --setup                 # 10,000 samples that are made first; everything
    python tools/bench/peers.py bench-data/imagenet --only decoded --only memory --peers webdataset,litdata
    python tools/bench/peers.py --samples 500 --repeats 1 --json       # quick; one line of JSON for each figure

raw            single samples as bytes and text, in order, one process
decoded        uint8 batches [64, 3, 224, 224], each side with its own decoder, beside the limit: bytes in memory,
               decoded and resized by the same libraries into a tensor that is there already
our decoder    the same, where peers use our decode function
first batch    seconds from the end of the imports to the first of those batches
resume         seconds to the first batch at 95 % of the epoch, where a side can, and as a multiple of a fresh start
memory         the most that the process tree holds while it gives decoded batches
write          a folder of pictures and captions written in each format
busy trainer   what a trainer gets that keeps the interpreter busy

The peers are webdataset, mosaic (mosaicml-streaming), litdata, huggingface (datasets), ray (Ray Data) and folder (files
under torch's DataLoader).  Each has a virtual environment of its own below bench-data/envs, which --setup makes;
without one a peer is left out, and that is said.  The dataset is converted into the format of each once, below
bench-data/peers, and nothing is measured unless all give the same keys, pictures and texts.

Every measurement is a process of its own; the ways of a figure take turns, `--repeats` times.  A ratio says how many
times better the best of ours is, or the way that is named behind it: more for samples/s, less for seconds and MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments import PEERS, environments
from figures import NAMES, Figure, Way, figures
from report import summary, table
from sets import Differ, Sets, prepare
from sides.common import BATCH, ROOT, SIDE
from watch import Failed, run

HERE = Path(__file__).resolve().parent
CORES = len(os.sched_getaffinity(0))


class Bench:
    """Starts measurements in the right environment."""

    def __init__(self, pythons: dict[str, Path], work: Path) -> None:
        self._pythons = pythons
        # Nobody asks the network for news, or writes into the user's caches.
        quiet = {"PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
        self._environment = os.environ | quiet | {"HF_HOME": str(work / "huggingface")}

    def __call__(
        self, side: str, kind: str, data: str, options: dict[str, Any], *, memory: bool = False
    ) -> dict[str, Any]:
        """Raises Failed."""
        python = self._pythons.get(side, Path(sys.executable))
        command = [str(python), str(HERE / "measure.py"), side, kind, data, json.dumps(options)]
        environment = dict(self._environment)
        if str(python) != sys.executable:
            environment.pop("PYTHONPATH", None)  # nothing may come before what a peer has installed
        return run(command, environment, memory=memory)


def measured(figure: Figure, sets: Sets, bench: Bench, repeats: int) -> dict[str, Any]:
    """The summary of a figure."""
    runs: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    if figure.name == "resume":
        failed = _save_states(figure, sets, bench)
    for _ in range(repeats):
        for way in figure.ways:
            if way.label in failed:
                continue
            try:
                found = _measure(way, sets, bench, memory=figure.name == "memory")
                _check(way, found, sets)
                runs.setdefault(way.label, []).append(found)
            except Failed as error:
                failed[way.label] = str(error)
                runs.pop(way.label, None)
    _check_resumed(figure, runs, failed)
    about = {"set": sets.name, "samples": sets.samples, "bytes": sets.bytes, "repeats": repeats, "cores": CORES}
    return about | summary(figure, runs, failed)


def _measure(way: Way, sets: Sets, bench: Bench, *, memory: bool) -> dict[str, Any]:
    options, data = dict(way.options), sets.data[way.side]
    if way.kind == "write":
        out = sets.base / "written"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        try:
            return bench(way.side, "write", str(sets.folder), options | {"out": str(out), "samples": sets.samples})
        finally:
            shutil.rmtree(out)
    if way.kind == "batches":
        options["expect"] = sets.samples
    if way.kind == "resumed":
        options |= {"at": _at(sets), "path": _state(sets, way.side)}
    return bench(way.side, way.kind, data, options, memory=memory)


def _check(way: Way, found: dict[str, Any], sets: Sets) -> None:
    """All samples have to have come, and all of their bytes."""
    picture = 3 * SIDE * SIDE
    expected = {
        "raw": (sets.samples, sets.bytes),
        "batches": (sets.samples, sets.samples * picture),
        "limit": (sets.samples, sets.samples * picture),
        "first": (min(BATCH, sets.samples), min(BATCH, sets.samples) * picture),
    }.get(way.kind)
    given = found.get("samples"), found.get("bytes")
    if expected and given != expected:
        raise Failed(f"gave {given[0]} samples of {given[1]} bytes, not {expected[0]} of {expected[1]}")


def _at(sets: Sets) -> int:
    """How many batches 95 % of an epoch are."""
    return int(0.95 * -(-sets.samples // BATCH))


def _state(sets: Sets, side: str) -> str:
    return str(sets.base / f"{side}.state")


def _save_states(figure: Figure, sets: Sets, bench: Bench) -> dict[str, str]:
    failed = {}
    for way in figure.ways:
        if way.kind == "resumed":
            try:
                bench(way.side, "save", sets.data[way.side], {"at": _at(sets), "path": _state(sets, way.side)})
            except Failed as error:
                failed[way.label] = f"saving the state: {error}"
    return failed


def _check_resumed(figure: Figure, runs: dict[str, list[dict[str, Any]]], failed: dict[str, str]) -> None:
    """A state that is not heeded would be quick."""
    for way in figure.ways:
        if way.kind != "resumed" or way.label not in runs or way.against not in runs:
            continue
        if set(runs[way.label][0]["keys"]) & set(runs[way.against][0]["keys"]):
            failed[way.label] = "gave samples from the start of the epoch"
            del runs[way.label]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help="a folder that make_dataset.py made (default: bench-data/cc3m)")
    parser.add_argument("--setup", action="store_true", help="make the environments that are missing")
    parser.add_argument("--here", action="store_true", help="peers run in this environment, not in their own")
    parser.add_argument("--peers", default=",".join(PEERS), help="some of the peers, comma between them; or none")
    parser.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, help="the first so many of the dataset (default: all)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each figure")
    parser.add_argument("--work", type=Path, default=ROOT / "bench-data", help="where everything made is kept")
    return parser.parse_args()


def _pythons(args: argparse.Namespace, say: Any) -> dict[str, Path]:
    """Peer -> its Python, for the peers that are to be measured and can be."""
    wanted = [peer for peer in args.peers.split(",") if peer and peer != "none"]
    unknown = [peer for peer in wanted if peer not in PEERS]
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if args.here:
        return dict.fromkeys(wanted, Path(sys.executable))
    ready, failed = environments(wanted, args.work / "envs", make=args.setup)
    for peer, why in failed.items():
        say(f"LEFT OUT: {peer}: {why}")
    return ready


def _source(args: argparse.Namespace, say: Any) -> Path:
    if args.data is not None:
        return Path(args.data)
    made = args.work / "cc3m"
    if not made.exists():
        say(f"making {made}")
        command = [sys.executable, str(HERE / "make_dataset.py"), str(made)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Path(made)


def _lines(args: argparse.Namespace, say: Any) -> Iterator[dict[str, Any]]:
    pythons = _pythons(args, say)
    bench = Bench(pythons, args.work)
    try:
        sets = prepare(_source(args, say), args.work, args.samples, pythons, bench)
    except (Differ, Failed) as error:
        raise SystemExit(f"nothing is measured: {error}") from None
    heads = f"{sets.samples:,} samples, {sets.bytes / max(1, sets.samples) / 1000:.1f} kB each"
    say(f"{sets.name}: {heads}; {CORES} cores; medians of {args.repeats}")
    for figure in figures(pythons, CORES):
        if not args.only or figure.name in args.only:
            yield measured(figure, sets, bench, args.repeats)


def main() -> None:
    args = _arguments()

    def say(text: str) -> None:
        """What people read; with --json it goes beside the lines."""
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    broken = False
    for line in _lines(args, say):
        print(json.dumps(line) if args.json else "\n" + table(line), flush=True)
        broken = broken or bool(line["failed"])
    if broken:
        raise SystemExit("some measurements failed: see FAILED above")


if __name__ == "__main__":
    main()
