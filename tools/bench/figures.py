"""What is measured: each figure, with all ways to measure it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Way:
    """One line of a table: a side, how it is set up, and which kind of measurement (measure.py) it is."""

    side: str
    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    """Label of the way that it is compared with; None: the best of ours."""

    @property
    def label(self) -> str:
        return f"{self.side}, {self.name}" if self.name else self.side


@dataclass(frozen=True)
class Figure:
    """A table."""

    name: str
    about: str
    unit: str
    better: Literal["more", "less"]
    ways: tuple[Way, ...]


NAMES = ["raw", "decoded", "our decoder", "first batch", "resume", "memory", "write", "busy trainer"]
RESUMABLE = ["ours", "mosaic", "litdata", "huggingface", "folder"]
OWN_PROCESSES = "ray"
"""The peer that has its processes by itself and not as workers of torch's DataLoader."""


def figures(peers: Iterable[str], cores: int) -> list[Figure]:
    """All of them, in the order of NAMES, with the ways of these peers."""
    peers = list(peers)
    # Pictures that LitData gives raw are views of a map: ours are compared as such.
    raw = [Way(peer, "", "raw", against="ours, views" if peer == "litdata" else "ours, bytes") for peer in peers]
    if "webdataset" in peers:
        raw.append(Way("webdataset", "shuffled", "raw", {"shuffle": True}, "ours, shuffled"))
        raw.append(Way("webdataset", "batches", "raw", {"batched": True}, "ours, batches"))
    if "mosaic" in peers:
        raw.append(Way("mosaic", "by number", "raw", {"by_number": True}, "ours, bytes"))
    resumable = [side for side in RESUMABLE if side == "ours" or side in peers]
    limits = [
        Way("limit", f"{cores} threads, {pixel} bytes a pixel", "limit", {"threads": cores, "pixel": pixel})
        for pixel in (3, 4)
    ]
    return [
        Figure(
            "raw", "single samples as bytes and text, in order, one process", "samples/s", "more",
            (*_ours_raw(), *raw),
        ),
        Figure(
            "decoded", "uint8 batches [64, 3, 224, 224], scaled to cover and cropped, each side with its own decoder",
            "samples/s", "more", (*_ours_decoded("batches", cores), *limits, *_decoded("batches", peers, cores)),
        ),
        Figure(
            "our decoder", "the same, the peers with our decode function", "samples/s", "more",
            (*_ours_decoded("batches", cores), *limits, *_decoded("batches", peers, cores, decoder="ours")),
        ),
        Figure(
            "first batch", "from the end of the imports to the first decoded batch", "s", "less",
            (
                Way("ours", "one process", "first"),
                Way("ours", "loader of 1 worker", "first", {"how": "loader", "workers": 1}),
                *(Way(peer, "one process" if peer != OWN_PROCESSES else "", "first") for peer in peers),
            ),
        ),
        Figure(
            "resume", "first decoded batch at 95 % of the epoch, and how many times a fresh start that takes", "s",
            "less",
            tuple(
                way
                for side in resumable
                for way in (Way(side, "fresh", "fresh"), Way(side, "resumed", "resumed", against=f"{side}, fresh"))
            ),
        ),
        Figure(
            "memory", "peak PSS of the process tree over an epoch of decoded batches", "MB", "less",
            (*_ours_decoded("batches", cores), *_decoded("batches", peers, cores, single=False)),
        ),
        Figure(
            "write", "a folder of pictures and captions written in each format", "samples/s", "more",
            (
                Way("ours", f"{cores} processes", "write", {"workers": cores}),
                Way("ours", "one process", "write", {"workers": 1}),
                Way("limit", "tar cf", "write"),
                *_written(peers, cores),
            ),
        ),
        Figure(
            "busy trainer", "what a trainer that runs Python for 80 % of a step gets, of what an idle one gets",
            "busy/idle", "more",
            tuple(
                Way("ours", f"{workers} workers, {threads} threads", "busy", {"workers": workers, "threads": threads})
                for workers, threads in ((1, 1), (1, cores), (0, 1), (0, cores))
            ),
        ),
    ]  # fmt: skip


def _ours_raw() -> list[Way]:
    return [
        Way("ours", "bytes", "raw"),
        Way("ours", "views", "raw", {"decode": "views"}),
        Way("ours", "shuffled", "raw", {"shuffle": True, "tail": "uneven"}),
        Way("ours", "batches", "raw", {"batched": True}),
    ]


def _ours_decoded(kind: str, cores: int) -> list[Way]:
    return [
        Way("ours", f"{cores} threads", kind, {"how": "process", "threads": cores}),
        Way("ours", f"loader of 1 worker, {cores} threads", kind, {"how": "loader", "workers": 1, "threads": cores}),
        Way("ours", f"loader of {cores} workers", kind, {"how": "loader", "workers": cores}),
        Way("ours", f"DataLoader of {cores} workers", kind, {"how": "dataloader", "workers": cores}),
    ]


def _decoded(kind: str, peers: list[str], cores: int, *, single: bool = True, **options: Any) -> list[Way]:
    """One process, unless not `single`, and as many workers as there are cores."""
    ways = []
    for peer in peers:
        if peer == OWN_PROCESSES:
            # It reads ahead as far as its object store goes.
            ways.append(Way(peer, "", kind, {"whole": True} | options))
            continue
        if single:
            ways.append(Way(peer, "one process", kind, {"workers": 0} | options))
        ways.append(Way(peer, f"{cores} workers", kind, {"workers": cores} | options))
    return ways


def _written(peers: list[str], cores: int) -> list[Way]:
    """Each peer's own writer; LitData's has processes, and one of its two folders is enough."""
    options = {"litdata": {"workers": cores, "kinds": ["image"]}}
    names = {"litdata": f"{cores} processes", "ray": "with pyarrow", "folder": "copied"}
    return [Way(peer, names.get(peer, ""), "write", options.get(peer, {})) for peer in peers]
