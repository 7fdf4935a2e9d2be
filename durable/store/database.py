"""The common base of the stores on a database: the frame of each verb, and everything that is not part of a pass.

A verb is the same on both databases, except for the statements that lock and write rows, which a subclass has. Rare
reads and writes (the audit log, the history of a new run) are ordinary ORM statements. SQLite has no row locks: Django
omits `select_for_update` there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q

from durable.core.errors import RunNotFoundError
from durable.core.limits.ranks import Ranking
from durable.core.limits.slot_records import Admission, SlotRow, SlotWant
from durable.core.location import EVENT_QUEUES
from durable.core.new_runs import LOADED, Subject, key_of
from durable.core.people import ASK
from durable.core.records import (
    ENDED,
    ActionRecord,
    AskedOfActivity,
    AttemptRecord,
    AwaitedEvent,
    Batch,
    ChildRecord,
    ChildStart,
    Committed,
    DoubtOver,
    EntryKind,
    EntryRecord,
    EntryStatus,
    EventRecord,
    EventsDropped,
    FailureRecord,
    GroupChange,
    HeldOver,
    HoldKind,
    KeyedSend,
    KeyRecord,
    LinkClosed,
    LinkOpened,
    LinkRecord,
    Message,
    OutgoingMessage,
    QuestionAsked,
    QuestionClosed,
    QuestionRecord,
    QuestionsSought,
    RunChange,
    RunRecord,
    RunState,
    SavedDetails,
    SavesForgotten,
    Status,
    StatusRecord,
    TagChange,
)
from durable.core.records import Hold as HoldRecord
from durable.core.summary import Summary, SummaryKind
from durable.core.time_limits import History, RunLimits
from durable.core.transitions import moved, paused_at_once, resumed
from durable.models import (
    Attempt,
    Child,
    ChildReader,
    Entry,
    EntryMetadata,
    Failure,
    HeldStart,
    Hold,
    OperatorAction,
    QueueMessage,
    Run,
    RunLimit,
    RunStatus,
    WorkflowEnd,
)
from durable.models.renames import learn_names, learn_queues
from durable.store import ends
from durable.store.base import ChildIdTaken, ChildKeyTaken
from durable.store.rules import families, lines, row_rules
from durable.store.rules.families import FamilyStore
from durable.store.rules.rates import RateStore
from durable.store.tables import activities, events, keys, links, people, ranks, slots, surveys
from durable.store.tables import subjects as side_subjects
from durable.store.tables import tags as side_tags
from durable.store.tables.families import DatabaseFamilies
from durable.store.tables.rates import DatabaseRates
from durable.store.tables.rows import ATTEMPT, CHILD, ENTRY, ENTRY_LOOKUPS, MESSAGE, METADATA, RUN
from durable.store.tables.surveys import RowSurveyor
from durable.store.transactions import RowsLocked, committed_or_raised, or_locked

_AT_ONCE: Final = 1_000  # rows of one statement


class DatabaseStore(RateStore, FamilyStore):
    """A `Store` on a Django database, without the statements that differ between the databases."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._rates = DatabaseRates(alias)
        self._families: DatabaseFamilies = DatabaseFamilies(alias)

    def transaction(self) -> AbstractContextManager[None]:
        return committed_or_raised(self.alias)

    # -- to be implemented by a subclass

    @abstractmethod
    def _begin_to_write(self) -> None:
        """Prepare a transaction that reads first to write later. Only a database without row locks needs this."""

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Return a transaction that reads first and then writes."""
        with transaction.atomic(using=self.alias):
            self._begin_to_write()
            yield

    def _reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    @abstractmethod
    def _insert(self, runs: Sequence[RunRecord]) -> tuple[dict[str, RunRecord], dict[str, str]]:
        """Insert the runs whose ids are free.

        Return the rows that have the taken ids, by id; and the summaries of new runs that are held, by id.

        The runs are sorted by id. So one of two creators waits for the other, and they never deadlock.
        """

    @abstractmethod
    def _lock_run(self, run_id: str, *, wait: bool = True) -> RunRecord | None:
        """Return the run's row, locked until the transaction ends; None if there is none.

        Without `wait`, also None if another transaction has locked it.
        """

    @abstractmethod
    def _write_change(self, before: RunRecord, after: RunRecord, change: RunChange) -> None:
        """Write the row of a locked run, and its entries and messages of the change."""

    @abstractmethod
    def _drop(self, run: RunRecord, children: Sequence[str], at: datetime) -> None:
        """Cancel these children of a locked run that continues without them."""

    @abstractmethod
    def _end_dropped(self, run: RunRecord, at: datetime) -> None:
        """Cancel the dropped children of a locked run, and those of dropped groups.

        Children whose rows another transaction has locked are left for later.
        """

    @abstractmethod
    def get_many(self, run_ids: Sequence[str]) -> dict[str, RunRecord]: ...

    @abstractmethod
    def load(self, run_id: str) -> History: ...

    @abstractmethod
    def send(self, messages: Sequence[OutgoingMessage]) -> tuple[list[Message | None], frozenset[str]]: ...

    # -- verbs

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        first = {run.id: run for run in reversed(runs)}
        ranked = ranks.with_ranking(first[run_id] for run_id in dict.fromkeys(run.id for run in runs))
        tagged = side_tags.with_tags(first.values())
        about = side_subjects.with_subjects(first.values())
        with transaction.atomic(using=self.alias) if ranked or tagged or about else nullcontext():
            taken, held = self._insert([first[run_id] for run_id in sorted(first)])
            for ranking, group in ranks.grouped([run for run in ranked if run.id not in taken]):
                self._rank(group, ranking, max(run.created_at for run in group))  # of many, each has its own
            if tagged:
                side_tags.put(self.alias, [run for run in tagged if run.id not in taken])
            if about:
                side_subjects.put(self.alias, [run for run in about if run.id not in taken])
        new = first.keys() - taken.keys()
        for run_id, summary in held.items():
            first[run_id] = self._as_held(first[run_id], summary)
        created: list[tuple[RunRecord, bool]] = []
        for run in runs:
            created.append((row_rules.copied(taken.get(run.id, first[run.id])), run.id in new))
            new.discard(run.id)
        return created

    @staticmethod
    def _as_held(run: RunRecord, summary: str) -> RunRecord:
        """Return a new run in the form that is inserted while new starts of its workflow are held."""
        return replace(run, **paused_at_once(run, summary=Summary.load(summary)))

    def change(
        self,
        run_id: str,
        decide: Callable[[RunRecord, Callable[[], list[EntryRecord]]], RunChange],
        *,
        wait: bool = True,
    ) -> RunRecord:
        with transaction.atomic(using=self.alias):
            run = self._lock_run(run_id, wait=wait)
            if run is None:
                if not wait and self.states([run_id]):
                    raise RowsLocked
                raise RunNotFoundError(run_id)
            history: list[EntryRecord] | None = None  # None for what `decide` has not read

            def entries() -> list[EntryRecord]:
                nonlocal history
                history = self.history(run_id)
                return history

            change = decide(row_rules.copied(run), entries)
            after = row_rules.after_change(run, change)
            if run.parent_id is not None:
                after = families.held_back(self._families, run, after, after.created_at)
            self._write_change(run, after, change)
            if row_rules.is_failure_over(run, after):
                Failure.objects.using(self.alias).filter(run_id=run_id).update(is_open=False)
            if change.is_status_over:
                RunStatus.objects.using(self.alias).filter(run_id=run_id).delete()
            if change.is_held_over:
                Failure.held_no_more(self.alias, run_id)
            if row_rules.is_reopened(run, after):
                keys.open_again(self.alias, run_id)
                if history is None or any(ASK in each.data for each in history):
                    people.open_again(self.alias, run_id)
                self._renew_limits(run_id, after)
            if change.dropped_children:
                assert after.wake_at is not None, "a change that drops children makes the run due"
                self._drop(after, change.dropped_children, after.wake_at)
            for group_change in row_rules.group_changes(change):
                families.mark(self._families, run_id, group_change)
            if change.dropped_groups:
                self._end_dropped(after, after.wake_at or after.created_at)
            if change.deleted:
                activities.forget_saves(self.alias, run_id, change.deleted)
                slots.forget(self.alias, run_id, change.deleted)
            if EVENT_QUEUES in run.waiting_for:
                self._drop_events(run_id, after, change.deleted)
            if after.state == RunState.PAUSED:
                slots.note_pause(self.alias, run_id)
            if after.queue != run.queue:
                ranks.requeue(self.alias, run_id, after.queue)
                slots.note_requeued(self.alias, run_id)
            if change.tags is not None:
                side_tags.change(self.alias, run_id, change.tags)
            if change.saved:
                activities.put_saves(self.alias, change.saved)
            if change.retracted:
                QueueMessage.objects.using(self.alias).filter(run_id=run_id, id__in=change.retracted).delete()
            if change.action is not None:
                self.log([change.action])
            if row_rules.has_ended(run, after) and (function := ends.function_of(run.workflow)) is not None:
                ends.call(self.alias, function, row_rules.copied(after))
            return row_rules.copied(after)

    def commit(self, batch: Batch) -> Committed:
        if batch.ended is None:
            return self._commit(batch)
        with committed_or_raised(self.alias):
            committed = self._commit(batch)
            if (function := ends.function_of(batch.ended.workflow)) is not None:
                ends.call(self.alias, function, batch.ended)
        return committed

    @abstractmethod
    def _commit(self, batch: Batch) -> Committed: ...

    @abstractmethod
    def _show_committed(self, status: StatusRecord) -> None:
        """Write the status of a commit, in its transaction, unless a later one is stored."""

    def _change_groups(self, batch: Batch, committed: Committed) -> Committed:
        """Write what a commit changes of groups of children; locks the tallies, and then the run's row."""
        queues = committed.queues_to_notify
        groups = batch.of(GroupChange)
        for change in groups:
            queues |= families.apply(self._families, batch.run_id, change, self._create_members, batch.now)
        run = Run.objects.using(self.alias).filter(id=batch.run_id)
        if any(change.is_dropped for change in groups):
            self._end_dropped(next(iter(self.get_many([batch.run_id]).values())), batch.now)
        if batch.awaited_groups and self._families.is_one_settled(batch.awaited_groups):
            run.filter(finished_at__isnull=True).update(wake_at=batch.now)
            queues |= set(run.values_list("queue", flat=True))
        return Committed(request=committed.request, queues_to_notify=queues)

    def _free_place(self, batch: Batch) -> frozenset[str]:
        """Let another child of a map begin if the commit holds a step of one that does not keep its place meanwhile.

        Return the queues to notify.
        """
        if batch.failure is None or not batch.failure.is_held:
            return frozenset()
        return families.freed(self._families, batch.run_id, batch.now)

    def _create_members(self, starts: Sequence[ChildStart]) -> list[RunRecord]:
        """Insert the children of a group. Raises ChildIdTaken."""
        created = self.create(ranks.inheriting(self.alias, starts))
        for run, is_new in created:
            if not is_new:
                raise ChildIdTaken(run.id)
        self._bulk_create(Child, [Child(**CHILD.attributes(child)) for _, child in starts])
        return [run for run, _ in created]

    def children(self, run_ids: Sequence[str]) -> dict[str, ChildRecord]:
        found = Child.objects.using(self.alias).filter(run_id__in=run_ids) if run_ids else ()
        return {each.run_id: each.record for each in found}

    # -- keys

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        with self._writing():
            while True:
                if keys.take(self.alias, run.id, run.workflow, key, run.created_at):
                    [(found, is_new)] = self.create([run])
                    if not is_new:
                        keys.forget(self.alias, run.id)
                    return found, is_new
                if (found_at := self._found_at(run, keys.holder(self.alias, run.workflow, key))) is not None:
                    return found_at, False
                keys.forget_deleted(self.alias, run.id)

    def _found_at(self, run: RunRecord, holder: str | None) -> RunRecord | None:
        """Return the row that has the run's id, or else the row of the key's holder; None if both are gone."""
        found = self.get_many([each for each in (run.id, holder) if each is not None])
        if run.id in found or holder is None:
            return found.get(run.id)
        if holder not in found:  # deleted while it was open
            keys.forget(self.alias, holder)
        return found.get(holder)

    def key_holder(self, workflow: str, key: str, *, lock: bool = False) -> RunRecord | None:
        if lock:
            self._begin_to_write()
        run_id = keys.holder(self.alias, workflow, key)
        if run_id is None:
            return None
        if not lock:
            run = self.get(run_id)
            return None if run is None or run.state in ENDED else run
        run = self._lock_run(run_id)
        # again: it may have ended, or lost the key, before it was locked
        return run if run is not None and keys.holder(self.alias, workflow, key) == run_id else None

    def _take_keys(self, starts: Sequence[ChildStart]) -> None:
        """Take the keys of a commit's children, in one order, before the parent is locked. Raises ChildKeyTaken.

        The order matters: the end of a child frees its key and then locks its parent.
        """
        named = [(with_key, start.run) for start in starts if (with_key := key_of(start)) is not None]
        keyed = [(keys.owner_of_keys(self.alias, workflow), key, run) for (workflow, key), run in named]
        for workflow, key, run in sorted(keyed, key=lambda each: each[:2]):
            while not keys.take(self.alias, run.id, workflow, key, run.created_at):
                if self.get(run.id) is not None:  # by an earlier try of the commit, unless the id is another's
                    break
                if keys.holder(self.alias, workflow, key) is not None:
                    raise ChildKeyTaken(run.id)
                keys.forget_deleted(self.alias, run.id)

    def free_key(self, run_id: str, *, for_good: bool) -> None:
        (keys.forget if for_good else keys.close)(self.alias, run_id)

    def move(self, run: RunRecord, *, now: datetime, wake_at: datetime, input: str | None) -> RunRecord:
        after = replace(run, **moved(run, wake_at=wake_at, input=input))
        with transaction.atomic(using=self.alias):
            Run.objects.using(self.alias).filter(id=run.id).update(**row_rules.changed_columns(run, after))
            HeldStart.objects.using(self.alias).filter(run_id=run.id).update(due_at=wake_at)
            keys.note_move(self.alias, run.id, now)
        return after

    def keys(self, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        return keys.of_runs(self.alias, list(run_ids)) if run_ids else {}

    def note_keyed_sends(self, sends: Sequence[KeyedSend]) -> None:
        keys.note_sends(self.alias, sends)

    def keyed_sends(self, run_id: str) -> list[KeyedSend]:
        return keys.unreceived(self.alias, run_id)

    def note_follower(self, run_id: str, before: str) -> None:
        keys.note_follower(self.alias, run_id, before)

    def followed_by(self, run_id: str) -> str | None:
        return keys.followed_by(self.alias, run_id)

    def give_turns(self, after: str, now: datetime) -> tuple[str, frozenset[str]] | None:
        with self._writing():
            return self._families.give_turns(after, now)

    def children_of(self, parent_id: str, state: str | None, group: str | None) -> list[str]:
        found = Child.objects.using(self.alias).filter(parent_id=parent_id)
        if state is not None:
            found = found.filter(run__state=state)
        if group is not None:
            found = found.filter(group=group)
        return list(found.order_by("position", "generation", "run_id").values_list("run_id", flat=True))

    def count_children(self, parent_id: str, group: str | None) -> dict[str, int]:
        found = Child.objects.using(self.alias).filter(parent_id=parent_id)
        if group is not None:
            found = found.filter(group=group)
        return dict(found.order_by().values_list("run__state").annotate(Count("pk")))

    def parents_among(self, run_ids: Sequence[str]) -> set[str]:
        kinds = [EntryKind.CHILD.value, EntryKind.MAP.value]
        entries = Entry.objects.using(self.alias).filter(run_id__in=run_ids, kind__in=kinds).order_by()
        children = Child.objects.using(self.alias).filter(parent_id__in=run_ids).order_by()
        found = set(entries.values_list("run_id", flat=True).distinct())
        return found.union(children.values_list("parent_id", flat=True).distinct())

    def note_reader(self, run_id: str, children: Sequence[str]) -> list[str]:
        runs = Run.objects.using(self.alias).with_ids(list(children))
        found = list(runs.select_for_update(no_key=True).values_list("id", flat=True))  # waits for a prune of them
        ChildReader.objects.using(self.alias).bulk_create(ChildReader(run_id=run_id, child_id=each) for each in found)
        return found

    def readers_of(self, child_id: str) -> list[str]:
        found = ChildReader.objects.using(self.alias).filter(child_id=child_id, run__finished_at__isnull=True)
        return list(found.order_by("run_id").values_list("run_id", flat=True))

    def _renew_limits(self, run_id: str, after: RunRecord) -> None:
        limits = self.limits(run_id)
        if limits is not None and after.wake_at is not None:
            renewed = limits.renewed(after.wake_at)
            row = RunLimit.objects.using(self.alias).filter(run_id=run_id)
            row.update(deadline=renewed.deadline, worked=renewed.worked)

    def _write_beside(self, batch: Batch) -> None:
        """Write a commit's changes of side tables, in its transaction."""
        if batch.worked is not None:
            RunLimit.objects.using(self.alias).filter(run_id=batch.run_id).update(worked=batch.worked)
        if saved := batch.of(SavedDetails):
            activities.put_saves(self.alias, saved)
        for change in batch.of(TagChange):
            side_tags.change(self.alias, batch.run_id, change)
        if batch.status is not None:
            self._show_committed(batch.status)
        if batch.of(DoubtOver):
            RunLimit.objects.using(self.alias).filter(run_id=batch.run_id).update(in_doubt=None)
        if batch.of(HeldOver):
            Failure.held_no_more(self.alias, batch.run_id)
        if forgotten := batch.of(SavesForgotten):
            activities.forget_saves(self.alias, batch.run_id, [each.location for each in forgotten])
        if opened := batch.of(LinkOpened):
            links.open_links(self.alias, batch.run_id, opened, batch.now)
        if closed := batch.of(LinkClosed):
            links.close_links(self.alias, batch.run_id, closed, batch.now)
        if awaited := batch.of(AwaitedEvent):
            events.put_waits(self.alias, awaited)
        if dropped := batch.of(EventsDropped):
            events.drop(self.alias, batch.run_id, dropped)
        if asked := batch.of(QuestionAsked):
            people.ask(self.alias, batch.run_id, asked, batch.now)
        if over := batch.of(QuestionClosed):
            people.close(self.alias, batch.run_id, over, batch.now)

    @abstractmethod
    def acquire(
        self, run_id: str, fence: int, location: str, wants: Sequence[SlotWant], now: datetime
    ) -> Admission: ...

    def set_limit(self, name: str, override: int | None) -> int | None:
        with self._writing():
            return slots.set_limit(self.alias, name, override)

    def at_once(self, limit: str) -> int | None:
        return slots.at_once(self.alias, limit)

    def declare_limit(self, name: str, at_once: int) -> bool:
        with self._writing():
            return slots.declare_limit(self.alias, name, at_once)

    def slots(self, run_ids: Sequence[str]) -> list[SlotRow]:
        return slots.of_runs(self.alias, run_ids) if run_ids else []

    def save_details(self, saved: Sequence[SavedDetails]) -> None:
        activities.save(self.alias, saved)

    def import_history(
        self,
        run_id: str,
        *,
        entries: Sequence[EntryRecord],
        attempts: Sequence[AttemptRecord],
        messages: Sequence[Message],
        tags: TagChange | None = None,
    ) -> None:
        with transaction.atomic(using=self.alias):
            rows = [Entry(run_id=run_id, **ENTRY.attributes(each)) for each in entries]
            self._bulk_create(Entry, rows)
            keys = entry_keys(self.alias, run_id, rows)
            self._bulk_create(
                EntryMetadata,
                [EntryMetadata(entry_id=keys[each.location], **METADATA.attributes(each)) for each in entries],
            )
            self._bulk_create(Attempt, [Attempt(run_id=run_id, **ATTEMPT.attributes(each)) for each in attempts])
            self._bulk_create(QueueMessage, [QueueMessage(**MESSAGE.attributes(each)) for each in messages])
            newest = max((each.order for each in messages), default=0)
            Run.objects.using(self.alias).filter(id=run_id).update(message_count=newest)
            if tags is not None:
                side_tags.change(self.alias, run_id, tags)

    def ask_activities(
        self, run: RunRecord, location: str, now: datetime, *, stack: bool = False, abandon: bool = False
    ) -> list[str]:
        return activities.ask(self.alias, run, location, now, stack=stack, abandon=abandon)

    def answer_stack(self, asked: AskedOfActivity, stack: str, now: datetime) -> None:
        activities.answer_stack(self.alias, asked, stack, now)

    def forget_activities(self) -> None:
        activities.forget(self.alias)

    # -- holds

    def held(self, kind: HoldKind, name: str) -> HoldRecord | None:
        found = Hold.objects.using(self.alias).filter(kind=kind.value, name=name).first()
        return None if found is None else found.record

    def hold(self, hold: HoldRecord) -> bool:
        given = {"held_at": hold.held_at, "held_by": hold.held_by, "reason": hold.reason}
        _, is_new = Hold.objects.using(self.alias).get_or_create(
            kind=hold.kind.value, name=hold.name, defaults={**given, "summary": row_rules.held_summary(hold)}
        )
        if is_new and hold.kind is HoldKind.QUEUE:
            slots.note_queue(self.alias, hold.name)
        return is_new

    def lift(self, kind: HoldKind, name: str) -> bool:
        deleted, _ = Hold.objects.using(self.alias).filter(kind=kind.value, name=name).delete()
        if deleted and kind is HoldKind.QUEUE:
            note = partial(slots.note_queue, self.alias, name)
            note()
            # again, for runs that have begun to wait meanwhile: others that hand slots on see the hold until the commit
            transaction.on_commit(note, using=self.alias, robust=True)
        return bool(deleted)

    def release_starts(self, now: datetime, most: int) -> list[RunRecord]:
        held = Hold.objects.using(self.alias).filter(kind=HoldKind.WORKFLOW.value, name=OuterRef("workflow"))
        starts = HeldStart.objects.using(self.alias).filter(~Exists(held)).order_by("workflow", "run_id")
        released: list[RunRecord] = []
        locked: list[str] = []
        while max(len(released), len(locked)) < most:
            batch = list(starts.exclude(run_id__in=locked).values_list("run_id", "due_at", "run__state")[:most])
            if not batch:
                break
            left = [run_id for run_id, _, state in batch if state != RunState.PAUSED]
            starts.filter(run_id__in=left).delete()
            waiting = [(run_id, due_at) for run_id, due_at, state in batch if state == RunState.PAUSED]
            for run_id, due_at in waiting[: most - len(released)]:
                try:
                    released += self._released_start(run_id, max(now, due_at))
                except RowsLocked:
                    locked.append(run_id)
        return released

    def give_up_idle_slots(self, now: datetime, most: int) -> list[RunRecord]:
        idle = slots.idle(self.alias, now).order_by("run_id").values_list("run_id", flat=True).distinct()
        given_up: list[RunRecord] = []
        for run_id in idle[:most]:
            with transaction.atomic(using=self.alias):
                run = self._lock_run(run_id, wait=False)
                if run is None or not lines.is_asleep(run, now):
                    continue
                slots.note_pause(self.alias, run_id)
                Run.objects.using(self.alias).filter(id=run_id).update(wake_at=now)
                given_up.append(replace(run, wake_at=now))
        return given_up

    def _released_start(self, run_id: str, due_at: datetime) -> list[RunRecord]:
        """Resume a run that was started under a hold. Return [] if it is no longer paused because of that. Raises
        RowsLocked.
        """
        with transaction.atomic(using=self.alias):
            run = self._lock_run(run_id, wait=False)
            if run is None:
                raise RowsLocked
            deleted, _ = HeldStart.objects.using(self.alias).filter(run_id=run_id).delete()
            if not deleted or not row_rules.is_held_start(run):
                return []
            change = RunChange(run=resumed(run, now=due_at, summary=Summary(SummaryKind.RESUMED)))
            after = row_rules.after_change(run, change)
            self._write_change(run, after, change)
            return [row_rules.copied(after)]

    # -- functions to call at ends

    def declare_ends(self, workflows: Sequence[str], gone: Sequence[str] = ()) -> None:
        rows = WorkflowEnd.objects.using(self.alias)
        known = set(rows.filter(workflow__in=[*workflows, *gone]).values_list("workflow", flat=True))
        rows.bulk_create([WorkflowEnd(workflow=each) for each in workflows if each not in known], ignore_conflicts=True)
        if left := known.intersection(gone):
            rows.filter(workflow__in=left).delete()

    def calls_at_end(self, workflow: str) -> bool:
        return WorkflowEnd.objects.using(self.alias).filter(workflow=workflow).exists()

    # -- ranks

    def _rank(self, runs: Sequence[RunRecord], ranking: Ranking, now: datetime) -> None:
        """Give new runs of one queue, in this order, a head start and a share, in the transaction of their creation.

        A run of a share that is due and was not started by another run gets its start tag now. Others get it from the
        claim that finds them due, so that a worker's commit does not wait for a start.
        """
        ranks.put(self.alias, [run.id for run in runs], runs[0].queue, ranking, now)

    def rankings(self, run_ids: Sequence[str]) -> dict[str, Ranking]:
        return ranks.of_runs(self.alias, run_ids) if run_ids else {}

    def tags(self, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
        return side_tags.of_runs(self.alias, run_ids, at_start=at_start) if run_ids else {}

    def subjects(self, run_ids: Sequence[str]) -> dict[str, list[Subject]]:
        return side_subjects.of_runs(self.alias, run_ids) if run_ids else {}

    def to_cancel(self, model: str, keys: Sequence[str]) -> dict[str, list[str]]:
        return side_subjects.to_cancel(self.alias, model, keys)

    def learn_names(self) -> None:
        learn_names(self.alias)

    def learn_queues(self) -> None:
        learn_queues(self.alias)

    # -- links

    def link(self, token_hash: str) -> LinkRecord | None:
        return links.find(self.alias, token_hash)

    def links(self, run_id: str) -> list[LinkRecord]:
        return links.of_run(self.alias, run_id)

    def is_link_open(self, link: LinkRecord) -> bool:
        return links.is_in_history(self.alias, link)

    def use_link(self, link: LinkRecord, message_id: str, now: datetime) -> None:
        links.use(self.alias, link, message_id, now)

    # -- events

    def put_event(self, event: EventRecord) -> tuple[EventRecord, bool]:
        with self._writing():
            return events.put(self.alias, event)

    def newest_event(self, name: str, key: str) -> int:
        return events.newest(self.alias, name, key)

    def event_wait(self, wait_id: str) -> AwaitedEvent | None:
        return events.find(self.alias, wait_id)

    def due_event(self, wait: AwaitedEvent, before: datetime | None = None) -> EventRecord | None:
        return events.due(self.alias, wait, before)

    def deliver(
        self,
        event: EventRecord,
        most: int,
        message_of: Callable[[EventRecord, AwaitedEvent], OutgoingMessage],
        wait_id: str | None = None,
    ) -> tuple[int, frozenset[str]]:
        with or_locked(), self._writing():
            taken = events.take(self.alias, event, most, wait_id)
            if not taken:
                return 0, frozenset()
            given = [(event, each) for each in taken] if wait_id else events.given(self.alias, event, taken)
            for number, each in Counter(first.number for first, _ in given).items():
                events.count(self.alias, number, each)
            _, queues = self.send([message_of(first, each) for first, each in given])
            return len(taken), queues

    def close_event(self, event: EventRecord) -> bool:
        return events.close(self.alias, event)

    def open_events(self, most: int) -> list[EventRecord]:
        return events.still_open(self.alias, most)

    def forget_events(self, before: datetime, most: int) -> int:
        return events.forget(self.alias, before, most)

    def _drop_events(self, run_id: str, after: RunRecord, deleted: Sequence[str]) -> None:
        """End the waits for events that a verb ends: all at the run's end, or those whose entries it deletes."""
        if after.state in ENDED or after.state == RunState.ROLLING_BACK:
            events.drop(self.alias, run_id, [EventsDropped()])
        elif deleted:
            events.drop_at(self.alias, run_id, deleted)

    # -- questions to people

    def question(self, question_id: str) -> QuestionRecord | None:
        return people.find(self.alias, question_id)

    def questions(self, run_ids: Sequence[str]) -> list[QuestionRecord]:
        return people.of_runs(self.alias, run_ids)

    def open_questions(self, sought: QuestionsSought, most: int) -> list[QuestionRecord]:
        return people.open_ones(self.alias, sought, most)

    def awaited_questions(self, questions: Sequence[QuestionRecord]) -> set[str]:
        return people.waiting(self.alias, questions)

    def put_question(self, question: QuestionRecord) -> None:
        people.put(self.alias, question)

    def due_questions(self, now: datetime, most: int) -> list[QuestionRecord]:
        return people.due(self.alias, now, most)

    def close_questions(self, now: datetime, most: int) -> int:
        return people.close_over(self.alias, now, most)

    # -- the audit log

    def log(self, actions: Sequence[ActionRecord]) -> None:
        names = ActionRecord.__slots__
        rows = [OperatorAction(**{name: getattr(each, name) for name in names}) for each in actions]
        self._bulk_create(OperatorAction, rows)

    def log_repeat(self, action: ActionRecord, since: datetime) -> bool:
        with transaction.atomic(using=self.alias):
            rows = OperatorAction.objects.using(self.alias)
            alike = rows.filter(created_at__gte=since, **{name: getattr(action, name) for name in row_rules.ALIKE})
            row = alike.select_for_update().order_by("-created_at", "-id").first()
            if row is None:
                return False
            rows.filter(pk=row.pk).update(detail=row_rules.repeated(row.detail, action.created_at))
            return True

    def _bulk_create(self, model: Any, rows: Sequence[Any]) -> None:
        model.objects.using(self.alias).bulk_create(rows, batch_size=_AT_ONCE)

    # -- reading

    def get(self, run_id: str) -> RunRecord | None:
        return self.get_many([run_id]).get(run_id)

    def states(self, run_ids: Sequence[str]) -> dict[str, str]:
        found = Run.objects.using(self.alias).filter(id__in=run_ids).order_by()
        return dict(found.values_list("id", "state"))

    def statuses(self, run_ids: Sequence[str]) -> dict[str, Status]:
        found = RunStatus.objects.using(self.alias).filter(run_id__in=list(run_ids)).order_by() if run_ids else ()
        return {each.run_id: each.status for each in found}

    def get_shown(self, run_ids: Sequence[str]) -> dict[str, tuple[RunRecord, Status | None]]:
        found = Run.objects.using(self.alias).filter(id__in=list(run_ids)).select_related("shown").order_by()
        runs = ((each, getattr(each, "shown", None)) for each in found)
        return {
            each.id: (RunRecord(**RUN.attributes(each)), None if shown is None else shown.status)
            for each, shown in runs
        }

    def history(self, run_id: str) -> list[EntryRecord]:
        return sorted(self.load(run_id), key=lambda entry: entry.ordinal)

    def published(self, run_id: str, name: str = "") -> list[EntryRecord]:
        entries = Entry.objects.using(self.alias)
        found = entries.published(run_id, name).with_metadata()
        if name:
            return [EntryRecord(*row) for row in found.order_by("-ordinal").values_list(*ENTRY_LOOKUPS)[:1]]
        places = {ordinal: place for place, ordinal in enumerate(entries.newest_published(run_id))}
        rows = found.filter(ordinal__in=list(places)).values_list(*ENTRY_LOOKUPS) if places else []
        return sorted((EntryRecord(*row) for row in rows), key=lambda entry: places[entry.ordinal])

    def held_steps(self, run_id: str) -> list[EntryRecord]:
        entries = Entry.objects.using(self.alias).few_of(run_id, Q(status=EntryStatus.HELD.value)).with_metadata()
        return [EntryRecord(*row) for row in entries.order_by("ordinal").values_list(*ENTRY_LOOKUPS)]

    def held_among(self, run_ids: Sequence[str]) -> set[str]:
        held = Failure.objects.using(self.alias).filter(run__in=list(run_ids), is_held=True)
        return set(held.order_by().values_list("run_id", flat=True)) if run_ids else set()

    def limits(self, run_id: str) -> RunLimits | None:
        found = RunLimit.objects.using(self.alias).filter(run_id=run_id).first()
        return None if found is None else found.record

    def put_in_doubt(self, since: datetime, most: int) -> int:
        with transaction.atomic(using=self.alias):
            left = (
                Run.objects.using(self.alias)
                .filter(finished_at__isnull=True)
                .exclude(limit__in_doubt=since)
                .order_by("id")
            )
            ids = list(left.select_for_update(of=("self",)).values_list("id", flat=True)[:most])
            RunLimit.objects.using(self.alias).bulk_create(
                [RunLimit(run_id=each, in_doubt=since) for each in ids],
                update_conflicts=True,
                unique_fields=["run"],
                update_fields=["in_doubt"],
            )
            Run.objects.using(self.alias).filter(id__in=ids, fence=0).update(fence=LOADED)  # there is something to load
        return len(ids)

    def attempts(self, run_id: str) -> list[AttemptRecord]:
        found = Attempt.objects.using(self.alias).filter(run_id=run_id).order_by("id")
        return [AttemptRecord(**row) for row in found.values(*ATTEMPT.names)]

    def failure(self, run_id: str) -> FailureRecord | None:
        found = Failure.objects.using(self.alias).select_related("cause").filter(run_id=run_id).first()
        return None if found is None else found.record

    def surveyor(self, run_id: str) -> RowSurveyor:
        return RowSurveyor(self.alias, run_id)

    def outline(self, run_id: str) -> tuple[list[EntryRecord], list[Message]]:
        return surveys.read_outline(self.alias, run_id)


def entry_keys(alias: str, run_id: str, rows: Sequence[Entry]) -> dict[str, int]:
    """Return the keys of rows just written, by location; queried if the database did not return them."""
    if all(row.pk is not None for row in rows):
        return {row.location: row.pk for row in rows}
    found = Entry.objects.using(alias).filter(run_id=run_id)
    if len(rows) < _AT_ONCE:  # more are most of the history
        found = found.filter(location__in=[row.location for row in rows])
    return dict(found.values_list("location", "id"))
