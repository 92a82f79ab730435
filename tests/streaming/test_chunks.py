"""Chunks of shards, and their names in a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.format import SampleSpans, Span
from shardwriter.table import ShardTable
from streaming.chunks import Chunks, ShardName


def _table(sizes: list[int], start: int = 0) -> ShardTable:
    """A shard of samples with one field of each of these sizes, one after the other."""
    samples, at = [], start
    for i, size in enumerate(sizes):
        samples.append(SampleSpans(f"{i:06d}", at, at + 512 + size, {"bin": Span(at + 512, size)}))
        at += 512 + -(-size // 512) * 512
    return ShardTable.build(samples, {}, {"bytes": at + 1024, "sha256": "00" * 32})


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=60), st.integers(512, 20_000))
def test_each_sample_lies_in_one_chunk(sizes: list[int], size: int) -> None:
    """Every sample lies whole in its chunk; chunks do not overlap, and hold what starts in one stretch of the shard."""
    table = _table(sizes)
    chunks = Chunks.of(table, size)
    assert chunks.samples.sum() == len(sizes)
    assert np.array_equal(np.bincount(chunks.numbers, minlength=len(chunks)), chunks.samples)
    for i in range(len(sizes)):
        low, high = chunks.span(int(chunks.numbers[i]))
        span = table.spans(i)["bin"]
        assert low <= int(table.starts[i]) < span.offset <= span.offset + span.size <= high
    assert all(chunks.highs[:-1] <= chunks.lows[1:])
    assert all(low // size == (table.starts[chunks.numbers == c] // size).max() for c, low in enumerate(chunks.lows))


def test_a_large_sample_makes_a_large_chunk() -> None:
    """A sample that is longer than a chunk is not cut."""
    chunks = Chunks.of(_table([10_000_000, 100]), 4096)
    assert [chunks.measure(c) for c in range(len(chunks))] == [(512 + 10_000_000, 1), (612, 1)]


def test_samples_without_fields_have_a_chunk() -> None:
    """A sample of which no field is there lies in a chunk of its own bytes."""
    table = ShardTable.build(
        [SampleSpans("a", 0, 0, {}), SampleSpans("b", 512, 1024, {"x": Span(1024, 3)})],
        {},
        {"bytes": 4096, "sha256": "00" * 32},
    )
    chunks = Chunks.of(table)
    assert (chunks.span(0), chunks.numbers.tolist()) == ((0, 1027), [0, 0])


@pytest.mark.parametrize(
    "changed",
    [{"root": "s3://other"}, {"name": "b.tar"}, {"size": 6}, {"digest": "ff"}],
    ids=lambda changed: next(iter(changed)),
)
def test_the_name_of_a_shard_says_all_of_it(changed: dict[str, Any]) -> None:
    """URL, name, size and content are in the name of a shard; all shards of one root are one group."""
    given: dict[str, Any] = {"root": "s3://bucket/x", "name": "a.tar", "size": 5, "digest": "00"}
    one, other = ShardName.of(**given), ShardName.of(**(given | changed))
    assert one == ShardName.of(**given)
    assert one.shard != other.shard
    assert (one.group == other.group) == ("root" not in changed)
    assert len({one.entry(0, 512), one.entry(512, 1024), one.index}) == 3
