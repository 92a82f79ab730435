"""README.md says what is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from torchrun import ROOT, python

from shardwriter import ShardWriter
from streaming.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", README, re.DOTALL)


def section(title: str) -> str:
    """The Python of a section."""
    text = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


def test_the_training_loop_runs_as_it_is_written(tmp_path: Path) -> None:
    """The loop of the page, on a small dataset without a GPU, trains to the end, and goes on from its own state."""
    with ShardWriter(tmp_path / "set", max_samples=8) as writer:
        for i in range(40):
            writer.write({"__key__": f"{i:03d}", "jpg": np.full((250, 240, 3), i, np.uint8), "txt": f"number {i}"})
    loop = section("Train").replace("s3://bucket/cc3m", "set").replace("FixedBatch(256", "FixedBatch(8")
    loop = (
        loop.replace('workers="auto"', "workers=0").replace('device="cuda"', 'device="cpu"').replace(", 10)", ", last)")
    )
    script = f"import json, sys\nlast, resume = int(sys.argv[1]), len(sys.argv) > 2\nstep = print\n{loop}"
    (tmp_path / "loop.py").write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{script}")
    first = python(tmp_path / "loop.py", 2)
    second = python(tmp_path / "loop.py", 3, "resume")
    assert (first.count("number 0'"), second.count("number 0'")) == (2, 1)
    assert "5 full micro-batches" in first


def test_python_blocks_are_python_and_import_what_exists() -> None:
    """All of them compile, and their imports work."""
    found = [code for kind, code in BLOCKS if kind == "python"]
    assert len(found) >= 3
    for code in found:
        compile(textwrap.dedent(code), "README.md", "exec")
        for line in re.findall(r"^from .*", code, re.MULTILINE):
            exec(line, {})


def test_commands_and_links_exist() -> None:
    """Targets of make, subcommands with their options, and files that the page names are there."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:`|^)make ([a-z]+)", README, re.MULTILINE):
        assert target in targets
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
    for script in re.findall(r"`python ([\w/]+\.py)", README):
        assert (ROOT / script).exists(), script


def test_options_of_the_command_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command line of the page is understood: none ends with the exit code for wrong usage."""
    monkeypatch.chdir(tmp_path)
    lines = [line for kind, code in BLOCKS if kind == "sh" for line in code.splitlines() if line.startswith("shards")]
    assert len(lines) >= 5
    for line in lines:
        words = [str(tmp_path / "none") if "/" in word else word for word in shlex.split(line, comments=True)[1:]]
        assert main(words) in (0, 1), line
