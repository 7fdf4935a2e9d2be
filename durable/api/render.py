"""Entries and messages in answers: the engine's own data and, apart from it, the workflow's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from durable.api.serializers.runs import error_of
from durable.core.places import Place, of_arguments, of_branch, of_message
from durable.core.records import EntryKind
from durable.inspection import payload
from durable.inspection.entry_detail import entry_facts, whole_data
from durable.models import Attempt, Entry, QueueMessage, Run


def entry_shown(run: Run, entry: Entry, *, may_see_payloads: bool, with_payloads: bool = False) -> dict[str, Any]:
    """Return an entry with its metadata. `with_payloads` applies only to users who may see payloads."""
    about = entry.metadata
    return {
        "location": entry.location,
        "kind": entry.kind,
        "status": about.status,
        "ordinal": entry.ordinal,
        "attempts": about.attempts,
        "created_at": about.created_at,
        "last_attempt_at": about.last_attempt_at,
        "next_attempt_at": about.next_attempt_at,
        "completed_at": about.completed_at,
        "rollback_completed_at": about.rollback_completed_at,
        "error": error_of(run, about.error, may_see_payloads=may_see_payloads),
        "rollback_error": error_of(run, about.rollback_error, may_see_payloads=may_see_payloads),
        "data": entry_facts(run, entry),
        "payloads": _values(run, entry) if with_payloads and may_see_payloads else None,
    }


def attempt_shown(run: Run, attempt: Attempt, *, may_see_payloads: bool) -> dict[str, Any]:
    """Return a failed attempt."""
    return {
        "number": attempt.number,
        "worker": attempt.worker,
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "error": error_of(run, attempt.error, may_see_payloads=may_see_payloads),
    }


def message_shown(run: Run, message: QueueMessage, *, may_see_payloads: bool) -> dict[str, Any]:
    """Return a message."""

    def value(field: str, column: str) -> Any:
        """Return the column, read only if the user may see it."""
        if not may_see_payloads:
            return None
        return payload(
            run.workflow,
            f"{field}:{message.queue}",
            getattr(message, column),
            of_message(run.id, field, message.id, message.queue),
        )

    return {
        "id": message.id,
        "queue": message.queue,
        "sent_at": message.sent_at,
        "order": message.order,
        "state": message.state,
        "received_by": message.received_by,
        "body": value("message", "body"),
        "response": value("response", "response"),
    }


def _data(entry: Entry) -> dict[str, Any]:
    return whole_data(entry)


def _values(run: Run, entry: Entry) -> dict[str, Any]:
    def value(field: str, text: str | None) -> Any:
        return payload(run.workflow, f"{field}:{entry.location}", text, Place(run.id, field, entry.location))

    return _BY_KIND.get(EntryKind(entry.kind), _none)(run, entry, value)


_Read = Callable[[str, str | None], Any]


def _none(_run: Run, _entry: Entry, _value: _Read) -> dict[str, Any]:
    return {}


def _of_step(_run: Run, entry: Entry, value: _Read) -> dict[str, Any]:
    return {"arguments": value("arguments", entry.arguments), "output": value("output", entry.output)}


def _of_child(_run: Run, entry: Entry, value: _Read) -> dict[str, Any]:
    return {"output": value("output", entry.output)}


def _of_loop(_run: Run, entry: Entry, value: _Read) -> dict[str, Any]:
    return {"state": value("state", _data(entry).get("state")), "output": value("output", entry.output)}


def _of_wait(run: Run, entry: Entry, _value: _Read) -> dict[str, Any]:
    received = _data(entry).get("received", ())
    bodies = [
        payload(
            run.workflow,
            f"message:{each.get('name', '')}",
            each.get("body"),
            of_message(run.id, "message", each.get("id", ""), each.get("name", "")),
        )
        for each in received
    ]
    return {"bodies": bodies}


def _of_send(run: Run, entry: Entry, _value: _Read) -> dict[str, Any]:
    data = _data(entry)
    place = of_arguments(run.id, entry)
    return {"body": payload(run.workflow, f"message:{data.get('queue', '')}", entry.arguments, place)}


def _of_fork(run: Run, entry: Entry, _value: _Read) -> dict[str, Any]:
    def value(name: str, text: str | None) -> Any:
        return payload(run.workflow, f"output:{entry.location}", text, of_branch(run.id, entry.location, name))

    branches = _data(entry).get("branches", {})
    return {"outputs": {name: value(name, branch.get("output")) for name, branch in branches.items()}}


_BY_KIND: Final = {
    EntryKind.STEP: _of_step,
    EntryKind.LOOP: _of_loop,
    EntryKind.MESSAGE: _of_wait,
    EntryKind.SEND: _of_send,
    EntryKind.JOIN: _of_fork,
    EntryKind.RACE: _of_fork,
    EntryKind.CHILD: _of_child,
    EntryKind.MAP: _of_child,
}
