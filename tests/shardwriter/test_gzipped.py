"""Shards in gzip."""

from __future__ import annotations

import os
import random

import pytest
import tars

from shardwriter.errors import FormatError, TrailingData, TruncatedShard
from shardwriter.gzipped import unpacked

NOISE = random.Random(1)  # the same in all processes of a run, since sizes are in the names of tests
TAR = tars.tar([(name, NOISE.randbytes(3000)) for name, _ in tars.numbered(4)])
GZ = tars.zipped(TAR)


def unpack(data: bytes) -> bytes:
    with unpacked(memoryview(data)) as (tar, size):
        assert size == len(tar)
        return bytes(tar)


def salvage(data: bytes) -> tuple[bytes, list[FormatError]]:
    damage: list[FormatError] = []
    with unpacked(memoryview(data), damage) as (tar, _):
        return bytes(tar), damage


def test_plain_data_passes() -> None:
    """What is no gzip is handed through as it is, without a size."""
    with unpacked(memoryview(TAR)) as (tar, size):
        assert (bytes(tar), size) == (TAR, None)


@pytest.mark.parametrize(
    "data", [GZ, GZ + bytes(1000), tars.zipped(TAR[:5000]) + tars.zipped(b"") + tars.zipped(TAR[5000:])]
)
def test_gzip_is_unpacked(data: bytes) -> None:
    """One member, several members and padding with zeros all give the tar."""
    assert unpack(data) == TAR


def test_large_output_of_few_bytes() -> None:
    """Data that unpacks to many times its size comes out whole."""
    assert unpack(tars.zipped(bytes(9_000_000))) == bytes(9_000_000)


@pytest.mark.parametrize("size", [2, 9, 11, 100, len(GZ) // 2, len(GZ) - 9, len(GZ) - 8, len(GZ) - 1])
def test_cut_gzip(size: int) -> None:
    """A cut is an error at the end of the file; salvage gets the bytes before it."""
    with pytest.raises(TruncatedShard) as caught:
        unpack(GZ[:size])
    assert (caught.value.rule, caught.value.offset) == ("T9", size)
    tar, damage = salvage(GZ[:size])
    assert TAR.startswith(tar)
    assert len(tar) > 0 or size < 200
    assert [type(error) for error in damage] == [TruncatedShard]


def test_cut_between_members() -> None:
    """A second gzip member that is cut is an error too."""
    with pytest.raises(TruncatedShard):
        unpack(GZ + GZ[:20])


@pytest.mark.parametrize("junk", [b"junk", bytes(5) + b"j", bytes(3 << 20) + b"j"])
def test_bytes_after_gzip(junk: bytes) -> None:
    """Anything but zeros after the gzip data is told with its offset; salvage keeps the checked data."""
    with pytest.raises(TrailingData) as caught:
        unpack(GZ + junk)
    assert (caught.value.rule, caught.value.offset) == ("T9", len(GZ) + junk.index(b"j"))
    tar, damage = salvage(GZ + junk)
    assert (tar, len(damage)) == (TAR, 1)


@pytest.mark.parametrize("at", [10, len(GZ) // 2, len(GZ) - 8, len(GZ) - 4])
def test_damaged_gzip(at: int) -> None:
    """Where the checksum does not hold, nothing is trusted, also when salvaging."""
    changed = bytearray(GZ)
    changed[at] ^= 0x55
    with pytest.raises(FormatError) as caught:
        unpack(bytes(changed))
    assert caught.value.rule == "T9"
    tar, damage = salvage(bytes(changed))
    assert damage[0].rule == "T9"
    assert tar == b"" or (isinstance(damage[0], TruncatedShard) and TAR.startswith(tar))


def test_the_file_is_gone_afterwards() -> None:
    """Unpacking leaves no open file and no view behind."""
    before = set(os.listdir("/proc/self/fd"))
    with unpacked(memoryview(GZ)) as (tar, _):
        pass
    with pytest.raises(ValueError, match="released"):
        bytes(tar)
    assert set(os.listdir("/proc/self/fd")) == before
