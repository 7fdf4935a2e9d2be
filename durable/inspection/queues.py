"""The queues, holds of queues and workflows, and messages that ended runs did not receive.

A constant number of statements, each along an index and with a cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.records import Hold, HoldKind, MessageState, RunState
from durable.inspection.counting import Count, count_capped, moment_of, sample_rows
from durable.inspection.humanize import decimal
from durable.inspection.reading import read_alias
from durable.inspection.run_rules import rows_within, runs_within
from durable.inspection.workers import QueueState, Workers, WorkerState, serving, worker_overview
from durable.models import HeldStart, KeyedSend, QueueMessage, Run, RunKey
from durable.models import Hold as HoldModel
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

MOST: Final = 200  # holds to read
CAP: Final = 10_000  # runs to count


def paused_queues() -> dict[str, Hold]:
    """Return the paused queues by name; one statement."""
    return _holds(HoldKind.QUEUE)


def paused_of(runs: Iterable[Run], now: datetime) -> dict[str, Hold]:
    """Return the paused queues by name if one of the runs is due; else {}. At most one statement."""
    return paused_queues() if any(each.wake_at is not None and each.wake_at <= now for each in runs) else {}


def all_holds() -> tuple[dict[str, Hold], dict[str, Hold]]:
    """Return the paused queues and the workflows whose new starts are held, by name; one statement."""
    queues: dict[str, Hold] = {}
    workflows: dict[str, Hold] = {}
    for each in HoldModel.objects.using(read_alias()).order_by("kind", "name")[: 2 * MOST]:
        found = queues if each.kind == HoldKind.QUEUE else workflows
        found[each.name] = each.record
    return queues, workflows


def held_workflows() -> dict[str, Hold]:
    """Return the workflows whose new starts are held, by name; one statement."""
    return _holds(HoldKind.WORKFLOW)


def find_hold(kind: HoldKind, name: str) -> Hold | None:
    """Return the hold of this queue or workflow; None if there is none."""
    found = HoldModel.objects.using(read_alias()).filter(kind=kind.value, name=name).first()
    return None if found is None else found.record


def count_held_starts(workflows: Iterable[str], within: RunQuerySet | None = None) -> dict[str, Count]:
    """Count the runs of each of these workflows that a hold has paused, up to `CAP`; one statement."""
    rows = HeldStart.objects.using(read_alias()).order_by("workflow", "run_id")
    rows = rows_within(rows, within)
    names = list(workflows)
    counts = count_capped([rows.filter(workflow=name) for name in names], CAP) if names else []
    return dict(zip(names, counts, strict=True))


def _holds(kind: HoldKind) -> dict[str, Hold]:
    found = HoldModel.objects.using(read_alias()).filter(kind=kind.value).order_by("name")
    return {each.name: each.record for each in found[:MOST]}


_CAP: Final = 1_000
_PENDING: Final = MessageState.PENDING.value


def messages_left_note(run: Run, within: RunQuerySet | None) -> str:
    """Say how many messages an ended run never received, and which run has taken over others; "" for none.

    For a run to which messages were sent two queries, none for any other. `within` limits the other run.
    """
    if not run.message_count:
        return ""
    pending = QueueMessage.objects.using(read_alias()).filter(run=run.pk, state=_PENDING).order_by("order")
    [left] = count_capped([pending], _CAP)
    notes = []
    if left:
        text = ngettext("%(number)s message was never received", "%(number)s messages were never received", left.number)
        notes.append(text % {"number": left})
    following = RunKey.objects.using(read_alias()).filter(follows=run.pk).order_by("-taken_at")
    following = rows_within(following, within)
    if (other := following.values_list("run_id", flat=True).first()) is not None:
        notes.append(
            _('What was sent to its key and it had not received was passed on to run "%(run)s"') % {"run": other}
        )
    return ". ".join(notes)


def completed_with_messages(runs: RunQuerySet, now: datetime, most: int) -> RunQuerySet:
    """Return the runs that completed in the last day without receiving all messages sent to their keys.

    The newest first, among the newest `most` that ended.
    """
    recent = runs.filter(finished_at__gte=now - timedelta(days=1)).order_by("-finished_at").values("pk")[:most]
    left = QueueMessage.objects.using(read_alias()).filter(run=OuterRef("pk"), state=_PENDING)
    keyed = left.filter(Exists(KeyedSend.objects.using(read_alias()).filter(pk=OuterRef("pk"))))
    ended = Run.objects.using(read_alias()).filter(pk__in=recent, state=RunState.COMPLETED.value, message_count__gt=0)
    return ended.filter(Exists(keyed)).order_by("-finished_at")


SAMPLE: Final = 1_000  # newest runs, and runs that ended last, from which rates are computed
WINDOW: Final = timedelta(minutes=10)  # the longest time for which a rate is computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The flow of runs into or out of a queue, in runs a minute.

    It is computed from the newest `SAMPLE` runs of all queues within `WINDOW`.
    """

    per_minute: float

    def __str__(self) -> str:
        if 0 < self.per_minute < 0.1:
            return f"< {decimal(0.1)}"
        return decimal(self.per_minute, 1 if 0 < self.per_minute < 10 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary(QueueState):
    """A queue. The longest of its `due` runs has been due since `oldest_due_at`. `in_hand` runs are being executed.

    `came` are created runs, `went` ended ones. `serving` are the `workers` that take its runs.
    """

    due: Count
    oldest_due_at: datetime | None
    in_hand: Count
    came: Flow
    went: Flow
    serving: Sequence[WorkerState]
    hold: Hold | None

    @property
    def is_paused(self) -> bool:
        """Whether its runs are not claimed because an operator has paused it."""
        return self.hold is not None


def list_queues(
    now: datetime, workers: Workers | None = None, *, name: str | None = None, within: RunQuerySet | None = None
) -> list[QueueSummary]:
    """Return the queues of the project, of runs and of holds; with `name` that one, if it is one of them.

    `workers` is the result of `worker_overview(within)`, which a page also shows. Five statements beside it. With
    `within`, numbers count only these runs, and a paused queue is omitted unless the project or these runs name it.
    """
    workers = worker_overview(within) if workers is None else workers
    paused = paused_queues()
    states = {each.name: each for each in workers.queues}
    for each in paused if within is None else ():
        number = len(serving(workers.workers, each))
        unknown = QueueState(name=each, workers=number, is_known=False, has_runs=False, has_workflows=False)
        states.setdefault(each, unknown)
    chosen = [each for each in states.values() if name in (None, each.name)]
    if not chosen:
        return []
    runs = runs_within(within)
    due: list[QuerySet[Any]] = [runs.due(now).filter(queue=each.name).order_by("wake_at", "id") for each in chosen]
    counts, oldest = count_capped(due, CAP), sample_rows(due, ["wake_at"], 1)
    [held] = sample_rows([runs.filter(lease_expires_at__gt=now).order_by("lease_expires_at")], ["queue"], SAMPLE)
    in_hand = Counter(unpack(queue) for (queue,) in held)
    begin = now - WINDOW
    came = _rates(runs.filter(created_at__gte=begin).order_by("-created_at", "-id"), "created_at", now)
    went = _rates(runs.filter(finished_at__gte=begin).order_by("-finished_at"), "finished_at", now)
    return [
        QueueSummary(
            **asdict(each),
            due=count,
            oldest_due_at=moment_of(rows[0][0]) if rows else None,
            in_hand=Count(number=in_hand[each.name], is_capped=len(held) >= SAMPLE),
            came=Flow(per_minute=came.get(each.name, 0.0)),
            went=Flow(per_minute=went.get(each.name, 0.0)),
            serving=serving(workers.workers, each.name),
            hold=paused.get(each.name),
        )
        for each, count, rows in zip(chosen, counts, oldest, strict=True)
    ]


def _rates(runs: QuerySet[Any], column: str, now: datetime) -> dict[str, float]:
    """Return runs a minute by queue, over the time that the sample covers."""
    [rows] = sample_rows([runs], ["queue", column], SAMPLE)
    if not rows:
        return {}
    covered = now - moment_of(rows[-1][1]) if len(rows) >= SAMPLE else WINDOW
    minutes = max(covered.total_seconds(), 1.0) / 60
    return {unpack(queue): number / minutes for queue, number in Counter(queue for queue, _ in rows).items()}
