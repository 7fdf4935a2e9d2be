"""The holds of `durable.store.memory`, and the starts that wait for the end of one.

The store holds its lock around each call, and passes its runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.records import Hold, HoldKind, RunChange, RunRecord, RunState
from durable.core.summary import Summary, SummaryKind
from durable.core.transitions import paused_at_once, resumed
from durable.store import row_rules


@dataclass(slots=True)
class MemoryHolds:
    """Holds of workflows and queues in memory, and when each held start was to begin."""

    _holds: dict[tuple[HoldKind, str], Hold] = field(default_factory=dict)
    _starts: dict[str, datetime] = field(default_factory=dict)  # by run

    def copied(self) -> MemoryHolds:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryHolds(dict(self._holds), dict(self._starts))

    def find(self, kind: HoldKind, name: str) -> Hold | None:
        """Return the hold of this workflow or queue."""
        return self._holds.get((kind, name))

    def put(self, hold: Hold) -> bool:
        """Note the hold; return False if there is one already."""
        return self._holds.setdefault((hold.kind, hold.name), hold) is hold

    def lift(self, kind: HoldKind, name: str) -> bool:
        """Forget the hold; return False if there is none."""
        return self._holds.pop((kind, name), None) is not None

    def is_paused(self, queue: str) -> bool:
        """Return True if nothing of this queue is claimed."""
        return (HoldKind.QUEUE, queue) in self._holds

    def on_start(self, run: RunRecord) -> RunRecord:
        """Return a new run as it is stored: paused, and noted, if its workflow is held."""
        hold = self._holds.get((HoldKind.WORKFLOW, run.workflow))
        if hold is None or run.state != RunState.PENDING:
            return run
        self._starts[run.id] = run.wake_at or run.created_at
        return replace(run, **paused_at_once(run, summary=row_rules.held_summary(hold)))

    def move(self, run_id: str, wake_at: datetime) -> None:
        """Note another time for a held start."""
        if run_id in self._starts:
            self._starts[run_id] = wake_at

    def release(self, runs: Mapping[str, RunRecord], now: datetime, most: int) -> list[RunRecord]:
        """Forget at most so many starts whose workflow is held no more; return the runs that begin, as they are now."""
        released: list[RunRecord] = []
        for run_id, due_at in list(self._starts.items()):
            run = runs[run_id]
            if (HoldKind.WORKFLOW, run.workflow) in self._holds:
                continue
            if len(released) == most:
                break
            del self._starts[run_id]
            if row_rules.is_held_start(run):
                patch = resumed(run, now=max(now, due_at), summary=Summary(SummaryKind.RESUMED))
                released.append(row_rules.after_change(run, RunChange(run=patch)))
        return released
