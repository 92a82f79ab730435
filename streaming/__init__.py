"""Tar shards into training: the same order on any layout, equal steps on every rank, exact resume.

>>> from streaming import FixedBatch, StreamingDataset, StreamingLoader
>>> train = StreamingDataset("s3://bucket/cc3m", batch=FixedBatch(256, size=224), shuffle=True, seed=7)
>>> for batch in StreamingLoader(train, workers=1, threads=8, device="cuda"):
...     batch["jpg"], batch["txt"]

Names are loaded when they are used, so that importing this package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import Cache
    from .dataset import StreamingDataset
    from .errors import (
        BatchError,
        DatasetNotFound,
        DecodeError,
        FieldMissing,
        FormatError,
        IndexMismatch,
        MissingExtra,
        ObjectChanged,
        ObjectNotFound,
        PlanError,
        ShardError,
        StateError,
        StateMismatch,
        StoreError,
        StreamError,
        TooManySkipped,
        TransformError,
        WorkerError,
    )
    from .loader import StreamingLoader
    from .plan import CostBudget, FixedBatch, Mix, PixelBudget, Plan, Shuffle

_HOME = {
    "Cache": "cache",
    "CostBudget": "plan",
    "FixedBatch": "plan",
    "Mix": "plan",
    "PixelBudget": "plan",
    "Plan": "plan",
    "Shuffle": "plan",
    "StreamingDataset": "dataset",
    "StreamingLoader": "loader",
}

__all__ = [
    "BatchError",
    "Cache",
    "CostBudget",
    "DatasetNotFound",
    "DecodeError",
    "FieldMissing",
    "FixedBatch",
    "FormatError",
    "IndexMismatch",
    "MissingExtra",
    "Mix",
    "ObjectChanged",
    "ObjectNotFound",
    "PixelBudget",
    "Plan",
    "PlanError",
    "ShardError",
    "Shuffle",
    "StateError",
    "StateMismatch",
    "StoreError",
    "StreamError",
    "StreamingDataset",
    "StreamingLoader",
    "TooManySkipped",
    "TransformError",
    "WorkerError",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'errors')}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
