"""A run with all that is recorded of it, as data that JSON can write: for tickets, archives and other tools."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.location import unescape
from durable.inspection.details import arguments_field
from durable.inspection.payloads import payload, redacted, shown_traceback
from durable.models import Attempt, Entry, OperatorAction, QueueMessage, Run

__all__ = ["MOST", "exported"]

MOST: Final = 50_000  # entries, attempts, messages, actions, each


def exported(run: Run, *, with_payloads: bool) -> dict[str, Any]:
    """The run, its history, failed attempts, messages and audit trail. Times are ISO 8601 text.

    Without payloads, inputs, outputs, bodies and tracebacks are left out. `is_complete` says whether a cap was met.
    """
    parts = {
        "entries": [_entry(run, each, with_payloads) for each in _entries(run)],
        "attempts": [_attempt(run, each, with_payloads) for each in _of(Attempt, run, "id")],
        "messages": [_message(run, each, with_payloads) for each in _of(QueueMessage, run, "order")],
        "actions": [_action(each) for each in _actions(run)],
    }
    is_complete = all(len(part) <= MOST for part in parts.values())
    cut = {name: part[:MOST] for name, part in parts.items()}
    return {"run": _run(run, with_payloads), **cut, "is_complete": is_complete}


def _entries(run: Run) -> Any:
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run.id).select_related("metadata")
    return found.order_by("ordinal")[: MOST + 1]


def _of(model: Any, run: Run, order: str) -> Any:
    return model.objects.using(conf.DATABASE).filter(run=run).order_by(order)[: MOST + 1]


def _actions(run: Run) -> Any:
    return OperatorAction.objects.using(conf.DATABASE).filter(run_id=run.id).order_by("created_at", "id")[: MOST + 1]


def _run(run: Run, with_payloads: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": run.id,
        "workflow": run.workflow,
        "queue": run.queue,
        "state": run.state,
        "summary": str(redacted(run.workflow, "error", run.summary)),
        "created_at": _text(run.created_at),
        "started_at": _text(run.started_at),
        "finished_at": _text(run.finished_at),
        "wake_at": _text(run.wake_at),
        "parent": run.parent_id,
        "replay_of": run.replay_of_id,
        "error": _error(run, run.error, with_payloads),
    }
    if with_payloads:
        data["input"] = payload(run.workflow, "input", run.input)
        data["output"] = payload(run.workflow, "output", run.output)
    return data


def _entry(run: Run, entry: Entry, with_payloads: bool) -> dict[str, Any]:
    metadata = entry.metadata
    data: dict[str, Any] = {
        "location": entry.location,
        "kind": entry.kind,
        "status": metadata.status,
        "attempts": metadata.attempts,
        "created_at": _text(metadata.created_at),
        "last_attempt_at": _text(metadata.last_attempt_at),
        "next_attempt_at": _text(metadata.next_attempt_at),
        "completed_at": _text(metadata.completed_at),
        "rollback_completed_at": _text(metadata.rollback_completed_at),
        "error": _error(run, metadata.error, with_payloads),
        "rollback_error": _error(run, metadata.rollback_error, with_payloads),
    }
    if with_payloads:
        data["arguments"] = payload(run.workflow, arguments_field(entry), entry.arguments)
        data["output"] = payload(run.workflow, f"output:{entry.location}", entry.output)
    return data


def _attempt(run: Run, attempt: Attempt, with_payloads: bool) -> dict[str, Any]:
    return {
        "location": attempt.location,
        "number": attempt.number,
        "worker": attempt.worker,
        "started_at": _text(attempt.started_at),
        "finished_at": _text(attempt.finished_at),
        "error": _error(run, attempt.error, with_payloads),
    }


def _message(run: Run, message: QueueMessage, with_payloads: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "sent_at": _text(message.sent_at),
        "state": message.state,
        "received_by": message.received_by or None,
    }
    if with_payloads:
        queue = unescape(message.queue)
        data["body"] = payload(run.workflow, f"message:{queue}", message.body)
        data["response"] = payload(run.workflow, f"response:{queue}", message.response)
    return data


def _action(action: OperatorAction) -> dict[str, Any]:
    return {
        "at": _text(action.created_at),
        "actor": action.actor_label,
        "source": action.source,
        "action": action.action,
        "reason": action.reason,
        "before": action.before,
        "after": action.after,
        "outcome": action.outcome,
        "detail": action.detail,
    }


def _error(run: Run, error: ErrorInfo | None, with_payloads: bool) -> dict[str, str] | None:
    if error is None:
        return None
    told = {"type": error.type, "message": str(redacted(run.workflow, "error", error.message))}
    return told | ({"traceback": shown_traceback(run.workflow, error)} if with_payloads else {})


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
