"""The number of runs in each state, counted up to a cap."""

from __future__ import annotations

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count, count_capped
from durable.models import Run
from durable.models.run import RunQuerySet

__all__ = ["CAP", "count_by_state"]

CAP = 10_000  # of each state; a higher number would not help an operator


def count_by_state(within: RunQuerySet | None = None) -> dict[str, Count]:
    """Return the number of runs in each state, every state included, each counted up to `CAP`; one statement.

    `within` limits the runs that count, for example to those that a user may see.
    """
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    states = [state.value for state in RunState]
    return dict(
        zip(states, count_capped([runs.filter(state=each).newest_first() for each in states], CAP), strict=True)
    )
