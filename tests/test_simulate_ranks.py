"""tools/simulate_ranks.py and the sizes that it plans with."""

from __future__ import annotations

import json

import numpy as np
from torchrun import ROOT, python

from tools.web_sizes import MOST, STOCK, web_shards

TOOL = ROOT / "tools" / "simulate_ranks.py"
SMALL = ("--samples", 4000, "--per-shard", 400, "--ranks", 2, 4)


def test_sizes_are_the_same_each_time_and_as_described() -> None:
    """The same seed gives the same sizes, half of them stock sizes, landscape more often than portrait."""
    shards, again = web_shards(25_000, 10_000, seed=3), web_shards(25_000, 10_000, seed=3)
    assert [len(shard["width"]) for shard in shards] == [10_000, 10_000, 5_000]
    for one, two in zip(shards, again, strict=True):
        assert all(np.array_equal(one[name], two[name]) for name in ("width", "height"))
    width, height = (np.concatenate([shard[name] for shard in shards]) for name in ("width", "height"))
    assert not np.array_equal(width[:10_000], web_shards(10_000, seed=4)[0]["width"])
    stock = sum(((width == w) & (height == h)).mean() for w, h in STOCK)
    assert 0.48 < stock < 0.55
    assert 1 <= min(width.min(), height.min()) <= max(width.max(), height.max()) <= MOST
    assert (width > height).mean() > 2 * (width < height).mean()


def test_every_way_to_batch_is_measured_for_every_number_of_ranks() -> None:
    """Plans have equal steps, no batch over the budget unless an image is, and no padding where images are cut."""
    printed = python(TOOL, *SMALL, "--together", 2, 4, "--json")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert {row["ranks"] for row in rows} == {2, 4}
    found = {(row["batches"], row["ranks"]): row for row in rows}
    assert len(found) == len(rows)
    for (name, _), row in found.items():
        assert 0 <= row["idle"] < 1
        assert 0 <= row["waste"] < 1
        assert row["useful"] <= 1 - row["waste"] + 1e-9
        assert row["ratio"] is None or 1 <= row["ratio"][0] <= row["ratio"][2]
        assert row["samples"][0] <= row["samples"][1] <= row["samples"][2]
        planned = name.split(",")[0] in ("bucket", "pad", "pack")
        assert not planned or row["steps"][0] == row["steps"][1] > 0
        assert not name.startswith(("bucket", "pad, longest", 'pack, oversize="skip"')) or row["over"] == 0
        assert not name.startswith(("bucket", "pack")) or row["waste"] == 0
        assert (row["kept"] is not None) == name.startswith("bucket")
    assert found["bucket", 2]["idle"] < found["(b) sorted", 2]["idle"]
    assert found["pad, longest=512", 2]["waste"] < found["(a) fixed, longest=512", 2]["waste"]
    assert ("bucket, together=4", 4) in found
    assert ("bucket, together=4", 2) not in found


def test_tables_are_printed_for_each_number_of_ranks() -> None:
    """As Markdown, with the plans where they are asked for; ranks that get no shard show as such."""
    printed = python(TOOL, "--samples", 1500, "--per-shard", 500, "--ranks", 2, 5, "--together", 2, "--verbose")
    assert printed.count("| batches | steps | idle |") == 2
    assert printed.count("\n| bucket |") == 2
    assert "bucket: 1,500 samples in 3 shards" in printed
    (dealt,) = [line for line in printed.partition("\n5 ranks")[2].splitlines() if line.startswith("| (c) dealt |")]
    assert dealt.split("|")[2].strip().startswith("0-")
