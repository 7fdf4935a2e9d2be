"""The records of a run, decoded for reading: what `handle.history()` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from durable.core.errors import ErrorInfo
from durable.core.messages import REFUSED
from durable.core.places import Place, of_arguments, of_branch, of_message
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
    return HistoryEntry(
        location=entry.location,
        kind=str(entry.kind),
        status=str(entry.status),
        attempts=entry.attempts,
        data=_DATA.get(entry.kind, _plain)(run_id, entry, decode),
        error=entry.error,
        created_at=entry.created_at,
        last_attempt_at=entry.last_attempt_at,
        next_attempt_at=entry.next_attempt_at,
        completed_at=entry.completed_at,
        rollback_completed_at=entry.rollback_completed_at,
        rollback_error=entry.rollback_error,
    )


def _plain(_run_id: str, entry: EntryRecord, _decode: Decode) -> dict[str, Any]:
    return dict(entry.data)


def _step(run_id: str, entry: EntryRecord, decode: Decode) -> dict[str, Any]:
    args = decode(entry.arguments, of_arguments(run_id, entry))
    return {**entry.data, "args": args, "output": decode(entry.output, Place(run_id, "output", entry.location))}


def _loop(run_id: str, entry: EntryRecord, decode: Decode) -> dict[str, Any]:
    state = decode(entry.data.get("state"), Place(run_id, "state", entry.location))
    return {**entry.data, "state": state, "output": decode(entry.output, Place(run_id, "output", entry.location))}


def _child(run_id: str, entry: EntryRecord, decode: Decode) -> dict[str, Any]:
    return {**entry.data, "output": decode(entry.output, Place(run_id, "output", entry.location))}


def _message(run_id: str, entry: EntryRecord, decode: Decode) -> dict[str, Any]:
    received = [
        {**each, "body": decode(each["body"], of_message(run_id, "message", each["id"], each["name"]))}
        for each in entry.data.get("received", ())
    ]
    for each in received:
        if REFUSED in each:
            each[REFUSED] = decode(each[REFUSED], of_message(run_id, "response", each["id"], each["name"]))
    return {**entry.data, "received": received}


def _send(run_id: str, entry: EntryRecord, decode: Decode) -> dict[str, Any]:
    place = of_arguments(run_id, entry)
    return {**entry.data, "body": decode(entry.arguments, place)}


def _fork(run_id: str, entry: EntryRecord, decode: Decode) -> dict[str, Any]:
    branches = {
        name: _branch(status, of_branch(run_id, entry.location, name), decode)
        for name, status in entry.data.get("branches", {}).items()
    }
    return {**entry.data, "branches": branches}


def _branch(status: dict[str, Any], place: Place, decode: Decode) -> dict[str, Any]:
    shown = dict(status)
    if "output" in shown:
        shown["output"] = decode(shown["output"], place)
    if "error" in shown:
        shown["error"] = ErrorInfo(*shown["error"])
    return shown


_DATA: dict[str, Callable[[str, EntryRecord, Decode], dict[str, Any]]] = {
    EntryKind.STEP: _step,
    EntryKind.LOOP: _loop,
    EntryKind.MESSAGE: _message,
    EntryKind.SEND: _send,
    EntryKind.JOIN: _fork,
    EntryKind.RACE: _fork,
    EntryKind.CHILD: _child,
    EntryKind.MAP: _child,
}
