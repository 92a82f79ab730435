"""An epoch from far storage: cold, and from each tier of the cache, beside other ways to read it.

    python tools/bench/make_dataset.py bench-data/cc3m
    python tools/bench/storage.py bench-data/cc3m             # 30 ms latency, 40 MB/s a connection; --json for a log
    python tools/bench/storage.py bench-data/cc3m --near      # no proxy between: processor time, beside the bare client

A web server of our own serves the shards; a proxy delays each reply and limits each connection.  Every way is a process
of its own that gives the same samples as bytes (captions and JPEGs, not decoded).

seconds    an epoch, from its first sample asked for to its last
first_s    of that, until the first sample came
mb_s       bytes of shards / seconds
fetched    bytes that came from the server / bytes of the shards
cpu_s_gb   processor time of the reading process, seconds for each GB of shards
hits       shares of the sample bytes that each tier gave
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FAULTS = HERE.parent.parent / "tests" / "faults.py"
SEED = 7
WAYS = (
    "one connection", "webdataset pipe", "webdataset cache",
    "ours", "ours, disk", "ours, half a disk", "ours, memory", "ours, 1 worker, disk",
)  # fmt: skip
NEAR = ("bare client", "ours", "ours, views", "ours, disk", "one connection")


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


def read(url: str, folder: Path, way: str, cache: Path) -> Iterator[dict[str, Any]]:
    """Epochs of one way of reading, a figure for each."""
    size = sum(shard.stat().st_size for shard in shards_of(folder))
    urls = [f"{url}/{shard.name}" for shard in shards_of(folder)]
    if way.startswith("ours"):
        yield from _ours(url, way, cache, size)
        return
    sides = {"one connection": _plain, "webdataset pipe": _pipe, "webdataset cache": _cached, "bare client": _bare}
    for epoch in ("cold", "warm") if "cache" in way else ("cold",):
        yield _timed(f"{way}, {epoch}" if "cache" in way else way, sides[way](urls, cache), size)


def _timed(way: str, samples: Iterable[Any], size: int) -> dict[str, Any]:
    before, start, first, count = _cpu(), time.perf_counter(), None, 0
    for sample in samples:
        first = first or time.perf_counter() - start
        count += len(sample) if isinstance(sample, list) else 1
    seconds = time.perf_counter() - start
    return {
        "way": way, "samples": count, "seconds": round(seconds, 2), "first_s": round(first or 0, 2),
        "mb_s": round(size / seconds / 1e6, 1), "cpu_s_gb": round((_cpu() - before) / size * 1e9, 2),
    }  # fmt: skip


def _cpu() -> float:
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _ours(url: str, way: str, cache: Path, size: int) -> Iterator[dict[str, Any]]:
    from streaming import Cache, FixedBatch, StreamingDataset, StreamingLoader

    tiers = {
        "ours, disk": Cache(disk=cache),
        "ours, 1 worker, disk": Cache(disk=cache),
        "ours, half a disk": Cache(disk=cache, disk_bytes=size // 2),
        "ours, memory": Cache(memory_bytes=4 * size),
    }
    decode: Any = "views" if "views" in way else False
    train = StreamingDataset(
        url, batch=FixedBatch(64), shuffle=True, seed=SEED, tail="uneven", decode=decode, cache=tiers.get(way)
    )
    workers = 1 if "worker" in way else 0
    with StreamingLoader(train, workers=workers) as loader:
        for epoch in ("cold", "warm") if way in tiers else ("cold",):
            before = loader.stats()
            line = _timed(f"{way}, {epoch}" if way in tiers else way, (batch["__key__"] for batch in loader), size)
            done = loader.stats() - before
            hits = {tier: round(share, 3) for tier, share in done.hits.items() if share}
            yield line | {"fetched": round(done.fetched / size, 4), "hits": hits}
    if way == "ours, half a disk":
        yield {"way": "LRU of half, simulated", "hits": {"disk": round(lru(train, size // 2), 3)}}


def lru(train: Any, capacity: int) -> float:
    """Share of the sample bytes that a cache of chunks would give in the second epoch if it kept what was used last."""
    import numpy as np

    from streaming.chunks import Chunks

    held: OrderedDict[tuple[int, int], int] = OrderedDict()
    known: dict[int, Any] = {}
    hit = total = used = 0
    for epoch in range(2):
        cursor = train.plan.epoch(epoch).cursor(train.plan.lanes + 1)
        found: dict[tuple[int, int], bool] = {}  # whether a chunk was there when the epoch came to it
        for position in range(train.plan.total):
            refs = cursor.samples(np.array([position]))
            for shard, index in zip(refs.shards.tolist(), refs.indices.tolist(), strict=True):
                chunks = known.setdefault(shard, Chunks.of(train.catalog.table(shard)))
                key = shard, int(chunks.numbers[index])
                found[key] = found.get(key, True) and key in held
                total, hit = total + epoch, hit + epoch * found[key]
                used += 0 if key in held else chunks.measure(key[1])[0]
                held[key] = chunks.measure(key[1])[0]
                held.move_to_end(key)
                while used > capacity:
                    used -= held.popitem(last=False)[1]
    return hit / total


def _plain(urls: Sequence[str], cache: Path) -> Iterator[Any]:  # noqa: ARG001
    """One request after the other, each shard read from end to end by tarfile."""
    import tarfile
    from urllib.request import urlopen

    for url in urls:
        with urlopen(url) as reply, tarfile.open(fileobj=reply, mode="r|") as tar:
            last = None
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    file.read()
                key = member.name.partition(".")[0]
                if key != last:
                    last = key
                    yield key


def _pipe(urls: Sequence[str], cache: Path) -> Iterator[Any]:  # noqa: ARG001
    import webdataset

    pipes = [f"pipe:curl -s -f {url}" for url in urls]
    yield from webdataset.WebDataset(pipes, shardshuffle=100, seed=SEED).shuffle(1000)


def _cached(urls: Sequence[str], cache: Path) -> Iterator[Any]:
    import webdataset

    yield from webdataset.WebDataset(list(urls), shardshuffle=100, seed=SEED, cache_dir=str(cache)).shuffle(1000)


def _bare(urls: Sequence[str], cache: Path) -> Iterator[Any]:  # noqa: ARG001
    """The storage client alone: ranges of 4 MiB, 16 in flight, thrown away."""
    from collections import deque
    from concurrent.futures import ThreadPoolExecutor

    import obstore
    from obstore.store import HTTPStore

    root = urls[0].rpartition("/")[0]
    store = HTTPStore.from_url(root, client_options={"allow_http": True})
    spans = []
    for url in urls:
        name = url.rpartition("/")[2]
        size = obstore.head(store, name)["size"]
        spans += [(name, low, min(low + (4 << 20), size)) for low in range(0, size, 4 << 20)]

    def get(span: tuple[str, int, int]) -> Any:
        return obstore.get(store, span[0], options={"range": span[1:]}).bytes()

    with ThreadPoolExecutor(16) as pool:
        waiting: deque[Any] = deque()
        for span in spans:
            waiting.append(pool.submit(get, span))
            if len(waiting) > 16:
                yield len(waiting.popleft().result())
        while waiting:
            yield len(waiting.popleft().result())


@contextmanager
def started(*command: str) -> Iterator[str]:
    """A process that prints its URL, and ends with its standard input."""
    process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(10)


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All ways, one after the other."""
    with ExitStack() as stack:
        url = stack.enter_context(started(str(HERE / "serving.py"), str(args.data)))
        if not args.near:
            limits = ["--latency", str(args.latency), "--rate", str(args.rate)]
            url = stack.enter_context(started(str(FAULTS), url, *limits))
        for way in args.only or (NEAR if args.near else WAYS):
            with tempfile.TemporaryDirectory(dir=args.scratch) as cache:
                command = [sys.executable, __file__, str(args.data), "--side", way, "--url", url, "--cache", cache]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
                if done.returncode:
                    yield {"way": way, "failed": done.returncode}
                yield from map(json.loads, done.stdout.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="a folder that make_dataset.py made")
    parser.add_argument("--near", action="store_true", help="without the proxy, for processor time")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds before each reply (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=40e6, help="bytes/s of a connection (default: %(default)s)")
    parser.add_argument(
        "--only", action="append", metavar="WAY", help=f"one of {', '.join(dict.fromkeys(WAYS + NEAR))}"
    )
    parser.add_argument("--scratch", type=Path, help="where caches of the ways lie (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each epoch")
    for hidden in ("--side", "--url", "--cache"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.getLogger("shardstream").setLevel(logging.ERROR)
    if args.side:
        for line in read(args.url, args.data, args.side, Path(args.cache)):
            print(json.dumps(line), flush=True)
        sys.stdout.flush()
        os._exit(0)
    for line in measure(args):
        print(json.dumps(line) if args.json else ", ".join(f"{k} {v}" for k, v in line.items()), flush=True)


if __name__ == "__main__":
    main()
