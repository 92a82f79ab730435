"""A folder of files as a source: files that share a stem are one sample."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import NameRefused, SourceError
from ..format import check_field, check_key
from .base import FileRef, Record

_SYSTEM_FILES: Final = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db"})
_NOTES: Final = "md"


def folder(path: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> FolderSource:
    """The files below a folder as samples.

    >>> [record.key for record in folder("photos")]         # photos/IMG_3.JPG, img_10.jpg, img_2.jpg, sub/img_1.jpeg
    ['IMG_3', 'img_10', 'img_2', 'sub/img_1']

    The key is the path below the folder up to the first dot of the file's name, the field is what follows that dot, in
    lower case: `a/1.jpg`, `a/1.txt` and `a/1.seg.png` are sample `a/1` with fields `jpg`, `seg.png` and `txt`.
    Samples come sorted by key, by code points ("B" before "a", "10" before "2"), on every machine.

    Passed over and counted: hidden files and folders, files of the system (Thumbs.db, desktop.ini), files without an
    extension, notes (`*.md`, unless `fields` has "md").  With `fields`, each sample must have all of these, and other
    files are passed over.  Links are followed.

    Iterating raises SourceError for a folder that is not there, a link that leads nowhere or in a circle, two files
    for one field (`1.jpg` and `1.JPG`), a name that a tar of samples can't hold, and a sample that lacks a field.
    """
    if isinstance(fields, str):
        raise SourceError(f"fields must be a list of names, not the text {fields!r}", hint=f"pass [{fields!r}]")
    wanted = None if fields is None else tuple(sorted({check_field(name) for name in fields}))
    return FolderSource(os.path.abspath(os.fspath(path)), wanted)


@dataclass(frozen=True, slots=True)
class FolderSource:
    """What `folder` returns."""

    path: str
    fields: tuple[str, ...] | None = None

    def __iter__(self) -> Iterator[Record]:
        return self.records(Counter())

    def records(self, skipped: Counter[str]) -> Iterator[Record]:
        """The samples, sorted by key; counts what is passed over in `skipped`, by reason."""
        if not os.path.isdir(self.path):
            raise SourceError(f"there is no folder {self.path}", hint="check the path")
        return self._walk(self.path, "", (), skipped)

    def _walk(
        self, folder: str, prefix: str, above: tuple[tuple[int, int], ...], skipped: Counter[str]
    ) -> Iterator[Record]:
        try:
            status = os.stat(folder)
            inside = (*above, (status.st_dev, status.st_ino))
            if inside[-1] in above:
                raise SourceError(f"the link {folder} leads back to a folder above it", hint="remove the link")
            folders, samples = self._scan(folder, prefix, skipped)
        except OSError as error:
            raise SourceError(f"folder {folder} can't be read: {error.strerror or error}") from error
        # A folder's keys all start with its name and a slash, so its place among the other keys is that of "name/".
        for name in sorted([*samples, *(name + "/" for name in folders)]):
            if name.endswith("/"):
                yield from self._walk(os.path.join(folder, name[:-1]), prefix + name, inside, skipped)
            else:
                files = {field: FileRef(os.path.join(folder, file)) for field, file in samples[name].items()}
                yield Record(prefix + name, files)

    def _scan(self, folder: str, prefix: str, skipped: Counter[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
        """Names of the folders in `folder`, and of its files by stem and field."""
        folders: list[str] = []
        samples: dict[str, dict[str, str]] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    skipped["hidden"] += 1
                elif entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file():
                    self._sort_in(entry.name, folder, prefix, samples, skipped)
                elif entry.is_symlink():
                    raise SourceError(f"the link {entry.path} leads nowhere", hint="restore its target")
                else:
                    skipped["neither files nor folders"] += 1
        for stem, files in samples.items():
            for field in self.fields or ():
                if field not in files:
                    there = os.path.join(folder, next(iter(files.values())))
                    raise SourceError(
                        f"sample {prefix + stem} has {there} but no file for field {field!r}",
                        hint="add the file, or leave the field out of fields",
                    )
        return folders, samples

    def _sort_in(
        self, file: str, folder: str, prefix: str, samples: dict[str, dict[str, str]], skipped: Counter[str]
    ) -> None:
        stem, _, extension = file.partition(".")
        field = extension.lower()
        if file.lower() in _SYSTEM_FILES:
            skipped["system files"] += 1
        elif not field:
            skipped["without an extension"] += 1
        elif self.fields is not None and field not in self.fields:
            skipped["of other fields"] += 1
        elif self.fields is None and field == _NOTES:
            skipped["notes"] += 1
        else:
            path = os.path.join(folder, file)
            try:
                check_key(prefix + stem)
                check_field(field)
            except NameRefused as error:
                raise SourceError(
                    f"file {path!r} can't be stored: {error.fact}",
                    hint="rename it; only the extension may follow the first dot of a file's name",
                ) from None
            files = samples.setdefault(stem, {})
            if field in files:
                raise SourceError(
                    f"{os.path.join(folder, files[field])} and {path} are both field {field!r} of sample "
                    f"{prefix + stem}",
                    hint="rename or remove one of them",
                )
            files[field] = file
