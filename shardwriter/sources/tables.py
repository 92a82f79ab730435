"""A table of captions and files (CSV, TSV or JSON lines) as a source: a row is one sample."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import DecodeError, EncodeError, NameRefused, ShardError, SourceError
from ..fields import INTEGER_FIELDS, JSON_FIELDS, TEXT_FIELDS, decode, encode
from ..format import check_field, check_key
from .base import FileRef, Record

_DELIMITERS: Final = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_JSON_LINES: Final = (".jsonl", ".ndjson")
_WRITTEN_OUT: Final = frozenset(TEXT_FIELDS + INTEGER_FIELDS + JSON_FIELDS)


def table(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | Sequence[str | None],
    root: str | os.PathLike[str] | None = None,
    key: str | int | None = None,
    delimiter: str | None = None,
    paths: Sequence[str] | None = None,
) -> TableSource:
    r"""The rows of a table as samples.

    >>> table("cc3m/train.tsv", columns=["txt", "jpg"], root="cc3m/images")        # no header: fields by position
    >>> table("list.csv", columns={"filepath": "jpg", "caption": "txt"})           # a header: fields by column name

    `.csv` is separated by commas, `.tsv` and `.tab` by tabs, or by `delimiter`; a value in double quotes may hold
    delimiters and line breaks, and `""` for a quote.  `.jsonl` and `.ndjson` have one object a line and need column
    names.  In a list of `columns`, None passes a column over.

    Columns for text, integer and JSON fields (txt, cls, json, ...) hold the value; columns for all other fields hold
    the path of a file, relative to `root` (default: the table's folder).  `paths` names the fields that hold paths,
    where that is not so.  Values are taken as they stand: an empty caption is an empty text, and NA, null and nan are
    words.  The text is UTF-8; a byte order mark at its start is dropped.

    Keys are row numbers from 0 in nine digits, or the values of column `key` (a name; without a header, a position
    from 0).

    Iterating raises SourceError, with file and line, for a row of another length, a column that is not there, a value
    that its field can't hold, an address in the place of a path; a file that is missing is found when it is needed.
    """
    if isinstance(columns, str):
        raise SourceError(f"columns must be a list or a dict, not the text {columns!r}", hint=f"pass [{columns!r}]")
    by_name = isinstance(columns, Mapping)
    pairs = tuple(columns.items()) if isinstance(columns, Mapping) else tuple(enumerate(columns))
    chosen = tuple((column, check_field(field)) for column, field in pairs if field)
    fields = [field for _, field in chosen]
    if not fields or len(set(fields)) < len(fields):
        raise SourceError(f"the columns must give at least one field, and each once, not {fields}")
    text = os.path.abspath(os.fspath(path))
    suffix = os.path.splitext(text)[1].lower()
    if suffix in _JSON_LINES and not by_name:
        raise SourceError("JSON lines have names, not positions", hint='pass columns={"name": "field"}')
    if suffix not in _JSON_LINES and suffix not in _DELIMITERS and delimiter is None:
        raise SourceError(f"the format of {text} is not known", hint="name it .csv, .tsv or .jsonl, or pass delimiter")
    if paths is None:
        paths = [field for field in fields if field.rpartition(".")[2] not in _WRITTEN_OUT]
    if unknown := sorted(set(paths) - set(fields)):
        raise SourceError(f"paths names {unknown}, the fields are {fields}")
    folder = os.path.dirname(text) if root is None else os.path.abspath(os.fspath(root))
    width = None if by_name else len(pairs)
    return TableSource(
        text, chosen, folder, key, "" if suffix in _JSON_LINES else delimiter or _DELIMITERS[suffix],
        tuple(sorted(paths)), width,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableSource:
    """What `table` returns: `columns` are (name or position, field), `width` the number of columns without a header."""

    path: str
    columns: tuple[tuple[str | int, str], ...]
    root: str
    key: str | int | None
    delimiter: str
    paths: tuple[str, ...]
    width: int | None

    def __iter__(self) -> Iterator[Record]:
        return self.records(Counter())

    def records(self, skipped: Counter[str]) -> Iterator[Record]:
        """The rows as samples, in order; counts blank lines in `skipped`."""
        rows = self._separated(skipped) if self.delimiter else self._json_lines(skipped)
        name = os.path.basename(self.path)
        for number, (line, values) in enumerate(rows):
            where = f"{name} line {line}"
            try:
                yield self._record(number, values, where)
            except (DecodeError, EncodeError, NameRefused, SourceError) as error:
                raise SourceError(f"{where}: {error.fact}", field=error.field, hint=error.hint) from None

    def _record(self, number: int, values: Mapping[str | int, Any], where: str) -> Record:
        key = f"{number:09d}"
        if self.key is not None:
            key = str(values[self.key]) if self.key in values else self._lacks(self.key, values)
            check_key(key)
        fields: dict[str, FileRef | bytes] = {}
        for column, field in self.columns:
            value = values[column] if column in values else self._lacks(column, values)
            try:
                fields[field] = self._file(value) if field in self.paths else self._value(field, value)
            except ShardError as error:
                raise error.at(field=field) from None
        return Record(key, fields, where=where)

    def _file(self, value: object) -> FileRef:
        if not isinstance(value, str) or not value:
            raise SourceError(f"{value!r} is no path", hint="paths= names the fields whose columns hold paths")
        if "://" in value:
            raise SourceError(f"{value!r} is an address, not a file", hint="download the files first")
        return FileRef(os.path.join(self.root, value))

    def _value(self, field: str, value: object) -> bytes:
        if self.delimiter and field.rpartition(".")[2] in JSON_FIELDS and isinstance(value, str):
            decode(field, value.encode())  # the cell is JSON already
            return value.encode()
        return encode(field, value)

    def _lacks(self, column: str | int, values: Mapping[str | int, Any]) -> str:
        raise SourceError(f"there is no column {column!r}, only {list(values)}", hint=self._delimiter_hint(values))

    def _delimiter_hint(self, values: Mapping[str | int, Any] | Sequence[str]) -> str | None:
        text = "".join(map(str, values))
        other = next((d for d in (";", "\t", ",", "|") if self.delimiter and d != self.delimiter and d in text), None)
        return f"if the columns are separated by {other!r}, pass delimiter={other!r}" if other else None

    def _separated(self, skipped: Counter[str]) -> Iterator[tuple[int, dict[str | int, Any]]]:
        rows = self._csv_rows(skipped)
        header: Sequence[str | int] = range(self.width or 0)
        if self.width is None:
            line, names = next(rows, (1, []))
            if len(set(names)) < len(names):
                raise SourceError(f"{self.path} line {line}: the header names a column twice: {names}")
            header = names
            for column in (*(column for column, _ in self.columns), *(() if self.key is None else (self.key,))):
                if column not in names:
                    raise SourceError(
                        f"{self.path} line {line}: there is no column {column!r}, only {names}",
                        hint=self._delimiter_hint(names),
                    )
        for line, row in rows:
            if len(row) != len(header):
                start = self.delimiter.join(row)[:100]
                raise SourceError(
                    f"{self.path} line {line}: {len(row)} columns, not {len(header)}: {start!r}",
                    hint=self._delimiter_hint(row) if len(row) == 1 else "put values with delimiters into quotes",
                )
            yield line, dict(zip(header, row, strict=True))

    def _csv_rows(self, skipped: Counter[str]) -> Iterator[tuple[int, list[str]]]:
        line = 1
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, delimiter=self.delimiter, strict=True)
                for row in reader:
                    if row:
                        yield line, row
                    else:
                        skipped["blank lines"] += 1
                    line = reader.line_num + 1
        except csv.Error as error:
            raise SourceError(
                f"{self.path} line {line}: {error}", hint="close the quotes, and double those inside"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None

    def _json_lines(self, skipped: Counter[str]) -> Iterator[tuple[int, dict[str | int, Any]]]:
        try:
            with open(self.path, encoding="utf-8-sig", newline="\n") as file:
                for line, text in enumerate(file, 1):
                    if not text.strip():
                        skipped["blank lines"] += 1
                        continue
                    try:
                        row = json.loads(text)
                    except (ValueError, RecursionError) as error:
                        raise SourceError(f"{self.path} line {line}: this is not JSON ({error})") from None
                    if not isinstance(row, dict):
                        raise SourceError(f"{self.path} line {line}: this is no JSON object but {type(row).__name__}")
                    yield line, row
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError | UnicodeDecodeError) -> SourceError:
        if isinstance(error, UnicodeDecodeError):
            return SourceError(f"{self.path} is not UTF-8 ({error.reason})", hint="save it as UTF-8")
        return SourceError(f"{self.path} can't be read: {error.strerror or error}", hint="check the path")
