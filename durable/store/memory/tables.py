"""The small tables of the store in memory: holds, ranks and activities.

The counterpart of `durable.store.tables` for databases. The store holds its lock around each call, and passes in its
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Self

from durable.core.limits.ranks import UNTAGGED, Candidate, Ranking, ShareTag, inherited, ranked, served, span, tagged
from durable.core.new_runs import NewRun
from durable.core.records import (
    Activity,
    AskedOfActivity,
    Hold,
    HoldKind,
    RunChange,
    RunRecord,
    RunState,
)
from durable.core.summary import Summary, SummaryKind
from durable.core.transitions import paused_at_once, resumed
from durable.store.base import DuePoint
from durable.store.rules import row_rules


class MemoryTable:
    """A table whose records are replaced, never changed, so that a copy of its mappings is a snapshot."""

    __slots__ = ()

    def copied(self) -> Self:
        """Return a copy for a snapshot. Fields without a default are shared with other tables."""
        own = [each.name for each in fields(self) if each.default_factory is not MISSING]  # type: ignore[arg-type]  # a dataclass
        return replace(self, **{name: copied(getattr(self, name)) for name in own})  # type: ignore[type-var]  # the same


def copied(table: Any) -> Any:
    """Return a copy of a table that later changes do not affect."""
    if isinstance(table, MemoryTable):
        return table.copied()
    if isinstance(table, dict) and isinstance(next(iter(table.values()), None), dict | list | set):
        return {key: each.copy() for key, each in table.items()}
    return table.copy()


@dataclass(slots=True)
class MemoryHolds(MemoryTable):
    """Holds of workflows and queues in memory, and the time at which each held start was to begin."""

    _holds: dict[tuple[HoldKind, str], Hold] = field(default_factory=dict)
    _starts: dict[str, datetime] = field(default_factory=dict)  # by run

    def find(self, kind: HoldKind, name: str) -> Hold | None:
        return self._holds.get((kind, name))

    def put(self, hold: Hold) -> bool:
        """Store the hold; return False if there is one already."""
        return self._holds.setdefault((hold.kind, hold.name), hold) is hold

    def lift(self, kind: HoldKind, name: str) -> bool:
        return self._holds.pop((kind, name), None) is not None

    def is_paused(self, queue: str) -> bool:
        """Return True if the queue is paused, so that none of its runs may be claimed."""
        return (HoldKind.QUEUE, queue) in self._holds

    def on_start(self, run: RunRecord) -> RunRecord:
        """Return a new run in its stored form: paused, and recorded as held, if its workflow is held."""
        hold = self._holds.get((HoldKind.WORKFLOW, run.workflow))
        if hold is None or run.state != RunState.PENDING:
            return run
        self._starts[run.id] = run.wake_at or run.created_at
        return replace(run, **paused_at_once(run, summary=row_rules.held_summary(hold)))

    def move(self, run_id: str, wake_at: datetime) -> None:
        """Record another time for a held start."""
        if run_id in self._starts:
            self._starts[run_id] = wake_at

    def release(
        self, runs: Mapping[str, RunRecord], most: int, released_at: Callable[[RunRecord, datetime], datetime]
    ) -> list[RunRecord]:
        """Release at most `most` starts whose workflow is no longer held; return the runs, changed, that may begin."""
        released: list[RunRecord] = []
        for run_id, due_at in list(self._starts.items()):
            run = runs[run_id]
            if (HoldKind.WORKFLOW, run.workflow) in self._holds:
                continue
            if len(released) == most:
                break
            del self._starts[run_id]
            if row_rules.is_held_start(run):
                patch = resumed(run, now=released_at(run, due_at), summary=Summary(SummaryKind.RESUMED))
                released.append(row_rules.after_change(run, RunChange(run=patch)))
        return released


@dataclass(slots=True)
class MemoryRanks(MemoryTable):
    """The rankings of runs, the start tags, and the position of each queue and share."""

    rankings: dict[str, Ranking] = field(default_factory=dict)
    _tags: dict[str, datetime] = field(default_factory=dict)
    _shares: dict[tuple[str, str], ShareTag] = field(default_factory=dict)

    def put(self, run: RunRecord, ranking: Ranking) -> None:
        """Record the ranking of a new run. A run started by another run gets its start tag from a claim."""
        self.rankings[run.id] = ranking
        if ranking.share:
            self._tags[run.id] = UNTAGGED
            if run.parent_id is None:
                self._tag([run], run.created_at)

    def of_child(self, run: NewRun) -> Ranking | None:
        return inherited(run.ranking, None if run.parent_id is None else self.rankings.get(run.parent_id))

    def _tag(self, runs: Iterable[RunRecord], now: datetime) -> None:
        for run in runs:
            if not row_rules.is_due(run, now):
                continue
            ranking = self.rankings[run.id]
            queue = self._shares.get((run.queue, ""), ShareTag())
            if queue.tag is None:
                queue = self._shares[run.queue, ""] = ShareTag(now, queue.round)
            share = self._shares.get((run.queue, ranking.share), ShareTag())
            first = tagged(queue, share, now)
            after = ShareTag(first + span(1, ranking.weight), max(share.round, queue.round))
            self._tags[run.id], self._shares[run.queue, ranking.share] = first, after

    def requeue(self, run_id: str) -> None:
        """Give a run that was moved to another queue a rank there: a claim gives it another start tag."""
        if run_id in self._tags:
            self._tags[run_id] = UNTAGGED

    def candidates(self, due: Sequence[RunRecord], now: datetime) -> list[Candidate]:
        """Return due runs in the order of rank."""
        waiting = [run for run in due if self._tags.get(run.id) == UNTAGGED]
        self._tag(sorted(waiting, key=lambda run: (run.wake_at or now, run.id)), now)
        return ranked(
            [
                Candidate(
                    run.id,
                    run.wake_at or now,
                    self.rankings[run.id].head_start if run.id in self.rankings else 0,
                    self._tags.get(run.id),
                )
                for run in due
            ]
        )

    def behind(self, found: Sequence[Candidate], since: DuePoint, since_ranked: datetime | None) -> list[Candidate]:
        """Return the candidates from these points on, at which a claim begins."""
        return [
            each
            for each in found
            if each.tag is not None
            or (
                since_ranked is None or each.wake_at >= since_ranked
                if each.run_id in self.rankings
                else (each.wake_at, each.run_id) >= since
            )
        ]

    def note_claimed(self, run_id: str) -> None:
        """Forget the start tag of a claimed run: it has had its turn."""
        self._tags.pop(run_id, None)

    def note_served(self, queue: str, taken: Sequence[Candidate], *, is_one_left: bool) -> None:
        """Record how far a queue's shares are served (`durable.core.limits.ranks.served`)."""
        after = served(self._shares.get((queue, "")), taken, is_one_left=is_one_left)
        if after is not None:
            self._shares[queue, ""] = after


#: Runs and fences of live leases.
Held = Collection[tuple[str, int]]


@dataclass(slots=True)
class MemoryActivities:
    """The activities, one for each running attempt. Not part of a snapshot: they are written outside of
    transactions.
    """

    _running: dict[tuple[str, str], Activity] = field(default_factory=dict)  # by run and location
    _asked: dict[Activity, AskedOfActivity] = field(default_factory=dict)

    def running(self) -> list[Activity]:
        """Return the recorded attempts, the longest running first."""
        return sorted(self._running.values(), key=lambda each: each.began_at)

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str], held: Held
    ) -> list[AskedOfActivity]:
        """Record, under these leases, what began and what ended; return what is asked of the watched runs."""
        for each in ended:
            noted = self._running.get((each.run_id, each.location))
            if noted is not None and noted.fence == each.fence:
                del self._running[each.run_id, each.location]
        for each in begun:
            noted = self._running.get((each.run_id, each.location))
            if (each.run_id, each.fence) in held and (noted is None or noted.fence <= each.fence):
                self._running[each.run_id, each.location] = each
        noted_now = set(self._running.values())
        self._asked = {each: asked for each, asked in self._asked.items() if each in noted_now}
        return [each for each in self._asked.values() if each.run_id in watched and (each.stack or each.abandon)]

    def ask(self, run: RunRecord, location: str, *, stack: bool, abandon: bool) -> list[str]:
        """Ask for the stack or the end of the run's attempt at this location ("" for all); return the locations."""
        found = [
            each
            for each in self.running()
            if (each.run_id, each.fence) == (run.id, run.fence) and location in ("", each.location)
        ]
        for each in found:
            before = self._asked.get(each)
            self._asked[each] = AskedOfActivity(
                run_id=each.run_id,
                location=each.location,
                attempt=each.attempt,
                fence=each.fence,
                stack=stack or (before is not None and before.stack),
                abandon=abandon or (before is not None and before.abandon),
            )
        return [each.location for each in found]

    def answer_stack(self, asked: AskedOfActivity) -> None:
        """Record that the stack was given."""
        for each, wish in self._asked.items():
            if (wish.run_id, wish.location, wish.fence) == (asked.run_id, asked.location, asked.fence):
                self._asked[each] = replace(wish, stack=False)

    def forget(self, held: Held) -> None:
        """Delete the attempts under leases that are not live."""
        self._running = {key: each for key, each in self._running.items() if (each.run_id, each.fence) in held}
