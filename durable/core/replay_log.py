"""The note of the audit log on what a replay starts again: written with the replay, and read where a bulk is shown."""

from __future__ import annotations

import re
from typing import Final

#: A part of each detail that `number_in_log` has ended.
LOGGED: Final = " started again"

_NUMBER: Final = re.compile(rf"; (\d+) (?:child is|children are){LOGGED}$")


def number_in_log(number: int) -> str:
    """Return the end of the detail of a replay that starts so many children again; "" for none."""
    return f"; {number} {'child is' if number == 1 else 'children are'}{LOGGED}" if number else ""


def logged_number(detail: str) -> int:
    """Return the number at the end of the detail of a replay; 0 if there is none."""
    found = _NUMBER.search(detail)
    return int(found[1]) if found else 0
