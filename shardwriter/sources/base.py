"""What every source gives: records, whose fields are bytes or files that are read later."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..errors import SourceError


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file whose bytes are a field; nothing is opened before `read`."""

    path: str

    def size(self) -> int:
        """Size in bytes now.  Raises SourceError where there is no such file."""
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as error:
            raise SourceError(f"file {self.path} can't be read: {_reason(error)}", hint="check the path") from None
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{self.path} is no regular file", hint="check the path")
        return status.st_size

    def read(self, size: int) -> bytes:
        """The bytes, `size` of them.  Raises SourceError where the file is gone or has another size by now."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                data = file.read()
        except (OSError, ValueError) as error:
            raise SourceError(f"file {self.path} can't be read: {_reason(error)}", hint="it was there before") from None
        if len(data) != size:
            raise SourceError(
                f"file {self.path} had {size} bytes when the shards were laid out, and has {len(data)} now",
                hint="write it again when the files no longer change",
            )
        return data


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@dataclass(frozen=True, slots=True)
class Record:
    """One sample to write: `fields` by name, `columns` for the index, and `where` it comes from, for messages."""

    key: str
    fields: Mapping[str, FileRef | bytes]
    columns: Mapping[str, int | float] = field(default_factory=dict)
    where: str = ""


@runtime_checkable
class Source(Protocol):
    """A dataset to convert: the same records in the same order each time.

    Its repr says where the data is and how it is read, so that an interrupted conversion can tell whether it goes on
    with the same dataset.
    """

    def __iter__(self) -> Iterator[Record]:
        """The records, in order."""

    def records(self, skipped: Counter[str]) -> Iterator[Record]:
        """As iteration; counts what is passed over in `skipped`, by reason."""
