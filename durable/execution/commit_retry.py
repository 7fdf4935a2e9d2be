"""Commits that were not answered: whether they happened, and if not, once more.

Owns what a pass does when the database breaks off, or refuses for the moment, while it commits: it waits for as long as
its lease lasts, instead of leaving what it has done to be done again. Nobody guesses whether a commit without an answer
happened. The fence is raised first, under the lock of the run's row: the old statement, should it still be on its way,
is refused from then on, and what can be seen of it by then is final. Not for commits inside a transaction of the
caller's, which are lost with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

from durable.conf import conf
from durable.core.errors import LeaseLost
from durable.core.records import Batch, Committed, RunChange, RunRecord
from durable.execution.connections import SESSION_TROUBLE, close_connections
from durable.store import Store

__all__ = ["Holder", "retry_commit"]

logger = logging.getLogger("durable.pass")

BACKOFF: Final = (0.02, 1.0)  # seconds between two tries: the second and third, the longest; the first follows at once

#: What PostgreSQL says of a statement that has certainly had no effect, and may have one soon: serialization failure,
#: deadlock, lock timeout, statement timeout, disk full; and of one in a session that does not suit it: read only, without
#: the right, the table or the function, without the schema.
REFUSED: Final = frozenset(
    {"40001", "40P01", "55P03", "57014", "53100", "25006", "42501", "42P01", "42883", "3F000"},
)


class Holder(Protocol):
    """The part of `durable.execution.passes.Eviction` that is needed here."""

    @property
    def requested(self) -> bool:
        """Whether the pass has to end."""

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than until the pass has to end."""

    is_changing_fence: bool


class _Ended(Exception):
    """The run is nobody's any more, although its fence is the one we know: the commit that ended the pass happened."""

    def __init__(self, row: RunRecord) -> None:
        self.row = row


def retry_commit(
    batch: Batch,
    trouble: Exception,
    *,
    run: RunRecord,
    store: Store,
    holder: Holder,
    now: Callable[[], datetime],
) -> Committed:
    """Commit `batch`, whose commit ended in `trouble`, so that it happens once; for as long as the pass may go on.

    `run.fence` may be a higher one afterwards. Raises LeaseLost, and the trouble that the database made last: when it has
    not answered in time, or made trouble again while it was asked what had happened.
    """
    logger.warning("run %s: a commit was cut short, and is made again: %s", run.id, trouble, extra={"run_id": run.id})
    ends_at = time.monotonic() + conf.LEASE
    pause, longest = 0.0, BACKOFF[1]
    while not holder.requested and time.monotonic() < ends_at:
        close_connections()
        holder.wait(pause)
        pause = min(max(pause * 2, BACKOFF[0]), longest)
        try:
            if not _is_refusal(trouble):
                store.get(run.id)  # a question, to be repeated until the database answers
        except SESSION_TROUBLE:
            continue
        if not _is_refusal(trouble) and (
            committed := _resolve_unknown_commit(batch, run=run, store=store, holder=holder, now=now)
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
    batch: Batch, *, run: RunRecord, store: Store, holder: Holder, now: Callable[[], datetime]
) -> Committed | None:
    """The commit's answer if it happened; None if it did not and never will, or may as well be made again."""
    holder.is_changing_fence = True  # whoever renews the lease must not take that for a loss
    try:
        row = store.change(run.id, lambda row, _entries: _taken_again(row, run.fence))
        run.fence = row.fence
    except _Ended as ended:
        row = ended.row
    else:
        if not _has_happened(batch, store):
            return None
    finally:
        holder.is_changing_fence = False
    return Committed(request=row.request, ring=_due_queues(store, [run.id, *(each.to for each in batch.sends)], now()))


def _taken_again(row: RunRecord, fence: int) -> RunChange:
    if row.fence != fence:
        raise LeaseLost
    if row.lease_expires_at is None:
        raise _Ended(row)
    return RunChange(run={"signal": row.signal}, raise_fence=True)


def _has_happened(batch: Batch, store: Store) -> bool:
    """Whether this batch must not be written again: all but messages sent and attempts counted may be, to no effect.

    A failed attempt shows in its step's entry. The list of attempts would not tell: it keeps those of before a recovery.
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
    """What was to be rung for is not known any more: the queues of those of the runs that are due."""
    rows = [store.get(each) for each in dict.fromkeys(run_ids)]
    return frozenset(
        row.queue
        for row in rows
        if row is not None and row.wake_at is not None and row.wake_at <= now and row.lease_expires_at is None
    )
