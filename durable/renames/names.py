"""The rewriting of the names of workflows and queues: first their rows and references, then runs in batches.

A batch can be repeated: a rewritten run has another name. Leases do not matter, because no worker writes the queue or
the workflow of a run that it has. Ended runs stay in the old queue: no worker serves them, and lists find them by
either name. The figures of a workflow's ended runs are rewritten last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from django.db import connections, transaction
from django.db.models import F

from durable.core import clock
from durable.core.names.renames import Alias, AliasKind
from durable.core.records import ENDED, RunState
from durable.models import (
    Failure,
    HeldStart,
    Hold,
    RenamedName,
    Rollup,
    RollupProgress,
    Run,
    SavedView,
    Schedule,
    Share,
)
from durable.models.renames import learn_queues
from durable.models.run import RunQuerySet
from durable.notifier import notify
from durable.renames.rewriting import (
    RenameRefused,
    check_atomic,
    in_batches,
    is_recorded,
    refuse_atomic,
    rewrite_runs,
    runs_of,
)
from durable.store.tables.ranks import open_lanes


def is_known(alias: str, name: Alias) -> bool:
    """Return True if a migration has recorded this rename."""
    return RenamedName.objects.using(alias).filter(kind=name.kind, old=name.old, new=name.new).exists()


def record(alias: str, name: Alias, at: datetime) -> None:
    """Record the rename, unless it is already recorded."""
    if not is_known(alias, name):
        RenamedName.objects.using(alias).create(kind=name.kind, old=name.old, new=name.new, recorded_at=at)


def rewrite_references(alias: str, kind: AliasKind, before: str, after: str) -> None:
    """Rewrite the references of holds, schedules and saved views to the other name.

    Schedules keep their own names, from which the ids of runs are made.
    """
    copy_hold(alias, kind, before, after)
    schedules = Schedule.objects.using(alias).filter(**{kind.value: before})
    schedules.update(**{kind.value: after}, changes=F("changes") + 1)
    _rewrite_views(alias, kind.value, before, after)


def copy_hold(alias: str, kind: AliasKind, before: str, after: str) -> None:
    """If this name is held, hold the other one too. A hold is lifted for all names."""
    rows = Hold.objects.using(alias).filter(kind=kind.value)
    held = rows.filter(name=before).first()
    if held is not None and not rows.filter(name=after).exists():
        held.pk, held.name = None, after
        held.save(using=alias, force_insert=True)


def _rewrite_views(alias: str, parameter: str, before: str, after: str) -> None:
    """Rewrite the filters of saved views to the other name. `parameter` is the list address's parameter for the
    name.
    """
    for view in SavedView.objects.using(alias).filter(query__contains=parameter).order_by("pk"):
        pairs = parse_qsl(view.query, keep_blank_values=True)
        changed = [(name, after if (name, value) == (parameter, before) else value) for name, value in pairs]
        if changed != pairs:
            SavedView.objects.using(alias).filter(pk=view.pk).update(query=urlencode(changed))


_OPEN = sorted(each.value for each in {*RunState} - ENDED)


def rename_queue(alias: str, old: str, new: str, *, is_back: bool, wait: float, say: Callable[[str], object]) -> None:
    """Make both names stand for one queue, and give its open runs the new one; with `is_back`, the old one.

    Runs whose rows are locked are tried again for `wait` seconds. Raises RenameRefused.
    """
    began_at, name = clock.now(), Alias(AliasKind.QUEUE, old, new)
    before, after = (new, old) if is_back else (old, new)
    refuse_atomic(alias, before, Run.objects.using(alias).filter(queue=before, state__in=_OPEN))
    if not is_known(alias, name):
        if is_back:
            return
        waking = Run.objects.using(alias).filter(queue=new, wake_at__isnull=False).exclude(state=RunState.PAUSED.value)
        _refuse_taken(alias, name, waking.order_by("wake_at", "id"))
    with transaction.atomic(using=alias):
        record(alias, name, began_at)
        rewrite_references(alias, name.kind, before, after)
        _copy_shares(alias, before, after)

    def rewrite(locked: Sequence[str]) -> None:
        runs = Run.objects.using(alias).filter(id__in=locked, queue=before).order_by()
        open_lanes(alias, after, runs)
        runs.update(queue=after)

    rewrite_runs(alias, _batches(alias, before, began_at), rewrite, wait=wait, say=say)
    with transaction.atomic(using=alias):
        copy_hold(alias, name.kind, before, after)  # of an operator who paused it before the row was there
    learn_queues(alias)
    transaction.on_commit(
        lambda: notify.notify(after, force=True), using=alias
    )  # search all: a claim may search only new ones


_TAKEN: Final = {
    AliasKind.QUEUE: '{user} is in a queue "{new}" already: it is another queue, or code that uses it runs before the migration '
    "does. Choose another name, or let what has it end, and migrate before the new code runs. Nothing was written.",
    AliasKind.WORKFLOW: 'the workflow of {user} has the name "{new}" already: it is that of another workflow, or code that uses '
    "it runs before the migration does. Choose another name, or delete what has it and migrate before the new code runs. "
    "Nothing was written.",
}


def _refuse_taken(alias: str, name: Alias, runs: RunQuerySet) -> None:
    """Raise RenameRefused if the new name belongs to something else: to the first of these runs, or to a schedule."""
    if is_recorded(alias, name):
        return
    schedules = Schedule.objects.using(alias).filter(**{name.kind.value: name.new}).order_by("name")
    users = {"run": runs.values_list("id", flat=True), "schedule": schedules.values_list("name", flat=True)}
    for what, found in users.items():
        if (first := found.first()) is not None:
            raise RenameRefused(_TAKEN[name.kind].format(user=f'the {what} "{first}"', new=name.new))


def _batches(alias: str, queue: str, until: datetime) -> Iterator[list[str]]:
    """Yield the ids of the open runs of the queue, some at a time, by state.

    A run that meanwhile changes to a state searched before keeps the name, unless the second search finds it.
    """
    for _look in range(2):
        for state in _OPEN:
            yield from in_batches(Run.objects.using(alias).filter(queue=queue, state=state, created_at__lte=until))


# -- priorities and shares


def _copy_shares(alias: str, before: str, after: str) -> None:
    """Give the shares of the other name the positions of this one's shares; runs keep their tags."""
    rows = Share.objects.using(alias)
    for each in rows.filter(queue=before).order_by("share"):
        other, is_new = rows.get_or_create(
            queue=after, share=each.share, defaults={"tag": each.tag, "round": each.round}
        )
        if not is_new:
            tags = [tag for tag in (each.tag, other.tag) if tag is not None]
            other.tag, other.round = max(tags, default=None), max(each.round, other.round)
            other.save(using=alias, update_fields=["tag", "round"])


def rename_workflow(
    alias: str, old: str, new: str, *, is_back: bool, wait: float, say: Callable[[str], object]
) -> None:
    """Make both names stand for one workflow, and give its runs the new one; with `is_back`, the old one.

    Runs whose rows are locked are tried again for `wait` seconds. Raises RenameRefused.
    """
    began_at, name = clock.now(), Alias(AliasKind.WORKFLOW, old, new)
    before, after = (new, old) if is_back else (old, new)
    check_atomic(alias, before)
    if not is_known(alias, name):
        if is_back:
            return
        _refuse_taken(alias, name, Run.objects.using(alias).filter(workflow=new).order_by("created_at", "id"))
    with transaction.atomic(using=alias):
        record(alias, name, began_at)
        rewrite_references(alias, name.kind, before, after)
    _rewrite_runs(alias, before, after, began_at, wait, say)
    _rewrite_figures(alias, before, after)


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
    """Add the figures of one name to those of the other; the sweep, which adds to them too, waits meanwhile."""
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
