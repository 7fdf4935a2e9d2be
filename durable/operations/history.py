"""The records of a run, decoded for reading: what `handle.history()` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durable.core.errors import ErrorInfo
from durable.core.places import Place, with_values
from durable.core.records import EntryKind, EntryRecord

Decode = Callable[[str | None, Place], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """The record of one operation, decoded for reading.

    `data` depends on the kind: a step has "output" and "args"; a loop "iteration", "state" and "output"; a sleep
    "state" and "deadline"; a message "names", "deadline" and "received", of which a refused message has "refused", the
    reason; a join and a race "branches", a race also "winner"; a send "queue", "to" and "body"; a version check
    "resolved" and "latest"; a removed entry "original". `error` is the error of the last failed attempt. Times are
    aware.
    """

    location: str
    kind: str
    status: str
    attempts: int
    data: dict[str, Any]
    error: ErrorInfo | None
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    completed_at: datetime | None
    rollback_completed_at: datetime | None
    rollback_error: ErrorInfo | None


def decode_entry(run_id: str, entry: EntryRecord, decode: Decode) -> HistoryEntry:
    """Return the entry of this run with its payloads decoded."""
    arguments, output, data = with_values(run_id, entry, decode)
    if entry.kind == EntryKind.STEP:
        data["args"] = arguments
    if entry.kind == EntryKind.SEND:
        data["body"] = arguments
    if entry.kind in _WITH_OUTPUT:
        data["output"] = output
    if entry.kind in (EntryKind.JOIN, EntryKind.RACE):
        data["branches"] = {name: _with_error(each) for name, each in data.get("branches", {}).items()}
    return HistoryEntry(
        location=entry.location,
        kind=str(entry.kind),
        status=str(entry.status),
        attempts=entry.attempts,
        data=data,
        error=entry.error,
        created_at=entry.created_at,
        last_attempt_at=entry.last_attempt_at,
        next_attempt_at=entry.next_attempt_at,
        completed_at=entry.completed_at,
        rollback_completed_at=entry.rollback_completed_at,
        rollback_error=entry.rollback_error,
    )


_WITH_OUTPUT: Final = frozenset({EntryKind.STEP, EntryKind.LOOP, EntryKind.CHILD, EntryKind.MAP})


def _with_error(branch: dict[str, Any]) -> dict[str, Any]:
    return {**branch, "error": ErrorInfo(*branch["error"])} if "error" in branch else branch
