"""Samples whose bytes are at hand, in mapped files or fetched ranges, and not cut out yet.

>>> cut = Cut.of([(np.array([0, 1]), rows)])
>>> next(cut.samples())
{'__key__': '000000017', '__url__': 'x-000000.tar', 'jpg': b'...', 'txt': b'a cat'}

Bytes are copied when a sample's turn comes: they are still in the processor's cache when they are used, and memory for
one sample serves all.  A hundred thousand samples a second leave ten microseconds for each, so what runs for each
sample is left to iterators in C.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import getitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]


@dataclass(slots=True)
class RawSample:
    """One sample as bytes: its place, and the bytes of each field that was asked for, in the order of the shard.

    Bytes are bytes objects, or memoryviews for fields that may be given as views.
    """

    shard: int
    index: int
    url: str
    key: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some samples of one shard: field j of row i is sources[j][lows[i, j] : highs[i, j]], or absent with a negative
    low.  A source is one for all rows, or a list of one for each.
    """

    shard: int
    url: str
    names: tuple[str, ...]
    indices: Ints
    keys: list[str]
    sources: list[Any]
    lows: Ints
    highs: Ints


class Cut:
    """Samples in the order in which they were asked for."""

    def __init__(self, shards: Any, indices: list[int], urls: Any, keys: list[str], fields: dict[str, Field]) -> None:
        self._shards = shards
        self._indices = indices
        self._urls = urls
        self._keys = keys
        self._fields = fields

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def of(cls, parts: Sequence[tuple[Ints, Rows]]) -> Cut:
        """The samples of some shards: each with the places of its rows among all."""
        if len(parts) == 1:
            rows = parts[0][1]
            fields = {name: Field.of(rows, j) for j, name in enumerate(rows.names)}
            return cls(repeat(rows.shard), rows.indices.tolist(), repeat(rows.url), rows.keys, fields)
        order = np.argsort(np.concatenate([at for at, _ in parts] or [np.zeros(0, np.int64)])).tolist()
        names = list(dict.fromkeys(name for _, rows in parts for name in rows.names))

        def joined(values: Iterator[Sequence[Any]]) -> list[Any]:
            flat = [value for some in values for value in some]
            return [flat[i] for i in order]

        return cls(
            joined([rows.shard] * len(at) for at, rows in parts),
            joined(rows.indices.tolist() for _, rows in parts),
            joined([rows.url] * len(at) for at, rows in parts),
            joined(rows.keys for _, rows in parts),
            {name: Field.joined([rows for _, rows in parts], name, order) for name in names},
        )

    @property
    def keys(self) -> list[str]:
        """The key of each sample."""
        return self._keys

    @property
    def size(self) -> int:
        """Bytes of all fields together."""
        return sum(sum(field.highs) - sum(field.lows) for field in self._fields.values())

    @property
    def whole(self) -> bool:
        """Whether all samples have all fields that any of them has."""
        return not any(field.gaps for field in self._fields.values())

    @property
    def fields(self) -> Mapping[str, Field]:
        """Where each field lies."""
        return self._fields

    def samples(self) -> Iterator[dict[str, Any]]:
        """The samples as the webdataset package shapes them, each cut out when it is taken."""
        if not self.whole:
            return ({"__key__": raw.key, "__url__": raw.url, **raw.fields} for raw in self.raw())
        return self.rows({name: field.cut() for name, field in self._fields.items()})

    def rows(self, columns: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
        """The samples with these values of each field."""
        names = ("__key__", "__url__", *columns)
        return map(dict, map(partial(zip, names), zip(self._keys, self._urls, *columns.values(), strict=False)))

    def raw(self) -> Iterator[RawSample]:
        """The samples with their places, each cut out when it is taken."""
        return map(RawSample, self._shards, self._indices, self._urls, self._keys, self._dicts())

    def _dicts(self) -> Iterator[dict[str, Any]]:
        names, fields = tuple(self._fields), list(self._fields.values())
        if not fields:
            return ({} for _ in self._keys)
        if self.whole:
            return map(dict, map(partial(zip, names), zip(*(field.cut() for field in fields), strict=False)))
        return (
            {name: field.at(i) for name, field in zip(names, fields, strict=True) if field.lows[i] >= 0}
            for i in range(len(self))
        )


@dataclass(frozen=True, slots=True)
class Field:
    """One field of some samples: what holds it (one source for all, or a list) and where it lies there."""

    sources: Any
    lows: list[int]
    highs: list[int]
    gaps: bool
    """Whether some samples lack it."""

    @classmethod
    def of(cls, rows: Rows, j: int) -> Field:
        """Field j of rows."""
        lows, source = rows.lows[:, j], rows.sources[j]
        gaps = bool(len(lows)) and int(lows.min()) < 0
        return cls(source, lows.tolist(), rows.highs[:, j].tolist(), gaps)

    @classmethod
    def joined(cls, parts: Sequence[Rows], name: str, order: list[int]) -> Field:
        """A field of the rows of several shards, of which some may lack it, in another order."""
        sources, lows, highs = list[Any](), list[int](), list[int]()
        for rows in parts:
            if name not in rows.names:
                sources += [b""] * len(rows.keys)
                lows += [-1] * len(rows.keys)
                highs += [-1] * len(rows.keys)
                continue
            field = cls.of(rows, rows.names.index(name))
            sources += field.sources if isinstance(field.sources, list) else [field.sources] * len(rows.keys)
            lows += field.lows
            highs += field.highs
        lows = [lows[i] for i in order]
        return cls([sources[i] for i in order], lows, [highs[i] for i in order], min(lows, default=0) < 0)

    def cut(self) -> Iterator[Any]:
        """The bytes in each sample; none may lack the field."""
        sources = self.sources if isinstance(self.sources, list) else repeat(self.sources)
        return map(getitem, sources, map(slice, self.lows, self.highs))

    def at(self, i: int) -> Any:
        """The bytes in sample i."""
        source = self.sources[i] if isinstance(self.sources, list) else self.sources
        return source[self.lows[i] : self.highs[i]]


def sliceable(data: memoryview) -> Any:
    """What gives bytes when it is sliced: the mapped file itself copies in half the time that a view of it takes."""
    owner = data.obj
    return owner if isinstance(owner, mmap.mmap | bytes) and _begins(owner, data) else _Copying(data)


def _begins(owner: mmap.mmap | bytes, data: memoryview) -> bool:
    """Whether a view begins where what it is a view of does, so that the same slices are the same bytes."""
    if len(owner) == len(data) or not len(data):
        return len(owner) == len(data)
    places = [np.frombuffer(x, np.uint8, 1).ctypes.data for x in (owner, data)]
    return places[0] == places[1]


class _Copying:
    """Slices of a view, as bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __getitem__(self, span: slice) -> bytes:
        return bytes(self._data[span])
