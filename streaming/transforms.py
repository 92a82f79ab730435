"""Random crops and flips of images, done while they are decoded where they lead the list of transforms; Normalize.

>>> StreamingDataset(url, batch=FixedBatch(64, size=224), transform=[RandomResizedCrop(), RandomFlip(), my_function])

Steps that lead the list become part of decoding: the box is drawn before the image is, only as much of a JPEG's
resolution is decoded as the box needs, and the result is scaled once, into the batch.  Behind another function, or
called by hand, they work on decoded samples.  Either way a step draws the same numbers from the sample's generator, and
all images of a sample get the same draws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .decode import guarded
from .errors import PlanError, TransformError
from .framing import DRAWS, Crop, Framing
from .normalize import Normalize
from .resize import frame

__all__ = ["ImageStep", "Normalize", "RandomFlip", "RandomResizedCrop"]

Sample = dict[str, Any]
Transform = Callable[[Sample, np.random.Generator], Sample]
Size = tuple[int, int]


class ImageStep(ABC):
    """What changes the images of a sample: called with a decoded sample and its generator, or fused into decoding.

    The images are the sample's uint8 and float tensors [3, height, width].
    """

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """A sample with its images changed; what was given stays as it is."""
        draws = self.draw(rng)
        return {name: self._changed(value, draws) if _is_image(value) else value for name, value in sample.items()}

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> tuple[float, ...]:
        """What is random for one sample, from 0 to 1."""

    @abstractmethod
    def framed(self, framing: Framing, draws: tuple[float, ...]) -> Framing:
        """`framing`, and then this step."""

    def _changed(self, image: torch.Tensor, draws: tuple[float, ...]) -> torch.Tensor:
        return frame(image, self.framed(Framing(), draws))


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(ImageStep):
    """A random part of each image, scaled to `size`: what Inception was trained with, and most models since.

    >>> RandomResizedCrop(224, scale=(0.5, 1.0))
    RandomResizedCrop(size=(224, 224), scale=(0.5, 1.0), ratio=(0.75, 1.3333333333333333))

    The part has `scale` of the image's area, uniformly, and a shape that is `ratio` times that of the result in width /
    height, uniformly in its logarithm; for square results that is its width / height.  Ten boxes are tried; where none
    fits into the image, the largest allowed part from the middle is taken.

    `size` is (height, width), or one number for both.  Without it, it is that of the batch (`FixedBatch(n, size=...)`,
    or the shape of the bucket); on a decoded sample, that which the image has.  Raises PlanError.
    """

    size: int | Size | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        if size is not None:
            if not isinstance(size, tuple | list) or len(size) != 2 or not all(_is_side(s) for s in size):
                raise PlanError(f"RandomResizedCrop(size={self.size!r}): give (height, width) in pixels")
            object.__setattr__(self, "size", tuple(size))
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            bounds = getattr(self, name)
            if not _is_range(bounds) or not 0 < bounds[0] <= bounds[1] <= most or math.isinf(bounds[1]):
                raise PlanError(
                    f"RandomResizedCrop({name}={bounds!r}): give (least, greatest), above 0"
                    + (" and at most 1" if name == "scale" else "")
                )
            object.__setattr__(self, name, tuple(bounds))

    def draw(self, rng: np.random.Generator) -> tuple[float, ...]:
        """Areas and shapes of the boxes that are tried, and where the one that fits lies."""
        return tuple(rng.random(DRAWS).tolist())

    def framed(self, framing: Framing, draws: tuple[float, ...]) -> Framing:
        """The framing with the box that the draws mean, scaled to its size or to this one's."""
        size = _pair(self.size) or framing.size
        if size is None:
            raise PlanError(_NO_SIZE)
        shape = size[1] / size[0]
        ratio = (self.ratio[0] * shape, self.ratio[1] * shape)
        return Framing(size=size, crop=Crop(self.scale, ratio, draws, mirrored=framing.flip), flip=framing.flip)

    def _changed(self, image: torch.Tensor, draws: tuple[float, ...]) -> torch.Tensor:
        own = int(image.shape[1]), int(image.shape[2])
        return frame(image, self.framed(Framing(own), draws))


@dataclass(frozen=True, slots=True)
class RandomFlip(ImageStep):
    """Changes left and right of a sample's images, with probability `p`.  Raises PlanError.

    >>> RandomFlip(0.5)
    RandomFlip(p=0.5)
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not _is_number(self.p) or not 0 <= self.p <= 1:
            raise PlanError(f"RandomFlip(p={self.p!r}): give a probability from 0 to 1")

    def draw(self, rng: np.random.Generator) -> tuple[float, ...]:
        """One number; the images are flipped where it is below `p`."""
        return (float(rng.random()),)

    def framed(self, framing: Framing, draws: tuple[float, ...]) -> Framing:
        """The framing, with left and right changed where the draw says so."""
        flip = framing.flip != (draws[0] < self.p)
        return Framing(framing.size, framing.longest, framing.at, framing.crop, flip)


@dataclass(frozen=True, slots=True)
class Composed:
    """Transforms one after the other; all take their numbers from one generator.

    Raises TransformError, which names the function that raised or gave no dict.
    """

    transforms: tuple[Transform, ...]

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The sample behind the last of them."""
        for transform in self.transforms:
            changed = guarded(transform, sample, rng)
            if not isinstance(changed, dict):
                name = getattr(transform, "__name__", type(transform).__name__)
                raise TransformError(
                    f"{name}() returned {type(changed).__name__}, not a dict", hint="return the sample"
                )
            sample = changed
        return sample


def leading(
    transform: Transform | Sequence[Transform] | None, *, fused: bool = True
) -> tuple[tuple[ImageStep, ...], Transform | None]:
    """(the steps that can be part of decoding, what is left to do with the decoded sample).

    Steps are those at the start of the list, up to a second crop; none with fused=False, where images are decoded by
    a function of the user's.  Raises PlanError for what can't be called.
    """
    given = () if transform is None else (transform,) if callable(transform) else transform
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(callable(t) for t in given):
        raise PlanError(f"transform={transform!r}: give a function of (sample, rng), or a list of them")
    steps: list[ImageStep] = []
    for step in given:
        if not fused or not isinstance(step, ImageStep) or (_crops(step) and any(_crops(s) for s in steps)):
            break
        steps.append(step)
    return tuple(steps), composed(given[len(steps) :])


def composed(transforms: Sequence[Transform]) -> Transform | None:
    """One transform that does all; None where there is nothing to do."""
    if len(transforms) < 2:
        return transforms[0] if transforms else None
    return Composed(tuple(transforms))


def check(steps: Sequence[ImageStep], framing: Framing | None) -> None:
    """Raise PlanError where a crop has no size, or another than the batch."""
    wanted = None if framing is None else framing.size
    for step in steps:
        if not isinstance(step, RandomResizedCrop):
            continue
        if step.size is None and wanted is None:
            raise PlanError(_NO_SIZE)
        if wanted is not None and step.size not in (None, wanted):
            raise PlanError(
                f"RandomResizedCrop gives images of {step.size}, the batch takes {wanted}",
                hint="leave out the size of the crop",
            )


def drawn(steps: Sequence[ImageStep], framing: Framing | None, rng: np.random.Generator) -> Framing:
    """The framing of one sample: that of its batch, and then each step with what it draws from `rng`."""
    framing = framing or Framing()
    for step in steps:
        framing = step.framed(framing, step.draw(rng))
    return framing


_NO_SIZE = "RandomResizedCrop without a size: give one, as in RandomResizedCrop(224), or FixedBatch(n, size=...)"


def _crops(step: ImageStep) -> bool:
    return isinstance(step, RandomResizedCrop)


def _is_image(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.ndim == 3
        and value.shape[0] == 3
        and (value.dtype == torch.uint8 or value.is_floating_point())
    )


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(_is_number(v) for v in value)


def _pair(size: int | Size | None) -> Size | None:
    return (size, size) if isinstance(size, int) else size
