"""The whole way through a real S3 server: written, indexed, listed, streamed, forked."""

from __future__ import annotations

import multiprocessing
import warnings
from typing import Any

import pytest
from torch.utils.data import DataLoader

from shardwriter import ShardWriter, index_shards, verify_shards
from shardwriter.store import ForkedStoreWarning, open_store
from streaming import FixedBatch, Shuffle, StreamingDataset, StreamingLoader

BATCH = FixedBatch(4)
SHUFFLE = Shuffle(shards=2, buffer=8)


@pytest.fixture(scope="module")
def bucket(s3: Any) -> str:
    url = s3.bucket("stream") + "/set"
    with ShardWriter(url, max_samples=5, storage_options=s3.options) as writer:
        for i in range(60):
            writer.write({"__key__": f"{i:06d}", "txt": f"sample {i}", "cls": i})
    return url


@pytest.fixture
def straight(s3: Any, bucket: str) -> list[list[str]]:
    return [batch["__key__"] for batch in dataset(s3, bucket)]


def dataset(s3: Any, url: str, **options: Any) -> StreamingDataset:
    return StreamingDataset(url, batch=BATCH, shuffle=SHUFFLE, seed=3, storage_options=s3.options, **options)


def test_every_sample_comes_once_with_its_values(s3: Any, bucket: str) -> None:
    """An epoch from S3 gives each sample once, with the text and the number that were written."""
    seen = {}
    for batch in dataset(s3, bucket):
        seen |= {k: (t, c) for k, t, c in zip(batch["__key__"], batch["txt"], batch["cls"].tolist(), strict=True)}
    assert seen == {f"{i:06d}": (f"sample {i}", i) for i in range(60)}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_started_workers_read_the_same_batches(
    s3: Any, bucket: str, straight: list[list[str]], workers: int, start: str
) -> None:
    """Worker processes of either kind read from S3 after their parent did, and give the parent's own sequence."""
    with StreamingLoader(dataset(s3, bucket), workers=workers, start=start) as loader:
        assert [batch["__key__"] for batch in loader] == straight


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::shardwriter.store.ForkedStoreWarning")
def test_forked_workers_do_not_hang(s3: Any, bucket: str, straight: list[list[str]]) -> None:
    """Workers forked from a process that has read from S3 neither hang nor read wrong bytes."""
    loader = DataLoader(dataset(s3, bucket), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [batch["__key__"] for batch in loader] == straight


def _warned(s3: Any, url: str, pipe: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keys = [batch["__key__"] for batch in dataset(s3, url)]
    pipe.send((keys, [w.category.__name__ for w in caught if issubclass(w.category, ForkedStoreWarning)]))


@pytest.mark.timeout(60)
def test_a_forked_reader_says_that_it_falls_back(s3: Any, bucket: str, straight: list[list[str]]) -> None:
    """A forked child reads on through the fallback, and warns once."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_warned, args=(s3, bucket, there))
    child.start()
    keys, caught = here.recv()
    child.join(30)
    assert keys == straight
    assert caught == ["ForkedStoreWarning"]


def test_credentials_come_from_the_environment_too(
    s3: Any, bucket: str, straight: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without options, endpoint and credentials are taken from the usual environment variables."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    batches = StreamingDataset(bucket, batch=BATCH, shuffle=SHUFFLE, seed=3)
    assert [batch["__key__"] for batch in batches] == straight


def test_a_pattern_selects_shards_of_the_bucket(s3: Any, bucket: str) -> None:
    """Braces and globs name shards of a bucket; the manifest that lists them all serves as their index."""
    for pattern in (f"{bucket}/shard-{{000000..000001}}.tar", f"{bucket}/shard-00000[01].tar"):
        samples = StreamingDataset(pattern, storage_options=s3.options)
        assert [sample["cls"] for sample in samples] == list(range(10))


def test_resume_goes_on_elsewhere(s3: Any, bucket: str, straight: list[list[str]]) -> None:
    """A state taken in the middle of an epoch from S3 goes on with two ranks where the first run stopped."""
    first = dataset(s3, bucket)
    running = iter(first)
    taken = [next(running)["__key__"] for _ in range(5)]
    state = first.state_dict()
    running.close()  # type: ignore[attr-defined]
    ranks = []
    for rank in range(2):
        resumed = dataset(s3, bucket, rank=rank, world_size=2)
        resumed.load_state_dict(state)
        ranks.append([batch["__key__"] for batch in resumed])
    rest = [keys for pair in zip(*ranks, strict=True) for keys in pair]
    assert taken + rest == straight


def test_foreign_shards_in_a_bucket_are_indexed_into_the_cache(
    s3: Any, bucket: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards without an index stream from a bucket; their index goes to the user's cache, not into the bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bare = s3.bucket("bare")
    source, target = open_store(bucket, s3.options), open_store(bare, s3.options)
    for i in range(3):
        target.write(f"x-{i}.tar", source.read(f"shard-{i:06d}.tar"))
    samples = StreamingDataset(bare, storage_options=s3.options)
    assert [sample["cls"] for sample in samples] == list(range(15))
    assert [info.name for info in target.list()] == ["x-0.tar", "x-1.tar", "x-2.tar"]
    again = StreamingDataset(bare, storage_options=s3.options)
    assert len(again) == 15
    assert len(list((tmp_path / "shardstream" / "index").iterdir())) == 1


def test_an_index_can_be_made_in_the_bucket_and_verified(s3: Any, bucket: str) -> None:
    """index_shards puts sidecars and manifest beside the shards of a bucket, and verify_shards finds nothing wrong."""
    bare = s3.bucket("indexed")
    source, target = open_store(bucket, s3.options), open_store(bare, s3.options)
    for i in range(2):
        target.write(f"x-{i}.tar", source.read(f"shard-{i:06d}.tar"))
    report = index_shards(bare, workers=1, storage_options=s3.options)
    assert (report.shards, report.samples) == (2, 10)
    assert verify_shards(bare, workers=1, storage_options=s3.options).ok
    assert len(StreamingDataset(bare, storage_options=s3.options)) == 10
