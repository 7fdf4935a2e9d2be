"""The rewriting of a queue's name: what refers to it at once, then its open runs in batches.

A batch can be repeated: a rewritten run is in another queue. No lease is looked at, because no worker writes the queue
of a run that it has. Ended runs are left as they are: no worker serves them, and lists find them by either name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from django.db import transaction

from durable.core import clock
from durable.core.records import ENDED, RunState
from durable.core.renames import Alias, AliasKind
from durable.models import Lane, Run, Schedule, Share
from durable.models.renames import learn_queues
from durable.models.run import RunQuerySet
from durable.notifier import notify
from durable.renames.batches import in_batches, refuse_atomic, rewrite_runs
from durable.renames.checking import RenameRefused, is_recorded
from durable.renames.references import copy_hold, is_known, record, rewrite_references

_OPEN = sorted(each.value for each in {*RunState} - ENDED)


def rename_queue(
    alias: str, old: str, new: str, *, is_back: bool = False, wait: float, say: Callable[[str], object]
) -> None:
    """Make both names those of one queue, and give its open runs the new one; with `is_back`, the old one.

    Runs whose rows are locked are tried again for `wait` seconds. Raises RenameRefused.
    """
    began_at, name = clock.now(), Alias(AliasKind.QUEUE, old, new)
    before, after = (new, old) if is_back else (old, new)
    refuse_atomic(alias, before, Run.objects.using(alias).filter(queue=before, state__in=_OPEN))
    if not is_known(alias, name):
        if is_back:
            return
        _check(alias, name)
    with transaction.atomic(using=alias):
        record(alias, name, began_at)
        rewrite_references(alias, name.kind, before, after)
        _copy_shares(alias, before, after)

    def rewrite(locked: Sequence[str]) -> None:
        runs = Run.objects.using(alias).filter(id__in=locked, queue=before).order_by()
        _open_lanes(alias, after, runs)
        runs.update(queue=after)

    rewrite_runs(alias, _batches(alias, before, began_at), rewrite, wait=wait, say=say)
    with transaction.atomic(using=alias):
        copy_hold(alias, name.kind, before, after)  # of an operator who paused it before the row was there
    learn_queues(alias)
    transaction.on_commit(
        lambda: notify.notify(after, force=True), using=alias
    )  # search all: a claim may look at new ones only


def _check(alias: str, name: Alias) -> None:
    """Raise RenameRefused if the new name is that of another queue."""
    if is_recorded(alias, name):
        return
    what = _user_of(alias, name.new)
    if what is not None:
        raise RenameRefused(
            f'{what} is in a queue "{name.new}" already: it is another queue, or code that uses it runs before the migration does. '
            "Choose another name, or let what has it end, and migrate before the new code runs. Nothing was written."
        )


def _user_of(alias: str, new: str) -> str | None:
    """Return what is in a queue of the new name."""
    waking = Run.objects.using(alias).filter(queue=new, wake_at__isnull=False).exclude(state=RunState.PAUSED.value)
    if (run_id := waking.order_by("wake_at", "id").values_list("id", flat=True).first()) is not None:
        return f'the run "{run_id}"'
    schedules = Schedule.objects.using(alias).filter(queue=new)
    if (name := schedules.order_by("name").values_list("name", flat=True).first()) is not None:
        return f'the schedule "{name}"'
    return None


def _batches(alias: str, queue: str, until: datetime) -> Iterator[list[str]]:
    """Yield the ids of the open runs of the queue, some at a time, by state.

    A run that meanwhile comes to a state that was looked at before keeps the name, unless the second look finds it.
    """
    for _look in range(2):
        for state in _OPEN:
            yield from in_batches(_of_state(alias, queue, state).filter(created_at__lte=until))


def _of_state(alias: str, queue: str, state: str) -> RunQuerySet:
    return Run.objects.using(alias).filter(queue=queue, state=state)


# -- priorities and shares


def _copy_shares(alias: str, before: str, after: str) -> None:
    """Give the shares of the other name the positions of those of this one; runs keep their tags."""
    rows = Share.objects.using(alias)
    for each in rows.filter(queue=before).order_by("share"):
        other, is_new = rows.get_or_create(
            queue=after, share=each.share, defaults={"tag": each.tag, "round": each.round}
        )
        if not is_new:
            tags = [tag for tag in (each.tag, other.tag) if tag is not None]
            other.tag, other.round = max(tags, default=None), max(each.round, other.round)
            other.save(using=alias, update_fields=["tag", "round"])


def _open_lanes(alias: str, queue: str, runs: RunQuerySet) -> None:
    """Add lanes for the head starts of these runs to the queue, before the runs come to it."""
    found = runs.filter(head_start__isnull=False).values_list("head_start", flat=True).distinct()
    lanes = [Lane(queue=queue, head_start=each) for each in found if each is not None]
    if lanes:
        Lane.objects.using(alias).bulk_create(lanes, ignore_conflicts=True)
