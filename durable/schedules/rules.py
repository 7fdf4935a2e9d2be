"""Rules as users write them: `cron(...)`, `every(...)`, a list of them, and their text.

The text of a rule is what rows keep and what `read_rules` reads again: "30 2 * * *", "every 6 hours",
"every 6 hours offset 15 minutes"; those of a list are separated by semicolons. Here are also the options of schedules
besides their rules, the names that schedules may have, the ids of their runs, and the moments of rules: the next one,
the next few, those of a period.

A cron rule names local times, in a zone whose offset from UTC changes. Two readings of them are needed at a change:

- *by the clock*: a time in the gap is the first instant after the gap; a time that occurs twice is the first of both.
- *by instants*: each instant whose local time matches, so that "every two hours" neither stops nor repeats itself.

The library iterates over local times without a zone; everything about zones is here. Moments are aware, in UTC.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo, available_timezones

from durable.core.duration import Duration, parse_duration

if TYPE_CHECKING:
    from cronsim import CronSim

Overlap = Literal["skip", "queue", "allow", "replace"]
CatchUp = Literal["last", "none", "all"]
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
CATCH_UPS: Final[tuple[CatchUp, ...]] = get_args(CatchUp)

#: Characters of a schedule's name: a run's id has 200, and its moment takes up to 28 of them.
MAX_NAME: Final = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `cron` and `every` besides the rule; None for those not given."""

    zone: str | None = None
    overlap: Overlap | None = None
    catch_up: CatchUp | None = None
    window: timedelta | None = None
    jitter: timedelta | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def of(
        cls,
        *,
        zone: str | None = None,
        overlap: Overlap | None = None,
        catch_up: CatchUp | None = None,
        window: Duration | None = None,
        jitter: Duration | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Options:
        """Return checked options. Raises TypeError and ValueError."""
        return cls(
            zone=None if zone is None else check_zone(zone),
            overlap=None if overlap is None else check_overlap(overlap),
            catch_up=None if catch_up is None else check_catch_up(catch_up),
            window=None if window is None else parse_duration(window, "a window"),
            jitter=None if jitter is None else parse_duration(jitter, "a jitter"),
            args=None if args is None else tuple(args),
            kwargs=None if kwargs is None else dict(kwargs),
        )

    def said(self) -> dict[str, Any]:
        """Return the given options by name."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


def check_zone(zone: str) -> str:
    """Return the name of a time zone, such as "Europe/Berlin"; else raise TypeError or ValueError."""
    if not isinstance(zone, str):
        raise TypeError(f'a zone is the name of a time zone, such as "Europe/Berlin", not {zone!r}')
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, LookupError):  # ZoneInfoNotFoundError is a KeyError
        nearest = difflib.get_close_matches(zone, _zones(), n=2)
        advice = f"did you mean {' or '.join(nearest)}?" if nearest else 'write one such as "Europe/Berlin" or "UTC"'
        raise ValueError(f"there is no time zone {zone[:64]!r}: {advice}") from None
    return zone


@lru_cache(maxsize=1)
def _zones() -> list[str]:
    return sorted(available_timezones())


def check_overlap(overlap: str) -> Overlap:
    """Return `overlap` if it is one of `OVERLAPS`; else raise ValueError."""
    for each in OVERLAPS:
        if overlap == each:
            return each
    raise ValueError(f"overlap is one of {', '.join(OVERLAPS)}, not {overlap!r}")


def check_catch_up(catch_up: str) -> CatchUp:
    """Return `catch_up` if it is one of `CATCH_UPS`; else raise ValueError."""
    for each in CATCH_UPS:
        if catch_up == each:
            return each
    raise ValueError(f"catch_up is one of {', '.join(CATCH_UPS)}, not {catch_up!r}")


def check_name(name: str) -> str:
    """Return `name` if a schedule can have it: the ids of its runs begin with it. Raises TypeError or ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a schedule's name is text, not {name!r}")
    if not 1 <= len(name) <= MAX_NAME:
        raise ValueError(f"a schedule's name has 1 to {MAX_NAME} characters, this one has {len(name)}")
    if "/" in name or not name.isprintable():
        raise ValueError(
            f'a schedule\'s name is made of printable characters without "/", because the ids of its runs begin with it: '
            f"{name!r}"
        )
    return name


def run_id_of(name: str, moment: datetime) -> str:
    """Return the id of the run of this schedule for this moment: `shop.nightly@2026-03-29T01:00:00Z`.

    A moment between two seconds, as that of "run now", has its six digits of microseconds.
    """
    return f"{name}@{text_of(moment)}"


def text_of(moment: datetime) -> str:
    """Return the moment in the form for ids and error texts: in UTC, with a fraction only if it has one."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def jitter_of(name: str, moment: datetime, jitter: timedelta) -> timedelta:
    """Return the delay of the schedule's tick for this moment: at least 0, less than `jitter`.

    The same in every process for the same arguments, because it is computed from their hash.
    """
    if not jitter:
        return timedelta(0)
    digest = hashlib.sha256(run_id_of(name, moment).encode(errors="surrogatepass")).digest()
    share = int.from_bytes(digest[:6], "big") / (1 << 48)
    return timedelta(milliseconds=int(share * (jitter / timedelta(milliseconds=1))))


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
    """The rules of one schedule, whose moments are combined, and their options."""

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

    Options given by several rules of a list must be equal. Raises TypeError and ValueError.
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
    from cronsim import CronSim  # by the first rule with cron fields

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


#: Zones keep an offset for longer than this, so that two samples this far apart miss no change.
_STEP: Final = timedelta(days=7)
_RESOLUTION: Final = timedelta(seconds=1)


def next_instant(rule: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the rule's first moment later than `after`; None if there is none before the year 9999."""
    try:
        return _by_instants(rule, zone, after) if rule.follows_instants else _by_clock(rule, zone, after)
    except OverflowError:
        return None


def _by_clock(rule: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    for local in _local_times(rule, after.astimezone(zone).replace(tzinfo=None)):
        instant = _first_instant(local, zone)
        if instant > after:  # not so in the second of two equal hours
            return instant
    return None


def _first_instant(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which clocks show `local` or, in a gap, a later time."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    # In a gap: fold=0 reckons with the offset before it, so `first` is behind the change, and fold=1 before it.
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _change_between(before, first, zone)


def _by_instants(rule: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    start, offset = after, _offset(after, zone)
    begin = after
    while True:
        local = next(_local_times(rule, (begin + offset).replace(tzinfo=None)), None)
        if local is None:
            return None
        instant = local.replace(tzinfo=UTC) - offset
        change = _next_change(start, instant, zone)
        if change is None:
            return instant
        start, offset = change, _offset(change, zone)
        begin = change - _RESOLUTION  # the instant of the change itself counts, in the new offset


def _local_times(rule: Cron, after: datetime) -> Iterator[datetime]:
    walker = field_walker(rule.expression)
    walker.dt = after.replace(microsecond=0)
    return walker


def _offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _next_change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first instant of a new offset that is later than `after` and not later than `until`."""
    low = after
    while low < until:
        high = min(low + _STEP, until)
        if _offset(high, zone) != _offset(low, zone):
            return _change_between(low, high, zone)
        low = high
    return None


def _change_between(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant with another offset than `low` has; `high` has another one."""
    before = _offset(low, zone)
    while high - low > _RESOLUTION:
        middle = low + (high - low) / 2
        if _offset(middle, zone) == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_BACK: Final = timedelta(minutes=10)


def next_after(rules: Sequence[Rule], zone: str, after: datetime) -> datetime | None:
    """Return the first moment of the rules after `after`, or None."""
    local = ZoneInfo(zone)
    utc = after.astimezone(UTC)
    found = [moment for rule in rules if (moment := _next(rule, local, utc)) is not None]
    return min(found, default=None)


def upcoming(rules: Sequence[Rule], zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the moments of the rules that are later than `after`, the earliest first."""
    moment = next_after(rules, zone, after)
    while moment is not None:
        yield moment
        moment = next_after(rules, zone, moment)


def latest(
    rules: Sequence[Rule], zone: str, since: datetime, until: datetime, most: int
) -> tuple[list[datetime], bool]:
    """Return the newest `most` moments from `since` to `until`, both included, oldest first, and whether these are all.

    The cost depends on `most` and not on the length of the period: the search begins at its end.
    """
    span = _LOOK_BACK
    just_before = timedelta(microseconds=1)
    while True:
        start = max(since, until - span)
        moments = list(takewhile(lambda each: each <= until, upcoming(rules, zone, start - just_before)))
        if len(moments) > most or start <= since:
            return moments[-most:], start <= since and len(moments) <= most
        span *= 4


def _next(rule: Rule, zone: ZoneInfo, after: datetime) -> datetime | None:
    if not isinstance(rule, Every):
        return next_instant(rule, zone, after)
    passed = (after - _EPOCH - rule.offset) // rule.duration
    try:
        return _EPOCH + rule.offset + (passed + 1) * rule.duration
    except OverflowError:
        return None
