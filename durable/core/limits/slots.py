"""The operations that take slots of limits, and that wait for a moment in a limit's rate.

Owns the search for deadlocks. A run with `hold="open"` keeps its slot until its own end, so nothing that it waits for
can get the slot before. A slot that a run holds only while a worker executes it is free as soon as the run parks.

Must not decide who is next in a line, nor compute a moment: a store does, under the lock of the limit's key
(`Store.acquire`, `Store.reserve`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durable.core.control_flow import Park
from durable.core.effects import Ask, Operation, ShortSleep
from durable.core.errors import DeadlockError, RateUnitsError, UnknownLimitError
from durable.core.ids import MAX_REASON
from durable.core.journal import Journal
from durable.core.limits.rates import RateWant, Reservation
from durable.core.limits.slot_records import Admission, SlotKind, SlotRow, SlotWant
from durable.core.retries import RetryLater
from durable.core.summary import in_line, rated


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run and whether it waits for the end of the one below it."""

    run_id: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Deadlock:
    """A limit whose slots are all kept by runs of `chain`, which leads from the topmost of them to the run that would
    wait.

    `is_certain`: each run of the chain waits for the next one; otherwise one may end without the next.
    """

    limit: str
    holders: tuple[str, ...]
    chain: tuple[str, ...]
    is_certain: bool = True

    def error(self, waiter: str) -> DeadlockError:
        """Return the error that the workflow sees. `waiter` is what would wait: "child "a"", "step "b""."""
        held = " and ".join(f'"{each}"' for each in self.holders)
        waits = ", ".join(
            f'"{above}" waits for "{below}"' for above, below in zip(self.chain, self.chain[1:], strict=False)
        )
        return DeadlockError(
            f"{waiter} would wait for the limit {self.limit} for ever: run {held} {'keeps' if len(self.holders) == 1 else 'keep'} "
            f"all of it until {'its end' if len(self.holders) == 1 else 'their ends'}"
            f'{f", and {waits}" if waits else ""}; write hold="running", or use another limit or key'
        )


def find(
    ancestry: Sequence[Ancestor], slots: Sequence[SlotRow], want: SlotWant, at_once: int, own: frozenset[SlotKind]
) -> Deadlock | None:
    """Return the deadlock that a run would cause by waiting for a slot; None if there is none.

    `at_once` is the limit's number of slots. `ancestry` is the run and its ancestors, from the run upwards, `slots`
    those that they hold. `own` are the kinds of the run's own slots that it keeps while it waits.
    """
    holders: list[str] = []
    is_certain = True
    for place, member in enumerate(ancestry):
        if place:
            is_certain = is_certain and member.waits
        kinds = own if not place else frozenset({SlotKind.OPEN})
        held = [
            each
            for each in slots
            if each.run_id == member.run_id
            and each.is_held
            and (each.limit, each.key) == (want.limit, want.key)
            and each.kind in kinds
        ]
        holders += [member.run_id] * bool(held)
        if at_once and len(holders) >= at_once:
            chain = tuple(each.run_id for each in ancestry[place::-1])
            return Deadlock(want.label, tuple(reversed(holders)), chain, is_certain)
    return None


# -- questions to the store


@dataclass(frozen=True, slots=True)
class Acquire(Ask):
    """Take slots of limits for the run, or a place in the line of one. Answer: an `Admission`. Raises LeaseLost.

    Does not commit the journal: a slot taken before its step is recorded is found again.
    """

    location: str
    wants: tuple[SlotWant, ...]


@dataclass(frozen=True, slots=True)
class Reserve(Ask):
    """Reserve units of a limit's rate for an attempt. Answer: a `Reservation`. Raises LeaseLost.

    Without `may_begin` the attempt only gets its moment and does not begin.
    """

    location: str
    want: RateWant
    may_begin: bool


@dataclass(frozen=True, slots=True)
class CloseLimit(Ask):
    """Close a limit's rate because an attempt asked for it: nothing of the key begins before `until`. Answer: None.

    Raises UnknownLimitError for a limit without a rate.
    """

    want: RateWant
    until: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class PeekDeadlock(Ask):
    """Query whether the wanted slots are kept by runs that wait for this run. Answer: a `Deadlock` or None.

    `own` are the kinds of the run's own slots that it keeps meanwhile. With `is_full`, `at_once` of the wants comes
    from the store.
    """

    wants: tuple[SlotWant, ...]
    own: frozenset[SlotKind]
    is_full: bool = False


#: How often a run in a line checks again whether ancestors that hold the slots wait for it.
_LOOK_EVERY: Final = timedelta(minutes=1)
#: The kinds of slots that a run keeps while one of its steps waits for a slot: each pass needs them.
_NEEDED_BY_STEPS: Final = frozenset({SlotKind.OPEN, SlotKind.RUNNING})


def acquired(journal: Journal, location: str, wants: Sequence[SlotWant]) -> Operation:
    """Take these slots for an operation of the run, all of them or none.

    Raises Park if the run has to wait; its place in line is then recorded. Raises DeadlockError if it would wait
    forever, for a slot that it keeps itself or that runs waiting for it keep.
    """
    ordered = tuple(sorted(wants, key=lambda want: (want.limit, want.key)))
    journal.slots_at.add(location)
    if not location:
        journal.has_running_slots = False
    try:
        answer: Admission = yield Acquire(location, ordered)
    except UnknownLimitError as error:  # a mistake that another worker's code may not have
        journal.stop(error)
    if not answer.is_granted:
        journal.has_running_slots = True  # perhaps the awaited slot itself, left by a pass that was cut short
        if location and not journal.has_own_slots:
            journal.release_slots("")  # left by an earlier version of the code, whose workflow had a limit
        look_again = yield from _checked(journal, location, answer)
        raise Park(look_again, doing=[in_line(answer)], slots=frozenset({location}))
    if not location:
        journal.has_own_slots = True
    if any(want.kind is SlotKind.RUNNING for want in wants):
        journal.has_running_slots = True


def _checked(journal: Journal, location: str, line: Admission) -> Operation:
    """Return when to check again whether the wait in this line can end; None for never.

    Raises DeadlockError if it cannot end. A run that has begun does not fail because an operator has meanwhile lowered
    a limit of its workflow.
    """
    if not (location and journal.has_own_slots) and journal.run.parent_id is None:
        return None
    if not location and any(True for _ in journal.entries()):
        return None
    want = SlotWant(line.limit, line.key, at_once=line.at_once)
    own = _NEEDED_BY_STEPS if location and journal.has_own_slots else frozenset[SlotKind]()
    found: Deadlock | None = yield PeekDeadlock((want,), own, is_full=True)
    if found is None:
        return None
    if found.is_certain:
        raise found.error(f'step "{location}"' if location else f'run "{journal.run.id}"')
    return journal.environment.now() + _LOOK_EVERY


def reserved(journal: Journal, location: str, want: RateWant, *, may_begin: bool = True) -> Operation:
    """Wait for the attempt's moment and return it. Raises Park if that is not soon.

    Without `may_begin`, the attempt needs something else before it begins, and asks again after that.
    """
    try:
        answer: Reservation = yield Reserve(location, want, may_begin)
    except (UnknownLimitError, RateUnitsError) as error:  # a mistake that another worker's code may not have
        journal.stop(error)
    if not answer.begins:
        raise Park(answer.at, doing=[rated(want.label, answer.before)])
    remaining = (answer.at - journal.environment.now()).total_seconds()
    if remaining > 0:
        yield ShortSleep(remaining)
    return answer.at


def closed(journal: Journal, asked: RetryLater, retry_at: datetime | None, now: datetime) -> Operation:
    """Close the limit that an attempt has named, until the time it gave, or else until its next attempt."""
    until = asked.at(now) or retry_at
    if asked.closes is None or until is None or until <= now:
        return
    try:
        yield CloseLimit(asked.closes, until, str(asked)[:MAX_REASON])
    except UnknownLimitError as error:  # a mistake that another worker's code may not have
        journal.stop(error)
