"""The store for PostgreSQL: one statement, one round trip and one commit for each thing that the engine does.

Frequent operations are functions in the database (`durable.store.sql_functions`). Keeps no state in the session (no
advisory locks, and prepared statements only where `DURABLE["PREPARED_STATEMENTS"]` allows them), so that a pooler in
transaction mode may be used. Relies on READ COMMITTED, Django's default: after a wait for a row lock, the newest
version of the row decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from django.db import connections, transaction

from durable.core.control_flow import LeaseLost
from durable.core.errors import RunNotFoundError
from durable.core.location import escape
from durable.core.records import (
    ActionRecord,
    AttemptRecord,
    Batch,
    Committed,
    Entry,
    Message,
    OutgoingMessage,
    RunChange,
    RunRecord,
)
from durable.models.fields import pack, unpack
from durable.store import libpq, outline_rows, row_rules, sessions, shared_orm, sql, sql_functions
from durable.store.atomic import committed_or_raised
from durable.store.base import Claimed, DuePoint
from durable.store.libpq import text
from durable.store.rows import (
    ATTEMPT,
    ENTRY,
    METADATA,
    RUN,
    json_row,
    json_rows,
    outgoing_row,
    to_attempt,
    to_entries,
    to_message,
    to_run,
    with_moments,
)

__all__ = ["PostgresStore"]


class PostgresStore:
    """A `Store` on the PostgreSQL database behind a Django connection."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def _rows(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        found = libpq.rows(self.alias, statement, parameters)
        if found is None:
            connection = connections[self.alias]
            with sessions.not_noted(connection), connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                found = cursor.fetchall() if cursor.description else []
        return found

    def transaction(self) -> AbstractContextManager[None]:
        return committed_or_raised(self.alias)

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        first = {run.id: run for run in reversed(runs)}
        # sorted: of two creators one waits, and they never deadlock
        new = self._insert(first[run_id] for run_id in sorted(first))
        rows = {run.id: run for run in self._found(first.keys() - new)}
        created: list[tuple[RunRecord, bool]] = []
        for run in runs:
            created.append((row_rules.copied(rows.get(run.id, first[run.id])), run.id in new))
            new.discard(run.id)
        return created

    def _insert(self, runs: Iterable[RunRecord]) -> set[str]:
        """Insert the runs; return the ids that were free."""
        new = list(runs)
        if len(new) == 1 and (values := _as_started(new[0])):
            [is_new] = sql_functions.START(self.alias, values)
            return {new[0].id} if is_new == "true" else set()
        rows = self._rows(sql.CREATE, {"runs": json_rows(map(RUN.dumped, new))})
        return {unpack(run_id) for (run_id,) in rows}

    def _found(self, run_ids: Iterable[str]) -> list[RunRecord]:
        wanted = [pack(run_id) for run_id in run_ids]
        return [to_run(row) for row in self._rows(sql.GET_RUNS, {"runs": wanted})] if wanted else []

    def get(self, run_id: str) -> RunRecord | None:
        return next(iter(self._found([run_id])), None)

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        return {run.id: run for run in self._found(run_ids)}

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        return shared_orm.states(self.alias, run_ids)

    def history(self, run_id: str) -> list[Entry]:
        return sorted(self.load(run_id), key=lambda entry: entry.ordinal)

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        return [to_attempt(row) for row in self._rows(sql.LIST_ATTEMPTS, {"run": pack(run_id)})]

    def messages(self, run_id: str) -> list[Message]:
        return [to_message(row) for row in self._rows(sql.LIST_MESSAGES, {"run": pack(run_id)})]

    def outline(self, run_id: str) -> tuple[list[Entry], list[Message]]:
        return outline_rows.read(self.alias, run_id)

    def message(self, message_id: str) -> Message | None:
        rows = self._rows(sql.GET_MESSAGE, {"message": pack(message_id)})
        return to_message(rows[0]) if rows else None

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        rows = self._rows(sql.SENT_BEFORE, {"run": pack(run_id), "id": pack(idempotency_id)})
        return to_message(rows[0]) if rows else None

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        if len(messages) == 1:
            rows = [sql_functions.SEND(self.alias, [*_as_texts(outgoing_row(messages[0]).values()), "1"])]
        else:
            sends = json_rows(map(_numbered, enumerate(messages)))
            rows = self._rows(sql.SEND_MANY, {"sends": sends}) if messages else []
        answers = [self._sent(message, *row) for message, row in zip(messages, rows, strict=True)]
        return answers, frozenset(unpack(ring) for _, ring, _ in rows if ring is not None)

    def _sent(
        self, message: OutgoingMessage, place: str | int | None, _ring: str | None, before: str | None
    ) -> Message | None:
        """Return the message as stored, perhaps by an earlier send; None if there is no such run."""
        if before is not None:
            return self.message(unpack(before))
        return None if place is None else row_rules.stored(message, int(place))

    def change(self, run_id: str, decide: Callable[[RunRecord, Callable[[], list[Entry]]], RunChange]) -> RunRecord:
        with transaction.atomic(using=self.alias):
            rows = self._rows(sql.LOCK_RUN, {"run": pack(run_id)})
            if not rows:
                raise RunNotFoundError(run_id)
            run = to_run(rows[0])
            change = decide(row_rules.copied(run), lambda: self.history(run_id))
            after = row_rules.after_change(run, change)
            self._write(
                run_id=run_id,
                fence=run.fence,
                entries=change.entries,
                deleted=change.deleted,
                unreceive=change.unreceive,
                patch=row_rules.changed_columns(run, after),
            )
            if change.retracted:
                shared_orm.retract(self.alias, run_id, change.retracted)
            if change.action is not None:
                self.log([change.action])
            return row_rules.copied(after)

    def import_history(
        self, run_id: str, *, entries: Sequence[Entry], attempts: Sequence[AttemptRecord], messages: Sequence[Message]
    ) -> None:
        shared_orm.import_history(self.alias, run_id, entries=entries, attempts=attempts, messages=messages)

    def log(self, actions: Sequence[ActionRecord]) -> None:
        shared_orm.log(self.alias, actions)

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        return shared_orm.log_repeat(self.alias, action, since)

    # -- passes

    def claim(
        self,
        *,
        queues: Sequence[str],
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None = None,
    ) -> Claimed:
        moment, run_id = since or (None, "")
        parameters: dict[str, Any] = {"now": now, "lease_until": lease_until, "worker": pack(worker), "limit": limit}
        parameters |= {"since": moment, "since_id": pack(run_id)}
        passed_over = 0
        if len(queues) == 1:
            *rows, (visited, *_) = self._rows(sql.CLAIM_OF_ONE, {**parameters, "queue": pack(queues[0])})
            found = [row[1:] for row in rows]
            passed_over = max(0, visited - len(found))
        else:
            found = self._rows(sql.CLAIM, {**parameters, "queues": [pack(queue) for queue in queues]})
        runs = sorted(map(to_run, found), key=lambda run: (run.wake_at or now, run.id))
        return Claimed(runs, passed_over=passed_over)

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        parameters = {"run": pack(run_id), "now": now, "lease_until": lease_until, "worker": pack(worker)}
        rows = self._rows(sql.CLAIM_RUN, parameters)
        return to_run(rows[0]) if rows else None

    def load(self, run_id: str) -> list[Entry]:
        parameters = {"run": pack(run_id)}
        found = libpq.rows(self.alias, sql.LOAD, parameters)
        if found is None:
            found = [with_moments(row) for row in self._rows(sql.LOAD_NUMBERS, parameters)]
        return to_entries(found)

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, list[Entry]]:
        parameters = {"runs": [pack(each) for each in run_ids], "most": most, "size": size}
        found = libpq.rows(self.alias, sql.LOAD_SHORT, parameters)
        if found is None:
            numbers = self._rows(sql.LOAD_SHORT_NUMBERS, parameters)
            found = [(run_id, *with_moments(row)) for run_id, *row in numbers]
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for run_id, *row in found:
            history = rows.setdefault(unpack(run_id), [])
            if row[0] is not None:  # otherwise the run has no entries
                history.append(tuple(row))
        return {run_id: to_entries(history) for run_id, history in rows.items()}

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        parameters = {
            "run": pack(run_id),
            "names": [escape(name) for name in names],
            "before": before,
            "limit": limit,
        }
        return [
            to_message(row) for row in self._rows(sql.inbox(named=bool(names), before=before is not None), parameters)
        ]

    def commit(self, batch: Batch) -> Committed:
        if _only_entries(batch):
            return self._flush(batch)
        if _only_completes(batch):
            return self._complete(batch)
        written = self._write(
            run_id=batch.run_id,
            fence=batch.fence,
            now=batch.now,
            entries=batch.entries,
            deleted=batch.deleted,
            attempts=batch.attempts,
            consumed=row_rules.consumed(batch),
            unreceive=batch.returned,
            sends=batch.sends,
            patch=batch.run,
            known_change_seq=batch.park_change_seq,
        )
        if written is None:
            raise LeaseLost
        return written

    def _flush(self, batch: Batch) -> Committed:
        entries = row_rules.entries_to_write(batch.entries)
        run, fence = pack(batch.run_id), str(batch.fence)
        if len(entries) == 1:
            values = [run, fence, *sql_functions.recorded(entries[0])]
            [request] = sql_functions.RECORD(self.alias, values, uninterrupted=True)
        else:
            [request] = sql_functions.FLUSH(self.alias, [run, fence, _entry_rows(entries)], uninterrupted=True)
        if request is None:
            raise LeaseLost
        return _answered(request)

    def _complete(self, batch: Batch) -> Committed:
        assert batch.run is not None
        finished_at, output = batch.run["finished_at"], batch.run["output"]
        assert finished_at is not None
        assert output is not None
        values = [pack(batch.run_id), str(batch.fence), text(finished_at), pack(output)]
        [request] = sql_functions.COMPLETE(self.alias, values, uninterrupted=True)
        if request is None:
            raise LeaseLost
        return _answered(request)

    def _write(
        self,
        *,
        run_id: str,
        fence: int,
        now: datetime | None = None,
        entries: Sequence[Entry] = (),
        deleted: Sequence[str] = (),
        attempts: Sequence[AttemptRecord] = (),
        consumed: Mapping[str, tuple[str, str | None, str | None]] = MappingProxyType({}),
        unreceive: Sequence[str] = (),
        sends: Sequence[OutgoingMessage] = (),
        patch: Mapping[str, Any] | None = None,
        known_change_seq: int | None = None,
    ) -> Committed | None:
        """Write everything, and return the answer. Return None, and write nothing, if the run has a newer fence."""
        assert sql_functions.PATCHED.issuperset(patch or ()), f"a commit cannot write all of {sorted(patch or ())}"
        request, rings = sql_functions.COMMIT(
            self.alias,
            [
                pack(run_id),
                str(fence),
                None if now is None else text(now),
                _texts(deleted),
                _entry_rows(row_rules.entries_to_write(entries)) if entries else None,
                json_rows(map(ATTEMPT.dumped, attempts)) if attempts else None,
                json_rows(_consumption(consumed)) if consumed else None,
                _texts(unreceive),
                json_row({name: RUN.dumps[name](value) for name, value in patch.items()}) if patch else None,
                None if known_change_seq is None else str(known_change_seq),
                json_rows(map(_numbered, enumerate(sends))) if sends else None,
            ],
            uninterrupted=True,
        )
        if request is None:
            return None
        return Committed(
            request=request, queues_to_notify=frozenset(map(unpack, json.loads(rings))) if rings else frozenset()
        )

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> dict[str, str]:
        if not held:
            return {}
        rows = self._rows(sql.RENEW, {**_holding(held), "lease_until": lease_until})
        return {unpack(run_id): request for run_id, request in rows}

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        rows = self._rows(sql.REQUESTS, {"runs": [pack(each) for each in run_ids]})
        return {unpack(run_id): request for run_id, request in rows}

    def release(self, held: Sequence[tuple[str, int]], now: datetime) -> None:
        if held:
            self._rows(sql.RELEASE, {**_holding(held), "now": now})

    # -- timer and sweep

    def next_deadline(
        self, queues: Sequence[str], after: datetime, *, until: datetime | None = None
    ) -> datetime | None:
        parameters = {"queues": [pack(queue) for queue in queues], "after": after, "until": until}
        deadline: datetime | None = self._rows(sql.NEXT_DEADLINE, parameters)[0][0]
        return deadline

    def due_queues(
        self, now: datetime, *, queues: Sequence[str] | None = None, since: datetime | None = None
    ) -> list[str]:
        parameters: dict[str, Any] = {"now": now, "since": since}
        if queues is None:
            rows = self._rows(sql.DUE_QUEUES, parameters)
        else:
            rows = self._rows(sql.DUE_QUEUES_OF, {**parameters, "queues": [pack(each) for each in queues]})
        return sorted(unpack(queue) for (queue,) in rows)


_NOTHING_ASKED: Final = Committed()


def _answered(request: str) -> Committed:
    return Committed(request=request) if request else _NOTHING_ASKED


def _only_entries(batch: Batch) -> bool:
    return bool(batch.entries) and batch.run is None and _has_no_others(batch)


def _only_completes(batch: Batch) -> bool:
    if batch.entries or batch.run is None or not _has_no_others(batch):
        return False
    return sql_functions.is_completion(batch.run)


def _has_no_others(batch: Batch) -> bool:
    others = batch.deleted or batch.attempts or batch.received or batch.completed or batch.returned or batch.sends
    return not others and batch.park_change_seq is None


def _entry_rows(entries: Iterable[Entry]) -> str:
    return json_rows(ENTRY.dumped(each) | METADATA.dumped(each) for each in entries)


def _texts(texts: Sequence[str]) -> str | None:
    """Return texts as a JSON list, or None if there are none."""
    return json.dumps([pack(each) for each in texts]) if texts else None


def _numbered(sent: tuple[int, OutgoingMessage]) -> dict[str, Any]:
    return {"number": sent[0], **outgoing_row(sent[1])}


_CHOSEN: Final = ("id", "workflow", "queue", "input", "created_at", "wake_at", "parent_id", "replay_of_id")
_chosen: Final = attrgetter(*_CHOSEN)
_others: Final = attrgetter(*(each.name for each in fields(RunRecord) if each.name not in _CHOSEN))
_USUAL: Final = _others(RunRecord(id="", workflow="", queue="", input="", created_at=datetime.fromtimestamp(0, UTC)))


def _as_started(run: RunRecord) -> list[str | None] | None:
    """Return the parameters of START, or None if the run is not like every new one."""
    if _others(run) != _USUAL:
        return None
    return _as_texts(pack(value) if isinstance(value, str) else value for value in _chosen(run))


def _as_texts(values: Iterable[Any]) -> list[str | None]:
    return [None if value is None else text(value) for value in values]


def _consumption(consumed: Mapping[str, tuple[str, str | None, str | None]]) -> Iterable[dict[str, Any]]:
    for message_id, (state, location, response) in consumed.items():
        yield {
            "id": pack(message_id),
            "state": state,
            "received_by": None if location is None else pack(location),
            "response": None if response is None else pack(response),
        }


def _holding(held: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {"runs": [pack(run_id) for run_id, _ in held], "fences": [fence for _, fence in held]}
