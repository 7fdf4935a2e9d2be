"""Explain a run to an operator: what the run does or waits for, until when, and how the operator can act.

Reads a run's row, and its open entries if the caller passes them; decides nothing. Serves lists (a row alone, no query)
as well as a run's own page.

Builds and workers are read only for runs that need them. Workers of earlier releases, and processes without a row, are
not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.db.models import Count as CountOf
from django.db.models import Max, Q
from django.utils.translation import gettext as _

from durable.core.mistakes import has_stopped
from durable.core.names.renames import names_of_queue
from durable.core.records import EntryStatus, Hold, HoldKind, RunState
from durable.core.registry import INTERNAL
from durable.core.summary import Summary
from durable.inspection import explain_states
from durable.inspection.activities import RunningStep, activities_of
from durable.inspection.children import CountedChildren, children_left_note, failed_note, going_on_note
from durable.inspection.counting import Count, count_capped
from durable.inspection.explain_states import Explanation, Facts, recovering_note
from durable.inspection.held import HeldHere, held_of
from durable.inspection.humanize import thousands
from durable.inspection.queues import find_hold, messages_left_note
from durable.inspection.reading import read_alias
from durable.inspection.run_facts import limits_note, rank_note, waits_for_worker
from durable.inspection.undone import Undone, read_undone, stuck_step
from durable.inspection.wording import command
from durable.inspection.workers import death_note
from durable.models import Build, Entry, EntryMetadata, Failure, QueueMessage, Run, WorkerProcess
from durable.models.run import RunQuerySet
from durable.models.workers import DEAD_AFTER

_NAMED = 3  # builds that a sentence names
#: Verbs that are not offered until there is another build: the run would meet the same code again.
WITHHELD = ("recover",)
#: Verbs that are not offered for runs of durable's own workflows; see `possible_verbs`.
_NOT_OF_OWN: Final = frozenset({"send", "replay", "restart"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The builds that matter for a diverged run; "" for an unknown build.

    `recorded` is the newest build when the history was recorded, `met` the one that does not fit it. `serving` are the
    builds of the workers that take runs of its queue now. `is_alone`: all of these workers are known to have the code
    that does not fit.
    """

    recorded: str
    met: str
    serving: Sequence[str]
    is_alone: bool

    @property
    def note(self) -> str:
        """Say what an operator should know about the builds, without the last full stop; "" for nothing."""
        said = []
        if self.recorded and self.met and self.recorded != self.met:
            words = _("Recorded with the build %(recorded)s; the build %(met)s does not fit it")
            said.append(words % {"recorded": self.recorded, "met": self.met})
        elif self.met:
            said.append(_("The build %(met)s does not fit it") % {"met": self.met})
        elif self.recorded:
            said.append(_("Recorded with the build %(recorded)s") % {"recorded": self.recorded})
        others = [each for each in self.serving if each != self.met]
        if self.is_alone:
            said.append(_("No worker of its queue has another build yet: deploy one first, then recover it"))
        elif self.met and others:
            said.append(_("Workers of its queue now have %(builds)s") % {"builds": ", ".join(others[:_NAMED])})
        elif others:
            said.append(_("Workers of its queue have %(builds)s") % {"builds": ", ".join(others[:_NAMED])})
        return ". ".join(said)


def replay_check(workflow: str) -> str:
    """Return the command that checks whether recorded runs of the workflow fit this code."""
    return command("replay-check", workflow=workflow)


def misfit_of(run: Run, now: datetime) -> Misfit:
    """Return the builds that matter for a run that diverged or was stopped by a mistake; at most four statements."""
    living = _living(now)
    if run.state == RunState.FAILED:
        failure = Failure.objects.using(read_alias()).filter(run=run).first()
        met, since = ("", run.finished_at or now) if failure is None else (failure.build, failure.failed_at)
    else:
        builds = _builds(living, run.queue)
        met, since = builds[0] if len(builds) == 1 else "", run.diverged_at or now
    recorded = ""
    if met or Build.objects.using(read_alias()).exists():
        entries = EntryMetadata.objects.using(read_alias()).filter(entry__run=run)
        newest = entries.aggregate(newest=Max("created_at"))["newest"] or run.started_at or run.created_at
        named = Build.objects.using(read_alias()).filter(first_seen_at__lte=newest).order_by("-first_seen_at")
        recorded = named.values_list("name", flat=True).first() or ""
    return Misfit(
        recorded=recorded,
        met=met,
        serving=_builds(living, run.queue),
        is_alone=run.state == RunState.FAILED and _is_alone(living, run.queue, met, since),
    )


def misfits_of_failed(ids: Iterable[str], now: datetime) -> set[str]:
    """Return the failed runs that no worker with other code could take; two statements, none without ids."""
    wanted = list(ids)
    if not wanted:
        return set()
    living = _living(now)
    failures = Failure.objects.using(read_alias()).filter(run__in=wanted)
    return {each.run_id for each in failures if _is_alone(living, each.queue, each.build, each.failed_at)}


def _living(now: datetime) -> list[WorkerProcess]:
    rows = WorkerProcess.objects.using(read_alias()).filter(last_seen_at__gte=now - DEAD_AFTER)
    # all of them: any may be the only one that serves a queue
    return list(rows.exclude(state=WorkerProcess.State.STOPPING).order_by("-started_at"))


def _serving(living: Iterable[WorkerProcess], queue: str) -> list[WorkerProcess]:
    names = names_of_queue(queue)
    return [each for each in living if each.serves_all or any(name in each.queues for name in names)]


def _builds(living: Iterable[WorkerProcess], queue: str) -> list[str]:
    """Return the named builds of the queue's workers, that of the newest worker first."""
    return list(dict.fromkeys(each.build for each in _serving(living, queue) if each.build))


def _is_alone(living: Iterable[WorkerProcess], queue: str, met: str, since: datetime) -> bool:
    """Return whether all workers of the queue are known to have the code that met the run at `since`.

    Without names of builds, a worker that began later may have other code.
    """
    serving = _serving(living, queue)
    if met:
        return bool(serving) and all(each.build == met for each in serving)
    return bool(serving) and all(each.started_at <= since for each in serving)


_CAP: Final = 1_000  # runs that are counted


def backlog_note(run: Run, now: datetime) -> str:
    """Say how many runs are due before this one, and how many workers of its queue are busy, without a full stop.

    "" if no worker has to take the run now, or nothing is before it. At most three statements.
    """
    if not waits_for_worker(run, now):
        return ""
    before = _before(run, now) if run.head_start is None else None  # those with a rank have an order of their own
    workers, busy = _workers(run.queue, now)
    said = []
    if before:
        said.append(_("Due before it: %(number)s of its queue") % {"number": before})
    if busy:
        told = {"busy": thousands(busy), "workers": thousands(workers)}
        said.append(_("%(busy)s of %(workers)s workers that serve its queue are busy") % told)
    return ". ".join(said)


def _before(run: Run, now: datetime) -> Count:
    due = Run.objects.using(read_alias()).filter(queue=run.queue, wake_at__isnull=False)
    due = due.exclude(state=RunState.PAUSED.value).filter(wake_at__lte=run.wake_at)
    due = due.exclude(wake_at=run.wake_at, id__gte=run.id)
    free = due.filter(Q(lease_expires_at=None) | Q(lease_expires_at__lte=now)).order_by("queue", "wake_at", "id")
    [before] = count_capped([free], _CAP)
    return before


def _workers(queue: str, now: datetime) -> tuple[int, int]:
    """Count the workers that serve the queue, and those among them that execute as many runs as they can."""
    slots = {each.name: each.slots for each in _serving(_living(now), queue)}
    if not slots:
        return 0, 0
    held = Run.objects.using(read_alias()).filter(lease_expires_at__gt=now, worker__in=list(slots))
    numbers = dict(held.order_by().values_list("worker").annotate(CountOf("pk")))  # a row for each worker
    return len(slots), sum(numbers.get(name, 0) >= number for name, number in slots.items())


MOST_OPEN: Final = 50  # open entries that an explanation reads
_MOST_MESSAGES: Final = 1_000


def explain(
    run: Run,
    now: datetime,
    entries: Sequence[Entry] = (),
    unreceived: int | None = None,
    undone: Undone | None = None,
    undone_by_code: int = 0,
    stuck_at: str = "",
    running: Sequence[RunningStep] = (),
    paused: Hold | None = None,
    within: RunQuerySet | None = None,
    asked: Sequence[HeldHere] = (),
) -> Explanation:
    """Explain what the run does at `now`.

    `entries` are its open entries with their metadata, see `open_entries`; without them the row alone is used.
    `unreceived` is the number of unreceived messages in its inbox, None if they were not counted. `undone` are the
    steps undone by its compensation (None for none, or if they were not read), and `undone_by_code` the number of those
    undone by its code (`ctx.compensate`); see `read_undone`. `stuck_at` is the step whose rollback handler has stopped
    the compensation; "" if it was not read. `running` are the running steps, the oldest first; see `activities_of`.
    `paused` is the hold of the run's queue, or None. `within` are the runs that the reader may see, None for all:
    others are neither named nor counted. `asked` are the steps that wait for a person, if they were read; see
    `durable.inspection.held`.
    """
    facts = Facts(run, now, entries, unreceived, undone, undone_by_code, stuck_at, running, paused, within, asked)
    found = explain_states.in_paused_queue(facts) or _BY_STATE[RunState(run.state)](facts)
    if run.workflow.startswith(INTERNAL):
        found = replace(found, remedies=tuple(each for each in found.remedies if each not in _NOT_OF_OWN))
    return explain_states.with_questions(facts, found)


def explain_fully(
    run: Run,
    now: datetime,
    open_keys: Sequence[int] | None = None,
    children: CountedChildren | None = None,
    *,
    within: RunQuerySet | None = None,
    with_payloads: bool = False,
) -> Explanation:
    """Explain a run with all available data.

    Two queries more than `explain`, up to three more for a run that a worker has, and one more if that worker has not
    renewed its lease. `open_keys` are those of `progress_of`, so that a long history is not searched again, and
    `children` the counts of `count_children`, if the caller has them. `within` is that of `explain`. `with_payloads`:
    the arguments of steps that wait for a person are shown.

    One more for a run in line, for the hold of its queue. Five more for a run that is due, for that, the runs and
    workers before it, and the ranks of its runs; three more where some have one. Two for a paused run, for its
    children. Three for a run that undid steps in scopes. One more for a run that has ended with children that are left
    to be cancelled, and two for one to which messages were sent. For a completed run one, and two if it has children.
    Up to five for a run with steps that wait for a person.
    """
    found = _explained_fully(run, now, open_keys, within, with_payloads=with_payloads)
    if run.finished_at is None:
        notes = [rank_note(run, now) if within is None else "", limits_note(run, now)]
    else:
        notes = [children_left_note(run, within), messages_left_note(run, within), failed_note(run, children, within)]
    return _with_notes(found, notes)


def _explained_fully(
    run: Run,
    now: datetime,
    open_keys: Sequence[int] | None,
    within: RunQuerySet | None,
    *,
    with_payloads: bool,
) -> Explanation:
    if run.diverged_at is not None and run.state in (RunState.SLEEPING, RunState.ROLLING_BACK):
        return _with_builds(explain(run, now, within=within), run, now)
    if run.state in (RunState.FAILED, RunState.CANCELLED):
        undone, undone_by_code = read_undone(run.id)
        entries, stuck = open_entries(run.id, open_keys), stuck_step(run)
        stuck_at = "" if stuck is None else stuck.location
        found = explain(run, now, entries, undone=undone, undone_by_code=undone_by_code, stuck_at=stuck_at)
        return _with_builds(found, run, now) if _is_misfit(run) else found
    unreceived = QueueMessage.objects.using(read_alias()).filter(run=run, state="pending").order_by("order")
    running = activities_of(run, now, within)
    is_due = run.wake_at is not None and run.wake_at <= now
    paused = find_hold(HoldKind.QUEUE, run.queue) if is_due or Summary.load(run.summary).is_in_line else None
    unread = unreceived[:_MOST_MESSAGES].count()
    entries = open_entries(run.id, open_keys)
    is_asked = any(each.metadata.status == EntryStatus.HELD for each in entries)
    asked = held_of(run, with_payloads=with_payloads) if is_asked else ()
    found = explain(run, now, entries, unread, running=running, paused=paused, within=within, asked=asked)
    notes = [
        recovering_note(run, entries) if within is None else "",
        going_on_note(run, within) if run.state == RunState.PAUSED else "",
        backlog_note(run, now) if paused is None and within is None else "",
        death_note(run, now),
    ]
    return _with_notes(found, notes)


def _is_misfit(run: Run) -> bool:
    """Return whether a divergence or a mistake in the code has stopped the run."""
    is_diverged = run.error is not None and run.error.type == "HistoryDivergedError"
    return run.state == RunState.FAILED and (is_diverged or has_stopped(run.summary))


def _with_builds(found: Explanation, run: Run, now: datetime) -> Explanation:
    """Add the builds that matter for a diverged run, and withhold verbs that would meet the same code again."""
    misfit = misfit_of(run, now)
    withheld = WITHHELD if misfit.is_alone else ()
    return replace(
        _with_notes(found, [misfit.note]),
        remedies=tuple(each for each in found.remedies if each not in withheld),
        withheld=withheld,
        command=replay_check(run.workflow),
    )


def _with_notes(found: Explanation, notes: Sequence[str | None]) -> Explanation:
    said = [each for each in notes if each]
    return replace(found, detail=". ".join(filter(None, [found.detail.rstrip("."), *said]))) if said else found


def open_entries(run_id: str, open_keys: Sequence[int] | None = None) -> list[Entry]:
    """Return the run's uncompleted entries, at most `MOST_OPEN`, in the order in which they began, without payloads.

    See `explain_fully` for `open_keys`.
    """
    entries = Entry.objects.using(read_alias())
    if open_keys is None:
        found = entries.few_of(run_id, ~Q(status=EntryStatus.COMPLETED.value))
    else:
        found = entries.filter(run=run_id, pk__in=open_keys).exclude(metadata__status=EntryStatus.COMPLETED.value)
    found = found.select_related("metadata").defer("output", "arguments", "data")
    return list(found.order_by("ordinal")[:MOST_OPEN])


_BY_STATE: Final[Mapping[RunState, Callable[[Facts], Explanation]]] = {
    RunState.PENDING: explain_states.pending,
    RunState.RUNNING: explain_states.running,
    RunState.SLEEPING: explain_states.sleeping,
    RunState.PAUSED: explain_states.paused,
    RunState.ROLLING_BACK: explain_states.rolling_back,
    RunState.COMPLETED: explain_states.completed,
    RunState.FAILED: explain_states.failed,
    RunState.CANCELLED: explain_states.cancelled,
}
