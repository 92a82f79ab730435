"""Sidecars and manifests as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.aggregate import aggregate
from shardwriter.errors import FormatError, IndexFormatError
from shardwriter.format import SampleSpans, Span, pack
from shardwriter.table import MAX_FIELDS, Manifest, ShardEntry, ShardTable, count_fields

META = {"bytes": 1 << 20, "sha256": "ab" * 32}


@st.composite
def samples(draw: st.DrawFn) -> list[SampleSpans]:
    found = []
    at = draw(st.integers(0, 1 << 40))
    for key in draw(st.lists(st.text(max_size=8), max_size=8, unique=True)):
        start, fields = at, {}
        for field in draw(st.lists(st.sampled_from(["jpg", "txt", "seg.png", "cls"]), unique=True)):
            fields[field] = Span(at + 512, draw(st.integers(0, 1 << 34)))
            at += 512 + fields[field].size
        found.append(SampleSpans(key, start, at, fields))
    return found


@given(samples())
def test_tables_come_back(found: list[SampleSpans]) -> None:
    """Keys, spans, columns and meta are the same after a way through bytes, whatever fields a sample has."""
    columns = {"width": np.arange(len(found), dtype="<i4"), "x/y.z": np.ones(len(found), "<f8")}
    table = ShardTable.from_bytes(ShardTable.build(found, columns, META).to_bytes())
    assert len(table) == len(found)
    assert [table.key(i) for i in range(len(table))] == [s.key for s in found]
    assert [table.spans(i) for i in range(len(table))] == [s.fields for s in found]
    assert table.starts.tolist() == [s.start for s in found]
    assert {name: c.tolist() for name, c in table.columns.items()} == {n: c.tolist() for n, c in columns.items()}
    assert table.meta == META
    assert not table.gzipped
    counts = count_fields([table, table])
    assert counts == {f: 2 * sum(f in s.fields for s in found) for s in found for f in s.fields}


def test_a_sample_of_image_and_text_costs_little() -> None:
    """A sample of an image and a text with its size takes at most 48 bytes, key of 9 characters included."""
    found = [
        SampleSpans(f"{at:09d}", at, at + 2048, {"jpg": Span(at + 512, 9), "txt": Span(at + 1536, 9)})
        for at in range(0, 2048 * 1000, 2048)
    ]
    sizes = np.full(1000, 300, "<i4")
    raw = ShardTable.build(found, {"width": sizes, "height": sizes}, META).to_bytes()
    assert len(raw) / 1000 <= 48


def test_gzip_counts_in_the_unpacked_tar() -> None:
    """A table with unpacked_bytes is of a gzip shard, and its content has that size."""
    table = ShardTable.build([], {}, {**META, "unpacked_bytes": 5 << 20})
    assert (table.gzipped, table.content_bytes) == (True, 5 << 20)
    assert ShardTable.build([], {}, META).content_bytes == 1 << 20


def test_too_many_fields() -> None:
    """More different fields than a shard may have are refused, with what probably went wrong."""
    found = [SampleSpans("a", 0, 512, {f"{i}": Span(512, 0) for i in range(MAX_FIELDS + 1)})]
    with pytest.raises(FormatError, match="dots") as caught:
        ShardTable.build(found, {}, META)
    assert caught.value.rule == "S6"


PARTS: Mapping[str, Any] = {
    "starts": np.zeros(2, "<u4"),
    "field_offsets": np.full((2, 1), 512, "<u4"),
    "field_sizes": np.zeros((2, 1), "<u4"),
    "key_offsets": np.array([0, 1, 2], "<u4"),
    "key_bytes": np.frombuffer(b"ab", np.uint8),
}
SIDECAR = {**META, "fields": ["txt"]}


@pytest.mark.parametrize(
    ("kind", "meta", "parts"),
    [
        ("dataset", {}, {}),
        ("shard", {"fields": None}, {}),
        ("shard", {"fields": ["txt", "jpg"]}, {}),
        ("shard", {"bytes": "1"}, {}),
        ("shard", {"sha256": "xy" * 32}, {}),
        ("shard", {"sha256": "ab" * 31}, {}),
        ("shard", {"sha256": None}, {}),
        ("shard", {}, {"starts": np.zeros(3, "<u4")}),
        ("shard", {}, {"starts": np.zeros(2, "<f4")}),
        ("shard", {}, {"starts": np.zeros((), "<u4")}),
        ("shard", {}, {"starts": np.zeros((2, 2), "<u4")}),
        ("shard", {}, {"field_sizes": np.zeros((2, 2), "<u4")}),
        ("shard", {}, {"key_offsets": np.zeros(2, "<u4")}),
        ("shard", {}, {"key_offsets": np.array([0, 1, 9], "<u4")}),
        ("shard", {}, {"key_bytes": np.zeros(9, "|u1")}),
        ("shard", {}, {"column/width": np.zeros(3, "<i4")}),
        ("shard", {}, {"field_offsets": None}),
    ],
)
def test_sidecars_whose_parts_do_not_fit(kind: str, meta: dict[str, Any], parts: dict[str, Any]) -> None:
    """A container that is whole but no sidecar is an error of rule I5."""
    arrays = {name: array for name, array in {**PARTS, **parts}.items() if array is not None}
    ShardTable.from_bytes(pack("shard", SIDECAR, PARTS))
    with pytest.raises(IndexFormatError) as caught:
        ShardTable.from_bytes(pack(kind, {**SIDECAR, **meta}, arrays))
    assert caught.value.rule == "I5"


def entries(counts: list[int]) -> list[ShardEntry]:
    return [
        ShardEntry(f"ä/{i}.tar", i << 33, n, bytes([i]) * 32, aggregate({"frames": np.arange(1, n + 1, dtype="<i4")}))
        for i, n in enumerate(counts)
    ]


@given(st.lists(st.integers(0, 20), max_size=6))
def test_manifests_come_back(counts: list[int]) -> None:
    """Names, sizes, counts, digests, totals and histograms are the same after a way through bytes."""
    shards = entries(counts)
    manifest = Manifest.from_bytes(Manifest.build(shards, {"fields": {}, "base": "s3://b/x", "skipped": {}}).to_bytes())
    assert (len(manifest), manifest.base) == (len(shards), "s3://b/x")
    assert manifest.names() == [manifest.name(i) for i in range(len(shards))] == [s.name for s in shards]
    assert manifest.sizes.tolist() == [s.size for s in shards]
    assert manifest.samples.tolist() == counts
    assert [d.tobytes() for d in manifest.digests] == [s.sha256 for s in shards]
    if shards:
        assert manifest.totals["frames"].tolist() == [list(s.aggregates.totals["frames"]) for s in shards]
        assert manifest.histograms["frames"][1].sum(axis=1).tolist() == counts


def test_shards_without_a_column_count_as_zeros() -> None:
    """A column that only some shards have has zero totals and no counts for the others."""
    shards = [*entries([3]), ShardEntry("b.tar", 1, 2, bytes(32))]
    manifest = Manifest.build(shards, {})
    assert manifest.totals["frames"].tolist() == [[6, 1, 3], [0, 0, 0]]
    assert manifest.histograms["frames"][1].sum(axis=1).tolist() == [3, 0]
    assert manifest.base is None


def test_digest_is_of_content_and_order() -> None:
    """The dataset's digest changes with bytes, counts and order of shards, and not with names or meta."""
    first, second = entries([2, 3])
    base = Manifest.build([first, second], {}).digest()
    moved = ShardEntry("other.tar", first.size, first.samples, first.sha256, first.aggregates)
    assert Manifest.build([moved, second], {"base": "x"}).digest() == base
    assert Manifest.build([second, first], {}).digest() != base
    assert Manifest.build([first], {}).digest() != base


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("shard", {}),
        ("dataset", {"sizes": None}),
        ("dataset", {"sizes": np.zeros(3, "<u8")}),
        ("dataset", {"sizes": np.zeros(2, "<f8")}),
        ("dataset", {"samples": np.zeros((), "<u8")}),
        ("dataset", {"samples": np.zeros((2, 2), "<u8")}),
        ("dataset", {"digests": np.zeros((2, 31), "|u1")}),
        ("dataset", {"name_offsets": np.array([0, 1, 99], "<u4")}),
        ("dataset", {"total/frames": np.zeros((2, 2), "<f8")}),
        ("dataset", {"counts/frames": None}),
        ("dataset", {"counts/frames": np.zeros((1, 3), "<u4")}),
        ("dataset", {"bounds/frames": np.zeros((1, 1), "<f8")}),
        ("dataset", {"counts/frames": np.zeros((2, 3), "<f8")}),
    ],
)
def test_manifests_whose_parts_do_not_fit(kind: str, parts: dict[str, Any]) -> None:
    """A container that is whole but no manifest is an error of rule I6."""
    manifest = Manifest.build(entries([2, 3]), {})
    cells, counts, bounds, _ = manifest.histograms["frames"]
    arrays: dict[str, Any] = {
        "name_offsets": manifest.name_offsets, "name_bytes": manifest.name_bytes, "sizes": manifest.sizes,
        "samples": manifest.samples, "digests": manifest.digests, "total/frames": manifest.totals["frames"],
        "cells/frames": cells, "counts/frames": counts, "bounds/frames": bounds,
    }  # fmt: skip
    Manifest.from_bytes(pack("dataset", {}, arrays))
    with pytest.raises(IndexFormatError) as caught:
        Manifest.from_bytes(pack(kind, {}, {n: a for n, a in {**arrays, **parts}.items() if a is not None}))
    assert caught.value.rule == "I6"
