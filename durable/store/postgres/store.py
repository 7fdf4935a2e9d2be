"""The store for PostgreSQL: one statement, one round trip and one commit for each operation of the engine.

Frequent operations are functions in the database (`sql_functions`). Keeps no state in the session (no advisory locks,
and prepared statements only where `DURABLE["PREPARED_STATEMENTS"]` allows them), so that a pooler in transaction mode
may be used. Relies on READ COMMITTED, Django's default: after a wait for a row lock, the newest version of the row
decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.db import DataError, Error, IntegrityError, InternalError, connections, transaction

from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.errors import RateUnitsError, UnknownLimitError
from durable.core.limits.ranks import Ranking
from durable.core.limits.rates import RateWant, Reservation, from_nanoseconds
from durable.core.limits.slot_records import Admission, SlotChange, SlotWant
from durable.core.location import LINK_QUEUES, escape
from durable.core.new_runs import NewRun, key_of, without_key
from durable.core.records import (
    Activity,
    AskedOfActivity,
    Batch,
    ChildrenDropped,
    ChildStart,
    Committed,
    GroupChange,
    Message,
    OutgoingMessage,
    RunChange,
    RunRecord,
    RunState,
    SavedDetails,
    StatusRecord,
)
from durable.core.time_limits import History
from durable.models import Run, SlotNote
from durable.models.rows import pack, unpack
from durable.store import sessions
from durable.store.base import ChildIdTaken, ChildKeyTaken, Claimed, DuePoint, MessagesLeft, Released, Renewed
from durable.store.database import WRITERS, DatabaseStore
from durable.store.postgres import libpq, sql, sql_functions
from durable.store.postgres.libpq import Row, SQLFunction, text
from durable.store.postgres.parameters import (
    CommitParameters,
    batch_parameters,
    change_parameters,
    children_parameters,
    entries_json,
    send_parameters,
    sends_json,
    start_parameters,
    witness_parameters,
)
from durable.store.postgres.sending import PostgresCommit, PostgresCommits
from durable.store.rules import row_rules
from durable.store.tables.descriptions import with_descriptions
from durable.store.tables.rows import (
    ACTIVITY,
    RUN,
    SAVED,
    STATUS,
    failure_row,
    json_rows,
    limits_json,
    to_history,
    to_message,
    to_run,
    with_moments,
)
from durable.store.transactions import PATIENCE, RowsLocked, impatient, or_locked


class PostgresStore(DatabaseStore):
    """A `Store` on PostgreSQL."""

    def _rows(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        connection = connections[self.alias]
        try:
            found = libpq.rows(self.alias, statement, parameters)
            if found is None:
                with sessions.not_noted(connection), connection.cursor() as cursor:
                    cursor.execute(statement, parameters)
                    with connection.wrap_database_errors:
                        found = libpq.fetched(cursor.cursor)
        except InternalError as error:
            raise sessions.refused(connection, error) from error.__cause__
        return found

    # -- verbs, from outside a pass

    def _insert(self, runs: Sequence[RunRecord]) -> tuple[dict[str, RunRecord], dict[str, str]]:
        if len(runs) == 1 and (values := start_parameters(runs[0])):
            run_id, carried = runs[0].id, runs[0].carried
            if carried is None:
                [summary] = sql_functions.START(self.alias, values)
            else:
                [summary, _] = sql_functions.START_CARRIED(self.alias, [*values, pack(carried), None])
            return (self.get_many([run_id]) if summary is None else {}), {run_id: summary} if summary else {}
        workflows = sorted({pack(run.workflow) for run in runs})
        parameters = {"runs": json_rows(map(RUN.dumped, runs)), "workflows": workflows}
        if any(isinstance(run, NewRun) and run.limits is not None for run in runs):
            rows = self._rows(sql.CREATE_LIMITED, {**parameters, "limits": limits_json(runs)})
        else:
            rows = self._rows(sql.CREATE, parameters)
        inserted = {unpack(run_id): summary for run_id, summary in rows}
        taken = self.get_many([run.id for run in runs if run.id not in inserted])
        return taken, {run_id: summary for run_id, summary in inserted.items() if summary}

    def _rank(self, runs: Sequence[RunRecord], ranking: Ranking, now: datetime) -> None:
        parameters: dict[str, Any] = {"runs": [pack(run.id) for run in runs], "queue": pack(runs[0].queue), "now": now}
        parameters |= {"priority": pack(ranking.priority), "head_start": ranking.head_start}
        self._rows(sql.RANK, {**parameters, "share": pack(ranking.share), "weight": ranking.weight})

    def _begin_to_write(self) -> None:
        """Do nothing: PostgreSQL has row locks."""

    def _check_fence(self, run_id: str, fence: int) -> None:
        """Do nothing: the database's functions compare the fence."""

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        values = start_parameters(run)
        is_renamed = self._owner_of_keys(run.workflow) != run.workflow
        is_ranked = isinstance(run, NewRun) and run.ranking is not None
        if is_renamed or not values or is_ranked or with_descriptions([run]):
            return super().start_keyed(run, key)
        while True:
            if run.carried is None:
                summary, holder = sql_functions.START_KEYED(self.alias, [*values, pack(key)])
            else:
                given = [*values, pack(run.carried), pack(key)]
                summary, holder = sql_functions.START_CARRIED(self.alias, given)
            if holder is None:
                new = row_rules.copied(run)
                return self._as_held(new, summary) if summary else new, True
            if (found := self._found_at(run, unpack(holder))) is not None:
                return found, False

    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]:
        if not run_ids:
            return {}
        rows = self._rows(sql.GET_RUNS, {"runs": [pack(run_id) for run_id in run_ids]})
        return {run.id: run for run in map(to_run, rows)}

    def messages(self, run_id: str) -> list[Message]:
        return [to_message(row) for row in self._rows(sql.LIST_MESSAGES, {"run": pack(run_id)})]

    def message(self, message_id: str) -> Message | None:
        rows = self._rows(sql.GET_MESSAGE, {"message": pack(message_id)})
        return to_message(rows[0]) if rows else None

    def sent_before(self, run_id: str, idempotency_id: str) -> Message | None:
        rows = self._rows(sql.SENT_BEFORE, {"run": pack(run_id), "id": pack(idempotency_id)})
        return to_message(rows[0]) if rows else None

    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]:
        if len(messages) == 1:
            rows = [sql_functions.SEND(self.alias, send_parameters(messages[0]))]
        else:
            rows = self._rows(sql.SEND_MANY, {"sends": sends_json(messages)}) if messages else []
        answers = [self._sent(message, *row) for message, row in zip(messages, rows, strict=True)]
        return answers, frozenset(unpack(queue) for _, queue, _ in rows if queue is not None)

    def _sent(
        self, message: OutgoingMessage, place: str | int | None, _queue: str | None, before: str | None
    ) -> Message | None:
        """Return the stored message, perhaps from an earlier send; None if there is no such run."""
        if before is not None:
            return self.message(unpack(before))
        return None if place is None else row_rules.stored(message, int(place))

    def _lock_run(self, run_id: str, *, wait: bool = True) -> RunRecord | None:
        rows = self._rows(sql.LOCK_RUN if wait else sql.TRY_LOCK_RUN, {"run": pack(run_id)})
        return to_run(rows[0]) if rows else None

    def _write_change(self, before: RunRecord, after: RunRecord, change: RunChange) -> None:
        self._call_whole(change_parameters(before, after, change))

    # -- passes

    def claim(
        self,
        *,
        queue: str,
        now: datetime,
        lease_until: datetime,
        worker: str,
        limit: int,
        since: DuePoint | None = None,
        since_ranked: datetime | None = None,
    ) -> Claimed:
        moment, run_id = since or (None, "")
        parameters: dict[str, Any] = {"now": now, "lease_until": lease_until, "worker": pack(worker), "limit": limit}
        parameters |= {"since": moment, "since_id": pack(run_id)}
        parameters |= {"queue": pack(queue), "since_ranked": None if since is None else since_ranked}
        *rows, (visited, _, next_at, next_id, next_ranked, *_) = self._rows(sql.CLAIM, parameters)
        if visited is None:
            return Claimed(is_paused=True)
        ranked = sorted(((row[1], to_run(row[5:])) for row in rows), key=lambda each: (each[0], each[1].id))
        return Claimed(
            (run for _, run in ranked),
            passed_over=max(0, visited - len(ranked)),
            left=None if next_at is None else (next_at, unpack(next_id)),
            left_ranked=next_ranked,
        )

    def claim_run(self, run_id: str, *, now: datetime, lease_until: datetime, worker: str) -> RunRecord | None:
        parameters = {"run": pack(run_id), "now": now, "lease_until": lease_until, "worker": pack(worker)}
        rows = self._rows(sql.CLAIM_RUN, parameters)
        return to_run(rows[0]) if rows else None

    def load(self, run_id: str) -> History:
        parameters = {"run": pack(run_id)}
        try:
            found = libpq.streamed(self.alias, sql.LOAD, parameters)
            if found is not None:
                with closing(found):
                    return to_history(found)
        except DataError:  # a time that Python cannot read
            pass
        return to_history(map(with_moments, self._rows(sql.LOAD_NUMBERS, parameters)))

    def load_short(self, run_ids: Sequence[str], most: int, size: int) -> dict[str, History]:
        parameters = {"runs": [pack(each) for each in run_ids], "most": most, "size": size}
        found = libpq.rows(self.alias, sql.LOAD_SHORT, parameters)
        if found is None:
            numbers = self._rows(sql.LOAD_SHORT_NUMBERS, parameters)
            found = [(run_id, *with_moments(row)) for run_id, *row in numbers]
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for run_id, *row in found:
            history = rows.setdefault(unpack(run_id), [])
            if any(each is not None for each in row):  # otherwise the run has neither entries nor limits
                history.append(tuple(row))
        return {run_id: to_history(history) for run_id, history in rows.items()}

    def inbox(self, run_id: str, names: Sequence[str], limit: int, before: datetime | None) -> list[Message]:
        parameters = {
            "run": pack(run_id),
            "names": [escape(name) for name in names],
            "before": before,
            "limit": limit,
            "links": escape(LINK_QUEUES),
        }
        return [
            to_message(row) for row in self._rows(sql.inbox(named=bool(names), before=before is not None), parameters)
        ]

    def _commit(self, batch: Batch) -> Committed:
        if batch.run is None or batch.run.get("state") != RunState.COMPLETED:
            committed = self._write_batch(batch)
        else:
            # of which a refused end must not be the end; the transaction of an `on_end` ends with it
            is_inside = connections[self.alias].in_atomic_block and batch.ended is None
            with transaction.atomic(using=self.alias) if is_inside else nullcontext():
                committed = self._write_batch(batch)
        if _NOTED not in committed.queues_to_notify:
            return committed
        return replace(committed, queues_to_notify=self._told(committed.queues_to_notify, batch.now))

    def _write_batch(self, batch: Batch) -> Committed:
        groups, starts = batch.of(GroupChange), batch.of(ChildStart)
        has_groups = bool(groups or batch.awaited_groups)
        described = with_descriptions(start.run for start in starts)
        is_held = batch.failure is not None and batch.failure.is_held
        is_more = bool(has_groups or described or batch.status or is_held)
        if not is_more and batch.worked is None and _BESIDE.isdisjoint(batch.changes):
            return self._by_one_function(batch)
        with transaction.atomic(using=self.alias):
            if has_groups:
                self._children.lock(each.id for each in groups)
            committed = self._by_one_function(replace(batch, slots=None))
            self._write_beside(batch)
            if described:
                self._describe(described, is_retried=True)
            if has_groups:
                committed = self._change_groups(batch, committed)
            queues = self._free_place(batch)
            if batch.slots is not None:
                queues |= self._change_slots(batch, batch.slots)
            return replace(committed, queues_to_notify=committed.queues_to_notify | queues) if queues else committed

    def acquire(self, run_id: str, fence: int, location: str, wants: Sequence[SlotWant], now: datetime) -> Admission:
        given = json.dumps([[pack(w.limit), pack(w.key), w.kind.value, w.at_once] for w in wants])
        is_alone = not connections[self.alias].in_atomic_block
        parameters = [pack(run_id), str(fence), pack(location), given, text(now), str(is_alone)]
        is_ours, undefined, line, queues = sql_functions.ACQUIRE(self.alias, parameters, uninterrupted=True)
        if not is_ours:
            raise LeaseLost
        if undefined is not None:
            raise UnknownLimitError(unpack(undefined))
        to_notify = self._told(_queues(queues), now)
        if line is None:
            return Admission(is_granted=True, queues_to_notify=to_notify)
        limit, key, place, held, at_once = json.loads(line)
        return Admission(
            is_granted=False,
            limit=unpack(limit),
            key=unpack(key),
            place=place,
            held=held,
            at_once=at_once,
            queues_to_notify=to_notify,
        )

    def reserve(
        self,
        run_id: str,
        fence: int,
        location: str,
        want: RateWant,
        now: datetime,
        *,
        may_begin: bool = True,
        patience: float = 0.0,
    ) -> Reservation:
        rate = want.rate
        given = [None, None, None] if rate is None else [pack(rate.text), str(rate.spacing), str(rate.burst)]
        own = [pack(run_id), str(fence), pack(location), pack(want.limit), pack(want.key), str(want.units)]
        how = ["true" if may_begin else "false", str(round(patience * 1_000_000_000)), text(now)]
        is_ours, refusal, begins, moment, before = sql_functions.RESERVE(
            self.alias, [*own, *given, *how], uninterrupted=True
        )
        if not is_ours:
            raise LeaseLost
        if refusal == "undefined":
            raise UnknownLimitError(want.limit, is_rate=True)
        if refusal == "units":
            holds = self._rates.rate(want.limit)
            raise RateUnitsError(want.label, want.units, "" if holds is None else holds.text)
        return Reservation(at=from_nanoseconds(int(moment or 0)), begins=begins == "true", before=int(before or 0))

    def _change_slots(self, batch: Batch, slots: SlotChange) -> frozenset[str]:
        [queues] = sql_functions.CHANGE_SLOTS(self.alias, _slot_parameters(batch, slots), uninterrupted=True)
        return _queues(queues)

    def sweep_slots(self, now: datetime, most: int) -> tuple[frozenset[str], int]:
        queues, number = sql_functions.SWEEP_SLOTS(self.alias, [text(now), str(most)])
        return _queues(queues) - {_NOTED}, int(number or 0)

    def _told(self, queues: frozenset[str], now: datetime) -> frozenset[str]:
        """Wake runs that got slots while their rows were locked; return all queues to notify.

        Usually the commit that parks the run has the lock, and ends at once. The ticker wakes the runs that are left.
        """
        if _NOTED not in queues:
            return queues
        queues -= {_NOTED}
        if connections[self.alias].in_atomic_block:
            return queues  # the notes are not committed
        noted = SlotNote.objects.using(self.alias).exclude(run_id="").values("run_id")
        runs = Run.objects.using(self.alias).filter(id__in=noted).order_by("id").select_for_update(no_key=True)
        # whatever happens here, the commit that left the note has happened
        with suppress(RowsLocked, Error), impatient(self.alias):
            list(runs.values_list("id"))
            queues |= self.sweep_slots(now, _TOLD_AT_ONCE)[0]
        return queues

    def sent_commits(self) -> PostgresCommits:
        return PostgresCommits(self.alias, _call_of_entries, self._flush)

    def _by_one_function(self, batch: Batch) -> Committed:
        if batch.entries and batch.run is None and batch.parent_id is None and _has_no_others(batch):
            return self._flush(batch)
        if _only_completes(batch):
            return self._complete(batch)
        if batch.parent_id is not None or batch.awaited_children or not _OF_CHILDREN.isdisjoint(batch.changes):
            return self._commit_with_children(batch)
        return self._call_whole(batch_parameters(batch), batch)

    def _call_commit(
        self,
        function: SQLFunction,
        values: Sequence[str | None],
        batch: Batch | None,
        sent: PostgresCommit | None = None,
    ) -> tuple[Row, frozenset[str]]:
        """Call the function of a commit and, if its run's slots change, CHANGE_SLOTS in the same statement.

        The call may be `sent`. Return its row, and the queues to notify because of slots.
        """
        try:
            if batch is None or batch.slots is None:
                return function(self.alias, values, uninterrupted=True, sent=sent), frozenset()
            given = [*values, *_slot_parameters(batch, batch.slots)]
            *row, queues = sql_functions.WITH_SLOTS[function](self.alias, given, uninterrupted=True)
        except IntegrityError as error:
            found = getattr(error.__cause__, "diag", None)
            if found is None or (refusal := _REFUSALS.get(found.constraint_name)) is None:
                raise
            raise refusal(unpack(found.message_detail or "")) from error
        return tuple(row), _queues(queues)

    def _commit_with_children(self, batch: Batch) -> Committed:
        starts = batch.of(ChildStart)
        named = [with_key for start in starts if (with_key := key_of(start)) is not None]
        if all(self._owner_of_keys(workflow) == workflow for workflow, _ in named):
            return self._write_with_children(batch)
        with transaction.atomic(using=self.alias):  # the function would take the keys under the children's own names
            self._take_keys(starts)
            without_keys = {**batch.changes, ChildStart: [without_key(start) for start in starts]}
            return self._write_with_children(replace(batch, changes=without_keys))

    def _write_with_children(self, batch: Batch) -> Committed:
        parameters = [*batch_parameters(batch), *children_parameters(batch)]
        (request, queues), of_slots = self._call_commit(sql_functions.COMMIT_WITH_CHILDREN, parameters, batch)
        return _answer_of(request, _queues(queues) | of_slots)

    def _flush(self, batch: Batch, sent: PostgresCommit | None = None) -> Committed:
        function, values = _call_of_entries(batch)
        [request], queues = self._call_commit(function, values, batch, sent)
        return _answer_of(request, queues)

    def _complete(self, batch: Batch) -> Committed:
        assert batch.run is not None
        finished_at, output = batch.run["finished_at"], batch.run["output"]
        assert finished_at is not None
        assert output is not None
        end = [pack(batch.run_id), str(batch.fence), text(finished_at), pack(output)]
        values = [*end, *witness_parameters(batch.witnesses)]
        if batch.parent_id is None:
            [request], of_slots = self._call_commit(sql_functions.COMPLETE, values, batch)
            return _answer_of(request, of_slots)
        (request, queues), of_slots = self._call_commit(sql_functions.COMPLETE_CHILD, values, batch)
        return _answer_of(request, _queues(queues) | of_slots)

    def _call_whole(self, parts: CommitParameters, batch: Batch | None = None) -> Committed:
        if batch is None or batch.failure is None:
            (request, queues), of_slots = self._call_commit(sql_functions.COMMIT, parts, batch)
        else:
            values = [*parts, failure_row(batch.failure)]
            (request, queues), of_slots = self._call_commit(sql_functions.FAIL, values, batch)
        return _answer_of(request, _queues(queues) | of_slots)

    def renew(self, held: Sequence[tuple[str, int]], lease_until: datetime) -> Renewed:
        if not held:
            return Renewed({})
        rows = self._rows(sql.RENEW, {**_holding(held), "lease_until": lease_until})
        return Renewed(
            {unpack(run_id): request for run_id, request in rows if request is not None},
            frozenset(unpack(run_id) for run_id, request in rows if request is None),
        )

    def requests(self, run_ids: Sequence[str]) -> dict[str, str]:
        rows = self._rows(sql.REQUESTS, {"runs": [pack(each) for each in run_ids]})
        return {unpack(run_id): request for run_id, request in rows}

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str]
    ) -> tuple[dict[str, str], list[AskedOfActivity]]:
        parameters: dict[str, Any] = {"runs": [pack(each) for each in watched]}
        if begun or ended:
            noted = {"begun": json_rows(map(ACTIVITY.dumped, begun)), "ended": json_rows(map(ACTIVITY.dumped, ended))}
            with or_locked():
                rows = self._rows(sql.REPORT, {**parameters, **noted, "patience": f"{PATIENCE}s"})
        else:
            rows = self._rows(sql.ASKED, parameters)
        requests = {unpack(run_id): request for run_id, request, *_ in rows if request}
        return requests, [_asked(*row) for row in rows if not row[1]]

    def save_details(self, saved: Sequence[SavedDetails]) -> None:
        with impatient(self.alias):
            self._rows(sql.SAVE_DETAILS, {"saved": json_rows(map(SAVED.dumped, saved))})

    def show(self, statuses: Sequence[StatusRecord]) -> None:
        with impatient(self.alias):
            self._rows(sql.SHOW, {"statuses": json_rows(map(STATUS.dumped, statuses))})

    def _show_committed(self, status: StatusRecord) -> None:
        self._rows(sql.SHOW_COMMITTED, {"statuses": json_rows([STATUS.dumped(status)])})

    def release(self, held: Sequence[tuple[str, int]], now: datetime, *, due_at: datetime | None = None) -> Released:
        if not held:
            return Released(frozenset(), frozenset())
        rows = self._rows(sql.RELEASE, {**_holding(held), "now": now, "due_at": due_at})
        busy = frozenset(unpack(run_id) for run_id, queue in rows if queue is None)
        return Released(busy, frozenset(unpack(queue) for _, queue in rows if queue is not None))

    def _drop(self, run: RunRecord, children: Sequence[str], at: datetime) -> None:
        self._rows(sql.DROP_CHILDREN, {"run": pack(run.id), "children": [pack(each) for each in children], "now": at})

    def _end_dropped(self, run: RunRecord, at: datetime) -> None:
        self._rows(sql.END_DROPPED, {"run": pack(run.id), "now": at})

    def cascade(self, after: str, now: datetime) -> tuple[str, int] | None:
        parent, number = sql_functions.CASCADE(self.alias, [pack(after), text(now)])
        return None if parent is None else (unpack(parent), int(number or 0))

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
#: Stands among the queues to notify: a run got a slot while its row was locked, and a note says so.
_NOTED: Final = ""
_TOLD_AT_ONCE: Final = 100  # notes
#: Changes that concern children.
_OF_CHILDREN: Final = frozenset({ChildStart, ChildrenDropped})
#: Changes that have their own statement, in the transaction of the commit.
_BESIDE: Final = frozenset({GroupChange, *WRITERS})

#: The errors of a refused commit, by the constraint that a function names.
_REFUSALS: Final[dict[str, Callable[[str], BaseException]]] = {
    "durable_child_id_is_free": ChildIdTaken,
    "durable_child_key_is_free": ChildKeyTaken,
    "durable_messages_left": MessagesLeft,
    sql_functions.LOST: CommitsLost,
}


def _answer_of(request: str | None, queues: frozenset[str]) -> Committed:
    """Return the answer of a commit's function. Raises LeaseLost without a request: the run has a newer fence."""
    if request is None:
        raise LeaseLost
    return Committed(request=request, queues_to_notify=queues) if request or queues else _NOTHING_ASKED


def _queues(names: str | None) -> frozenset[str]:
    """Parse the queues to notify from a function's JSON."""
    return frozenset(map(unpack, json.loads(names))) if names else frozenset()


def _slot_parameters(batch: Batch, slots: SlotChange) -> list[str | None]:
    return [
        pack(batch.run_id),
        text(batch.now),
        json.dumps([pack(each) for each in slots.released]),
        "true" if slots.is_left else "false",
        json.dumps([pack(each) for each in slots.awaited]),
    ]


def _asked(
    run_id: str, _request: str, location: str, attempt: int, fence: int, stack: bool, abandon: bool
) -> AskedOfActivity:
    where = {"run_id": unpack(run_id), "location": unpack(location)}
    return AskedOfActivity(**where, attempt=attempt, fence=fence, stack=stack, abandon=abandon)


def _call_of_entries(batch: Batch) -> tuple[SQLFunction, list[str | None]]:
    """Return the function that writes a batch of entries alone, and its parameters."""
    entries = row_rules.entries_to_write(batch.entries)
    run = [pack(batch.run_id), str(batch.fence)]
    if len(entries) == 1:
        return sql_functions.RECORD, [*run, *sql_functions.recorded(entries[0]), *witness_parameters(batch.witnesses)]
    return sql_functions.FLUSH, [*run, entries_json(entries), *witness_parameters(batch.witnesses)]


def _only_completes(batch: Batch) -> bool:
    if batch.entries or batch.run is None or not _has_no_others(batch):
        return False
    return sql_functions.is_completion(batch.run)


def _has_no_others(batch: Batch) -> bool:
    if batch.deleted or batch.park_change_seq is not None or batch.awaited_children or batch.failure is not None:
        return False
    return batch.changes.keys() <= _BESIDE


def _holding(held: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {"runs": [pack(run_id) for run_id, _ in held], "fences": [fence for _, fence in held]}
