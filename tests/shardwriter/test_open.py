"""Index files out of a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwriter import IndexFormatError, IndexMismatch, ObjectNotFound, ShardWriter
from shardwriter.aggregate import HistogramTable
from shardwriter.format import MANIFEST, PARTIAL, pack_strings
from shardwriter.open import load_manifest, load_table
from shardwriter.store import open_store
from shardwriter.table import Manifest


def large(folder: Path, shards: int) -> int:
    """A manifest of so many shards that are not there; its size in bytes."""
    offsets, names = pack_strings([f"shard-{i:06d}.tar" for i in range(shards)])
    counts = np.full(shards, 10, "<u8")
    histogram = HistogramTable(np.arange(4, dtype="<u4"), np.ones((shards, 4), "<u4"), np.ones((4, 2, 2), "<f8"))
    digests = np.zeros((shards, 32), np.uint8)
    manifest = Manifest(offsets, names, counts, counts, digests, {}, {"size": histogram}, {"base": None})
    return (folder / MANIFEST).write_bytes(manifest.to_bytes())


def test_a_manifest_and_its_tables(tmp_path: Path) -> None:
    """The manifest of a folder lists its shards, and each table belongs to its shard."""
    with ShardWriter(tmp_path, max_samples=2) as writer:
        for i in range(3):
            writer.write({"__key__": f"{i}", "txt": "x"})
    store = open_store(tmp_path)
    manifest = load_manifest(store)
    assert manifest.names() == ["shard-000000.tar", "shard-000001.tar"]
    assert [load_table(store, manifest, i).key(0) for i in range(2)] == ["0", "2"]


def test_a_manifest_of_many_pieces(tmp_path: Path) -> None:
    """A manifest that is checked in several pieces is read whole, and a flipped bit in any piece is noticed."""
    size = large(tmp_path, 150_000)
    assert size > 9 << 20
    assert int(load_manifest(open_store(tmp_path)).samples.sum()) == 1_500_000
    for at in (5_000, size // 2, size - 200):
        raw = bytearray((tmp_path / MANIFEST).read_bytes())
        raw[at] ^= 1
        (tmp_path / MANIFEST).write_bytes(raw)
        with pytest.raises(IndexFormatError, match="checksum"):
            load_manifest(open_store(tmp_path))
        raw[at] ^= 1
        (tmp_path / MANIFEST).write_bytes(raw)


def test_checking_a_manifest_holds_little_memory(tmp_path: Path) -> None:
    """Opening a mapped manifest leaves far less of it in memory than it is long."""
    size = large(tmp_path, 1_000_000)
    code = f"""
import re
from pathlib import Path
from shardwriter.open import load_manifest
from shardwriter.store import open_store
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
import shardwriter.table
before = peak()
manifest = load_manifest(open_store({str(tmp_path)!r}))
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert size > 70 << 20
    assert int(done.stdout) < size // 3


def test_what_is_absent_or_disagrees(tmp_path: Path) -> None:
    """No manifest, an unfinished dataset, and a sidecar of another shard are told apart."""
    store = open_store(tmp_path)
    with pytest.raises(ObjectNotFound, match="no index"):
        load_manifest(store)
    (tmp_path / PARTIAL).write_text("{}")
    with pytest.raises(ObjectNotFound, match="never finished"):
        load_manifest(store)
    (tmp_path / PARTIAL).unlink()
    with ShardWriter(tmp_path, max_samples=2) as writer:
        for i in range(3):
            writer.write({"__key__": f"{i}", "txt": "x"})
    (tmp_path / "shard-000000.tar.ssx").write_bytes((tmp_path / "shard-000001.tar.ssx").read_bytes())
    with pytest.raises(IndexMismatch, match="promises 2 samples, the sidecar has 1"):
        load_table(store, load_manifest(store), 0)
