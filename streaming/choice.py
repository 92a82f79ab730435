"""Which fields of a sample are read, and under which names they are given.

>>> choice = FieldChoice({"image": "jpg;png", "txt": "txt"})
>>> choice.read(("json", "png", "txt"))
['png', 'txt']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .errors import FieldMissing


class FieldChoice:
    """Which fields to give, under which names.

    >>> choice = FieldChoice({"image": "jpg;png", "txt": "txt"})
    >>> choice.select({"png": b"...", "txt": b"a cat", "json": b"{}"})
    {'image': ('png', b'...'), 'txt': ('txt', b'a cat')}

    `fields` is None (all, under their own names), a list of names, or a dict from the name given to the name read.
    Each name read may list alternatives, "jpg;png": the first that a sample has is taken.  In a list, the first
    alternative is the name given.
    """

    def __init__(self, fields: Sequence[str] | Mapping[str, str] | None) -> None:
        self._wanted: dict[str, list[str]] | None = None
        if fields is not None:
            given = fields if isinstance(fields, Mapping) else {f.partition(";")[0]: f for f in fields}
            self._wanted = {name: read.split(";") for name, read in given.items()}

    @property
    def everything(self) -> bool:
        """Whether each field is given, under its own name."""
        return self._wanted is None

    @property
    def names(self) -> list[str] | None:
        """The fields that may be read; None: all."""
        return None if self._wanted is None else [name for names in self._wanted.values() for name in names]

    def named_after(self, kinds: Collection[str]) -> list[str]:
        """The names given to fields whose last part is one of `kinds`, where fields are renamed or chosen."""
        wanted = self._wanted or {}
        return [name for name, reads in wanted.items() if any(r.rpartition(".")[2] in kinds for r in reads)]

    def read(self, available: Sequence[str]) -> Sequence[str]:
        """The fields of a shard that must be read."""
        if self._wanted is None:
            return available
        needed = {name for names in self._wanted.values() for name in names}
        return [name for name in available if name in needed]

    def select(self, fields: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
        """Name given -> (name read, what it holds).  Raises FieldMissing, which lists what the sample has."""
        if self._wanted is None:
            return {name: (name, data) for name, data in fields.items()}
        chosen = {}
        for name, alternatives in self._wanted.items():
            found = next((a for a in alternatives if a in fields), None)
            if found is None:
                raise FieldMissing(f"the sample has no field {';'.join(alternatives)!r}", field=name)
            chosen[name] = (found, fields[found])
        return chosen
