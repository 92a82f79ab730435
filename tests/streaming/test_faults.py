"""Storage that fails while an epoch is read: every sample once with the right bytes, or an error that says where."""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import faults
import numpy as np
import pytest

from shardwriter import ShardWriter
from shardwriter.errors import ObjectChanged, ObjectNotFound, StoreError
from shardwriter.format import INDEX_SUFFIX
from shardwriter.store import open_store
from streaming import FixedBatch, Shuffle, StreamingDataset, StreamingLoader, transfers

SAMPLES, EACH = 380, 50_000
"""Two shards of 9.5 MB: more than one chunk each."""
MIB = 1 << 20
SHARD = "shard-000001.tar"


def _content(number: int) -> bytes:
    return np.random.default_rng(number).bytes(EACH)


def _write(url: str, options: dict[str, Any], shift: int = 0) -> None:
    with ShardWriter(url, max_samples=SAMPLES // 2, storage_options=options) as writer:
        for i in range(SAMPLES):
            writer.write({"__key__": f"{i:06d}", "bin": _content(i + shift)})


@pytest.fixture(scope="module")
def bucket(s3: Any) -> str:
    """The dataset; tests must not change it."""
    url = s3.bucket("faults") + "/set"
    _write(url, s3.options)
    return url


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are made again after a fifth of a second."""
    monkeypatch.setattr(transfers, "FIRST_HEDGE", 0.2)
    monkeypatch.setattr(transfers, "LEAST_HEDGE", 0.2)


@dataclass
class Epoch:
    """What came of an epoch: the CRC of each sample by key, and the error that ended it."""

    proxy: faults.Proxy
    seen: dict[str, int] = field(default_factory=dict)
    count: int = 0
    error: StoreError | None = None

    @property
    def whole(self) -> bool:
        """Whether each sample came once, with its bytes."""
        right = {f"{i:06d}": zlib.crc32(_content(i)) for i in range(SAMPLES)}
        return self.error is None and self.count == SAMPLES and self.seen == right


def _of_shards(method: str, path: str, span: faults.Span | None) -> bool:
    """Reading a shard, signed in the header or in the query."""
    return method == "GET" and path.partition("?")[0].endswith(".tar")


def _epoch(
    s3: Any,
    url: str,
    what: list[faults.Fault],
    *,
    deadline: float = 60.0,
    during: Callable[[int], None] = lambda step: None,
    **changed: Any,
) -> Epoch:
    """Read an epoch through a proxy that does `what`, to requests for the shards."""
    with faults.Proxy(s3.endpoint, only=_of_shards) as proxy:
        proxy.faults = what
        options = s3.options | {"endpoint_url": proxy.url, "deadline": deadline, "read_timeout": 2.0} | changed
        train = StreamingDataset(
            url, batch=FixedBatch(10), shuffle=Shuffle(2, 100), tail="uneven", decode=False, storage_options=options
        )
        epoch = Epoch(proxy)
        try:
            for step, batch in enumerate(train):
                for key, data in zip(batch["__key__"], batch["bin"], strict=True):
                    epoch.seen[key] = zlib.crc32(data)
                    epoch.count += 1
                during(step)
        except StoreError as error:
            epoch.error = error
        return epoch


CURED = {
    "reset once": [faults.reset(MIB // 2)],
    "reset every 3 MiB": [faults.reset(3 * MIB, times=faults.ALWAYS)],
    "end once": [faults.fin(MIB // 2)],
    "end every 3 MiB": [faults.fin(3 * MIB, times=faults.ALWAYS)],
    "a wave of 503": [faults.status(503, times=12)],
    "a wave of 500": [faults.status(500, times=12)],
    "429 with a pause": [faults.status(429, retry_after=1, times=3)],
    "stall once": [faults.stall(MIB // 2)],
    "short reply once": [faults.shorten(1000)],
    "short replies": [faults.shorten(1000, times=8)],
}


@pytest.mark.parametrize("name", CURED)
def test_faults_that_pass_are_not_noticed(s3: Any, bucket: str, name: str, nothing_left: Callable[[], None]) -> None:
    """Faults that pass, or that leave some bytes through each time, cost time and nothing else."""
    epoch = _epoch(s3, bucket, list(CURED[name]))
    assert epoch.whole, epoch.error
    assert all(fault.times in (0, None) for fault in CURED[name])  # it did happen
    CURED[name][:] = []


LASTING = {
    "stall always": ([faults.stall(1000, times=faults.ALWAYS)], StoreError, "tries|nothing came"),
    "reset always": ([faults.reset(1000, times=faults.ALWAYS)], StoreError, "tries"),
    "500 always": ([faults.status(500, times=faults.ALWAYS)], StoreError, "500"),
    "short replies always": ([faults.shorten(1000, times=faults.ALWAYS)], StoreError, "0\\.\\.1000 instead of"),
    "a pause beyond the deadline": (
        [faults.status(429, retry_after=3600, times=faults.ALWAYS)],
        StoreError,
        "3600|3,600",
    ),
    "parts of files are not served": ([faults.ignore_range(times=faults.ALWAYS)], StoreError, "parts of files"),
    "forbidden": ([faults.status(403, error="AccessDenied", times=faults.ALWAYS)], StoreError, "AccessDenied"),
    "credentials expired": ([faults.status(403, error="ExpiredToken", times=faults.ALWAYS)], StoreError, "xpired"),
    "gone": ([faults.status(404, error="NoSuchKey", times=faults.ALWAYS)], ObjectNotFound, "no such object|NoSuchKey"),
}


@pytest.mark.parametrize("name", LASTING)
def test_faults_that_last_are_errors(s3: Any, bucket: str, name: str, nothing_left: Callable[[], None]) -> None:
    """What does not pass by the deadline is an error that names object, offset and cause; no sample came wrong."""
    what, kind, text = LASTING[name]
    epoch = _epoch(s3, bucket, list(what), deadline=3.0)
    assert isinstance(epoch.error, kind)
    message = str(epoch.error)
    assert re.search(text, message), message
    assert epoch.error.shard is not None
    assert epoch.error.shard.startswith(f"{bucket}/shard-00000")
    assert epoch.error.offset is not None
    assert s3.secret not in message
    assert all(epoch.seen[key] == zlib.crc32(_content(int(key))) for key in epoch.seen)


def test_refusals_are_not_repeated(s3: Any, bucket: str) -> None:
    """What can't succeed is asked for once by each request that was on its way."""
    epoch = _epoch(s3, bucket, [faults.status(403, error="AccessDenied", times=faults.ALWAYS)])
    asked = [(r.path, r.range) for r in epoch.proxy.requests if r.method == "GET" and r.path.endswith(".tar")]
    assert len(asked) == len(set(asked)) > 0


@pytest.mark.parametrize("what", ["replaced", "replaced before the first read", "gone"])
def test_objects_that_change_while_they_are_read(s3: Any, what: str) -> None:
    """An object that is replaced (with the same size) or removed during an epoch is an error that names it, or the
    epoch is whole since all was fetched before; never a mix.
    """
    url = s3.bucket("change") + "/set"
    _write(url, s3.options)
    store, step = open_store(url, s3.options), 0 if "before" in what else 3

    def during(now: int) -> None:
        if now == step:
            if what == "gone":
                store.delete(SHARD)
            else:
                data = store.read(SHARD)
                store.write(SHARD, data[:2000] + bytes([data[2000] ^ 1]) + data[2001:])

    def late(method: str, path: str, span: faults.Span | None) -> bool:
        return path.endswith(SHARD) and span is not None and span[0] > 4 * MIB

    slowed = [faults.stall(MIB // 2, times=2, only=late)]
    epoch = _epoch(s3, url, slowed, deadline=10.0, during=during)
    if epoch.error is None:
        assert epoch.whole
    else:
        assert isinstance(epoch.error, ObjectNotFound if what == "gone" else ObjectChanged)
        assert epoch.error.shard == f"{url}/{SHARD}"


def test_a_server_that_is_away_for_a_while(s3: Any, bucket: str) -> None:
    """While the server is gone in the middle of an epoch, nothing is lost: reading goes on when it is back."""
    with faults.Proxy(s3.endpoint, rate=2e6) as first:
        options = s3.options | {"endpoint_url": first.url, "deadline": 60.0, "read_timeout": 2.0}
        train = StreamingDataset(bucket, batch=FixedBatch(10), tail="uneven", decode=False, storage_options=options)
        batches = iter(train)
        seen = [next(batches)]
    again = faults.Proxy(s3.endpoint, port=int(first.url.rpartition(":")[2]))
    back = threading.Timer(1.0, again.__enter__)
    back.start()
    try:
        seen += list(batches)
    finally:
        back.join()
        again.__exit__(None, None, None)
    found = {k: zlib.crc32(d) for batch in seen for k, d in zip(batch["__key__"], batch["bin"], strict=True)}
    assert found == {f"{i:06d}": zlib.crc32(_content(i)) for i in range(SAMPLES)}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", [INDEX_SUFFIX, ""], ids=["sidecar", "shard"])
def test_leaving_does_not_wait_for_what_stalls(s3: Any, bucket: str, what: str) -> None:
    """A trainer that leaves its loop is not held up by sidecars or shards that do not come, however patient."""

    def second(method: str, path: str, span: faults.Span | None) -> bool:
        return method == "GET" and path.partition("?")[0].endswith(SHARD + what)

    with faults.Proxy(s3.endpoint, [faults.stall(100, times=faults.ALWAYS)], only=second) as proxy:
        options = s3.options | {"endpoint_url": proxy.url, "deadline": 600.0, "read_timeout": 600.0}
        train = StreamingDataset(bucket, batch=FixedBatch(10), decode=False, storage_options=options)
        with StreamingLoader(train, workers=0) as loader:
            for batch in loader:
                assert batch["__key__"][0] == "000000"
                deadline = time.monotonic() + 30
                while (
                    not any(second(r.method, r.path, r.range) for r in proxy.requests) and time.monotonic() < deadline
                ):
                    time.sleep(0.01)
                break


def test_names_that_can_not_be_resolved(bucket: str, s3: Any) -> None:
    """A host that does not exist is an error by the deadline that names what was asked for."""
    options = s3.options | {"endpoint_url": "http://nowhere.invalid:9", "deadline": 2.0}
    with pytest.raises(StoreError) as caught:
        StreamingDataset(bucket, batch=FixedBatch(10), storage_options=options)
    assert caught.value.shard is not None
    assert "faults" in caught.value.shard


def test_a_slow_trainer_loses_nothing(s3: Any, bucket: str) -> None:
    """A trainer that takes longer for a step than any time-out of the storage gets every sample all the same."""
    epoch = _epoch(
        s3, bucket, [], deadline=1.0, read_timeout=0.5, during=lambda step: time.sleep(2.5 if step in (1, 20) else 0)
    )
    assert epoch.whole, epoch.error


def test_errors_of_workers_come_through(s3: Any, bucket: str, forkserver: None) -> None:
    """A fault that lasts ends an epoch in worker processes too, with the same error."""
    with faults.Proxy(s3.endpoint, only=lambda method, path, span: path.endswith(".tar")) as proxy:
        options = s3.options | {"endpoint_url": proxy.url, "deadline": 1.0}
        train = StreamingDataset(bucket, batch=FixedBatch(10), shuffle=True, storage_options=options)
        proxy.faults = [faults.status(503, times=faults.ALWAYS)]
        with StreamingLoader(train, workers=1, start="forkserver") as loader, pytest.raises(StoreError) as caught:
            list(loader)
    assert "503" in str(caught.value)
    assert caught.value.shard is not None
