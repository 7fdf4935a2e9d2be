"""The same functions for codecs that bind a value to the place where it is recorded, and for all others.

A codec without `binds` gets no places: `encode(value, what=...)` and `decode(text, what=...)` are all it needs.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from durable.codec import Codec
from durable.core.places import Place


class BindingCodec(Protocol):
    """A codec whose text says where it belongs. Without a place, `encode` does not bind and `decode` does not check."""

    @property
    def binds(self) -> bool:
        """Return True if `encode` and `decode` need places now."""
        ...

    def encode(self, value: object, *, what: str = "value", place: Place | None = None) -> str:
        """Return `value` as text that belongs to `place`."""
        ...

    def decode(self, text: str, *, what: str = "value", place: Place | None = None) -> Any:
        """Return the value. Raises PayloadError for text that belongs to another place."""
        ...

    def rebind(self, text: str, old: Place, new: Place, *, what: str = "value") -> str:
        """Return text of `old` for its copy at `new`.

        Raises PayloadError for text that belongs to another place than `old`.
        """
        ...


def binding(codec: Codec) -> BindingCodec | None:
    """Return the codec if it needs places, else None."""
    return cast("BindingCodec", codec) if getattr(codec, "binds", False) else None


def without_limit(codec: Codec) -> Codec:
    """Return the codec without its size limit, for values made of several values.

    A codec that has no limit is returned itself.
    """
    return cast("Codec", getattr(codec, "unlimited", codec))


def encode_at(codec: Codec, value: object, what: str, place: Place) -> str:
    """Return `value` as codec text for `place`. Raises PayloadError."""
    bound = binding(codec)
    return codec.encode(value, what=what) if bound is None else bound.encode(value, what=what, place=place)


def decode_at(codec: Codec, text: str, place: Place) -> Any:
    """Return the value of codec text recorded at `place`. Raises PayloadError."""
    bound = binding(codec)
    return codec.decode(text) if bound is None else bound.decode(text, place=place)


def rebound(codec: Codec, text: str, old: Place, new: Place) -> str:
    """Return the codec text for a copy at `new` of text recorded at `old`. Raises PayloadError.

    A codec that can bind is called even while it does not bind: text that it bound before must get the new place.
    """
    rebind = getattr(codec, "rebind", None)
    copied: str = text if rebind is None or old == new else rebind(text, old, new, what=f"the {old.field} to copy")
    return copied
