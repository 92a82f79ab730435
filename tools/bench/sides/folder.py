"""No library: a folder of files under torch's DataLoader, as in most tutorials."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from .common import BATCH, DECODERS, decode_pillow, files, loader

MODULES = ["torch", "PIL.Image", "torch.utils.data"]


class Files:
    """Map-style: number -> sample."""

    def __init__(self, folder: str, decode: Any = None) -> None:
        self._files = files(folder)
        self._decode = decode

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> dict[str, Any]:
        key, picture, caption = self._files[at]
        data = picture.read_bytes()
        image = data if self._decode is None else self._decode(data)
        return {"__key__": key, "jpg": image, "txt": caption.read_text(encoding="utf-8")}


def write(folder: str, out: str) -> None:
    """It is the folder."""
    shutil.copytree(folder, Path(out), dirs_exist_ok=True)


def raw(data: str) -> Any:
    return Files(data)


def batches(data: str, workers: int = 0, decoder: str = "pillow") -> Any:
    return loader(Files(data, DECODERS[decoder]), workers)


def start(data: str) -> Any:
    return batches(data)


def save_state(data: str, at: int, path: str) -> None:
    """A number is all there is to it, and DataLoader has no place to put it."""
    Path(path).write_text(f"{data} {at}")


def resume(data: str, at: int, path: str) -> Any:  # noqa: ARG001 (some sides need it)
    """By hand: the rest of the files."""
    from torch.utils.data import Subset

    dataset: Any = Files(data, decode_pillow)
    return iter(loader(Subset(dataset, range(at * BATCH, len(dataset))), 0))
