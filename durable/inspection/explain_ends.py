"""Explain runs that have ended, and what an operator can do about a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.core.records import EntryStatus
from durable.core.summary import SummaryKind, steps_undone
from durable.inspection.explanation import Explanation, Facts
from durable.inspection.failed_places import with_step
from durable.inspection.humanize import relative, shortened
from durable.inspection.innermost_error import innermost_error
from durable.inspection.payloads import redacted_error
from durable.inspection.told_divergence import MOST, told_divergence
from durable.inspection.wording import LOCAL, display_location


def completed(facts: Facts) -> Explanation:
    """Explain a completed run."""
    return Explanation(headline=_("Completed %(when)s") % {"when": facts.ended})


def cancelled(facts: Facts) -> Explanation:
    """Explain a cancelled run: why, and what was undone."""
    reason = facts.run.request_reason
    if facts.within is not None and facts.summary.kind in (SummaryKind.PARENT_ENDED, SummaryKind.DROPPED):
        reason = _("Its parent has ended, or has taken its start back")  # the reason names the parent
    undone = _undone(facts)
    if undone:
        headline = _("Cancelled %(when)s; compensated: %(steps)s") % {"when": facts.ended, "steps": undone}
    else:
        headline = _("Cancelled %(when)s") % {"when": facts.ended}
    return Explanation(
        headline=headline,
        detail=shortened(_("Reason: %(reason)s") % {"reason": reason}) if reason else "",
        remedies=("restart",),
    )


def failed(facts: Facts) -> Explanation:
    """Explain a failed run: what has stopped it, and what a recovery does."""
    run, kind = facts.run, facts.summary.kind
    if kind is SummaryKind.STOPPED_BY_MISTAKE:
        return Explanation(
            headline=_("Stopped by a mistake in the code: %(error)s") % {"error": shortened(facts.quoted_error)},
            detail=_("%(undone)s. Fix the code, deploy it, then recover the run: it goes on where it was")
            % {"undone": _undone_before(facts)},
            needs_attention=True,
            remedies=("recover", "replay", "restart"),
        )
    if run.state_after_rollback or kind is SummaryKind.HANDLER_FAILED:
        return _stopped_compensating(facts)
    explained = _BY_ERROR.get(run.error.type) if run.error is not None else None
    return _failed(facts) if explained is None else explained(facts)


def _stopped_compensating(facts: Facts) -> Explanation:
    if facts.run.state_after_rollback:
        place, error = why_it_failed(facts)
        detail = (
            _(
                'It was undoing its steps because it failed at "%(place)s": %(error)s. Fix what the handler needs, then '
                "recover the run: the compensation goes on with the handlers that are left"
            )
            if place
            else _(
                "It was undoing its steps because it failed: %(error)s. Fix what the handler needs, then recover the run: "
                "the compensation goes on with the handlers that are left"
            )
        ) % {"place": place, "error": shortened(error)}
    else:
        detail = _(
            "Its code was undoing its steps. Fix what the handler needs, then recover the run: the compensation goes on "
            "with the handlers that are left, and then the code"
        )
    why = shortened(facts.summary.without_advice)
    return Explanation(
        headline=_("Compensation has stopped %(when)s: %(why)s") % {"when": facts.ended, "why": why},
        detail=detail,
        needs_attention=True,
        remedies=("recover",),
        location=facts.failed_at,
    )


def _diverged(facts: Facts) -> Explanation:
    kind, separator, message = _whole_error(facts).partition(": ")
    error = shortened(f"{kind}{separator}{told_divergence(message)}", MOST)
    return Explanation(
        headline=_("Stopped: the code no longer fits its history"),
        detail=_("%(error)s. Nothing was compensated. Fix the code, then recover the run: it goes on where it was")
        % {"error": error.removesuffix(".")},
        needs_attention=True,
        remedies=("recover", "replay", "restart"),
    )


def _crashed(facts: Facts) -> Explanation:
    return Explanation(
        headline=ngettext(
            "Stopped %(when)s: it crashed %(number)d worker in a row",
            "Stopped %(when)s: it crashed %(number)d workers in a row",
            facts.run.crashes,
        )
        % {"when": facts.ended, "number": facts.run.crashes},
        detail=_("Look at the workers' logs for what kills them (memory, a native library), then recover the run"),
        needs_attention=True,
        remedies=("recover", "replay"),
    )


def _failed(facts: Facts) -> Explanation:
    run, undone = facts.run, _undone(facts)
    location = facts.failed_at or (run.origins[0] if run.origins else "")
    place, error = innermost_error(location, _whole_error(facts))
    told = {
        "place": with_step(place, facts.place),
        "when": relative(run.finished_at or facts.now, facts.now),
        "error": shortened(error),
        "steps": undone,
    }
    if location:
        headline = (
            _('Failed at "%(place)s" %(when)s: %(error)s; compensated: %(steps)s')
            if undone
            else _('Failed at "%(place)s" %(when)s: %(error)s')
        )
    else:
        headline = (
            _("Failed %(when)s: %(error)s; compensated: %(steps)s") if undone else _("Failed %(when)s: %(error)s")
        )
    if facts.undone is not None:
        detail = _("Compensated: %(steps)s") % {"steps": facts.undone.text}
    elif undone:
        detail = _(
            "Fix the cause, then recover the run: it goes back to the earliest step that was undone, and does all from "
            "there again"
        )
    elif not run.origins and (left := facts.open(EntryStatus.EXHAUSTED)) is not None:
        return Explanation(
            headline=headline % told,
            detail=_(
                "Its own code has raised this error, so a recovery only runs the code again, and no step that has failed. To "
                'try "%(step)s" again, replay the run from there'
            )
            % {"step": display_location(left.location)},
            needs_attention=True,
            remedies=("replay", "recover", "restart"),
            location=left.location,
        )
    else:
        detail = _("Fix the cause, then recover the run: what failed is tried again and the rest goes on from there")
    return Explanation(
        headline=headline % told,
        detail=detail,
        needs_attention=True,
        remedies=("recover", "replay", "restart"),
        location=location,
    )


def _whole_error(facts: Facts) -> str:
    error = facts.run.error
    return _("for a reason that was not recorded") if error is None else redacted_error(facts.run.workflow, error)


def why_it_failed(facts: Facts) -> tuple[str, str]:
    """Return the place, for display, and the error of the failure that the run is undoing; "" for no place."""
    place, error = innermost_error(facts.run.origins[0] if facts.run.origins else "", _whole_error(facts))
    return display_location(place), error


def _undone_before(facts: Facts) -> str:
    """Return what is undone of a run that a mistake has stopped: nothing, unless its code has called ctx.compensate."""
    if not facts.undone_by_code:
        return _("Nothing was undone because of it")
    return _("%(steps)s by ctx.compensate before, and nothing was undone because of the mistake") % {
        "steps": steps_undone(facts.undone_by_code, LOCAL)
    }


def _undone(facts: Facts) -> str:
    """Return how many steps the compensation at the run's end has undone; "" for none.

    The row tells that too, unless the caller has read the entries.
    """
    if facts.undone is not None:
        return steps_undone(len(facts.undone.locations), LOCAL)
    summary = facts.summary
    return steps_undone(summary.facts["count"], LOCAL) if summary.kind is SummaryKind.COMPENSATED else ""


_BY_ERROR: Final[Mapping[str, Callable[[Facts], Explanation]]] = {
    "HistoryDivergedError": _diverged,
    "RunCrashedError": _crashed,
}
