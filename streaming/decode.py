"""Sample bytes to values: a decoder for each field, chosen once by its name.

>>> decoders = Decoders(True)
>>> decoders.decode("cls", b" 7\\n"), decoders.decode("left.json", b"[1]"), decoders.decode("bin", b"x")
(7, [1], b'x')
>>> Decoders({"cls": None, "bin": len}).decode("bin", b"four")
4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch

from shardwriter.errors import DecodeError, ShardError
from shardwriter.fields import decoder as value_decoder
from shardwriter.kinds import IMAGE_FIELDS

from .errors import PlanError, TransformError
from .image import Framing, decode_image

Decode = bool | Literal["views"] | Mapping[str, Callable[[bytes], Any] | None]


class Decoders:
    """Decoders by field name.

    `decode` is True (by name: images to uint8 [3, h, w] tensors, text, integers, JSON, numpy arrays, msgpack; bytes for
    what has no decoder), False (bytes for all), "views" (memoryviews for all: of the mapped file where it is local), or
    a dict from field to a function of bytes (None: keep the bytes), which goes before the names.  A dict entry matches
    the whole field name or, behind that, its last part: "jpg" also decodes "left.jpg".  Nothing is unpickled unless the
    dict holds a function that does it.
    """

    def __init__(self, decode: Decode) -> None:
        if isinstance(decode, str) and decode != "views":
            raise PlanError(f"decode={decode!r}", hint="it is True, False, 'views' or a dict of functions")
        self.views = decode == "views"
        self._by_name = decode is True or isinstance(decode, Mapping)
        self._own = dict(decode) if isinstance(decode, Mapping) else {}
        self._chosen: dict[str, Callable[..., Any] | None] = {}

    @property
    def none(self) -> bool:
        """Whether every field stays as it is stored."""
        return not self._by_name

    @property
    def own_images(self) -> bool:
        """Whether any images are not decoded by name."""
        return not self._by_name or any(name.rpartition(".")[2] in IMAGE_FIELDS for name in self._own)

    def function(self, field: str) -> Callable[..., Any] | None:
        """What decodes a field; None where it stays as it is stored."""
        if field not in self._chosen:
            self._chosen[field] = self._choose(field)
        return self._chosen[field]

    def is_image(self, field: str) -> bool:
        """Whether the field is decoded as an image, which takes views as well as bytes."""
        return self.function(field) is decode_image

    def light(self, fields: Iterable[str]) -> bool:
        """Whether decoding these fields takes so little that threads would only wait for one another."""
        return all(
            (function := self.function(field)) is None
            or not (function is decode_image or isinstance(function, partial))
            for field in fields
        )

    def decode(self, field: str, data: Any, framing: Framing | None = None, out: torch.Tensor | None = None) -> Any:
        """The value of a field, an image as `framing` says, written to `out` where that is given.

        Raises DecodeError, and TransformError for an exception of the user's own decoder.
        """
        function = self.function(field)
        if function is decode_image:
            return decode_image(data, framing, out)
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
