"""Batches that fill a budget, of pixels or of any other number that the index has.

>>> PixelBudget(224 * 224 * 512)
PixelBudget(25690112)
>>> CostBudget("frames", 16_000 * 600)
CostBudget('frames', 9600000)

What these say becomes groups of similar samples (groups), or bins (packing), once the sizes of a dataset are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from ..errors import PlanError

Mode = Literal["bucket", "pad", "pack"]
Oversize = Literal["alone", "skip", "error"]
Crop = Literal["center", "random"]
MOST_SAMPLES: Final = 1 << 16
"""Samples in one batch, however cheap they are: no sample counts for less than its budget / MOST_SAMPLES."""


@dataclass(frozen=True, slots=True, repr=False)
class PixelBudget:
    """Batches of images that hold at most `max_pixels` pixels, height x width, padding included.

    >>> PixelBudget(224 * 224 * 512)                           # dense batches at native resolution, by aspect ratio
    PixelBudget(25690112)
    >>> PixelBudget(512 * 512 * 32, buckets=[(512, 512), (448, 576), (576, 448)], crop="random")
    PixelBudget(8388608, buckets=((512, 512), (448, 576), (576, 448)), crop='random')
    >>> PixelBudget(224 * 224 * 256, mode="pad", longest=512)
    PixelBudget(12845056, mode='pad', longest=512)

    mode       "bucket": each image is scaled to cover the shape of its bucket and cropped to it, and a batch is one
               dense uint8 tensor [n, 3, height, width].
               "pad": images keep their size and are padded with zeros, at the right and below, to the largest height
               and width of their batch; `<field>.sizes` int64 [n, 2] holds (height, width) of each.
               "pack": a batch is ragged: one flat uint8 tensor of all pixels, offsets, and sizes (see streaming.batch)
    buckets    for "bucket": (height, width) of each; without, they are made from the sizes of the dataset
    multiple   sides of buckets that are made are multiples of this
    area       pixels of an image, about, that buckets aim at: larger images are scaled down to it, smaller ones up
               where `upscale`
    upscale    whether images may be scaled up; sides below `multiple` always are
    longest    images whose longer side is above this are scaled down to it
    crop       "center", or "random": where the crop lies along the side that is too long, drawn for each sample from
               its own generator
    oversize   what happens to an image that is over the budget by itself ("pad" and "pack"; buckets scale it down):
               "alone": it comes in a batch of its own; "skip": it is left out; "error": PlanError.  Both are counted
               and reported before the first batch

    Sizes are those of the index: upright by EXIF, in the pixels that decoding yields, whatever the colour mode.
    """

    max_pixels: int
    mode: Mode = "bucket"
    buckets: Sequence[tuple[int, int]] | None = None
    multiple: int = 32
    area: int | None = None
    upscale: bool = False
    longest: int | None = None
    crop: Crop = "center"
    oversize: Oversize = "alone"

    def __post_init__(self) -> None:
        for name in ("max_pixels", "multiple"):
            _whole(self, name)
        for name in ("area", "longest"):
            if getattr(self, name) is not None:
                _whole(self, name)
        _one_of(self, "mode", Mode)
        _one_of(self, "crop", Crop)
        _one_of(self, "oversize", Oversize)
        if self.buckets is not None:
            object.__setattr__(self, "buckets", _shapes(self))
        if not isinstance(self.upscale, bool):
            raise PlanError(f"PixelBudget(upscale={self.upscale!r}): True or False")
        self._check_mode()

    def _check_mode(self) -> None:
        """Options that another mode would ignore are refused."""
        defaults = {f.name: f.default for f in fields(self)}
        bucket_only = ("buckets", "multiple", "area", "upscale", "crop")
        unused: tuple[str, ...] = bucket_only if self.mode != "bucket" else ("oversize",)
        if self.buckets is not None:
            unused += ("multiple", "area", "longest")
        for name in unused:
            if getattr(self, name) != defaults[name]:
                own = self.mode == "bucket" and name in ("multiple", "area", "longest")
                where = "with buckets= of your own" if own else f"in {self.mode!r}"
                raise PlanError(f"{self!r}: {name}= has no meaning {where}", hint="leave it out")
        if self.buckets is None and self.mode == "bucket" and self.multiple**2 > self.max_pixels:
            raise PlanError(f"{self!r}: one image of {self.multiple} x {self.multiple} is over the budget")

    @property
    def limit(self) -> float:
        """The most that a batch may cost."""
        return self.max_pixels

    @property
    def packs(self) -> bool:
        """Whether batches are packed."""
        return self.mode == "pack"

    @property
    def order_key(self) -> str:
        """What of this decides which samples form a batch."""
        return repr(self)

    def __repr__(self) -> str:
        return _shown(self, [repr(self.max_pixels)])


@dataclass(frozen=True, slots=True, repr=False)
class CostBudget:
    """Batches that cost at most `max_cost`, where a sample costs what `column` of the index says.

    >>> CostBudget("seconds", 120.0)
    CostBudget('seconds', 120.0)
    >>> CostBudget("tokens", 65_536, pad=False)
    CostBudget('tokens', 65536, pad=False)

    column     any column of the index, such as `frames`, `seconds` (frames / rate) or one that the writer was given
    pad        whether what is short is padded to the longest of its batch: a batch then costs n x longest, and holds
               samples of similar cost.  False: it costs the sum, and holds any that fill it (packing)
    oversize   what happens to a sample over the budget: "alone", "skip" or "error", as for PixelBudget

    Arrays of one field that differ in their length only are padded with zeros in a batch, and `<field>.lengths` int64
    [n] holds their lengths.  Those of audio fields count along the last dimension (waveforms [channels, frames]), all
    others along the first (features [frames, dims], tokens [n]).
    """

    column: str
    max_cost: float
    pad: bool = True
    oversize: Oversize = "alone"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise PlanError(f"CostBudget({self.column!r}): give the name of a column of the index")
        valid = isinstance(self.max_cost, int | float) and not isinstance(self.max_cost, bool)
        if not valid or not 0 < self.max_cost < float(1 << 52):
            raise PlanError(f"CostBudget(max_cost={self.max_cost!r}): a positive number is needed")
        if not isinstance(self.pad, bool):
            raise PlanError(f"CostBudget(pad={self.pad!r}): True or False")
        _one_of(self, "oversize", Oversize)

    @property
    def limit(self) -> float:
        """The most that a batch may cost."""
        return self.max_cost

    @property
    def packs(self) -> bool:
        """Whether batches are packed."""
        return not self.pad

    @property
    def order_key(self) -> str:
        """What of this decides which samples form a batch."""
        return repr(self)

    def __repr__(self) -> str:
        return _shown(self, [repr(self.column), repr(self.max_cost)])


def _shown(budget: PixelBudget | CostBudget, first: list[str]) -> str:
    """As it would be written: what is at its default is left out."""
    rest = [f for f in fields(budget)[len(first) :] if getattr(budget, f.name) != f.default]
    return f"{type(budget).__name__}({', '.join([*first, *(f'{f.name}={getattr(budget, f.name)!r}' for f in rest)])})"


def _whole(budget: PixelBudget, name: str) -> None:
    value = getattr(budget, name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 52:
        raise PlanError(f"PixelBudget({name}={value!r}): a whole number of at least 1 is needed")


def _one_of(budget: PixelBudget | CostBudget, name: str, choices: Any) -> None:
    if getattr(budget, name) not in get_args(choices):
        allowed = ", ".join(map(repr, get_args(choices)))
        raise PlanError(f"{type(budget).__name__}({name}={getattr(budget, name)!r})", hint=f"it is one of {allowed}")


def _shapes(budget: PixelBudget) -> tuple[tuple[int, int], ...]:
    shapes = []
    for shape in budget.buckets or ():
        whole = isinstance(shape, tuple | list) and len(shape) == 2 and all(isinstance(s, int) and s > 0 for s in shape)
        if not whole:
            raise PlanError(f"PixelBudget(buckets=...): {shape!r} is no (height, width) in pixels")
        if shape[0] * shape[1] > budget.max_pixels:
            raise PlanError(f"bucket {shape[0]} x {shape[1]} is over the budget of {budget.max_pixels:,} pixels")
        shapes.append((shape[0], shape[1]))
    if not shapes or len(set(shapes)) < len(shapes):
        raise PlanError(f"PixelBudget(buckets={budget.buckets!r}): give each bucket once, and at least one")
    return tuple(shapes)
