"""Scaling of images by one antialiased bilinear kernel, into memory that is there already.

>>> image = torch.zeros((3, 300, 400), dtype=torch.uint8)
>>> cover(image, 224, 224).shape, shrink(image, 100).shape
(torch.Size([3, 224, 224]), torch.Size([3, 75, 100]))

torch has the kernel that writes into a given tensor under a private name.  It is used where it is found to give what
the public one gives; else the public one is, and one copy more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from .framing import Framing

Kernel = Callable[[torch.Tensor, torch.Tensor], None]

_HALVES: Final = (torch.float16, torch.bfloat16)
"""Types that the kernel does not know on every device."""


def scaled(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """An image [c, h, w], uint8 or float, scaled to height x width with an antialiased bilinear kernel."""
    if tuple(image.shape[1:]) == (height, width):
        return image
    given = image[None]
    if image.dtype == torch.uint8:  # as kernel() says
        given = given.contiguous(memory_format=torch.channels_last)
    elif image.dtype in _HALVES:
        given = given.float()
    return interpolate(given, size=(height, width), mode="bilinear", antialias=True)[0].to(image.dtype)


def scale_into(pixels: NDArray[np.uint8], out: torch.Tensor) -> None:
    """Write pixels [h, w, c], scaled to the size of `out`, uint8 [c, height, width], into that.  It is what `scaled`
    gives.
    """
    place = out[None]
    if pixels.shape[:2] == out.shape[1:]:
        np.copyto(out.numpy(), pixels.transpose(2, 0, 1))
    elif out.is_contiguous() or place.is_contiguous(memory_format=torch.channels_last):
        # Pixels with gaps between rows the kernel would copy itself, ten times as slow as numpy does.
        kernel()(torch.from_numpy(np.ascontiguousarray(pixels)[None].transpose(0, 3, 1, 2)), place)
    else:  # the kernel takes rows to lie close behind each other
        out.copy_(scaled(torch.from_numpy(pixels).permute(2, 0, 1), int(out.shape[1]), int(out.shape[2])))


def cover(image: torch.Tensor, height: int, width: int, *, at: tuple[float, float] = (0.5, 0.5)) -> torch.Tensor:
    """Scale an image [3, h, w] so that it covers height x width, and crop it: uint8 [3, height, width].

    The crop lies at the centre, or at another place from 0 to 1 down and across.  It is cut from the source first,
    rounded to whole pixels, then resized once with an antialiased bilinear kernel.
    """
    return frame(image, Framing((height, width), at=at))


def shrink(image: torch.Tensor, longest: int) -> torch.Tensor:
    """Scale an image [3, h, w] down so that its longer side is `longest`, as plans count it; small ones stay."""
    return frame(image, Framing(longest=longest))


def frame(image: torch.Tensor, framing: Framing) -> torch.Tensor:
    """An image [c, h, w], uint8 or float, as `framing` says; a view of it where nothing is scaled or mirrored."""
    height, width = int(image.shape[1]), int(image.shape[2])
    top, left, h, w = framing.box(height, width)
    if (h, w) != (height, width):
        image = image[:, top : top + h, left : left + w]
    image = scaled(image, *framing.shape(h, w))
    return image.flip(-1) if framing.flip else image


@cache
def kernel() -> Kernel:
    """What scales an image, uint8 [1, c, h, w] whose channels lie side by side, into another without gaps.

    Of planes torch's kernel makes only planes, and none of a single pixel, which it takes for the other layout.
    """
    function = getattr(torch._C._nn, "_upsample_bilinear2d_aa", None)
    return _into(function) if function is not None and _agrees(function) else _through_copy


def _into(function: Callable[..., Any]) -> Kernel:
    def scale(image: torch.Tensor, out: torch.Tensor) -> None:
        function(image, out.shape[2:], False, None, None, out=out)

    return scale


def _through_copy(image: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(interpolate(image, size=out.shape[2:], mode="bilinear", antialias=True))


def _agrees(function: Callable[..., Any]) -> bool:
    """Whether the kernel under the private name writes what the public one gives, for each layout that is used."""
    into = _into(function)
    for channels, layout in ((3, torch.contiguous_format), (3, torch.channels_last), (4, torch.channels_last)):
        image = (torch.arange(9 * 7 * channels) * 37 % 256).to(torch.uint8).view(1, 9, 7, channels).permute(0, 3, 1, 2)
        out = torch.zeros((1, channels, 5, 4), dtype=torch.uint8).contiguous(memory_format=layout)
        start, strides = out.data_ptr(), out.stride()
        try:
            into(image, out)
        except (RuntimeError, TypeError):  # other arguments, or other layouts, than this version takes
            return False
        wanted = interpolate(image, size=(5, 4), mode="bilinear", antialias=True)
        if (out.data_ptr(), out.stride()) != (start, strides) or not torch.equal(out, wanted):
            return False
    return True
