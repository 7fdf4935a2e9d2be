"""The store for PostgreSQL: one statement, one round trip and one commit for each thing that the engine does.

Keeps no state in the session (no prepared statements, no advisory locks), so that a pooler in transaction mode may
stand between. Relies on READ COMMITTED, Django's default: after a wait for a row's lock its newest version decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader

from durable.core.entries import (
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
from durable.core.errors import LeaseLost, RunNotFoundError
from durable.core.location import escape
from durable.models.fields import pack, unpack
from durable.store import commits, planting, rules, statements
from durable.store.rows import (
    ATTEMPT,
    ENTRY,
    METADATA,
    RUN,
    json_rows,
    outgoing_row,
    to_attempt,
    to_entries,
    to_message,
    to_run,
)
from durable.store.transactions import committed_or_raised

__all__ = ["PostgresStore"]

_PATCH_ALONE = frozenset({"run", "fence", "now"})  # the parameters that every commit has


class PostgresStore:
    """A `Store` on the PostgreSQL database behind a Django connection."""

    excludes_writers = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def _rows(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def transaction(self) -> AbstractContextManager[None]:
        return committed_or_raised(self.alias)

    # -- verbs, from outside a pass

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        first = {run.id: run for run in reversed(runs)}
        new = self._insert(first[run_id] for run_id in sorted(first))  # sorted: two creators wait, never deadlock
        rows = {run.id: run for run in self._found(first.keys() - new)}
        created: list[tuple[RunRecord, bool]] = []
        for run in runs:
            created.append((rules.copied(rows.get(run.id, first[run.id])), run.id in new))
            new.discard(run.id)
        return created

    def _insert(self, runs: Iterable[RunRecord]) -> set[str]:
        """The ids that were free."""
        dumped = [RUN.dumped(run) for run in runs]
        if len(dumped) == 1:
            rows = self._rows(statements.CREATE_ONE, dumped[0])
        else:
            rows = self._rows(statements.CREATE, {"runs": json_rows(dumped)})
        return {unpack(run_id) for (run_id,) in rows}

    def _found(self, run_ids: Iterable[str]) -> list[RunRecord]:
        wanted = [pack(run_id) for run_id in run_ids]
        return [to_run(row) for row in self._rows(statements.GET_RUNS, {"runs": wanted})] if wanted else []

    def get(self, run_id: str) -> RunRecord | None:
        return next(iter(self._found([run_id])), None)

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        return planting.states(self.alias, run_ids)

    def history(self, run_id: str) -> list[Entry]:
        return sorted(self.load(run_id), key=lambda entry: entry.ordinal)

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        return [to_attempt(row) for row in self._rows(statements.LIST_ATTEMPTS, {"run": pack(run_id)})]

    def messages(self, run_id: str) -> list[Message]:
        return [to_message(row) for row in self._rows(statements.LIST_MESSAGES, {"run": pack(run_id)})]

    def message(self, message_id: str) -> Message | None:
        rows = self._rows(statements.GET_MESSAGE, {"message": pack(message_id)})
        return to_message(rows[0]) if rows else None

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        if not messages:
            return [], frozenset()
        wanted = _once_per_id(messages)
        found = self._rows(commits.SEND, _sending(wanted))
        stored = [to_message(row[:-1]) for row in found]
        by_id = {each.id: each for each in stored}
        by_idempotency_id = {(each.run_id, each.idempotency_id): each for each in stored if each.idempotency_id}
        answers = [
            by_id.get(each.id) if each.idempotency_id is None else by_idempotency_id.get((each.to, each.idempotency_id))
            for each in messages
        ]
        return answers, frozenset(unpack(row[-1]) for row in found if row[-1] is not None)

    def change(self, run_id: str, decide: Callable[[RunRecord, Callable[[], list[Entry]]], RunChange]) -> RunRecord:
        with transaction.atomic(using=self.alias):
            rows = self._rows(statements.LOCK_RUN, {"run": pack(run_id)})
            if not rows:
                raise RunNotFoundError(run_id)
            run = to_run(rows[0])
            change = decide(rules.copied(run), lambda: self.history(run_id))
            after = rules.after_change(run, change)
            self._write(
                run_id=run_id,
                fence=run.fence,
                entries=change.entries,
                deleted=change.deleted,
                unreceive=change.unreceive,
                patch=rules.changed_columns(run, after),
            )
            if change.retracted:
                planting.retract(self.alias, run_id, change.retracted)
            if change.action is not None:
                self.log([change.action])
            return rules.copied(after)

    def plant(
        self, run_id: str, *, entries: Sequence[Entry], attempts: Sequence[AttemptRecord], messages: Sequence[Message]
    ) -> None:
        planting.plant(self.alias, run_id, entries=entries, attempts=attempts, messages=messages)

    def log(self, actions: Sequence[ActionRecord]) -> None:
        planting.log(self.alias, actions)

    # -- passes

    def claim(
        self, *, queues: Sequence[str], now: datetime, lease_until: datetime, worker: str, limit: int
    ) -> list[RunRecord]:
        parameters: dict[str, Any] = {
            "queues": [pack(queue) for queue in queues],
            "now": now,
            "lease_until": lease_until,
            "worker": pack(worker),
            "limit": limit,
        }
        statement = statements.CLAIM
        if len(queues) == 1:
            statement, parameters["queue"] = statements.CLAIM_OF_ONE, pack(queues[0])
        runs = [to_run(row) for row in self._rows(statement, parameters)]
        return sorted(runs, key=lambda run: (run.wake_at or now, run.id))

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        parameters = {"run": pack(run_id), "now": now, "lease_until": lease_until, "worker": pack(worker)}
        rows = self._rows(statements.CLAIM_RUN, parameters)
        return to_run(rows[0]) if rows else None

    def load(self, run_id: str) -> list[Entry]:
        return to_entries(self._rows(statements.LOAD, {"run": pack(run_id)}))

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        parameters = {
            "run": pack(run_id),
            "names": [escape(name) for name in names],
            "before": before,
            "limit": limit,
        }
        return [
            to_message(row)
            for row in self._rows(statements.inbox(named=bool(names), before=before is not None), parameters)
        ]

    def commit(self, batch: Batch) -> Committed:
        if self._has_functions and _only_entries(batch):
            return self._flush(batch)
        written = self._write(
            run_id=batch.run_id,
            fence=batch.fence,
            now=batch.now,
            entries=batch.entries,
            deleted=batch.deleted,
            attempts=batch.attempts,
            consumed=rules.consumed(batch),
            sends=_once_per_id(batch.sends),
            patch=batch.run,
            signal=batch.park_signal,
        )
        if written is None:
            raise LeaseLost
        request, ring = written
        if batch.run is not None and "request" in batch.run:
            request = batch.run["request"]
        return Committed(request=request, ring=frozenset(map(unpack, ring or ())))

    def _flush(self, batch: Batch) -> Committed:
        rows = _entry_rows(rules.entries_to_write(batch.entries))
        parameters = {"run": pack(batch.run_id), "fence": batch.fence, "entries": rows}
        [(request,)] = self._rows(commits.FLUSH, parameters)
        if request is None:
            raise LeaseLost
        return Committed(request=request)

    @cached_property
    def _has_functions(self) -> bool:
        """Whether the tables were made by the migrations; tests may have them made from the models alone."""
        migrated = connections[self.alias].settings_dict["TEST"].get("MIGRATE") is not False
        return migrated and MigrationLoader.migrations_module("durable")[0] is not None

    def _write(
        self,
        *,
        run_id: str,
        fence: int,
        now: datetime | None = None,
        entries: Sequence[Entry] = (),
        deleted: Sequence[str] = (),
        attempts: Sequence[AttemptRecord] = (),
        consumed: dict[str, tuple[str, str | None, str | None]] | None = None,
        unreceive: Sequence[str] = (),
        sends: Sequence[OutgoingMessage] = (),
        patch: Any = None,
        signal: int | None = None,
    ) -> tuple[Any, ...] | None:
        """Execute one `commits.commit`; its row, None if the fence has moved on."""
        parameters: dict[str, Any] = {"run": pack(run_id), "fence": fence, "now": now}
        entries = rules.entries_to_write(entries)
        if entries:
            parameters["entries"] = _entry_rows(entries)
        if deleted:
            parameters["deleted"] = [pack(each) for each in rules.surely_deleted(deleted, entries)]
            parameters["forgotten"] = [pack(each) for each in deleted]
        if attempts:
            parameters["failures"] = json_rows(map(ATTEMPT.dumped, attempts))
        if consumed:
            parameters["consumed"] = json_rows(_consumption(consumed))
        if unreceive:
            parameters["unreceive"] = [pack(each) for each in unreceive]
        if sends:
            parameters |= _sending(sends, run_id)
        if patch:
            parameters |= {f"patch_{name}": RUN.dumps[name](value) for name, value in patch.items()}
        if signal is not None:
            parameters |= {"signal": signal, "taken": [pack(each) for each in consumed or ()]}
        if patch and parameters.keys() == _PATCH_ALONE | {f"patch_{name}" for name in patch}:
            statement = commits.patch_alone(tuple(patch))  # plans in a fraction of the time
            rows = self._rows(statement, parameters)
            return rows[0] if rows else None
        statement = commits.commit(
            entries=bool(entries),
            deleted=bool(deleted),
            attempts=bool(attempts),
            consumed=bool(consumed),
            unreceive=bool(unreceive),
            sends=bool(sends),
            to_itself=any(each.to == run_id for each in sends),
            patch=tuple(patch) if patch else None,
            parks=signal is not None,
        )
        rows = self._rows(statement, parameters)
        return rows[0] if rows else None

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> dict[str, str]:
        if not held:
            return {}
        rows = self._rows(statements.RENEW, {**_holding(held), "lease_until": lease_until})
        return {unpack(run_id): request for run_id, request in rows}

    def release(self, held: Sequence[tuple[str, int]], now: datetime) -> None:
        if held:
            with connections[self.alias].cursor() as cursor:
                cursor.execute(statements.RELEASE, {**_holding(held), "now": now})

    # -- timer and sweep

    def next_deadline(self, queues: Sequence[str], after: datetime) -> datetime | None:
        parameters = {"queues": [pack(queue) for queue in queues], "after": after}
        deadline: datetime | None = self._rows(statements.NEXT_DEADLINE, parameters)[0][0]
        return deadline

    def due_queues(self, now: datetime) -> list[str]:
        return sorted(unpack(queue) for (queue,) in self._rows(statements.DUE_QUEUES, {"now": now}))


def _only_entries(batch: Batch) -> bool:
    others = batch.deleted or batch.attempts or batch.received or batch.completed or batch.sends
    return bool(batch.entries) and not others and batch.run is None and batch.park_signal is None


def _entry_rows(entries: Iterable[Entry]) -> str:
    return json_rows(ENTRY.dumped(each) | METADATA.dumped(each) for each in entries)


def _once_per_id(messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
    """The messages without repetitions of an idempotency id, which one statement could not write."""
    first = {(each.to, each.idempotency_id or object()): each for each in reversed(messages)}
    return list(reversed(first.values()))


def _sending(messages: Sequence[OutgoingMessage], *also: str) -> dict[str, Any]:
    rows = json_rows(outgoing_row(message, number) for number, message in enumerate(messages))
    return {"sends": rows, "rows": [pack(each) for each in {*also, *(message.to for message in messages)}]}


def _consumption(consumed: dict[str, tuple[str, str | None, str | None]]) -> Iterable[dict[str, Any]]:
    for message_id, (state, location, response) in consumed.items():
        yield {
            "id": pack(message_id),
            "state": state,
            "received_by": None if location is None else pack(location),
            "response": None if response is None else pack(response),
        }


def _holding(held: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {"runs": [pack(run_id) for run_id, _ in held], "fences": [fence for _, fence in held]}
