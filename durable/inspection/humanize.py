"""Times and counts for people, the same on every surface.

Pure functions; times are aware, spans are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.utils import timezone

__all__ = [
    "byte_size",
    "either",
    "moment",
    "plural",
    "printable",
    "relative",
    "sentence",
    "shortened",
    "span",
    "until",
]

_LONG_WORD = 40  # characters that are left out at most, to cut a text between words
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def span(seconds: float, units: int = 2) -> str:
    """Return a length of time in its largest units: "3 h 5 m", "12 s", "0.4 s", "7 ms"."""
    seconds = abs(seconds)
    if 0 < seconds < 0.05:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            number, left = divmod(left, size)
            parts.append(f"{number} {unit}" if number else "")
        if len(parts) == units:
            break
    return " ".join(filter(None, parts))


def relative(then: datetime, now: datetime, units: int = 2) -> str:
    """Return how far `then` is from `now`: "in 3 h", "12 s ago", "now"."""
    seconds = (then - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds, units)}" if seconds > 0 else f"{span(seconds, units)} ago"


def moment(then: datetime, now: datetime) -> str:
    """Return `then` in the current time zone: "14:00:05 UTC" today, "2 Sep 14:00 UTC", "2 Sep 2027 14:00 UTC"."""
    there, here = timezone.localtime(then), timezone.localtime(now)
    if there.date() == here.date():
        return f"{there:%H:%M:%S %Z}"
    return f"{there.day} {there:%b %H:%M %Z}" if there.year == here.year else f"{there.day} {there:%b %Y %H:%M %Z}"


def until(then: datetime, now: datetime) -> str:
    """Return a time by the clock and relative to now: "2 Sep 14:00 UTC, in 3 h"."""
    return f"{moment(then, now)}, {relative(then, now)}"


def either(names: Sequence[str]) -> str:
    """Join names: "a", "a or b", "a, b or c"; at most five are named."""
    shown = [*names[:5], *([f"{len(names) - 5} more"] if len(names) > 5 else [])]
    return " or ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else ""


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "2 runs", "10,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def byte_size(number: int) -> str:
    """Return a number of bytes in its largest unit: "184 MB", "2.1 GB", "512 B"."""
    size, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}" if 0 < size < 10 and unit != "B" else f"{size:.0f} {unit}"


def printable(text: str) -> str:
    """Return `text` with lone surrogates, which no page can encode, replaced by their numbers."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, length: int = 300) -> str:
    """Return `text` in at most `length` characters, on one line, cut between words unless a word is very long."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    cut = line[: length - 1]
    words = cut.rpartition(" ")[0]
    whole = words if len(words) > len(cut) - _LONG_WORD and line[length - 1] != " " else cut.rstrip()
    return f"{whole}…"


def sentence(error: BaseException) -> str:
    """Return the error's text as a sentence."""
    text = str(error)
    return text[:1].upper() + text[1:].removesuffix(".") + "."
