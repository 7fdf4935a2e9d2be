"""Deleting runs by hand: what the sweep does by itself, by the setting `RETENTION`, and the runs about one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet

from durable import runtime
from durable.conf import conf
from durable.core.records import ENDED
from durable.core.tags import TagValue
from durable.models import Child, Failure, OperatorAction, Run, Schedule, Tick
from durable.models.subjects import read_subject
from durable.operations.audit import audited
from durable.retention import Policy, Pruned, Pruner


def prune(policy: Policy, *, tell: Callable[[Pruned], None] = lambda _so_far: None) -> Pruned:
    """Delete the runs and audit rows that `policy` no longer keeps; return how many of each.

    Each batch is one transaction. `tell` is called after each batch with the totals so far. The audit log records the
    totals, also after an interruption. Raises OperationDeniedError.
    """
    at = runtime.current()
    total = Pruned()
    with audited(at, "prune", "") as attribution:
        try:
            for pruned in Pruner(policy, conf.DATABASE).batches(at.now()):
                total += pruned
                tell(total)
        finally:
            detail = f"{total.runs} runs, {total.actions} rows of the audit log"
            at.store.log([attribution.done(before="", after="", detail=detail)])
    return total


def preview_pruning(policy: Policy, *, most: int) -> Pruned:
    """Return how many runs and audit rows `prune` would delete now; counting stops at `most` of each."""
    return Pruner(policy, conf.DATABASE).preview(runtime.current().now(), most)


_AT_ONCE: Final = 1_000  # ids in one statement
_MOMENT: Final = 1e-6  # seconds: every ended run is older
_ENDED: Final = frozenset(state.value for state in ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What `forget` has deleted, or would delete, and what stays.

    - `ended`: the ids of the ended runs that were found. `open`: those of open ones, which are never deleted.
    - `kept`: ended runs that stayed, because something refers to them or has locked them; [] of a trial.
    - `pruned`: how many rows are gone; nothing of a trial.
    - `rows`: how many rows of other tables name these runs and stay, by table in words.
    """

    ended: Sequence[str]
    open: Sequence[str]
    kept: Sequence[str]
    pruned: Pruned
    rows: dict[str, int]


def forget(*, about: str = "", tags: Sequence[tuple[str, TagValue]] = (), is_trial: bool = False) -> Forgotten:
    """Delete the ended runs about something, "shop.order:42", or with all of these tags, and the ended runs below them.

    The runs below a run are its children, theirs, and so on. Open runs are named and stay. Deletion is in batches, each
    a transaction of its own. The audit log has how many were deleted, and what they were about. With `is_trial` nothing
    is deleted.

    Raises ValueError without a condition and for one that no run can meet, and OperationDeniedError.
    """
    wanted = [*([f"about {read_subject(about)}"] if about else []), *(f"tagged {name}" for name, _value in tags)]
    if not wanted:
        raise ValueError("say which runs to forget: what they are about, or their tags")
    at = runtime.current()
    with audited(at, "forget", "") as attribution:
        states = _found(about, tags)
        ended = [run_id for run_id, state in states.items() if state in _ENDED]
        still_open = [run_id for run_id, state in states.items() if state not in _ENDED]
        rows = _rows_that_stay(list(states))
        if is_trial:
            return Forgotten(ended=ended, open=still_open, kept=[], pruned=Pruned(), rows=rows)
        total = Pruned()
        try:
            total = _deleted(ended)
        finally:
            detail = f"{total.runs} runs {', '.join(wanted)}; {len(still_open)} are open"
            at.store.log([attribution.done(before="", after="", detail=detail)])
        kept = [row for ids in _chunks(ended) for row in _ids(Run.objects.using(conf.DATABASE).filter(id__in=ids))]
        return Forgotten(ended=ended, open=still_open, kept=kept, pruned=total, rows=rows)


def _found(about: str, tags: Sequence[tuple[str, TagValue]]) -> dict[str, str]:
    """Return the states of the runs that meet the conditions, and of those below them, by id; parents come first."""
    runs = Run.objects.using(conf.DATABASE)
    if about:
        subject = read_subject(about)
        runs = runs.about_key(subject.model, subject.key)
    if tags:
        runs = runs.tagged(**dict(tags))
    found = dict(runs.values_list("id", "state"))
    level = list(found)
    while level:
        below: dict[str, str] = {}
        for ids in _chunks(level):
            children = Child.objects.using(conf.DATABASE).filter(parent_id__in=ids).order_by()
            below |= dict(children.values_list("run_id", "run__state"))
        level = [each for each in below if each not in found]
        found |= {each: below[each] for each in level}
    return found


def _deleted(ids: Sequence[str]) -> Pruned:
    """Delete ended runs, again while that lets go of others: a child stays until its parent is gone."""
    pruner, total = Pruner(Policy.older_than(_MOMENT), conf.DATABASE), Pruned()
    left, before = list(ids), 0
    while left and len(left) != before:
        before = len(left)
        for pruned in pruner.delete(left, runtime.current().now()):
            total += pruned
        left = [row for chunk in _chunks(left) for row in _ids(Run.objects.using(conf.DATABASE).filter(id__in=chunk))]
    return total


def _rows_that_stay(ids: Sequence[str]) -> dict[str, int]:
    of_each: dict[str, Callable[[Sequence[str]], QuerySet[Any]]] = {
        "rows of the audit log": lambda some: OperatorAction.objects.filter(run_id__in=some),
        "causes with the texts of errors": lambda some: (
            Failure.objects.filter(run_id__in=some).order_by().values("cause").distinct()
        ),
        "moments of schedules": lambda some: Tick.objects.filter(run_id__in=some),
        "schedules, of which it is the last run": lambda some: Schedule.objects.filter(last_run_id__in=some),
    }
    return {
        name: sum(rows(some).using(conf.DATABASE).count() for some in _chunks(ids)) for name, rows in of_each.items()
    }


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]


def _ids(runs: QuerySet[Run]) -> list[str]:
    return list(runs.order_by().values_list("id", flat=True))
