"""Text of others, for terminals and logs: what they would obey, or what hides text, is written as escapes."""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ["safe"]

#: Categories of characters that a terminal may obey, or that hide what is written: controls, formats (which turn the
#: direction of text), surrogates, private and unassigned ones, and line and paragraph separators.
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: object, *, lines: bool = False) -> str:
    """`text` with what a terminal would obey written as escapes; with `lines`, its line breaks and tabs stay."""
    told = str(text)
    if told.isascii() and told.isprintable():
        return told
    kept = "\n\t" if lines else ""
    return "".join(
        each if each in kept or unicodedata.category(each) not in _UNSAFE else _escaped(each) for each in told
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
