"""Tar headers: built, parsed, and refused where they are damaged."""

from __future__ import annotations

import bz2
import hashlib
import io
import lzma
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import tars
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import FormatError, HeaderError, TrailingData, TruncatedShard, UnsupportedShard
from shardwriter.format import Member
from shardwriter.tar import BLOCK, END, header_blocks, padding, walk

NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1, max_size=60).filter(
        lambda part: part not in (".", "..")
    ),
    min_size=1,
    max_size=5,
).map("/".join)
FILES = st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=6)


def contents(tar: bytes) -> list[tuple[str, bytes]]:
    return [(m.name, tar[m.offset : m.offset + m.size]) for m in walk(tar)]


def until_damage(tar: bytes) -> tuple[list[str], FormatError | None]:
    """Names of the members that come, and the error that ends them."""
    names = []
    try:
        for found in walk(tar):
            names.append(found.name)
            assert 0 <= found.start < found.offset <= found.offset + found.size <= len(tar)
    except FormatError as error:
        return names, error
    return names, None


def ours(files: list[tuple[str, bytes]]) -> bytes:
    return b"".join(header_blocks(name, len(data)) + data + padding(len(data)) for name, data in files) + END


@pytest.mark.parametrize(
    ("name", "size", "blocks", "digest"),
    [
        ("000017.jpg", 5, 1, "d06bec34"),
        ("d" * 120 + "/" + "n" * 90 + ".jpg", 70_000, 1, "8d148848"),
        ("é" * 200 + ".jpg", 0, 3, "79f9519b"),
        ("big.bin", 9 << 30, 1, "757f91f7"),
    ],
)
def test_header_bytes_are_pinned(name: str, size: int, blocks: int, digest: str) -> None:
    """The bytes of a header depend on name and size alone and never change."""
    header = header_blocks(name, size)
    assert len(header) == blocks * BLOCK
    assert hashlib.sha256(header).hexdigest()[:8] == digest


def test_plain_header_is_as_specified() -> None:
    """Every part of a plain header stands where FORMAT.md puts it."""
    block = header_blocks("000017.jpg", 5)
    assert block[:100] == b"000017.jpg".ljust(100, b"\0")
    assert block[100:124] == b"0000644\x000000000\x000000000\x00"
    assert block[124:136] == b"00000000005\0"
    assert block[136:148] == b"00000000000\0"
    assert block[156:157] == b"0"
    assert block[257:265] == b"ustar\x0000"
    assert block[265:] == bytes(64) + b"0000000\x000000000\x00" + bytes(155 + 12)
    assert tars.checksummed(block) == block


@given(FILES)
def test_python_reads_what_we_write(files: list[tuple[str, bytes]]) -> None:
    """Python's tarfile gets every name and byte back."""
    with tarfile.open(fileobj=io.BytesIO(ours(files)), errorlevel=2) as file:
        found = [(info.name, file.extractfile(info).read()) for info in file]  # type: ignore[union-attr]
    assert found == [(name.rstrip("/"), data) for name, data in files]


@given(FILES, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), st.sampled_from([0, 1700000000.25]))
def test_we_read_what_python_writes(files: list[tuple[str, bytes]], format: int, mtime: float) -> None:  # noqa: A002
    """PAX and GNU archives read back whole, also with a float time as a PAX record on every member."""
    mtime = mtime if format == tarfile.PAX_FORMAT else 0
    assert contents(tars.tarfile_tar(files, format, mtime=mtime)) == files


@given(FILES)
def test_we_read_what_we_write(files: list[tuple[str, bytes]]) -> None:
    """Walking our own tars gives names and bytes, and spans that touch."""
    tar = ours(files)
    assert contents(tar) == files
    members = list(walk(tar))
    ends = [0] + [m.offset + m.size + -m.size % BLOCK for m in members]
    assert [m.start for m in members] == ends[:-1]


@pytest.mark.parametrize("format", ["gnu", "oldgnu", "ustar", "pax", "v7"])
def test_gnu_tar_writes_and_reads(tmp_path: Path, format: str) -> None:  # noqa: A002
    """GNU tar's own formats read the same, and GNU tar extracts what we write."""
    names = ["a.jpg", "d/b.seg.png", "d/empty.txt", "n" * 95 + ".txt"]
    if format != "v7":
        names += ["p" * 90 + "/" + "q" * 90 + ".txt"]
    if format in ("gnu", "pax"):
        names += ["ü" * 70 + "/" + "y" * 200 + ".txt"]
    files = {name: name.encode() * 50 if "empty" not in name else b"" for name in names}
    for name, data in files.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    out = tmp_path / "x.tar"
    subprocess.run(["tar", f"--format={format}", "-cf", out, "-C", tmp_path / "in", *names], check=True)
    assert dict(contents(out.read_bytes())) == files
    out.write_bytes(ours(list(files.items())))
    (tmp_path / "out").mkdir()
    done = subprocess.run(["tar", "-xvf", out, "-C", tmp_path / "out"], check=True, capture_output=True)
    assert done.stderr == b""
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names} == files


def test_names_of_all_kinds() -> None:
    """Prefixes count only in POSIX headers; extensions override names; bytes that are not UTF-8 are escaped."""
    times = bytes(131)[:11] + b"14000000000\0"
    cases = {
        "p/q.txt": tars.member("q.txt", b"1", prefix=b"p"),
        "gnu.txt": tars.member("gnu.txt", b"1", magic=b"ustar  \0", prefix=b"14000000000\0" + times),
        "long/" + "x" * 300: tars.member("././@LongLink", b"long/" + b"x" * 300 + b"\0", b"L")
        + tars.member("cut", b"1"),
        "ä.txt": tars.pax(tars.record("path", "ä.txt")) + tars.member("other", b"1"),
        "\\xff.txt": tars.member(b"\xff.txt", b"1"),
        "kept.txt": tars.pax(tars.record("mtime", "1.5") + tars.record("comment", "a\nb=c"))
        + tars.member("kept.txt", b"1"),
        "old.txt": tars.member("old.txt", b"1", b"\0", magic=bytes(8)),
        "contiguous.txt": tars.member("contiguous.txt", b"1", b"7"),
        "long-link.txt": tars.member("././@LongLink", b"t" * 150, b"K") + tars.member("long-link.txt", b"1"),
        "global.txt": tars.pax(tars.record("comment", "abc"), b"g") + tars.member("global.txt", b"1"),
    }
    for name, raw in cases.items():
        assert contents(raw + END) == [(name, b"1")]
        assert next(walk(raw + END)).start == 0


def test_sizes_of_all_kinds() -> None:
    """Octal, blank-padded, base-256 and PAX sizes are the same size; PAX wins over the header."""
    fields = [b"00000000003\0", b"         3 \0", b"3\0", tars.base256(3)]
    tar = b"".join(tars.header(f"{i}.txt", field) + tars.padded(b"abc") for i, field in enumerate(fields))
    tar += tars.pax(tars.record("size", "3")) + tars.header("4.txt", 0) + tars.padded(b"abc")
    assert contents(tar + END) == [(f"{i}.txt", b"abc") for i in range(5)]


def test_sizes_beyond_octal_are_written() -> None:
    """A member of 8 GiB or more gets a base-256 size that tarfile understands."""
    header = header_blocks("big.bin", 9 << 30)
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 9 << 30


def test_signed_checksums_hold() -> None:
    """Old tars summed signed bytes; such a header with a name above ASCII is read."""
    block = bytearray(tars.header("é.txt", 1))
    blank = block[:148] + b" " * 8 + block[156:]
    block[148:156] = b"%06o\0 " % sum(b - 256 if b > 127 else b for b in blank)
    assert contents(bytes(block) + tars.padded(b"x") + END) == [("é.txt", b"x")]


def test_checksums_of_large_sums_hold() -> None:
    """A header full of high bytes, whose sum is beyond 16 bits, is read."""
    raw = tars.member(b"\xff" * 100, b"1", prefix=b"\xff" * 155, link=b"\xff" * 100)
    assert contents(raw + END) == [("\\xff" * 155 + "/" + "\\xff" * 100, b"1")]


def test_what_is_no_file_is_passed_over_and_told(tmp_path: Path) -> None:
    """Folders are passed over; links, FIFOs and the like are told by name, kind and offset, and never opened."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "0.jpg").write_bytes(b"zero")
    (folder / "1.jpg").symlink_to("0.jpg")
    os.link(folder / "0.jpg", folder / "2.jpg")
    os.mkfifo(folder / "3.jpg")
    out = tmp_path / "x.tar"
    names = ["d", *(f"d/{i}.jpg" for i in range(4))]
    subprocess.run(["tar", "-cf", out, "--no-recursion", "-C", tmp_path, *names], check=True)
    told: list[tuple[str, str, int]] = []
    members = list(walk(out.read_bytes(), skipped=lambda *what: told.append(what)))
    assert members == [Member("d/0.jpg", 512, 1024, 4)]
    assert told == [
        ("d/1.jpg", "symbolic link", 1536),
        ("d/2.jpg", "hard link", 2048),
        ("d/3.jpg", "FIFO", 2560),
    ]


def test_links_have_no_data_whatever_they_claim() -> None:
    """A size in the header of a link or folder does not move the next member."""
    links = b"".join(tars.header(f"l{kind}", 5000, b"%d" % kind, link=b"a.txt") for kind in range(1, 7))
    assert contents(links + tars.member("a.txt", b"1") + END) == [("a.txt", b"1")]


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_sparse_files_are_refused(tmp_path: Path, format: str) -> None:  # noqa: A002
    """A sparse member is an error with its offset, not a file of its pieces."""
    (tmp_path / "a.txt").write_bytes(b"first")
    with (tmp_path / "b.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    out = tmp_path / "x.tar"
    subprocess.run(["tar", f"--format={format}", "-S", "-cf", out, "-C", tmp_path, "a.txt", "b.bin"], check=True)
    found, error = until_damage(out.read_bytes())
    assert isinstance(error, UnsupportedShard)
    at = 2048 if out.read_bytes()[156:157] == b"x" else 1024  # GNU tar may write an extension for the times
    assert (found, error.rule, error.offset) == (["a.txt"], "T5", at)


GOOD = tars.member("a.txt", b"hello")
ZIP = io.BytesIO()
with zipfile.ZipFile(ZIP, "w") as zip_file:
    zip_file.writestr("a.txt", "hello")
HUGE = tars.header("a.txt", tars.base256(1 << 80))

DAMAGE = {
    "nothing": (b"", TruncatedShard, "T1", 0),
    "half a header": (bytes([65]) * 100, TruncatedShard, "T2", 0),
    "no end mark": (GOOD, TruncatedShard, "T2", 1024),
    "cut in a header": (GOOD + GOOD[:300], TruncatedShard, "T2", 1024),
    "cut in data": (GOOD + tars.member("b.txt", bytes(2000))[:1500], TruncatedShard, "T2", 1024),
    "cut in the long name": (GOOD + tars.pax(bytes(2000))[:1500], TruncatedShard, "T2", 1024),
    "cut after the long name": (GOOD + tars.pax(tars.record("path", "b")), TruncatedShard, "T2", 2048),
    "end after the long name": (GOOD + tars.pax(tars.record("mtime", "1")) + END, TruncatedShard, "T2", 1024),
    "claims more than there is": (GOOD + tars.header("b.txt", tars.base256(1 << 40)) + END, TruncatedShard, "T2", 1024),
    "no tar": (b"<html>" + b"x" * 1000, HeaderError, "T3", 0),
    "checksum": (GOOD + b"B" + GOOD[1:] + END, HeaderError, "T3", 1024),
    "checksum is no number": (GOOD + GOOD[:148] + b"wxyz____" + GOOD[156:] + END, HeaderError, "T3", 1024),
    "size is no number": (GOOD + tars.header("b.txt", b"12x4") + END, HeaderError, "T4", 1024),
    "size has a digit 9": (tars.header("b.txt", b"00000000009\0") + END, HeaderError, "T4", 0),
    "absurd size": (GOOD + HUGE + END, HeaderError, "T4", 1024),
    "negative size": (tars.header("a.txt", b"\xff" * 12) + END, HeaderError, "T4", 0),
    "GNU sparse": (GOOD + tars.member("b", b"x", b"S") + END, UnsupportedShard, "T5", 1024),
    "GNU continued": (GOOD + tars.member("b", b"x", b"M") + END, UnsupportedShard, "T5", 1024),
    "PAX sparse": (
        tars.pax(tars.record("GNU.sparse.major", "1")) + tars.member("b", b"x") + END, UnsupportedShard, "T5", 0,
    ),
    "long extension": (GOOD + tars.header("x", (1 << 20) + 1, b"x") + END, HeaderError, "T6", 1024),
    "PAX without length": (GOOD + tars.pax(b"path=x\n") + GOOD + END, HeaderError, "T6", 1024),
    "PAX of length 0": (GOOD + tars.pax(b"0 path=x\n") + GOOD + END, HeaderError, "T6", 1024),
    "PAX too long": (GOOD + tars.pax(b"99 path=x\n") + GOOD + END, HeaderError, "T6", 1024),
    "PAX without a line end": (GOOD + tars.pax(b"9 path=xy") + GOOD + END, HeaderError, "T6", 1024),
    "PAX size no number": (GOOD + tars.pax(tars.record("size", "x")) + GOOD + END, HeaderError, "T6", 1024),
    "PAX size negative": (GOOD + tars.pax(tars.record("size", "-1")) + GOOD + END, HeaderError, "T6", 1024),
    "PAX size absurd": (GOOD + tars.pax(tars.record("size", "9" * 19)) + GOOD + END, HeaderError, "T6", 1024),
    "PAX size very long": (GOOD + tars.pax(tars.record("size", "9" * 9000)) + GOOD + END, HeaderError, "T6", 1024),
    "global path": (tars.pax(tars.record("path", "x"), b"g") + GOOD + END, UnsupportedShard, "T6", 0),
    "bzip2": (bz2.compress(GOOD + END), UnsupportedShard, "T7", 0),
    "xz": (lzma.compress(GOOD + END), UnsupportedShard, "T7", 0),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(600), UnsupportedShard, "T7", 0),
    "gzip": (tars.zipped(GOOD + END), UnsupportedShard, "T7", 0),
    "zip": (ZIP.getvalue(), UnsupportedShard, "T7", 0),
    "one zero block inside": (GOOD + bytes(512) + GOOD + END, TrailingData, "T8", 1024),
    "joined tars": (GOOD + END + GOOD + END, TrailingData, "T8", 2048),
    "rubbish far behind": (GOOD + END + bytes(3 << 20) + b"x", TrailingData, "T8", 2048 + (3 << 20)),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_an_error_with_rule_and_offset(case: str) -> None:
    """Each kind of damage raises its own error at its byte, after every whole member before it."""
    raw, error, rule, offset = DAMAGE[case]
    found, caught = until_damage(raw)
    assert caught is not None
    assert (type(caught), caught.rule, caught.offset) == (error, rule, offset)
    assert found == (["a.txt"] if raw.startswith(GOOD) else [])


@pytest.mark.parametrize("end", [bytes(512), END, bytes(10240), END + bytes(77)])
def test_ends_that_are_fine(end: bytes) -> None:
    """One zero block at the very end, two, a whole record, and zeros that fill no block are ends."""
    assert contents(GOOD + end) == [("a.txt", b"hello")]
    assert contents(end) == []


@given(st.data())
def test_nothing_but_format_errors(data: st.DataObject) -> None:
    """Whatever bytes are changed, with checksums made good, walking ends in members inside the tar or a FormatError."""
    raw = (
        tars.pax(tars.record("path", "p/q.txt")) + tars.member("x", b"12345") + tars.member("L", b"name\0", b"L") + GOOD
    )
    tar = bytearray(raw + END)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(tar) - 1), st.integers(0, 255)), max_size=12)):
        tar[at] = value
    for at in range(0, len(raw), BLOCK):
        if data.draw(st.booleans()):
            tar[at : at + BLOCK] = tars.checksummed(bytes(tar[at : at + BLOCK]))
    _, error = until_damage(bytes(tar))
    assert error is None or (error.rule is not None and error.offset is not None)
