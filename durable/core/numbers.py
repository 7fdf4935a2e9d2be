"""What counts as a number that code, settings or records give: True and False never do, and a whole number is one that
a record can hold.
"""

from __future__ import annotations

from typing import Final, TypeGuard

#: The largest whole number that a record holds.
MOST_WHOLE: Final = 2**63 - 1


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for an int or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object, least: int = -MOST_WHOLE - 1, most: int = MOST_WHOLE) -> TypeGuard[int]:
    """Return True for an int from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def read_whole(text: str, most: int = MOST_WHOLE) -> int | None:
    """Return the number from 0 to `most` that a text from outside is, in the digits 0 to 9; None for another text."""
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_WHOLE))
    return int(text) if is_short and int(text) <= most else None


def check_whole(name: str, value: int, least: int = 0, most: int = MOST_WHOLE, *, or_else: str = "") -> int:
    """Return a whole number in this range; else raise ValueError, where `or_else` says what else may be given."""
    if is_whole(value, least, most):
        return value
    # a number that no record holds is not shown: Python refuses to write down more than 4,300 digits
    if isinstance(value, int) and value > MOST_WHOLE:
        raise ValueError(f"{name} must be at most {most:,}{', which is 2**63 - 1' if most == MOST_WHOLE else ''}")
    span = f"of at least {least}" if most == MOST_WHOLE else f"from {least} to {most:,}"
    shown = "" if isinstance(value, int) and value < -MOST_WHOLE else f", not {value!r}"
    raise ValueError(f"{name} must be a whole number {span}{or_else}{shown}")
