"""Explain runs that have ended, and what an operator can do about a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from durable.core.location import display_location
from durable.core.summary import SummaryKind, steps_undone
from durable.inspection.explanation import Explanation, Facts
from durable.inspection.humanize import relative, shortened
from durable.inspection.payloads import redacted_error

__all__ = ["cancelled", "completed", "failed"]

#: The prefix of an exhausted step's error, before the original error; the explanation names the step already.
_LAST_ATTEMPT: Final = re.compile(r"^StepExhaustedError: step .*? failed on its last attempt: ")


def completed(facts: Facts) -> Explanation:
    """Explain a completed run."""
    return Explanation(headline=f"Completed {facts.ended}")


def cancelled(facts: Facts) -> Explanation:
    """Explain a cancelled run: why, and what was undone."""
    reason = facts.run.request_reason
    undone = _undone(facts)
    return Explanation(
        headline=f"Cancelled {facts.ended}{f'; compensated: {undone}' if undone else ''}",
        detail=shortened(f"Reason: {reason}") if reason else "",
        remedies=("restart",),
    )


def failed(facts: Facts) -> Explanation:
    """Explain a failed run: what has stopped it, and what a recovery does."""
    run, kind = facts.run, facts.summary.kind
    if kind is SummaryKind.STOPPED_BY_MISTAKE:
        return Explanation(
            headline=f"Stopped by a mistake in the code: {shortened(facts.quoted_error)}",
            detail=f"{_undone_before(facts)}. Fix the code, deploy it, then recover the run: it goes on where it was",
            needs_attention=True,
            remedies=("recover", "replay", "restart"),
        )
    if run.state_after_rollback or kind is SummaryKind.HANDLER_FAILED:
        return _stopped_compensating(facts)
    explained = _BY_ERROR.get(run.error.type) if run.error is not None else None
    return _failed(facts) if explained is None else explained(facts)


def _stopped_compensating(facts: Facts) -> Explanation:
    why, then = "Its code was undoing its steps", ", and then the code"
    if facts.run.state_after_rollback:
        why, then = f"It was undoing its steps because it failed: {_error(facts)}", ""
    return Explanation(
        headline=f"Compensation has stopped {facts.ended}: {shortened(facts.summary.without_advice)}",
        detail=f"{why}. Fix what the handler needs, then recover the run: the compensation goes on with the "
        f"handlers that are left{then}",
        needs_attention=True,
        remedies=("recover",),
        location=facts.failed_at,
    )


def _diverged(facts: Facts) -> Explanation:
    return Explanation(
        headline="Stopped: the code no longer fits its history",
        detail=f"{_error(facts)} Nothing was compensated. Fix the code, then recover the run: it goes on where it was",
        needs_attention=True,
        remedies=("recover", "replay", "restart"),
    )


def _crashed(facts: Facts) -> Explanation:
    return Explanation(
        headline=f"Stopped {facts.ended}: it crashed {facts.run.crashes} workers in a row",
        detail="Look at the workers' logs for what kills them (memory, a native library), then recover the run",
        needs_attention=True,
        remedies=("recover", "replay"),
    )


def _failed(facts: Facts) -> Explanation:
    run, undone = facts.run, _undone(facts)
    location = facts.failed_at or (run.origins[0] if run.origins else "")
    when = f" {relative(run.finished_at, facts.now)}" if run.finished_at is not None else ""
    where = f' at "{display_location(location)}"' if location else ""
    goes_on = "what failed is tried again and the rest goes on from there"
    if undone:
        goes_on = "it goes back to the earliest step that was undone, and does all from there again"
    return Explanation(
        headline=f"Failed{where}{when}: {_LAST_ATTEMPT.sub('', _error(facts))}{f'; compensated: {undone}' if undone else ''}",
        detail=f"Fix the cause, then recover the run: {goes_on}"
        if facts.undone is None
        else f"Compensated: {facts.undone.text}",
        needs_attention=True,
        remedies=("recover", "replay", "restart"),
        location=location,
    )


def _error(facts: Facts) -> str:
    error = facts.run.error
    return (
        "for a reason that was not recorded" if error is None else shortened(redacted_error(facts.run.workflow, error))
    )


def _undone_before(facts: Facts) -> str:
    """Return what is undone of a run that a mistake has stopped: nothing, unless its code has called ctx.compensate."""
    if not facts.undone_by_code:
        return "Nothing was undone because of it"
    return (
        f"{steps_undone(facts.undone_by_code)} by ctx.compensate before, and nothing was undone because of the mistake"
    )


def _undone(facts: Facts) -> str:
    """Return how many steps the compensation at the run's end has undone; "" for none.

    The row tells that too, unless the caller has read the entries.
    """
    if facts.undone is not None:
        return steps_undone(len(facts.undone.locations))
    summary = facts.summary
    return steps_undone(summary.facts["count"]) if summary.kind is SummaryKind.COMPENSATED else ""


_BY_ERROR: Final[Mapping[str, Callable[[Facts], Explanation]]] = {
    "HistoryDivergedError": _diverged,
    "RunCrashedError": _crashed,
}
