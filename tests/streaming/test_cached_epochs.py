"""Epochs through the tiers of a cache: what comes from where, whoever shares it, and whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import numpy as np
import psutil
import pytest
import tars
import valkey_server
from torch.utils.data import DataLoader
from torchrun import ROOT

from shardwriter import ShardWriter, index_shards
from shardwriter.store import open_store
from streaming import Cache, FixedBatch, Shuffle, StreamingDataset, StreamingLoader
from streaming.stats import Stats

SHARDS, EACH, SIZE = 8, 60, 20_000
SAMPLES = SHARDS * EACH
MIB = 1 << 20


def _content(number: int) -> bytes:
    return np.random.default_rng(number).bytes(SIZE)


def _right(samples: int = SAMPLES) -> dict[str, int]:
    return {f"{i:06d}": zlib.crc32(_content(i)) for i in range(samples)}


def _write(url: Any, options: dict[str, Any] | None = None, shift: int = 0) -> None:
    with ShardWriter(url, max_samples=EACH, storage_options=options) as writer:
        for i in range(SAMPLES):
            writer.write({"__key__": f"{i:06d}", "bin": _content(i + shift), "txt": f"number {i}"})


@pytest.fixture(scope="module")
def bucket(s3: Any) -> str:
    """8 shards of 1.2 MB; tests must not change them."""
    url = s3.bucket("cached") + "/set"
    _write(url, s3.options)
    return url


@pytest.fixture
def origin(s3: Any) -> Iterator[faults.Proxy]:
    """What stands before the origin and counts."""
    with faults.Proxy(s3.endpoint) as proxy:
        yield proxy


def _dataset(s3: Any, proxy: faults.Proxy, url: str, cache: Cache | None, **changed: Any) -> StreamingDataset:
    given: dict[str, Any] = {
        "batch": FixedBatch(10), "shuffle": Shuffle(2, 50), "seed": 5, "tail": "uneven", "decode": False,
        "storage_options": s3.options | {"endpoint_url": proxy.url, "deadline": 10.0},
    }  # fmt: skip
    return StreamingDataset(url, cache=cache, **(given | changed))


def _read(batches: Any) -> dict[str, int]:
    seen: dict[str, int] = {}
    for batch in batches:
        for key, data in zip(batch["__key__"], batch["bin"], strict=True):
            assert key not in seen
            seen[key] = zlib.crc32(data)
    return seen


def _epochs(dataset: StreamingDataset, count: int) -> list[Stats]:
    """What each of some epochs did, read in this process; all are whole."""
    found = []
    with StreamingLoader(dataset, workers=0) as loader:
        for _ in range(count):
            before = loader.stats()
            assert _read(loader) == _right()
            found.append(loader.stats() - before)
    return found


def _total() -> int:
    return SHARDS * (EACH * (SIZE + 512 * 4) + 1024)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_from_a_disk_that_holds_all(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, workers: int, forkserver: None,
    nothing_left: Callable[[], None],
) -> None:  # fmt: skip
    """With room for everything the second epoch, of any number of workers, asks the origin for nothing at all; the
    first one, of workers that share lanes, fetches every byte once.
    """
    dataset = _dataset(s3, origin, bucket, Cache(disk=tmp_path / "cache"))
    with StreamingLoader(dataset, workers=workers, start="forkserver") as loader:
        assert _read(loader) == _right()
        first = loader.stats()
        asked = len(origin.requests)
        assert _read(loader) == _right()
        second = loader.stats() - first
    assert first.fetched <= 1.02 * _total()
    assert (second.fetched, second.hits["disk"]) == (0, 1.0)
    assert len(origin.requests) == asked
    assert "100% disk" in str(second)


def test_another_job_uses_what_is_there(s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path) -> None:
    """A new process finds the chunks of an earlier one, and the sidecars; only the manifest is fetched again."""
    cache = Cache(disk=tmp_path / "cache")
    _epochs(_dataset(s3, origin, bucket, cache), 1)
    seen = len(origin.requests)
    [again] = _epochs(_dataset(s3, origin, bucket, cache, seed=6), 1)
    assert again.hits["disk"] == 1.0
    assert not [r for r in origin.requests[seen:] if ".tar" in r.path]


def test_half_a_disk_hits_half(s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path) -> None:
    """A tier of half the dataset gives half of every later epoch, whatever the order, and never holds more."""
    limit = _total() // 2
    cache = Cache(disk=tmp_path / "cache", disk_bytes=limit)
    first, *later = _epochs(_dataset(s3, origin, bucket, cache), 4)
    assert first.hits["disk"] == 0
    # Each of the 8 shards is one chunk, so that 3 fit with their sidecars and footers, and 4 don't.
    assert all(stats.hits["disk"] == pytest.approx(3 / 8, abs=0.001) for stats in later)
    assert sum(f.stat().st_size for f in (tmp_path / "cache").rglob("*") if f.is_file()) <= limit + 4096


def test_small_chunks_fill_a_tier_to_its_limit(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With chunks that are small beside the tier, the hit ratio is the share of the data that fits."""
    monkeypatch.setattr("streaming.chunks.CHUNK", 64 << 10)
    half = Cache(disk=tmp_path / "cache", disk_bytes=_total() // 2)
    _, second, third = _epochs(_dataset(s3, origin, bucket, half), 3)
    assert 0.47 <= second.hits["disk"] <= 0.5
    assert third.hits["disk"] == pytest.approx(second.hits["disk"], abs=0.001)


def test_memory_keeps_what_fits(s3: Any, bucket: str, origin: faults.Proxy) -> None:
    """Chunks that memory has room for serve the next epoch, of a loader and of the dataset itself."""
    _, second = _epochs(_dataset(s3, origin, bucket, Cache(memory_bytes="1GB")), 2)
    assert (second.fetched, second.hits["memory"]) == (0, 1.0)
    dataset = _dataset(s3, origin, bucket, Cache(memory_bytes="1GB"))
    assert _read(dataset) == _right()
    seen = len(origin.requests)
    assert _read(dataset) == _right()
    assert len(origin.requests) == seen


@pytest.mark.parametrize("shared", ["valkey", "bucket", "folder"])
def test_a_second_machine_reads_from_the_shared_tier(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, shared: str, nothing_left: Callable[[], None]
) -> None:
    """What one machine fetched the next one finds in the shared tier, and the origin is not asked for shards."""
    with valkey_server.running() as valkey:
        options = s3.options if shared == "bucket" else None
        place = {"valkey": valkey.url, "folder": str(tmp_path / "nfs"), "bucket": ""}[shared] or s3.bucket("near")
        one, other = (Cache(disk=tmp_path / name, shared=place, shared_options=options) for name in ("ssd-1", "ssd-2"))
        [first] = _epochs(_dataset(s3, origin, bucket, one), 1)
        seen = len(origin.requests)
        second, third = _epochs(_dataset(s3, origin, bucket, other), 2)
    assert first.hits["shared"] == 0
    assert (second.hits["shared"], second.fetched) == (1.0, 0)
    assert third.hits["disk"] == 1.0
    assert not [r for r in origin.requests[seen:] if r.path.endswith(".tar")]


def test_a_shared_tier_that_dies(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """When the shared tier is killed in the middle of an epoch, reading goes on from the origin, with one warning."""
    with valkey_server.running() as valkey:
        dataset = _dataset(s3, origin, bucket, Cache(shared=valkey.url))
        assert _read(dataset) == _right()

        def dying() -> Iterator[Any]:
            for step, batch in enumerate(dataset):
                if step == 3:
                    valkey.kill()
                yield batch

        assert _read(dying()) == _right()
        assert _read(dataset) == _right()
    assert len([r for r in caplog.records if "shared" in r.message and r.levelname == "WARNING"]) == 1


def test_no_tier_works(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is a file, or too small, and a shared tier that nobody serves: epochs are whole, with a warning of
    each kind.
    """
    (tmp_path / "file").write_text("mine")
    for disk, limit in ((tmp_path / "file", None), (tmp_path / "small", 1000)):
        cache = Cache(disk=disk, disk_bytes=limit, shared="redis://127.0.0.1:1")
        dataset = _dataset(s3, origin, bucket, cache)
        stats = _epochs(dataset, 2)
        assert all(each.hits["disk"] == each.hits["shared"] == 0 for each in stats)
    assert (tmp_path / "file").read_text() == "mine"
    assert 3 <= len([r for r in caplog.records if r.levelname == "WARNING"]) <= 5


def test_a_shard_that_is_replaced_and_indexed_again(s3: Any, origin: faults.Proxy, tmp_path: Path) -> None:
    """A shard of another content, with the same name and size, is not mixed up with the one in the cache."""
    url = s3.bucket("again") + "/set"
    cache = Cache(disk=tmp_path / "cache")
    _write(url, s3.options)
    _epochs(_dataset(s3, origin, url, cache), 1)
    store = open_store(url, s3.options)
    for info in list(store.list()):
        store.delete(info.name)
    _write(url, s3.options, shift=1)
    shifted = {f"{i:06d}": zlib.crc32(_content(i + 1)) for i in range(SAMPLES)}
    assert _read(_dataset(s3, origin, url, cache)) == shifted


def test_gzip_is_cached_as_it_lies(s3: Any, origin: faults.Proxy, tmp_path: Path) -> None:
    """Shards in gzip are kept packed; the second epoch asks for nothing."""
    url = s3.bucket("gzip") + "/set"
    store = open_store(url, s3.options)
    for i in range(3):
        members = [(f"{n:06d}.bin", _content(n)) for n in range(20 * i, 20 * i + 20)]
        store.write(f"{i}.tar.gz", tars.zipped(tars.tar(members)))
    index_shards(url, workers=1, progress=False, storage_options=s3.options)
    dataset = _dataset(s3, origin, url, Cache(disk=tmp_path / "cache"))
    right = _right(60)
    assert _read(dataset) == right
    seen = len(origin.requests)
    assert _read(dataset) == right
    assert len(origin.requests) == seen


def test_local_shards_are_cached_where_that_is_wanted(tmp_path: Path) -> None:
    """With a cache, shards in a folder, which may be a slow one, are copied to the disk; without they are mapped."""
    _write(tmp_path / "data")
    first, second = _epochs(StreamingDataset(tmp_path / "data", batch=FixedBatch(10), decode=False, tail="uneven",
                                             cache=Cache(disk=tmp_path / "cache")), 2)  # fmt: skip
    assert (first.hits["disk"], second.hits["disk"]) == (0.0, 1.0)
    [mapped] = _epochs(StreamingDataset(tmp_path / "data", batch=FixedBatch(10), decode=False, tail="uneven"), 1)
    assert mapped.hits == {}


def test_little_of_each_shard_is_asked_for_by_ranges(s3: Any, bucket: str, origin: faults.Proxy) -> None:
    """Where a small part of the bytes is wanted, such as captions alone, the rest is not fetched."""
    dataset = _dataset(s3, origin, bucket, None, fields=["txt"], shuffle=False, lanes=1)
    with StreamingLoader(dataset) as loader:
        texts = [text for batch in loader for text in batch["txt"]]
        stats = loader.stats()
    assert sorted(texts) == sorted(f"number {i}".encode() for i in range(SAMPLES))
    assert stats.fetched < 1.1 * _total()


FILLER = textwrap.dedent(
    """
    import sys, zlib, json
    from streaming import Cache, FixedBatch, Shuffle, StreamingDataset
    url, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    dataset = StreamingDataset(url, batch=FixedBatch(10), shuffle=Shuffle(2, 50), seed=int(sys.argv[4]), tail="uneven",
                               decode=False, storage_options=options, cache=Cache(disk=folder))
    for epoch in range(int(sys.argv[5])):
        seen = {}
        for batch in dataset:
            print("step", flush=True)
            seen |= {k: zlib.crc32(d) for k, d in zip(batch["__key__"], batch["bin"])}
        print(json.dumps(seen), flush=True)
    """
)


def _filler(s3: Any, url: str, proxy: faults.Proxy, folder: Path, seed: int, epochs: int = 1) -> subprocess.Popen[str]:
    import json

    options = json.dumps(s3.options | {"endpoint_url": proxy.url})
    command = [sys.executable, "-c", FILLER, url, str(folder), options, str(seed), str(epochs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_a_filler_that_is_killed_leaves_a_cache_that_works(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path
) -> None:
    """After kill -9 in the middle of filling, and again while chunks are written, the next run reads right bytes and
    leaves no temporary file.
    """
    cache = tmp_path / "cache"
    for seed, rate in ((1, 2e6), (2, 20e6), (3, None)):
        origin.rate = rate
        process = _filler(s3, bucket, origin, cache, seed)
        assert process.stdout is not None
        deadline = time.monotonic() + 60
        while not list(cache.rglob("*.fill")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        process.wait()
        process.stdout.close()
        if seed == 1:
            assert list(cache.rglob("*.fill"))
    origin.rate = None
    _, again = _epochs(_dataset(s3, origin, bucket, Cache(disk=cache)), 2)
    assert again.hits["disk"] == 1.0
    assert not list(cache.rglob("*.fill"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_that_share_a_folder_is_killed_or_stopped(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes fill one folder; when one is killed, or stopped in the middle of a chunk, the other reads on."""
    import json

    origin.rate = 4e6
    one, other = (_filler(s3, bucket, origin, tmp_path / "cache", seed) for seed in (1, 2))
    assert one.stdout is not None
    assert other.stdout is not None
    for _ in range(3):
        one.stdout.readline()
    os.kill(one.pid, how)
    origin.rate = None
    lines = other.stdout.read().splitlines()
    one.kill()
    for process in (one, other):
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    assert json.loads(lines[-1]) == _right()


def test_the_origin_is_killed_under_a_warm_cache(s3: Any, bucket: str, tmp_path: Path) -> None:
    """When all is cached, an epoch needs no origin: it is gone before the epoch begins."""
    cache = Cache(disk=tmp_path / "cache")
    with faults.Proxy(s3.endpoint) as proxy:
        dataset = _dataset(s3, proxy, bucket, cache)
        assert _read(dataset) == _right()
    assert _read(dataset) == _right()


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::shardwriter.store.ForkedStoreWarning")
def test_workers_after_the_parent_has_read(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, start: str, forkserver: None
) -> None:
    """Workers of any kind, started when their parent has read from S3 and filled a cache, read right bytes."""
    dataset = _dataset(s3, origin, bucket, Cache(disk=tmp_path / "cache", disk_bytes=_total() // 2))
    assert _read(dataset) == _right()
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
    assert _read(loader) == _right()
    assert _read(dataset) == _right()


def test_nothing_outlives_the_job(
    s3: Any, bucket: str, origin: faults.Proxy, tmp_path: Path, forkserver: None, nothing_left: Callable[[], None]
) -> None:
    """Left in the middle, a loader with a cache leaves no process, thread or temporary file."""
    before = psutil.Process().num_fds()
    with StreamingLoader(_dataset(s3, origin, bucket, Cache(disk=tmp_path / "cache"))) as loader:
        for _, _batch in zip(range(3), loader, strict=False):
            pass
    del loader, _batch
    nothing_left()
    assert not list((tmp_path / "cache").rglob("*.fill"))
    assert psutil.Process().num_fds() <= before + 40  # the storage client's own connections stay for a while
