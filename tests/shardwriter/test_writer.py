"""ShardWriter: what it publishes, when, and what it refuses."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardwriter import (
    DestinationError,
    EncodeError,
    NameRefused,
    ShardError,
    ShardWriter,
    StoreError,
    index_shards,
    verify_shards,
)
from shardwriter.format import INDEX_SUFFIX, MANIFEST, PARTIAL
from shardwriter.open import load_manifest, load_table
from shardwriter.store import open_store

Sample = dict[str, Any]


def picture(i: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20 + i % 5, 10 + i % 3), (i % 256, 0, 0)).save(file, "PNG")
    return file.getvalue()


def samples(n: int) -> list[Sample]:
    return [{"__key__": f"{i:05d}", "png": picture(i), "txt": f"sample {i}"} for i in range(n)]


def write(folder: Path, data: list[Sample], **options: Any) -> Any:
    with ShardWriter(folder, **options) as writer:
        for sample in data:
            writer.write(sample)
    return writer.report


class Interruption(Exception):
    """An error of the user's own code."""


def interrupted(folder: Path, data: list[Sample], after: int, **options: Any) -> ShardWriter:
    """The writer of a block that an error ended after some samples."""
    writer = ShardWriter(folder, **options)
    with contextlib.suppress(Interruption), writer:
        for sample in data[:after]:
            writer.write(sample)
        raise Interruption
    return writer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_tar(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def read_dataset(folder: Path) -> list[dict[str, Any]]:
    """Keys and bytes by way of manifest, sidecars and spans alone."""
    store = open_store(folder)
    manifest = load_manifest(store)
    found = []
    for shard in range(len(manifest)):
        table, data = load_table(store, manifest, shard), store.read(manifest.name(shard))
        for i in range(len(table)):
            spans = table.spans(i)
            found.append({"__key__": table.key(i), **{f: data[s.offset : s.offset + s.size] for f, s in spans.items()}})
    return found


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_dataset_is_shards_sidecars_and_a_manifest(tmp_path: Path) -> None:
    """Every sample comes back, by the index and by tarfile, and nothing else lies in the folder."""
    data = samples(5)
    report = write(tmp_path, data, max_samples=2)
    shards = [f"shard-{i:06d}.tar" for i in range(3)]
    assert names(tmp_path) == sorted([MANIFEST, *shards, *(name + INDEX_SUFFIX for name in shards)])
    wanted = [{**sample, "txt": sample["txt"].encode()} for sample in data]
    assert read_dataset(tmp_path) == wanted
    members = [member for name in shards for member in read_tar(tmp_path / name)]
    assert members == [(f"{s['__key__']}.{field}", s[field]) for s in wanted for field in ("png", "txt")]
    assert (report.shards, report.samples) == (3, 5)
    assert report.bytes == sum((tmp_path / name).stat().st_size for name in shards)
    assert "5 samples in 3 shards" in str(report)


def test_verify_finds_nothing_wrong(tmp_path: Path) -> None:
    """What is written passes the full check, digests, spans, numbers and totals included."""
    with ShardWriter(tmp_path, max_samples=3) as writer:
        for i, sample in enumerate(samples(7)):
            writer.write(sample, {"tokens": i, "score": i / 2})
    report = verify_shards(tmp_path, workers=1, progress=False)
    assert report.findings == ()
    assert report.samples == 7


def test_the_index_is_what_index_shards_would_make(tmp_path: Path) -> None:
    """Spans, keys and columns of the writer and of a later indexing agree."""
    write(tmp_path / "data", samples(5), max_samples=2)
    index_shards(tmp_path / "data", index=tmp_path / "index", workers=1, progress=False)
    ours, theirs = open_store(tmp_path / "data"), open_store(tmp_path / "index")
    mine, again = load_manifest(ours), load_manifest(theirs)
    assert mine.names() == again.names()
    assert mine.digest() == again.digest()
    assert mine.meta["fields"] == again.meta["fields"]
    assert {k: v.tolist() for k, v in mine.totals.items()} == {k: v.tolist() for k, v in again.totals.items()}
    for i in range(len(mine)):
        a, b = load_table(ours, mine, i), load_table(theirs, again, i)
        assert [a.key(j) for j in range(len(a))] == [b.key(j) for j in range(len(b))]
        assert [a.spans(j) for j in range(len(a))] == [b.spans(j) for j in range(len(b))]
        assert {k: v.tolist() for k, v in a.columns.items()} == {k: v.tolist() for k, v in b.columns.items()}


ODD = "Gr\u00fc\u00dfe \u72ac \U0001f600\r\n\ttab\x00nul \u202e\u2028"


def test_other_tools_read_the_shards(tmp_path: Path) -> None:
    """GNU tar, tarfile and the webdataset package find the same keys and bytes, long and odd names included."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    keys = [
        "a",
        "sub/deep er/b",
        "\u72ac/\u00fc",
        "x" * 95,
        "y" * 120,
        "d" * 90 + "/" + "e" * 90,
        "f" * 200 + "/g",
        "100%#{1}",
    ]
    data = [{"__key__": key, "bin": bytes([i]) * (i * 300), "txt": ODD} for i, key in enumerate(keys)]
    write(tmp_path, data)
    shard = tmp_path / "shard-000000.tar"
    wanted = {f"{s['__key__']}.{f}": s[f] if f == "bin" else ODD.encode() for s in data for f in ("bin", "txt")}
    assert dict(read_tar(shard)) == wanted
    run = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", shard],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
    )
    assert run.stdout.decode().splitlines() == list(wanted)
    assert run.stderr == b""
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xf", shard, "-C", out], check=True)
    assert {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()} == wanted
    with open(shard, "rb") as file:
        found = list(group_by_keys(tar_file_expander([{"url": str(shard), "stream": file}])))
    assert [s["__key__"] for s in found] == keys
    assert [(s["bin"], s["txt"]) for s in found] == [(s["bin"], ODD.encode()) for s in data]


def test_the_bytes_of_a_shard_are_pinned(tmp_path: Path) -> None:
    """The same samples give these bytes in every release, on every machine."""
    data = [
        {"__key__": f"d/{i}", "cls": i, "json": {"i": i}, "txt": "\u00fc" * i, "npy": np.arange(i, dtype=">i2")}
        for i in range(4)
    ]
    data.append({"__key__": "n" * 150, "bin": b"x" * 700})
    write(tmp_path, data)
    shard = (tmp_path / "shard-000000.tar").read_bytes()
    assert len(shard) == 19456
    assert hashlib.sha256(shard).hexdigest() == "f7adab92d539c7d84a0a558a74babba9e0fd62f2f674db036422dc5989837002"


def test_numbers_go_into_the_index(tmp_path: Path) -> None:
    """Image sizes are measured, and the user's columns are kept beside them, in tables and totals."""
    with ShardWriter(tmp_path) as writer:
        for i, sample in enumerate(samples(3)):
            writer.write(sample, columns={"tokens": i + 1, "score": i / 4})
    store = open_store(tmp_path)
    manifest = load_manifest(store)
    columns = load_table(store, manifest, 0).columns
    assert {name: column.tolist() for name, column in columns.items()} == {
        "height": [10, 11, 12], "width": [20, 21, 22], "score": [0.0, 0.25, 0.5], "tokens": [1, 2, 3],
    }  # fmt: skip
    assert manifest.totals["tokens"].tolist() == [[6.0, 1.0, 3.0]]
    assert manifest.meta["fields"] == {"png": 3, "txt": 3}


def test_what_a_reader_adds_is_left_out(tmp_path: Path) -> None:
    """A sample that was read from shards can be written again as it is."""
    extra = {"__url__": "x.tar", "__local_path__": "/x.tar", "__repeat__": False}
    write(tmp_path, [{"__key__": "a", "txt": "x", **extra}])
    assert read_dataset(tmp_path) == [{"__key__": "a", "txt": b"x"}]


def test_no_samples_make_a_valid_empty_dataset(tmp_path: Path) -> None:
    """Without a write there is no shard but a manifest, and the report says so."""
    report = write(tmp_path / "new", [])
    assert names(tmp_path / "new") == [MANIFEST]
    assert len(load_manifest(open_store(tmp_path / "new"))) == 0
    assert (report.shards, report.samples) == (0, 0)
    assert "empty" in str(report)


def test_the_temporary_folder_serves_remote_stores(tmp_path: Path) -> None:
    """A store that is no folder gets its shards handed over from the temporary folder, which is empty afterwards."""
    script = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "import os; from shardwriter import ShardWriter\n"
        "import fsspec\n"
        "with ShardWriter('memory://bucket/x', max_samples=1) as w:\n"
        "    for i in range(3): w.write({'__key__': str(i), 'txt': 'x'})\n"
        "found = fsspec.filesystem('memory').find('/bucket/x')\n"
        "print(sorted(n.rpartition('/')[2] for n in found), os.listdir(sys.argv[1]))"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    shards = [f"shard-{i:06d}.tar" for i in range(3)]
    assert run.stdout.strip() == f"{sorted([MANIFEST, *shards, *(n + INDEX_SUFFIX for n in shards)])} []"


# --- limits ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 5000), max_size=12),
    st.integers(1, 12_000),
    st.none() | st.integers(1, 4),
)
def test_limits_hold(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, max_samples: int | None
) -> None:
    """No shard is empty or over a limit, unless it holds one sample that is too large; no sample is split or moved."""
    folder = tmp_path_factory.mktemp("limits")
    data = [{"__key__": str(i), "bin": bytes(size), "txt": ""} for i, size in enumerate(sizes)]
    write(folder, data, max_bytes=max_bytes, max_samples=max_samples)
    found = []
    shards = sorted(folder.glob("*.tar"))
    for n, shard in enumerate(shards):
        members = read_tar(shard)
        keys = sorted({name.split(".")[0] for name, _ in members}, key=int)
        assert 1 <= len(keys) <= (max_samples or len(keys))
        assert len(members) == 2 * len(keys)
        assert shard.stat().st_size <= max_bytes or len(keys) == 1
        if n + 1 < len(shards) and len(keys) != max_samples:
            # The next sample would not have fit: its two headers and its data, padded.
            following = len(data[int(keys[-1]) + 1]["bin"])
            assert shard.stat().st_size + 1024 + following + -following % 512 > max_bytes
        found += keys
    assert found == [str(i) for i in range(len(sizes))]


def test_a_limit_is_met_exactly(tmp_path: Path) -> None:
    """Headers, padding and end mark are counted: two samples of 1024 bytes and the end mark fill 3072 bytes."""
    data = [{"__key__": str(i), "txt": "x"} for i in range(4)]
    assert write(tmp_path / "a", data, max_bytes=3072).shards == 2
    assert write(tmp_path / "b", data, max_bytes=3071).shards == 4


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_samples": 0}, {"prefix": "a/b"}, {"prefix": ".x"}])
def test_senseless_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Limits below one and prefixes that hide or move shards are refused before anything is written."""
    with pytest.raises(ValueError, match=r"must be at least 1|prefix"):
        ShardWriter(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "error"),
    [
        ({"txt": "x"}, NameRefused),
        ({"__key__": 3, "txt": "x"}, NameRefused),
        ({"__key__": "a.b", "txt": "x"}, NameRefused),
        ({"__key__": "a\udc80", "txt": "x"}, NameRefused),
        ({"__key__": "a"}, NameRefused),
        ({"__key__": "a", "__url__": "x"}, NameRefused),
        ({"__key__": "a", "TXT": "x"}, NameRefused),
        ({"__key__": "a", "txt": "x", 3: b""}, NameRefused),
        ({"__key__": "a", "__mine__": b"x", "txt": "x"}, NameRefused),
        ({"__key__": "k" * 5000, "txt": "x"}, NameRefused),
        ({"__key__": "a", "txt": None}, EncodeError),
        ({"__key__": "a", "npy": [1]}, EncodeError),
        ({"__key__": "0", "txt": "twice"}, NameRefused),
    ],
)
def test_a_refused_sample_does_not_stop_the_writer(tmp_path: Path, sample: Sample, error: type[ShardError]) -> None:
    """A bad key, field or value is refused as a whole, and the samples around it are written."""
    with ShardWriter(tmp_path) as writer:
        writer.write({"__key__": "0", "txt": "x"})
        with pytest.raises(error):
            writer.write(sample)
        writer.write({"__key__": "1", "txt": "y"})
    assert read_dataset(tmp_path) == [{"__key__": "0", "txt": b"x"}, {"__key__": "1", "txt": b"y"}]


def test_the_error_names_key_and_field(tmp_path: Path) -> None:
    """A refused value says which sample and field it is, and of what type the value was."""
    with ShardWriter(tmp_path) as writer, pytest.raises(EncodeError, match=r"type set .*key a, field cls"):
        writer.write({"__key__": "a", "cls": {1}})


def test_keys_may_repeat_in_another_shard(tmp_path: Path) -> None:
    """Keys are unique within a shard only."""
    write(tmp_path, [{"__key__": "a", "txt": "x"}, {"__key__": "a", "txt": "y"}], max_samples=1)
    assert [s["txt"] for s in read_dataset(tmp_path)] == [b"x", b"y"]


def test_columns_must_be_the_same_in_each_sample_of_a_shard(tmp_path: Path) -> None:
    """A sample with other columns is refused; in the next shard they may differ."""
    with ShardWriter(tmp_path, max_samples=1) as writer:
        writer.write({"__key__": "a", "txt": "x"}, {"n": 1})
        writer.write({"__key__": "b", "txt": "x"}, {"m": 1})
    with ShardWriter(tmp_path / "one") as writer:
        writer.write({"__key__": "a", "txt": "x"}, {"n": 1})
        with pytest.raises(EncodeError, match=r"columns.*key b"):
            writer.write({"__key__": "b", "txt": "x"}, {"m": 1})


# --- publishing ------------------------------------------------------------------------------------------------------


def test_an_exception_publishes_nothing(tmp_path: Path) -> None:
    """After an error in the block there is no manifest and no temporary file; whole shards and the marker stay."""
    writer = interrupted(tmp_path, samples(5), 5, max_samples=2)
    kept = ["shard-000000.tar", "shard-000001.tar"]
    assert names(tmp_path) == sorted([PARTIAL, *kept, *(name + INDEX_SUFFIX for name in kept)])
    with pytest.raises(ShardError, match="no report"):
        _ = writer.report


def test_the_marker_is_there_while_writing(tmp_path: Path) -> None:
    """While writing there is a marker and no manifest, and no shard under its final name that is not whole."""
    with ShardWriter(tmp_path, max_samples=2) as writer:
        for sample in samples(3):
            writer.write(sample)
        assert sorted(n for n in names(tmp_path) if not n.startswith(".")) == [
            PARTIAL, "shard-000000.tar", "shard-000000.tar" + INDEX_SUFFIX,
        ]  # fmt: skip
        assert json.loads((tmp_path / PARTIAL).read_text())["max_samples"] == 2
    assert PARTIAL not in names(tmp_path)


def test_a_failure_of_the_disk_can_not_be_ignored(tmp_path: Path) -> None:
    """Where storage failed, writing on and leaving the block both raise, and nothing is published."""
    folder = tmp_path / "data"
    writer = ShardWriter(folder, max_samples=1)
    writer.write({"__key__": "a", "txt": "x"})
    (folder / "shard-000000.tar").mkdir()
    with pytest.raises(StoreError):
        writer.write({"__key__": "b", "txt": "x"})
    with pytest.raises(ShardError, match="of no use"):
        writer.write({"__key__": "c", "txt": "x"})
    with pytest.raises(ShardError, match="of no use"), writer:
        pass
    assert names(folder) == [PARTIAL, "shard-000000.tar"]


def test_a_closed_writer_takes_nothing_more(tmp_path: Path) -> None:
    """Closing twice gives the same report; writing after it is an error."""
    writer = ShardWriter(tmp_path)
    writer.write({"__key__": "a", "txt": "x"})
    assert writer.close() is writer.close()
    with pytest.raises(ShardError, match="closed"):
        writer.write({"__key__": "b", "txt": "x"})


def test_giving_up_inside_the_block_is_quiet(tmp_path: Path) -> None:
    """`abort` ends the block without a manifest and without an error."""
    with ShardWriter(tmp_path) as writer:
        writer.write({"__key__": "a", "txt": "x"})
        writer.abort()
    assert names(tmp_path) == [PARTIAL]


# --- destinations and resuming ---------------------------------------------------------------------------------------


def test_places_that_hold_something_are_refused(tmp_path: Path) -> None:
    """A finished dataset, an unfinished one, and stray shards and sidecars are each refused by name."""
    write(tmp_path / "done", samples(1))
    interrupted(tmp_path / "open", samples(1), 1)
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "shard-000007.tar").write_bytes(b"")
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar" / ("shard-000007.tar" + INDEX_SUFFIX)).write_bytes(b"")
    for name, match in (("done", "finished dataset"), ("open", "--resume"), ("stray", "000007"), ("sidecar", "ssx")):
        before = contents(tmp_path / name)
        with pytest.raises(DestinationError, match=match):
            ShardWriter(tmp_path / name)
        assert contents(tmp_path / name) == before
    with pytest.raises(DestinationError, match="not known"):
        ShardWriter(tmp_path / "stray", resume=True)


def test_other_files_are_no_hindrance(tmp_path: Path) -> None:
    """A folder with a README and foreign files can be written to."""
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "shard-list.txt").write_text("x")
    write(tmp_path, samples(1))
    assert len(read_dataset(tmp_path)) == 1


@pytest.mark.parametrize("after", range(8))
def test_resuming_gives_the_same_bytes(tmp_path: Path, after: int) -> None:
    """Interrupted after any sample and resumed, the folder is equal to one written in one go; whole shards are kept."""
    data = samples(7)
    write(tmp_path / "whole", data, max_samples=2)
    interrupted(tmp_path / "part", data, after, max_samples=2)
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "part").glob("*.tar")}
    write(tmp_path / "part", data, max_samples=2, resume=True)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "part").glob("*.tar") if p.name in kept} == kept


def test_a_shard_without_its_sidecar_is_written_again(tmp_path: Path) -> None:
    """A shard whose sidecar is missing, damaged or of another size is not trusted."""
    data = samples(6)
    write(tmp_path / "whole", data, max_samples=2)
    interrupted(tmp_path / "part", data, 6, max_samples=2)
    (tmp_path / "part" / ("shard-000000.tar" + INDEX_SUFFIX)).unlink()
    with open(tmp_path / "part" / "shard-000001.tar", "ab") as file:
        file.write(b"x")
    write(tmp_path / "part", data, max_samples=2, resume=True)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_resuming_a_finished_dataset_changes_nothing(tmp_path: Path) -> None:
    """With everything there and equal, resuming ends well and touches no file."""
    data = samples(5)
    write(tmp_path, data, max_samples=2)
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.iterdir()}
    report = write(tmp_path, data, max_samples=2, resume=True)
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.iterdir()} == before
    assert report.samples == 5


def test_a_marker_beside_a_manifest_is_cleared(tmp_path: Path) -> None:
    """A kill between the manifest and the removal of the marker is healed by resuming."""
    data = samples(3)
    interrupted(tmp_path / "part", data, 0)
    marker = (tmp_path / "part" / PARTIAL).read_bytes()
    write(tmp_path / "done", data)
    (tmp_path / "done" / PARTIAL).write_bytes(marker)
    write(tmp_path / "done", data, resume=True)
    assert PARTIAL not in names(tmp_path / "done")


def changed(data: list[Sample], i: int, **values: Any) -> list[Sample]:
    return [{**sample, **values} if n == i else sample for n, sample in enumerate(data)]


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda d: changed(d, 1, __key__="other"),
        lambda d: changed(d, 1, txt="another size"),
        lambda d: changed(d, 1, cls=3),
        lambda d: d[1:],
        lambda d: d[:1],
    ],
    ids=["key", "size", "field", "first missing", "fewer"],
)
def test_another_dataset_is_never_mixed_in(tmp_path: Path, finished: bool, change: Any) -> None:
    """Resuming with other samples is refused, unfinished or finished, and no manifest is written."""
    data = samples(4)
    if finished:
        write(tmp_path, data, max_samples=2)
    else:
        interrupted(tmp_path, data, 4, max_samples=2)
    before = {n: c for n, c in contents(tmp_path).items() if n.startswith("shard")}
    with pytest.raises(DestinationError, match="choose another place"):
        write(tmp_path, change(data), max_samples=2, resume=True)
    assert before.items() <= contents(tmp_path).items()
    assert (MANIFEST in names(tmp_path)) == finished


def test_more_samples_than_a_finished_dataset_has_are_refused(tmp_path: Path) -> None:
    """A finished dataset does not grow by resuming."""
    write(tmp_path, samples(4), max_samples=2)
    before = contents(tmp_path)
    with pytest.raises(DestinationError):
        write(tmp_path, samples(5), max_samples=2, resume=True)
    assert contents(tmp_path) == before


def test_other_columns_are_another_dataset(tmp_path: Path) -> None:
    """The user's numbers are compared too."""
    with ShardWriter(tmp_path) as writer:
        writer.write(samples(1)[0], {"n": 1})
    for columns in ({"n": 2}, {"m": 1}):
        with pytest.raises(DestinationError, match="another value"), ShardWriter(tmp_path, resume=True) as writer:
            writer.write(samples(1)[0], columns)


@pytest.mark.parametrize("options", [{"max_samples": 3}, {"max_samples": None}, {"max_samples": 2, "max_bytes": 9999}])
def test_other_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Resuming with other limits names both."""
    interrupted(tmp_path, samples(4), 3, max_samples=2)
    with pytest.raises(DestinationError, match=r"max_\w+ \w+ then and \w+ now"):
        ShardWriter(tmp_path, resume=True, **options)


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    """A marker that can't be read is an error, not an invitation."""
    (tmp_path / PARTIAL).write_bytes(b"{")
    with pytest.raises(DestinationError, match="can't be read"):
        ShardWriter(tmp_path, resume=True)


# --- killed ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from shardwriter import ShardWriter
print("started", flush=True)
with ShardWriter(sys.argv[1], max_bytes=200_000, resume=True) as writer:
    for i in range(1500):
        writer.write({"__key__": f"{i:05d}", "bin": bytes([i % 256]) * 9000, "txt": str(i)}, {"n": i})
        if i % 50 == 49:
            print(i, flush=True)
"""


def run_and_kill(folder: Path, delay: float) -> bool:
    """Start the writer and kill it some time after its first word; whether it was killed before its end."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


def check_unfinished(folder: Path) -> Iterator[str]:
    """Names of the shards under their final names; each must be whole."""
    assert MANIFEST not in names(folder)
    assert PARTIAL in names(folder)
    for shard in sorted(folder.glob("*.tar")):
        assert read_tar(shard)
        assert shard.read_bytes()[-1024:] == bytes(1024)
        yield shard.name


def test_a_killed_writer_leaves_whole_files_and_can_go_on(tmp_path: Path) -> None:
    """Killed at random moments, again and again, no partial file has a final name, and the end result is equal."""
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    rng = random.Random(7)
    killed = 0
    for _ in range(8):
        if not run_and_kill(tmp_path / "part", rng.uniform(0, 0.25)):
            break
        killed += 1
        if (tmp_path / "part" / PARTIAL).exists() and not (tmp_path / "part" / MANIFEST).exists():
            list(check_unfinished(tmp_path / "part"))
    assert killed
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "part")], check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


# --- round trips -----------------------------------------------------------------------------------------------------

KEYS = st.text("abcXYZ019_- \u00fc\u72ac", min_size=1, max_size=120)
VALUES: Mapping[str, st.SearchStrategy[bytes]] = {
    name: st.binary(max_size=1500) for name in ("bin", "left.dat", "right.dat", "seg.png")
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(KEYS, st.dictionaries(st.sampled_from(sorted(VALUES)), st.binary(max_size=1500), min_size=1)),
        max_size=6,
        unique_by=lambda pair: pair[0],
    ),
    st.integers(1, 6000),
)
def test_any_samples_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: list[tuple[str, dict[str, bytes]]], max_bytes: int
) -> None:
    """Samples with any keys and any mix of fields come back in order by the index, and the check finds nothing."""
    folder = tmp_path_factory.mktemp("round")
    write(folder, [{"__key__": key, **fields} for key, fields in data], max_bytes=max_bytes)
    assert read_dataset(folder) == [{"__key__": key, **fields} for key, fields in data]
