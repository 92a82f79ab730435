"""Image sizes as web photos have them, for tools and tests that plan without any image.

    shards = web_shards(3_300_000)          # 330 dicts of `width` and `height`, int32 [10_000] each

Half the images have one of the sizes that picture agencies and photo pages serve; the others follow a log-normal
distribution of the longer side (median 700, at most 4,000) and of the aspect ratio, three quarters of them landscape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STOCK = {
    (450, 338): 8, (450, 300): 8, (300, 450): 4, (1024, 683): 6, (1300, 957): 6, (640, 480): 5, (500, 500): 3,
    (600, 400): 3, (800, 600): 3, (1200, 800): 2, (236, 354): 2, (400, 267): 3,
}  # fmt: skip
"""(width, height) -> how often."""
STOCK_SHARE = 0.5
MEDIAN, SPREAD, LEAST, MOST = 700, 0.45, 64, 4000
ASPECT, ASPECT_SPREAD, PORTRAIT = 1.35, 0.25, 0.25


def web_sizes(samples: int, rng: np.random.Generator) -> dict[str, NDArray[np.int32]]:
    """Columns `width` and `height`, [samples] each."""
    longer = np.clip(np.exp(rng.normal(np.log(MEDIAN), SPREAD, samples)), LEAST, MOST)
    aspect = np.exp(rng.normal(np.log(ASPECT), ASPECT_SPREAD, samples))
    aspect = np.where(rng.random(samples) < PORTRAIT, 1 / aspect, aspect)
    free = np.stack([longer * np.minimum(1, aspect), longer / np.maximum(1, aspect)], axis=1).round()
    weights = np.array(list(STOCK.values()), dtype=float)
    stock = np.array(list(STOCK))[rng.choice(len(STOCK), samples, p=weights / weights.sum())]
    sizes = np.where(rng.random((samples, 1)) < STOCK_SHARE, stock, free).astype(np.int32)
    return {"width": np.ascontiguousarray(sizes[:, 0]), "height": np.ascontiguousarray(sizes[:, 1])}


def web_shards(samples: int, per_shard: int = 10_000, seed: int = 0) -> list[dict[str, Any]]:
    """The columns of each shard; the last one holds what is left."""
    rng = np.random.default_rng(seed)
    return [web_sizes(min(per_shard, samples - low), rng) for low in range(0, samples, per_shard)]
