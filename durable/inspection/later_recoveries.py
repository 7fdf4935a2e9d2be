"""The children of an ended run that were recovered after its end: what it returned tells nothing of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.inspection.capped_counts import Count, cross_tally
from durable.inspection.humanize import shortened
from durable.models import Child, OperatorAction, Run

__all__ = ["LaterRecoveries", "recovered_later"]

_CAP: Final = 10_000  # children that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRecoveries:
    """How many children of a run were recovered after its end, and the newest of these recoveries."""

    count: Count
    newest: OperatorAction

    @property
    def text(self) -> str:
        """All of it in a sentence without a full stop."""
        text = ngettext(
            "%(number)s of these was recovered after this run had ended, by %(who)s",
            "%(number)s of these were recovered after this run had ended, last by %(who)s",
            self.count.number,
        ) % {"number": self.count, "who": self.newest.actor_label or self.newest.get_source_display()}
        reason = shortened(self.newest.reason)
        return _("%(title)s: %(reason)s") % {"title": text, "reason": reason} if reason else text

    @property
    def at(self) -> datetime:
        """When the newest of them was."""
        return self.newest.created_at


def recovered_later(run: Run) -> LaterRecoveries | None:
    """Return what was recovered of the run's first 10,000 children after its end; None if nothing was, or it is open.

    Two statements; none for an open run.
    """
    if run.finished_at is None:
        return None
    # looked up for each child along the index of runs: as a join, the log might be read from the run's end on
    actions = OperatorAction.objects.using(conf.DATABASE).filter(
        run_id=OuterRef("run_id"), action="recover", outcome="done", created_at__gt=run.finished_at
    )
    newest = actions.order_by("-created_at", "-id").values("id")[:1]
    children = Child.objects.using(conf.DATABASE).filter(parent_id=run.id).order_by("position")
    rows = cross_tally(children.annotate(of_action=Subquery(newest)), ["of_action"], _CAP + 1)
    found = [each for each, _number in rows if each is not None]
    if not found:
        return None
    is_capped = sum(number for _, number in rows) > _CAP
    last = OperatorAction.objects.using(conf.DATABASE).filter(pk=max(found)).first()
    return None if last is None else LaterRecoveries(count=Count(number=len(found), is_capped=is_capped), newest=last)
