"""Findings that need an operator: each with the number of runs concerned, a few of those runs, and advice.

All queries follow an index and stop at a cap; none of them grows with the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db.models import F, Value
from django.db.models.functions import Substr
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from durable.core.outcomes import HeldReason
from durable.core.records import ENDED, Hold, RunState
from durable.core.registry import BULK, is_stopped
from durable.core.summary import KIND_LENGTH, SummaryKind, kind_of_stored
from durable.core.witnesses import LOST_COMMITS
from durable.inspection.activities import MOST_ACTIVITIES, hung_steps
from durable.inspection.causes import NEWEST, FailedRun, failed_runs
from durable.inspection.counting import Count, added, count_capped, moment_of, sample_rows
from durable.inspection.database import LAST_ID, OldSnapshot, TransactionIds, old_snapshots_and_ids
from durable.inspection.explain_states import LATE
from durable.inspection.explanation import replay_check
from durable.inspection.held import reason_of_stored
from durable.inspection.humanize import quoted, shortened, span, thousands, with_reason
from durable.inspection.limits import LongLine, OldSlot, StillLine, slot_troubles
from durable.inspection.queues import CAP as HELD_CAP
from durable.inspection.queues import all_holds, completed_with_messages, count_held_starts
from durable.inspection.reading import read_alias
from durable.inspection.runs import RunCriteria
from durable.inspection.schedules import troubled_ticks
from durable.inspection.wording import command, worker_command
from durable.inspection.workers import QueueState, Workers
from durable.inspection.workflows import each_once
from durable.models import DatabaseMark, OperatorAction, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet
from durable.models.workers import ONLY
from durable.retention import LATE as LATE_PRUNING
from durable.retention import waiting_since

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

SHOWN: Final = 5  # runs listed by each finding
CAP: Final = 1_000  # runs to count
BULKS: Final = 200  # newest bulks to search for stopped ones
LONG: Final = 3600.0  # seconds after which an old snapshot needs attention; a dump takes less
_Row = tuple[str, str, datetime]  # a run's id, its workflow, and since when the finding has been true
_OPEN: Final = frozenset(state.value for state in RunState if state not in ENDED)
_DAY: Final = timedelta(days=1)
_GONE = timedelta(seconds=15)  # a worker whose lease ended this long ago is not just slow

DIVERGED = "HistoryDivergedError"
EXHAUSTED = "StepExhaustedError"
#: Each kind of finding. `Finding` has them too, for readers.
KINDS: Final = frozenset(
    {
        *("held", "exhausted", "failed", "crashed", "diverged", "mistake", "rollback_failed", "wait_overdue"),
        *("unclaimed", "stale_lease", "bulk_stopped", "hung_step", "schedule_late", "tick_refused", "tick_missed"),
        *("slot_free", "slot_idle", "line_still", "line_long", "slot_kept", "no_worker", "unknown_queue"),
        *("queue_paused", "starts_held", "messages_left", "redis", "old_snapshot", "database_behind"),
        *("database_held", "commits_lost", "retention_late", "transaction_ids", "end_refused"),
    }
)
_BY_CAUSE: Final = gettext_lazy(
    "`durable causes` lists failed runs by cause, and `durable recover --cause` recovers those of one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding: `kind` is a stable word, `title` and `advice` are for people.

    `runs` holds a few runs, as (id, workflow), and `workflows` the number of the counted runs by workflow, the highest
    number first. `since` is when it began, None if that is not known. `wanted` is the filter of a list with its runs,
    or None. `command` is a shell command that may end it, or "". `location` is the place concerned in the first run, or
    "". `names` are the schedules or limits concerned, and `period` the first and the last moment concerned of the first
    schedule.

    Kinds: held, exhausted, failed, crashed, diverged, mistake, rollback_failed, wait_overdue, unclaimed, stale_lease,
    bulk_stopped, hung_step, schedule_late, tick_refused, tick_missed, slot_free, slot_idle, line_still, line_long,
    slot_kept, no_worker, unknown_queue, queue_paused, starts_held, messages_left, redis, old_snapshot, database_behind,
    database_held, commits_lost, retention_late, transaction_ids, end_refused.
    `is_urgent`: the runs concerned do not continue until an operator acts.
    """

    kind: str
    title: str
    advice: str
    count: Count
    runs: Sequence[tuple[str, str]] = ()
    is_urgent: bool = True
    since: datetime | None = None
    workflows: Sequence[tuple[str, int]] = ()
    wanted: RunCriteria | None = None
    command: str = ""
    location: str = ""
    names: Sequence[str] = ()
    period: tuple[datetime, datetime] | None = None


def collect_findings(now: datetime, workers: Workers, *, failed: Sequence[FailedRun] | None = None) -> list[Finding]:
    """Return the findings at `now`, the most urgent first; [] if there are none.

    `workers` and `failed` are the results of `worker_overview()` and `failed_runs()`, which a page also shows.
    """
    runs: RunQuerySet = Run.objects.using(read_alias())
    failed = failed_runs() if failed is None else failed
    paused, held = all_holds()
    slots = slot_troubles(now)
    stale, diverging, held_rows, unreceived = _few_rows(runs, now)
    snapshots, ids = old_snapshots_and_ids()
    unserved = _unserved(workers)
    told = {*paused, *(queue.name for queue in unserved)}
    served = [queue.name for queue in workers.queues if queue.has_runs and queue.name not in told]
    return [
        *_gone_back(),
        *_surroundings(workers, unserved, runs, now),
        *_lost_commits(runs, now),
        *_paused(paused, runs, now),
        *_held_starts(held),
        *_overdue(runs, now, served),
        *_waiting_for_person(held_rows),
        *_leases(stale),
        *_stopped_bulks(runs),
        *_hung(now),
        *_schedules(now),
        *_lines(slots.still),
        *_idle_slots(slots.idle),
        *_kept_slots(slots.kept),
        *_long_lines(slots.long),
        *_diverging(diverging),
        *_failed(failed),
        *_messages_left(unreceived),
        *_snapshots(snapshots),
        *_transaction_ids(ids),
        *_retention(now),
    ]


def _gone_back() -> Iterator[Finding]:
    """Yield the finding of a database that is behind its mark, or whose open runs are being paused
    or put in doubt.

    The sweep has noted both in the database: a standby that is read here lags, and looks as if it had gone back.
    """
    row = DatabaseMark.objects.using(read_alias()).filter(pk=ONLY).first()
    if row is None or (row.mark_at is None and row.holding_since is None):
        return
    if row.mark_at is None:
        title = _(
            "Open runs are being paused, or put in doubt, after a restore; workers claim nothing until all of them are"
        )
        advice = _("The sweep of a durable_worker does that, and workers then go on by themselves.")
        yield Finding(
            kind="database_held",
            title=title,
            advice=advice,
            count=Count(number=1),
            is_urgent=False,
            since=row.holding_since,
            names=[row.name],
        )
        return
    lost = (row.mark_at - row.written_at).total_seconds()
    if lost > 0:
        title = _("The database went back in time, by %(span)s, and workers claim nothing") % {"span": span(lost)}
    else:
        title = _("Two databases with one name are in use, and workers claim nothing in this one")
    advice = _(
        "A backup was restored, a standby that lagged was promoted, or this database is a copy. It is as of %(as_of)s; its "
        "mark was written at %(mark_at)s. What runs did outside of the database after that will be done again. `durable "
        "restored` lists them, and lets workers go on."
    ) % {
        "as_of": f"{row.written_at:%Y-%m-%d %H:%M:%S} UTC",
        "mark_at": f"{row.mark_at:%Y-%m-%d %H:%M:%S} UTC",
    }
    yield Finding(
        kind="database_behind",
        title=title,
        advice=advice,
        count=Count(number=1),
        since=row.written_at,
        command=command("restored"),
        names=[row.name],
    )


def _unserved(workers: Workers) -> list[QueueState]:
    """Return the queues that need a worker and have none; [] if Redis could not be queried."""
    if workers.problem:
        return []
    # Without Redis, a worker of the previous release is known only while it holds a run.
    needed = [queue for queue in workers.queues if queue.has_runs or (queue.has_workflows and workers.uses_redis)]
    return [queue for queue in needed if not queue.workers or not queue.is_known]


def _surroundings(
    workers: Workers, unserved: Sequence[QueueState], runs: RunQuerySet, now: datetime
) -> Iterator[Finding]:
    if workers.problem:
        advice = _(
            "Workers of durable_worker poll the database until Redis is back; plain RQ workers execute nothing meanwhile. "
            "Check RQ_QUEUES in the settings, and the Redis server."
        )
        yield Finding(kind="redis", title=workers.problem, advice=advice, count=Count(number=1))
        return
    due = [runs.due(now).filter(queue=queue.name).order_by("wake_at", "id") for queue in unserved]
    found = sample_rows(due, ["wake_at"], CAP + 1)
    yield from (
        _without_worker(queue, [moment_of(since) for (since,) in rows])
        for queue, rows in zip(unserved, found, strict=True)
    )


def _without_worker(queue: QueueState, due: Sequence[datetime]) -> Finding:
    """Return the finding of a queue without a worker, which has had due runs since `due`."""
    if not queue.is_known:
        kind, title = "unknown_queue", _('RQ_QUEUES lacks the queue "%(queue)s", which runs want')
        advice = _(
            "Add it to RQ_QUEUES and start a worker for it, or move its runs to another queue: no worker is notified of them."
        )
    else:
        kind, title = "no_worker", _('No worker serves the queue "%(queue)s"')
        text = (
            _("Move its runs to another queue, or start one: %(command)s")
            if queue.has_runs
            else _("Start one: %(command)s")
        )
        advice = text % {"command": worker_command(queue.name)}
    return Finding(
        kind=kind,
        title=title % {"queue": queue.name},
        advice=advice,
        count=Count.up_to(CAP, len(due)),
        is_urgent=queue.has_runs,
        since=min(due, default=None),
        wanted=RunCriteria(queue=queue.name),
        command=worker_command(queue.name) if queue.is_known else "",
    )


def _lost_commits(runs: RunQuerySet, now: datetime) -> Iterator[Finding]:
    """Yield the finding of runs of which the database lost commits within the last day.

    Workers log that twice for each run, once without the run, so that an index finds it among few rows.
    """
    notes = OperatorAction.objects.using(read_alias()).filter(action=LOST_COMMITS)
    newest = notes.filter(run_id="", created_at__gte=now - _DAY).order_by("-created_at", "-id")
    moments = list(newest.values_list("created_at", flat=True)[: CAP + 1])
    if not moments:
        return
    noted = dict(notes.filter(created_at__in=moments).exclude(run_id="").values_list("run_id", "created_at"))
    seen = runs.filter(id__in=list(noted)).order_by("id").values_list("id", "workflow")
    rows = [_row(run_id, workflow, noted[run_id]) for run_id, workflow in seen]
    if not rows:
        return
    title = ngettext(
        "The database has lost commits of a run that it had answered",
        "The database has lost commits of runs that it had answered",
        len(rows),
    )
    advice = _(
        "A standby that lagged was promoted, or a backup was restored. What was missing has been done again: what a "
        "step does outside this database may have happened twice. Runs that no worker was executing may have lost "
        "steps, messages and starts as well. Let commits wait for a standby, if that must not happen."
    )
    yield replace(_finding("commits_lost", title, advice, rows, None), is_urgent=False)


def _paused(paused: Mapping[str, Hold], runs: RunQuerySet, now: datetime) -> Iterator[Finding]:
    due = [runs.due(now).filter(queue=queue).order_by("wake_at", "id") for queue in paused]
    yield from (
        Finding(
            kind="queue_paused",
            title=with_reason(
                (
                    _('The queue "%(queue)s" is paused by %(who)s')
                    if hold.held_by
                    else _('The queue "%(queue)s" is paused')
                )
                % {"queue": name, "who": hold.held_by},
                hold.reason,
            ),
            advice=_("No worker takes its runs. Resume it once the reason is gone."),
            count=count,
            is_urgent=False,
            since=hold.held_at,
            wanted=RunCriteria(queue=name),
            command=command("resume-queue", name),
        )
        for (name, hold), count in zip(paused.items(), count_capped(due, CAP) if due else [], strict=True)
    )


def _held_starts(held: Mapping[str, Hold]) -> Iterator[Finding]:
    if not held:
        return
    workflows = each_once(held)
    counts = count_held_starts(name for each in workflows for name in each.names)
    found = [(each, hold) for each in workflows if (hold := each.among(held)) is not None]
    yield from (
        Finding(
            kind="starts_held",
            title=with_reason(
                (
                    _('New starts of the workflow "%(workflow)s" are held by %(who)s')
                    if hold.held_by
                    else _('New starts of the workflow "%(workflow)s" are held')
                )
                % {"workflow": each.name, "who": hold.held_by},
                hold.reason,
            ),
            advice=_("New runs of it wait, paused. A release resumes them."),
            count=added((counts[name] for name in each.names), HELD_CAP),
            is_urgent=False,
            since=hold.held_at,
            wanted=RunCriteria(workflow=each.name, states=frozenset({RunState.PAUSED.value})),
            command=command("release", each.name),
        )
        for each, hold in found
    )


def _snapshots(found: Sequence[OldSnapshot]) -> Iterator[Finding]:
    if not found:
        return
    shown = found[:SHOWN]
    advice = _(
        "%(advice)s. Until then vacuum removes nothing that was alive when it began: tables and indexes grow, and all "
        "questions get slower."
    ) % {"advice": ". ".join(each.advice for each in shown)}
    title = _("An old snapshot holds vacuum up: %(holders)s") % {"holders": "; ".join(each.holder for each in shown)}
    is_urgent = any(each.seconds is not None and each.seconds >= LONG for each in found)
    yield Finding(kind="old_snapshot", title=title, advice=advice, count=Count(number=len(found)), is_urgent=is_urgent)


def _transaction_ids(ids: TransactionIds | None) -> Iterator[Finding]:
    if ids is None or not ids.is_old:
        return
    title = _(
        'The oldest transaction ids of the database "%(database)s" are %(age)s transactions old, and autovacuum freezes '
        "them at %(freezes_at)s; at %(last)s the server refuses to write"
    ) % {
        "database": ids.database,
        "age": thousands(ids.age),
        "freezes_at": thousands(ids.freezes_at),
        "last": thousands(LAST_ID),
    }
    advice = _(
        "End what holds an old snapshot (`durable doctor` names it). If nothing does, autovacuum is too slow: set "
        "autovacuum_vacuum_cost_delay = 0, and run VACUUM (FREEZE) there on the tables that this lists first: "
        "%(command)s"
    ) % {"command": "SELECT oid::regclass, age(relfrozenxid) FROM pg_class WHERE relkind IN ('r', 'm') ORDER BY 2 DESC"}
    count = Count(number=1)
    yield Finding(kind="transaction_ids", title=title, advice=advice, count=count, is_urgent=ids.is_urgent)


def _retention(now: datetime) -> Iterator[Finding]:
    since = waiting_since(read_alias())
    if since is None or (now - since).total_seconds() < LATE_PRUNING:
        return
    title = _("Runs past their RETENTION have waited to be deleted for %(span)s") % {
        "span": span((now - since).total_seconds())
    }
    advice = _(
        "The sweep of each durable_worker deletes them, several at once: start another durable_worker, or run `durable prune`. "
        "If that does not help, the log says what fails. After RETENTION was shortened, this ends by itself."
    )
    yield Finding(
        kind="retention_late", title=title, advice=advice, count=Count(number=1), is_urgent=False, since=since
    )


def _overdue(runs: RunQuerySet, now: datetime, queues: Sequence[str]) -> Iterator[Finding]:
    # By queue, and in one statement: the index of due runs begins with the queue.
    late = [runs.due(now - LATE).filter(queue=queue).order_by("wake_at", "id") for queue in queues]
    found = sample_rows(late, ["id", "workflow", "wake_at", "waiting_for"], CAP + 1)
    rows = [row for each in found for row in each]
    waits = [_row(*row[:3]) for row in rows if row[3]]
    others = [_row(*row[:3]) for row in rows if not row[3]]
    advice = _(
        "Check that workers serve their queues, and that one of them is a durable_worker, which has the timer and the sweep."
    )
    wanted = RunCriteria(states=_OPEN - {RunState.RUNNING.value, RunState.PAUSED.value}, needs_attention=True)
    command = worker_command()
    if waits:
        title = _("Waits past their deadline, or with their message there, that no worker has taken")
        yield _finding("wait_overdue", title, advice, waits, wanted, command)
    if others:
        title = _("Due runs that no worker has taken")
        yield _finding("unclaimed", title, advice, others, wanted, command)


def _few_rows(
    runs: RunQuerySet, now: datetime
) -> tuple[list[_Row], list[tuple[_Row, str]], list[tuple[_Row, str]], list[_Row]]:
    """Return four lists of runs: those whose workers are gone; diverged and held ones, both with the beginnings of
    their summaries; and completed ones that left messages.

    Four indexes with few runs or a cap, and one statement.
    """
    stale = runs.filter(lease_expires_at__lt=now - _GONE).order_by("lease_expires_at")
    diverging = runs.open().filter(diverged_at__isnull=False).order_by("diverged_at")
    held = runs.filter(failure__is_held=True).order_by("failure__run_created_at", "failure__run_id")
    sources = [
        stale.annotate(moment=F("lease_expires_at"), beginning=Value("")),
        diverging.annotate(moment=F("diverged_at"), beginning=Substr("summary", 1, KIND_LENGTH)),
        held.annotate(moment=F("failure__failed_at"), beginning=Substr("summary", 1, KIND_LENGTH)),
        completed_with_messages(runs, now, CAP).annotate(moment=F("finished_at"), beginning=Value("")),
    ]
    found = [
        [(_row(*row), str(unpack(beginning))) for *row, beginning in rows]
        for rows in sample_rows(sources, ["id", "workflow", "moment", "beginning"], CAP + 1)
    ]
    stale_rows, diverging_rows, held_rows, unreceived_rows = found
    without = [[row for row, _beginning in each] for each in (stale_rows, unreceived_rows)]
    return without[0], diverging_rows, held_rows, without[1]


def _waiting_for_person(found: Sequence[tuple[_Row, str]]) -> Iterator[Finding]:
    if not found:
        return
    rows = [row for row, _beginning in found]
    unknown = sum(reason_of_stored(beginning) == HeldReason.UNKNOWN for _row, beginning in found)
    title = ngettext("A run has a step that waits for a person", "Runs have steps that wait for a person", len(rows))
    advice = _(
        "The page of a run asks: was it done? Settle the step: it was done (with its result), it was not, or it fails. A "
        "recovery tries a step again whose attempts are used up, and asks verify about one that may have been done."
    )
    if unknown:
        asked = ngettext(
            "Of %(number)s run nobody knows whether its step was done.",
            "Of %(number)s runs nobody knows whether their steps were done.",
            unknown,
        )
        advice = f"{asked % {'number': thousands(unknown)}} {advice}"
    yield _finding("held", title, advice, rows, RunCriteria(is_held=True), command("why", rows[0][0]))


def _leases(rows: Sequence[_Row]) -> Iterator[Finding]:
    if not rows:
        return
    title = _("Runs held by workers that give no sign of life")
    advice = _("Their workers are gone and no other has taken them over: start a worker for their queue.")
    wanted = RunCriteria(states=frozenset({RunState.RUNNING.value}), needs_attention=True)
    yield _finding("stale_lease", title, advice, rows, wanted, worker_command())


def _schedules(now: datetime) -> Iterator[Finding]:
    late, refused, missed = sample_rows(troubled_ticks(now, now - _DAY), ["name", "since", "moment"], CAP + 1)
    if late:
        title = ngettext("The schedule %(names)s is late", "Schedules are late: %(names)s", len(late))
        advice = _(
            "Its moment has passed, and no ticker has taken it. Keep a durable_worker running: it has the ticker."
        )
        yield _of_ticks("schedule_late", title, advice, late)
    if refused:
        title = _("Ticks of schedules were refused in the last day: %(names)s")
        advice = _("Their runs were not started. The page of the schedule says why; correct it, then run it now.")
        yield _of_ticks("tick_refused", title, advice, refused, is_past=True)
    if missed:
        title = _("Moments of schedules were missed in the last day: %(names)s")
        advice = _("No ticker ran at these moments. A backfill starts their runs.")
        yield _of_ticks("tick_missed", title, advice, missed, is_past=True)


def _of_ticks(kind: str, title: str, advice: str, rows: Sequence[tuple[Any, ...]], *, is_past: bool = False) -> Finding:
    """Return a finding about ticks. With `is_past` it is not urgent, and its command is about the first schedule."""
    names = list(dict.fromkeys(unpack(name) for name, _since, _moment in rows))
    moments = [moment_of(moment) for name, _since, moment in rows if unpack(name) == names[0]]
    period = min(moments), max(moments)
    how = command("schedules", names[0]) if is_past else worker_command()
    if kind == "tick_missed":
        how = command("backfill", names[0], *(moment.isoformat() for moment in period))
    return Finding(
        kind=kind,
        title=title % {"names": ", ".join(quoted(shortened(each)) for each in names[:SHOWN])},
        advice=advice,
        count=Count.up_to(CAP, len(rows)),
        is_urgent=not is_past,
        since=min(moment_of(since) for _name, since, _moment in rows),
        command=how,
        names=names,
        period=period,
    )


def _lines(lines: Sequence[StillLine]) -> Iterator[Finding]:
    stuck = [line for line in lines if line.has_free_slot]
    full = [line for line in lines if not line.has_free_slot]
    if stuck:
        title = _("Runs wait in line although a slot is free: %(limits)s")
        advice = _(
            "A durable_worker gives free slots to those who wait, within seconds. Keep one running, and look at its log."
        )
        yield _of_slots("slot_free", title, advice, stuck, worker_command(), is_urgent=True)
    if full:
        title = _("Lines of limits that have not moved for an hour: %(limits)s")
        advice = _(
            "Look at the runs that hold the slots: resume or cancel them, or raise the limit. The page Limits names them."
        )
        yield _of_slots("line_still", title, advice, full, command("limits", full[0].limit), is_urgent=False)


def _long_lines(lines: Sequence[LongLine]) -> Iterator[Finding]:
    if not lines:
        return
    title = _("Many runs wait in line for limits whose slots are all taken: %(limits)s")
    advice = _(
        "The lines move: a run goes on as soon as a slot is given up. If they grow, raise the limit, or start less. The page "
        "of the limit says who holds the slots."
    )
    found = _of_slots("line_long", title, advice, lines, command("limits", lines[0].limit), is_urgent=False)
    yield replace(found, count=added((line.waiting for line in lines), CAP))


def _kept_slots(slots: Sequence[OldSlot]) -> Iterator[Finding]:
    if not slots:
        return
    title = _("Slots of limits that runs have held for a day without going on: %(limits)s")
    advice = _("These runs are paused, or their history does not fit the code. Resume, mend or cancel them.")
    found = _of_slots("slot_kept", title, advice, slots, command("show", slots[0].run_id), is_urgent=False)
    yield replace(found, workflows=Counter(slot.workflow for slot in slots).most_common())


def _idle_slots(slots: Sequence[OldSlot]) -> Iterator[Finding]:
    if not slots:
        return
    title = _("Sleeping runs hold slots of limits that are for their steps alone: %(limits)s")
    advice = _(
        "Others wait for these slots, or the runs themselves. A durable_worker takes them back within two minutes. To have "
        "it done now, wake the runs."
    )
    found = _of_slots("slot_idle", title, advice, slots, command("wake", slots[0].run_id), is_urgent=True)
    yield replace(found, workflows=Counter(slot.workflow for slot in slots).most_common())


def _of_slots(kind: str, title: str, advice: str, slots: Sequence[OldSlot], how: str, *, is_urgent: bool) -> Finding:
    """Return a finding about these slots, whose title names the first limits."""
    labels = list(dict.fromkeys(slot.label for slot in slots))
    return Finding(
        kind=kind,
        title=title % {"limits": ", ".join(quoted(shortened(each)) for each in labels[:SHOWN])},
        advice=advice,
        count=Count.up_to(CAP, len(slots)),
        runs=[(slot.run_id, slot.workflow) for slot in slots[:SHOWN]],
        is_urgent=is_urgent,
        since=min(slot.since for slot in slots),
        command=how,
        names=list(dict.fromkeys(slot.limit for slot in slots)),
    )


def _stopped_bulks(runs: RunQuerySet) -> Iterator[Finding]:
    bulks = runs.filter(workflow=BULK).order_by("-created_at", "-id")
    newest = bulks.values_list("id", "workflow", "created_at", "state", "waiting_for")[:BULKS]
    rows = [_row(*row) for *row, state, waiting_for in newest if is_stopped(BULK, state, waiting_for)]
    if not rows:
        return
    title = ngettext(
        "A bulk has stopped after its first runs and waits for a decision",
        "Bulks have stopped after their first runs and wait for a decision",
        len(rows),
    )
    advice = _("Too many of the first runs failed again, or did not end in time. Go on with the rest, or stop there.")
    yield _finding("bulk_stopped", title, advice, rows, None, command("bulk", rows[0][0]))


def _hung(now: datetime) -> Iterator[Finding]:
    found = hung_steps(now)
    if not found:
        return
    oldest = found[0]
    advice = _(
        "Look at what they wait for: ask the worker for the stack. To end the attempt as its timeout would, abandon it; the "
        "step's own policy decides about the next one. The oldest: %(step)s, run %(run)s, worker %(worker)s."
    ) % {"step": oldest.words_of_minute, "run": oldest.run_id, "worker": oldest.worker}
    workflows = Counter(step.workflow for step in found)
    yield Finding(
        kind="hung_step",
        title=_("Steps that have run for far longer than usual"),
        advice=advice,
        count=Count(number=len(found), is_capped=len(found) >= MOST_ACTIVITIES),
        runs=[(step.run_id, step.workflow) for step in found[:SHOWN]],
        since=oldest.began_at,
        workflows=workflows.most_common(),
        command=command("running"),
        location=oldest.location,
    )


def _diverging(rows: Sequence[tuple[_Row, str]]) -> Iterator[Finding]:
    mistaken: list[_Row] = []
    unended: list[_Row] = []
    others: list[_Row] = []
    lists = {SummaryKind.MISTAKE: mistaken, SummaryKind.END_REFUSED: unended}
    for row, beginning in rows:
        lists.get(kind_of_stored(beginning), others).append(row)
    wanted = RunCriteria(states=_OPEN, is_diverged=True)
    if mistaken:
        title = _("Runs that meet a mistake in the workers' code")
        advice = _("If no deploy is under way: fix the code. Nothing is undone meanwhile.")
        yield _finding("mistake", title, advice, mistaken, wanted, replay_check(mistaken[0][1]))
    if unended:
        title = _("Runs that cannot end, because the on_end of their workflow fails")
        advice = _(
            "Fix the function and deploy it: the runs then end by themselves. Nothing of their ends was written."
        )
        yield _finding("end_refused", title, advice, unended, wanted)
    if others:
        title = _("Runs whose history the workers' code does not fit")
        advice = _(
            "If no deploy is under way: fix the code with ctx.removed() or ctx.get_version(), or bring back the workflow."
        )
        yield _finding("diverged", title, advice, others, wanted, replay_check(others[0][1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    kind: str
    title: StrPromise
    advice: StrPromise
    concerns: Callable[[FailedRun], bool]
    by_cause: bool = False

    @property
    def advices(self) -> str:
        """The advice, with how to find the other causes if there may be many."""
        return f"{self.advice} {_BY_CAUSE}" if self.by_cause else str(self.advice)


_CAUSES: Final = (
    _Cause(
        kind="rollback_failed",
        title=gettext_lazy("Compensations that have stopped: a rollback handler failed for good"),
        advice=gettext_lazy(
            "Fix what the handler needs, then recover the run: the compensation goes on with the handlers that are left."
        ),
        concerns=lambda run: run.is_stuck,
    ),
    _Cause(
        kind="mistake",
        title=gettext_lazy("Runs stopped by a mistake in the code"),
        advice=gettext_lazy(
            "Fix the code, deploy it, then recover them: they go on where they were. Nothing was undone because of the "
            "mistake."
        ),
        concerns=lambda run: run.is_mistake,
    ),
    _Cause(
        kind="diverged",
        title=gettext_lazy("Runs stopped because the code no longer fits their history"),
        advice=gettext_lazy(
            "Fix the code, deploy it, then recover them: they go on where they were. Nothing was compensated."
        ),
        concerns=lambda run: run.error_type == DIVERGED,
    ),
    _Cause(
        kind="crashed",
        title=gettext_lazy("Runs that crashed worker after worker"),
        advice=gettext_lazy("Look at the workers' logs for what kills them, then recover them."),
        concerns=lambda run: run.error_type == "RunCrashedError",
    ),
    _Cause(
        kind="exhausted",
        title=gettext_lazy("Runs with a step that has no attempts left"),
        advice=gettext_lazy(
            "Fix the cause, then recover the run: the step gets its attempts again and the run goes on from there."
        ),
        by_cause=True,
        concerns=lambda run: run.error_type == EXHAUSTED,
    ),
    _Cause(
        kind="failed",
        title=gettext_lazy("Other failed runs"),
        advice=gettext_lazy("Read the error; recover the run, replay it from a step, or start it again."),
        by_cause=True,
        concerns=lambda _run: True,
    ),
)


def how_it_failed(run: FailedRun) -> tuple[str, str, str]:
    """Return the kind of finding for the failed run, its title, and the advice."""
    cause = next(cause for cause in _CAUSES if cause.concerns(run))
    return cause.kind, str(cause.title), cause.advices


def _failed(failed: Sequence[FailedRun]) -> Iterator[Finding]:
    left = list(failed)
    for cause in _CAUSES:
        matching = [run for run in left if cause.concerns(run)]
        if not matching:
            continue
        left = [run for run in left if not cause.concerns(run)]
        compensated = sum(run.is_compensated for run in matching)
        advice = cause.advices
        if compensated:
            undone = ngettext(
                "%(number)s of them compensated: a recovery does the undone steps again, from the earliest on; durable why "
                "tells which.",
                "%(number)s of them compensated: a recovery does the undone steps again, from the earliest on; durable why "
                "tells which.",
                compensated,
            )
            advice = f"{advice} {undone % {'number': thousands(compensated)}}"
        count = Count(number=len(matching), is_capped=len(failed) >= NEWEST)
        runs = [(run.id, run.workflow) for run in matching[:SHOWN]]
        yield Finding(kind=cause.kind, title=str(cause.title), advice=advice, count=count, runs=runs)


def _messages_left(rows: Sequence[_Row]) -> Iterator[Finding]:
    if not rows:
        return
    title = _("Completed runs that never received what start_or_send has sent to them")
    advice = _(
        "The workflow does not wait for these messages, in this run and in the one that had them before. Compare the names "
        "of its queues with those of the senders, or let it wait for them."
    )
    yield _finding("messages_left", title, advice, rows, None)


def _row(run_id: Any, workflow: Any, since: Any) -> _Row:
    """Convert a row in the form that the database returns."""
    return unpack(run_id), unpack(workflow), moment_of(since)


def _finding(
    kind: str, title: str, advice: str, rows: Sequence[_Row], wanted: RunCriteria | None, command: str = ""
) -> Finding:
    return Finding(
        kind=kind,
        title=title,
        advice=advice,
        count=Count.up_to(CAP, len(rows)),
        runs=[(run_id, workflow) for run_id, workflow, _ in rows[:SHOWN]],
        since=min(since for _, _, since in rows),
        workflows=Counter(workflow for _, workflow, _ in rows[:CAP]).most_common(),
        wanted=wanted,
        command=command,
    )
