"""The small tables of the store in memory: holds, keys, ranks, tags and activities.

The counterpart of `durable.store.tables` for databases. The store holds its lock around each call, and passes in its
runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.errors import KeyConflictError
from durable.core.limits.ranks import UNTAGGED, Candidate, Ranking, ShareTag, inherited, ranked, span, tagged
from durable.core.new_runs import NewRun
from durable.core.records import (
    ENDED,
    Activity,
    AskedOfActivity,
    AwaitedEvent,
    EventRecord,
    Hold,
    HoldKind,
    KeyedSend,
    KeyRecord,
    RunChange,
    RunRecord,
    RunState,
)
from durable.core.summary import Summary, SummaryKind
from durable.core.transitions import paused_at_once, resumed
from durable.store.base import DuePoint
from durable.store.rules import row_rules


@dataclass(slots=True)
class MemoryHolds:
    """Holds of workflows and queues in memory, and the time at which each held start was to begin."""

    _holds: dict[tuple[HoldKind, str], Hold] = field(default_factory=dict)
    _starts: dict[str, datetime] = field(default_factory=dict)  # by run

    def copied(self) -> MemoryHolds:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryHolds(dict(self._holds), dict(self._starts))

    def find(self, kind: HoldKind, name: str) -> Hold | None:
        """Return the hold of this workflow or queue."""
        return self._holds.get((kind, name))

    def put(self, hold: Hold) -> bool:
        """Store the hold; return False if there is one already."""
        return self._holds.setdefault((hold.kind, hold.name), hold) is hold

    def lift(self, kind: HoldKind, name: str) -> bool:
        """Delete the hold; return False if there is none."""
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

    def release(self, runs: Mapping[str, RunRecord], now: datetime, most: int) -> list[RunRecord]:
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
                patch = resumed(run, now=max(now, due_at), summary=Summary(SummaryKind.RESUMED))
                released.append(row_rules.after_change(run, RunChange(run=patch)))
        return released


Runs = Mapping[str, RunRecord]


@dataclass(slots=True)
class MemoryKeys:
    """The keys of all runs. The end of a run does not write its key: the run's state is looked up here."""

    _keys: dict[str, KeyRecord] = field(default_factory=dict)  # by run
    _holders: dict[tuple[str, str], str] = field(default_factory=dict)  # the run that had a key last
    _sends: dict[str, KeyedSend] = field(default_factory=dict)  # by message

    def copied(self) -> MemoryKeys:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryKeys(dict(self._keys), dict(self._holders), dict(self._sends))

    def put(self, key: KeyRecord) -> None:
        """Give a run its key."""
        self._keys[key.run_id] = key
        self._holders[key.workflow, key.key] = key.run_id

    def holder(self, runs: Runs, workflow: str, key: str) -> RunRecord | None:
        """Return the open run that has the key, or None."""
        run = runs.get(self._holders.get((workflow, key), ""))
        return run if run is not None and self._is_held_by(run) else None

    def close(self, run_id: str) -> None:
        """Take the key from this run, so that another one can have it."""
        if run_id in self._keys:
            self._keys[run_id] = replace(self._keys[run_id], is_open=False)

    def forget(self, run_id: str) -> None:
        """Take the key from this run for good."""
        self._keys.pop(run_id, None)

    def open_again(self, runs: Runs, run_id: str) -> None:
        """Give a continuing run its key back. Raises KeyConflictError if another open run has it."""
        key = self._keys.get(run_id)
        if key is None:
            return
        holder = self.holder(runs, key.workflow, key.key)
        if holder is not None and holder.id != run_id:
            raise KeyConflictError(holder.id, key.key)
        self._keys[run_id] = replace(key, is_open=True)
        self._holders[key.workflow, key.key] = run_id

    def note_move(self, run_id: str, at: datetime) -> None:
        """Count a start that was merged into this run. Raises KeyError for a run without a key."""
        key = self._keys[run_id]
        self._keys[run_id] = replace(key, moves=key.moves + 1, moved_at=at)

    def of_runs(self, runs: Runs, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        """Return the keys of the runs that were started with one, by run."""
        found = [(each, self._keys[each]) for each in run_ids if each in self._keys]
        return {each: replace(key, is_open=self._is_held_by(runs[each])) for each, key in found}

    def note_sends(self, sends: Sequence[KeyedSend]) -> None:
        """Record what `start_or_send` has sent. A message that is already recorded gets this row."""
        self._sends |= {each.message_id: each for each in sends}

    def sends_among(self, run_id: str, message_ids: Iterable[str]) -> list[KeyedSend]:
        """Return those of these messages that `start_or_send` has sent to the run."""
        found = [self._sends[each] for each in message_ids if each in self._sends]
        return [each for each in found if each.run_id == run_id]

    def keeps(self, run: RunRecord, message_ids: Iterable[str]) -> bool:
        """Whether an open run may not complete because it has not received these messages."""
        return self._is_held_by(run) and bool(self.sends_among(run.id, message_ids))

    def note_follower(self, run_id: str, before: str) -> None:
        """Record that this run has taken over the messages that `before` did not receive."""
        self._keys[run_id] = replace(self._keys[run_id], follows=before)

    def followed_by(self, run_id: str) -> str | None:
        """Return the newest run that has taken over this run's unreceived messages."""
        return next((each for each, key in reversed(self._keys.items()) if key.follows == run_id), None)

    def _is_held_by(self, run: RunRecord) -> bool:
        return run.state not in ENDED and run.id in self._keys and self._keys[run.id].is_open


@dataclass(slots=True)
class MemoryRanks:
    """The rankings of runs, the start tags, and the position of each queue and share."""

    rankings: dict[str, Ranking] = field(default_factory=dict)
    _tags: dict[str, datetime] = field(default_factory=dict)
    _shares: dict[tuple[str, str], ShareTag] = field(default_factory=dict)

    def copied(self) -> MemoryRanks:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryRanks(dict(self.rankings), dict(self._tags), dict(self._shares))

    def put(self, run: RunRecord, ranking: Ranking) -> None:
        """Record the ranking of a new run. A run started by another run gets its start tag from a claim."""
        self.rankings[run.id] = ranking
        if ranking.share:
            self._tags[run.id] = UNTAGGED
            if run.parent_id is None:
                self._tag([run], run.created_at)

    def of_child(self, run: NewRun) -> Ranking | None:
        """Return the ranking of a child that is to be created."""
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
        """Record the start tag up to which a queue's shares are served; begin a new round if none of their runs
        wait.
        """
        tags = [each.tag for each in taken if each.tag is not None]
        found = self._shares.get((queue, ""))
        if not tags and (is_one_left or found is None or found.tag is None):
            return
        before = found or ShareTag()
        if not is_one_left:
            self._shares[queue, ""] = ShareTag(None, before.round + 1)
        else:
            known = [] if before.tag is None else [before.tag]
            self._shares[queue, ""] = ShareTag(max(tags + known), before.round)


@dataclass(slots=True)
class MemoryTags:
    """The current tags of all runs, by run and name, and the tags that their starts gave."""

    _tags: dict[str, dict[str, str]] = field(default_factory=dict)
    _at_start: dict[str, dict[str, str]] = field(default_factory=dict)

    def copied(self) -> MemoryTags:
        """Return a copy for a snapshot. The tags of a run are replaced, never changed."""
        return MemoryTags(dict(self._tags), dict(self._at_start))

    def put(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Give a new run its tags."""
        self._tags[run_id] = self._at_start[run_id] = dict(tags)

    def of_runs(self, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
        """Return the tags of the runs that have some, by run and name; with `at_start`, those that their starts
        gave.
        """
        tables = self._at_start if at_start else self._tags
        return {each: dict(sorted(tables[each].items())) for each in run_ids if tables.get(each)}

    def change(self, run_id: str, tags: Mapping[str, str | None]) -> None:
        """Set tags of a run; None takes one away."""
        changed = {**self._tags.get(run_id, {}), **tags}
        self._tags[run_id] = {name: value for name, value in changed.items() if value is not None}


@dataclass(slots=True)
class MemoryEvents:
    """Published events by number, and the waits for events by id."""

    _events: dict[int, EventRecord] = field(default_factory=dict)
    waits: dict[str, AwaitedEvent] = field(default_factory=dict)
    _newest: int = 0

    def copied(self) -> MemoryEvents:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryEvents(dict(self._events), dict(self.waits), self._newest)

    def all(self) -> list[EventRecord]:
        """Return all events, the oldest first."""
        return list(self._events.values())

    def of(self, name: str, key: str) -> list[EventRecord]:
        """Return the events of a name and a key, the oldest first."""
        return [each for each in self._events.values() if (each.name, each.key) == (name, key)]

    def put(self, event: EventRecord) -> tuple[EventRecord, bool]:
        """Store an event, unless one of its name has its id."""
        for each in self._events.values():
            if (each.name, each.id) == (event.name, event.id):
                return each, False
        self._newest += 1
        stored = self._events[self._newest] = replace(event, number=self._newest)
        return stored, True

    def drop(self, run_id: str, ids: Sequence[str]) -> None:
        """Delete these waits of a run; without ids, all."""
        for each in [each for each in self.waits.values() if each.run_id == run_id and (not ids or each.id in ids)]:
            del self.waits[each.id]

    def drop_at(self, run_id: str, location: str) -> None:
        """Delete the waits of a run at a location."""
        for each in [each for each in self.waits.values() if (each.run_id, each.location) == (run_id, location)]:
            del self.waits[each.id]

    def waits_for(self, event: EventRecord) -> list[AwaitedEvent]:
        """Return the waits that have not got this event and get it, if no earlier one."""
        of_key = (each for each in self.waits.values() if (each.name, each.key) == (event.name, event.key))
        return sorted((each for each in of_key if each.after < event.number), key=lambda each: (each.after, each.id))

    def take(self, event: EventRecord, most: int, wait_id: str | None) -> list[AwaitedEvent]:
        """Delete up to `most` waits that get this event, or this wait alone, and return them."""
        found = self.waits_for(event) if wait_id is None else filter(None, [self.waits.get(wait_id)])
        return [self.waits.pop(each.id) for each in list(found)[:most]]

    def count(self, event: EventRecord) -> None:
        """Count a delivery of an event."""
        if (found := self._events.get(event.number)) is not None:
            self._events[event.number] = replace(found, delivered=found.delivered + 1)

    def close(self, event: EventRecord) -> bool:
        """Note that all waits have got the event; return False if some have not."""
        if self.waits_for(event):
            return False
        if (found := self._events.get(event.number)) is not None:
            self._events[event.number] = replace(found, is_open=False)
        return True

    def forget(self, before: datetime, most: int) -> int:
        """Delete up to `most` events that were published before a moment and have reached all waits."""
        old = [each.number for each in self._events.values() if each.published_at < before and not each.is_open][:most]
        for number in old:
            del self._events[number]
        return len(old)


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
