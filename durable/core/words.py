"""The language of the engine's sentences: English, unless a surface gives another one.

`core/` imports the standard library alone, so the look-up in a catalogue comes from outside.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ENGLISH", "Words", "gettext_noop"]


class Words:
    """How sentences are told: in English. A subclass looks them up in a catalogue; see `durable.core.summary.Summary.told_in`."""

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
