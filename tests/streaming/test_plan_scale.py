"""Plans of datasets that are far larger than memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from streaming.plan import FixedBatch, Plan, Share, Shuffle

counts = np.full(100_000, 10_000)
counts[::7] += 1
plan = Plan.make(counts, batch=FixedBatch(256), world_size=8, {arguments})
assert plan.samples == counts.sum() > 10**9
steps = len(plan)
assert steps == plan.samples // 256 // 8
assert str(plan)
epoch = plan.epoch(3)
cursor = epoch.cursor(capacity=plan.lanes + 1)
seen = set()
for share in (Share(0, 8), Share(7, 8), Share(3, 8, start=plan.end // 2), Share(5, 8, start=plan.end - 80)):
    for position in share.positions(np.arange(10)).tolist():
        refs = cursor.samples(np.array([position]))
        assert len(refs) == 256
        seen.update(zip(refs.shards.tolist(), refs.indices.tolist()))
assert len(seen) == 4 * 10 * 256
# Not getrusage: its peak counts the memory of the process that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 1e3)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("arguments", ["shuffle=True, seed=7", "shuffle=Shuffle(8, 1000), lanes=64", "tail='drop'"])
def test_a_billion_samples_in_100_000_shards_fit_200_mb(arguments: str) -> None:
    """C7: plan, length and batches from the start, the middle and the end stay below 200 MB with the interpreter."""
    program = PROGRAM.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 200
