"""Every error that this package raises on purpose; all are ShardErrors of `shardwriter` too.

ShardError
├── StreamError             base of the errors below
│   ├── PlanError           a plan that can't be made: arguments, sizes, or an epoch without a batch (also ValueError)
│   ├── StateError          a saved state that is not one of ours, or of another version (also ValueError)
│   │   └── StateMismatch   a state of another dataset or configuration; names what differs
│   ├── DatasetNotFound     no shard matches the source (also FileNotFoundError)
│   ├── FieldMissing        a sample lacks a field that was asked for (also KeyError)
│   ├── TransformError      the user's transform or decoder raised; carries its text
│   ├── BatchError          samples that can't form a batch: shapes or fields that differ (also ValueError)
│   ├── TooManySkipped      more samples were skipped than the limit allows
│   └── WorkerError         a worker process died; names it, and the signal (also RuntimeError)
├── DecodeError, StoreError, FormatError ...   see shardwriter.errors
"""

from __future__ import annotations

from shardwriter.errors import (
    DecodeError,
    FormatError,
    IndexMismatch,
    MissingExtra,
    ObjectChanged,
    ObjectNotFound,
    ShardError,
    StoreError,
)

__all__ = [
    "BatchError",
    "DatasetNotFound",
    "DecodeError",
    "FieldMissing",
    "FormatError",
    "IndexMismatch",
    "MissingExtra",
    "ObjectChanged",
    "ObjectNotFound",
    "PlanError",
    "ShardError",
    "StateError",
    "StateMismatch",
    "StoreError",
    "StreamError",
    "TooManySkipped",
    "TransformError",
    "WorkerError",
]


class StreamError(ShardError):
    """Base of the errors that `streaming` adds."""


class PlanError(StreamError, ValueError):
    """A plan that can't be made."""


class StateError(StreamError, ValueError):
    """A saved state that can't be read."""


class StateMismatch(StateError):
    """A saved state of another dataset or configuration."""


class DatasetNotFound(StreamError, FileNotFoundError):
    """No shard matches the source."""


class FieldMissing(StreamError, KeyError):
    """A sample lacks a field that was asked for."""

    __str__ = ShardError.__str__  # KeyError would show the repr of the text


class TransformError(StreamError):
    """The user's transform or decoder raised an exception."""


class BatchError(StreamError, ValueError):
    """Samples that can't form a batch."""


class TooManySkipped(StreamError):
    """More samples were skipped than the limit allows."""


class WorkerError(StreamError, RuntimeError):
    """A worker process died."""
