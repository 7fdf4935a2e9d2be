"""The language of the engine's sentences: English, unless a surface gives another one.

`core/` imports the standard library alone, so the look-up in a catalogue comes from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """A sentence in English that a surface can tell in another language: its template and the values in it.

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
    """Return a sentence in another language; anything else as it is."""
    return value.told_in(words) if isinstance(value, Sentence) else value


def _sentence(template: str, values: Mapping[str, object]) -> Sentence:
    return Sentence(template, **values)
