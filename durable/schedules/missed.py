"""The due moments of a schedule: those that become ticks, and those that were missed.

Several moments are due, or one is late, after a time without a timer, such as a deploy or an outage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from durable.schedules.rules import CatchUp, Rule, latest, next_after, upcoming

#: A tick that begins later than this is late: it counts as missed.
LATE: Final = timedelta(minutes=1)
#: The most ticks that `catch_up="all"` catches up.
MOST_CAUGHT_UP: Final = 100
#: The most missed moments that are listed.
MOST_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class Missed:
    """A moment without a run, and why."""

    moment: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The work that is due for a schedule: `tick` now, if it is not None, and record `missed`.

    `next_at` is the moment after `tick`, or after the missed ones: None if the rules have none. `is_catching_up`: the
    tick is one of those that were missed. `is_incomplete`: there were more missed moments, older than those listed.
    """

    tick: datetime | None
    missed: Sequence[Missed]
    next_at: datetime | None
    is_catching_up: bool
    is_incomplete: bool


def due_at(
    rules: Sequence[Rule],
    zone: str,
    next_at: datetime,
    now: datetime,
    *,
    catch_up: CatchUp,
    window: timedelta | None,
    delay: Callable[[datetime], timedelta],
) -> Due | None:
    """Decide what a schedule whose next moment is `next_at` does at `now`; None if nothing is due.

    `delay` is the jitter of a moment.
    """
    if next_at + delay(next_at) > now:
        return None
    moments, is_complete = _moments(rules, zone, next_at, now, delay)
    newest = moments[-1]

    def lateness(moment: datetime) -> timedelta:
        return now - moment - delay(moment)

    if len(moments) == 1 and lateness(newest) <= LATE:
        return Due(
            tick=newest,
            missed=(),
            next_at=next_after(rules, zone, newest),
            is_catching_up=False,
            is_incomplete=False,
        )
    if len(moments) > 1 and lateness(moments[0]) <= LATE:  # none is late: they are ticked one after the other
        return Due(tick=moments[0], missed=(), next_at=moments[1], is_catching_up=False, is_incomplete=False)
    inside = [each for each in moments if window is None or lateness(each) <= window]
    if catch_up == "all":
        chosen = inside[-MOST_CAUGHT_UP:]
    elif catch_up == "last":
        chosen = inside[-1:]
    else:
        chosen = [newest] if lateness(newest) <= LATE else []
    tick = chosen[0] if chosen else None
    left = set(moments) - set(chosen)
    missed = [Missed(each, _why(each in inside, catch_up, window)) for each in moments if each in left]
    following = chosen[1] if len(chosen) > 1 else next_after(rules, zone, moments[-1])
    return Due(
        tick=tick,
        missed=missed[-MOST_LISTED:],
        next_at=following,
        is_catching_up=tick is not None and (len(chosen) > 1 or lateness(tick) > LATE),
        is_incomplete=not is_complete or len(missed) > MOST_LISTED,
    )


def _moments(
    rules: Sequence[Rule], zone: str, next_at: datetime, now: datetime, delay: Callable[[datetime], timedelta]
) -> tuple[list[datetime], bool]:
    """Return the due moments, oldest first, at least `next_at`; and whether these are all."""
    begin = list(islice(upcoming(rules, zone, next_at), 10))
    early = [next_at]
    for each in begin:
        if each + delay(each) > now:
            return early, True
        early.append(each)
    if len(begin) < 10:
        return early, True
    moments, is_complete = latest(rules, zone, next_at, now, MOST_LISTED + MOST_CAUGHT_UP)
    while moments and moments[-1] + delay(moments[-1]) > now:
        moments.pop()
    return moments or [next_at], is_complete


def _why(is_inside: bool, catch_up: CatchUp, window: timedelta | None) -> str:
    if not is_inside and window is not None:
        return f"no timer ran then, and it was noticed later than the window of {window} after it"
    if catch_up == "none":
        return 'no timer ran then, and catch_up is "none"'
    if catch_up == "last":
        return 'no timer ran then; a newer moment was caught up (catch_up is "last")'
    return f"no timer ran then; {MOST_CAUGHT_UP} newer moments were caught up"
