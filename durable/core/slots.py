"""The operation that takes slots of limits, for a pass or for one step.

Must not decide who is next in a line: a store does, under the lock of the limit's key (`Store.acquire`).
"""

from __future__ import annotations

from collections.abc import Sequence

from durable.core.control_flow import Park
from durable.core.effects import Acquire, Operation
from durable.core.errors import UnknownLimitError
from durable.core.journal import Journal
from durable.core.slot_records import Admission, SlotKind, SlotWant
from durable.core.summary import in_line

__all__ = ["acquired"]


def acquired(journal: Journal, location: str, wants: Sequence[SlotWant]) -> Operation:
    """Take these slots for an operation of the run, all of them or none.

    Raises Park if the run has to wait in the line of one, which has been noted then.
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
        raise Park(None, doing=[in_line(answer)], slots=frozenset({location}))
    if any(want.kind is SlotKind.RUNNING for want in wants):
        journal.has_running_slots = True
