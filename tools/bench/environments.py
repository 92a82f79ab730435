"""A virtual environment for each peer, made once below bench-data/envs and used again.

>>> ready, failed = environments(["webdataset", "ray"], Path("bench-data/envs"))
>>> ready["webdataset"]
PosixPath('bench-data/envs/webdataset/bin/python')

PEERS is all there is to say about what a peer needs; a peer's version is changed here.  PyPI's torch for Linux brings
CUDA libraries of several GB into an environment; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gives most
the CPU build instead.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

NUMPY, TOOLS = "numpy==2.4.6", ["pillow==12.3.0", "simplejpeg==1.9.0", "psutil==7.2.2"]
COMMON = ["torch==2.13.0", NUMPY, *TOOLS]
"""What every measurement needs: batches are torch tensors, pictures are Pillow's or our decoder's."""
VISION = ["torch===2.13.0", "torchvision==0.28.0", *TOOLS]
"""For peers that need torchvision: PyPI's is linked against PyPI's torch, and === takes no other build of that."""

PEERS: dict[str, list[str]] = {
    "webdataset": [*COMMON, "webdataset==1.0.2"],
    "mosaic": [*VISION, "numpy==2.1.3", "mosaicml-streaming==0.13.0"],
    "litdata": [*VISION, NUMPY, "litdata==0.2.76"],
    "huggingface": [*COMMON, "datasets==5.2.0"],
    "ray": [*COMMON, "ray[data]==2.60.0", "pydantic==2.14.3"],
    "folder": [*COMMON],
}
"""Peer -> requirements, as pip takes them."""
MARK = "requirements.json"


def environments(peers: Iterable[str], root: Path, *, make: bool = True) -> tuple[dict[str, Path], dict[str, str]]:
    """(peer -> its Python, peer -> why it has none); with make=False those that exist."""
    ready: dict[str, Path] = {}
    failed: dict[str, str] = {}
    for peer in peers:
        folder = root / peer
        mark = folder / MARK
        if mark.exists() and json.loads(mark.read_text()) == PEERS[peer]:
            ready[peer] = folder / "bin" / "python"
        elif not make:
            failed[peer] = f"there is no environment at {folder} with the requirements of now: --setup makes it"
        else:
            print(f"making {folder}: {' '.join(PEERS[peer])}", file=sys.stderr, flush=True)
            problem = _make(folder, PEERS[peer])
            if problem is None:
                ready[peer] = folder / "bin" / "python"
            else:
                failed[peer] = problem
    return ready, failed


def _make(folder: Path, requirements: list[str]) -> str | None:
    """What went wrong, or None.  The mark is written last: half an environment is not taken for one."""
    try:
        if not (folder / "bin" / "python").exists():
            venv.create(folder, with_pip=True, symlinks=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *requirements], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    if done.returncode:
        return "pip failed: " + " | ".join(line for line in done.stdout.splitlines() if "ERROR" in line)
    (folder / MARK).write_text(json.dumps(requirements))
    return None
