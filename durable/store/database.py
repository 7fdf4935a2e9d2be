"""The common base of the stores on a database: the frame of each verb, and everything that is not part of a pass.

A verb is the same on both databases, except for the statements that lock and write rows, which a subclass has. Rare
reads and writes (the audit log, the history of a new run) are ordinary ORM statements. SQLite has no row locks: Django
omits `select_for_update` there.
"""

from __future__ import annotations

from abc import abstractmethod
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
from durable.core.location import EVENT_QUEUES
from durable.core.new_runs import LOADED, NewRun
from durable.core.people import ASK
from durable.core.records import (
    ActionRecord,
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
    EventsDropped,
    FailureRecord,
    GroupChange,
    HeldOver,
    HoldKind,
    LinkClosed,
    LinkOpened,
    Message,
    QuestionAsked,
    QuestionClosed,
    ReservationDropped,
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
from durable.core.time_limits import RunLimits
from durable.core.transitions import paused_at_once, resumed
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
from durable.store.base import ChildIdTaken
from durable.store.rules import child_rules, row_rules
from durable.store.tables import AT_ONCE, ranks, slots, surveys
from durable.store.tables.activities import DatabaseActivities
from durable.store.tables.children import DatabaseChildren
from durable.store.tables.descriptions import DatabaseDescriptions, with_descriptions
from durable.store.tables.events import DatabaseEvents
from durable.store.tables.keys import DatabaseKeys
from durable.store.tables.people import DatabaseLinks, DatabaseQuestions
from durable.store.tables.rates import DatabaseRates
from durable.store.tables.rows import ATTEMPT, CHILD, ENTRY, ENTRY_LOOKUPS, MESSAGE, METADATA, RUN
from durable.store.tables.slots import DatabaseLimits
from durable.store.tables.surveys import RowSurveyor
from durable.store.transactions import RowsLocked, committed_or_raised


class DatabaseStore(
    DatabaseKeys,
    DatabaseLimits,
    DatabaseDescriptions,
    DatabaseActivities,
    DatabaseEvents,
    DatabaseLinks,
    DatabaseQuestions,
):
    """A `Store` on a Django database, without the statements that differ between the databases."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._rates = DatabaseRates(alias)
        self._children: DatabaseChildren = DatabaseChildren(alias)

    def transaction(self) -> AbstractContextManager[None]:
        return committed_or_raised(self.alias)

    # -- to be implemented by a subclass

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            self._begin_to_write()
            yield

    @abstractmethod
    def _insert(self, runs: Sequence[RunRecord]) -> tuple[dict[str, RunRecord], dict[str, str]]:
        """Insert the runs whose ids are free.

        Return the rows that have the taken ids, by id; and the summaries of new runs that are held, by id.

        The runs are sorted by id. So one of two creators waits for the other, and they never deadlock.
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

    # -- verbs

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        first = {run.id: run for run in reversed(runs)}
        in_order = (first[run_id] for run_id in dict.fromkeys(run.id for run in runs))
        ranked = [run for run in in_order if isinstance(run, NewRun) and run.ranking is not None]
        described = with_descriptions(first.values())
        with transaction.atomic(using=self.alias) if ranked or described else nullcontext():
            taken, held = self._insert([first[run_id] for run_id in sorted(first)])
            for ranking, group in ranks.grouped([run for run in ranked if run.id not in taken]):
                self._rank(group, ranking, max(run.created_at for run in group))  # of many, each has its own
            if described:
                self._describe([run for run in described if run.id not in taken])
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
            now = after.wake_at or after.created_at
            if run.parent_id is not None:
                after = child_rules.held_back(self._children, run, after, after.created_at, self.limits)
            self._write_change(run, after, change)
            if row_rules.is_failure_over(run, after):
                Failure.objects.using(self.alias).filter(run_id=run_id).update(is_open=False)
            if change.is_status_over:
                RunStatus.objects.using(self.alias).filter(run_id=run_id).delete()
            if change.is_held_over:
                Failure.held_no_more(self.alias, run_id)
            if row_rules.is_reopened(run, after):
                self._open_key_again(run_id)
                if history is None or any(ASK in each.data for each in history):
                    self._open_questions_again(run_id)
                self._renew_limits(run_id, now)
            if change.dropped_children:
                assert after.wake_at is not None, "a change that drops children makes the run due"
                self._drop(after, change.dropped_children, after.wake_at)
            for group_change in row_rules.group_changes(change):
                child_rules.record_decisions(self._children, run_id, group_change)
            if change.dropped_groups:
                self._end_dropped(after, now)
            if change.deleted:
                self._forget_saves(run_id, [SavesForgotten(each) for each in change.deleted], now)
                slots.forget(self.alias, run_id, change.deleted)
            if EVENT_QUEUES in run.waiting_for:
                self._drop_ended_waits(after, change.deleted)
            if after.state == RunState.PAUSED:
                slots.note_pause(self.alias, run_id)
            if after.queue != run.queue:
                ranks.requeue(self.alias, run_id, after.queue)
                slots.note_requeued(self.alias, run_id)
            if change.tags is not None:
                self._change_tags(run_id, [change.tags], now)
            if change.saved:
                self._put_saves(run_id, change.saved, now)
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
            queues |= child_rules.apply(self._children, batch.run_id, change, self._create_members, batch.now)
        run = Run.objects.using(self.alias).filter(id=batch.run_id)
        if any(change.is_dropped for change in groups):
            self._end_dropped(next(iter(self.get_many([batch.run_id]).values())), batch.now)
        if batch.awaited_groups and self._children.is_one_settled(batch.awaited_groups):
            run.filter(finished_at__isnull=True).update(wake_at=batch.now)
            queues |= set(run.values_list("queue", flat=True))
        return Committed(request=committed.request, queues_to_notify=queues)

    def _free_place(self, batch: Batch) -> frozenset[str]:
        """Let another child of a map begin if the commit holds a step of one that does not keep its place meanwhile.

        Return the queues to notify.
        """
        if batch.failure is None or not batch.failure.is_held:
            return frozenset()
        return child_rules.freed(self._children, batch.run_id, batch.now)

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

    # -- children and readers

    def give_turns(self, after: str, now: datetime) -> tuple[str, frozenset[str]] | None:
        with self._writing():
            return self._children.give_turns(after, now)

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

    def _renew_limits(self, run_id: str, now: datetime) -> None:
        limits = self.limits(run_id)
        if limits is not None:
            renewed = limits.renewed(now)
            row = RunLimit.objects.using(self.alias).filter(run_id=run_id)
            row.update(deadline=renewed.deadline, worked=renewed.worked)

    def _write_beside(self, batch: Batch) -> None:
        """Write a commit's changes of side tables, in its transaction."""
        if batch.worked is not None:
            RunLimit.objects.using(self.alias).filter(run_id=batch.run_id).update(worked=batch.worked)
        if batch.status is not None:
            self._show_committed(batch.status)
        for kind, write in WRITERS.items():
            if changes := batch.of(kind):
                write(self, batch.run_id, changes, batch.now)

    def _end_doubt(self, run_id: str, _over: Sequence[DoubtOver], _now: datetime) -> None:
        RunLimit.objects.using(self.alias).filter(run_id=run_id).update(in_doubt=None)

    def _end_holding(self, run_id: str, _over: Sequence[HeldOver], _now: datetime) -> None:
        Failure.held_no_more(self.alias, run_id)

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
                self._change_tags(run_id, [tags], tags.created_at)

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
                    released += self._released_start(run_id, due_at, now)
                except RowsLocked:
                    locked.append(run_id)
        return released

    def _released_start(self, run_id: str, due_at: datetime, now: datetime) -> list[RunRecord]:
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
            moment = child_rules.released_at(self._children, run, due_at, now, self.limits)
            change = RunChange(run=resumed(run, now=moment, summary=Summary(SummaryKind.RESUMED)))
            after = row_rules.after_change(run, change)
            if run.parent_id is not None:
                after = child_rules.held_back(self._children, run, after, now, self.limits)
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

    def learn_names(self) -> None:
        learn_names(self.alias)

    def learn_queues(self) -> None:
        learn_queues(self.alias)

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
        model.objects.using(self.alias).bulk_create(rows, batch_size=AT_ONCE)

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
    if len(rows) < AT_ONCE:  # more are most of the history
        found = found.filter(location__in=[row.location for row in rows])
    return dict(found.values_list("location", "id"))


#: How the changes of a commit are written that have their own table or statement, in this order.
WRITERS: Final[dict[type[Any], Callable[[Any, str, Any, datetime], None]]] = {
    SavedDetails: DatabaseStore._put_saves,
    TagChange: DatabaseStore._change_tags,
    DoubtOver: DatabaseStore._end_doubt,
    HeldOver: DatabaseStore._end_holding,
    SavesForgotten: DatabaseStore._forget_saves,
    ReservationDropped: DatabaseStore._drop_reservations,
    LinkOpened: DatabaseStore._open_links,
    LinkClosed: DatabaseStore._close_links,
    AwaitedEvent: DatabaseStore._put_waits,
    EventsDropped: DatabaseStore._drop_waits,
    QuestionAsked: DatabaseStore._ask,
    QuestionClosed: DatabaseStore._close_asked,
}
