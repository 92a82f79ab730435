"""The place that a dataset is written to: what may be there before, what marks it as unfinished, what ends it.

A dataset being written is a folder with a marker file (`manifest.ssx.partial`), whole shards and their sidecars.  The
marker comes first and goes last; the manifest, which makes it a dataset, comes after every shard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .errors import DestinationError, FormatError, ObjectNotFound
from .format import INDEX_SUFFIX, MANIFEST, PARTIAL
from .shard import Limits, ShardSummary
from .store import Store
from .store.base import is_temporary
from .table import Manifest, ShardTable

_MARKER_VERSION: Final = 1
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OTHER: Final = "it was written from another dataset or with other options: choose another place, or delete this one"


def check_prefix(prefix: str) -> str:
    """Return `prefix` if names of shards can start with it, else raise ValueError."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"a prefix is made of letters, digits, _, - and dots, and no dot first; not {prefix!r}")
    return prefix


class Destination:
    """A store that one dataset is written to.

    >>> place = Destination(open_store("/data/cc3m"), "shard", Limits(128 << 20))
    >>> place.shard_name(0)
    'shard-000000.tar'

    Opening it checks what is there and leaves the marker.  Raises DestinationError where something is there and
    `resume` is False, or where `resume` is True and what is there was written with other options.  `source` describes
    where the samples come from (None: not known) and takes part in that.
    """

    def __init__(
        self, store: Store, prefix: str, limits: Limits, *, source: str | None = None, resume: bool = False
    ) -> None:
        self.store = store
        self.prefix = check_prefix(prefix)
        self._sizes = {info.name: info.size for info in store.list(f"{prefix}-")}
        marker, self._manifest = self._read(PARTIAL), self._read(MANIFEST)
        if not resume:
            self._refuse(marker, self._manifest)
        elif marker is None and self._manifest is None and any(map(self._is_ours, self._sizes)):
            found = next(name for name in self._sizes if self._is_ours(name))
            raise self._error(
                f"the place holds {found} but neither a manifest nor {PARTIAL}, so what wrote it is not known",
                "choose another place",
            )
        options = {"version": _MARKER_VERSION, "prefix": prefix, "max_bytes": limits.max_bytes}
        options |= {"max_samples": limits.max_samples, "source": source}
        if marker is not None:
            self._compare(marker, options)
        if self._manifest is None:
            self.remove_temporaries()
            store.write(PARTIAL, json.dumps(options, sort_keys=True).encode())

    def shard_name(self, index: int) -> str:
        """Name of shard `index`, counted from 0."""
        return f"{self.prefix}-{index:06d}.tar"

    def kept(self, index: int) -> ShardTable | None:
        """The table of shard `index` where that is there and whole, else None: it must be written.

        Raises DestinationError where the dataset is finished and lacks the shard.
        """
        name = self.shard_name(index)
        table = self._table(name)
        if table is None and self._manifest is not None:
            raise self._error(f"the place holds a finished dataset without a whole {name}", _OTHER)
        return table

    def differs(self, index: int, what: str) -> DestinationError:
        """The error that shard `index`, which is there, is not what would be written now."""
        return self._error(f"{self.shard_name(index)} is there already and {what}", _OTHER)

    def finish(self, shards: Sequence[ShardSummary]) -> None:
        """Write the manifest of these shards, then remove the marker.  Where a manifest is there it must be equal."""
        listed = {shard.entry.name for shard in shards}
        listed |= {name + INDEX_SUFFIX for name in listed}
        for name in self._sizes:
            if self._is_ours(name) and name not in listed:
                raise self._error(
                    f"the place holds {name}, which is no part of the {len(shards)} shards written", _OTHER
                )
        counts: dict[str, int] = {}
        for shard in shards:
            for field, n in shard.fields.items():
                counts[field] = counts.get(field, 0) + n
        meta: dict[str, Any] = {"fields": dict(sorted(counts.items())), "base": None, "skipped": {}}
        manifest = Manifest.build([shard.entry for shard in shards], meta)
        if self._manifest is None:
            self.store.write(MANIFEST, manifest.to_bytes())
        else:
            before = Manifest.from_bytes(self._manifest)
            if before.names() != manifest.names() or before.digest() != manifest.digest():
                raise self._error("the manifest that is there lists other shards", _OTHER)
        self.store.delete(PARTIAL)

    def remove_temporaries(self) -> None:
        """Remove the files of shards in the making from a local folder: what a process that was killed left behind."""
        # Listings of the store don't show them.
        if self.store.path is not None and self.store.path.is_dir():
            for path in self.store.path.iterdir():
                if is_temporary(path.name):
                    path.unlink(missing_ok=True)

    def _read(self, name: str) -> bytes | None:
        try:
            return self.store.read(name)
        except ObjectNotFound:
            return None

    def _table(self, name: str) -> ShardTable | None:
        if name not in self._sizes or name + INDEX_SUFFIX not in self._sizes:
            return None
        try:
            table = ShardTable.from_bytes(self.store.read(name + INDEX_SUFFIX))
        except FormatError:
            return None
        return table if table.meta["bytes"] == self._sizes[name] else None

    def _is_ours(self, name: str) -> bool:
        return re.fullmatch(rf"{re.escape(self.prefix)}-[0-9]{{6,}}\.tar({re.escape(INDEX_SUFFIX)})?", name) is not None

    def _refuse(self, marker: bytes | None, manifest: bytes | None) -> None:
        if manifest is not None:
            raise self._error(f"the place holds a finished dataset ({MANIFEST})", "choose another place, or delete it")
        go_on = "go on with resume=True (--resume), choose another place, or delete it"
        if marker is not None:
            raise self._error(f"the place holds a dataset that was not finished ({PARTIAL})", go_on)
        for name in self._sizes:
            if self._is_ours(name):
                raise self._error(f"the place holds {name}", "choose another place, or delete it")

    def _compare(self, marker: bytes, options: Mapping[str, Any]) -> None:
        try:
            before = json.loads(marker)
            differ = [name for name, value in options.items() if before[name] != value]
            if before["source"] is None or options["source"] is None:
                differ = [name for name in differ if name != "source"]
        except (ValueError, KeyError, TypeError):
            raise self._error(f"{PARTIAL} can't be read", "delete the unfinished dataset") from None
        if differ:
            told = ", ".join(f"{name} {before[name]!r} then and {options[name]!r} now" for name in differ)
            raise self._error(f"the dataset was begun with other options: {told}", _OTHER)

    def _error(self, fact: str, hint: str) -> DestinationError:
        return DestinationError(fact, shard=self.store.url, hint=hint)
