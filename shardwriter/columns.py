"""The numeric columns of a shard: what is measured from the bytes of each sample, and what the user adds.

>>> builder = ColumnBuilder()
>>> builder.add([("txt", b"a cat")], {"tokens": 2})
>>> builder.add([("txt", b"two dogs")], {"tokens": 3})
>>> {name: (column.dtype.str, column.tolist()) for name, column in builder.arrays().items()}
{'tokens': ('<i4', [2, 3])}

Writing and indexing both build their columns here, so that the index of a shard does not depend on who made it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .aggregate import SIZE
from .errors import EncodeError
from .format import Buffer
from .kinds import AUDIO_FIELDS, IMAGE_FIELDS
from .probe import probe

_MEASURED: Final = {"image": ("width", "height"), "audio": ("frames", "rate")}
_INT64: Final = range(-(1 << 63), 1 << 63)


def measure(fields: Iterable[tuple[str, Buffer]]) -> dict[str, int]:
    """The numbers of one sample, from the headers of its images and audio.

    `fields` are (field, bytes) in the order in which they lie in the shard.  The first image gives `width` and
    `height`, the first audio `frames` and `rate`; each further one gives `<field>.width` and so on.  A number that
    can't be told is left out.
    """
    numbers: dict[str, int] = {}
    taken: set[str] = set()
    for field, data in fields:
        last = field.rpartition(".")[2]
        kind = "image" if last in IMAGE_FIELDS else "audio" if last in AUDIO_FIELDS else None
        if kind is None:
            continue
        prefix = f"{field}." if kind in taken else ""
        taken.add(kind)
        found = probe(field, data)
        for name in _MEASURED[kind]:
            if name in found:
                numbers[prefix + name] = found[name]
    return numbers


class ColumnBuilder:
    """Collects one row of numbers a sample; `arrays()` gives them as columns.

    Measured columns hold 0 where a number is not known, and a measured column of nothing but zeros is left out.
    Columns that the user adds have the same names in every sample of a shard.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._measured: dict[str, tuple[list[int], list[int]]] = {}
        self._extra: dict[str, list[int | float]] = {}

    def __len__(self) -> int:
        return self._samples

    def add(self, fields: Iterable[tuple[str, Buffer]], extra: Mapping[str, int | float] | None = None) -> None:
        """Add one sample: its (field, bytes) in shard order, and the numbers that the user gives for it.

        Raises EncodeError, and adds nothing, for a number that is not finite or beyond 64 bits, for names that differ
        from those of the samples before, and for a name that is measured from the sample's own bytes.
        """
        numbers = measure(fields)
        checked = _checked(extra, numbers) if extra else {}
        if self._samples and checked.keys() != self._extra.keys():
            raise EncodeError(
                f"the columns of this sample are {sorted(checked)}, those of the samples before {sorted(self._extra)}",
                hint="give every sample of a shard the same columns",
            )
        for name, value in numbers.items():
            rows, values = self._measured.setdefault(name, ([], []))
            rows.append(self._samples)
            values.append(value)
        for name, number in checked.items():
            self._extra.setdefault(name, []).append(number)
        self._samples += 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name -> column [samples], by name: int32 (int64 where a value needs it) or float64, little-endian."""
        columns: dict[str, NDArray[Any]] = {}
        for name, (rows, values) in self._measured.items():
            if any(values) and name not in self._extra:
                column = np.zeros(self._samples, "<i8")
                column[rows] = values
                columns[name] = _narrow(column)
        for name, numbers in self._extra.items():
            exact = all(isinstance(number, int) for number in numbers)
            columns[name] = _narrow(np.array(numbers, "<i8")) if exact else np.array(numbers, "<f8")
        return dict(sorted(columns.items()))


def _checked(extra: Mapping[str, int | float], measured: Mapping[str, int]) -> dict[str, int | float]:
    """The user's numbers as plain int and float (numpy's are common), or EncodeError."""
    numbers: dict[str, int | float] = {}
    for name, value in extra.items():
        if not isinstance(name, str) or not name.isprintable() or not name or name == SIZE:
            raise EncodeError(f"{name!r} can't name a column", hint=f"use printable text other than {SIZE!r}")
        if measured.get(name):
            raise EncodeError(f"column {name!r} is measured from the sample itself", hint="use another name for yours")
        number = _number(value)
        if number is None:
            raise EncodeError(f"column {name!r} can't hold {value!r}: it is no finite number of at most 64 bits")
        numbers[name] = number
    return numbers


def _number(value: object) -> int | float | None:
    if isinstance(value, int | np.integer | np.bool_):
        return int(value) if int(value) in _INT64 else None
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return None


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    limits = np.iinfo("<i4")
    small = len(column) == 0 or (int(column.min()) >= limits.min and int(column.max()) <= limits.max)
    return column.astype("<i4") if small else column
