"""The rewriting of a workflow's name.

What refers to the name is rewritten at once, then its runs in batches, then the figures of its ended runs. A batch
can be repeated: a rewritten run has another name. No lease is looked at, because no worker writes the name of a run
that it executes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import F

from durable.core import clock
from durable.core.records import RunState
from durable.core.renames import Alias, AliasKind
from durable.models import (
    Failure,
    HeldStart,
    Rollup,
    RollupProgress,
    Run,
    Schedule,
)
from durable.renames.batches import check_atomic, rewrite_runs, runs_of
from durable.renames.checking import RenameRefused, is_recorded
from durable.renames.references import is_known, record, rewrite_references


def rename_workflow(
    alias: str, old: str, new: str, *, is_back: bool = False, wait: float, say: Callable[[str], object]
) -> None:
    """Make both names those of one workflow, and give its runs the new one; with `is_back`, the old one.

    Runs whose rows are locked are tried again for `wait` seconds. Raises RenameRefused.
    """
    began_at, name = clock.now(), Alias(AliasKind.WORKFLOW, old, new)
    before, after = (new, old) if is_back else (old, new)
    check_atomic(alias, before)
    if not is_known(alias, name):
        if is_back:
            return
        _check(alias, name)
    with transaction.atomic(using=alias):
        record(alias, name, began_at)
        rewrite_references(alias, name.kind, before, after)
    _rewrite_runs(alias, before, after, began_at, wait, say)
    _rewrite_figures(alias, before, after)


def _check(alias: str, name: Alias) -> None:
    """Raise RenameRefused if the new name is that of another workflow."""
    if is_recorded(alias, name):
        return
    what = _user_of(alias, name.new)
    if what is not None:
        raise RenameRefused(
            f'the workflow of {what} has the name "{name.new}" already: it is that of another workflow, or code that uses it runs before the '
            "migration does. Choose another name, or delete what has it and migrate before the new code runs. Nothing was "
            "written."
        )


def _user_of(alias: str, new: str) -> str | None:
    """Return what has a workflow of the new name."""
    run_id = Run.objects.using(alias).filter(workflow=new).order_by("created_at", "id").values_list("id", flat=True)
    if (found := run_id.first()) is not None:
        return f'the run "{found}"'
    schedules = Schedule.objects.using(alias)
    if (name := schedules.filter(workflow=new).order_by("name").values_list("name", flat=True).first()) is not None:
        return f'the schedule "{name}"'
    return None


# -- runs


def _rewrite_runs(
    alias: str, before: str, after: str, until: datetime, wait: float, say: Callable[[str], object]
) -> None:
    def rewrite(locked: Sequence[str]) -> None:
        Run.objects.using(alias).filter(id__in=locked, workflow=before).order_by().update(workflow=after)
        Failure.objects.using(alias).filter(run__in=locked).update(workflow=after)
        HeldStart.objects.using(alias).filter(run__in=locked).update(workflow=after)

    rewrite_runs(alias, runs_of(alias, [before], until), rewrite, wait=wait, say=say)


# -- the figures of ended runs


def _rewrite_figures(alias: str, before: str, after: str) -> None:
    """Add the numbers of the one name to those of the other; the sweep, which adds to them, waits meanwhile."""
    rows = Rollup.objects.using(alias)
    with transaction.atomic(using=alias):
        progress = RollupProgress.objects.using(alias)
        if connections[alias].features.has_select_for_update:
            list(progress.select_for_update().values_list("pk"))
        else:
            progress.update(until=F("until"))
        known = {(each.width, each.begins): each for each in rows.filter(workflow=after)}
        merged, taken = [], []
        for each in rows.filter(workflow=before):
            if (other := known.get((each.width, each.begins))) is not None:
                _add(other, each)
                merged.append(other)
                taken.append(each.pk)
        rows.filter(pk__in=taken).delete()
        rows.bulk_update(merged, [*_COUNTS, "durations"], batch_size=500)
        rows.filter(workflow=before).update(workflow=after)


_COUNTS: Final = (RunState.COMPLETED.value, RunState.FAILED.value, RunState.CANCELLED.value)


def _add(to: Any, other: Any) -> None:
    for name in _COUNTS:
        setattr(to, name, getattr(to, name) + getattr(other, name))
    for duration, number in other.durations.items():
        to.durations[duration] = to.durations.get(duration, 0) + number
