"""LitData: chunks that optimize() made, once with bytes and once with its own type of image, which it decodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from .common import BATCH, DECODERS, files, fit_tensor, loader

MODULES = ["torch", "torchvision.transforms.v2", "PIL.Image", "litdata"]


def as_bytes(names: tuple[str, Path, Path]) -> dict[str, Any]:
    key, picture, caption = names
    return {"__key__": key, "jpg": picture.read_bytes(), "txt": caption.read_text(encoding="utf-8")}


def as_image(names: tuple[str, Path, Path]) -> dict[str, Any]:
    import litdata

    key, picture, caption = names
    image = litdata.Jpeg(path=str(picture))
    return {"__key__": key, "jpg": image, "txt": caption.read_text(encoding="utf-8")}


def write(folder: str, out: str, workers: int = 2, kinds: tuple[str, ...] = ("bytes", "image")) -> None:
    """Below `out` a folder for each of `kinds`."""
    import litdata

    for kind in kinds:
        litdata.optimize(
            fn={"bytes": as_bytes, "image": as_image}[kind],
            inputs=files(folder),
            output_dir=f"{out}/{kind}",
            chunk_bytes="64MB",
            num_workers=workers,
            keep_data_ordered=True,
            reorder_files=False,
            verbose=False,
        )


def raw(data: str) -> Any:
    """Pictures are views of the mapped chunk."""
    import litdata

    return litdata.StreamingDataset(f"{data}/bytes", shuffle=False)


def batches(data: str, workers: int = 0, decoder: str = "own") -> Any:
    """`decoder` "own": torchvision's, that it uses for its type of image."""
    if decoder == "own":
        return _loader(f"{data}/image", workers, partial(_changed, fit_tensor))
    return _loader(f"{data}/bytes", workers, partial(_changed, DECODERS[decoder]))


def start(data: str) -> Any:
    return batches(data)


def save_state(data: str, at: int, path: str) -> None:
    import torch

    items = batches(data)
    for number, _ in enumerate(items, start=1):
        if number == at:
            torch.save(items.state_dict(), path)
            return


def resume(data: str, at: int, path: str) -> Any:  # noqa: ARG001 (some sides need it)
    import torch

    resumed = batches(data)
    resumed.load_state_dict(torch.load(path, weights_only=False))  # our own file
    return iter(resumed)


def _loader(folder: str, workers: int, transform: Any) -> Any:
    import litdata

    dataset = litdata.StreamingDataset(folder, shuffle=False, transform=transform)
    return loader(dataset, workers, kind=litdata.StreamingDataLoader, batch_size=BATCH)


def _changed(decode: Any, sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"jpg": decode(sample["jpg"])}
