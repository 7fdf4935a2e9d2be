"""The number of runs in each state, counted up to a cap. Roots and children are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count, count_capped, moment_of, sample_rows
from durable.inspection.pagination import Cursor, RunOrder
from durable.inspection.visibility import has_own_index
from durable.inspection.visible_window import are_few
from durable.models import Child, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

CAP = 10_000  # of each state; a higher number would not help an operator
_STATES: Final = [state.value for state in RunState]


def count_by_state(within: RunQuerySet | None = None) -> dict[str, Count]:
    """Return the number of runs in each state, every state included, each counted up to `CAP`; one statement.

    `within` limits the runs that count, for example to those that a user may see. If no index serves it, or they are
    more than `CAP`, they are counted among the newest `CAP` runs of each state, by at most two more statements.
    """
    if within is None or (has_own_index(within) and are_few(within, CAP)):
        return count_everyone(within)[0]
    everyone: RunQuerySet = Run.objects.using(conf.DATABASE)
    newest = [everyone.filter(state=each).newest_first() for each in _STATES]
    ends = sample_rows([each[CAP : CAP + 1] for each in newest], RunOrder.NEWEST.key, 1)
    last = [Cursor(moment_of(rows[0][0]), unpack(rows[0][1])) if rows else None for rows in ends]
    visible = [within.filter(state=each).newest_first() for each in _STATES]
    among = [
        runs if end is None else runs.filter(end.up_to(RunOrder.NEWEST.key))
        for runs, end in zip(visible, last, strict=True)
    ]
    counts = zip(count_capped(among, CAP), last, strict=True)
    found = [replace(count, is_capped=count.is_capped or end is not None) for count, end in counts]
    return dict(zip(_STATES, found, strict=True))


def count_everyone(within: RunQuerySet | None = None) -> tuple[dict[str, Count], bool]:
    """Return the counts of `count_by_state`, and whether any run at all is a child; one statement."""
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    of_state = [runs.filter(state=each).newest_first() for each in _STATES]
    *counts, children = count_capped([*of_state, Child.objects.using(conf.DATABASE).order_by("pk")[:1]], CAP)
    return dict(zip(_STATES, counts, strict=True)), bool(children)
