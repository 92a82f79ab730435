"""One measurement in a process of its own; peers.py starts this file in the environment of a side.

    python tools/bench/measure.py SIDE KIND DATA '{"workers": 2}'

prints one line of JSON.  Imports come before every clock.  KIND is

content   samples, their bytes, and a digest of keys, bytes and texts that does not depend on their order
raw       single samples, epoch after epoch for a second at least, behind a few for warming up
batches   an epoch of decoded batches.  The clock runs from the arrival of one of the first batches to that of one of
          the last, with workers running at both, so neither starting nor stopping them counts; `cpu` is what this
          process and its descendants used in that time.  Where a side may have decoded all before it gives the first
          batch, a second epoch is timed as a whole instead
first     seconds to the first decoded batch
fresh, resumed, save   the first batch of an epoch; of one that a state says to go on with; what makes that state
write     a folder of files written in the side's format
limit, busy   see sides/limit.py and busy.py
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

WARM = 4
LEAST = 1.0
"""Seconds that single samples are read for at least: epochs of small datasets are short."""
IN_FLIGHT = 8
"""Batches that workers may have begun at a time: as many at both ends of an epoch are left out of the clock."""


class Mark(NamedTuple):
    """A moment of an epoch: what has come, when, and seconds of all processors used so far."""

    samples: int
    at: float
    cpu: float


def content(side: Any, data: str) -> dict[str, Any]:
    samples = size = total = 0
    for item in side.raw(data):
        key, text, picture = item["__key__"], item["txt"], item["jpg"]
        text = text.encode("utf-8") if isinstance(text, str) else bytes(text)
        digest = hashlib.sha256(b"\0".join([key.encode("utf-8"), text, picture])).digest()
        total = (total + int.from_bytes(digest, "big")) % (1 << 256)
        samples, size = samples + 1, size + len(picture)
    return {"samples": samples, "bytes": size, "digest": f"{total:064x}"}


def raw(side: Any, data: str, **options: Any) -> dict[str, Any]:
    dataset = side.raw(data, **options)
    for _ in islice(dataset, WARM):
        pass
    epochs, start, used, seconds = 0, time.perf_counter(), cpu_seconds(), 0.0
    while seconds < LEAST:
        samples, size = drained(dataset)
        epochs, seconds = epochs + 1, time.perf_counter() - start
    cpu = cpu_seconds() - used
    return {"samples": samples, "bytes": size, "rated": samples * epochs, "seconds": seconds, "cpu": cpu}


def drained(items: Any) -> tuple[int, int]:
    """Samples of an epoch, and bytes of their pictures."""
    samples = size = 0
    for item in items:
        picture = item["jpg"]
        if isinstance(picture, list):
            samples += len(picture)
            size += sum(map(len, picture))
        else:
            samples += 1
            size += len(picture)
    return samples, size


def batches(side: Any, data: str, expect: int, whole: bool = False, **options: Any) -> dict[str, Any]:
    """An epoch of `expect` samples; `whole`: a second one, from its beginning to its end."""
    from sides.common import BATCH

    steps = -(-expect // BATCH)
    skip = min(IN_FLIGHT, steps // 4)
    after = {skip + 1, steps - skip} if steps > 1 and not whole else set[int]()
    if whole:
        for _ in side.batches(data, **options):
            pass
    samples = size = 0
    marks = [] if after else [Mark(0, time.perf_counter(), cpu_seconds())]
    for number, item in enumerate(side.batches(data, **options), start=1):
        samples += len(item["__key__"])
        size += checked(item).nbytes
        if number in after:
            marks.append(Mark(samples, time.perf_counter(), cpu_seconds()))
    first, last = (*marks, Mark(samples, time.perf_counter(), cpu_seconds()))[:2]
    return {
        "samples": samples,
        "bytes": size,
        "rated": last.samples - first.samples,
        "seconds": last.at - first.at,
        "cpu": last.cpu - first.cpu,
    }


def checked(batch: dict[str, Any]) -> Any:
    """The pictures of a batch, which have to be what every side promised."""
    from sides.common import SIDE

    pictures = batch["jpg"]
    if str(pictures.dtype) != "torch.uint8" or pictures.shape[1:] != (3, SIDE, SIDE):
        raise SystemExit(f"a batch of {pictures.dtype} {list(pictures.shape)}")
    if not len(pictures) == len(batch["__key__"]) == len(batch["txt"]):
        raise SystemExit(f"{len(pictures)} pictures, {len(batch['__key__'])} keys, {len(batch['txt'])} texts")
    return pictures


def first(side: Any, data: str, **options: Any) -> dict[str, Any]:
    return first_of(lambda: side.batches(data, **options))


def fresh(side: Any, data: str) -> dict[str, Any]:
    return first_of(lambda: side.start(data))


def resumed(side: Any, data: str, at: int, path: str) -> dict[str, Any]:
    return first_of(lambda: side.resume(data, at, path))


def save(side: Any, data: str, at: int, path: str) -> dict[str, Any]:
    side.save_state(data, at, path)
    return {}


def first_of(make: Callable[[], Any]) -> dict[str, Any]:
    """Seconds until the first batch of what `make` makes, and its keys."""
    start = time.perf_counter()
    items = iter(make())
    item = next(items)
    seconds = time.perf_counter() - start
    keys = list(item["__key__"])
    return {"samples": len(keys), "bytes": checked(item).nbytes, "seconds": seconds, "keys": sorted(keys)}


def write(side: Any, data: str, out: str, samples: int = 0, **options: Any) -> dict[str, Any]:
    start, used = time.perf_counter(), cpu_seconds()
    side.write(data, out, **options)
    return {"rated": samples, "seconds": time.perf_counter() - start, "cpu": cpu_seconds() - used}


def limit(side: Any, data: str, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = side.decode(data, **options)
    return result


def busy(side: Any, data: str, **options: Any) -> dict[str, Any]:
    from busy import compare

    return compare(side, data, **options)


def cpu_seconds() -> float:
    """Of this process and its descendants, those that have ended included."""
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    kind.__name__: kind for kind in (content, raw, batches, first, fresh, resumed, save, write, limit, busy)
}


def main() -> None:
    name, kind, data, options = sys.argv[1:]
    warnings.simplefilter("ignore")
    logging.getLogger("shardstream").setLevel(logging.ERROR)
    side = import_module(f"sides.{name}")
    for module in (*side.MODULES, "psutil"):
        import_module(module)
    chosen = json.loads(options)
    if name != "ours" and not chosen.get("workers"):
        # As DataLoader has it in workers.  Torch's threads wait for each other by spinning: in a peer's only process
        # they gain nothing, and lose a lot where anything else runs.
        import_module("torch").set_num_threads(1)
    result = KINDS[kind](side, data, **chosen)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
