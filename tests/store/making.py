"""Records for the tests of stores, with the parts that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.db import connections

from durable.core import transitions
from durable.core.errors import ErrorInfo
from durable.core.new_runs import NewRun
from durable.core.records import (
    AttemptRecord,
    Batch,
    Cause,
    Changes,
    ChildrenDropped,
    Committed,
    EntryKind,
    EntryRecord,
    EntryStatus,
    FailureRecord,
    Message,
    MessageCompleted,
    MessageReceived,
    MessagesReturned,
    OutgoingMessage,
    RunChange,
    RunPatch,
    RunRecord,
    RunState,
    SavesForgotten,
)
from durable.store import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LEASE = timedelta(seconds=30)
HOSTILE = [
    "a/b",
    "*",
    "%",
    "~1",
    "%2F",
    "\x00",
    "\ud800",
    "x\udfff\x00y",
    "\x1a",
    "\x1a0000",
    "🎉",
    "ß\u0301",
    "'; --",
    '"\\',
]
DECLINED = Cause(place="charge", error_type="CardDeclined", pattern="no: #")

_ids = count(1)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_run(run_id: str = "run", **values: Any) -> RunRecord:
    return RunRecord(**_of_a_run(run_id, values))


def a_new_run(run_id: str = "run", **values: Any) -> NewRun:
    """A run with what is stored beside it: `limits`, `ranking`."""
    return NewRun(**_of_a_run(run_id, values))


def _of_a_run(run_id: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"id": run_id, "workflow": "w", "queue": "q", "input": "[]", "created_at": NOW, "wake_at": NOW, **values}


def an_entry(location: str = "a", **values: Any) -> EntryRecord:
    return EntryRecord(
        **{"location": location, "kind": EntryKind.STEP, "ordinal": next(_ids), "created_at": NOW, **values}
    )


def a_full_entry(location: str, text: str) -> EntryRecord:
    """An entry with something in every column, and `text` wherever a user could put it."""
    return an_entry(
        location,
        status=EntryStatus.EXHAUSTED,
        attempts=4,
        output=text,
        arguments=text,
        data={text: [text, {"n": 1.5}], "none": None},
        error=ErrorInfo(text, text, text),
        last_attempt_at=at(1),
        next_attempt_at=at(2),
        completed_at=at(3.000001),
        finished_ordinal=7,
        rollback_completed_at=at(4),
        rollback_error=ErrorInfo(text, "", text),
    )


def an_attempt(location: str = "a", number: int = 1, text: str = "boom") -> AttemptRecord:
    return AttemptRecord(location, number, text, at(1), at(2), ErrorInfo("ValueError", text, text))


def a_failure(run_id: str = "run", cause: Cause = DECLINED, **values: Any) -> FailureRecord:
    return FailureRecord(
        **{
            "run_id": run_id,
            "cause": cause,
            "workflow": "w",
            "queue": "q",
            "worker": "worker",
            "failed_at": at(1),
            "run_created_at": NOW,
            **values,
        }
    )


def a_message(to: str = "run", queue: str = "mail", **values: Any) -> OutgoingMessage:
    return OutgoingMessage(
        **{"id": f"message-{next(_ids)}", "to": to, "queue": queue, "body": '"hi"', "sent_at": NOW, **values}
    )


def started(store: Store, run_id: str = "run", now: datetime = NOW, **values: Any) -> RunRecord:
    """A new run in the hands of a worker."""
    store.create([a_run(run_id, **values)])
    return claimed(store, run_id, now, "worker")


def parked(store: Store, run_id: str = "run", **patch: Any) -> RunRecord:
    """A run that sleeps."""
    held = started(store, run_id)
    park(store, held, **patch)
    return the(store, run_id)


def park(
    store: Store,
    held: RunRecord,
    *,
    known_change_seq: int | None = None,
    batch: dict[str, Any] | None = None,
    **patch: Any,
) -> Committed:
    """Commit the end of a pass that waits."""
    whole: RunPatch = {"state": RunState.SLEEPING, "wake_at": None, "lease_expires_at": None, "worker": "", **patch}  # type: ignore[typeddict-item]  # the tests' own keywords
    park_change_seq = held.change_seq if known_change_seq is None else known_change_seq
    return store.commit(a_batch(held, run=whole, park_change_seq=park_change_seq, **(batch or {})))


def finished(store: Store, held: RunRecord, state: str = RunState.COMPLETED) -> None:
    """Commit the end of a run."""
    patch: RunPatch = {"state": state, "wake_at": None, "lease_expires_at": None, "finished_at": NOW}
    store.commit(Batch(run_id=held.id, fence=held.fence, now=NOW, run=patch))


def the(store: Store, run_id: str = "run") -> RunRecord:
    run = store.get(run_id)
    assert run is not None
    return run


def claimed(store: Store, run_id: str = "run", now: datetime = NOW, worker: str = "w") -> RunRecord:
    """The run in the hands of a worker that can claim it."""
    run = store.claim_run(run_id, now=now, lease_until=now + LEASE, worker=worker)
    assert run is not None
    return run


def changed(store: Store, run_id: str, transition: Callable[..., RunPatch], **given: Any) -> RunRecord:
    """The run after a transition from outside."""
    return store.change(run_id, lambda run, _entries: RunChange(run=transition(run, **given)))


def cancel(store: Store, run_id: str, now: datetime = NOW) -> RunRecord:
    return changed(store, run_id, transitions.cancelled_at_once, now=now, reason="", summary="")


def held(store: Store, run_id: str = "run") -> int:
    """Create the run and claim it; return its fence."""
    return started(store, run_id).fence


def again(store: Store, run_id: str = "run") -> int:
    """Claim the run after the end of its lease; return its fence."""
    return claimed(store, run_id, the(store, run_id).lease_expires_at or NOW).fence


def sent(store: Store, message: OutgoingMessage) -> Message:
    [stored], _ = store.send([message])
    assert stored is not None
    return stored


def commit(store: Store, held: RunRecord, **parts: Any) -> Committed:
    return store.commit(a_batch(held, **parts))


def by_class(changes: Iterable[Any]) -> Changes:
    """Group changes by class."""
    found: Changes = {}
    for each in changes:
        found.setdefault(type(each), []).append(each)
    return found


def a_batch(held: RunRecord, **parts: Any) -> Batch:
    """A commit of the run's pass. A part is a field of `Batch`, or changes by the names below."""
    changes = [change for name in _MADE.keys() & parts for each in parts.pop(name) for change in [_MADE[name](each)]]
    return Batch(**{"run_id": held.id, "fence": held.fence, "now": NOW, "changes": by_class(changes), **parts})


_MADE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(["attempts", "sends", "starts", "groups", "saved", "tags"], lambda each: each),
    "received": lambda each: MessageReceived(*each),
    "completed": lambda each: MessageCompleted(*each),
    "returned": MessagesReturned,
    "dropped_children": ChildrenDropped,
    "forgotten": SavesForgotten,
}


def rows_read(alias: str) -> int:
    """The rows that this transaction has read of durable's tables so far, however it has found them."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT sum(COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables "
            "WHERE relname LIKE 'durable%'"
        )
        [count] = cursor.fetchone()
    found: int = count
    return found


def check_windows(begun: list[tuple[int, int]], spacing: int, most: int) -> None:
    """Check each window between two beginnings: (moment, units), in nanoseconds."""
    begun = sorted(begun)
    for first in range(len(begun)):
        units = 0
        for moment, number in begun[first:]:
            units += number
            assert units * spacing <= moment - begun[first][0] + most * spacing
