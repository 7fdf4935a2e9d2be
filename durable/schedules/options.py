"""Options of schedules besides their rules, the names that schedules may have, and the ids of their runs."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from durable.core.duration import Duration, parse_duration

Overlap = Literal["skip", "queue", "allow", "replace"]
CatchUp = Literal["last", "none", "all"]
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
CATCH_UPS: Final[tuple[CatchUp, ...]] = get_args(CatchUp)

#: Characters of a schedule's name: a run's id has 200, and its moment takes up to 28 of them.
MAX_NAME: Final = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `cron` and `every` besides the rule; None where one was not given."""

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
        """Return those that were said, by name."""
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
    """Return the moment as ids and error texts have it: in UTC, to the second unless it lies between two."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def jitter_of(name: str, moment: datetime, jitter: timedelta) -> timedelta:
    """Return by how much the tick of this schedule for this moment is put off: at least 0, less than `jitter`.

    The same for the same arguments, in every process: it is made of a hash of both.
    """
    if not jitter:
        return timedelta(0)
    digest = hashlib.sha256(run_id_of(name, moment).encode(errors="surrogatepass")).digest()
    share = int.from_bytes(digest[:6], "big") / (1 << 48)
    return timedelta(milliseconds=int(share * (jitter / timedelta(milliseconds=1))))
