"""The notation of recorded text: the tag marker, the limits, and the paths that errors give.

Owns what the encoder and the decoder must agree on. Knows no class and builds no value.

A value that JSON cannot express is an object with one key, the marker and the tag's name: `{"$:uuid": "..."}`. Text
without the marker is plain JSON and is not walked at all. A dictionary of the user's with a key that starts with the
marker is written as pairs, so it cannot be mistaken for a tag.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from typing import Final, TypeAlias

from durable.core.errors import PayloadError

MARK: Final = "$:"
MARK_IN_TEXT: Final = '"' + MARK

MAX_DEPTH: Final = 100
"""The limit of nested containers.

A tag takes up to three levels of JSON, and both directions up to four frames a level, so this fits Python's default
recursion limit of 1,000 with room for the frames of the caller.
"""

SURROGATE_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two adjacent lone surrogates, which JSON writes exactly like the one character that they would form."""

MOST_ALIKE: Final = 1_000
"""The limit of elements of a set, or keys of a dict, with one hash.

Each is compared with all of them, which takes seconds for tens of thousands.
"""

DAMAGED: Final = "restore the record from a backup: it is damaged, or this codec did not write it"

to_json: Final = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
"""Encode a plain tree as ASCII text. Raises ValueError for NaN, infinities and integers past Python's digit limit."""

# A path is a linked list, so that descending a level costs one tuple and nothing is formatted until an error needs it.
Path: TypeAlias = "tuple[Path, object] | None"


class _PathMark:
    """A part of a path that is neither an index nor a key."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


ELEMENT: Final = _PathMark("{element}")
KEY: Final = _PathMark("{key}")


class Refused(Exception):
    """A value, or a node of a text, that is refused.

    Raised where its path is unknown, caught where the path is known.
    """

    def __init__(self, problem: str, advice: str = DAMAGED) -> None:
        self.problem = problem
        self.advice = advice
        super().__init__(f"{problem}; {advice}")


def render(path: Path) -> str:
    """Return the path as text, such as `$.items[3].user`."""
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(_part(part))
    return "$" + "".join(reversed(parts))


def _part(part: object) -> str:
    if isinstance(part, _PathMark):
        return part.text
    if type(part) is str:
        if part.isidentifier() and part.isascii():
            return "." + part
        return f"[{part if len(part) <= 40 else part[:37] + '...'!a}]"
    if type(part) is int and part.bit_length() <= 64:
        return f"[{part}]"
    # The repr of any other type may be long, secret or wrong.
    return f"[<{type(part).__name__}>]"


def fault(what: str, path: Path, problem: str, advice: str, action: str = "record") -> PayloadError:
    """Return the error for the value at `path`; the caller raises it."""
    return PayloadError(what, render(path), problem, advice, action)


def check_hashes(elements: Collection[object]) -> None:
    """Raise Refused if too many of the elements have one hash."""
    if len(elements) > MOST_ALIKE and max(Counter(map(hash, elements)).values()) > MOST_ALIKE:
        raise Refused(
            f"more than {MOST_ALIKE:,} of its elements or keys have the same hash",
            "give their class a __hash__ that tells them apart, or record a list",
        )
