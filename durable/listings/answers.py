"""Performing a verb for an interface of JSON. The answer is what the verb has changed, as it is afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from durable.inspection.humanize import sentence
from durable.inspection.schedules import find_schedule
from durable.listings.access import HasUser, actor_of, seen_by, seen_of
from durable.listings.listing import Listing
from durable.listings.problems import ProblemError
from durable.listings.restored import Decided
from durable.listings.runs import RunReference
from durable.listings.schedules import Backfill, Schedule, Tick
from durable.listings.shapes import Seen, Shape, data_of
from durable.listings.starts import reference_of
from durable.listings.work import LIMITS, RATES, Hold, Release
from durable.operations.audit import acting_as
from durable.operations.catalogue import LIMIT, RATE, SCHEDULE
from durable.operations.verbs import RUN, Subject, Verb


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


def acting_for(request: HasUser, verb: Verb, given: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Attribute the verb inside the block to the user of the request, with the `reason` and the `revision` given.

    The block belongs around the transaction of an idempotent request: see `acting_as`.
    """
    sees = seen_by(request) if verb.on is RUN else None
    return acting_as(actor_of(request), reason=given.get("reason", ""), expected=given.get("revision"), sees=sees)


def perform(
    request: HasUser, verb: Verb, name: str, given: Mapping[str, Any], call: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Perform a verb inside `acting_for`, and return the answer as JSON data.

    `given` has the options, and `reason` and `revision` if they were given. `call` is called in place of the verb's
    own function. Raises ProblemError for an unknown name and for refused options, and what the verb raises.
    """
    options = {key: value for key, value in given.items() if key not in ("reason", "revision")}
    seen, of_run = seen_of(request), verb.on is RUN
    before = _ANSWERS[verb.on].shown(seen, name, None) if verb.is_grave and not of_run else None
    try:
        result = (call or verb.call)(name, **options)
    except verb.on.unknown as error:
        if of_run:
            raise
        raise ProblemError("not-found", 404, sentence(error)) from None
    except (TypeError, ValueError) as error:
        raise ProblemError("arguments-refused", 422, sentence(error)) from None
    seen, answer = seen_of(request), answer_of(verb)
    shown = answer.shown(seen, name, result if before is None else before)
    if shown is None:
        raise ProblemError("not-found", 404, sentence(verb.on.unknown(name)))
    return data_of(answer.shape, shown, seen)


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
    RUN: Answer(shape=RunReference, shown=lambda _seen, name, _done: reference_of(name)),
    LIMIT: _now(LIMITS),
    RATE: _now(RATES),
    SCHEDULE: Answer(shape=Schedule, shown=lambda seen, name, _done: find_schedule(name, seen.now)),
    "restored": Answer(shape=Decided, shown=lambda _seen, _name, decided: decided),
    "run_schedule": Answer(shape=Tick, shown=lambda _seen, _name, tick: tick),
    "backfill_schedule": Answer(shape=Backfill, shown=lambda _seen, _name, done: done),
    "delete_schedule": Answer(shape=Schedule, shown=lambda _seen, _name, before: before),
}
