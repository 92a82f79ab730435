"""convert: the same bytes by any number of processes, whole or not at all."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
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
    SourceError,
    convert,
    sources,
    verify_shards,
)
from shardwriter.format import MANIFEST, PARTIAL
from shardwriter.open import load_manifest
from shardwriter.shard import pack_sample, sample_size
from shardwriter.sources import FileRef, Record
from shardwriter.store import open_store

Quiet = {"progress": False}


def photos(root: Path, n: int = 23) -> Path:
    """A folder of small pictures with captions of various lengths."""
    for i in range(n):
        path = root / f"{i % 3}" / f"img_{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        Image.new("RGB", (16 + i, 9), (i, i, i)).save(file, "JPEG")
        path.write_bytes(file.getvalue())
        path.with_suffix(".txt").write_text("caption " * (i * 37 % 200))
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def value(item: FileRef | bytes) -> bytes:
    return Path(item.path).read_bytes() if isinstance(item, FileRef) else item


def quick(source: Any, folder: Path, **options: Any) -> Any:
    return convert(source, folder, **{"workers": 1, "max_samples": 4, "progress": False, **options})


# --- the same bytes --------------------------------------------------------------------------------------------------


def test_any_number_of_workers_writes_the_same_bytes(tmp_path: Path) -> None:
    """1, 2 and 4 processes and a ShardWriter agree byte for byte, in shards, sidecars and manifest."""
    source = sources.folder(photos(tmp_path / "in"))
    for workers in (1, 2, 4):
        report = convert(source, tmp_path / f"out{workers}", workers=workers, max_bytes=12_000, progress=False)
        assert report.samples == 23
        assert report.shards > 4
    with ShardWriter(tmp_path / "writer", max_bytes=12_000) as writer:
        for record in source:
            writer.write({"__key__": record.key, **{f: value(v) for f, v in record.fields.items()}})
    assert writer.report.shards == report.shards
    one = contents(tmp_path / "out1")
    for other in ("out2", "out4", "writer"):
        assert contents(tmp_path / other) == one
    assert verify_shards(tmp_path / "out4", workers=1, progress=False).findings == ()


def test_columns_and_values_of_a_source_of_ones_own(tmp_path: Path) -> None:
    """Any iterable of records will do; values that are no bytes are encoded, and columns go into the index."""
    records = [Record(f"{i}", {"cls": i, "npy": np.arange(i)}, {"n": i + 1}) for i in range(5)]  # type: ignore[dict-item]
    assert quick(records, tmp_path / "a", max_samples=2).shards == 3
    with ShardWriter(tmp_path / "b", max_samples=2) as writer:
        for i in range(5):
            writer.write({"__key__": f"{i}", "cls": i, "npy": np.arange(i)}, {"n": i + 1})
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert load_manifest(open_store(tmp_path / "a")).totals["n"][:, 0].tolist() == [3, 7, 5]


@settings(max_examples=100, deadline=None)
@given(
    st.text("ab/\u00e9\u72ac", min_size=1, max_size=150).filter(lambda k: "//" not in k and k.strip("/") == k),
    st.dictionaries(st.sampled_from(["a", "txt", "seg.png"]), st.binary(max_size=600), min_size=1),
)
def test_the_size_of_a_sample_is_known_before_it_is_read(key: str, fields: dict[str, bytes]) -> None:
    """What sizes alone say is what the packed sample has, long and wide names included."""
    packed = pack_sample(key, fields)
    assert sample_size(key, {field: len(data) for field, data in fields.items()}) == packed.size
    assert packed.size == sum(map(len, packed.headers)) + sum(-(-len(d) // 512) * 512 for d in fields.values())


def test_what_was_passed_over_is_reported(tmp_path: Path) -> None:
    """The report counts the files that are in no sample, by reason."""
    photos(tmp_path / "in", 3)
    (tmp_path / "in" / ".hidden").write_text("x")
    (tmp_path / "in" / "README").write_text("x")
    report = quick(sources.folder(tmp_path / "in"), tmp_path / "out")
    assert report.skipped == {"hidden": 1, "without an extension": 1}
    assert "passed over: 1 hidden, 1 without an extension" in str(report)


def test_an_empty_source_makes_an_empty_dataset(tmp_path: Path) -> None:
    """No samples, no shards, a manifest, and a report that says so."""
    (tmp_path / "in").mkdir()
    report = convert(sources.folder(tmp_path / "in"), tmp_path / "out", workers=2, progress=False)
    assert (report.shards, report.samples) == (0, 0)
    assert "empty" in str(report)
    assert names(tmp_path / "out") == [MANIFEST]


def test_a_plain_script_can_use_processes(tmp_path: Path) -> None:
    """A script without `if __name__ == "__main__"` runs once, and its prints and the workers' don't mix."""
    photos(tmp_path / "in", 9)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; print('once')\n"
        "from shardwriter import convert, sources\n"
        "print(convert(sources.folder(sys.argv[1]), sys.argv[2], workers=2, max_samples=2).shards)\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "in"), str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, env=with_package(), check=True)
    assert run.stdout == "once\n5\n"
    assert run.stderr == ""


def with_package() -> dict[str, str]:
    """An environment in which the package is found from anywhere."""
    import shardwriter

    assert shardwriter.__file__ is not None
    return {**os.environ, "PYTHONPATH": str(Path(shardwriter.__file__).parents[1])}


def test_s3_holds_what_a_folder_would(tmp_path: Path, s3: Any) -> None:
    """Written to a real S3 server by two processes, all objects are equal to the files of a local run."""
    source = sources.folder(photos(tmp_path / "in", 9))
    quick(source, tmp_path / "out")
    url = s3.bucket("convert") + "/deep/data"
    convert(source, url, workers=2, max_samples=4, progress=False, storage_options=s3.options)
    store = open_store(url, s3.options)
    assert {info.name: store.read(info.name) for info in store.list()} == contents(tmp_path / "out")
    with pytest.raises(DestinationError, match="finished dataset"):
        convert(source, url, workers=1, progress=False, storage_options=s3.options)
    again = convert(source, url, workers=1, max_samples=4, resume=True, progress=False, storage_options=s3.options)
    assert again.shards == 3


# --- sources that fail -----------------------------------------------------------------------------------------------


def failing(records: Iterator[Record], at: int, act: Callable[[], None]) -> Iterator[Record]:
    """The records, with something happening before record `at` is given."""
    for i, record in enumerate(records):
        if i == at:
            act()
        yield record


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path, workers: int) -> None:
    """A file that grows or goes after its size was taken is an error with its path, and no manifest is written."""
    root = photos(tmp_path / "in", 9)
    source = sources.folder(root)
    victim = root / "0" / "img_3.txt"
    for n, (act, match) in enumerate(
        [
            (lambda: victim.write_text("longer than before"), r"img_3\.txt had \d+ bytes"),
            (victim.unlink, r"img_3\.txt can't be read"),
        ]
    ):
        out = tmp_path / f"out{n}"
        with pytest.raises(SourceError, match=match):
            # The first shard, with the victim, is cut when the fifth record has come.
            convert(failing(iter(source), 4, act), out, workers=workers, max_samples=4, progress=False)  # type: ignore[arg-type]
        assert MANIFEST not in names(out)
        assert "shard-000000.tar" not in names(out)
        assert not [name for name in names(out) if name.startswith(".")]


def test_a_missing_file_names_table_and_line(tmp_path: Path) -> None:
    """A row whose file is not there is an error with the table's line; nothing is published."""
    photos(tmp_path, 2)
    table = tmp_path / "list.csv"
    table.write_text("filepath,caption\n0/img_0.jpg,zero\n9/img_9.jpg,nine\n")
    source = sources.table(table, columns={"filepath": "jpg", "caption": "txt"})
    with pytest.raises(SourceError, match=r"list\.csv line 3: file .*9/img_9\.jpg can't be read: No such file"):
        quick(source, tmp_path / "out")
    assert names(tmp_path / "out") == [PARTIAL]


@pytest.mark.parametrize(
    ("record", "error", "match"),
    [
        (Record("v1.5", {"txt": b""}, where="x line 3"), NameRefused, r"x line 3: key 'v1\.5'"),
        (Record("a", {"TXT": b""}), NameRefused, "'TXT'"),
        (Record("a", {}), SourceError, "no field .*key a"),
        (Record("0", {"txt": b""}, where="x line 3"), NameRefused, r"line 3: the key comes twice .*key 0"),
        (Record("a", {"npy": [1]}), EncodeError, "key a, field npy"),  # type: ignore[dict-item]
        (Record("a", {"txt": b""}, {"n": 1}), EncodeError, "columns .*key a"),
        (Record("a", {"txt": b""}, {"n": float("nan")}), EncodeError, "'n' can't hold nan.*key a"),
    ],
)  # fmt: skip
def test_a_bad_record_is_located(tmp_path: Path, record: Record, error: type[ShardError], match: str) -> None:
    """Names, values and columns that can't be stored are errors with key and place, and nothing is published."""
    with pytest.raises(error, match=match):
        quick([Record("0", {"txt": b""}), record], tmp_path)
    assert names(tmp_path) == [PARTIAL]


@pytest.mark.parametrize("workers", [0, -1])
def test_senseless_numbers_of_workers_are_refused(tmp_path: Path, workers: int) -> None:
    """There is at least one worker."""
    with pytest.raises(ValueError, match="workers"):
        convert([], tmp_path / "x", workers=workers)
    assert not (tmp_path / "x").exists()


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    """The death of a worker process ends the conversion with its number and signal, and leaves no manifest."""
    source = sources.folder(photos(tmp_path / "in", 60))
    others = {child.pid for child in psutil.Process().children()}  # the S3 server of other tests
    killed: list[int] = []

    def kill() -> None:
        for child in psutil.Process().children():
            if child.pid not in others:
                killed.append(child.pid)
                child.kill()

    with pytest.raises(ShardError, match=r"worker process (\d+) was killed by signal 9.*memory") as caught:
        convert(failing(iter(source), 40, kill), tmp_path / "out", workers=2, max_samples=1, progress=False)  # type: ignore[arg-type]
    assert any(str(pid) in str(caught.value) for pid in killed)
    assert not [child for child in psutil.Process().children() if child.pid in killed]
    assert MANIFEST not in names(tmp_path / "out")


# --- destinations and resuming ---------------------------------------------------------------------------------------


def test_a_finished_dataset_is_refused_or_confirmed(tmp_path: Path) -> None:
    """A second run is refused; with resume it reads nothing, changes nothing and ends well."""
    root = photos(tmp_path / "in", 9)
    source = sources.folder(root)
    quick(source, tmp_path / "out")
    with pytest.raises(DestinationError, match="finished dataset"):
        quick(source, tmp_path / "out")
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in (tmp_path / "out").iterdir()}
    assert quick(source, tmp_path / "out", resume=True).samples == 9
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in (tmp_path / "out").iterdir()} == before


def interrupted(source: Any, folder: Path, at: int) -> None:
    """A run that an error ends when record `at` is due."""

    class Described:
        """A source that says of itself what the real one says."""

        def __repr__(self) -> str:
            return repr(source)

        def records(self, skipped: Any) -> Iterator[Record]:
            return failing(source.records(skipped), at, lambda: (_ for _ in ()).throw(SourceError("stop")))

        def __iter__(self) -> Iterator[Record]:
            raise AssertionError

    with pytest.raises(SourceError, match="stop"):
        quick(Described(), folder)


@pytest.mark.parametrize("workers", [1, 3])
def test_resuming_keeps_whole_shards(tmp_path: Path, workers: int) -> None:
    """After an error the shards that were whole are kept, the others written, and the end result is equal."""
    source = sources.folder(photos(tmp_path / "in"))
    quick(source, tmp_path / "whole")
    interrupted(source, tmp_path / "part", 14)
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "part").glob("*.tar")}
    assert len(kept) == 3
    (tmp_path / "part" / "shard-000001.tar.ssx").unlink()
    quick(source, tmp_path / "part", resume=True, workers=workers)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    now = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "part").glob("*.tar")}
    assert [name for name in kept if now[name] != kept[name]] == ["shard-000001.tar"]


def test_another_source_or_other_options_are_refused(tmp_path: Path) -> None:
    """An unfinished dataset goes on only from the same source with the same limits; both are named."""
    source = sources.folder(photos(tmp_path / "in"))
    interrupted(source, tmp_path / "out", 9)
    before = contents(tmp_path / "out")
    other = sources.folder(photos(tmp_path / "other"))
    with pytest.raises(DestinationError, match=r"source .*/in'.* then and .*/other'.* now"):
        quick(other, tmp_path / "out", resume=True)
    with pytest.raises(DestinationError, match="max_samples 4 then and 5 now"):
        quick(source, tmp_path / "out", resume=True, max_samples=5)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("change", ["longer", "more", "fewer", "renamed"])
@pytest.mark.parametrize("finished", [True, False])
def test_a_source_that_changed_is_never_mixed_in(tmp_path: Path, change: str, finished: bool) -> None:
    """Where files changed between the runs, the shards that are there don't fit, and that is an error."""
    root = photos(tmp_path / "in")
    source = sources.folder(root)
    if finished:
        quick(source, tmp_path / "out")
    else:
        interrupted(source, tmp_path / "out", 22)
    if change == "longer":
        (root / "0" / "img_0.txt").write_text("longer")
    elif change == "more":
        (root / "0" / "img_00.txt").write_text("new")
    elif change == "fewer":
        (root / "0" / "img_0.txt").unlink()
    else:
        (root / "0" / "img_0.txt").rename(root / "0" / "img_0.text")
    with pytest.raises(DestinationError, match=r"shard-000000\.tar is there already and holds other samples"):
        quick(source, tmp_path / "out", resume=True)
    assert (MANIFEST in names(tmp_path / "out")) == finished


def test_a_source_that_shrank_by_whole_shards_is_refused(tmp_path: Path) -> None:
    """Shards that are there beyond the end of the source are named, and no manifest leaves them out."""
    root = photos(tmp_path / "in")
    source = sources.folder(root)
    interrupted(source, tmp_path / "out", 22)
    for path in root.rglob("img_*"):
        if path.parent.name != "0":
            path.unlink()
    with pytest.raises(DestinationError, match=r"is there already|no part of the"):
        quick(source, tmp_path / "out", resume=True)
    assert MANIFEST not in names(tmp_path / "out")


PROGRAM = """
import sys
from shardwriter import convert, sources
print("started", flush=True)
convert(sources.folder(sys.argv[1]), sys.argv[2], workers=2, max_samples=4, resume=True, progress=False)
"""


def shards(folder: Path) -> int:
    """How many shards a folder has, whole ones; 0 where there is none yet."""
    return len(list(folder.glob("*.tar")))


def test_a_killed_conversion_goes_on(tmp_path: Path) -> None:
    """Killed at random moments with its workers, it leaves no manifest and no partial shard, and the end is equal."""
    root = tmp_path / "in"
    root.mkdir()
    for i in range(600):
        (root / f"{i:04d}.bin").write_bytes(bytes([i % 256]) * (20_000 + i))
    quick(sources.folder(root), tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / "part")]
    rng = random.Random(3)
    killed = 0
    for _ in range(6):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=with_package()) as process:
            assert process.stdout is not None
            process.stdout.readline()
            # So many of 150 shards more, however fast they come; the first time maybe none.
            wanted = shards(tmp_path / "part") + (rng.randrange(2) if killed == 0 else rng.randrange(1, 20))
            while process.poll() is None and shards(tmp_path / "part") < wanted:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.005))
            # Workers end by themselves when the process that they serve is gone.
            workers = psutil.Process(process.pid).children() if process.poll() is None else []
            process.send_signal(signal.SIGKILL)
            ended = process.wait()
        psutil.wait_procs(workers, timeout=20)
        assert not [worker for worker in workers if worker.is_running()]
        if ended != -signal.SIGKILL:
            break
        killed += 1
        for name, data in contents(tmp_path / "part").items() if (tmp_path / "part").exists() else ():
            if name != PARTIAL and not name.startswith("."):
                assert data == whole[name]
    assert killed >= 2
    subprocess.run(command, check=True, env=with_package(), stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "part") == whole
