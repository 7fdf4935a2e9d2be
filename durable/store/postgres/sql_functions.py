"""The PostgreSQL store's writes: database functions for the most frequent operations of a run.

Owns their parameters in order. The files of `durable.store.routines` have their bodies: `functions.sql` those of a
plain run, the others those of keys, slots, rates and children. Migrations create them. Must not execute anything by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from durable.core import transitions
from durable.core.records import EntryRecord, RequeuedPatch, RunPatch, RunRecord, RunState
from durable.store.postgres.libpq import SQLFunction
from durable.store.tables.rows import ENTRY, METADATA, same

#: By type of column, the function that converts a value to text.
_TEXTS: Final[dict[str, Callable[[Any], str]]] = {"timestamptz": datetime.isoformat, "bigint": str, "integer": str}


#: Parameters: a run, all columns that a new one can choose. Returns None if the id was taken, the summary of a run that
#: is held, otherwise "".
_RUN: Final = ["text", "text", "text", "text", "timestamptz", "timestamptz", "text", "text"]
START: Final = SQLFunction("durable_start_2", _RUN)

#: Parameters: those of START, and a key. Returns what START returns for a new run; or the run that has the id or the
#: key.
START_KEYED: Final = SQLFunction("durable_start_keyed_1", [*_RUN, "text"], ["summary", "holder"])

#: Parameters: those of START, what the run carries, and a key or None. Returns what START_KEYED returns.
START_CARRIED: Final = SQLFunction("durable_start_carried_1", [*_RUN, "text", "text"], ["summary", "holder"])

#: Parameters of each commit: the witnesses that it checks, as `parameters` makes them. If one is missing, the function
#: raises `LOST` and nothing is written. They are last, or before those that only some commits have.
_WITNESSES: Final = ["text", "bigint"]
LOST: Final = "durable_commits_are_there"

#: Parameters: run, fence, one entry as `recorded` returns it, witnesses. Returns the pending request, None for an older
#: fence.
RECORD: Final = SQLFunction(
    "durable_record_1",
    ["text", "bigint", *(ENTRY.types | METADATA.types).values(), *_WITNESSES],
)

#: Parameters: run, fence, entries as JSON, witnesses. Returns the same as RECORD.
FLUSH: Final = SQLFunction("durable_flush_1", ["text", "bigint", "json", *_WITNESSES])

#: Parameters: a message and how much to raise `change_seq`. Returns its place and the queue to notify, or the id of the
#: message that was sent before.
SEND: Final = SQLFunction(
    "durable_send_1",
    ["text", "text", "text", "text", "timestamptz", "text", "integer"],
    ["place", "queue_to_notify", "before"],
)

#: Parameters: run, fence, now; then as JSON the deleted locations, entries, attempts, consumed messages, waits whose
#: messages return, and the patch; the known `change_seq`; sends; witnesses. Returns the pending request and the queues
#: to notify, as JSON.
_COMMIT: Final = ["text", "bigint", "timestamptz", *["json"] * 5, "jsonb", "bigint", "json", *_WITNESSES]
_ANSWER: Final = ["pending", "queues_to_notify"]
COMMIT: Final = SQLFunction("durable_commit_1", _COMMIT, _ANSWER)

#: Parameters: those of COMMIT, and the run's failure as JSON. Returns the same as COMMIT.
FAIL: Final = SQLFunction("durable_fail_2", [*_COMMIT, "json"], _ANSWER)

#: Parameters: those of COMMIT; as JSON the run's failure, the children to start, those for which the run parks
#: and those that it drops. Returns the same as COMMIT.
COMMIT_WITH_CHILDREN: Final = SQLFunction("durable_commit_2", [*_COMMIT, *["json"] * 4], _ANSWER)

#: Parameters: run, fence, time and output of a run that ends as `is_completion` says, witnesses. Returns the same as
#: RECORD.
_COMPLETE: Final = ["text", "bigint", "timestamptz", "text", *_WITNESSES]
COMPLETE: Final = SQLFunction("durable_complete_1", _COMPLETE)

#: Parameters: those of COMPLETE. Returns the same as COMMIT.
COMPLETE_CHILD: Final = SQLFunction("durable_complete_2", _COMPLETE, _ANSWER)

#: Parameters: a run's id, now. Returns the next parent with children left to cancel, and how many were now cancelled.
CASCADE: Final = SQLFunction("durable_cascade_1", ["text", "timestamptz"], ["of_parent", "number"])

#: The columns of a run that a patch may have; the function of COMMIT names each.
PATCHED: Final = frozenset(RequeuedPatch.__annotations__) - {"message_count"}

#: Parameters: run, fence, location, slots (JSON), now, whether the transaction does nothing else. Returns whether the
#: fence is the run's, a limit that is not defined, the line in which the run waits (JSON) or None, and the queues to
#: notify (JSON).
ACQUIRE: Final = SQLFunction(
    "durable_acquire_1",
    ["text", "bigint", "text", "json", "timestamptz", "boolean"],
    ["is_ours", "undefined", "line", "queues_to_notify"],
)

#: Parameters: run, now, released locations (JSON), whether the run is left, awaited locations (JSON). Returns the
#: queues to notify, as JSON.
CHANGE_SLOTS: Final = SQLFunction("durable_change_slots_1", ["text", "timestamptz", "json", "boolean", "json"])

#: Each function of a commit followed by CHANGE_SLOTS, as one statement. The last column is CHANGE_SLOTS' result. If the
#: run ends, its trigger leaves its slots to CHANGE_SLOTS, because of the setting.
WITH_SLOTS: Final = {
    each: each.followed_by(CHANGE_SLOTS, "durable.gives_up")
    for each in (RECORD, FLUSH, COMPLETE, COMPLETE_CHILD, COMMIT, FAIL, COMMIT_WITH_CHILDREN)
}

#: Parameters: now, the most to do. Returns the queues to notify (JSON), and how much was done.
SWEEP_SLOTS: Final = SQLFunction("durable_sweep_slots_1", ["timestamptz", "integer"], ["queues_to_notify", "number"])

#: Parameters: run, fence, location; limit, key, units; text, spacing and burst of a rate that has no row yet, or None;
#: whether the attempt may begin, its patience in nanoseconds, now. Returns whether the fence is the run's, why not,
#: whether the attempt begins, its moment in nanoseconds since 1970, and how many units go before it.
RESERVE: Final = SQLFunction(
    "durable_reserve_1",
    ["text", "bigint", *["text"] * 3, "bigint", "text", "bigint", "integer", "boolean", "bigint", "timestamptz"],
    ["is_ours", "refusal", "is_begun", "moment", "units_before"],
)

_MOMENT: Final = datetime.fromtimestamp(0, UTC)
#: The patch of a completing run that has exactly the values that the function of COMPLETE writes.
_COMPLETING: Final = RunRecord(id="", workflow="", queue="", input="", created_at=_MOMENT, state=RunState.RUNNING)
_COMPLETION: Final = transitions.completed(_COMPLETING, now=_MOMENT, output="")


def is_completion(patch: RunPatch) -> bool:
    """Return True if the function of COMPLETE writes exactly `patch`."""
    output, finished_at = patch.get("output"), patch.get("finished_at")
    if output is None or finished_at is None:
        return False
    return patch == {**_COMPLETION, "output": output, "finished_at": finished_at}


_DUMPS: Final = [
    _TEXTS[columns.types[name]] if dump is same else dump
    for columns in (ENTRY, METADATA)
    for name, dump in columns.dumps.items()
]
_values_of: Final = attrgetter(*ENTRY.names, *METADATA.names)


def recorded(entry: EntryRecord) -> list[str | None]:
    """Return an entry and its metadata as parameters of RECORD."""
    return [None if value is None else dump(value) for dump, value in zip(_DUMPS, _values_of(entry), strict=True)]
