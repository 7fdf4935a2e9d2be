"""Traces: what a scenario's passes showed and what its history holds at the end, in one shape for both engines.

`read_trace` reads the reference's from JSON; `pass_trace` and `entry_traces` make ours of what the public API gives.
Comparing is `compare`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import durable.errors
from tests.conformance.grammar import Json

CallTrace: TypeAlias = tuple[str, int]  # the step's path, the call's number
RollbackTrace: TypeAlias = tuple[str, Json]  # the step's path, its output

_ENGINE_ERRORS = frozenset(durable.errors.__all__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTrace:
    """One pass.

    `waiting_for`: None if it waits for no message, () for a message of any queue, sorted names otherwise.
    """

    state: str
    output: Json = None
    error: str | None = None
    message: str | None = None
    sleep_until_ms: int | None = None
    waiting_for: tuple[str, ...] | None = None
    calls: tuple[CallTrace, ...] = ()
    rollbacks: tuple[RollbackTrace, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryTrace:
    """One entry of the history: `fields` depend on the kind, as they do in `scenarios.jsonl`."""

    kind: str
    fields: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The passes in order, and the entries by location."""

    passes: tuple[PassTrace, ...]
    entries: Mapping[str, EntryTrace]


def error_name(type_name: str) -> str:
    """An error's class as the traces have it: `Error` stands for every class that is not the engine's."""
    return type_name if type_name in _ENGINE_ERRORS else "Error"


def read_trace(source: Json) -> Trace:
    """The trace of a line of `scenarios.jsonl`. Raises TypeError or KeyError where a field is unknown or missing."""
    return Trace(
        passes=tuple(_read_pass(**each) for each in source["passes"]),
        entries={each["key"]: _read_entry(each) for each in source["entries"]},
    )


def _read_pass(
    *,
    calls: Json,
    rollbacks: Json,
    waiting_for: list[str] | None = None,
    sleep_until_ms: int | None = None,
    **rest: Json,
) -> PassTrace:
    return PassTrace(
        calls=tuple((path, number) for path, number in calls),
        rollbacks=tuple((path, output) for path, output in rollbacks),
        waiting_for=None if waiting_for is None else tuple(sorted(waiting_for)),
        sleep_until_ms=sleep_until_ms,
        **rest,
    )


def _read_entry(source: Json) -> EntryTrace:
    return EntryTrace(source["kind"], {name: value for name, value in source.items() if name not in ("key", "kind")})


def pass_trace(
    seen: Any, *, start: datetime, calls: Iterable[CallTrace], rollbacks: Iterable[RollbackTrace]
) -> PassTrace:
    """A `Pass` of the harness, with what was called during it, as a trace."""
    return PassTrace(
        state=str(seen.state),
        output=seen.output,
        error=None if seen.error is None else error_name(seen.error.type),
        message=None if seen.error is None else seen.error.message,
        sleep_until_ms=None if seen.wake_at is None else _milliseconds(seen.wake_at - start),
        waiting_for=None if seen.waiting_for is None else tuple(sorted(seen.waiting_for)),
        calls=tuple(calls),
        rollbacks=tuple(rollbacks),
    )


def entry_traces(history: Iterable[Any]) -> dict[str, EntryTrace]:
    """The entries of `handle.history()` by location.

    A wait is an entry from the moment it starts here, and from the moment it ends in the traces: one that still
    waits is left out.
    """
    return {
        entry.location: EntryTrace(str(entry.kind), _fields(entry))
        for entry in history
        if not (entry.kind == "message" and entry.status == "pending")
    }


def _fields(entry: Any) -> dict[str, Json]:
    data = entry.data
    match str(entry.kind):
        case "step":
            return {"status": str(entry.status), "attempts": entry.attempts}
        case "loop":
            return {"status": str(entry.status), "iteration": data["iteration"]}
        case "sleep":
            return {"state": data["state"]}
        case "message":
            return {"received": [message["body"] for message in data["received"]]}
        case "removed":
            return {"original": data["original"]}
        case "version_check":
            return {"resolved": data["resolved"]}
        case "join":
            return {"branches": _statuses(data)}
        case "race":
            return {"winner": data["winner"], "branches": _statuses(data)}
        case _:
            return {}


def _statuses(data: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(branch["status"]) for name, branch in data["branches"].items()}


def _milliseconds(duration: timedelta) -> int:
    milliseconds, rest = divmod(duration, timedelta(milliseconds=1))
    assert not rest, f"{duration} is no whole number of milliseconds"
    return milliseconds
