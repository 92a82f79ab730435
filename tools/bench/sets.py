"""One dataset in the format of every side: converted once, and checked before anything is measured."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sides.common import PER_SHARD

Measure = Callable[[str, str, str, dict[str, Any]], dict[str, Any]]
"""(side, kind, data, options) -> what the measurement printed."""


class Differ(Exception):
    """Two sides do not give the same samples."""


@dataclass(frozen=True)
class Sets:
    """Where each side finds the dataset, below `base`; `folder` holds its files."""

    name: str
    base: Path
    folder: Path
    data: dict[str, str]
    samples: int
    bytes: int


def prepare(source: Path, work: Path, samples: int | None, peers: Iterable[str], measure: Measure) -> Sets:
    """The first `samples` (None: all) of the shards at `source` as a folder, as our shards, and as each peer has them.

    What an earlier run made of the same shards is used again.  Raises Differ unless all sides give the same keys,
    pictures and texts.
    """
    name = source.name if samples is None else f"{source.name}-{samples}"
    base = work / "peers" / f"{name}-{_mark(source)[:8]}"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / "folder"
    _once(folder, lambda out: _extract(source, out, samples))
    data = {"ours": str(source), "folder": str(folder)}
    if samples is not None:
        _once(base / "ours", lambda out: _shards(folder, out, samples))
        data["ours"] = str(base / "ours")
    data["limit"] = data["webdataset"] = data["ours"]
    ours = measure("ours", "content", data["ours"], {})
    for peer in peers:
        if peer not in data:
            _once(base / peer, lambda out, peer=peer: measure(peer, "write", str(folder), {"out": str(out)}))  # type: ignore[misc]
            data[peer] = str(base / peer)
        theirs = measure(peer, "content", data[peer], {})
        if theirs != ours:
            raise Differ(f"ours and {peer} do not give the same samples: {ours}, {theirs}")
    return Sets(source.name, base, folder, data, ours["samples"], ours["bytes"])


def _mark(source: Path) -> str:
    """Changes when the dataset does."""
    digest = hashlib.sha256()
    for path in sorted(source.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        if path.name.startswith("manifest"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _once(folder: Path, make: Callable[[Path], object]) -> None:
    """What is there is whole: it gets its name when it is."""
    if folder.exists():
        return
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    make(part)
    part.rename(folder)


def _extract(source: Path, out: Path, samples: int | None) -> None:
    from streaming import StreamingDataset

    for number, sample in enumerate(StreamingDataset(source, decode=False, rank=0, world_size=1)):
        if number == samples:
            break
        (out / f"{sample['__key__']}.jpg").write_bytes(sample["jpg"])
        (out / f"{sample['__key__']}.txt").write_bytes(sample["txt"])


def _shards(folder: Path, out: Path, samples: int) -> None:
    """Of a few samples several shards, too: webdataset refuses fewer shards than workers."""
    from shardwriter import convert, sources

    convert(sources.folder(folder), out, max_samples=min(PER_SHARD, max(1, samples // 10)), progress=False)
