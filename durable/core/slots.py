"""The operation that takes slots of limits, for a pass or for one step.

Must not decide who is next in a line: a store does, under the lock of the limit's key (`Store.acquire`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from durable.core.control_flow import Park
from durable.core.deadlocks import Deadlock
from durable.core.effects import Acquire, Operation, PeekDeadlock
from durable.core.errors import UnknownLimitError
from durable.core.journal import Journal
from durable.core.slot_records import Admission, SlotKind, SlotWant
from durable.core.summary import in_line

#: How often a run in a line looks again whether its ancestors, who hold the limit, wait for it.
_LOOK_EVERY: Final = timedelta(minutes=1)
#: What a run keeps while it waits for a slot of one of its steps: each pass of it needs this again.
_NEEDED_BY_STEPS: Final = frozenset({SlotKind.OPEN, SlotKind.RUNNING})


def acquired(journal: Journal, location: str, wants: Sequence[SlotWant]) -> Operation:
    """Take these slots for an operation of the run, all of them or none.

    Raises Park if the run has to wait in the line of one, which has been noted then; DeadlockError if it would wait for
    ever, for a slot that it keeps itself or that runs keep which wait for it.
    """
    ordered = tuple(sorted(wants, key=lambda want: (want.limit, want.key)))
    journal.has_slots = True
    if not location:
        journal.has_running_slots = False
    try:
        answer: Admission = yield Acquire(location, ordered)
    except UnknownLimitError as error:  # a mistake, which another worker's code may not make
        journal.stop(error)
    if not answer.is_granted:
        journal.has_running_slots = True  # perhaps the very slot for which it waits, of a pass that was cut short
        look_again = yield from _checked(journal, location, answer)
        raise Park(look_again, doing=[in_line(answer)], slots=frozenset({location}))
    if not location:
        journal.has_own_slots = True
    if any(want.kind is SlotKind.RUNNING for want in wants):
        journal.has_running_slots = True


def _checked(journal: Journal, location: str, line: Admission) -> Operation:
    """Return when to look again whether the wait in this line can end, None for never.

    Raises DeadlockError if it cannot.

    A run that has begun is not failed because an operator has lowered a limit of its workflow meanwhile.
    """
    if not (location and journal.has_own_slots) and journal.run.parent_id is None:
        return None
    if not location and any(True for _ in journal.entries()):
        return None
    want = SlotWant(line.limit, line.key, at_once=line.at_once)
    own = _NEEDED_BY_STEPS if location else frozenset[SlotKind]()
    found: Deadlock | None = yield PeekDeadlock((want,), own, is_full=True)
    if found is None:
        return None
    if found.is_certain:
        raise found.error(f'step "{location}"' if location else f'run "{journal.run.id}"')
    return journal.environment.now() + _LOOK_EVERY
