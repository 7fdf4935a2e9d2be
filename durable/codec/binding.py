"""Codecs that bind a value to the place where it is recorded, and all others, behind the same three functions.

A codec without `binds` gets no places: `encode(value, what=...)` and `decode(text, what=...)` are all it needs.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from durable.codec import Codec
from durable.core.places import Place

__all__ = ["BindingCodec", "binding", "decode_at", "encode_at", "rebound"]


class BindingCodec(Protocol):
    """A codec whose text says where it belongs. Without a place, `encode` does not bind and `decode` does not check."""

    @property
    def binds(self) -> bool:
        """Return True if `encode` and `decode` need places now."""
        ...

    def encode(self, value: object, *, what: str = "value", place: Place | None = None) -> str:
        """`value` as text that belongs to `place`."""
        ...

    def decode(self, text: str, *, what: str = "value", place: Place | None = None) -> Any:
        """The value. `PayloadError` for text that belongs to another place."""
        ...

    def rebind(self, text: str, old: Place, new: Place, *, what: str = "value") -> str:
        """Text of `old` for its copy at `new`. `PayloadError` for text that belongs to another place than `old`."""
        ...


def binding(codec: Codec) -> BindingCodec | None:
    """Return the codec if it needs places; None for all others."""
    return cast("BindingCodec", codec) if getattr(codec, "binds", False) else None


def encode_at(codec: Codec, value: object, what: str, place: Place) -> str:
    """`value` as codec text for `place`. Raises PayloadError."""
    bound = binding(codec)
    return codec.encode(value, what=what) if bound is None else bound.encode(value, what=what, place=place)


def decode_at(codec: Codec, text: str, place: Place) -> Any:
    """The value of codec text recorded at `place`. Raises PayloadError."""
    bound = binding(codec)
    return codec.decode(text) if bound is None else bound.decode(text, place=place)


def rebound(codec: Codec, text: str, old: Place, new: Place) -> str:
    """Codec text recorded at `old`, for a copy at `new`. Raises PayloadError.

    A codec that can bind is asked also while it does not: what it bound before must not be bound to the old place.
    """
    rebind = getattr(codec, "rebind", None)
    copied: str = text if rebind is None or old == new else rebind(text, old, new, what=f"the {old.field} to copy")
    return copied
