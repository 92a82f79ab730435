"""The command that measures the tiers of a cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = Path(__file__).parents[1] / "tools" / "bench" / "tiers.py"


def test_tiers_print_a_line_for_each_number_of_processes() -> None:
    """Each line has what chunks cost in this tier; all gets of all processes count."""
    options = ["--only", "valkey", "--mb", "1", "--chunks", "2", "--seconds", "0.01", "--json"]
    done = subprocess.run([sys.executable, str(COMMAND), *options], check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["tier"], line["processes"]) for line in lines] == [("valkey", 1), ("valkey", 4)]
    for line in lines:
        assert line["gets"] >= line["processes"]
        assert line["mb_s"] > 0
        assert line["put_mb_s"] > 0
        assert 0 < line["p50_ms"] <= line["p99_ms"]
