"""tools/demo.py, which `make demo` runs."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from torchrun import ROOT, python

DEMO = ROOT / "tools" / "demo.py"


@pytest.mark.slow
def test_the_demo_checks_what_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On few images the demo goes the whole way, and a log that lacks or repeats a sample fails its checks."""
    printed = python(DEMO, "--images", 200, "--out", tmp_path / "out", timeout=240)
    assert re.search(r"^shards +200 samples in 17 shards", printed, re.MULTILINE)
    assert printed.count("  ok    ") == 3, printed
    assert printed.count("epoch 1:") == 3, printed

    monkeypatch.syspath_prepend(str(DEMO.parent))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--recheck", "--out", str(tmp_path / "out")])
    demo = importlib.import_module("demo")
    log = tmp_path / "out" / "resumed" / "samples-0.jsonl"
    whole = log.read_text()
    lines = whole.splitlines(keepends=True)
    lost, swapped = json.loads(lines[1]), json.loads(lines[2])
    lost["keys"][0] = lost["keys"][1]
    swapped["position"] = json.loads(lines[3])["position"]
    for damaged in (
        lines[:-1],
        [lines[0], json.dumps(lost) + "\n", *lines[2:]],
        [*lines[:2], json.dumps(swapped) + "\n", *lines[4:]],
    ):
        log.write_text("".join(damaged))
        assert demo.main() == 1
        assert "FAIL" in capsys.readouterr().out
    log.write_text(whole)
    assert demo.main() == 0
    assert capsys.readouterr().out.count("  ok    ") == 3


def test_the_demo_names_what_it_needs(tmp_path: Path) -> None:
    """A folder without captions.tsv is refused before anything is written."""
    printed = python(DEMO, "--data", tmp_path, "--out", tmp_path / "out", code=2)
    assert "holds no captions.tsv" in printed
    assert not (tmp_path / "out").exists()
