"""The number of runs in each state, counted up to a cap. Roots and children are counted."""

from __future__ import annotations

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count, count_capped
from durable.models import Child, Run
from durable.models.run import RunQuerySet

__all__ = ["CAP", "count_by_state", "count_everyone"]

CAP = 10_000  # of each state; a higher number would not help an operator


def count_by_state(within: RunQuerySet | None = None) -> dict[str, Count]:
    """Return the number of runs in each state, every state included, each counted up to `CAP`; one statement.

    `within` limits the runs that count, for example to those that a user may see.
    """
    return count_everyone(within)[0]


def count_everyone(within: RunQuerySet | None = None) -> tuple[dict[str, Count], bool]:
    """Return what `count_by_state` does, and whether any run at all is a child; one statement."""
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    states = [state.value for state in RunState]
    of_state = [runs.filter(state=each).newest_first() for each in states]
    *counts, children = count_capped([*of_state, Child.objects.using(conf.DATABASE).order_by("pk")[:1]], CAP)
    return dict(zip(states, counts, strict=True)), bool(children)
