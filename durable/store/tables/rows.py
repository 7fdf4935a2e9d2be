"""Conversion between rows of the database and the engine's records.

Owns the conversion for statements that bypass the ORM. Column names, types and conversions come from the models, so
that each column is declared once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from sys import intern
from typing import Any, Final

from django.db import models

from durable.core.clock import EARLIEST, LATEST, bounded
from durable.core.garbage import without_collections
from durable.core.location import escape
from durable.core.new_runs import NewRun
from durable.core.records import Activity as ActivityRecord
from durable.core.records import (
    AttemptRecord,
    Cause,
    ChildRecord,
    EntryRecord,
    FailureRecord,
    LinkRecord,
    Message,
    OutgoingMessage,
    QuestionRecord,
    RunRecord,
    SavedDetails,
    StatusRecord,
)
from durable.core.time_limits import History, RunLimits
from durable.models import (
    Activity,
    Attempt,
    Child,
    Entry,
    EntryMetadata,
    HeldStart,
    Hold,
    Link,
    Question,
    QueueMessage,
    Run,
    RunLimit,
    RunStatus,
    StepSave,
)
from durable.models.causes import names_of
from durable.models.rows import (
    MomentField,
    load_error,
    load_json,
    pack,
    unpack,
)
from durable.models.run import RunQuerySet

type_of: Final = {
    MomentField: "timestamptz",
    models.DateTimeField: "timestamptz",
    models.IntegerField: "integer",
    models.BigIntegerField: "bigint",
    models.FloatField: "double precision",
}


class Columns:
    """Some columns of one table: their names, types and conversions.

    `names` are both attributes of the record and columns in the database.
    """

    def __init__(self, model: type[models.Model], record: type) -> None:
        self.table = model._meta.db_table
        attributes = {field.name for field in fields(record)}
        found = [field for field in model._meta.concrete_fields if field.attname in attributes]
        self.names = [field.attname for field in found]
        self.types = {field.attname: type_of.get(type(field), "text") for field in found}
        self.dumps = {field.attname: _dump(field) for field in found}
        loads = [_load(field) for field in found]
        self._loads = [(place, load) for place, load in enumerate(loads) if load is not same]

    def sql(self, prefix: str = "") -> str:
        """Return the names for a SELECT or INSERT. `prefix` is a table's alias and a dot."""
        return ", ".join(f'{prefix}"{name}"' for name in self.names)

    def typed(self) -> str:
        """Return the names with their types, as in the column list of json_to_recordset."""
        return ", ".join(f'"{name}" {self.types[name]}' for name in self.names)

    def dumped(self, record: Any) -> dict[str, Any]:
        """Return a record as database values, by column."""
        return {name: dump(getattr(record, name)) for name, dump in self.dumps.items()}

    def attributes(self, record: Any) -> dict[str, Any]:
        """Return the record's attributes by name, with values as the model takes them."""
        return {name: getattr(record, name) for name in self.names}

    def loaded(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the record's attributes from a row that has these columns in this order."""
        values = list(row)
        for place, load in self._loads:
            if (value := values[place]) is not None:
                values[place] = load(value)
        return dict(zip(self.names, values, strict=True))


def same(value: Any) -> Any:
    """Convert nothing: for columns that need no conversion."""
    return value


def _dump(field: models.Field[Any, Any]) -> Callable[[Any], Any]:
    dump: Callable[[Any], Any] = pack if isinstance(field, models.ForeignKey) else getattr(field, "dump", same)
    if not field.null or dump is same:
        return dump
    return lambda value: None if value is None else dump(value)


def _load(field: models.Field[Any, Any]) -> Callable[[Any], Any]:
    load: Callable[[Any], Any] = unpack if isinstance(field, models.ForeignKey) else getattr(field, "load", same)
    return load


RUN: Final = Columns(Run, RunRecord)
ENTRY: Final = Columns(Entry, EntryRecord)
METADATA: Final = Columns(EntryMetadata, EntryRecord)
ATTEMPT: Final = Columns(Attempt, AttemptRecord)
MESSAGE: Final = Columns(QueueMessage, Message)
ACTIVITY: Final = Columns(Activity, ActivityRecord)
CHILD: Final = Columns(Child, ChildRecord)
LIMITS: Final = Columns(RunLimit, RunLimits)
SAVED: Final = Columns(StepSave, SavedDetails)
STATUS: Final = Columns(RunStatus, StatusRecord)
LINK: Final = Columns(Link, LinkRecord)
QUESTION: Final = Columns(Question, QuestionRecord)

#: The tables of holds, and of the runs paused by them.
HOLD: Final = Hold._meta.db_table
HELD_START: Final = HeldStart._meta.db_table


#: The columns of a failure, its run first, without its cause.
FAILURE_NAMES: Final = [field.name for field in fields(FailureRecord) if field.name != "cause"]


#: An entry's columns in the order of the record's fields, as lookups of Django.
ENTRY_LOOKUPS: Final = [
    field.name if field.name in ENTRY.names else f"metadata__{field.name}" for field in fields(EntryRecord)
]

#: An entry's columns in the order of the record's fields, from tables named `e` and `m`.
ENTRY_FIELDS: Final = [f'{"e" if field.name in ENTRY.names else "m"}."{field.name}"' for field in fields(EntryRecord)]

_MOMENTS: Final = [METADATA.types.get(field.name) == "timestamptz" for field in fields(EntryRecord)]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


#: The same, with times as microseconds: Django's loader of times takes longer than all the rest.
ENTRY_NUMBERS: Final = [
    f"CASE WHEN {name} > '{LATEST}' THEN {_microseconds(LATEST)} WHEN {name} < '{EARLIEST}' THEN {_microseconds(EARLIEST)} "
    f"ELSE (extract(epoch FROM {name}) * 1000000)::bigint END"
    if is_moment
    else name
    for name, is_moment in zip(ENTRY_FIELDS, _MOMENTS, strict=True)
]

_encode: Final = json.JSONEncoder(default=datetime.isoformat, separators=(",", ":")).encode


def json_row(row: Mapping[str, Any]) -> str:
    """Return columns as JSON text for json_to_record."""
    return _encode(row)


def json_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return dumped records as one JSON text for json_to_recordset."""
    return _encode(list(rows))


def outgoing_row(message: OutgoingMessage) -> dict[str, Any]:
    """Return a message as a row of an inbox, without the columns that the store decides."""
    return {
        "id": pack(message.id),
        "run_id": pack(message.to),
        "queue": escape(message.queue),
        "body": pack(message.body),
        "sent_at": message.sent_at,
        "idempotency_id": None if message.idempotency_id is None else pack(message.idempotency_id),
    }


def cause_row(cause: Cause, first_seen_at: datetime) -> dict[str, Any]:
    """Return a cause as the attributes of a new row, without its fingerprint."""
    return {
        "place": cause.place,
        "error_type": cause.error_type,
        "pattern": cause.pattern,
        "first_seen_at": first_seen_at,
    }


def failure_row(failure: FailureRecord) -> str:
    """Return a failure and its cause as JSON text for json_to_record."""
    cause = failure.cause
    row = {name: getattr(failure, name) for name in FAILURE_NAMES}
    row |= {"names": names_of(cause), **cause_row(cause, failure.failed_at)}
    return json_row({name: pack(value) if isinstance(value, str) else value for name, value in row.items()})


def run_records(runs: RunQuerySet) -> list[RunRecord]:
    return [RunRecord(**row) for row in runs.values(*RUN.names)]


def to_run(row: Sequence[Any]) -> RunRecord:
    return RunRecord(**RUN.loaded(row))


def to_message(row: Sequence[Any]) -> Message:
    return Message(**MESSAGE.loaded(row))


#: Marks, in place of an entry's kind, rows with something else about the run.
OF_LIMITS: Final = "~limits"
OF_SAVED: Final = "~saved"


def _beside(kind: str, row: str) -> list[str]:
    """Return a row about something else in the columns of ENTRY_FIELDS and ENTRY_NUMBERS; its data is the table
    `row`.
    """
    found = {"data": f"to_json({row})::text", "kind": f"'{kind}'"}
    return [found.get(field.name, "NULL") for field in fields(EntryRecord)]


#: The limits of a run (table `l`) and the saved details of a step (table `s`), as rows in the form of an entry.
LIMITS_AS_ENTRY: Final = _beside(OF_LIMITS, "l")
SAVED_AS_ENTRY: Final = _beside(OF_SAVED, "s")
_KIND_AT: Final = [field.name for field in fields(EntryRecord)].index("kind")
_DATA_AT: Final = [field.name for field in fields(EntryRecord)].index("data")


def limits_json(runs: Iterable[RunRecord]) -> str:
    """Return the limits of the runs that have some, as JSON rows."""
    limited = ((run.id, run.limits) for run in runs if isinstance(run, NewRun) and run.limits is not None)
    return json_rows({"run_id": pack(run_id), **LIMITS.dumped(limits)} for run_id, limits in limited)


def to_history(rows: Iterable[Sequence[Any]]) -> History:
    """Return the history from rows of ENTRY_FIELDS, LIMITS_AS_ENTRY and SAVED_AS_ENTRY."""
    beside: list[Sequence[Any]] = []
    rows = iter(rows)
    first = list(islice(rows, 1))  # the statement has waited for locks when it returns a row

    def of_entries() -> Iterator[Sequence[Any]]:
        for row in chain(first, rows):
            if row[0] is None:
                beside.append(row)
            else:
                yield row

    with without_collections():
        entries = to_entries(of_entries())
    if not beside:
        return History(entries)
    found = [(row[_KIND_AT], json.loads(row[_DATA_AT])) for row in beside]
    limits = next((_to_limits(data) for kind, data in found if kind == OF_LIMITS), None)
    saved = [
        SavedDetails(**SAVED.loaded([data[name] for name in SAVED.names])) for kind, data in found if kind == OF_SAVED
    ]
    return History(entries, limits, saved)


def _to_limits(row: Mapping[str, Any]) -> RunLimits:
    values = {name: row[name] for name in LIMITS.names}
    for name in ("deadline", "in_doubt"):
        if values[name] is not None:
            values[name] = _moment(values[name])
    return RunLimits(**values)


def _moment(text: str) -> datetime:
    """Parse a time from PostgreSQL's JSON; LATEST or EARLIEST if Python cannot read it."""
    try:
        return bounded(datetime.fromisoformat(text))
    except ValueError:
        return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST


#: The data of most entries, which all of them share: no entry's data is ever changed in place.
_NO_DATA: Final[dict[str, Any]] = {}


def to_entries(rows: Iterable[Sequence[Any]]) -> list[EntryRecord]:
    """Return entries from rows of `ENTRY_FIELDS`. This conversion has to be fast, and what it returns small."""
    return [
        EntryRecord(
            unpack(location),
            intern(kind),
            ordinal,
            created_at,
            intern(status),
            attempts,
            None if output is None else unpack(output),
            None if arguments is None else unpack(arguments),
            _NO_DATA if data == "{}" else load_json(data),
            None if error is None else load_error(error),
            created_at if last_attempt_at == created_at else last_attempt_at,
            next_attempt_at,
            completed_at,
            finished_ordinal,
            rollback_completed_at,
            None if rollback_error is None else load_error(rollback_error),
        )
        for (
            location,
            kind,
            ordinal,
            created_at,
            status,
            attempts,
            output,
            arguments,
            data,
            error,
            last_attempt_at,
            next_attempt_at,
            completed_at,
            finished_ordinal,
            rollback_completed_at,
            rollback_error,
        ) in rows
    ]


def with_moments(row: Sequence[Any]) -> tuple[Any, ...]:
    """Convert a row of ENTRY_NUMBERS to one of ENTRY_FIELDS."""
    return tuple(
        _EPOCH + timedelta(microseconds=value) if is_moment and value is not None else value
        for value, is_moment in zip(row, _MOMENTS, strict=True)
    )
