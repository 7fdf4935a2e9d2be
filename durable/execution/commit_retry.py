"""Retry commits that were not answered: find out whether they happened, and repeat them if not.

Owns what a pass does when the connection breaks, or the database refuses for the moment, during a commit: the pass
waits as long as its lease lasts, instead of leaving its work to be done again. It must not guess whether a commit
without an answer happened. It raises the fence first, under the lock of the run's row. From then on the old statement,
if it is still under way, is refused, and what is visible of it by then is final. Not for commits inside a transaction
of the caller's, which are lost with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from durable.conf import conf
from durable.core.control_flow import LeaseLost
from durable.core.records import Batch, Committed, RunChange, RunRecord
from durable.execution.connections import SESSION_TROUBLE, close_connections
from durable.execution.eviction import Eviction
from durable.store import Store

__all__ = ["retry_commit"]

logger = logging.getLogger("durable.pass")

BACKOFF: Final = (0.02, 1.0)  # seconds between two tries: the second and third, the longest; the first follows at once

#: SQLSTATEs of a statement that certainly had no effect, and may succeed soon: serialization failure, deadlock, lock
#: timeout, statement timeout, disk full. And of a statement in an unsuitable session: read only, without the
#: permission, the table or the function, without the schema.
REFUSED: Final = frozenset(
    {"40001", "40P01", "55P03", "57014", "53100", "25006", "42501", "42P01", "42883", "3F000"},
)


class _Ended(Exception):
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

    `run.fence` may be higher afterwards. Raises LeaseLost. Raises the last error of the database when it has not
    answered in time, or failed again when it was asked what had happened.
    """
    logger.warning("run %s: a commit was cut short, and is made again: %s", run.id, trouble, extra={"run_id": run.id})
    ends_at = time.monotonic() + conf.LEASE
    pause, longest = 0.0, BACKOFF[1]
    while not eviction.requested and time.monotonic() < ends_at:
        close_connections()
        eviction.wait(pause)
        pause = min(max(pause * 2, BACKOFF[0]), longest)
        try:
            if not _is_refusal(trouble):
                store.get(run.id)  # a query, repeated until the database answers
        except SESSION_TROUBLE:
            continue
        if not _is_refusal(trouble) and (
            committed := _resolve_unknown_commit(batch, run=run, store=store, eviction=eviction, now=now)
        ):
            return committed
        try:
            return store.commit(replace(batch, fence=run.fence))
        except SESSION_TROUBLE as error:
            trouble = error
    raise trouble


def _is_refusal(error: Exception) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in REFUSED


def _resolve_unknown_commit(
    batch: Batch, *, run: RunRecord, store: Store, eviction: Eviction, now: Callable[[], datetime]
) -> Committed | None:
    """Return the commit's answer if it happened.

    Return None if it did not and never will, or if repeating it is a no-op.
    """
    eviction.is_changing_fence = True  # the LeaseManager must not take the new fence for a lost lease
    try:
        row = store.change(run.id, lambda row, _entries: _taken_again(row, run.fence))
        run.fence = row.fence
    except _Ended as ended:
        row = ended.row
    else:
        if not _has_happened(batch, store):
            return None
    finally:
        eviction.is_changing_fence = False
    return Committed(
        request=row.pending_request,
        queues_to_notify=_due_queues(store, [run.id, *(each.to for each in batch.sends)], now()),
    )


def _taken_again(row: RunRecord, fence: int) -> RunChange:
    if row.fence != fence:
        raise LeaseLost
    if row.lease_expires_at is None:
        raise _Ended(row)
    return RunChange(run={"change_seq": row.change_seq}, raise_fence=True)


def _has_happened(batch: Batch, store: Store) -> bool:
    """Return True if the batch was committed.

    Only sends and attempt counts need this check; rewriting anything else is a no-op. A failed attempt shows in its
    step's entry. The list of attempts would not tell: it keeps those of before a recovery.
    """
    if batch.sends:
        return any(store.message(each.id) is not None for each in batch.sends)
    if not batch.attempts:
        return False
    stored = {each.location: (each.status, each.attempts) for each in store.load(batch.run_id)}
    failed = {each.location for each in batch.attempts}
    return any(
        stored.get(each.location) == (each.status, each.attempts) for each in batch.entries if each.location in failed
    )


def _due_queues(store: Store, run_ids: Iterable[str], now: datetime) -> frozenset[str]:
    """Return the queues of those of the runs that are due, because the queues that the commit returned are unknown."""
    rows = [store.get(each) for each in dict.fromkeys(run_ids)]
    return frozenset(
        row.queue
        for row in rows
        if row is not None and row.wake_at is not None and row.wake_at <= now and row.lease_expires_at is None
    )
