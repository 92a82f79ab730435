"""Names, and the container of index files."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwriter.errors import IndexFormatError, NameRefused
from shardwriter.format import (
    MAX_HEADER,
    MAX_NAME,
    check_field,
    check_key,
    member_name,
    narrow,
    pack,
    pack_strings,
    split_name,
    unpack,
    unpack_string,
)

ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.sampled_from(["|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=5,
)
META = {"bytes": 2048, "sha256": "00" * 32, "name": "ä"}
ONE = {"starts": np.arange(5, dtype="<u8"), "empty": np.zeros((0, 3), "<f4"), "c": np.array([1, -1], "<i2")}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("a.jpg", ("a", "jpg")),
        ("./a.jpg", ("a", "jpg")),
        (".//././a.jpg", ("a", "jpg")),
        ("22.0/v1.5/x.Left.PNG", ("22.0/v1.5/x", "left.png")),
        ("A.jpg", ("A", "jpg")),
        ("/abs/a.jpg", ("/abs/a", "jpg")),
        ("x/__meta__/a.json", ("x/__meta__/a", "json")),
        ("__x__.json", ("__x__", "json")),
        ("____/a.json", ("____/a", "json")),
        ("a.tar.gz", ("a", "tar.gz")),
        ("a..jpg", ("a", ".jpg")),
        ("README", None),
        ("d/README", None),
        (".hidden", None),
        (".hidden.jpg", None),
        ("d/._a.jpg", None),
        ("a.", None),
        ("d/", None),
        ("", None),
        ("./", None),
        ("__meta__/a.json", None),
        ("./__meta__/d/a.json", None),
    ],
)
def test_names_split(name: str, split: tuple[str, str] | None) -> None:
    """Key and field part at the first dot of the last part; hidden, bare and metadata names have neither."""
    assert split_name(name) == split


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a.b",
        "d/a.b",
        ".a",
        "a\nb",
        "a\0",
        "a\x7f",
        "a\\b",
        "/a",
        "a/",
        "a//b",
        "./a",
        "a/../b",
        "..",
        "__m__/a",
        "\udc80",
    ],
)
def test_keys_that_are_refused(key: str) -> None:
    """A key that any reader would read differently is refused with rule and hint."""
    with pytest.raises(NameRefused) as caught:
        check_key(key)
    assert caught.value.rule == "N5"


@pytest.mark.parametrize("key", [7, None, b"a"])
def test_keys_are_text(key: Any) -> None:
    """A key that is no text is refused rather than turned into one."""
    with pytest.raises(NameRefused):
        check_key(key)


@pytest.mark.parametrize("field", ["", "JPG", ".jpg", "jpg.", "a..b", "a b", "é", "__key__", "a/b", "jpg\n", 3, None])
def test_fields_that_are_refused(field: Any) -> None:
    """A field name that any reader would read differently is refused."""
    with pytest.raises(NameRefused) as caught:
        check_field(field)
    assert caught.value.rule == "N6"


@given(st.text(max_size=20), st.text("abz019._-", max_size=10))
def test_checked_names_read_back(key: str, field: str) -> None:
    """Every key and field that pass the checks come back from the member's name as they were."""
    try:
        name = member_name(check_key(key), check_field(field))
    except NameRefused:
        return
    assert split_name(name) == (key, field)


def test_long_names_are_refused() -> None:
    """A member name may have 4,096 bytes of UTF-8 and no more."""
    assert len(member_name("k" * (MAX_NAME - 4), "jpg")) == MAX_NAME
    with pytest.raises(NameRefused) as caught:
        member_name("é" * (MAX_NAME // 2 - 1), "jpg")
    assert caught.value.rule == "N7"


@given(st.lists(st.text(max_size=9), max_size=9))
def test_strings_come_back(values: list[str]) -> None:
    """Any texts come back from offsets and bytes, each by its number."""
    offsets, data = pack_strings(values)
    assert [unpack_string(offsets, data, i) for i in range(len(values))] == values


def test_integers_take_eight_bytes_only_where_needed() -> None:
    """Four bytes hold up to 2^32 - 1; nothing wraps."""
    assert narrow(np.array([(1 << 32) - 1], "<u8")).dtype.str == "<u4"
    assert narrow(np.array([1 << 32], "<u8")).tolist() == [1 << 32]
    assert narrow(np.zeros(0, "<u8")).dtype.str == "<u4"


def test_container_bytes_are_pinned() -> None:
    """The bytes of an index file never change."""
    raw = pack("shard", META, ONE)
    assert raw[:8] == b"SHRDSTRM"
    length = int.from_bytes(raw[8:12], "little")
    assert (16 + length) % 64 == len(raw) % 64 == 0
    assert int.from_bytes(raw[12:16], "little") == zlib.crc32(raw[16 : 16 + length])
    header = json.loads(raw[16 : 16 + length])
    assert header["arrays"]["c"] == {"dtype": "<i2", "shape": [2], "span": [64, 68]}
    assert header["crc32"] == zlib.crc32(raw[16 + length :])
    assert hashlib.sha256(raw).hexdigest()[:16] == "5795ca420f6cad9e"


@given(ARRAYS)
def test_arrays_come_back(arrays: dict[str, Any]) -> None:
    """Kind, meta and every array come back with type and shape, as read-only views."""
    raw = pack("kind", META, arrays)
    kind, meta, found = unpack(raw)
    assert (kind, meta, found.keys()) == ("kind", META, arrays.keys())
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_other_byte_orders_and_layouts_are_stored_alike() -> None:
    """Big-endian and Fortran-ordered arrays are stored as little-endian C-ordered ones."""
    array = np.arange(6, dtype=">i4").reshape(2, 3)
    assert pack("k", {}, {"a": np.asfortranarray(array)}) == pack("k", {}, {"a": array.astype("<i4")})


@pytest.mark.parametrize("dtype", ["O", "<c8", "?", "<U3", "<f2"])
def test_types_that_an_index_cannot_hold(dtype: str) -> None:
    """Objects, text and other types are refused when packing."""
    with pytest.raises(TypeError, match="dtype"):
        pack("k", {}, {"a": np.zeros(2, dtype)})


def test_every_changed_byte_is_noticed() -> None:
    """One byte changed anywhere is an error, in gaps too; so is every cut."""
    raw = pack("shard", META, ONE)
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 0x41
        with pytest.raises(IndexFormatError):
            unpack(changed)
    for size in range(0, len(raw), 7):
        with pytest.raises(IndexFormatError):
            unpack(raw[:size])
    with pytest.raises(IndexFormatError):
        unpack(raw + bytes(64))


def test_the_checksum_may_be_computed_elsewhere() -> None:
    """checksum= is given the bytes behind the header, and its answer counts."""
    raw = pack("shard", META, ONE)
    seen: list[int] = []

    def checksum(data: memoryview) -> int:
        seen.append(len(data))
        return zlib.crc32(data)

    assert unpack(raw, checksum=checksum)[0] == "shard"
    assert seen == [len(raw) - 16 - int.from_bytes(raw[8:12], "little")]
    with pytest.raises(IndexFormatError, match="checksum"):
        unpack(raw, checksum=lambda data: zlib.crc32(data) ^ 1)


def forged(change: Any) -> bytes:
    """A container with a changed header and a good checksum."""
    raw = pack("shard", META, ONE)
    length = int.from_bytes(raw[8:12], "little")
    header = json.loads(raw[16 : 16 + length])
    text = change(header) if not isinstance(change(header), dict) else json.dumps(change(header)).encode()
    return (
        raw[:8] + len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text + raw[16 + length :]
    )


def with_entry(**parts: Any) -> Any:
    return lambda header: header | {"arrays": header["arrays"] | {"c": header["arrays"]["c"] | parts}}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda h: b"not json", "I2"),
        (lambda h: b"[" * 200_000, "I2"),
        (lambda h: b"[1]", "I2"),
        (lambda h: h | {"version": 2}, "I2"),
        (lambda h: h | {"version": None}, "I2"),
        (lambda h: h | {"meta": 3}, "I2"),
        (lambda h: h | {"kind": 3}, "I2"),
        (lambda h: h | {"crc32": "x"}, "I2"),
        (lambda h: h | {"arrays": [1]}, "I2"),
        (lambda h: {k: v for k, v in h.items() if k != "arrays"}, "I2"),
        (with_entry(span=[64]), "I2"),
        (with_entry(span=[64, "x"]), "I2"),
        (with_entry(span=[64, -1]), "I2"),
        (with_entry(shape=[-2]), "I2"),
        (with_entry(shape=[True, 2]), "I2"),
        (with_entry(shape=7), "I2"),
        (with_entry(dtype=["<i2"]), "I2"),
        (with_entry(dtype="|O"), "I3"),
        (with_entry(dtype="O"), "I3"),
        (with_entry(shape=[3]), "I3"),
        (with_entry(shape=[1 << 62, 1 << 62]), "I3"),
        (with_entry(span=[0, 4]), "I3"),
        (with_entry(span=[1 << 40, (1 << 40) + 4]), "I3"),
    ],
)
def test_forged_headers(change: Any, rule: str) -> None:
    """A header that makes no sense is an error with its rule, and allocates nothing."""
    with pytest.raises(IndexFormatError) as caught:
        unpack(forged(change))
    assert caught.value.rule == rule


def test_absurd_header_length() -> None:
    """A length beyond the file or beyond the limit is an error."""
    raw = pack("shard", META, ONE)
    for length in (len(raw), MAX_HEADER + 1, (1 << 32) - 1):
        with pytest.raises(IndexFormatError) as caught:
            unpack(raw[:8] + length.to_bytes(4, "little") + raw[12:])
        assert caught.value.rule == "I1"
