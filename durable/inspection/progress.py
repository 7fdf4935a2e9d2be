"""How far a run's history is, in numbers: one question over its entries, cheap enough to be asked again and again."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, DurationField, ExpressionWrapper, F, Max, Q, Sum

from durable.conf import conf
from durable.core.entries import Kind
from durable.models import Attempt, Entry, Run

__all__ = ["Progress", "progress_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`active` are the seconds that attempts of steps took, branches added up. `revision` is another text after each change of
    the run or of its history, and the same after a heartbeat."""

    entries: int
    completed: int
    active: float
    revision: str


def progress_of(run: Run) -> Progress:
    """The run's progress; two statements."""
    took = ExpressionWrapper(F("metadata__completed_at") - F("metadata__last_attempt_at"), output_field=DurationField())
    found = (
        Entry.objects.using(conf.DATABASE)
        .filter(run=run)
        .aggregate(
            entries=Count("id"),
            completed=Count("id", filter=Q(metadata__status="completed")),
            ordinal=Max("ordinal"),
            finished=Max("metadata__finished_ordinal"),
            attempts=Sum("metadata__attempts"),
            compensated=Count("metadata__rollback_completed_at"),
            active=Sum(took, filter=Q(kind=Kind.STEP.value)),
        )
    )
    lost = ExpressionWrapper(F("finished_at") - F("started_at"), output_field=DurationField())
    failed = Attempt.objects.using(conf.DATABASE).filter(run=run).aggregate(took=Sum(lost), number=Count("id"))
    parts = [found[name] for name in ("entries", "completed", "ordinal", "finished", "attempts", "compensated")]
    row = [run.signal, run.fence, run.state, run.request, run.messages, run.wake_at, run.summary, failed["number"]]
    active = sum(each.total_seconds() for each in (found["active"], failed["took"]) if each is not None)
    return Progress(
        entries=found["entries"],
        completed=found["completed"],
        active=active,
        revision="-".join(map(str, [*row, *parts])),
    )
