"""Numpy's .npy and .npz, both ways, over bytes in memory and without pickles.

>>> decode_npy(encode_npy(np.array([[1, 2], [3, 4]], ">i2"))).tolist()
[[1, 2], [3, 4]]

The header is read here rather than by `numpy.load`, so that a header that claims terabytes is an error and not an
allocation, and so that the data is copied once.
"""

from __future__ import annotations

import ast
import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from .errors import DecodeError, EncodeError
from .format import Buffer

_MAX_HEADER: Final = 1 << 20
_LENGTH_BYTES: Final = {1: 2, 2: 4, 3: 4}
_BAD_ZIP: Final = (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError, OSError, OverflowError)


def encode_npy(value: object) -> bytes:
    """The .npy file of an array or a numpy scalar; the same array always gives the same bytes.

    Raises EncodeError for anything else, and for dtypes that .npy can't hold without a pickle or without loss.
    """
    if not isinstance(value, np.ndarray | np.generic):
        raise EncodeError(f"{_kind(value)} is no numpy array", hint="pass a numpy.ndarray")
    if isinstance(value, np.ma.MaskedArray):
        raise EncodeError("a masked array would lose its mask", hint="store values and mask as two fields")
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise EncodeError("object arrays can only be stored as pickles", hint="use json or msgpack")
    if npy_format.descr_to_dtype(npy_format.dtype_to_descr(array.dtype)) != array.dtype:
        raise EncodeError(f"dtype {array.dtype} would not be read back", hint="store a view as plain integers")
    file = io.BytesIO()
    try:
        npy_format.write_array(file, array, version=(1, 0), allow_pickle=False)
    except ValueError:  # field names beyond Latin-1, or very many of them
        npy_format.write_array(file, array, version=(3, 0), allow_pickle=False)
    return file.getvalue()


def decode_npy(data: Buffer) -> NDArray[Any]:
    """The array of a .npy file: a writable copy in native byte order, in Fortran order where the file is.

    Raises DecodeError for object arrays, damaged headers, and data that is not as long as the header says.
    """
    view = memoryview(data)
    if len(view) < 12 or bytes(view[:6]) != b"\x93NUMPY":
        raise DecodeError("this is no .npy file")
    width = _LENGTH_BYTES.get(view[6])
    if width is None:
        raise DecodeError(f".npy version {view[6]}.{view[7]} is not known")
    start = 8 + width
    length = int.from_bytes(view[8:start], "little")
    if length > _MAX_HEADER or start + length > len(view):
        raise DecodeError(f"the .npy header claims {length} bytes")
    dtype, fortran, shape = _header(bytes(view[start : start + length]), "utf-8" if view[6] == 3 else "latin-1")
    size, held = math.prod(shape) * dtype.itemsize, len(view) - start - length
    if size != held:
        raise DecodeError(f"the .npy header promises {size} bytes of shape {shape}, there are {held}")
    # An empty array needs no buffer, and numpy refuses an offset at the end of one.
    array = np.ndarray(shape, dtype, view, start + length, order="F" if fortran else "C") if size else None
    if array is None:
        return np.empty(shape, dtype.newbyteorder("="), order="F" if fortran else "C")
    return array.astype(array.dtype.newbyteorder("="), order="K", copy=True)


@lru_cache(maxsize=256)
def _header(raw: bytes, encoding: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    try:
        header = ast.literal_eval(raw.decode(encoding).strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        known = len(header) == 3 and isinstance(fortran, bool) and isinstance(shape, tuple)
        known = known and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
        dtype = np.dtype(npy_format.descr_to_dtype(descr))
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise DecodeError(f"the .npy header can't be read ({type(error).__name__})") from None
    if not known or len(shape) > 32:
        raise DecodeError("the .npy header makes no sense")
    if dtype.hasobject:
        raise DecodeError("the .npy file holds a pickled object array", hint="store it as json or msgpack")
    return dtype, fortran, shape


def encode_npz(value: object) -> bytes:
    """The .npz file of a dict of arrays, uncompressed; the same arrays always give the same bytes."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise EncodeError(f"{_kind(value)} is no dict of arrays by name", hint='pass {"name": numpy.ndarray}')
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in value.items():
            # ZipInfo's own default time is fixed; a plain name would take the clock's.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))
    return file.getvalue()


def decode_npz(data: Buffer, limit: int) -> dict[str, NDArray[Any]]:
    """Name -> array of a .npz file whose members unpack to at most `limit` bytes together; see decode_npy."""
    arrays: dict[str, NDArray[Any]] = {}
    left = limit
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                with archive.open(info) as member:
                    raw = member.read(left + 1)
                left -= len(raw)
                if left < 0:
                    raise DecodeError(f"the .npz file unpacks to more than {limit} bytes")
                name = info.filename.removesuffix(".npy")
                if name == info.filename or name in arrays:
                    raise DecodeError(f"member {info.filename!r} of the .npz file is no array, or comes twice")
                arrays[name] = decode_npy(raw)
    except DecodeError:
        raise
    except _BAD_ZIP as error:
        raise DecodeError(f"the .npz file can't be read ({error})") from None
    return arrays


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"
