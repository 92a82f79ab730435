"""The samples of a tar: members grouped by adjacency, and everything that is wrong with it.

>>> from .tar import END, header_blocks, padding
>>> tar = header_blocks("a.txt", 2) + b"hi" + padding(2) + header_blocks("README", 0) + END
>>> found = scan(tar)
>>> found.samples[0].key, dict(found.samples[0].fields), found.skipped
('a', {'txt': Span(offset=512, size=2)}, {'no field name': 1})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .errors import FormatError, GroupingError
from .format import Buffer, Member, SampleSpans, Span, split_name
from .tar import walk

MAX_DAMAGE: Final = 100
"""Errors that are kept of one shard; the counts in `skipped` go on."""
RESERVED: Final = frozenset({"__key__", "__url__", "__local_path__", "__repeat__"})
"""Fields that readers add to each sample themselves (rule S5)."""
_SORT: Final = "make the tar again with its members sorted by name (tar --sort=name)"


@dataclass(frozen=True, slots=True)
class Scan:
    """The whole samples of a shard in tar order; what belongs to no sample, and what was dropped, as reason -> count.

    `damage` holds the errors that salvaging met, at most MAX_DAMAGE of them, with byte offsets.
    """

    samples: list[SampleSpans]
    skipped: Mapping[str, int]
    damage: list[FormatError]


def scan(buffer: Buffer, *, salvage: bool = False) -> Scan:
    """Group the members of the tar in `buffer` into samples, without touching their data.

    Raises the errors of `tar.walk`, and GroupingError for a key that comes back after another one, for a field that
    comes twice and for a reserved field.  With `salvage` it raises nothing: damage of the tar ends the shard and drops
    the sample that was open when it was met (it may lack members; a cut inside a member of the next sample drops only
    that one); a sample that breaks a rule of grouping is dropped with all its pieces.  Nothing is ever merged, and no
    sample lacks a member that the tar holds as a file.
    """
    groups = _Groups(salvage)
    try:
        for member in walk(buffer, skipped=groups.pass_over):
            groups.add(member)
    except FormatError as error:
        if not salvage:
            raise
        groups.cut(error)
    return groups.result()


class _Groups:
    """Samples as they form: one is open, those before it are closed."""

    def __init__(self, salvage: bool) -> None:
        self._salvage = salvage
        self._samples: list[SampleSpans] = []
        self._seen: set[str] = set()
        self._bad: set[str] = set()
        self._skipped: Counter[str] = Counter()
        self._damage: list[FormatError] = []
        self._key: str | None = None
        self._start = self._end = 0
        self._fields: dict[str, Span] = {}

    def pass_over(self, name: str, kind: str, offset: int) -> None:  # noqa: ARG002  (the signature of walk's callback)
        """Count a member that is no file."""
        self._skipped[kind] += 1

    def add(self, member: Member) -> None:
        """Take the next file into the open sample, or close it and open another."""
        split = split_name(member.name)
        if split is None:
            self._skipped[_reason(member.name)] += 1
            return
        key, field = split
        if key != self._key:
            self._close()
            if key in self._seen:
                self._refuse("sample in pieces", key, _came_back(member, key))
            self._seen.add(key)
            self._key, self._start, self._fields = key, member.start, {}
        if field in RESERVED:
            self._refuse("sample with a reserved field", key, _reserved(member, key, field))
        elif field in self._fields:
            self._refuse("sample with a field twice", key, _twice(member, key, field))
        self._fields[field] = Span(member.offset, member.size)
        self._end = member.offset + member.size + -member.size % 512

    def cut(self, error: FormatError) -> None:
        """End the shard at damage: the open sample may lack members, so it goes, unless the next one had begun."""
        self._record(error)
        if error.key is not None and error.key != self._key:
            self._close()
        if self._key is not None and self._key not in self._bad:
            self._skipped["sample at the damage"] += 1
            self._bad.add(self._key)
        self._key = None

    def result(self) -> Scan:
        """Everything found."""
        self._close()
        samples = self._samples
        if self._bad:
            samples = [sample for sample in samples if sample.key not in self._bad]
        return Scan(samples, dict(sorted(self._skipped.items())), self._damage)

    def _close(self) -> None:
        if self._key is not None and self._key not in self._bad:
            self._samples.append(SampleSpans(self._key, self._start, self._end, self._fields))
        self._key, self._fields = None, {}

    def _refuse(self, reason: str, key: str, error: GroupingError) -> None:
        if not self._salvage:
            raise error
        if key not in self._bad:
            self._bad.add(key)
            self._skipped[reason] += 1
            self._record(error)

    def _record(self, error: FormatError) -> None:
        if len(self._damage) < MAX_DAMAGE:
            self._damage.append(error)


def _reason(name: str) -> str:
    base = name.rpartition("/")[2]
    if base.startswith("."):
        return "hidden file"
    if not base.partition(".")[2]:
        return "no field name"
    return "metadata"


def _came_back(member: Member, key: str) -> GroupingError:
    fact = f"member {member.name!r} brings back key {key!r}, which ended before: the members of a sample are apart"
    return GroupingError(fact, key=key, offset=member.start, rule="S2", hint=_SORT)


def _twice(member: Member, key: str, field: str) -> GroupingError:
    fact = (
        f"member {member.name!r} gives the field {field!r} of its sample a second time (upper and lower case are one)"
    )
    return GroupingError(fact, key=key, field=field, offset=member.start, rule="S3", hint="remove or rename one")


def _reserved(member: Member, key: str, field: str) -> GroupingError:
    fact = f"member {member.name!r} has the field name {field!r}, which readers fill in themselves"
    return GroupingError(fact, key=key, field=field, offset=member.start, rule="S5", hint="rename it")
