"""Sample bytes to values: a decoder for each field, chosen once by its name.

>>> decoders = Decoders(True)
>>> decoders.decode("cls", b" 7\\n"), decoders.decode("left.json", b"[1]"), decoders.decode("bin", b"x")
(7, [1], b'x')
>>> Decoders({"cls": None, "bin": len}).decode("bin", b"four")
4
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shardwriter.errors import DecodeError, ShardError
from shardwriter.fields import decoder as value_decoder
from shardwriter.kinds import IMAGE_FIELDS

from .errors import TransformError
from .image import Framing, decode_image

Decode = bool | Mapping[str, Callable[[bytes], Any] | None]


class Decoders:
    """Decoders by field name.

    `decode` is True (by name: images to uint8 [3, h, w] tensors, text, integers, JSON, numpy arrays, msgpack; bytes for
    what has no decoder), False (bytes for all), or a dict from field to a function of bytes (None: keep the bytes),
    which goes before the names.  A dict entry matches the whole field name or, behind that, its last part: "jpg" also
    decodes "left.jpg".  Nothing is unpickled unless the dict holds a function that does it.
    """

    def __init__(self, decode: Decode) -> None:
        self._by_name = decode is not False
        self._own = dict(decode) if isinstance(decode, Mapping) else {}
        self._chosen: dict[str, Callable[..., Any] | None] = {}

    @property
    def none(self) -> bool:
        """Whether every field stays bytes."""
        return not self._by_name and not self._own

    def decode(self, field: str, data: bytes, framing: Framing | None = None) -> Any:
        """The value of a field, an image as `framing` says.

        Raises DecodeError, and TransformError for an exception of the user's own decoder.
        """
        if field not in self._chosen:
            self._chosen[field] = self._choose(field)
        function = self._chosen[field]
        if framing is not None and function is decode_image:
            return decode_image(data, framing=framing)
        return data if function is None else function(data)

    def _choose(self, field: str) -> Callable[..., Any] | None:
        last = field.rpartition(".")[2]
        for name in (field, last):
            if name in self._own:
                own = self._own[name]
                return None if own is None else partial(_call, own)
        if not self._by_name:
            return None
        return decode_image if last in IMAGE_FIELDS else value_decoder(field)


def _call(function: Callable[[bytes], Any], data: bytes) -> Any:
    return guarded(function, data)


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's function; whatever it raises becomes an error that can be pickled and that keeps its text.

    Errors of the tree pass as they are.
    """
    try:
        return function(*arguments)
    except (ShardError, DecodeError):
        raise
    except Exception as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TransformError(f"{name}() raised {type(error).__name__}: {error}") from error
