"""The PostgreSQL store's writing: functions of the database's, for what a run does most often.

Owns what their parameters are, in their order; what they do stands in migration 0007, and that the database has them so is
`durable.store.routines`' business. Executes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from durable.core.records import Entry, RunPatch, RunState
from durable.store.libpq import SQLFunction
from durable.store.rows import ENTRY, METADATA, same

__all__ = [
    "COMMIT",
    "COMPLETE",
    "FLUSH",
    "PATCHED",
    "RECORD",
    "SEND",
    "START",
    "is_completion",
    "recorded",
]


#: What gives a value as text, by the type of a column that takes it as it is.
_TEXTS: Final[dict[str, Callable[[Any], str]]] = {"timestamptz": datetime.isoformat, "bigint": str, "integer": str}


#: A run and all that can be chosen about a new one: "true" if the id was free.
START: Final = SQLFunction(
    "durable_start_1", ["text", "text", "text", "text", "timestamptz", "timestamptz", "text", "text"]
)

#: Run, fence and one entry as `recorded` gives it: the pending request, None if the fence has moved on.
RECORD: Final = SQLFunction(
    "durable_record_1",
    ["text", "bigint", *(ENTRY.types | METADATA.types).values()],
)

#: Run, fence, and entries as JSON. As RECORD.
FLUSH: Final = SQLFunction("durable_flush_1", ["text", "bigint", "json"])

#: A message and what the signal is raised by: its place, the queue to ring for; or the message that was sent before.
SEND: Final = SQLFunction(
    "durable_send_1",
    ["text", "text", "text", "text", "timestamptz", "text", "integer"],
    ["place", "ring", "before"],
)

#: Run, fence, now, then as JSON what is deleted, entries, attempts, messages consumed, waits whose messages return, and
#: the patch; the known signal; sends. The pending request and the queues to ring for, as JSON.
COMMIT: Final = SQLFunction(
    "durable_commit_1",
    ["text", "bigint", "timestamptz", *["json"] * 5, "jsonb", "bigint", "json"],
    ["pending", "rings"],
)

#: Run, fence, moment and output of a run that ends as `is_completion` tells. As RECORD.
COMPLETE: Final = SQLFunction("durable_complete_1", ["text", "bigint", "timestamptz", "text"])

#: The columns of a run that a patch may have; COMMIT's function names each.
PATCHED: Final = frozenset(RunPatch.__annotations__) | {"fence"}

#: What COMPLETE's function writes, beside the output and the moment.
_COMPLETION: Final[RunPatch] = {
    "state": RunState.COMPLETED,
    "error": None,
    "origins": [],
    "wake_at": None,
    "waiting_for": "",
    "summary": "",
    "lease_expires_at": None,
    "worker": "",
    "request": "",
    "diverged_at": None,
}


def is_completion(patch: RunPatch) -> bool:
    """Whether COMPLETE's function writes all that `patch` says."""
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


def recorded(entry: Entry) -> list[str | None]:
    """An entry and its metadata as parameters of RECORD."""
    return [None if value is None else dump(value) for dump, value in zip(_DUMPS, _values_of(entry), strict=True)]
