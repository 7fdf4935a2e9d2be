"""What is known of a step's attempt: the answers of `verify`, and what is recorded of a step that waits for a person.

A step with `once=True` commits each attempt before it calls the function. If the function neither returns nor says that
nothing has happened, nobody knows what it did: the outcome is unknown. `durable.core.once` asks `verify` about it.

A step is held if it waits for a person: its outcome is unknown and `verify` does not know either, or its attempts are
used up and the run is to stay open (`when_exhausted="hold"`). Both have the status `held`; a person settles both by one
verb. Plain data; must not decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypeVar

from durable.core.errors import ErrorInfo
from durable.core.records import EntryKind, EntryRecord, EntryStatus

T_co = TypeVar("T_co", covariant=True)

#: The key in an entry's data of what is needed to ask whether its attempt was done. Its value has the idempotency key,
#: the name of `verify` ("" if it cannot be imported), and how often that was asked.
ONCE: Final = "once"
#: The key in an entry's data of why and since when it is held.
HELD: Final = "held"
#: The key in an entry's data: the codec refuses the step's arguments, which are recorded as text for people.
AS_TEXT: Final = "as_text"

#: The key in an entry's data of how a step has failed for good. It stays, whatever a rollback finds out of the last
#: attempt, because the code may have handled the failure; a recovery deletes it.
FAILURE: Final = "failure"
#: In the data of a step's failure: it has failed while nobody knew whether it was done.
UNSETTLED: Final = "unsettled"
#: In the data of a step's failure: the person who has said that the held step fails, as where an output is given.
SAID_BY: Final = "said_by"
#: Inside of `HELD`: the step is in the copy of a run, or its run was reopened after its end. The run is not among
#: those that need a person until its next pass.
COPIED: Final = "copied"
#: Inside of `HELD`: a rollback has to know whether it has something to undo. The step itself goes on in no case.
UNDOING: Final = "undoing"

#: In the error of an attempt, before the answer of `verify`.
VERIFY: Final = "; verify says: "

WhenExhausted = Literal["fail", "hold"]
WHEN_EXHAUSTED: Final[tuple[WhenExhausted, ...]] = ("fail", "hold")


@dataclass(frozen=True, slots=True)
class Found(Generic[T_co]):
    """The answer of a step's `verify`: the attempt was done, and `value` is what the step's function returned or would
    have returned.
    """

    value: T_co


class NotDone(Exception):  # it is an answer too
    """Nothing has happened: raised by the function of a step with `once=True`, returned or raised by its `verify`.

    The step's retries go on. `reason` is for people.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)

    def __repr__(self) -> str:
        return f"NotDone({self.reason!r})"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer of a step's `verify`: it cannot tell whether the attempt was done. A person is asked.

    `reason` is for people.
    """

    reason: str = ""


class HeldReason(StrEnum):
    """Why a step is held. The values are stored."""

    UNKNOWN = "unknown"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step that waits for a person.

    `reason` is "unknown" (was the attempt done?) or "exhausted" (its attempts are used up). `attempt` is the number of
    the last attempt, from 1; 0 if none is recorded, because the database has lost what the step may have done. `since`
    is when the step was held (aware), `error` how the attempt ended.
    """

    location: str
    reason: str
    attempt: int
    since: datetime
    error: ErrorInfo | None


def held_steps(entries: Iterable[EntryRecord]) -> tuple[HeldStep, ...]:
    """Return the steps among these entries that wait for a person."""
    return tuple(_held_step(each) for each in entries if each.status == EntryStatus.HELD)


def _held_step(entry: EntryRecord) -> HeldStep:
    held: dict[str, Any] = entry.data.get(HELD, {})
    since = held.get("since")
    return HeldStep(
        location=entry.location,
        reason=str(held.get("reason", HeldReason.EXHAUSTED)),
        attempt=entry.attempts,
        since=entry.created_at if since is None else datetime.fromisoformat(since),
        error=entry.error,
    )


def held_anew(entry: EntryRecord) -> EntryRecord:
    """Return the entry of a copied run, or of one that has ended and goes on: if it is held, the next pass says so
    again.
    """
    if entry.status != EntryStatus.HELD:
        return entry
    return replace(entry, data={**entry.data, HELD: {**entry.data[HELD], COPIED: True}})


def is_unsettled(entry: EntryRecord) -> bool:
    """Return True if nobody knows whether the last attempt of the step was done."""
    if ONCE not in entry.data or entry.kind != EntryKind.STEP:
        return False
    if entry.status == EntryStatus.HELD:
        return bool(entry.data[HELD]["reason"] == HeldReason.UNKNOWN)
    if entry.status == EntryStatus.EXHAUSTED:
        return UNSETTLED in entry.data.get(FAILURE, {})
    return entry.status in (EntryStatus.RUNNING, EntryStatus.UNKNOWN)


def may_need_undoing(entry: EntryRecord) -> bool:
    """Return True if a rollback has something to undo here, or does not know yet whether it has."""
    return entry.is_compensable or ("rollback" in entry.data and is_unsettled(entry))


def without(entry: EntryRecord, *names: str) -> dict[str, Any]:
    """Return the entry's data without these keys."""
    return {name: value for name, value in entry.data.items() if name not in names}
