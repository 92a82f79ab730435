"""Giving back the memory of mapped files."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from shardwriter.mapped import let_go


def resident(address: int) -> int:
    """KB of a mapping of this process that are in memory."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            found = low <= address < high
        elif found and first == "Rss:":
            return int(line.split()[1])
    return 0


@pytest.mark.parametrize("cut", [slice(None), slice(100_000, 300_000)])
def test_what_was_read_is_let_go_and_can_be_read_again(tmp_path: Path, cut: slice) -> None:
    """The pages of an array, or of a part of one, leave memory; its values are those of the file as before."""
    values = np.arange(500_000, dtype="<u4")
    (tmp_path / "file").write_bytes(b"head" * 5 + values.tobytes())
    with (tmp_path / "file").open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    array = np.frombuffer(data[20:], dtype="<u4")
    assert int(array.sum()) == int(values.sum())
    before = resident(array.ctypes.data)
    let_go(array[cut])
    assert resident(array.ctypes.data) <= before - array[cut].nbytes // 1024 + 256
    assert np.array_equal(array, values)


def test_other_arrays_stay_as_they_are() -> None:
    """What is not mapped, empty, or no run of memory is not touched."""
    array = np.arange(100).reshape(10, 10)
    for part in (array, array[:0], array[:, :3]):
        let_go(part)
    let_go(np.frombuffer(b"12345678", np.uint8))
    assert array.sum() == 4950
