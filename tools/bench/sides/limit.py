"""No loader: what the libraries below it can do at most on this machine.

Pictures: bytes that are in memory already are decoded by simplejpeg and resized by torch's antialiased kernel into a
tensor that is there already, by as many threads as there are cores.  Files: what `tar` takes to make one archive.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from glob import glob
from typing import Any

from .common import BATCH, SIDE

MODULES = ["torch", "simplejpeg"]
LARGEST = 1 << 22
"""Pixels of the largest picture, for which memory is taken once."""


def write(folder: str, out: str) -> None:
    """The names come through a file, as there may be more than a command line holds."""
    names = sorted(os.listdir(folder))
    command = ["tar", "-c", "-f", f"{out}/all.tar", "-C", folder, "--verbatim-files-from", "-T", "-"]
    subprocess.run(command, input="\n".join(names), text=True, check=True)


def decode(data: str, threads: int, pixel: int = 3) -> dict[str, Any]:
    """Samples, bytes and seconds of an epoch, the reading of the shards not counted.

    With pixels of 3 bytes torch's kernel splits colours into planes; with 4 numpy does, from words, which is quicker
    on some machines.
    """
    import torch

    torch.set_num_threads(1)
    pictures = _pictures(data)
    slots = [torch.empty(BATCH, 3, SIDE, SIDE, dtype=torch.uint8) for _ in range(threads)]
    _decode(pictures[:BATCH], slots[0], pixel)
    workers = [
        threading.Thread(target=_decode, args=(pictures[first::threads], slots[first], pixel))
        for first in range(threads)
    ]
    start, used = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    size = len(pictures) * 3 * SIDE * SIDE
    return {"samples": len(pictures), "bytes": size, "rated": len(pictures), "seconds": seconds, "cpu": cpu}


def _pictures(data: str) -> list[bytes]:
    import tarfile

    found = []
    for shard in sorted(glob(f"{data}/*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(".jpg") else None
                if file is not None:
                    found.append(file.read())
    return found


def _decode(pictures: list[bytes], batch: Any, pixel: int) -> None:
    """Each picture into its place in the batch."""
    import numpy as np
    import simplejpeg
    import torch

    resize = torch._C._nn._upsample_bilinear2d_aa
    colours = "RGB" if pixel == 3 else "RGBX"
    memory = np.empty(LARGEST * pixel, np.uint8)
    small = np.empty((SIDE, SIDE, 4), np.uint8)
    between = torch.from_numpy(small).permute(2, 0, 1)[None]
    words = small.view("<u4")[..., 0]
    for number, data in enumerate(pictures):
        pixels = simplejpeg.decode_jpeg(data, colorspace=colours, strict=True, buffer=memory)
        h, w, _ = pixels.shape
        side = min(h, w)
        top, left = (h - side) // 2, (w - side) // 2
        image = torch.from_numpy(pixels[top : top + side, left : left + side]).permute(2, 0, 1)[None]
        place = batch[number % BATCH]
        if pixel == 3:
            resize(image, [SIDE, SIDE], False, None, None, out=place[None])
            continue
        resize(image, [SIDE, SIDE], False, None, None, out=between)
        planes = place.numpy()
        for colour in range(3):
            np.copyto(planes[colour], words >> np.uint32(8 * colour), casting="unsafe")
