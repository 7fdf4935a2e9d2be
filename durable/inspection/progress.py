"""The progress of a run's history in numbers: one cheap query over its entries, which may be repeated often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Aggregate, Count, DurationField, ExpressionWrapper, F, Max, Q, Sum, TextField, Value
from django.db.models.functions import Cast
from django.utils import timezone

from durable.core.records import EntryStatus
from durable.inspection import history_counts
from durable.inspection.activities import RunningStep, activities_of_runs
from durable.inspection.history_counts import recalled, remembered
from durable.inspection.reading import read_alias
from durable.models import Attempt, Child, Entry, EntryMetadata, Run
from durable.models.history import EntryQuerySet
from durable.store.tables.surveys import UNFINISHED

MOST_OPEN: Final = 500  # entries
_MOST_UNFINISHED: Final = 2_000  # entries whose keys are stored
_MOST_CHILDREN: Final = 10_000  # that are counted
#: The condition on the metadata of entries that are not completed, or whose compensation has failed.
OPEN: Final = ~Q(status=EntryStatus.COMPLETED.value) | Q(rollback_error__isnull=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts of a run's entries.

    `active` is the total time of all attempts of steps in seconds, including running ones, without those of the run
    that it repeats. `revision` is a text that changes whenever the run, its history or its running steps change, but
    not with a heartbeat. `is_pruned`: some records are deleted, as of a loop's earlier iterations, so `active` lacks
    their steps. `open_keys` are the keys of the newest entries that are not completed or whose compensation has failed.
    `running` are the steps that run now.
    """

    entries: int
    completed: int
    failed_attempts: int
    active: float
    revision: str
    open_keys: Sequence[int]
    running: Sequence[RunningStep]
    is_pruned: bool


def progress_of(run: Run, now: datetime | None = None) -> Progress:
    """Return the run's progress at `now`; three statements, and one more for a run that a worker has.

    Only one of them for a long history whose run rests (`durable.inspection.history_counts`).
    """
    found = remembered(run, "progress", lambda: count_progress(run), lambda counts: int(counts["entries"]))
    parts = [found[name] for name in ("entries", "completed", "newest", "finished", "attempts", "compensated")]
    row = [
        run.change_seq,
        run.fence,
        run.state,
        run.pending_request,
        run.message_count,
        run.wake_at,
        run.summary,
        found["failed_attempts"],
    ]
    running = activities_of_runs([run], now or timezone.now())[run.id]
    row += [value for each in running for value in (each.key[1], each.stack_taken_at, each.abandon_asked_at)]
    # Begins and ends of entries, and starts of children, are numbered from 0 on, without a gap.
    numbered = max(found["begun"] or 0, found["finished"] or 0) + 1 if found["entries"] else 0
    return Progress(
        entries=found["entries"],
        completed=found["completed"],
        failed_attempts=found["failed_attempts"],
        active=found["active"] + sum(each.seconds for each in running),
        revision="-".join(map(str, [*row, *parts])),
        open_keys=found["open"],
        running=running,
        is_pruned=_has_gap(run, numbered - found["entries"] - found["ends"]),
    )


def _has_gap(run: Run, missing: int) -> bool:
    """Return whether more numbers are missing than the run has started children; one statement if any is missing."""
    if missing <= 0:
        return False
    children = Child.objects.using(read_alias()).filter(parent=run).order_by("position")
    return children.values("pk")[: min(missing, _MOST_CHILDREN)].count() < min(missing, _MOST_CHILDREN)


def open_keys_of_long(run: Run) -> Sequence[int] | None:
    """Return the `open_keys` of the run's progress, without counting; None for a short history.

    One statement, two for a long history; no statement if its run rests and the result is stored or remembered.
    """
    is_known = recalled(run, "progress") is not None or recalled(run, "open") is not None
    return newest_open(run) if is_known or has_more_entries(run.id, history_counts.LONG) else None


def newest_open(run: Run) -> Sequence[int]:
    """Return the `open_keys` of a long history; one statement, none if they are stored or remembered."""
    counts = recalled(run, "progress")
    if counts is not None:
        keys: Sequence[int] = counts["open"]
        return keys
    newest = Entry.objects.using(read_alias()).few_of(run.id, OPEN).order_by("-ordinal").values_list("pk", flat=True)
    return remembered(run, "open", lambda: list(newest[:MOST_OPEN]))


def unfinished_entries(run: Run, *statuses: EntryStatus) -> EntryQuerySet:
    """Return the entries with one of these statuses, which are some of `UNFINISHED`.

    A long history that rests and was counted is not read for it, unless it has very many unfinished entries.
    """
    counts = recalled(run, "progress") or {}
    keys = counts.get("unfinished")
    condition, entries = _in_status(statuses), Entry.objects.using(read_alias())
    if keys is None:
        return entries.few_of(run.id, condition)
    found = EntryMetadata.objects.using(read_alias()).filter(condition, entry_id__in=keys)
    return entries.filter(run=run.id, pk__in=found.values("pk"))


def _in_status(statuses: Iterable[EntryStatus]) -> Q:
    return Q(status__in=[each.value for each in statuses])


def entries_counted(run: Run) -> int | None:
    """Return the number of entries of a long history that rests and was counted before, else None; no statement."""
    counts = recalled(run, "progress")
    return None if counts is None else int(counts["entries"])


def has_more_entries(run_id: str, number: int) -> bool:
    """Return whether a run has more than `number` entries; one statement, which reads no more than these."""
    # Without the order of the index, the whole table may be read up to the first entry of the run.
    in_order = Entry.objects.using(read_alias()).filter(run=run_id).order_by("location").values_list("location")
    return bool(in_order[number : number + 1])


def count_progress(run: Run) -> dict[str, Any]:
    """Return the counts of the run's entries and failed attempts as JSON; three statements.

    `active` is in seconds, and `open` has the keys of the newest entries that are not completed or not compensated.
    `unfinished` has those of all `UNFINISHED` entries, None for too many.
    """
    # Only steps make attempts.
    took = ExpressionWrapper(F("completed_at") - F("last_attempt_at"), output_field=DurationField())
    is_own = Q(last_attempt_at__gte=run.created_at) if run.replay_of_id else None
    found = (
        EntryMetadata.objects.using(read_alias())
        .of_runs(run.id)
        .aggregate(
            entries=Count("entry_id"),
            completed=Count("entry_id", filter=Q(status=EntryStatus.COMPLETED.value)),
            newest=Max("entry_id"),
            finished=Max("finished_ordinal"),
            ends=Count("finished_ordinal"),
            attempts=Sum("attempts"),
            compensated=Count("rollback_completed_at"),
            active=Sum(took, filter=is_own),
            open=_JoinedKeys("entry_id", filter=OPEN),
            unfinished=_JoinedKeys("entry_id", filter=_in_status(UNFINISHED)),
        )
    )
    keys, unfinished = _keys(found["open"]), _keys(found["unfinished"])
    lost = ExpressionWrapper(F("finished_at") - F("started_at"), output_field=DurationField())
    is_own = Q(started_at__gte=run.created_at) if run.replay_of_id else None
    attempts = Attempt.objects.using(read_alias()).filter(run=run)
    failed = attempts.aggregate(took=Sum(lost, filter=is_own), number=Count("id"))
    return {
        **found,
        "begun": _newest_begin(run, found, keys),
        "open": keys[-MOST_OPEN:],
        "unfinished": unfinished if len(unfinished) <= _MOST_UNFINISHED else None,
        "active": sum(each.total_seconds() for each in (found["active"], failed["took"]) if each is not None),
        "failed_attempts": failed["number"],
    }


def _keys(joined: str | None) -> list[int]:
    return sorted(int(key) for key in (joined or "").split(",") if key)


def _newest_begin(run: Run, found: dict[str, Any], keys: Sequence[int]) -> int | None:
    """Return the ordinal of the entry that began last, or a lower one if something has ended since; one statement.

    Few open entries are enough to tell, because an entry ends after it began; if there are many, all entries are read.
    """
    entries = Entry.objects.using(read_alias())
    is_told_by_open = found["ends"] == found["completed"] and len(keys) <= MOST_OPEN
    chosen = (
        entries.filter(run=run, pk__in=keys)
        if found["entries"] > history_counts.LONG and is_told_by_open
        else entries.filter(run=run)
    )
    newest: int | None = chosen.order_by().aggregate(begun=Max("ordinal"))["begun"]
    return newest


class _JoinedKeys(Aggregate):
    """Keys as a text, joined by commas; NULL for none.

    It has no template of its own, because the required parts of one differ between releases of Django.
    """

    function = "STRING_AGG"
    output_field = TextField()

    def __init__(self, key: str, **options: Any) -> None:
        super().__init__(Cast(key, TextField()), Value(","), **options)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="GROUP_CONCAT", **context)
