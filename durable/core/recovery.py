"""Recovery: what has to be forgotten so that a failed run can go on.

Pure functions from a run and its entries to a `RunChange`. Only the failures that made the run fail are reset; a
failure that the workflow handled is history like any other. After a compensation the run goes back to the earliest
compensated step, since everything that followed was built on what is undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from durable.core.entries import Entry, Kind, RunChange, RunPatch, RunRecord, RunState, Status
from durable.core.location import escape
from durable.core.rollback import is_compensable

__all__ = ["recover"]

_FORKS = (Kind.JOIN, Kind.RACE)


def recover(run: RunRecord, entries: Iterable[Entry], now: datetime) -> RunChange:
    """The change that lets the failed `run` go on at `now`."""
    history = _History(entries)
    patch: RunPatch = {
        "state": RunState.PENDING,
        "wake_at": now,
        "signal": run.signal + 1,
        "finished_at": None,
        "request": "",
        "crashes": 0,
        "diverged_at": None,
        "summary": "recovered",
    }
    stuck = [entry for entry in history if is_compensable(entry)]
    if run.outcome and stuck:
        for entry in stuck:
            history.put(entry, data={**entry.data, "rollback": _first_try(entry.data["rollback"])}, rollback_error=None)
        return history.change({**patch, "state": RunState.ROLLING_BACK, "summary": "recovered: compensating"})
    generations = dict(run.generations)
    for entry in [each for each in history if each.rollback_completed_at is not None]:
        generations[entry.location] = generations.get(entry.location, 0) + 1
        history.rewind_to(entry.location)
    for location in run.origins:
        history.reset(location)
    return history.change({**patch, "error": None, "origins": [], "outcome": "", "generations": generations})


def _first_try(policy: dict[str, Any]) -> dict[str, Any]:
    return {**policy, "attempts": 0, "retry_at": None}


class _History:
    """A run's entries, and what is changed and deleted of them."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.location: entry for entry in entries}
        self._changed: dict[str, Entry] = {}
        self._deleted: dict[str, Entry] = {}

    def __iter__(self) -> Any:
        return iter(list(self._entries.values()))

    def put(self, entry: Entry, **columns: Any) -> None:
        changed = replace(entry, **columns)
        self._entries[entry.location] = self._changed[entry.location] = changed

    def change(self, patch: RunPatch) -> RunChange:
        waits = [entry.location for entry in self._deleted.values() if entry.kind == Kind.MESSAGE]
        return RunChange(run=patch, entries=list(self._changed.values()), deleted=list(self._deleted), unreceive=waits)

    # -- after a failure

    def reset(self, location: str) -> None:
        """Forget the failure of this entry, and what its scopes did after it."""
        entry = self._entries.get(location)
        if entry is None:
            return
        self._drop_later(location, entry.ordinal)
        if entry.kind in _FORKS:
            self._reset_fork(entry)
        elif entry.status in (Status.EXHAUSTED, Status.FAILED):
            data = {key: value for key, value in entry.data.items() if key != "failure"}
            self.put(
                entry,
                status=Status.PENDING,
                attempts=0,
                error=None,
                data=data,
                next_attempt_at=None,
                last_attempt_at=None,
            )
        self._reopen_around(location)

    def _reset_fork(self, entry: Entry) -> None:
        branches = dict(entry.data["branches"])
        for name, status in branches.items():
            if status["status"] == "failed":
                branches[name] = {"status": "pending"}
                for origin in status.get("origins", ()):
                    self.reset(origin)
        # resetting an origin within may have changed the entry
        self.put(self._entries[entry.location], data={**entry.data, "branches": branches}, **_UNFINISHED)

    # -- after a compensation

    def rewind_to(self, location: str) -> None:
        """Forget the entry, what its scopes did after it, and whole the loop or race that it stands in."""
        if location not in self._entries:  # gone with an earlier one
            return
        boundary = self._boundary(location)
        if boundary is None:  # a loser of a race that stays decided
            self._delete(location)
            return
        ordinal = self._entries[boundary].ordinal
        self._delete(boundary)
        self._drop_later(boundary, ordinal)
        self._reopen_around(boundary)

    def _boundary(self, location: str) -> str | None:
        """Where the run has to start again: at a loop or race, whole, or else at the entry itself."""
        segments = location.split("/")
        for depth in range(1, len(segments)):
            around = self._entries.get("/".join(segments[:depth]))
            if around is None or around.kind not in (Kind.LOOP, Kind.RACE):
                continue
            winner = around.data.get("winner")
            if around.kind == Kind.RACE and winner is not None and escape(winner) != segments[depth]:
                return None
            return around.location
        return location

    # -- both

    def _drop_later(self, location: str, ordinal: int) -> None:
        """Delete what came after in the scopes around `location`; other branches of a fork are not after it."""
        segments = location.split("/")
        for depth in range(len(segments)):
            scope = "/".join(segments[:depth])
            around = self._entries.get(scope)
            if around is not None and around.kind in _FORKS:
                continue
            prefix = f"{scope}/" if scope else ""
            path = "/".join(segments[: depth + 1])
            for other in list(self._entries.values()):
                is_beside = other.location.startswith(prefix) and not _is_within(other.location, path)
                if is_beside and other.ordinal > ordinal:
                    self._delete(other.location)

    def _delete(self, location: str) -> None:
        for other in list(self._entries):
            if _is_within(other, location):
                self._deleted[other] = self._entries.pop(other)
                self._changed.pop(other, None)

    def _reopen_around(self, location: str) -> None:
        """What stands around goes on: a join's branch is run again, a loop or race is not complete."""
        segments = location.split("/")
        for depth in range(1, len(segments)):
            around = self._entries.get("/".join(segments[:depth]))
            if around is None or around.kind not in (Kind.JOIN, Kind.RACE, Kind.LOOP):
                continue
            data = around.data
            if around.kind in _FORKS:
                branches = {
                    name: {"status": "pending"} if escape(name) == segments[depth] else status
                    for name, status in data["branches"].items()
                }
                data = {**data, "branches": branches}
                if around.kind == Kind.RACE:
                    data["winner"] = None
            self.put(around, data=data, **_UNFINISHED)


_UNFINISHED: dict[str, Any] = {"status": Status.RUNNING, "completed_at": None, "finished_ordinal": None, "output": None}


def _is_within(location: str, ancestor: str) -> bool:
    return location == ancestor or location.startswith(f"{ancestor}/")
