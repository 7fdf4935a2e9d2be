"""The language of the engine's sentences, foreign text made safe for terminals, and exceptions read as text.

`core/` imports the standard library alone, so the look-up in a catalogue comes from outside.
"""

from __future__ import annotations

import os
import traceback
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self


class Words:
    """The language of sentences: English.

    A subclass looks them up in a catalogue; see `durable.core.summary.Summary.told_in`.
    """

    def gettext(self, text: str) -> str:
        """Return the text in the language."""
        return text

    def ngettext(self, one: str, many: str, number: int) -> str:
        """Return the text for this number in the language."""
        return one if number == 1 else many

    def number(self, count: int) -> str:
        """Return a whole number with the separators of the language."""
        return f"{count:,}"


ENGLISH: Final = Words()


def gettext_noop(text: str) -> str:
    """Return the text as it is. The name marks it for the catalogues of translations."""
    return text


class Sentence(str):
    """A sentence in English that a surface can show in another language: its template and the values in it.

    The template is marked by `gettext_noop` and names the values in braces. A value may be a sentence itself.
    """

    __slots__ = ("template", "values")

    template: str
    values: Mapping[str, object]

    def __new__(cls, template: str, **values: object) -> Self:
        sentence = super().__new__(cls, template.format(**values))
        sentence.template, sentence.values = template, values
        return sentence

    def told_in(self, words: Words) -> str:
        """Return the sentence in another language."""
        values = {name: told_in(words, value) for name, value in self.values.items()}
        return words.gettext(self.template).format(**values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _sentence, (self.template, dict(self.values))


def told_in(words: Words, value: object) -> object:
    """Translate a sentence; return anything else unchanged."""
    return value.told_in(words) if isinstance(value, Sentence) else value


def _sentence(template: str, values: Mapping[str, object]) -> Sentence:
    return Sentence(template, **values)


#: Categories of characters that may control a terminal or hide text: controls, formats (which change the direction of
#: text), surrogates, private and unassigned ones, and line and paragraph separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: object, *, lines: bool = False) -> str:
    """Return `text` with unsafe characters escaped; with `lines`, line breaks and tabs are kept."""
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    kept = "\n\t" if lines else ""
    return "".join(
        each if each in kept or unicodedata.category(each) not in _UNSAFE else _escaped(each) for each in shown
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


MAX_MESSAGE = 10_000  # characters of an error's message that are kept
MAX_TRACEBACK = 50_000  # characters of its traceback that are kept

_HERE = Path(__file__).parent
_ENGINE = (str(_HERE) + os.sep, str(_HERE.parent / "drivers") + os.sep)

#: The errors that reading an exception of a user's class may raise.
UNREADABLE = (Exception, SystemExit, GeneratorExit)


def kind_of(error: BaseException) -> str:
    """Return the name of the error's class, without running code of that class."""
    name: str = type.__getattribute__(type(error), "__name__")
    return name


def message_of(error: BaseException) -> str:
    """Return the error's text, at most `MAX_MESSAGE` characters. If it cannot be read, say so."""
    try:
        message = str(error)
    except UNREADABLE as broken:  # a user's __str__ may raise anything
        message = f"<the error's text could not be read: {kind_of(broken)}>"
    return _shortened(message, MAX_MESSAGE)


def traceback_of(error: BaseException) -> str:
    """Return the formatted traceback from the first frame of user code on, at most `MAX_TRACEBACK` characters."""
    try:
        frames = "".join(traceback.format_exception(type(error), error, _user_frames(error.__traceback__)))
    except UNREADABLE as broken:
        frames = f"<the traceback could not be read: {kind_of(broken)}>"
    return _shortened(frames, MAX_TRACEBACK)


def is_readable(error: BaseException) -> bool:
    """Return True if this error, and those it came from, can be described."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    try:
        while left:
            found = left.pop()
            if found is None or id(found) in seen:
                continue
            seen.add(id(found))
            _ = (found.__class__, found.__traceback__, found.__suppress_context__, getattr(found, "__notes__", None))
            left += [found.__cause__, found.__context__]
    except UNREADABLE:
        return False
    return True


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from the first one of user code on: the fault is nearly always there."""
    frame = frames
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_ENGINE):
        frame = frame.tb_next
    return frame or frames


def _shortened(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than `limit`: both ends of a traceback say most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
