"""A run with all its records, as JSON text: for tickets, archives and other tools.

The text is written in pieces, because a history may be larger than a process should hold. Rows are read in batches of a
bounded size, and the text ends after `MOST_BYTES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from durable.core.errors import ErrorInfo
from durable.core.outcomes import HELD
from durable.core.places import Place, of_message, values_of
from durable.core.summary import Summary
from durable.core.time_limits import RunLimits
from durable.inspection.actions import detail_without_runs
from durable.inspection.children import children_data, count_children
from durable.inspection.entry_detail import entry_facts, field_of, note_links
from durable.inspection.payloads import payload, redacted, redacted_traceback
from durable.inspection.reading import read_alias, reading
from durable.inspection.run_facts import about_of, carried_of, key_of, limits_of, rank_data, tags_data, tags_of
from durable.inspection.run_rules import existing_among
from durable.inspection.schedules import tick_data, tick_of
from durable.inspection.shown import status_data
from durable.models import Attempt, Entry, OperatorAction, QueueMessage, Run, StepSave
from durable.models.rows import in_batches, weight
from durable.models.run import RunQuerySet

MOST: Final = 50_000  # entries, attempts, messages, actions: of each kind
MOST_BYTES: Final = 256 * 1024 * 1024  # characters of JSON text
_AT_ONCE: Final = 1024 * 1024  # bytes of recorded text in memory at a time


def exported(run: Run, *, with_payloads: bool) -> dict[str, Any]:
    """Return the text of `written` as data in memory: the run, its history, failed attempts, saves, messages and audit
    log.
    """
    data: dict[str, Any] = json.loads("".join(written(run, with_payloads=with_payloads)))
    return data


def written(
    run: Run,
    *,
    with_payloads: bool,
    indent: int | None = None,
    most_bytes: int = MOST_BYTES,
    within: RunQuerySet | None = None,
) -> Iterator[str]:
    """Yield the run, its history, failed attempts, saves, messages and audit log as pieces of one JSON text.

    Times are ISO 8601 text. Without payloads, inputs, outputs, bodies and tracebacks are left out. `is_complete` is
    false if a cap was reached: `MOST` rows of a kind, or `most_bytes` characters. With `indent` the text has lines.
    `within` are the runs that the reader may see, None for all: others are neither named nor counted.
    """
    writer = _Writer(indent, most_bytes)
    yield writer.begin(_run(run, with_payloads, within))
    for part in _PARTS:
        yield from writer.rows(part.name, part.read(run, with_payloads, within))
    yield writer.end()


class _Writer:
    """A writer of JSON text that counts its characters."""

    def __init__(self, indent: int | None, most: int) -> None:
        self._indent = indent
        self._left = most
        self._break = " " if indent is None else "\n"
        self._is_complete = True

    def begin(self, run: dict[str, Any]) -> str:
        return f'{{"run": {json.dumps(run, indent=self._indent, default=datetime.isoformat)}'

    def rows(self, name: str, rows: Iterator[dict[str, Any]]) -> Iterator[str]:
        yield f',{self._break}"{name}": ['
        for number, row in enumerate(rows):
            text = json.dumps(row, indent=self._indent, default=datetime.isoformat)
            if number >= MOST or len(text) > self._left:
                self._is_complete = False
                break
            self._left -= len(text)
            yield f",{self._break}{text}" if number else text
        yield "]"

    def end(self) -> str:
        return f',{self._break}"is_complete": {json.dumps(self._is_complete)}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One list of the export: its rows in order, the columns that may be large, and how a row is converted."""

    name: str
    found: Callable[[Run], QuerySet[Any]]
    large: tuple[str, ...]
    payloads: tuple[str, ...]  # the large columns, not read without payloads
    as_data: Callable[[Run, Any, bool], dict[str, Any]]
    detail: Callable[[Any], str] | None = None  # of a row, for a reader who may see only some runs
    note: Callable[[Run, list[Any]], None] | None = None  # reads what rows of a batch need beside

    def read(self, run: Run, with_payloads: bool, within: RunQuerySet | None = None) -> Iterator[dict[str, Any]]:
        """Yield up to MOST rows and one more, read in batches; each batch is a transaction of its own."""
        found = self.found(run)
        columns = tuple(each for each in self.large if with_payloads or each not in self.payloads)
        # One transaction for each batch: the client may read slowly, and no transaction may wait for the client.
        with reading():
            weighed = list(found.values_list("pk", weight(*columns))[: MOST + 1])
        for keys in in_batches(weighed, _AT_ONCE):
            with reading():
                rows = found.filter(pk__in=keys)
                read = list(rows if with_payloads else rows.defer(*self.payloads))
                if self.note is not None:
                    self.note(run, read)
            read.reverse()
            while read:
                row = read.pop()
                if within is not None and self.detail is not None:
                    row.detail = self.detail(row)
                data = self.as_data(run, row, with_payloads)
                row._state.fields_cache.clear()  # break the cycle of an entry and its metadata
                yield data


def _run(run: Run, with_payloads: bool, within: RunQuerySet | None) -> dict[str, Any]:
    key, limits = key_of(run), limits_of(run) or RunLimits()
    summary = run.summary if within is None else Summary.load(run.summary).without_others
    with reading():
        children, tick = count_children(run.id, within), tick_of(run.id)
        existing = existing_among(within, [run.parent_id, run.replay_of_id])
    data: dict[str, Any] = {
        "id": run.id,
        "workflow": run.workflow,
        "queue": run.queue,
        "state": run.state,
        "summary": str(redacted(run.workflow, "error", summary)),
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "wake_at": run.wake_at,
        "parent": run.parent_id if run.parent_id in existing else None,
        "children": children_data(children),
        "schedule": tick_data(tick),
        "replay_of": run.replay_of_id if run.replay_of_id in existing else None,
        "error": _error(run, run.error, with_payloads),
        "deadline": limits.deadline,
        "work_limit": limits.work_limit,
        "worked": None if limits.work_limit is None else limits.worked,
        "key": None if key is None else key.key,
        **rank_data(run),
        "tags": tags_data(tags_of([run])[run.id]),
        "status": status_data(run),
        "about": [each.word for each in about_of([run])[run.id]],
    }
    if with_payloads:
        data["carried"] = carried_of(run)
        data["input"] = payload(run.workflow, "input", run.input, Place(run.id, "input"))
        data["output"] = payload(run.workflow, "output", run.output, Place(run.id, "output"))
    return data


def _entry(run: Run, entry: Entry, with_payloads: bool) -> dict[str, Any]:
    metadata = entry.metadata
    data: dict[str, Any] = {
        "location": entry.location,
        "kind": entry.kind,
        "status": metadata.status,
        "attempts": metadata.attempts,
        "created_at": metadata.created_at,
        "last_attempt_at": metadata.last_attempt_at,
        "next_attempt_at": metadata.next_attempt_at,
        "completed_at": metadata.completed_at,
        "rollback_completed_at": metadata.rollback_completed_at,
        "error": _error(run, metadata.error, with_payloads),
        "rollback_error": _error(run, metadata.rollback_error, with_payloads),
        "data": entry_facts(run, entry),
    }
    if "given" in entry.data:  # `entry_detail` has looked at its shape
        data["given_by_hand"] = entry.data["given"]
    held: Any = entry.data.get(HELD)
    if held is not None:
        data["held"] = {"reason": held["reason"], "since": held["since"]}
    if with_payloads:
        arguments, output, *_ = values_of(run.id, entry)
        for name, each in (("arguments", arguments), ("output", output)):
            data[name] = payload(run.workflow, field_of(each, entry.location), each.text, each.place)
    return data


def _attempt(run: Run, attempt: Attempt, with_payloads: bool) -> dict[str, Any]:
    return {
        "location": attempt.location,
        "number": attempt.number,
        "worker": attempt.worker,
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "error": _error(run, attempt.error, with_payloads),
    }


def _save(run: Run, save: StepSave, with_payloads: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"location": save.location, "attempt": save.attempt}
    if with_payloads:
        place = Place(run.id, "saved", save.location)
        data["saved"] = payload(run.workflow, f"saved:{save.location}", save.details, place)
    return data


def _message(run: Run, message: QueueMessage, with_payloads: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "sent_at": message.sent_at,
        "state": message.state,
        "received_by": message.received_by or None,
    }
    if with_payloads:
        for name, field, text in (("body", "message", message.body), ("response", "response", message.response)):
            place = of_message(run.id, field, message.id, message.queue)
            data[name] = payload(run.workflow, f"{field}:{message.queue}", text, place)
    return data


def _action(_run: Run, action: OperatorAction, _with_payloads: bool) -> dict[str, Any]:
    return {
        "at": action.created_at,
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
    data = {"type": error.type, "message": str(redacted(run.workflow, "error", error.message))}
    return data | ({"traceback": redacted_traceback(run.workflow, error)} if with_payloads else {})


def _entries(run: Run) -> QuerySet[Entry]:
    found = Entry.objects.using(read_alias()).with_metadata_of(run.id)
    return found.select_related("metadata").order_by("ordinal")


def _of(model: Any, order: str) -> Callable[[Run], QuerySet[Any]]:
    return lambda run: model.objects.using(read_alias()).filter(run=run).order_by(order)


def _actions(run: Run) -> QuerySet[OperatorAction]:
    return OperatorAction.objects.using(read_alias()).filter(run_id=run.id).order_by("created_at", "id")


_PARTS: Final = (
    _Part(
        name="entries",
        found=_entries,
        large=("output", "arguments", "data", "metadata__error", "metadata__rollback_error"),
        payloads=("output", "arguments"),
        as_data=_entry,
        note=note_links,
    ),
    _Part(name="attempts", found=_of(Attempt, "id"), large=("error",), payloads=(), as_data=_attempt),
    _Part(name="saves", found=_of(StepSave, "location"), large=("details",), payloads=("details",), as_data=_save),
    _Part(
        name="messages",
        found=_of(QueueMessage, "order"),
        large=("body", "response"),
        payloads=("body", "response"),
        as_data=_message,
    ),
    _Part(
        name="actions",
        found=_actions,
        large=("reason", "detail"),
        payloads=(),
        as_data=_action,
        detail=detail_without_runs,
    ),
)
