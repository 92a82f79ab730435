"""Which blocks of lanes a reader reads alone, where readers have lanes of their own.

>>> owned(np.array([[0, 100, 200], [0, 100, 160]]), ends=160)       # lane 0 goes on when lane 1 has ended
array([[ True, False],
       [ True,  True]])

While all lanes last each reader has its own.  What is left of the longer ones when the first has ended all readers
share, and so the block of a lane in which that happens belongs to one of them in part only.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOSTLY: Final = 0.8
"""Share of a block's samples from which on a reader may fetch it whole, as if all were its own."""


def owned(starts: NDArray[Any], ends: Any) -> NDArray[np.bool_]:
    """[lanes, blocks]: whether most of a block is read by one reader alone.

    starts [lanes, blocks + 1] or [lanes, blocks + 1, g]: the places at which blocks begin and end, for each of g groups
    of samples; ends, as one number or [lanes, 1, g]: the places up to which all lanes last.
    """
    if starts.ndim == 2:
        starts = starts[:, :, np.newaxis]
    low, high = starts[:, :-1], starts[:, 1:]
    alone = np.clip(np.minimum(high, ends) - low, 0, None).sum(axis=2)
    return np.asarray(alone >= MOSTLY * (high - low).sum(axis=2))
