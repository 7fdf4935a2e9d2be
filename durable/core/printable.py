"""Make text of others safe for terminals and logs: escape characters that control a terminal or hide text."""

from __future__ import annotations

import unicodedata
from typing import Final

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
