"""Retry commits that were not answered: find out whether they happened, and repeat them if not.

Owns what a pass does when the connection breaks, or the database refuses for the moment, during a commit. The pass
retries for as long as its lease lasts, instead of leaving its work to be done again. Not for commits inside a
transaction of the caller's, which are lost with it.

A commit whose error says that it had no effect (`NO_EFFECT`) is repeated at once. After any other error, such as a
broken connection, the commit may have happened, may still be on its way, or may be lost. The pass must not guess. It
locks the run's row and raises the fence: from then on the old statement is refused, and the visible state is final.

The possible states, what they mean, and what is done:

- The run has another fence: another worker has claimed the run. LeaseLost: nothing more is written.
- The same fence, and no lease: the commit ended the pass, so it happened. Its answer is read from the run's row.
- The batch sends, and a message is stored: it happened. Its answer is read from the run's row.
- The batch sends, and no message is stored: it did not happen. The batch is committed under the new fence.
- A failed attempt, and its step's entry is as written: it happened. Its answer is read from the run's row.
- A failed attempt, and its step's entry is not: it did not happen. The batch is committed under the new fence.
- The batch has neither sends nor failed attempts: unknown, and repeating it is a no-op. The batch is committed under
  the new fence.

The repeated commit checks for the witnesses of the first one (`durable.core.witnesses`) or, if that may have deleted
them, for its own entries.

Only messages and failed attempts could be written twice: they are added, while everything else is set. The list of
attempts does not show whether one was recorded, because it keeps those from before a recovery.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from durable.conf import conf
from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.records import (
    AttemptRecord,
    Batch,
    ChildStart,
    Committed,
    OutgoingMessage,
    RunChange,
    RunRecord,
)
from durable.core.transitions import fence_raised
from durable.core.witnesses import as_written
from durable.execution.connections import SESSION_TROUBLE, close_connections
from durable.execution.environment import Eviction
from durable.store import Store

logger = logging.getLogger("durable.pass")

BACKOFF: Final = (0.02, 1.0)  # seconds between two tries: after the first one, which follows at once, and the longest

#: SQLSTATEs of a statement that certainly had no effect, and may succeed soon: serialization failure, deadlock, lock
#: timeout, statement timeout, disk full. And of a statement in an unsuitable session: read only, without the
#: permission, the table or the function, without the schema, without the prepared statement.
NO_EFFECT: Final = frozenset(
    {"40001", "40P01", "55P03", "57014", "53100", "25006", "42501", "42P01", "42883", "3F000", "26000"},
)


class _PassEnded(Exception):
    """Raised when the run has no lease although its fence is unchanged: the commit that ended the pass happened."""

    def __init__(self, row: RunRecord) -> None:
        self.row = row


def retry_commit(
    batch: Batch,
    trouble: Exception,
    *,
    run: RunRecord,
    store: Store,
    eviction: Eviction,
    now: Callable[[], datetime],
) -> Committed:
    """Commit `batch`, whose commit failed with `trouble`, exactly once; try for as long as the pass may go on.

    `run.fence` may be higher afterwards. Raises LeaseLost. Raises the database's last error if it has not answered in
    time, or has failed again during the check of what happened.
    """
    logger.warning("run %s: a commit failed and is retried: %s", run.id, trouble, extra={"run_id": run.id})
    ends_at = time.monotonic() + conf.LEASE
    pause, longest = 0.0, BACKOFF[1]
    may_have_happened = False
    while not eviction.requested and time.monotonic() < ends_at:
        close_connections()
        eviction.wait(pause)
        pause = min(max(pause * 2, BACKOFF[0]), longest)
        if getattr(trouble.__cause__, "sqlstate", None) not in NO_EFFECT:
            if not _answers(store, run):
                continue
            if committed := _resolve_unknown_commit(batch, run=run, store=store, eviction=eviction, now=now):
                return committed
            may_have_happened = True
        try:
            return _repeated(replace(batch, fence=run.fence), store, may_have_happened=may_have_happened)
        except SESSION_TROUBLE as error:
            trouble = error
    raise trouble


def _repeated(batch: Batch, store: Store, *, may_have_happened: bool) -> Committed:
    """Commit the batch again. Raises CommitsLost only if the database has lost earlier commits of the pass.

    If the batch has already happened, it may have changed or deleted its witnesses. Then its own entries are there.
    """
    try:
        return store.commit(batch)
    except CommitsLost:
        if not may_have_happened or not batch.entries:
            raise
    return store.commit(replace(batch, witnesses=as_written(batch)))


def _answers(store: Store, run: RunRecord) -> bool:
    try:
        store.get(run.id)
    except SESSION_TROUBLE:
        return False
    return True


def _resolve_unknown_commit(
    batch: Batch, *, run: RunRecord, store: Store, eviction: Eviction, now: Callable[[], datetime]
) -> Committed | None:
    """Raise the fence, and return the commit's answer if it happened.

    Return None if it did not happen and never will, or if repeating it is harmless. Raises LeaseLost.
    """
    eviction.is_changing_fence = True  # the LeaseManager must not take the new fence for a lost lease
    try:
        row = store.change(run.id, lambda row, _entries: _raise_fence(row, run.fence))
        run.fence = row.fence
    except _PassEnded as ended:
        row = ended.row
    else:
        if not _was_committed(batch, store):
            return None
    finally:
        eviction.is_changing_fence = False
    queues = _due_queues(store, _concerned(batch), now())
    if batch.slots is not None:  # it is not known which runs it has handed slots to
        queues |= frozenset(store.due_queues(now()))
    return Committed(request=row.pending_request, queues_to_notify=queues)


def _raise_fence(row: RunRecord, fence: int) -> RunChange:
    if row.fence != fence:
        raise LeaseLost
    if row.lease_expires_at is None:
        raise _PassEnded(row)
    return RunChange(run=fence_raised(row))


def _was_committed(batch: Batch, store: Store) -> bool:
    """Return True if the batch was committed; False if it was not, or if repeating it is harmless. See the table
    above.
    """
    if sends := batch.of(OutgoingMessage):
        return any(store.message(each.id) is not None for each in sends)
    failed = {each.location for each in batch.of(AttemptRecord)}
    if not failed:
        return False
    stored = {each.location: (each.status, each.attempts) for each in store.load(batch.run_id)}
    return any(
        stored.get(each.location) == (each.status, each.attempts) for each in batch.entries if each.location in failed
    )


def _concerned(batch: Batch) -> list[str]:
    """Return the runs that the batch may have made due."""
    parents = [] if batch.parent_id is None else [batch.parent_id]
    told = [*(each.to for each in batch.of(OutgoingMessage)), *(each.run.id for each in batch.of(ChildStart))]
    return [batch.run_id, *parents, *told]


def _due_queues(store: Store, run_ids: Iterable[str], now: datetime) -> frozenset[str]:
    """Return the queues of those runs that are due; the queues that the lost answer named are unknown."""
    rows = [store.get(each) for each in dict.fromkeys(run_ids)]
    return frozenset(
        row.queue
        for row in rows
        if row is not None and row.wake_at is not None and row.wake_at <= now and row.lease_expires_at is None
    )
