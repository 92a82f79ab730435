"""The examples run as they stand in the repository, in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tars
from PIL import Image
from torchrun import ROOT, python, torchrun

EXAMPLES = ROOT / "examples"


def photos(count: int) -> list[tuple[str, bytes]]:
    """Tar members of small pictures with captions, some PNG and some JPEG."""
    import io

    rng = np.random.default_rng(1)
    members = []
    for number in range(count):
        file = io.BytesIO()
        kind = "png" if number % 3 else "jpeg"
        Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(file, kind)
        members.append((f"{number:04d}.{kind[:3].replace('jpe', 'jpg')}", file.getvalue()))
        members.append((f"{number:04d}.txt", b"picture %d" % number))
    return members


def test_write_shards(tmp_path: Path) -> None:
    """write_shards.py writes a dataset that the command can show, with its own column."""
    printed = python(EXAMPLES / "write_shards.py", tmp_path / "out", "--samples", 120)
    assert printed.startswith("120 samples in 3 shards")
    shown = python("-m", "shardwriter.cli", "inspect", tmp_path / "out", "--json")
    view = json.loads(shown)
    assert view["fields"] == {"cls": 120, "jpg": 120, "json": 120, "txt": 120}
    assert view["columns"]["words"] == [3.0, 3.0, 3.0]


def test_read_existing_webdataset(tmp_path: Path) -> None:
    """read_existing_webdataset.py reads shards of mixed picture formats and leaves their folder as it is."""
    (tmp_path / "shards").mkdir()
    for number in range(3):
        (tmp_path / "shards" / f"{number}.tar").write_bytes(tars.tar(photos(30)))
    script = EXAMPLES / "read_existing_webdataset.py"
    printed = python(script, tmp_path / "shards", "--index", tmp_path / "index", "--batch", 20, "--workers", 0)
    assert "indexed 3 shards: 90 samples" in printed
    assert "first batch: {'jpg': [20, 3, 64, 64], 'txt': [20]}" in printed
    assert printed.endswith("4 batches\n")
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["0.tar", "1.tar", "2.tar"]


def test_s3(s3: Any) -> None:
    """s3.py writes to a real server, stops in the middle, and goes on without losing or repeating a sample."""
    url = s3.bucket("example") + "/numbers"
    printed = python(EXAMPLES / "s3.py", url, "--endpoint-url", s3.endpoint, more=s3.environment)
    assert '"position": 15}' in printed
    assert printed.endswith("400 samples, 400 different ones\n")


def test_train_ddp(tmp_path: Path) -> None:
    """train_ddp.py learns, stops, and goes on: the two runs together take every step of both epochs once."""
    (tmp_path / "shards").mkdir()
    for number in range(4):
        (tmp_path / "shards" / f"{number}.tar").write_bytes(
            tars.tar([(name.replace("png", "jpg"), data) for name, data in photos(16)])
        )
    common = ["--data", tmp_path / "shards", "--out", tmp_path / "run", "--batch", 8, "--workers", 0]
    script = EXAMPLES / "train_ddp.py"
    assert "64 samples in 4 shards" in torchrun(2, script, *common, "--stop-after", 6)
    torchrun(1, script, *common, "--resume")
    lines = [json.loads(line) for line in (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["ranks"], line["steps"]) for line in lines] == [(0, 2, 4), (1, 2, 2), (1, 1, 4)]
    assert lines[-1]["loss"] < lines[0]["loss"]
