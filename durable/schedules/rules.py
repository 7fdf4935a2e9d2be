"""Rules as users write them: `cron(...)`, `every(...)`, a list of them, and their text.

The text of a rule is what rows keep and what `read_rules` reads again: "30 2 * * *", "every 6 hours",
"every 6 hours offset 15 minutes"; those of a list are separated by semicolons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias

from cronsim import CronSim

from durable.core.duration import Duration, parse_duration
from durable.schedules.options import CatchUp, Options, Overlap

_MOST: Final = 20  # rules of a list
_LONGEST: Final = 1_000  # characters of a text
_LIMITS: Final = (timedelta(seconds=1), timedelta(days=3_660))
_FIELDS: Final = "five fields: minute, hour, day of the month, month, day of the week"
_EVERY: Final = re.compile(r"every\s+(?P<duration>.+?)(?:\s+offset\s+(?P<offset>.+))?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cron:
    """A rule of five cron fields, made by `cron`. `expression` has its fields separated by single spaces."""

    expression: str
    options: Options = field(default_factory=Options, compare=False)

    @property
    def text(self) -> str:
        """The rule as text."""
        return self.expression

    @property
    def follows_instants(self) -> bool:
        """True if the hours are `*` or have steps: then the rule follows the time that passes, not the clock on the
        wall, when the zone changes its offset.
        """
        hours = self.expression.split(" ")[1]
        return "*" in hours or "/" in hours


@dataclass(frozen=True, slots=True)
class Every:
    """A rule of equal intervals, made by `every`, counted from 1970-01-01 00:00 UTC plus `offset`."""

    duration: timedelta
    offset: timedelta = timedelta(0)
    options: Options = field(default_factory=Options, compare=False)

    @property
    def text(self) -> str:
        """The rule as text."""
        offset = f" offset {duration_text(self.offset)}" if self.offset else ""
        return f"every {duration_text(self.duration)}{offset}"


Rule: TypeAlias = Cron | Every
RuleLike: TypeAlias = str | Rule | Sequence[str | Rule]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one schedule, of which it has the moments of all, and the options said with them."""

    rules: tuple[Rule, ...]
    options: Options = field(default_factory=Options, compare=False)

    @property
    def text(self) -> str:
        """All rules as one text."""
        return "; ".join(each.text for each in self.rules)


def cron(
    expression: str,
    *,
    zone: str | None = None,
    overlap: Overlap | None = None,
    catch_up: CatchUp | None = None,
    window: Duration | None = None,
    jitter: Duration | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Cron:
    """Return a rule of five cron fields: `cron("30 2 * * *", zone="Europe/Berlin")`.

    Fields have names (`MON`, `JAN`), ranges, lists, steps, `L` and `LW` (the last day, the last weekday of the month),
    `5L` (the last Friday) and `MON#1` (the first Monday). Local times are those of `zone`, by default UTC. A local time
    that a change of the zone's offset leaves out counts at the first instant after the gap, one that occurs twice
    counts the first time; hours with `*` or steps follow the time that passes.

    The other arguments are options of the schedule: see `Schedule`. `args` and `kwargs` are the workflow's. Raises
    TypeError and ValueError.
    """
    if not isinstance(expression, str):
        raise TypeError(f'a cron rule is text of {_FIELDS}, such as "30 2 * * *", not {expression!r}')
    given = Options.of(
        zone=zone, overlap=overlap, catch_up=catch_up, window=window, jitter=jitter, args=args, kwargs=kwargs
    )
    return Cron(_checked(expression), given)


def every(
    duration: Duration,
    *,
    offset: Duration = 0,
    overlap: Overlap | None = None,
    catch_up: CatchUp | None = None,
    window: Duration | None = None,
    jitter: Duration | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Every:
    """Return a rule of equal intervals: `every("6 hours")`, `every("1 day", offset="2 hours 30 minutes")`.

    Its moments are those at which a whole number of durations has passed since 1970-01-01 00:00 UTC plus `offset`:
    every 6 hours is at 0, 6, 12 and 18 o'clock UTC, whenever the schedule was made. A duration is of whole seconds, and
    the offset is shorter than it. The other arguments are as for `cron`. Raises TypeError and ValueError.
    """
    interval = parse_duration(duration, "the duration of every()")
    start = parse_duration(offset, "the offset of every()")
    for each, what in ((interval, "the duration"), (start, "the offset")):
        if each.microseconds:
            raise ValueError(f"{what} of every() is of whole seconds, not {each.total_seconds():g} s")
    if not _LIMITS[0] <= interval <= _LIMITS[1]:
        raise ValueError(f"the duration of every() is between 1 second and {_LIMITS[1].days:,} days, not {duration!r}")
    if start >= interval:
        raise ValueError(f"the offset of every() is shorter than its duration: {offset!r} is not below {duration!r}")
    given = Options.of(overlap=overlap, catch_up=catch_up, window=window, jitter=jitter, args=args, kwargs=kwargs)
    return Every(interval, start, given)


def read_rules(given: RuleLike) -> Rules:
    """Return the rules that a user has given: one rule, a list of rules, or the text of either.

    Options that several rules of a list say must be the same. Raises TypeError and ValueError.
    """
    if isinstance(given, str):
        rules = _of_text(given)
    elif isinstance(given, Cron | Every):
        rules = [given]
    elif isinstance(given, Sequence):
        rules = [rule for each in given for rule in read_rules(each).rules]
    else:
        raise TypeError(f"a rule is cron(...), every(...), their text or a list of them, not {given!r}")
    if not 1 <= len(rules) <= _MOST:
        raise ValueError(f"a schedule has 1 to {_MOST} rules, not {len(rules)}")
    distinct = tuple(dict.fromkeys(rules))
    found = Rules(distinct, _together(rules))
    if len(found.text) > _LONGEST:
        raise ValueError(
            f"the rules of a schedule have at most {_LONGEST:,} characters, these have {len(found.text):,}"
        )
    return found


def _of_text(text: str) -> list[Rule]:
    if len(text) > _LONGEST:
        raise ValueError(f"the rules of a schedule have at most {_LONGEST:,} characters, these have {len(text):,}")
    return [_rule_of_text(part) for part in re.split(r"[;\n]", text) if part.strip()]


def _rule_of_text(text: str) -> Rule:
    stripped = text.strip()
    if match := _EVERY.fullmatch(stripped):
        return every(match["duration"], offset=match["offset"] or 0)
    if len(stripped.split()) != 5:
        raise ValueError(
            f'the rule {stripped[:100]!r} cannot be read: write {_FIELDS} ("30 2 * * *"), or "every" and a duration '
            '("every 6 hours")'
        )
    return cron(stripped)


def _together(rules: Sequence[Rule]) -> Options:
    said: dict[str, Any] = {}
    for rule in rules:
        for name, value in rule.options.said().items():
            if said.setdefault(name, value) != value:
                raise ValueError(
                    f"the rules of one schedule have one {name}: here are {said[name]!r} and {value!r}; make two schedules "
                    "of them"
                )
    return Options(**said)


def _checked(expression: str) -> str:
    fields = expression.upper().split()
    if len(fields) != 5:
        raise ValueError(f"a cron rule has {_FIELDS}; {expression[:100]!r} has {len(fields)}")
    text = " ".join(fields)
    try:
        _parsed(text)
    except Exception as error:  # noqa: BLE001  # the library's own class, and others for unusual texts
        raise ValueError(
            f"the cron rule {text[:100]!r} cannot be read: {str(error) or 'a field is not valid'}"
        ) from None
    if next(field_walker(text), None) is None:
        raise ValueError(f"the cron rule {text[:100]!r} has no moment within 50 years: no month has that day")
    return text


def field_walker(expression: str) -> CronSim:
    """Return an iterator over the local times of a cron expression. Set its `dt`, naive, to where it begins."""
    return copy(_parsed(expression))


@lru_cache(maxsize=4_096)
def _parsed(expression: str) -> CronSim:
    return CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001  # naive: the local time of any zone


_UNITS: Final = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def duration_text(duration: timedelta) -> str:
    """Return the duration in words that `parse_duration` reads again: "1 day 2 hours"."""
    left = int(duration.total_seconds())
    parts = []
    for unit, size in _UNITS:
        if unit == "week" and left % size:
            continue  # 10 days, not 1 week 3 days
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"
