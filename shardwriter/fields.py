"""Field names and what they hold: one table, field name -> encode and decode, for both directions.

>>> encode("json", {"id": 7}), encode("cls", 3), encode("txt", "Grüße")
(b'{"id":7}', b'3', b'Gr\\xc3\\xbc\\xc3\\x9fe')
>>> decode("left.cls", b" 3\\n"), decode("txt", b"caf\\xc3\\xa9"), decoder("mp4") is None
(3, 'café', True)

The last part of the name decides: "left.cls" is an integer.  "txt.gz" is text in gzip.

    txt text transcript html htm    str       UTF-8; a byte order mark is dropped, line ends are kept
    cls cls2 class count index inx id   int   decimal, blanks around it allowed
    json jsn                        any       NaN and Infinity are read, since others write them, but never written
    npy                             array     never pickled; decoded to a writable copy in native byte order
    npz                             dict      of such arrays
    mp msg msgpack                  any       needs the msgpack package
    png jpg jpeg webp               image     encoding only: a PIL image or uint8 [H, W, 3] or [H, W]
    pkl pickle pyd pth pt           -         refused both ways: unpickling runs code

Bytes are never touched on the way in, and what has no decoder stays bytes on the way out.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from .errors import DecodeError, EncodeError, MissingExtra, ShardError
from .format import Buffer
from .npy import decode_npy, decode_npz, encode_npy, encode_npz

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_UNPACKED: Final = 1 << 30
"""What a .gz or .npz field may unpack to, in bytes: a few kilobytes of gzip can claim terabytes."""

TEXT_FIELDS: Final = ("txt", "text", "transcript", "html", "htm")
INTEGER_FIELDS: Final = ("cls", "cls2", "class", "count", "index", "inx", "id")
JSON_FIELDS: Final = ("json", "jsn")

Encoder = Callable[[object], bytes]
Decoder = Callable[[Buffer], object]

_BOM: Final = "\ufeff"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)


class Codec(NamedTuple):
    """How a field's values become bytes and come back; without `decode` the bytes are the value."""

    encode: Encoder
    decode: Decoder | None


def encode(field: str, value: object) -> bytes:
    """The bytes that `field` stores for `value`.

    Bytes pass as they are, whatever the field.  Text in a field of no known type becomes UTF-8.
    Raises EncodeError that names the field and the value's type, or MissingExtra.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return _codec(field).encode(value)
    except ShardError as error:
        raise error.at(field=field) from None


def decoder(field: str) -> Decoder | None:
    """The function that turns the field's bytes into its value, or None where bytes are the value.

    The function raises DecodeError without naming the field: the caller knows it.
    """
    return _codec(field).decode


def decode(field: str, data: Buffer) -> object:
    """The value that `data` holds in this field; bytes where the field has no decoder.  Raises DecodeError."""
    function = decoder(field)
    try:
        return bytes(data) if function is None else function(data)
    except ShardError as error:
        raise error.at(field=field) from None


def gunzip(data: Buffer, limit: int = MAX_UNPACKED) -> bytes:
    """What gzip data (of one or more members) holds.  Raises DecodeError for damage and above `limit` bytes."""
    if not len(data):
        raise DecodeError("there is no gzip data, not even a header")
    parts: list[bytes] = []
    left = limit
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while part := file.read(1 << 20):
                left -= len(part)
                if left < 0:
                    raise DecodeError(f"the gzip data unpacks to more than {limit} bytes")
                parts.append(part)
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(f"the gzip data is cut or damaged ({error})") from None
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _codec(field: str) -> Codec:
    rest, _, last = field.rpartition(".")
    if last != "gz":
        return _TABLE.get(last, _PLAIN)
    inner = _codec(rest) if rest else _PLAIN
    return Codec(lambda value: zlib.compress(inner.encode(value), wbits=31), _unpacked(inner.decode))


def _unpacked(inner: Decoder | None) -> Decoder | None:
    return None if inner is None else lambda data: inner(gunzip(data))


def _refuse(value: object, wanted: str) -> EncodeError:
    return EncodeError(f"a value of type {type(value).__name__} can't be stored here", hint=f"pass {wanted} or bytes")


def _encode_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise _refuse(value, "str")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EncodeError(f"character {error.start} of the text is a lone surrogate, which UTF-8 can't hold") from None


def _decode_text(data: Buffer) -> str:
    try:
        return str(data, "utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        raise DecodeError(f"byte {error.start} of the text is not UTF-8") from None


def _encode_integer(value: object) -> bytes:
    if isinstance(value, int | np.integer | np.bool_):
        return b"%d" % int(value)
    # Tables hold numbers as text.
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return value.strip().encode()
    if isinstance(value, str):
        raise EncodeError(f"{value[:80]!r} is no decimal integer")
    raise _refuse(value, "int")


def _decode_integer(data: Buffer) -> int:
    text = _decode_text(data).strip()
    if not _INTEGER.fullmatch(text):
        raise DecodeError(f"{text[:80]!r} is no decimal integer")
    return int(text)


def _encode_json(value: object) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(f"JSON can't hold this {type(value).__name__} ({error})") from None
    return _encode_text(text)


def _decode_json(data: Buffer) -> Any:
    try:
        return json.loads(_decode_text(data))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(f"this is not JSON ({error})") from None


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError:
        raise MissingExtra("msgpack fields need msgpack", hint="pip install 'shardstream[msgpack]'") from None
    return msgpack


def _encode_msgpack(value: object) -> bytes:
    packer = _msgpack()
    try:
        packed = packer.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"msgpack can't hold this {type(value).__name__} ({error})") from None
    return bytes(packed)


def _decode_msgpack(data: Buffer) -> Any:
    unpacker = _msgpack()
    try:
        return unpacker.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError, unpacker.exceptions.UnpackException) as error:
        raise DecodeError(f"this is not msgpack ({error})") from None


def _image_encoder(kind: str, **options: Any) -> Encoder:
    def encode_image(value: object) -> bytes:
        from PIL import ImageOps

        image = _image(value)
        # Saving drops the orientation tag, so the pixels are turned as it says.
        upright = ImageOps.exif_transpose(image)
        file = io.BytesIO()
        try:
            upright.save(file, kind, **options)
        except (OSError, ValueError) as error:
            hint = 'convert("RGB") makes an image of it that can'
            raise EncodeError(f"an image of mode {image.mode} can't be stored as {kind} ({error})", hint=hint) from None
        return file.getvalue()

    return encode_image


def _image(value: object) -> Image:
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    if not isinstance(value, np.ndarray):
        raise _refuse(value, "a PIL image, a uint8 array [H, W, 3] or [H, W],")
    if value.dtype != np.uint8 or value.size == 0 or not (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3)):
        raise EncodeError(
            f"an array {value.dtype} {list(value.shape)} is no image", hint="pass uint8 [H, W, 3] or [H, W]"
        )
    return Image.fromarray(value)


def _encode_pickle(value: object) -> bytes:
    raise EncodeError(
        f"a {type(value).__name__} is not pickled for you: reading it back would run code from the data",
        hint="use json, msgpack, npy or npz, or pass bytes",
    )


def _decode_pickle(_: Buffer) -> object:
    raise DecodeError(
        "unpickling runs code from the data, so it is off",
        hint='if you trust the data, name a decoder: decode={"pkl": pickle.loads}',
    )


_PLAIN: Final = Codec(_encode_text, None)
_JPEG: Final = Codec(_image_encoder("JPEG", quality=95, subsampling=0), None)
_TABLE: Final[dict[str, Codec]] = {
    **dict.fromkeys(TEXT_FIELDS, Codec(_encode_text, _decode_text)),
    **dict.fromkeys(INTEGER_FIELDS, Codec(_encode_integer, _decode_integer)),
    **dict.fromkeys(JSON_FIELDS, Codec(_encode_json, _decode_json)),
    "npy": Codec(encode_npy, decode_npy),
    "npz": Codec(encode_npz, lambda data: decode_npz(data, MAX_UNPACKED)),
    **dict.fromkeys(("mp", "msg", "msgpack"), Codec(_encode_msgpack, _decode_msgpack)),
    **dict.fromkeys(("jpg", "jpeg"), _JPEG),
    "png": Codec(_image_encoder("PNG"), None),
    "webp": Codec(_image_encoder("WEBP", quality=95), None),
    **dict.fromkeys(("pkl", "pickle", "pyd", "pth", "pt"), Codec(_encode_pickle, _decode_pickle)),
}
