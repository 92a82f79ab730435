"""How samples become batches.

>>> FixedBatch(64)
FixedBatch(64)
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError


@dataclass(frozen=True, slots=True, repr=False)
class FixedBatch:
    """Batches of `samples` samples each; images of one `size` where given.

    >>> FixedBatch(64, size=224)
    FixedBatch(64, size=(224, 224))

    `size` is (height, width), or one number for both: every decoded image is scaled to cover it and cropped at the
    centre, so that a batch is one dense uint8 tensor [samples, 3, height, width].  Without it, images of a batch must
    agree in size by themselves or through `transform`.
    """

    samples: int
    size: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise PlanError(f"FixedBatch({self.samples!r}): a batch has at least 1 sample")
        if isinstance(self.size, int) and not isinstance(self.size, bool):
            object.__setattr__(self, "size", (self.size, self.size))
        sides = (1, 1) if self.size is None else self.size
        if not isinstance(sides, tuple) or len(sides) != 2 or any(not isinstance(s, int) or s < 1 for s in sides):
            raise PlanError(f"FixedBatch(size={self.size!r}): give (height, width) in pixels")

    @property
    def order_key(self) -> str:
        """What of this decides which samples form a batch."""
        return f"FixedBatch({self.samples})"

    def __repr__(self) -> str:
        return f"FixedBatch({self.samples}, size={self.size})" if self.size else f"FixedBatch({self.samples})"
