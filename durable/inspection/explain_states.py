"""Explain a run to an operator: what the run does or waits for, until when, and how the operator can act.

Reads a run's row, and its open entries if the caller passes them; decides nothing. Serves lists (a row alone, no query)
as well as a run's own page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.mistakes import has_stopped
from durable.core.records import EntryStatus, Hold, HoldKind, Request, RunState
from durable.core.summary import Summary, SummaryKind
from durable.inspection import explain_ends, explain_waits
from durable.inspection.activities import RunningStep, activities_of
from durable.inspection.backlog import backlog_note
from durable.inspection.children_left import children_left_note
from durable.inspection.children_notes import failed_note, pause_note
from durable.inspection.explain_maps import recovering_note
from durable.inspection.explain_waits import awaited_queues
from durable.inspection.explanation import LATE, Explanation, Facts, capitalized
from durable.inspection.family import FamilyCounts
from durable.inspection.fork_outcomes import innermost_failures
from durable.inspection.holds import find_hold
from durable.inspection.humanize import relative, shortened, span, thousands, until
from durable.inspection.limits import limits_note
from durable.inspection.messages_left import messages_left_note
from durable.inspection.misfits import WITHHELD, misfit_of, replay_check
from durable.inspection.ranks import rank_note
from durable.inspection.undone import Undone, read_undone, stuck_step
from durable.inspection.wording import display_location
from durable.inspection.workers import death_note
from durable.models import Entry, QueueMessage, Run
from durable.models.run import RunQuerySet

__all__ = ["LATE", "Explanation", "awaited_queues", "explain", "explain_fully", "open_entries"]

MOST_OPEN: Final = 50  # open entries that an explanation reads
_MOST_MESSAGES: Final = 1_000


def explain(
    run: Run,
    now: datetime,
    entries: Sequence[Entry] = (),
    unreceived: int | None = None,
    undone: Undone | None = None,
    undone_by_code: int = 0,
    failed_at: str = "",
    running: Sequence[RunningStep] = (),
    paused: Hold | None = None,
    within: RunQuerySet | None = None,
    place: str = "",
) -> Explanation:
    """Explain what the run does at `now`.

    `entries` are its open entries with their metadata, see `open_entries`; without them the row alone is used.
    `unreceived` is the number of messages in its inbox that no wait has received, None if they were not counted.
    `undone` are the steps that its compensation has undone, None without any or if they were not read, and
    `undone_by_code` the number of those that its code has undone (`ctx.compensate`); see `read_undone`. `failed_at` is
    the innermost step that made it fail, or the step whose rollback handler has stopped its compensation; "" if it was
    not read: then the row's first origin is named. `running` are the steps that run now, the oldest first; see
    `activities_of`. `paused` is the hold of the run's queue, None without any. `within` are the runs that the reader
    may see, None for all: others are neither named nor counted. `place` is that of its cause, for a list that reads no
    entries; see `failed_places`.
    """
    facts = Facts(run, now, entries, unreceived, undone, undone_by_code, failed_at, running, paused, within, place)
    return explain_waits.in_paused_queue(facts) or _BY_STATE[RunState(run.state)](facts)


def explain_fully(
    run: Run,
    now: datetime,
    open_keys: Sequence[int] | None = None,
    children: FamilyCounts | None = None,
    *,
    within: RunQuerySet | None = None,
) -> Explanation:
    """Do what `explain` does, with all available data; two more queries, and up to three for a run that a worker has,
    one more if that worker has not renewed its lease.

    `open_keys` are those of `progress_of`, for a caller that has them: a long history is not searched again. `children`
    are the counts of `count_children`, for a caller that has them. `within` is that of `explain`.

    One more for a run in line, for the hold of its queue. Five more for a run that is due, for that, the runs and
    workers before it, and the ranks of its runs; three more where some have one. Two for a paused run, for its
    children. Three for a run that undid steps in scopes. For a run that an operation has failed one more, and one for
    each level of joins around the failed step. One more for a run that has ended with children that are left to be
    cancelled, and two for one to which messages were sent. For a completed run one, and two if it has children.
    """
    found = _explained_fully(run, now, open_keys, within)
    if run.finished_at is None:
        notes = [rank_note(run, now) if within is None else "", limits_note(run, now)]
    else:
        notes = [children_left_note(run, within), messages_left_note(run, within), failed_note(run, children, within)]
    return _with_notes(found, notes)


def _explained_fully(
    run: Run, now: datetime, open_keys: Sequence[int] | None, within: RunQuerySet | None
) -> Explanation:
    if run.diverged_at is not None and run.state in (RunState.SLEEPING, RunState.ROLLING_BACK):
        return _with_builds(explain(run, now, within=within), run, now)
    if run.state in (RunState.FAILED, RunState.CANCELLED):
        undone, undone_by_code = read_undone(run.id)
        failed_at = next(iter(innermost_failures(run.id, run.origins[:1]).values()), "") if run.origins else ""
        entries = open_entries(run.id, open_keys)
        if (stuck := stuck_step(run)) is not None:
            failed_at = stuck.location
        found = explain(run, now, entries, undone=undone, undone_by_code=undone_by_code, failed_at=failed_at)
        return _with_builds(found, run, now) if _is_misfit(run) else found
    unreceived = QueueMessage.objects.using(conf.DATABASE).filter(run=run, state="pending").order_by("order")
    running = activities_of(run, now, within)
    is_due = run.wake_at is not None and run.wake_at <= now
    paused = find_hold(HoldKind.QUEUE, run.queue) if is_due or Summary.load(run.summary).is_in_line else None
    unread = unreceived[:_MOST_MESSAGES].count()
    entries = open_entries(run.id, open_keys)
    found = explain(run, now, entries, unread, running=running, paused=paused, within=within)
    notes = [
        recovering_note(run, entries) if within is None else "",
        pause_note(run, within) if run.state == RunState.PAUSED else "",
        backlog_note(run, now) if paused is None and within is None else "",
        death_note(run, now),
    ]
    return _with_notes(found, notes)


def _is_misfit(run: Run) -> bool:
    """Return whether the code has stopped the failed run, by a divergence or by a mistake."""
    is_diverged = run.error is not None and run.error.type == "HistoryDivergedError"
    return run.state == RunState.FAILED and (is_diverged or has_stopped(run.summary))


def _with_builds(found: Explanation, run: Run, now: datetime) -> Explanation:
    """Add the builds around a run that the code does not fit; withhold what would meet the same code again."""
    misfit = misfit_of(run, now)
    withheld = WITHHELD if misfit.is_alone else ()
    return replace(
        _with_notes(found, [misfit.note]),
        remedies=tuple(each for each in found.remedies if each not in withheld),
        withheld=withheld,
        command=replay_check(run.workflow),
    )


def _with_notes(found: Explanation, notes: Sequence[str | None]) -> Explanation:
    said = [each for each in notes if each]
    return replace(found, detail=". ".join(filter(None, [found.detail.rstrip("."), *said]))) if said else found


def open_entries(run_id: str, open_keys: Sequence[int] | None = None) -> list[Entry]:
    """Return the run's uncompleted entries, at most `MOST_OPEN`, in the order in which they began, without payloads.

    See `explain_fully` for `open_keys`.
    """
    entries = Entry.objects.using(conf.DATABASE)
    if open_keys is None:
        found = entries.few_of(run_id, ~Q(status=EntryStatus.COMPLETED.value))
    else:
        found = entries.filter(pk__in=open_keys).exclude(metadata__status=EntryStatus.COMPLETED.value)
    found = found.select_related("metadata").defer("output", "arguments", "data")
    return list(found.order_by("ordinal")[:MOST_OPEN])


def _running(facts: Facts) -> Explanation:
    run, now = facts.run, facts.now
    if run.lease_expires_at is not None and not facts.is_held:
        gone = _("Its worker %(worker)s has given no sign of life for %(span)s") % {
            "worker": run.worker,
            "span": facts.since(run.lease_expires_at),
        }
        is_long = now - run.lease_expires_at > LATE
        if is_long:
            goes_on = _("No other has taken it over: see that one serves its queue")
        else:
            goes_on = _("Another one takes it over")
        return Explanation(headline=gone, detail=goes_on, needs_attention=is_long)
    if run.pending_request:
        is_pause = run.pending_request == Request.PAUSE
        remedies = ("resume",) if is_pause else ()
        if facts.running:
            oldest = facts.running[0]
            asked = (
                _("Asked to pause: takes effect when %(step)s ends, which has run for %(span)s")
                if is_pause
                else _("Asked to cancel: takes effect when %(step)s ends, which has run for %(span)s")
            )
            return Explanation(
                headline=asked % {"step": oldest.name, "span": span(oldest.seconds)},
                detail=_in_hand(facts),
                remedies=(*remedies, "abandon"),
                location=oldest.location,
            )
        return Explanation(
            headline=_("Asked to pause: takes effect at the next operation")
            if is_pause
            else _("Asked to cancel: takes effect at the next operation"),
            detail=_("Running on worker %(worker)s") % {"worker": run.worker},
            remedies=remedies,
        )
    if facts.running:
        return _in_steps(facts)
    if run.crashes:
        return explain_waits.to_run_alone(facts)
    step = facts.open(EntryStatus.RUNNING, EntryStatus.FAILED)
    if step is not None:
        began = step.metadata.last_attempt_at
        told = {"step": display_location(step.location), "number": max(1, step.metadata.attempts)}
        if began is None:
            headline = _('Running step "%(step)s", attempt %(number)d') % told
        else:
            headline = _('Running step "%(step)s", attempt %(number)d, for %(span)s') % {
                **told,
                "span": facts.since(began),
            }
        return Explanation(headline=headline, detail=_in_hand(facts), location=step.location)
    return Explanation(headline=_("Running on worker %(worker)s") % {"worker": run.worker})


def _in_steps(facts: Facts, *, is_compensating: bool = False) -> Explanation:
    """Explain a run by the oldest of the steps that run now."""
    oldest, *others = facts.running
    doing = oldest.words
    if others:
        more = ngettext("%(doing)s, and %(number)s more", "%(doing)s, and %(number)s more", len(others))
        doing = more % {"doing": doing, "number": thousands(len(others))}
    hung = next((each for each in facts.running if each.is_hung), None)
    if hung is not None:
        headline = (
            _("Compensating, and seems hung: running %(doing)s")
            if is_compensating
            else _("Seems hung: running %(doing)s")
        )
    else:
        headline = _("Compensating: running %(doing)s") if is_compensating else _("Running %(doing)s")
    return Explanation(
        headline=headline % {"doing": doing},
        detail=_in_hand(facts),
        needs_attention=hung is not None,
        remedies=("abandon", "cancel") if hung is not None else (),
        location=(hung or oldest).location,
    )


def _in_hand(facts: Facts) -> str:
    """Return which worker has the run, and what is known of an attempt that was abandoned."""
    asked = next((each.abandon_asked_at for each in facts.running if each.abandon_asked_at is not None), None)
    if asked is None:
        return _("Worker %(worker)s has it") % {"worker": facts.run.worker}
    return _("Worker %(worker)s has it. An operator abandoned the attempt %(when)s") % {
        "worker": facts.run.worker,
        "when": relative(asked, facts.now),
    }


def _paused(facts: Facts) -> Explanation:
    if facts.summary.kind is SummaryKind.HELD:
        return Explanation(
            headline=capitalized(shortened(facts.summary)),
            detail=_("A release of the workflow resumes it"),
            remedies=("resume", "cancel"),
        )
    if facts.summary.kind is SummaryKind.IMPORTED:
        return Explanation(
            headline=capitalized(shortened(facts.summary)),
            detail=_("Resumed, it goes on here, with this project's code and services"),
            remedies=("resume", "cancel"),
        )
    if facts.run.state_after_rollback:
        headline = _("Paused in the middle of its compensation, until it is resumed")
    else:
        headline = _("Paused, until it is resumed")
    return Explanation(headline=headline, remedies=("resume", "cancel"))


def _rolling_back(facts: Facts) -> Explanation:
    run, now = facts.run, facts.now
    if run.error is not None:
        place, error = explain_ends.why_it_failed(facts)
        why = _('Because it failed at "%(place)s": %(error)s') if place else _("Because %(error)s")
        why %= {"place": place, "error": error}
    else:
        why = _("Because it was cancelled")
    late = explain_waits.late(facts)
    if late is not None:
        return late
    is_waiting = not facts.is_held and not facts.is_due
    if is_waiting and (of_children := explain_waits.compensating_children(facts)) is not None:
        return Explanation(headline=of_children, detail=shortened(why), remedies=("pause",))
    if run.wake_at is not None and run.wake_at > now:
        headline = _("Compensating; a rollback handler has failed, next try %(when)s")
        headline %= {"when": until(run.wake_at, now)}
        return Explanation(headline=headline, detail=shortened(why), remedies=("wake", "pause"))
    if facts.running and facts.is_held:
        return _in_steps(facts, is_compensating=True)
    return Explanation(headline=_("Compensating"), detail=shortened(why), remedies=("pause",))


_BY_STATE: Final[Mapping[RunState, Callable[[Facts], Explanation]]] = {
    RunState.PENDING: explain_waits.pending,
    RunState.RUNNING: _running,
    RunState.SLEEPING: explain_waits.sleeping,
    RunState.PAUSED: _paused,
    RunState.ROLLING_BACK: _rolling_back,
    RunState.COMPLETED: explain_ends.completed,
    RunState.FAILED: explain_ends.failed,
    RunState.CANCELLED: explain_ends.cancelled,
}
