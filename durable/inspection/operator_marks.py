"""Operators' verbs on a run, as marks on its axis of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from durable.conf import conf
from durable.inspection.humanize import shortened
from durable.models import OperatorAction, Run

_MOST: Final = 50
_AT_ONCE: Final = timedelta(seconds=1)  # between an operator's cancel and the end of the run
_DONE: Final = {
    "recover": gettext_lazy("recovered by %(who)s"),
    "wake": gettext_lazy("woken by %(who)s"),
    "pause": gettext_lazy("paused by %(who)s"),
    "resume": gettext_lazy("resumed by %(who)s"),
    "cancel": gettext_lazy("cancelled by %(who)s"),
    "replay": gettext_lazy("replayed by %(who)s"),
    "send": gettext_lazy("sent a message by %(who)s"),
    "worker_died": gettext_lazy("worker %(who)s died"),
    "taken_over": gettext_lazy("taken over by %(who)s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An operator's verb on the run: "recovered by ada: the bank is back"."""

    title: str
    at: datetime


def read_marks(run: Run, now: datetime) -> list[Mark]:
    """Return what operators did to the run before its end, in order, at most 50; one statement."""
    found = OperatorAction.objects.using(conf.DATABASE).filter(run_id=run.id, outcome="done", action__in=list(_DONE))
    before = (run.finished_at or now) + _AT_ONCE
    chosen = found.filter(created_at__lte=before).order_by("created_at", "id")[:_MOST]
    return [Mark(title=_title(each), at=each.created_at) for each in chosen]


def _title(action: OperatorAction) -> str:
    title = str(_DONE[action.action]) % {"who": action.actor_label or action.source}
    if not action.reason:
        return title
    return _("%(title)s: %(reason)s") % {"title": title, "reason": shortened(action.reason)}
