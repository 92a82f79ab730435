"""A folder as a store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

from ..errors import ObjectNotFound, StoreError
from .base import ObjectInfo, always, check_name, check_range, is_temporary, temporary_name
from .urls import join_url, scheme_of, text_of, trim


class LocalStore:
    """Files of one folder, made on the first write.

    >>> store = LocalStore("/data/50% #1")
    >>> store.write("deep/a.tar", b"123")
    >>> [(o.name, o.size) for o in store.list()]
    [('deep/a.tar', 3)]
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url: str = trim(text_of(url)) or "."
        self._folder = Path(_file_path(self.url) if scheme_of(self.url) else self.url)
        self.path: Path | None = self._folder

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def info(self, name: str) -> ObjectInfo:
        """As Store; the version is None."""
        with _context(self, name):
            return ObjectInfo(name, _regular(os.stat(self._path(name))).st_size, None)

    def read(self, name: str) -> bytes:
        """As Store."""
        with _context(self, name):
            path = self._path(name)
            _regular(os.stat(path))
            return path.read_bytes()

    def read_range(self, name: str, start: int, end: int, *, version: str | None = None) -> bytes:  # noqa: ARG002
        """As Store; `version` is not used, since a local file has none."""
        with _context(self, name, start):
            check_range(start, end)
            path = self._path(name)
            _regular(os.stat(path))
            with open(path, "rb", buffering=0) as file:
                data = _pread(file.fileno(), start, end)
                size = os.fstat(file.fileno()).st_size
        if len(data) != end - start:
            raise StoreError(
                f"the file has {size} bytes, not the {end} asked for",
                shard=join_url(self.url, name),
                offset=start,
                hint="it was cut short or replaced; copy it again, or make its index again",
            )
        return data

    def read_view(
        self,
        name: str,
        start: int,
        end: int,
        *,
        version: str | None = None,
        wanted: Callable[[], bool] = always,  # noqa: ARG002
    ) -> memoryview:
        """As Store; nothing is waited for, so `wanted` is not asked."""
        return memoryview(self.read_range(name, start, end, version=version))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """As Store; links are followed."""
        with _context(self, prefix or "."):
            found = sorted(_walk(str(self._folder), "", ()), key=lambda info: info.name)
        return (info for info in found if info.name.startswith(prefix))

    def write(self, name: str, data: bytes) -> None:
        """As Store: a temporary file beside it, then a rename."""
        with _context(self, name), _published(self._path(name)) as (fd, _):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    def write_file(self, name: str, path: Path) -> None:
        """As Store: a rename, or a copy and a rename from another file system."""
        with _context(self, name), _published(self._path(name)) as (fd, temporary):
            # A temporary file is often private (mode 0600); the shard gets the mode that any new file here would get.
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            try:
                os.replace(path, temporary)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.copyfile(path, temporary)
                os.unlink(path)
            os.chmod(temporary, mode)

    def delete(self, name: str) -> None:
        """As Store."""
        with _context(self, name), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._path(name))

    def writable(self) -> bool:
        """Whether this process may create files in the folder, or the folder itself."""
        folder = Path(os.path.abspath(str(self._folder)))
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)

    def _path(self, name: str) -> Path:
        return self._folder / check_name(name)


def _file_path(url: str) -> str:
    host, _, path = url[len("file://") :].partition("/")
    if host not in ("", "localhost"):
        raise StoreError(f"{url!r} names the host {host!r}", hint="a file URL has three slashes: file:///data/x")
    return "/" + unquote(path)


def _regular(status: os.stat_result) -> os.stat_result:
    if stat.S_ISDIR(status.st_mode):
        raise ObjectNotFound("this is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise StoreError("not a regular file", hint="pipes and devices can't be read at random")
    return status


def _pread(fd: int, start: int, end: int) -> bytes:
    data = os.pread(fd, end - start, start)
    if len(data) == end - start:
        return data
    parts = [data]  # one call returns at most 2 GiB
    while parts[-1]:
        start += len(parts[-1])
        parts.append(os.pread(fd, end - start, start))
    return b"".join(parts)


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[ObjectInfo]:
    """Files under `folder`; links are followed, but not into a folder that we are in already."""
    try:
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir():
                    yield from _walk(entry.path, name + "/", (*above, identity))
                elif entry.is_file() and not is_temporary(entry.name):
                    yield ObjectInfo(name, entry.stat().st_size, None)
    except (FileNotFoundError, NotADirectoryError):
        return  # a missing folder lists as empty; what disappears meanwhile was never there


@contextlib.contextmanager
def _published(target: Path) -> Iterator[tuple[int, Path]]:
    """A temporary file beside `target` that takes its place when the block ends well, and else is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / temporary_name()
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield fd, temporary
        finally:
            os.close(fd)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _context(store: LocalStore, name: str, offset: int | None = None) -> Iterator[None]:
    """Turn the system's errors into ours, and say which file they are about."""
    shard = join_url(store.url, name)
    try:
        yield
    except StoreError as error:
        raise error.at(shard=shard, offset=offset) from error.__cause__
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectNotFound("no such file", shard=shard, hint="check the path") from error
    except OSError as error:
        hint = "check the permissions of the file and its folder" if isinstance(error, PermissionError) else None
        raise StoreError(error.strerror or str(error), shard=shard, offset=offset, hint=hint) from error
