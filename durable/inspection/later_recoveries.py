"""The children of an ended run that were recovered since: what it has read of them tells nothing of that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import ExpressionWrapper, F, OuterRef, Q, Subquery, TextField
from django.db.models.functions import Coalesce
from django.db.models.lookups import Contains
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.child_entries import START
from durable.core.records import EntryKind
from durable.inspection.capped_counts import Count, cross_tally
from durable.inspection.humanize import shortened
from durable.models import Child, Entry, OperatorAction, Run
from durable.models.rows import unpack
from durable.models.run import RunQuerySet

_CAP: Final = 10_000  # children that are looked at
_MOST_PLACES: Final = 1_000  # operations with recovered children whose records are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRecoveries:
    """The number of a run's children that were recovered since it read their ends, and the newest recovery.

    `is_after_end`: all of them were after the end of the run. A replay in place that keeps what has read the children
    gives the run a later end.
    """

    count: Count
    newest: OperatorAction
    is_after_end: bool = True

    @property
    def text(self) -> str:
        """All of it in a sentence without a full stop."""
        if self.is_after_end:
            text = ngettext(
                "%(number)s of these was recovered after this run had ended, by %(who)s",
                "%(number)s of these were recovered after this run had ended, last by %(who)s",
                self.count.number,
            )
        else:
            text = ngettext(
                "%(number)s of these was recovered after this run had read how it ended, by %(who)s",
                "%(number)s of these were recovered after this run had read how they ended, last by %(who)s",
                self.count.number,
            )
        text %= {"number": self.count, "who": self.newest.actor_label or self.newest.get_source_display()}
        reason = shortened(self.newest.reason)
        return _("%(title)s: %(reason)s") % {"title": text, "reason": reason} if reason else text

    @property
    def at(self) -> datetime:
        """When the newest of them was."""
        return self.newest.created_at


def recovered_later(run: Run, within: RunQuerySet | None = None) -> LaterRecoveries | None:
    """Return what was recovered of an ended run's first 10,000 children since it has read them; None for nothing.

    One statement, three more for a run with children that were ever recovered; none for an open run. `within` limits
    the children, for example to those that a user may see.
    """
    if run.finished_at is None:
        return None
    # looked up for each child along the index of runs: as a join, the log might be read as a whole
    actions = OperatorAction.objects.using(conf.DATABASE).filter(
        run_id=OuterRef("run_id"), action="recover", outcome="done"
    )
    newest = actions.order_by("-created_at", "-id").values("id")[:1]
    children = Child.objects.using(conf.DATABASE).filter(parent_id=run.id).order_by("position")
    if within is not None:
        children = children.filter(run__in=within.order_by().values("pk"))
    rows = cross_tally(children.annotate(of_action=Subquery(newest)), ["of_action", "location"], _CAP + 1)
    places = {action: unpack(location) for action, location, _number in rows if action is not None}
    if not places:
        return None
    read = _read_at(run.id, set(places.values()))
    recoveries = OperatorAction.objects.using(conf.DATABASE).filter(pk__in=list(places))
    since = [
        (moment, action)
        for action, moment in recoveries.values_list("pk", "created_at")
        if moment > min(run.finished_at, read.get(places[action], run.finished_at))
    ]
    if not since:
        return None
    is_capped = sum(number for *_, number in rows) > _CAP
    last = OperatorAction.objects.using(conf.DATABASE).filter(pk=max(since)[1]).first()
    is_after_end = min(since)[0] > run.finished_at
    if last is None:
        return None
    return LaterRecoveries(count=Count(number=len(since), is_capped=is_capped), newest=last, is_after_end=is_after_end)


def _read_at(run_id: str, places: Collection[str]) -> dict[str, datetime]:
    """Return when the operations at these places have read how their children ended: maps, and calls of a child."""
    entries = Entry.objects.using(conf.DATABASE).filter(run=run_id, location__in=sorted(places)[:_MOST_PLACES])
    text = ExpressionWrapper(F("data"), TextField())
    starts = Q(Contains(text, f'"action":"{START}"'), kind=EntryKind.CHILD.value)  # they are read at other places
    read = entries.exclude(starts).annotate(read_at=Coalesce("metadata__completed_at", "metadata__last_attempt_at"))
    return dict(read.filter(read_at__isnull=False).values_list("location", "read_at"))
