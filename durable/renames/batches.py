"""Runs in batches, for the operations that rewrite them: which runs, and how a batch locks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from django.db import connections, transaction
from django.db.models import Q

from durable.models import Run
from durable.models.run import RunQuerySet
from durable.renames.checking import RenameRefused

#: Runs that are looked at together, and the most that an atomic migration may have to look at.
MOST_ATOMIC: Final = 500
TRY_EVERY: Final = 0.5  # seconds between two tries to rewrite runs that workers or other transactions have


def check_atomic(alias: str, *workflows: str) -> None:
    """Raise RenameRefused for an atomic migration of workflows with many runs."""
    refuse_atomic(alias, workflows[-1], Run.objects.using(alias).filter(workflow__in=workflows))


def refuse_atomic(alias: str, name: str, runs: RunQuerySet) -> None:
    """Raise RenameRefused for an atomic migration that would rewrite many runs."""
    if connections[alias].in_atomic_block and runs.order_by()[: MOST_ATOMIC + 1].count() > MOST_ATOMIC:
        raise RenameRefused(
            f'"{name}" has more than {MOST_ATOMIC} runs, and the migration is atomic: it would keep all of them '
            "locked until its end. Write `atomic = False` into the migration. Nothing was written."
        )


def runs_of(alias: str, workflows: Iterable[str], until: datetime) -> Iterator[list[str]]:
    """Yield the ids of the workflows' runs that were created until then, some at a time, the oldest first of each."""
    for workflow in workflows:
        yield from in_batches(Run.objects.using(alias).filter(workflow=workflow, created_at__lte=until))


def in_batches(runs: RunQuerySet) -> Iterator[list[str]]:
    """Yield the ids of the runs, some at a time, the oldest first."""
    runs = runs.order_by("created_at", "id")
    rows = list(runs.values_list("created_at", "id")[:MOST_ATOMIC])
    while rows:
        yield [run_id for _, run_id in rows]
        at, last = rows[-1]
        after = Q(created_at__gt=at) | Q(created_at=at, id__gt=last)
        rows = list(runs.filter(after, created_at__gte=at).values_list("created_at", "id")[:MOST_ATOMIC])


def rewrite_runs(
    alias: str,
    batches: Iterable[Sequence[str]],
    rewrite: Callable[[Sequence[str]], object],
    *,
    wait: float,
    say: Callable[[str], object],
) -> None:
    """Call `rewrite` with the runs of each batch, locked, in a transaction of its own.

    Runs that other transactions have locked are tried again for `wait` seconds; `say` is told of those that are left.
    """
    locked: set[str] = set()
    for run_ids in batches:
        locked = locked.difference(run_ids).union(_rewritten(alias, run_ids, rewrite))
    left = sorted(locked)
    deadline = time.monotonic() + wait
    while left and time.monotonic() < deadline:
        time.sleep(TRY_EVERY)
        left = [each for part in _parts(left) for each in _rewritten(alias, part, rewrite)]
    if left:
        keep = "keeps" if len(left) == 1 else "keep"
        say(
            f"{counted(len(left))} that other transactions have locked {keep} the old name, which goes on to fit; the same "
            "operation in a later migration rewrites the name"
        )


def _rewritten(alias: str, run_ids: Sequence[str], rewrite: Callable[[Sequence[str]], object]) -> list[str]:
    """Rewrite the runs in one transaction; return those whose rows another transaction has locked."""
    features = connections[alias].features
    runs = Run.objects.using(alias)
    with transaction.atomic(using=alias):
        if features.has_select_for_update:
            rows = runs.with_ids(run_ids).select_for_update(skip_locked=features.has_select_for_update_skip_locked)
        else:
            runs.lock_table()
            rows = runs.with_ids(run_ids)
        locked = list(rows.values_list("id", flat=True))
        rewrite(locked)
    return sorted({*run_ids} - {*locked}) if len(locked) < len(run_ids) else []


def _parts(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(run_ids), MOST_ATOMIC):
        yield run_ids[first : first + MOST_ATOMIC]


def counted(number: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if number == 1 else f"{number:,} runs"
