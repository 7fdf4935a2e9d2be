"""What a verb of `durable.operations.catalogue` answers: the thing that it has changed, as it is afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from durable.inspection.schedules import find_schedule
from durable.listings.listing import Listing
from durable.listings.restored import Decided
from durable.listings.schedules import Backfill, Schedule, Tick
from durable.listings.shapes import Seen, Shape
from durable.listings.work import LIMITS, RATES, Hold, Release
from durable.operations.catalogue import LIMIT, RATE, SCHEDULE
from durable.operations.verbs import Subject, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a verb: its shape, and the function that makes its data from the name and the verb's result.

    It returns None for a name that is not there any more, or not for this caller.
    """

    shape: type[Shape]
    shown: Callable[[Seen, str, Any], Any]


def answer_of(verb: Verb) -> Answer:
    """Return the answer to this verb."""
    return _ANSWERS.get(verb.action) or _ANSWERS[verb.on]


def subject_of(verb: Verb, seen: Seen, name: str) -> Any:
    """Return what the verb acts on, as it is now; None if there is none."""
    return _ANSWERS[verb.on].shown(seen, name, None)


def _released(seen: Seen, name: str, resumed: int | None) -> Any:
    return SimpleNamespace(name=name, resumed=None if resumed and seen.within is not None else resumed or 0)


def _now(listing: Listing) -> Answer:
    return Answer(shape=listing.item, shown=lambda seen, name, _done: listing.find(seen, name))


_HELD: Final = Answer(shape=Hold, shown=lambda _seen, _name, hold: hold)
_RELEASED: Final = Answer(shape=Release, shown=_released)
#: By action, or by subject.
_ANSWERS: Final[Mapping[str | Subject, Answer]] = {
    "pause_queue": _HELD,
    "hold_starts": _HELD,
    "resume_queue": _RELEASED,
    "release_starts": _RELEASED,
    LIMIT: _now(LIMITS),
    RATE: _now(RATES),
    SCHEDULE: Answer(shape=Schedule, shown=lambda seen, name, _done: find_schedule(name, seen.now)),
    "restored": Answer(shape=Decided, shown=lambda _seen, _name, decided: decided),
    "run_schedule": Answer(shape=Tick, shown=lambda _seen, _name, tick: tick),
    "backfill_schedule": Answer(shape=Backfill, shown=lambda _seen, _name, done: done),
    "delete_schedule": Answer(shape=Schedule, shown=lambda _seen, _name, before: before),
}
