"""The children of an ended run that are still to be cancelled.

One transaction cancels a few hundred of them, and workers cancel the rest.
"""

from __future__ import annotations

from typing import Final

from django.db.models import Q
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.records import ENDED, RunState, WhenParentEnds
from durable.inspection.capped_counts import Count
from durable.models import Child, Run
from durable.models.run import RunQuerySet

_CAP: Final = 1_000
_ENDING: Final = tuple(each.value for each in (*ENDED, RunState.ROLLING_BACK))


def children_left_note(run: Run, within: RunQuerySet | None = None) -> str:
    """Return how many children of an ended run are left to be cancelled, in a sentence; "" for none.

    Nothing is said of a run that was read without its `cascade`. For a run that has some left one query, a count that
    stops at 1,000; none for any other. `within` limits the children.
    """
    if not Run.cascade.is_cached(run) or getattr(run, "cascade", None) is None:
        return ""
    wanted = Q(when_parent_ends=WhenParentEnds.CANCEL.value) | Q(is_dropped=True)
    children = Child.objects.using(conf.DATABASE).filter(wanted, parent=run.pk).exclude(run__state__in=_ENDING)
    if within is not None:
        children = children.filter(run__in=within.order_by().values("pk"))
    left = children.filter(run__pending_request="").order_by("position").values("pk")[: _CAP + 1].count()
    if not left:
        return ""
    text = ngettext(
        "%(number)s of its children is left to be cancelled: workers do that within seconds",
        "%(number)s of its children are left to be cancelled: workers do that within seconds",
        left,
    )
    return text % {"number": str(Count(number=min(left, _CAP), is_capped=left > _CAP))}
