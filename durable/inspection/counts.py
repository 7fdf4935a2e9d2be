"""How many runs are in each state, counted no further than a cap."""

from __future__ import annotations

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import Count, capped_counts
from durable.models import Run
from durable.models.querysets import RunQuerySet

__all__ = ["CAP", "count_by_state"]

CAP = 10_000  # of each state; beyond that a number helps nobody


def count_by_state(within: RunQuerySet | None = None) -> dict[str, Count]:
    """The number of runs in each state, every state included, each counted up to `CAP`; one statement.

    `within` limits the runs that count, to those that a user may see, say.
    """
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    states = [state.value for state in RunState]
    return dict(
        zip(states, capped_counts([runs.filter(state=each).newest_first() for each in states], CAP), strict=True)
    )
