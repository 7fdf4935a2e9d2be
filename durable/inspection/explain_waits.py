"""Explain runs that are due, asleep, or wait: for a message, for a worker, or for other code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from durable.conf import conf
from durable.core import location as locations
from durable.core.bulk_runs import is_stopped
from durable.core.location import display_location
from durable.core.records import ENDED, EntryKind, EntryStatus
from durable.core.summary import SummaryKind
from durable.inspection.explanation import Explanation, Facts, capitalized
from durable.inspection.humanize import either, relative, shortened, until
from durable.models import Run
from durable.notifier import redis_clients

__all__ = ["awaited_queues", "in_paused_queue", "late", "pending", "sleeping"]

_MOST_OF_A_MISFIT: Final = 800  # characters of what does not fit: it ends with what to do


def awaited_queues(run: Run) -> list[str] | None:
    """Return the message queues that the run waits for, [] for any; None if it waits for no message."""
    return locations.awaited_queues(run.state, run.waiting_for)


def pending(facts: Facts) -> Explanation:
    """Explain a pending run: when it starts or goes on, or which worker it waits for."""
    run, now = facts.run, facts.now
    doing = shortened(facts.summary.without_time)
    because = f" ({doing})" if doing else ""
    if run.wake_at is not None and run.wake_at > now:
        begins = "Starts" if run.started_at is None else "Goes on"
        return Explanation(headline=f"{begins} {until(run.wake_at, now)}{because}", remedies=("wake", "cancel"))
    return late(facts) or Explanation(headline=f'Waiting for a worker of the queue "{run.queue}"{because}')


def in_paused_queue(facts: Facts) -> Explanation | None:
    """Explain a run that is due in a paused queue; None for any other."""
    run, hold = facts.run, facts.paused
    if hold is None or not facts.is_due or facts.is_held or run.state in ENDED:
        return None
    who = f" by {hold.held_by}" if hold.held_by else ""
    reason = f": {shortened(hold.reason)}" if hold.reason else ""
    return Explanation(
        headline=f'Due, and its queue "{run.queue}" is paused{who} for {facts.since(hold.held_at)}{reason}',
        detail="No worker takes it before the queue is resumed",
    )


def late(facts: Facts) -> Explanation | None:
    """Explain a run that no worker has claimed for too long; None for any other."""
    run = facts.run
    if not facts.is_late or run.wake_at is None:
        return None
    known = redis_clients.queue_names()
    serve = f"See that a worker serves it: python manage.py durable_worker {run.queue}"
    unknown = f"RQ_QUEUES lacks this queue, and has {', '.join(known) or 'none'}: add it, or start the run on another"
    return Explanation(
        headline=f'Due for {facts.since(run.wake_at)}, and no worker of the queue "{run.queue}" has taken it',
        detail=serve if run.queue in known or not conf.REDIS else unknown,
        needs_attention=True,
        remedies=("wake",),
    )


def sleeping(facts: Facts) -> Explanation:
    """Explain a sleeping run: what it waits for, and until when."""
    run = facts.run
    if run.diverged_at is not None:
        return _MISFITS.get(facts.summary.kind, _diverged)(facts)
    overdue = late(facts)
    if overdue is None and not facts.is_due and is_stopped(run.workflow, run.state, run.waiting_for):
        return Explanation(
            headline="Stopped after its first runs: go on with the rest, or stop here",
            detail="Too many of them failed again, or some had not come to an end in time",
            needs_attention=True,
            remedies=("go_on", "stop_here"),
        )
    if run.waiting_for:
        return _waiting(facts, overdue)
    if overdue is not None:
        return overdue
    if facts.is_due:
        return Explanation(headline=f'Due, waiting for a worker of the queue "{run.queue}"')
    step = facts.open(EntryStatus.FAILED)
    location = step.location if step is not None else ""
    summary = facts.summary
    doing = shortened(summary.without_time)
    if not doing and step is not None and step.metadata.error is not None:
        doing = f'step "{display_location(step.location)}" failed ({step.metadata.error.type}), attempt {step.metadata.attempts}'
    is_retrying = step is not None or summary.is_backing_off
    headline = capitalized(doing or "asleep")
    if run.wake_at is not None:
        headline += f"{', next try' if is_retrying else ' until'} {until(run.wake_at, facts.now)}"
    return Explanation(headline=headline, remedies=("wake", "pause", "cancel"), location=location)


def _waiting(facts: Facts, overdue: Explanation | None) -> Explanation:
    run, now = facts.run, facts.now
    queues = awaited_queues(run)
    where = either(queues) if queues else "any queue"
    beside = shortened(facts.summary.doing)
    also = f"{capitalized(beside)}; waiting" if beside else "Waiting"
    wait = next((each for each in reversed(facts.entries) if each.kind == EntryKind.MESSAGE), None)
    location = wait.location if wait is not None else ""
    if overdue is not None:
        return Explanation(
            headline=f"{also} for a message in {where}; a message or the deadline came {relative(run.wake_at or now, now)}",
            detail=f"No worker has taken it since. {overdue.detail}",
            needs_attention=True,
            remedies=("wake",),
            location=location,
        )
    if facts.is_due:
        return Explanation(
            headline=f"{also} for a message in {where}; a message or the deadline has come; no worker has taken it yet"
        )
    deadline = f" until {until(run.wake_at, now)}" if run.wake_at is not None else ", without a deadline"
    received = ""
    if facts.unreceived is not None:
        received = f"; {facts.unreceived} in other queues" if facts.unreceived else "; nothing received"
    headline = f"{also} for a message in {where}{deadline}{received}"
    return Explanation(headline=headline, remedies=("send", "cancel"), location=location)


def _unknown_workflow(facts: Facts) -> Explanation:
    return Explanation(
        headline=f'No worker knows the workflow "{facts.run.workflow}"{_tried(facts)}',
        detail="Deploy the code that has the workflow to the workers of its queue, or cancel the run",
        needs_attention=True,
        remedies=("wake", "cancel"),
    )


def _diverged(facts: Facts) -> Explanation:
    return Explanation(
        headline=f"The code of the workers does not fit its history{_tried(facts)}",
        detail=f"{_misfit(facts)}. If no deploy is under way, fix the code, with ctx.removed() or ctx.get_version()",
        needs_attention=True,
        remedies=("wake", "pause"),
    )


def _mistaken(facts: Facts) -> Explanation:
    return Explanation(
        headline=f"A mistake in the code of the workers{_tried(facts)}",
        detail=f"{_misfit(facts)}. Nothing is undone meanwhile. If no deploy is under way, fix the code",
        needs_attention=True,
        remedies=("wake", "pause"),
    )


def _tried(facts: Facts) -> str:
    """Return since when the code of the workers does not fit, and when it is tried again."""
    run = facts.run
    since = f" for {facts.since(run.diverged_at)}" if run.diverged_at is not None else ""
    return f"{since}, tried again {relative(run.wake_at, facts.now)}" if run.wake_at is not None else since


def _misfit(facts: Facts) -> str:
    return shortened(facts.quoted_error, _MOST_OF_A_MISFIT).removesuffix(".")


_MISFITS: Final[Mapping[SummaryKind, Callable[[Facts], Explanation]]] = {
    SummaryKind.UNKNOWN_WORKFLOW: _unknown_workflow,
    SummaryKind.MISTAKE: _mistaken,
    SummaryKind.DIVERGED: _diverged,
}
