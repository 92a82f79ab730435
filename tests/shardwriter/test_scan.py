"""Samples out of members, and salvage that never yields a half, wrong or merged one."""

from __future__ import annotations

import dataclasses
import tarfile
import tracemalloc

import pytest
import tars
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import FormatError, GroupingError, HeaderError, TrailingData, TruncatedShard
from shardwriter.format import SampleSpans, Span
from shardwriter.scan import MAX_DAMAGE, scan
from shardwriter.tar import header_blocks, padding

SMALL = tars.tar([*tars.numbered(3), ("000003.cls", b"")])
WHOLE = scan(SMALL).samples


def keys(tar: bytes, *, salvage: bool = False) -> list[str]:
    return [sample.key for sample in scan(tar, salvage=salvage).samples]


def check_salvage(tar: bytes) -> None:
    """What salvaging finds are samples of SMALL, each once, in order and whole; if any is missing there is damage."""
    found = scan(tar, salvage=True)
    remaining = iter(WHOLE)
    assert all(sample in remaining for sample in found.samples)
    assert found.damage or len(found.samples) == len(WHOLE)


def test_adjacent_members_are_a_sample() -> None:
    """A sample's spans, start and end are bytes of the tar; its fields come in the order of the tar."""
    first, second = scan(tars.tar([("d/a.txt", b"hi"), ("d/a.seg.png", b""), ("b.txt", b"x" * 600)])).samples
    assert first == SampleSpans("d/a", 0, 1536, {"txt": Span(512, 2), "seg.png": Span(1536, 0)})
    assert list(first.fields) == ["txt", "seg.png"]
    assert second == SampleSpans("b", 1536, 3072, {"txt": Span(2048, 600)})


def test_long_names_belong_to_their_sample() -> None:
    """A sample starts at the extension header of its first member."""
    raw = tars.tarfile_tar([("a.txt", b"1"), ("k" * 200 + ".txt", b"2")], tarfile.PAX_FORMAT, mtime=1.5)
    first, second = scan(raw).samples
    assert (first.start, first.end) == (0, 2048)
    assert (second.start, second.end, second.fields["txt"].offset) == (2048, 4096, 3584)


def test_what_belongs_to_no_sample_is_counted_and_parts_none() -> None:
    """Hidden files, files without a field and metadata are skipped, also between the members of a sample."""
    found = scan(
        tars.tar(
            (name, b"")
            for name in (
                "./a.txt",
                "./._a.txt",
                "README",
                "./a.cls",
                "__meta__/x.json",
                "b.",
                ".DS_Store",
                "__x__.json",
            )
        )
    )
    assert [(s.key, list(s.fields)) for s in found.samples] == [("a", ["txt", "cls"]), ("__x__", ["json"])]
    assert found.skipped == {"hidden file": 2, "metadata": 1, "no field name": 2}


def test_links_and_devices_are_counted_by_kind() -> None:
    """Entries without data are no members and are counted by what they are."""
    raw = tars.member("a.txt", b"1") + tars.header("b.txt", 0, b"1") + tars.header("c.txt", 0, b"2")
    raw += tars.header("d.txt", 0, b"2") + tars.header("f/", 0, b"5") + tars.END
    found = scan(raw)
    assert [s.key for s in found.samples] == ["a"]
    assert found.skipped == {"hard link": 1, "symbolic link": 2}


def test_case_counts_in_keys_and_not_in_fields() -> None:
    """A and a are two samples; JPG and jpg are one field."""
    first, second = scan(tars.tar([("A.JPG", b""), ("a.jpg", b"")])).samples
    assert (first.key, list(first.fields)) == ("A", ["jpg"])
    assert (second.key, list(second.fields)) == ("a", ["jpg"])


@pytest.mark.parametrize(
    ("names", "rule", "told", "kept", "skipped"),
    [
        ("a.jpg b.jpg a.txt", "S2", ("a.txt", "a", None, 1024), ["b"], {"sample in pieces": 1}),
        ("a.jpg b.jpg a.txt b.txt c.jpg", "S2", ("a.txt", "a", None, 1024), ["c"], {"sample in pieces": 2}),
        ("a.jpg b.jpg a.jpg", "S2", ("a.jpg", "a", None, 1024), ["b"], {"sample in pieces": 1}),
        ("a.jpg b.jpg ./a.txt", "S2", ("./a.txt", "a", None, 1024), ["b"], {"sample in pieces": 1}),
        ("a.txt a.txt b.txt", "S3", ("a.txt", "a", "txt", 512), ["b"], {"sample with a field twice": 1}),
        ("b.txt a.Left.png a.left.PNG", "S3", ("a.left.PNG", "a", "left.png", 1024), ["b"],
         {"sample with a field twice": 1}),
        ("a.txt a.__key__ b.txt", "S5", ("a.__key__", "a", "__key__", 512), ["b"], {"sample with a reserved field": 1}),
    ],
)  # fmt: skip
def test_grouping_errors(
    names: str, rule: str, told: tuple[str, str, str | None, int], kept: list[str], skipped: dict[str, int]
) -> None:
    """Broken grouping names member, key, field, offset and cure; salvage drops every piece of the sample."""
    raw = tars.tar([(name, b"") for name in names.split()])
    with pytest.raises(GroupingError) as caught:
        scan(raw)
    error = caught.value
    member, key, field, offset = told
    assert (error.rule, error.key, error.field, error.offset) == (rule, key, field, offset)
    assert repr(member) in error.fact
    assert error.hint
    found = scan(raw, salvage=True)
    assert [s.key for s in found.samples] == kept
    assert found.skipped == skipped
    assert all(isinstance(e, GroupingError) for e in found.damage)
    assert len(found.damage) == sum(skipped.values())


def test_sort_is_named_as_the_cure() -> None:
    """The error for members that are apart says how to make a tar in which they are together."""
    with pytest.raises(GroupingError, match="sort"):
        scan(tars.tar([("a.jpg", b""), ("b.jpg", b""), ("a.txt", b"")]))


def test_cut_after_a_member_drops_its_sample() -> None:
    """A shard cut between two members of a sample yields nothing of that sample, though its first member is whole."""
    cut = SMALL[: 3 * 1024]  # after 000001.cls
    with pytest.raises(TruncatedShard):
        scan(cut)
    found = scan(cut, salvage=True)
    assert [s.key for s in found.samples] == ["000000"]
    assert found.skipped == {"sample at the damage": 1}
    assert isinstance(found.damage[0], TruncatedShard)


def test_bytes_after_the_end_drop_the_last_sample() -> None:
    """A zeroed hole looks like an end mark with bytes after it, so the sample before it may lack members."""
    hole = SMALL[: 3 * 1024] + bytes(1024) + SMALL[4 * 1024 :]
    found = scan(hole, salvage=True)
    assert [s.key for s in found.samples] == ["000000"]
    assert isinstance(found.damage[0], TrailingData)


@pytest.mark.parametrize("size", range(0, len(SMALL), 256))
def test_every_truncation(size: int) -> None:
    """Cut anywhere, the whole samples before the cut come and it is told; only the second zero block may be missing."""
    cut = SMALL[:size]
    if size < len(SMALL) - 512:
        with pytest.raises(TruncatedShard):
            scan(cut)
    check_salvage(cut)


def test_every_hole() -> None:
    """Zeros over any run of blocks with something after it yield whole samples alone, and never silence."""
    blocks = len(SMALL) // 512
    for first in range(blocks):
        for last in range(first + 1, blocks - 2):
            hole = SMALL[: first * 512] + bytes((last - first) * 512) + SMALL[last * 512 :]
            if hole[last * 512 :].strip(b"\0"):
                check_salvage(hole)


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_every_byte_flip(flip: int) -> None:
    """One byte changed anywhere yields whole samples alone, and a lost sample is never silent."""
    for at in range(len(SMALL)):
        changed = bytearray(SMALL)
        changed[at] ^= flip
        check_salvage(bytes(changed))


@given(st.dictionaries(st.integers(0, len(SMALL) // 512 - 1), st.tuples(st.integers(0, 511), st.integers(1, 255))))
def test_many_byte_flips(flips: dict[int, tuple[int, int]]) -> None:
    """The same for one byte in each of several blocks (two in one block can cancel out in tar's checksum)."""
    changed = bytearray(SMALL)
    for block, (at, value) in flips.items():
        changed[block * 512 + at] ^= value
    check_salvage(bytes(changed))


@given(st.permutations(tars.numbered(4)), st.booleans())
def test_any_order_of_members(members: list[tuple[str, bytes]], twice: bool) -> None:
    """In any order of members, salvage keeps the samples whose members are together and drops the others whole."""
    members = [*members, members[0]] if twice else list(members)
    runs = [name[:6] for name, _ in members]
    starts = [key for i, key in enumerate(runs) if i == 0 or runs[i - 1] != key]
    names = [name for name, _ in members]
    good = [k for k in starts if starts.count(k) == 1 and len({n for n in names if n[:6] == k}) == runs.count(k)]
    found = scan(tars.tar(members), salvage=True)
    assert [s.key for s in found.samples] == good
    assert all(s.fields.keys() == {"cls", "txt"} for s in found.samples)
    assert sum(found.skipped.values()) == len(set(starts)) - len(good)


def test_first_damage_wins_without_salvage() -> None:
    """Without salvage the first damage in the tar is the error, whatever its kind."""
    raw = tars.tar([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")])[:-1024]
    with pytest.raises(GroupingError):
        scan(raw)
    broken = bytearray(raw)
    broken[600] ^= 1
    with pytest.raises(HeaderError):
        scan(bytes(broken))


def test_damage_is_bounded() -> None:
    """A shard in which no sample is together keeps a bounded list of errors, and counts them all."""
    n = MAX_DAMAGE + 50
    raw = tars.tar([(f"{i}.{field}", b"") for field in ("a", "b") for i in range(n)])
    found = scan(raw, salvage=True)
    assert (found.samples, len(found.damage), found.skipped) == ([], MAX_DAMAGE, {"sample in pieces": n})


def test_members_are_not_kept() -> None:
    """Members that belong to no sample leave nothing behind, however many they are."""
    raw = tars.header("README") * 20_000 + tars.END
    tracemalloc.start()
    try:
        found = scan(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.skipped == {"no field name": 20_000}
    assert peak < 1 << 20


def test_scan_is_frozen() -> None:
    """A scan can't be changed."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        scan(SMALL).samples = []  # type: ignore[misc]


def test_an_empty_tar_has_no_samples() -> None:
    """A valid tar without members is fine, an empty file is not."""
    assert keys(tars.END) == keys(bytes(10240)) == []
    with pytest.raises(FormatError):
        scan(b"")
    assert scan(b"", salvage=True).damage[0].rule == "T1"


def test_a_cut_inside_the_next_sample_keeps_the_one_before() -> None:
    """Where the header of the next sample still stands before the cut, the sample before it is known to be whole."""
    whole = header_blocks("a.txt", 3) + b"one" + padding(3)
    cut = scan(whole + header_blocks("b.txt", 2000) + b"two", salvage=True)
    assert [sample.key for sample in cut.samples] == ["a"]
    assert [(type(error), error.key, error.offset) for error in cut.damage] == [(TruncatedShard, "b", 1024)]


def test_a_cut_inside_the_same_sample_drops_it() -> None:
    """Where the cut lies in a later member of the open sample, nothing of that sample comes out."""
    whole = header_blocks("a.jpg", 3) + b"one" + padding(3)
    cut = scan(whole + header_blocks("a.txt", 2000) + b"two", salvage=True)
    assert cut.samples == []
