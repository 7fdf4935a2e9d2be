"""The runs that repeat a failed one: replays, restarts and starts with another input.

A failed run stays failed when another run repeats it. To recover it too may do once more what that run has done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.bulk_causes import WithFailures
from durable.inspection.humanize import thousands
from durable.models import Failure, Run
from durable.models.run import RunQuerySet

_MOST_SHOWN: Final = 3
_EXAMINED: Final = 1_000  # failed runs of each index that a selection follows


@dataclass(frozen=True, slots=True)
class Repeated:
    """How many runs of a selection have been repeated by others; with `is_partial`, at least so many."""

    number: int
    is_partial: bool

    @property
    def note(self) -> str:
        """All of it in sentences."""
        if self.is_partial:
            text = ngettext(
                "At least %(number)s of them was repeated by another run already: what is left of it would be done a second time.",
                "At least %(number)s of them were repeated by other runs already: what is left of them would be done a second time.",
                self.number,
            )
        else:
            text = ngettext(
                "%(number)s of them was repeated by another run already: what is left of it would be done a second time.",
                "%(number)s of them were repeated by other runs already: what is left of them would be done a second time.",
                self.number,
            )
        return text % {"number": thousands(self.number)}


def runs_that_repeat(run: Run, within: RunQuerySet | None = None) -> Sequence[Run]:
    """Return the newest runs that repeat a failed run; one statement, none for a run that has not failed."""
    if run.state != RunState.FAILED:
        return []
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    found = runs.filter(replay_of=run).only("id", "workflow", "state", "summary", "created_at").order_by()
    return sorted(found[: _MOST_SHOWN * 10], key=lambda each: (each.created_at, each.id), reverse=True)[:_MOST_SHOWN]


def count_repeated(selection: Any, states: frozenset[str], within: RunQuerySet | None = None) -> Repeated | None:
    """Return how many failed runs of a selection were repeated, None for none, if failed ones are among `states`.

    Looks at the first 1,000 failed runs along each index that the selection follows: one statement for each.
    """
    if RunState.FAILED not in states or not isinstance(selection, WithFailures):
        return None
    number, is_partial = 0, False
    for rows, is_window in selection.failed():
        ids = list(_ids(rows)[: _EXAMINED + 1])
        runs = Run.objects.using(conf.DATABASE) if within is None else within
        repeats = runs.filter(replay_of__in=ids[:_EXAMINED]).order_by()
        number += repeats.values("replay_of").distinct().count() if ids else 0
        is_partial |= is_window or len(ids) > _EXAMINED
    return Repeated(number, is_partial) if number else None


def _ids(rows: QuerySet[Any]) -> QuerySet[Any]:
    if not rows.query.order_by:  # the order of the model would read all of them
        rows = rows.order_by()
    return rows.values_list("run_id" if rows.model is Failure else "pk", flat=True)
