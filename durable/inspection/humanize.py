"""Times and counts for people, the same on every surface, in the active language.

Pure functions; times are aware, spans are in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone
from django.utils.dateformat import format as format_date
from django.utils.formats import get_format
from django.utils.translation import gettext, ngettext, pgettext

from durable.core.clock import EARLIEST, LATEST

_LONG_WORD = 40  # the most characters to drop so that a text is cut between words
_UNITS = (86_400, 3_600, 60, 1)


def thousands(count: int) -> str:
    """Return a whole number with the separators of the language: "10,000"."""
    if -1_000 < count < 1_000:
        return str(count)
    return f"{count:,}".replace(",", str(get_format("THOUSAND_SEPARATOR")))


def decimal(value: float, digits: int = 1) -> str:
    """Return a number with the separators of the language, rounded: "1,234.5"."""
    text = f"{value:,.{digits}f}"
    if "," not in text and "." not in text:
        return text
    whole, _, rest = text.partition(".")
    whole = whole.replace(",", str(get_format("THOUSAND_SEPARATOR")))
    return f"{whole}{get_format('DECIMAL_SEPARATOR')}{rest}" if rest else whole


def span(seconds: float, units: int = 2) -> str:
    """Return a length of time in its largest units: "3 h 5 m", "12 s", "0.4 s", "7 ms"."""
    seconds = abs(seconds)
    if 0 < seconds < 0.05:
        return milliseconds(seconds)
    if seconds < 10:
        tenths = f"{seconds:.1f}"
        return _unit(1, tenths[:-2] if tenths.endswith(".0") else decimal(seconds))
    left = round(seconds)
    parts: list[str] = []
    for size in _UNITS:
        if left >= size or parts:
            count, left = divmod(left, size)
            parts.append(_unit(size, str(count)) if count else "")
        if len(parts) == units:
            break
    return " ".join(filter(None, parts))


def signed_span(length: timedelta, words: Callable[[float], str] = span) -> str:
    """Return a length of time with its sign, in `words`: "+12 s", "-5 m"."""
    return f"{'-' if length < timedelta() else '+'}{words(abs(length.total_seconds()))}"


def quoted(name: str) -> str:
    """Return a name in the quotation marks of the language."""
    return pgettext("quotation marks", '"%(name)s"') % {"name": name}


def milliseconds(seconds: float) -> str:
    """Return a short length of time in whole milliseconds, at least one: "7 ms"."""
    return gettext("%(number)s ms") % {"number": max(1, round(seconds * 1000))}


def _unit(size: int, count: str) -> str:
    if size == 1:
        text = gettext("%(number)s s")
    elif size == 60:
        text = gettext("%(number)s m")
    elif size == 3_600:
        text = gettext("%(number)s h")
    else:
        text = gettext("%(number)s d")
    return text % {"number": count}


def browser_words() -> dict[str, str]:
    """Return the texts of `relative` and `span` for a program that counts on in the browser.

    "%s" stands for a number or a span.
    """
    number = {"number": "%s"}
    return {
        "now": gettext("now"),
        "in": gettext("in %(span)s") % {"span": "%s"},
        "ago": gettext("%(span)s ago") % {"span": "%s"},
        "day": gettext("%(number)s d") % number,
        "hour": gettext("%(number)s h") % number,
        "minute": gettext("%(number)s m") % number,
        "second": gettext("%(number)s s") % number,
        "decimal": str(get_format("DECIMAL_SEPARATOR")),
    }


def relative(then: datetime, now: datetime, units: int = 2) -> str:
    """Return how far `then` is from `now`: "in 3 h", "12 s ago", "now"."""
    if not EARLIEST < then < LATEST:
        return _beyond(then)
    seconds = (then - now).total_seconds()
    if abs(seconds) < 1:
        return gettext("now")
    text = gettext("in %(span)s") if seconds > 0 else gettext("%(span)s ago")
    return text % {"span": span(seconds, units)}


def moment(then: datetime, now: datetime) -> str:
    """Return `then` in the current time zone: "14:00:05 UTC" today, "2 Sep 14:00 UTC", "2 Sep 2027 14:00 UTC"."""
    if not EARLIEST < then < LATEST:
        return _beyond(then)
    there, here = timezone.localtime(then), timezone.localtime(now)
    if there.date() == here.date():
        return f"{there:%H:%M:%S %Z}"
    is_near = there.year == here.year
    return format_date(there, pgettext("date", "j M H:i T") if is_near else pgettext("date", "j M Y H:i T"))


def day_and_clock(there: datetime) -> str:
    """Return a day without its year, and the time, of a time in the time zone to be shown: "2 Sep 14:00"."""
    return format_date(there, pgettext("date", "j M H:i"))


def until(then: datetime, now: datetime) -> str:
    """Return a time by the clock and relative to now: "2 Sep 14:00 UTC, in 3 h"."""
    if not EARLIEST < then < LATEST:
        return _beyond(then)
    return gettext("%(moment)s, %(relative)s") % {"moment": moment(then, now), "relative": relative(then, now)}


def _beyond(then: datetime) -> str:
    """Return the text for a time outside of Python's range."""
    return gettext("after the year 9999") if then >= LATEST else gettext("before the year 1")


def either(names: Sequence[str]) -> str:
    """Join names: "a", "a or b", "a, b or c"; at most five are named."""
    shown = list(names[:5])
    if len(names) > 5:
        shown.append(ngettext("%(number)d more", "%(number)d more", len(names) - 5) % {"number": len(names) - 5})
    if len(shown) < 2:
        return "".join(shown)
    return gettext("%(names)s or %(last)s") % {"names": ", ".join(shown[:-1]), "last": shown[-1]}


def plural(count: int, noun: str) -> str:
    """Return a number with its noun, in English: "1 run", "2 runs", "10,000 runs"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def byte_size(count: int) -> str:
    """Return a number of bytes in its largest unit: "184 MB", "2.1 GB", "512 B"."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{decimal(size)} {unit}" if 0 < size < 10 and unit != "B" else f"{size:.0f} {unit}"


def printable(text: str) -> str:
    """Return `text` with lone surrogates, which no page can encode, replaced by their numbers."""
    return text.encode("utf-8", "backslashreplace").decode()


#: Controls, marks that change the direction of text, line separators, and characters without a width.
ALWAYS_HIDDEN: Final = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
)
#: These, and joining characters that do not join letters or emoji.
_HIDDEN: Final = re.compile(f"[{ALWAYS_HIDDEN}]|(?<=[\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\x7f]|$)")


def visible(text: str) -> str:
    """Return `text` with the characters that hide or reorder it replaced by their numbers."""
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def shortened(text: str, length: int = 300) -> str:
    """Return `text` in at most `length` characters, on one line, cut between words unless a word is very long."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    cut = line[: length - 1]
    words = cut.rpartition(" ")[0]
    whole = words if len(words) > len(cut) - _LONG_WORD and line[length - 1] != " " else cut.rstrip()
    return f"{whole}…"


def with_reason(title: str, reason: str) -> str:
    """Return the title with the reason that somebody gave behind it: "recovered by ada: the bank is back"."""
    told = {"title": title, "reason": shortened(reason)}
    return gettext("%(title)s: %(reason)s") % told if told["reason"] else title


def sentence(error: BaseException) -> str:
    text = str(error)
    return text[:1].upper() + text[1:].removesuffix(".") + "."
