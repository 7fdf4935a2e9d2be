"""Convert the PostgreSQL store's writes to parameters of the database's functions.

Owns the texts of the parameters; `sql_functions` declares the functions. Must not execute anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

from durable.core.limits.ranks import Ranking
from durable.core.new_runs import NewRun
from durable.core.records import (
    AttemptRecord,
    Batch,
    ChildrenDropped,
    ChildStart,
    EntryRecord,
    MessagesReturned,
    OutgoingMessage,
    RunChange,
    RunRecord,
    Witness,
)
from durable.core.witnesses import columns_of
from durable.models.rows import pack
from durable.store.postgres import sql_functions
from durable.store.postgres.libpq import text
from durable.store.rules import row_rules
from durable.store.tables.rows import (
    ATTEMPT,
    CHILD,
    ENTRY,
    LIMITS,
    METADATA,
    RUN,
    failure_row,
    json_row,
    json_rows,
    outgoing_row,
)

_WITNESS_DUMPS: Final = ENTRY.dumps | METADATA.dumps


class CommitParameters(NamedTuple):
    """The parameters of `sql_functions.COMMIT` in their order; None for parts that the commit lacks."""

    run_id: str
    fence: str
    now: str | None
    deleted: str | None
    entries: str | None
    attempts: str | None
    consumed: str | None
    returned: str | None
    patch: str | None
    park_change_seq: str | None
    sends: str | None
    witness: str | None
    witness_ordinal: str | None


def batch_parameters(batch: Batch) -> CommitParameters:
    witness, witness_ordinal = witness_parameters(batch.witnesses)
    return CommitParameters(
        run_id=pack(batch.run_id),
        fence=str(batch.fence),
        now=text(batch.now),
        deleted=_texts(batch.deleted),
        entries=_entries(batch.entries),
        attempts=_attempts(batch.of(AttemptRecord)),
        consumed=_consumed(row_rules.consumed(batch)),
        returned=_texts([each.location for each in batch.of(MessagesReturned)]),
        patch=_patch(batch.run),
        park_change_seq=None if batch.park_change_seq is None else str(batch.park_change_seq),
        sends=sends_json(batch.of(OutgoingMessage)) if OutgoingMessage in batch.changes else None,
        witness=witness,
        witness_ordinal=witness_ordinal,
    )


def change_parameters(before: RunRecord, after: RunRecord, change: RunChange) -> CommitParameters:
    return CommitParameters(
        run_id=pack(before.id),
        fence=str(before.fence),
        now=None,
        deleted=_texts(change.deleted),
        entries=_entries(change.entries),
        attempts=None,
        consumed=None,
        returned=_texts(change.unreceive),
        patch=_patch(row_rules.changed_columns(before, after)),
        park_change_seq=None,
        sends=None,
        witness=None,
        witness_ordinal=None,
    )


def witness_parameters(witnesses: Sequence[Witness]) -> tuple[str | None, str | None]:
    """Return the parameters of the witnesses that a commit checks: a single entry, or JSON and None.

    The number of an entry that must have an output is below zero: all its bits are turned.
    """
    if not witnesses:
        return None, None
    location, ordinal, version, state, has_output = witnesses[0]
    if len(witnesses) == 1 and version is None and state is None:
        return pack(location), str(~ordinal if has_output else ordinal)
    return json_rows(map(_witness, witnesses)), None


def _witness(witness: Witness) -> dict[str, Any]:
    if witness.state is not None:
        return {"state": str(witness.state)}
    row = {
        "location": pack(witness.location),
        "has_version": witness.version is not None,
        "has_output": witness.has_output,
    }
    return row | {
        name: None if value is None else _WITNESS_DUMPS[name](value) for name, value in columns_of(witness).items()
    }


def children_parameters(batch: Batch) -> list[str | None]:
    """Return the parameters that COMMIT_WITH_CHILDREN has in addition to those of COMMIT."""
    return [
        None if batch.failure is None else failure_row(batch.failure),
        json_rows(_start(each) for each in batch.of(ChildStart)) if ChildStart in batch.changes else None,
        _texts(batch.awaited_children),
        _texts([each.child for each in batch.of(ChildrenDropped)]),
    ]


def _start(start: ChildStart) -> dict[str, Any]:
    run, child = start
    columns = {name: RUN.dumps[name](getattr(run, name)) for name in _CHOSEN if name != "replay_of_id"}
    if run.carried is not None:
        columns["carried"] = RUN.dumps["carried"](run.carried)
    if not isinstance(run, NewRun):
        return columns | CHILD.dumped(child)
    beside = {
        "limits": None if run.limits is None else LIMITS.dumped(run.limits),
        "key": None if run.key is None else pack(run.key),
        "ranking": None if run.ranking is None else _ranking(run.ranking),
    }
    return columns | CHILD.dumped(child) | beside


def _ranking(ranking: Ranking) -> dict[str, Any]:
    said = {"priority": pack(ranking.priority), "share": pack(ranking.share)}
    return {**said, "head_start": ranking.head_start, "weight": ranking.weight}


def _texts(texts: Sequence[str]) -> str | None:
    return json.dumps([pack(each) for each in texts]) if texts else None


def _entries(entries: Sequence[EntryRecord]) -> str | None:
    return entries_json(row_rules.entries_to_write(entries)) if entries else None


def _attempts(attempts: Sequence[AttemptRecord]) -> str | None:
    return json_rows(map(ATTEMPT.dumped, attempts)) if attempts else None


def _patch(patch: Mapping[str, Any] | None) -> str | None:
    if not patch:
        return None
    assert sql_functions.PATCHED.issuperset(patch), f"a commit cannot write all of {sorted(patch)}"
    return json_row({name: RUN.dumps[name](value) for name, value in patch.items()})


def _consumed(consumed: Mapping[str, row_rules.Consumed]) -> str | None:
    if not consumed:
        return None
    return json_rows(
        {
            "id": pack(message_id),
            "state": state,
            "received_by": None if location is None else pack(location),
            "response": None if response is None else pack(response),
        }
        for message_id, (state, location, response) in consumed.items()
    )


def entries_json(entries: Iterable[EntryRecord]) -> str:
    """Return entries with their metadata as JSON rows."""
    return json_rows(ENTRY.dumped(each) | METADATA.dumped(each) for each in entries)


def sends_json(messages: Iterable[OutgoingMessage]) -> str:
    """Return messages as JSON rows, numbered in their order."""
    return json_rows({"number": number, **outgoing_row(each)} for number, each in enumerate(messages))


def send_parameters(message: OutgoingMessage) -> list[str | None]:
    """Return the parameters of SEND for one message, which raises the run's `change_seq` by one."""
    return [*_as_texts(outgoing_row(message).values()), "1"]


#: The columns of a new run that START takes; all others must have their defaults, but for what START_CARRIED takes.
_CHOSEN: Final = ("id", "workflow", "queue", "input", "created_at", "wake_at", "parent_id", "replay_of_id")
_chosen: Final = attrgetter(*_CHOSEN)
_others: Final = attrgetter(*(each.name for each in fields(RunRecord) if each.name not in (*_CHOSEN, "carried")))
_USUAL: Final = _others(RunRecord(id="", workflow="", queue="", input="", created_at=datetime.fromtimestamp(0, UTC)))


def start_parameters(run: RunRecord) -> list[str | None] | None:
    """Return the parameters of START, or None if the run has other values than START can insert.

    What the run carries is not among them: then it is for START_CARRIED.
    """
    if _others(run) != _USUAL or (isinstance(run, NewRun) and run.limits is not None):
        return None
    return _as_texts(pack(value) if isinstance(value, str) else value for value in _chosen(run))


def _as_texts(values: Iterable[Any]) -> list[str | None]:
    return [None if value is None else text(value) for value in values]
