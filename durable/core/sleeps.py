"""Sleeps: wait for a time.

Owns their records. A sleep is one entry, which exists from the start of the sleep and has its deadline.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from durable.core.control_flow import Park
from durable.core.duration import later
from durable.core.effects import SAVE, Operation, ShortSleep
from durable.core.records import EntryKind, EntryRecord
from durable.core.scope import Scope
from durable.core.summary import asleep


def sleep(scope: Scope, name: str, duration: timedelta | None, moment: datetime | None) -> Operation:
    """Wait for `duration` to pass, or until `moment`."""
    node = scope.cursor.match(EntryKind.SLEEP, name)
    entry = node.entry
    if entry is None:
        deadline = moment if moment is not None else later(scope.environment.now(), duration or timedelta(), "a wait")
        entry = scope.create(node, EntryKind.SLEEP, data={"state": "pending", "deadline": deadline.isoformat()})
        scope.journal.mark(entry)
        is_new = True
    elif entry.data["state"] != "pending":
        scope.determinism.observe(entry)
        return
    else:
        deadline = datetime.fromisoformat(entry.data["deadline"])
        is_new = False
    yield from _wait_until(scope, entry, deadline, is_new)
    scope.journal.finish(entry, data={**entry.data, "state": "completed"})
    scope.determinism.observe(entry)


def _wait_until(scope: Scope, entry: EntryRecord, deadline: datetime, is_new: bool) -> Operation:
    remaining = (deadline - scope.environment.now()).total_seconds()
    if remaining <= 0:
        return
    if remaining < scope.environment.short_sleep:
        yield ShortSleep(remaining)
        return
    if is_new and scope.is_concurrent:
        yield SAVE  # another branch may run for long before this pass parks and commits
    raise Park(deadline, doing=[asleep(entry.location)])
