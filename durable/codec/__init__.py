"""The codec: encode values of a workflow as text, and decode them to equal values.

Owns the `Codec` protocol, the default `JsonCodec` and, in its modules, all knowledge of types. Must not import Django
or pydantic, read settings, or use a database: it works in a process without configured settings.

What is recorded (`decode(encode(x))` equals `x`, has its type, and so do all values inside it): None, bool, int of any
size, float (NaN, infinities and -0.0 included), complex, str (NULs and lone surrogates included), bytes, list, tuple,
dict with keys of any recordable and hashable type, set, frozenset, datetime, date, time (naive, with a fixed offset or
a `ZoneInfo`; fold kept), timedelta, Decimal, UUID, members of an Enum, dataclasses, named tuples and pydantic models.

Four properties are not kept, because equality does not depend on them: the identity of an object that appears twice,
the order of a set, cached properties, and the class of Django's `SafeString`, which is decoded as a plain `str`:
recorded text must not be able to pass for safe HTML. Dataclasses and pydantic models are rebuilt from their fields: no
`__init__`, `__post_init__` or validator runs. Everything else is refused with a `PayloadError`.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Protocol, runtime_checkable

from durable.codec.values import decode_text, encode_text

__all__ = ["DEFAULT_MAX_BYTES", "Codec", "JsonCodec"]

DEFAULT_MAX_BYTES: Final = 1_048_576


@runtime_checkable
class Codec(Protocol):
    """The interface of `DURABLE["CODEC"]`. Both methods may be called from several threads at once.

    `what` names the value in errors, such as `the output of step "charge"`.
    """

    def encode(self, value: object, *, what: str = "value") -> str:
        """Return `value` as text without NUL. Raises PayloadError."""
        ...

    def decode(self, text: str, *, what: str = "value") -> Any:
        """Return a new value equal to the encoded one. Raises PayloadError for any other text."""
        ...


class JsonCodec:
    """The default codec: JSON in ASCII, with tags for types that JSON lacks.

    `max_bytes` is the limit of one encoded value in bytes; recorded text of any size is decoded.
    """

    __slots__ = ("max_bytes",)

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is a positive number of bytes, not {max_bytes}")
        self.max_bytes = max_bytes

    @property
    def unlimited(self) -> JsonCodec:
        """The same codec without the limit."""
        return JsonCodec(max_bytes=sys.maxsize)

    def encode(self, value: object, *, what: str = "value") -> str:
        """Return `value` as ASCII text, the same text for the same value.

        Raises PayloadError for a value that the codec does not keep exactly, for one nested more than 100 levels deep
        or within itself, and for one whose text is longer than `max_bytes`.
        """
        return encode_text(value, what, self.max_bytes)

    def decode(self, text: str, *, what: str = "value") -> Any:
        """Return a new value equal to the encoded one.

        Raises PayloadError for text that no codec wrote, for a class that no longer exists and for one whose fields
        changed. Builds the documented types only, whatever the text contains.
        """
        return decode_text(text, what)
