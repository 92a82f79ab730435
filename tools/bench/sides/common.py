"""What all sides share: sizes, the files of the folder, and what turns JPEG bytes into pixels."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

BATCH, SIDE = 64, 224
PER_SHARD = 1000
ROOT = Path(__file__).resolve().parents[3]


def files(folder: str) -> list[tuple[str, Path, Path]]:
    """(key, picture, caption) of each sample of a folder, in the order of the keys."""
    pictures = sorted(Path(folder).glob("*.jpg"))
    return [(path.stem, path, path.with_suffix(".txt")) for path in pictures]


def samples(folder: str) -> Iterator[dict[str, Any]]:
    """The samples of a folder: bytes and text."""
    for key, picture, caption in files(folder):
        yield {"__key__": key, "jpg": picture.read_bytes(), "txt": caption.read_text(encoding="utf-8")}


def fit(image: Any) -> Any:
    """A Pillow image as uint8 [3, SIDE, SIDE]: scaled to cover, cropped at the centre."""
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)


def fit_tensor(image: Any) -> Any:
    """A tensor uint8 [3, h, w] likewise, with torchvision."""
    from torchvision.transforms.v2 import functional

    return functional.center_crop(functional.resize(image, [SIDE], antialias=True), [SIDE, SIDE])


def decode_pillow(data: bytes) -> Any:
    """The default decoder of most sides."""
    from PIL import Image

    return fit(Image.open(io.BytesIO(data)))


def decode_torchvision(data: bytes) -> Any:
    """torchvision's own decoder of JPEG."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    return fit_tensor(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB))


def decode_ours(data: bytes) -> Any:
    """Our decode function, given to a peer."""
    image = _our_image()
    return image.decode_image(bytes(data), image.Framing((SIDE, SIDE)))


@cache
def _our_image() -> Any:
    """Our streaming.image, from this checkout, under another name: a peer has a package called `streaming`, too."""
    sys.path.append(str(ROOT))  # behind the peer's own packages
    package = ROOT / "streaming" / "__init__.py"
    spec = importlib.util.spec_from_file_location("ours", package, submodule_search_locations=[str(package.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ours"] = module
    spec.loader.exec_module(module)
    return importlib.import_module("ours.image")


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "pillow": decode_pillow,
    "torchvision": decode_torchvision,
    "ours": decode_ours,
}


class Again:
    """Iterates over what `make` makes, each time anew."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def loader(dataset: Any, workers: int, *, kind: Any = None, **options: Any) -> Any:
    """torch's DataLoader, or another `kind`, with batches of BATCH unless `options` say otherwise."""
    from torch.utils.data import DataLoader

    more = {"batch_size": BATCH} | options
    if workers:
        more["persistent_workers"] = True
    return (kind or DataLoader)(dataset, num_workers=workers, **more)
