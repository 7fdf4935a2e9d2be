"""The deadline and the work limit of a run, for every surface."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from durable.core.limits import RunLimits
from durable.core.records import ENDED, RunState
from durable.inspection.humanize import relative, span
from durable.models import Run


def limits_of(run: Run) -> RunLimits | None:
    """Return the run's limits, None without any; one query, unless the run was read with its `limit`."""
    row = getattr(run, "limit", None)
    return None if row is None else row.record


def limits_note(run: Run, now: datetime) -> str:
    """Return what the limits mean for a run that has not ended, as a sentence without a full stop; "" for nothing.

    Nothing is said of a run that was read without its `limit`: no query is made.
    """
    if run.state in ENDED or run.state == RunState.ROLLING_BACK or not Run.limit.is_cached(run):
        return ""
    limits = limits_of(run)
    if limits is None:
        return ""
    if limits.deadline is not None and limits.deadline <= now:
        return _("Its deadline was %(when)s: it fails as soon as it goes on") % {"when": relative(limits.deadline, now)}
    if limits.deadline is not None:
        return _("Its deadline is %(when)s") % {"when": relative(limits.deadline, now)}
    return _("Its work limit: %(used)s") % {"used": work_words(limits)}


def work_words(limits: RunLimits) -> str:
    """Return how much of the work limit the run's passes have used: "12 m of 1 h"; "" without a limit."""
    if limits.work_limit is None:
        return ""
    return _("%(used)s of %(limit)s") % {"used": span(limits.worked), "limit": span(limits.work_limit)}


def limits_data(run: Run) -> dict[str, Any]:
    """Return the limits as data: the deadline as ISO 8601 text, the others in seconds; None for no limit."""
    limits = limits_of(run) or RunLimits()
    return {
        "deadline": None if limits.deadline is None else limits.deadline.isoformat(),
        "work_limit": limits.work_limit,
        "worked": None if limits.work_limit is None else limits.worked,
    }
