"""Verifying: every kind of damage is listed, none is raised, and a sound dataset has no findings."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tars
from PIL import Image

from shardwriter import ShardWriter, index_shards
from shardwriter import verify_shards as verify_in_processes
from shardwriter.check import Finding, VerifyReport
from shardwriter.format import INDEX_SUFFIX, MANIFEST, PARTIAL, SampleSpans, Span
from shardwriter.store import open_store
from shardwriter.store.base import temporary_name
from shardwriter.table import Manifest, ShardTable

verify_shards = functools.partial(verify_in_processes, workers=1)
SHARD = "shard-000001.tar"


def jpeg(width: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, 20)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards of three samples, with images, as the writer makes them."""
    folder = tmp_path / "set"
    with ShardWriter(folder, max_samples=3) as writer:
        for i in range(9):
            writer.write({"__key__": f"{i:06d}", "jpg": jpeg(30 + i), "txt": f"text {i}"}, columns={"tokens": i})
    return folder


def found(report: VerifyReport, severity: str = "error") -> set[tuple[str | None, str]]:
    return {(finding.shard, finding.kind) for finding in report.findings if finding.severity == severity}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_we_write_is_sound(dataset: Path, workers: int) -> None:
    """A dataset of the writer has no findings, whoever reads it."""
    report = verify_in_processes(dataset, workers=workers, progress=False)
    assert (report.ok, report.findings) == (True, ())
    size = sum(path.stat().st_size for path in dataset.glob("*.tar"))
    assert (report.shards, report.samples, report.bytes) == (3, 9, size)
    assert str(report).splitlines()[1:] == ["no errors"]


def test_what_we_index_is_sound(dataset: Path, tmp_path: Path) -> None:
    """An index made afterwards, beside the shards or apart from them, is sound by either folder's name."""
    for path in dataset.glob("*.ssx"):
        path.unlink()
    index_shards(dataset, index=tmp_path / "index", workers=1)
    assert verify_shards(dataset, index=tmp_path / "index").findings == ()
    assert verify_shards(tmp_path / "index").findings == ()
    assert found(verify_shards(dataset)) == {(None, "manifest")}
    index_shards(dataset, workers=1)
    assert verify_shards(dataset).findings == ()


def change(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def rebuilt(folder: Path, edit: Callable[[ShardTable], ShardTable]) -> None:
    """Replace a sidecar by an edited one that is well formed and agrees with the manifest on size and digest."""
    path = folder / (SHARD + INDEX_SUFFIX)
    path.write_bytes(edit(ShardTable.from_bytes(path.read_bytes())).to_bytes())


def table_with(table: ShardTable, samples: list[SampleSpans], **columns: Any) -> ShardTable:
    return ShardTable.build(samples, {**table.columns, **columns}, table.meta)


def samples_of(table: ShardTable) -> list[SampleSpans]:
    return [SampleSpans(table.key(i), int(table.starts[i]), 0, table.spans(i)) for i in range(len(table))]


def moved_span(table: ShardTable) -> ShardTable:
    samples = samples_of(table)
    spans = dict(samples[1].fields)
    spans["txt"] = Span(spans["txt"].offset, spans["txt"].size + 1)
    samples[1] = SampleSpans(samples[1].key, samples[1].start, 0, spans)
    return table_with(table, samples)


def renamed_key(table: ShardTable) -> ShardTable:
    samples = samples_of(table)
    samples[2] = SampleSpans("other", samples[2].start, 0, samples[2].fields)
    return table_with(table, samples)


def other_totals(folder: Path) -> None:
    path = folder / MANIFEST
    manifest = Manifest.from_bytes(path.read_bytes())
    totals = {name: values.copy() for name, values in manifest.totals.items()}
    totals["tokens"][1] = (99, 1, 50)
    path.write_bytes(
        Manifest(
            manifest.name_offsets, manifest.name_bytes, manifest.sizes, manifest.samples, manifest.digests, totals,
            manifest.histograms, manifest.meta,
        ).to_bytes()
    )  # fmt: skip


def replace_shard(folder: Path, raw: bytes) -> None:
    (folder / SHARD).write_bytes(raw)


def cut(folder: Path) -> None:
    raw = (folder / SHARD).read_bytes()
    replace_shard(folder, raw[:-2048])


def one_less(folder: Path) -> None:
    raw = (folder / SHARD).read_bytes()
    start = int(ShardTable.from_bytes((folder / (SHARD + INDEX_SUFFIX)).read_bytes()).starts[2])
    replace_shard(folder, raw[:start] + bytes(1024))


CASES: dict[str, tuple[Callable[[Path], object], set[tuple[str | None, str]]]] = {
    "a byte of data": (lambda d: change(d / SHARD, 512 + 300, b"\xaa"), {(SHARD, "digest")}),
    "a byte of a header": (
        lambda d: change(d / SHARD, 3, b"\xaa"), {(SHARD, "digest"), (SHARD, "HeaderError"), (SHARD, "samples")},
    ),
    "a cut": (cut, {(SHARD, "size"), (SHARD, "TruncatedShard"), (SHARD, "samples")}),
    "an empty file": (
        lambda d: replace_shard(d, b""), {(SHARD, "size"), (SHARD, "TruncatedShard"), (SHARD, "samples")},
    ),
    "bytes after the end": (
        lambda d: replace_shard(d, (d / SHARD).read_bytes() + b"x"),
        {(SHARD, "size"), (SHARD, "TrailingData"), (SHARD, "samples")},
    ),
    "a sample less": (one_less, {(SHARD, "size"), (SHARD, "samples")}),
    "bzip2": (
        lambda d: replace_shard(d, b"BZh9" + bytes(2000)),
        {(SHARD, "size"), (SHARD, "UnsupportedShard"), (SHARD, "samples")},
    ),
    "members apart": (
        lambda d: replace_shard(d, tars.tar([("a.jpg", b""), ("b.jpg", b""), ("a.txt", b""), ("c.txt", b"")])),
        {(SHARD, "size"), (SHARD, "GroupingError"), (SHARD, "samples")},
    ),
    "a missing shard": (lambda d: (d / SHARD).unlink(), {(SHARD, "missing")}),
    "an unlisted shard": (
        lambda d: (d / "x.tar").write_bytes(tars.tar(tars.numbered(1))), {("x.tar", "unlisted")},
    ),
    "an unlisted damaged shard": (
        lambda d: (d / "x.tar").write_bytes(b"x" * 600), {("x.tar", "unlisted"), ("x.tar", "HeaderError")},
    ),
    "a missing sidecar": (lambda d: (d / (SHARD + INDEX_SUFFIX)).unlink(), {(SHARD, "sidecar")}),
    "a damaged sidecar": (lambda d: change(d / (SHARD + INDEX_SUFFIX), -1, b"x"), {(SHARD, "sidecar")}),
    "a sidecar of another shard": (
        lambda d: (d / (SHARD + INDEX_SUFFIX)).write_bytes((d / ("shard-000000.tar" + INDEX_SUFFIX)).read_bytes()),
        {(SHARD, "sidecar"), (SHARD, "spans"), (SHARD, "numbers")},
    ),
    "a wrong span": (lambda d: rebuilt(d, moved_span), {(SHARD, "spans")}),
    "a wrong key": (lambda d: rebuilt(d, renamed_key), {(SHARD, "spans")}),
    "a sample less in the sidecar": (
        lambda d: rebuilt(d, lambda t: ShardTable.build(samples_of(t)[:2], {}, t.meta)),
        {(SHARD, "sidecar"), (SHARD, "samples")},
    ),
    "a wrong width": (
        lambda d: rebuilt(d, lambda t: table_with(t, samples_of(t), width=np.array([33, 35, 35], "<i4"))),
        {(SHARD, "numbers"), (SHARD, "totals")},
    ),
    "no widths": (
        lambda d: rebuilt(d, lambda t: ShardTable.build(samples_of(t), {"tokens": t.columns["tokens"]}, t.meta)),
        {(SHARD, "numbers"), (SHARD, "totals")},
    ),
    "wrong totals": (other_totals, {(SHARD, "totals")}),
    "no manifest": (lambda d: (d / MANIFEST).unlink(), {(None, "manifest")}),
    "a damaged manifest": (lambda d: change(d / MANIFEST, 40, b"x"), {(None, "manifest")}),
    "an unfinished dataset": (lambda d: (d / PARTIAL).write_bytes(b"{}"), {(None, "unfinished")}),
    "nothing at all": (
        lambda d: [path.unlink() for path in d.iterdir()], {(None, "manifest"), (None, "empty")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_damage_is_listed(dataset: Path, case: str) -> None:
    """Each kind of damage gives its findings, and no others."""
    damage, expected = CASES[case]
    damage(dataset)
    report = verify_shards(dataset)
    assert found(report) == expected
    assert not report.ok
    assert f"{len(report.errors)} error" in str(report)
    assert all(str(finding) in str(report) for finding in report.findings)


def test_all_damage_is_listed_at_once(dataset: Path) -> None:
    """Damage in one shard does not hide that in another, nor a missing manifest that of shards."""
    (dataset / "shard-000000.tar").write_bytes(b"")
    cut(dataset)
    (dataset / "shard-000002.tar").unlink()
    report = verify_shards(dataset)
    assert {(f.shard, f.kind) for f in report.errors} >= {
        ("shard-000000.tar", "TruncatedShard"),
        (SHARD, "TruncatedShard"),
        ("shard-000002.tar", "missing"),
    }
    (dataset / MANIFEST).unlink()
    report = verify_shards(dataset)
    assert {(None, "manifest"), (SHARD, "TruncatedShard")} <= found(report)
    assert report.shards == 2


def test_damage_is_located(dataset: Path) -> None:
    """A finding names shard, key and byte offset where these are known."""
    replace_shard(dataset, tars.tar([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")]))
    finding = next(f for f in verify_shards(dataset).errors if f.kind == "GroupingError")
    assert (finding.shard, finding.key, finding.offset) == (SHARD, "a", 1024)
    assert "key a, offset 1024: member 'a.cls'" in str(finding)
    assert "sort" in finding.message


def test_promised_and_found_numbers_are_told(dataset: Path) -> None:
    """An index that promises another number of samples is told with both numbers."""
    one_less(dataset)
    messages = [f.message for f in verify_shards(dataset).errors if f.kind == "samples"]
    assert messages[0] == "the manifest promises 3 samples, 2 whole ones were found"


def test_notes_are_no_errors(dataset: Path) -> None:
    """Unreadable images, shards without samples, links and leftovers are notes, and the dataset is still sound."""
    for path in dataset.iterdir():
        path.unlink()
    (dataset / "a.tar").write_bytes(tars.tar([("a.jpg", b"<html>"), ("b.jpg", jpeg(9)), ("README", b"")]))
    (dataset / "b.tar").write_bytes(tars.member("l.jpg", b"", b"2") + tars.END)
    index_shards(dataset, workers=1)
    (dataset / ("gone.tar" + INDEX_SUFFIX)).write_bytes(b"")
    (dataset / "deep").mkdir()
    temporary = dataset / "deep" / temporary_name()
    temporary.write_bytes(b"half")
    report = verify_shards(dataset)
    assert report.ok
    assert found(report, "note") == {
        ("a.tar", "unreadable"),
        ("b.tar", "empty"),
        ("b.tar", "passed over"),
        (None, "leftover"),
    }
    messages = " ".join(finding.message for finding in report.findings)
    assert "gone.tar.ssx" in messages
    assert f"deep/{temporary.name}" in messages
    assert next(f for f in report.findings if f.kind == "unreadable").key == "a"
    assert str(report).splitlines()[1] == "no errors"


def test_many_unreadable_images_are_summed_up(tmp_path: Path) -> None:
    """A shard full of unreadable images has a bounded number of notes, and the last one counts the rest."""
    (tmp_path / "a.tar").write_bytes(tars.tar((f"{i}.jpg", b"") for i in range(70)))
    index_shards(tmp_path, workers=1)
    report = verify_shards(tmp_path)
    assert len(report.findings) == 21
    assert report.findings[-1].message.startswith("50 more")


def test_salvaged_datasets_still_have_their_damage(tmp_path: Path) -> None:
    """An index that was salvaged agrees with the shard, and the damage is listed all the same."""
    (tmp_path / "a.tar").write_bytes(tars.tar(tars.numbered(3))[:3500])
    index_shards(tmp_path, on_error="salvage", workers=1)
    assert found(verify_shards(tmp_path)) == {("a.tar", "TruncatedShard")}


def test_a_shard_that_cannot_be_read(dataset: Path) -> None:
    """A failure of storage is a finding of its shard, and the others are verified."""
    (dataset / SHARD).unlink()
    os.mkfifo(dataset / SHARD)
    report = verify_shards(dataset)
    assert found(report) == {(SHARD, "storage")}
    assert report.shards == 2


def test_a_folder_in_place_of_a_shard(dataset: Path) -> None:
    """What is listed and is no file is missing, and nothing is raised."""
    (dataset / SHARD).unlink()
    (dataset / SHARD).mkdir()
    assert found(verify_shards(dataset)) == {(SHARD, "missing")}


def test_s3(s3: Any, dataset: Path) -> None:
    """Damage in S3 is found by several processes with credentials that were given as arguments."""
    url = s3.bucket()
    store = open_store(url, s3.options)
    for path in dataset.iterdir():
        store.write(path.name, path.read_bytes())
    assert verify_in_processes(url, workers=2, storage_options=s3.options).findings == ()
    store.write(SHARD, (dataset / SHARD).read_bytes()[:-2048])
    report = verify_in_processes(url, workers=2, storage_options=s3.options)
    assert found(report) == {(SHARD, "size"), (SHARD, "TruncatedShard"), (SHARD, "samples")}


def test_a_finding_reads_as_a_line() -> None:
    """Findings print what they are about, as far as it is known."""
    assert str(Finding(None, "manifest", "is missing")) == "error: manifest: is missing"
    assert str(Finding("a.tar", "empty", "no samples", severity="note")) == "note: empty: a.tar: no samples"
