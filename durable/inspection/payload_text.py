"""A payload as text that a page shows: indented JSON, of which a page has a bounded part.

The text is what a download holds too, so both have the same size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from durable.inspection.humanize import printable

PART: Final = 100_000  # characters of a part
_LATEST: Final = 4_000  # characters before the end of a part in which it may end with a line


@dataclass(frozen=True, slots=True)
class Fold:
    """The beginning of an object or array inside another one, to be closed by an `END`; `size` counts what it holds."""

    head: str
    size: int


#: Ends the newest open `Fold`.
END: Final = None


class PayloadText:
    """The indented JSON text of `value`, JSON data, without escapes for characters beyond ASCII."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.text = printable(json.dumps(value, indent=2, ensure_ascii=False))

    @property
    def size(self) -> int:
        """Its length in bytes of UTF-8."""
        return len(self.text) if self.text.isascii() else len(self.text.encode())

    def parts(self, length: int = PART) -> list[tuple[int, int]]:
        """Return where each part of at most `length` characters begins and ends: at the end of a line if possible."""
        found: list[tuple[int, int]] = []
        begin = 0
        while begin < len(self.text):
            end = min(begin + length, len(self.text))
            if end < len(self.text):
                line = self.text.rfind("\n", max(begin, end - _LATEST), end)
                end = line + 1 if line > begin else end
            found.append((begin, end))
            begin = end
        return found

    def find(self, words: str, most: int) -> list[tuple[int, int]]:
        """Return the begin and the end of the first `most` places where the text has `words`, in capitals or not.

        Words are found as they are read: with the escapes of JSON, or without those for quotes and backslashes.
        """
        for each in dict.fromkeys((words, _json(words)[1:-1])):  # one for most words
            if found := list(islice(_spans(each, self.text), most)):
                return found
        return []

    def line_at(self, begin: int, end: int, around: int) -> str:
        """Return the line of such a place, at most `around` characters before and behind it."""
        first = max(self.text.rfind("\n", 0, begin) + 1, begin - around)
        last = self.text.find("\n", end)
        last = min(len(self.text) if last < 0 else last, end + around)
        return self.text[first:last].strip()


def _spans(words: str, text: str) -> Iterator[tuple[int, int]]:
    return (each.span() for each in re.finditer(re.escape(words), text, re.IGNORECASE)) if words else iter(())


def folded(value: Any) -> Iterator[str | Fold | None]:
    """Yield the lines of the same text, with a `Fold` at each object or array inside the value and `END` behind it.

    Nothing is made of the rest if the caller stops.
    """
    yield from _lines(value, "", "", 0)


def _lines(value: Any, head: str, tail: str, depth: int) -> Iterator[str | Fold | None]:
    indent = "  " * depth
    if not isinstance(value, dict | list) or not value:
        yield f"{indent}{head}{_json(value)}{tail}\n"
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    first = f"{indent}{head}{opening}"
    yield Fold(first, len(value)) if depth else f"{first}\n"
    named = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for number, (name, each) in enumerate(named, 1):
        key = "" if name is None else f"{_json(name)}: "
        yield from _lines(each, key, "," if number < len(value) else "", depth + 1)
    yield f"{indent}{closing}{tail}\n"
    if depth:
        yield END


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
