"""Footers that tell whether data is whole."""

from __future__ import annotations

import mmap
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.cache.sealed import FOOTER_BYTES, seal, unseal


@given(data=st.binary(max_size=300), verify=st.booleans())
def test_what_was_sealed_is_given_back(data: bytes, verify: bool) -> None:
    """With its size, without, and by a view that can't be written to."""
    stored = bytearray(data + seal(data))
    assert len(stored) == len(data) + FOOTER_BYTES
    for size in (None, len(data)):
        found = unseal(stored, size=size, verify=verify)
        assert found is not None
        assert found == data
        assert found.readonly
    assert unseal(stored, size=len(data) + 1, verify=verify) is None


@given(data=st.binary(max_size=300), cut=st.integers(1, 400), verify=st.booleans())
def test_what_was_cut_or_grew_is_not_whole(data: bytes, cut: int, verify: bool) -> None:
    """Whatever is missing at either end, and whatever follows, be it another footer."""
    stored = data + seal(data)
    assert unseal(stored[:-cut], verify=verify) is None
    assert unseal(stored[cut:], verify=verify) is None
    assert unseal(stored + bytes(cut), verify=verify) is None
    assert unseal(stored + seal(data), verify=verify) is None


@given(data=st.binary(min_size=1, max_size=300), place=st.integers(0), flip=st.integers(1, 255))
def test_each_changed_byte_is_seen(data: bytes, place: int, flip: int) -> None:
    """In the data by the checksum; in the footer always."""
    stored = bytearray(data + seal(data))
    place %= len(stored)
    stored[place] ^= flip
    assert unseal(stored, size=len(data), verify=True) is None
    assert (unseal(stored, size=len(data), verify=False) is None) == (place >= len(data))


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_mapped_files_and_zeros(size: int) -> None:
    """A map is read in place; zeros, such as a power cut leaves behind, are nothing."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(size) + seal(bytes(size)))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = unseal(mapped, verify=True)
    assert found is not None
    assert found == bytes(size)
    assert found.obj is mapped
    assert unseal(bytes(size + FOOTER_BYTES), size=size, verify=False) is None
    del found
    mapped.close()
