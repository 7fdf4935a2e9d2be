"""Every text of a page in brackets, and the words of a page that are in none: those whose texts are not marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any, Final
from unittest.mock import patch

from django.utils import translation

_OPEN, _CLOSE = "⟦", "⟧"
#: Elements whose contents are code, commands, data, or what the browser does not show.
_OF_OTHERS: Final = frozenset({"script", "style", "code", "pre", "textarea", "datalist", "bdi"})
_CLASSES_OF_OTHERS: Final = frozenset({"durable-json", "durable-code", "durable-error"})
_VOID: Final = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
_TOLD: Final = frozenset({"aria-label", "title", "alt", "placeholder", "label", "data-label", "data-filter-title"})
_BUTTONS: Final = frozenset({"submit", "button", "reset"})
_WORD: Final = re.compile(r"[A-Za-zÄÖÜäöüß]{2,}")


@contextmanager
def texts_in_brackets() -> Iterator[None]:
    """Put every text that is looked up in a catalogue, durable's and Django's, into brackets, in this block."""

    def one(message: str) -> str:
        return f"{_OPEN}{message}{_CLOSE}" if message else ""

    def of_context(_context: str, message: str) -> str:
        return one(message)

    def many(singular: str, plural: str, number: int) -> str:
        return one(singular if number == 1 else plural)

    def many_of_context(_context: str, singular: str, plural: str, number: int) -> str:
        return many(singular, plural, number)

    trans: Any = translation._trans  # type: ignore[attr-defined]  # where Django's functions and lazy texts end up
    with (
        patch.object(trans, "gettext", one),
        patch.object(trans, "pgettext", of_context),
        patch.object(trans, "ngettext", many),
        patch.object(trans, "npgettext", many_of_context),
    ):
        yield


def outside_brackets(html: str) -> set[str]:
    """Return the words of a page that are in no brackets.

    They are those of its texts, and of the attributes that are told to people.
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.words


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: set[str] = set()
        self._inside: list[tuple[str, bool]] = []
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in _VOID:
            is_of_others = tag in _OF_OTHERS or _CLASSES_OF_OTHERS & set((given.get("class") or "").split())
            self._inside.append((tag, bool(is_of_others)))
        for name, value in attrs:
            is_button = tag == "input" and name == "value" and given.get("type") in _BUTTONS
            is_word = tag == "meta" and given.get("name") == "durable-words" and name.startswith("data-")
            if value and (name in _TOLD or is_button or is_word):
                self._note(value, 0)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(is_of_others for _, is_of_others in self._inside):
            self._depth = self._note(data, self._depth)

    def _note(self, text: str, depth: int) -> int:
        bare = []
        for sign in text:
            depth += (sign == _OPEN) - (sign == _CLOSE)
            bare.append(sign if depth == 0 and sign != _CLOSE else " ")
        self.words |= set(_WORD.findall("".join(bare)))
        return depth
