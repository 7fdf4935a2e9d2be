"""An explanation, the facts that it is made of, and the explanation of a run in each state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core import location as locations
from durable.core import registry
from durable.core.causes import failed_at
from durable.core.children.entries import UNDONE_FROM
from durable.core.limits.slot_records import SlotKind, limit_label
from durable.core.location import awaited_children
from durable.core.names.renames import names_of_queue
from durable.core.records import ENDED, EntryKind, EntryStatus, Hold, Request, RunState, is_leased
from durable.core.registry import is_stopped
from durable.core.summary import Summary, SummaryKind, steps_undone
from durable.inspection.activities import RunningStep
from durable.inspection.entry_detail import recovered_note, whole_data
from durable.inspection.held import HeldHere
from durable.inspection.humanize import either, relative, shortened, span, thousands, until
from durable.inspection.limits import Line, RateWait, line_of, rate_wait_of
from durable.inspection.payloads import redacted, redacted_error
from durable.inspection.reading import read_alias
from durable.inspection.undone import Undone
from durable.inspection.wording import LOCAL, MOST, command, display_location, state_in_words, told_divergence
from durable.models import ChildGroup, Entry, Run, Turn
from durable.models.renames import learn_queues
from durable.models.run import RunQuerySet
from durable.notifier import redis_clients, wakeups
from durable.operations.verbs import DECISIONS, HALTS, STOPS

_ASKED: Final = 3  # questions about held steps that an explanation has
LATE: Final = timedelta(seconds=60)  # a due run that no worker has claimed for this long needs attention

#: The fact in a summary that is an error's text. A summary without data may also quote an error.
_QUOTED_ERROR: Final = {
    SummaryKind.TEXT: "text",
    SummaryKind.DIVERGED: "error",
    SummaryKind.MISTAKE: "error",
    SummaryKind.STOPPED_BY_MISTAKE: "error",
    SummaryKind.END_REFUSED: "error",
    SummaryKind.HANDLER_FAILED: "error",
    SummaryKind.COMPENSATION_STOPPED: "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An explanation: `headline` is one sentence without a full stop, `detail` more facts and advice, or "".

    `needs_attention`: the run needs a person to continue well. `remedies` are verbs, the likeliest first. `location` is
    the entry that the explanation is about, or "". `withheld` are verbs that the run's state allows and that would only
    lead to the same end again. `command` is a shell command that tells more, or "".
    """

    headline: str
    detail: str = ""
    needs_attention: bool = False
    remedies: tuple[str, ...] = ()
    location: str = ""
    withheld: tuple[str, ...] = ()
    command: str = ""

    @property
    def text(self) -> str:
        """The headline and the detail, as sentences."""
        return " ".join(f"{each.rstrip('.')}." for each in (self.headline, self.detail) if each)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an explanation; see `durable.inspection.explanation.explain`."""

    run: Run
    now: datetime
    entries: Sequence[Entry]
    unreceived: int | None
    undone: Undone | None
    undone_by_code: int = 0
    stuck_at: str = ""
    running: Sequence[RunningStep] = ()
    paused: Hold | None = None
    within: RunQuerySet | None = None
    #: the steps that wait for a person
    asked: Sequence[HeldHere] = ()

    @property
    def is_leased(self) -> bool:
        return is_leased(self.run, self.now)

    @property
    def is_late(self) -> bool:
        return self.run.wake_at is not None and not self.is_leased and self.now - self.run.wake_at > LATE

    @property
    def is_due(self) -> bool:
        return self.run.wake_at is not None and self.run.wake_at <= self.now

    @property
    def summary(self) -> Summary:
        """The row's summary in the active language, with a quoted error redacted, and without places in lines."""
        summary = Summary.load(self.run.summary).told_in(LOCAL)
        summary = summary.without_places if self.within is None else summary.without_others
        quoted = _QUOTED_ERROR.get(summary.kind)
        if quoted is None or not summary:
            return summary
        return summary.with_facts(**{quoted: str(redacted(self.run.workflow, "error", summary.facts[quoted]))})

    @property
    def quoted_error(self) -> str:
        """The error that the row's summary quotes; for a summary without data its text."""
        summary = self.summary
        return str(summary.facts.get("error", summary))

    def open(self, *statuses: str) -> Entry | None:
        """Return the newest open step with one of these statuses."""
        steps = [each for each in self.entries if each.kind == EntryKind.STEP and each.metadata.status in statuses]
        return steps[-1] if steps else None

    def since(self, then: datetime) -> str:
        """Return how long ago `then` was: "3 h 5 m"."""
        return span((self.now - then).total_seconds())

    @property
    def ended(self) -> str:
        """When the run ended and how long it took: "2 m ago, after 3 h"; "" if it has not ended."""
        finished, created = self.run.finished_at, self.run.created_at
        if finished is None:
            return ""
        when, took = relative(finished, self.now), span((finished - created).total_seconds())
        return _("%(when)s, after %(took)s") % {"when": when, "took": took}


def capitalized(text: str) -> str:
    """Return `text` with a capital letter first; the other letters stay as they are."""
    return text[:1].upper() + text[1:]


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
        location=facts.stuck_at,
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
    location = failed_at(run.error, run.origins)
    place, error = why_it_failed(facts)
    told = {
        "place": place,
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
    """Return the place (for display; "" for none) and the error of the failure that the run is undoing."""
    error = facts.run.error
    if error is None or error.origin is None:
        return display_location(failed_at(error, facts.run.origins)), _whole_error(facts)
    return display_location(error.origin.place), redacted_error(facts.run.workflow, error.origin)


def _undone_before(facts: Facts) -> str:
    """Say what is undone of a run stopped by a mistake: nothing, unless its code has called ctx.compensate."""
    if not facts.undone_by_code:
        return _("Nothing was undone because of it")
    return _("%(steps)s by ctx.compensate before, and nothing was undone because of the mistake") % {
        "steps": steps_undone(facts.undone_by_code, LOCAL)
    }


def _undone(facts: Facts) -> str:
    """Say how many steps the compensation at the run's end has undone; "" for none.

    Taken from the row, unless the caller has read the entries.
    """
    if facts.undone is not None:
        return steps_undone(len(facts.undone.locations), LOCAL)
    summary = facts.summary
    return steps_undone(summary.facts["count"], LOCAL) if summary.kind is SummaryKind.COMPENSATED else ""


_BY_ERROR: Final[Mapping[str, Callable[[Facts], Explanation]]] = {
    "HistoryDivergedError": _diverged,
    "RunCrashedError": _crashed,
}


def waiting_for_map(run: Run, awaited: Sequence[str]) -> str | None:
    """Say what the run waits for, if that includes a group of children; else None."""
    groups = ChildGroup.objects.using(read_alias()).filter(id__in=list(awaited))
    group = groups.select_related("tally").order_by("position").first()
    if group is None:
        return None
    tally = group.tally
    if group.is_over:  # the run waits for its children again: they undo what they have done
        return _compensating(run, group)
    note = _(
        'Waiting for the children of the map "%(map)s": %(ended)s of %(size)s have ended, %(running)s are under way'
    ) % {
        "map": display_location(group.location),
        "ended": thousands(tally.completed + tally.failed + tally.cancelled),
        "size": thousands(group.size),
        "running": thousands(tally.running),
    }
    if tally.waiting:
        note += ", " + _("%(waiting)s wait for their turn") % {"waiting": thousands(tally.waiting)}
    if tally.failed:
        note += "; " + _("failed so far: %(failed)s") % {"failed": thousands(tally.failed)}
    return note


def _compensating(run: Run, group: ChildGroup) -> str:
    """Say how far the compensation of a map's children has come."""
    tally = group.tally
    note = _('Compensating the children of the map "%(map)s": %(running)s of %(size)s are under way') % {
        "map": display_location(group.location),
        "running": thousands(tally.running + tally.waiting),
        "size": thousands(group.size),
    }
    entries = Entry.objects.using(read_alias()).filter(run_id=run.id, location=group.location)
    data: Mapping[str, Any] | None = entries.values_list("data", flat=True).first()
    left = None if data is None else data.get("rollback", {}).get(UNDONE_FROM)
    if left is not None:
        note += ", " + _("%(left)s are left") % {"left": thousands(left)}
    return note


def recovering_note(run: Run, entries: Sequence[Entry]) -> str:
    """Say how far the recovery of a map's failed children has come; "" for none. One query if a map is open.

    `entries` are the open entries of the run.
    """
    if run.state not in (RunState.RUNNING, RunState.PENDING):
        return ""
    maps = [each.pk for each in entries if each.kind == EntryKind.MAP]
    found = Entry.objects.using(read_alias()).filter(run=run, pk__in=maps).order_by("ordinal") if maps else ()
    for entry in found:
        if note := recovered_note(whole_data(entry)):
            return _('Map "%(map)s": %(note)s') % {"map": display_location(entry.location), "note": note}
    return ""


def turn_note(run: Run, within: RunQuerySet | None) -> str | None:
    """Say what a child waits for that has not had its turn; None for any other run.

    With `within`, the runs that a reader may see, neither its parent nor the number of other children is mentioned.
    """
    if run.parent_id is None:
        return None
    turns = Turn.objects.using(read_alias()).filter(run_id=run.id).select_related("group__tally")
    turn = turns.first()
    if turn is None:
        return None
    if within is not None:
        return _("Waits for its turn")
    group = turn.group
    return _('Waits for its turn: %(running)s of %(at_once)s of the map "%(map)s" of "%(parent)s" are under way') % {
        "running": thousands(group.tally.running),
        "at_once": thousands(group.spec.at_once or group.size),
        "map": display_location(group.location),
        "parent": group.parent_id,
    }


_SHOWN: Final = 50  # children to read, the first of which is named


def awaited_queues(run: Run) -> list[str] | None:
    """Return the message queues that the run waits for, [] for any; None if it waits for no message."""
    return locations.awaited_queues(run.state, run.waiting_for)


def pending(facts: Facts) -> Explanation:
    """Explain a pending run: when it starts or continues, or which worker it waits for."""
    run, now = facts.run, facts.now
    doing = shortened(facts.summary.without_time)
    if run.crashes and not facts.is_late:
        return to_run_alone(facts)
    if run.wake_at is not None and run.wake_at > now:
        headline = _("Starts %(when)s") if run.started_at is None else _("Goes on %(when)s")
        headline %= {"when": until(run.wake_at, now)}
        return Explanation(headline=_because(headline, doing), remedies=("wake", "cancel"))
    if run.wake_at is None and (turn := turn_note(run, within=facts.within)) is not None:
        return Explanation(headline=turn, remedies=("cancel",))
    headline = _('Waiting for a worker of the queue "%(queue)s"') % {"queue": run.queue}
    return late(facts) or Explanation(headline=_because(headline, doing), detail=_without_redis(run.queue))


def to_run_alone(facts: Facts) -> Explanation:
    """Explain a run that may have crashed a worker, and has committed nothing since.

    No pass has come to a step, which would first commit its attempt. So the worker that has it lets it wait, or has
    left it to others for some seconds.
    """
    run = facts.run
    if run.crashes == 1:
        headline = _("Waits to run alone: it may have crashed a worker")
    else:
        headline = ngettext(
            "Waits to run alone: it may have crashed %(number)d worker in a row",
            "Waits to run alone: it may have crashed %(number)d workers in a row",
            run.crashes,
        ) % {"number": run.crashes}
    held = _("Worker %(worker)s has it") % {"worker": run.worker}
    is_repeated = run.state == RunState.RUNNING and run.crashes > 1
    return Explanation(headline=headline, detail=held if facts.is_leased else "", needs_attention=is_repeated)


def _because(headline: str, doing: str) -> str:
    """Return the headline, with what the run was doing in brackets, if that is known."""
    return f"{headline} ({doing})" if doing else headline


def in_paused_queue(facts: Facts) -> Explanation | None:
    """Explain a run that is due in a paused queue; None for any other."""
    run, hold = facts.run, facts.paused
    if hold is None or not facts.is_due or facts.is_leased or run.state in ENDED:
        return None
    if hold.held_by:
        headline = _('Due, and its queue "%(queue)s" is paused by %(who)s for %(span)s')
    else:
        headline = _('Due, and its queue "%(queue)s" is paused for %(span)s')
    headline %= {"queue": run.queue, "who": hold.held_by, "span": facts.since(hold.held_at)}
    return Explanation(
        headline=f"{headline}: {shortened(hold.reason)}" if hold.reason else headline,
        detail=_("No worker takes it before the queue is resumed"),
    )


def _due(facts: Facts) -> Explanation:
    headline = _('Due, waiting for a worker of the queue "%(queue)s"') % {"queue": facts.run.queue}
    return Explanation(headline=headline, detail=_without_redis(facts.run.queue))


def _without_redis(queue: str) -> str:
    """Say what workers do while Redis is unavailable; "" if it is available."""
    if not conf.REDIS or wakeups.is_silent() or not redis_clients.is_found_away(queue):
        return ""
    return _(
        "Redis does not answer. Workers of durable_worker poll the database until it is back; plain RQ workers execute "
        "nothing meanwhile"
    )


def late(facts: Facts) -> Explanation | None:
    """Explain a run that no worker has claimed for too long; None for any other."""
    run = facts.run
    if not facts.is_late or run.wake_at is None:
        return None
    known = redis_clients.queue_names()
    if run.queue not in known:
        learn_queues(conf.DATABASE)  # a migration may have given it the name of another
    served = next((each for each in names_of_queue(run.queue) if each in known), None)
    if served is not None or not conf.REDIS:
        detail = _(
            "See that a worker serves it: %(command)s. A worker that does is busy with runs that were due before this one"
        ) % {"command": f"python manage.py durable_worker {served or run.queue}"}
    elif known:
        detail = _("RQ_QUEUES lacks this queue, and has %(queues)s: add it, or move the run to another")
        detail %= {"queues": ", ".join(known)}
    else:
        detail = _("RQ_QUEUES lacks this queue, and has none: add it")
    detail = _without_redis(run.queue) or detail
    headline = _('Due for %(span)s, and no worker of the queue "%(queue)s" has taken it')
    return Explanation(
        headline=headline % {"span": facts.since(run.wake_at), "queue": run.queue},
        detail=detail,
        needs_attention=True,
        remedies=("wake",) if served is not None or not conf.REDIS else ("move",),
    )


def sleeping(facts: Facts) -> Explanation:
    """Explain a sleeping run: what it waits for, and until when."""
    run = facts.run
    if run.diverged_at is not None:
        return _MISFITS.get(facts.summary.kind, _diverged_and_tried_again)(facts)
    overdue = late(facts)
    if overdue is None and not facts.is_due and facts.summary.is_held:
        return _waiting_for_person(facts)
    if overdue is None and not facts.is_due and is_stopped(run.workflow, run.state, run.waiting_for):
        return Explanation(
            headline=_("Stopped after its first runs: go on with the rest, or stop here"),
            detail=_("Too many of them failed again, or some had not come to an end in time"),
            needs_attention=True,
            remedies=DECISIONS,
        )
    if awaited_queues(run) is not None:
        return _waiting(facts, overdue)
    if awaited_children(run.waiting_for):
        return overdue or _waiting_for_children(facts)
    if overdue is not None:
        return overdue
    if not facts.is_due and facts.summary.is_in_line and (line := line_of(run.id)) is not None:
        return _in_line(facts, line)
    if facts.summary.is_rated and (wait := rate_wait_of(run.id, facts.now)) is not None:
        return _rated(facts, wait)
    if facts.is_due:
        return _due(facts)
    step = facts.open(EntryStatus.FAILED)
    location = step.location if step is not None else ""
    summary = facts.summary
    doing = shortened(summary.without_time)
    if not doing and step is not None and step.metadata.error is not None:
        doing = _('step "%(step)s" failed (%(error)s), attempt %(number)d') % {
            "step": display_location(step.location),
            "error": step.metadata.error.type,
            "number": step.metadata.attempts,
        }
    is_retrying = step is not None or summary.is_backing_off
    headline = capitalized(doing or _("asleep"))
    if run.wake_at is not None:
        told = _("%(doing)s, next try %(when)s") if is_retrying else _("%(doing)s until %(when)s")
        headline = told % {"doing": headline, "when": until(run.wake_at, facts.now)}
    return Explanation(headline=headline, remedies=("wake", *STOPS), location=location)


def _waiting_for_person(facts: Facts, why: str = "") -> Explanation:
    """Explain a run that stands still until a person settles a step of it. `why` it is being compensated, or ""."""
    if not facts.asked:  # only its row was read
        headline, location = capitalized(shortened(facts.summary.without_time)), ""
    else:
        first = facts.asked[0]
        headline, location = first.headline(facts.since(first.step.since)), first.location
        if others := len(facts.asked) - 1:
            headline += "; " + ngettext("%(number)d step more", "%(number)d steps more", others) % {"number": others}
    if facts.run.wake_at is not None:
        headline = _("%(waits)s; goes on %(when)s") % {"waits": headline, "when": until(facts.run.wake_at, facts.now)}
    return Explanation(
        headline=headline,
        detail=". ".join(each.rstrip(".") for each in (shortened(why), _asked(facts)) if each),
        needs_attention=True,
        remedies=("settle", "cancel") if not why else ("settle",),
        location=location,
    )


def _asked(facts: Facts) -> str:
    """Return the questions to a person, and what the answers are."""
    questions = [each.question(facts.now) for each in facts.asked[:_ASKED]]
    answers = _("Settle it: it was done (give its result), it was not (it is tried again), or it fails")
    return ". ".join([*(each.rstrip(".") for each in questions), answers])


def with_questions(facts: Facts, found: Explanation) -> Explanation:
    """Add the questions to the explanation of a run that goes on, or is paused, while a step waits for a person."""
    if not facts.asked or "settle" in found.remedies:
        return found
    first = facts.asked[0]
    told = [found.detail.rstrip("."), first.headline(facts.since(first.step.since)), _asked(facts)]
    return replace(
        found,
        detail=". ".join(filter(None, told)),
        needs_attention=True,
        remedies=("settle", *found.remedies),
        location=found.location or first.location,
    )


def _waiting(facts: Facts, overdue: Explanation | None) -> Explanation:
    run, now = facts.run, facts.now
    queues = awaited_queues(run)
    where = either(queues) if queues else _("any queue")
    beside = shortened(facts.summary.doing)
    waits = (_("waiting for a message in %(queues)s") if beside else _("Waiting for a message in %(queues)s")) % {
        "queues": where
    }
    if beside:
        waits = f"{capitalized(beside)}; {waits}"
    wait = next((each for each in reversed(facts.entries) if each.kind == EntryKind.MESSAGE), None)
    location = wait.location if wait is not None else ""
    if overdue is not None:
        headline = _("%(waits)s; a message or the deadline came %(when)s")
        return Explanation(
            headline=headline % {"waits": waits, "when": relative(run.wake_at or now, now)},
            detail=_("No worker has taken it since. %(advice)s") % {"advice": overdue.detail},
            needs_attention=True,
            remedies=("wake",),
            location=location,
        )
    if facts.is_due:
        headline = _("%(waits)s; a message or the deadline has come; no worker has taken it yet")
        return Explanation(headline=headline % {"waits": waits})
    if run.wake_at is not None:
        told = _("%(waits)s; goes on %(when)s") if beside else _("%(waits)s until %(when)s")
        headline = told % {"waits": waits, "when": until(run.wake_at, now)}  # the moment may be that of either
    else:
        headline = _("%(waits)s, without a deadline") % {"waits": waits}
    if facts.unreceived:
        others = ngettext("%(number)d in other queues", "%(number)d in other queues", facts.unreceived)
        headline += "; " + others % {"number": facts.unreceived}
    elif facts.unreceived is not None:
        headline += "; " + _("nothing received")
    return Explanation(headline=headline, remedies=("send", "cancel"), location=location)


def _waiting_for_children(facts: Facts) -> Explanation:
    """Explain a run that waits for children to end, by the state of the first one."""
    run = facts.run
    children = awaited_children(run.waiting_for)
    if facts.within is not None:
        children = sorted(facts.within.filter(id__in=children).values_list("pk", flat=True)[:_SHOWN])
    found = _oldest_of(children)
    if found is None and facts.within is not None:
        headline = _("Waiting for children")
    elif found is None and (of_map := waiting_for_map(run, children[:_SHOWN])) is not None:
        headline = of_map
    elif found is None:
        headline = _('Waiting for child "%(child)s", whose run is gone') % {"child": children[0]}
    else:
        state = {"child": found.id, "state": state_in_words(found.state)}
        headline = _('Waiting for child "%(child)s", which is %(state)s') % state
        if found.wake_at is not None and found.wake_at > facts.now:
            headline += " " + _("until %(when)s") % {"when": until(found.wake_at, facts.now)}
    if len(children) > 1:
        others = ngettext("and for %(number)d other", "and for %(number)d others", len(children) - 1)
        headline += ", " + others % {"number": len(children) - 1}
    if facts.is_due:
        headline += "; " + _("one has ended; no worker has taken the run yet")
    elif run.wake_at is not None:
        headline = _("%(waits)s; until %(when)s") % {"waits": headline, "when": until(run.wake_at, facts.now)}
    return Explanation(headline=headline, remedies=("cancel",))


def compensating_children(facts: Facts) -> str | None:
    """Say which children a run that rolls back waits for; None if it waits for none."""
    children = awaited_children(facts.run.waiting_for)
    if not children:
        return None
    if facts.within is not None:
        children = sorted(facts.within.filter(id__in=children).values_list("pk", flat=True)[:_SHOWN])
        if not children:
            return _("Compensating: waiting until children have undone their own")
    elif (of_map := waiting_for_map(facts.run, children[:_SHOWN])) is not None:
        return of_map
    found = _oldest_of(children)
    if found is None:
        return None
    state = {"child": found.id, "state": state_in_words(found.state)}
    return _('Compensating: waiting until child "%(child)s" has undone its own, which is %(state)s') % state


def _oldest_of(children: Sequence[str]) -> Run | None:
    runs = Run.objects.using(read_alias()).filter(id__in=children[:_SHOWN])
    return runs.order_by("created_at", "id").first()


def _in_line(facts: Facts, line: Line) -> Explanation:
    """Explain a run that waits for a slot of a limit: its place, and what holds the slots."""
    told = {
        "place": line.place,
        "limit": limit_label(line.mine.limit, line.mine.key),
        "held": line.held,
        "at_once": line.at_once,
        "span": facts.since(line.mine.since),
    }
    holder = line.holder
    if holder is not None and holder.run_id == facts.run.id and holder.kind != SlotKind.OPEN:
        headline = _("In line for limit %(limit)s for %(span)s, of which it holds a slot itself") % told
        detail = _("A durable_worker takes the slot back within two minutes. To have it done now, wake the run")
        return Explanation(headline=headline, detail=detail, needs_attention=True, remedies=("wake", *STOPS))
    if facts.paused is not None:
        hold = facts.paused
        told |= {"queue": facts.run.queue, "who": hold.held_by, "held": facts.since(hold.held_at)}
        if hold.held_by:
            headline = _(
                'In line for limit %(limit)s for %(span)s, and its queue "%(queue)s" is paused by %(who)s for %(held)s'
            )
        else:
            headline = _('In line for limit %(limit)s for %(span)s, and its queue "%(queue)s" is paused for %(held)s')
        headline %= told
        return Explanation(
            headline=f"{headline}: {shortened(hold.reason)}" if hold.reason else headline,
            detail=_("It keeps its place. Free slots go to runs of other queues until the queue is resumed"),
            remedies=STOPS,
        )
    detail = ""
    if facts.within is not None:  # the number before it counts runs that the reader may not see
        headline = _("In line for limit %(limit)s for %(span)s") % told
        is_shown = holder is not None and facts.within.filter(pk=holder.run_id).exists()
    else:
        headline = _("Number %(place)d in line for limit %(limit)s for %(span)s (%(held)d of %(at_once)d held)") % told
        is_shown = True
    if is_shown and holder is not None:
        detail = _('Run "%(run)s" has held one for %(span)s; it is %(state)s') % {
            "run": holder.run_id,
            "state": state_in_words(holder.run.state),
            "span": facts.since(holder.since),
        }
        if holder.kind == SlotKind.OPEN:
            detail += "; " + _('it holds it to its end (hold="open")')
    return Explanation(headline=headline, detail=detail, remedies=STOPS)


def _rated(facts: Facts, wait: RateWait) -> Explanation:
    """Explain a run that waits for its moment in the rate of a limit."""
    begins = wait.at if wait.closing is None else max(wait.at, wait.closing.until)
    told = {
        "limit": limit_label(wait.limit, wait.key),
        "rate": wait.rate,
        "when": until(begins, facts.now),
        "before": wait.before,
    }
    if facts.within is not None:
        headline = _("Rate %(limit)s (%(rate)s): begins %(when)s") % told
    else:
        headline = _("Rate %(limit)s (%(rate)s): begins %(when)s, %(before)d before it") % told
    detail = ""
    if wait.closing is not None:
        closing = {"when": until(wait.closing.until, facts.now), "by": wait.closing.by, "why": wait.closing.reason}
        detail = (_("Closed until %(when)s by %(by)s") if wait.closing.by else _("Closed until %(when)s")) % closing
        if wait.closing.reason:
            detail += f": {shortened(wait.closing.reason)}"
    elif wait.sooner is not None:
        again = command("set-rate", wait.limit, wait.rate_text, burst=wait.burst if wait.burst > 1 else "")
        detail = _(
            "The moments of attempts that were cancelled before it stay reserved. Setting the rate, to what it is or to "
            "another one, gives all moments anew: this one would begin %(when)s. %(command)s"
        ) % {"when": until(wait.sooner, facts.now), "command": again}
    return Explanation(headline=headline, detail=detail, remedies=STOPS)


def _unknown_workflow(facts: Facts) -> Explanation:
    """Explain a run whose worker does not know its workflow. Other workers may: only this process's code is known
    here.
    """
    if facts.run.workflow in registry.registry:
        detail = _(
            "The code here has the workflow: a worker of its queue that runs this code takes the run when it is due"
        )
    else:
        detail = _("Deploy the code that has the workflow to the workers of its queue, or cancel the run")
    return Explanation(
        headline=_tried(
            facts,
            _('The worker that took it does not know the workflow "%(workflow)s"') % {"workflow": facts.run.workflow},
        ),
        detail=detail,
        needs_attention=True,
        remedies=("wake", "cancel"),
    )


def _diverged_and_tried_again(facts: Facts) -> Explanation:
    return Explanation(
        headline=_tried(facts, _("The code of the workers does not fit its history")),
        detail=_("%(error)s. If no deploy is under way, fix the code, with ctx.removed() or ctx.get_version()")
        % {"error": _misfit(told_divergence(facts.quoted_error))},
        needs_attention=True,
        remedies=("wake", *HALTS),
    )


def _mistaken(facts: Facts) -> Explanation:
    return Explanation(
        headline=_tried(facts, _("A mistake in the code of the workers")),
        detail=_("%(error)s. Nothing is undone meanwhile. If no deploy is under way, fix the code")
        % {"error": _misfit(facts.quoted_error)},
        needs_attention=True,
        remedies=("wake", *HALTS),
    )


def end_refused(facts: Facts) -> Explanation:
    """Explain a run that cannot end, because the function that its workflow calls then has failed."""
    return Explanation(
        headline=_tried(
            facts, _("It cannot end: its on_end, %(name)s, failed") % {"name": facts.summary.facts["function"]}
        ),
        detail=_(
            "%(error)s. Nothing of the end was written. Fix the function and deploy it: the run then ends by itself"
        )
        % {"error": _misfit(facts.quoted_error)},
        needs_attention=True,
        remedies=("wake",),
    )


def _tried(facts: Facts, problem: str) -> str:
    """Return the problem, since when it exists if that is known, and when the run is tried again."""
    run = facts.run
    if run.diverged_at is not None:
        problem = _("%(problem)s for %(span)s") % {"problem": problem, "span": facts.since(run.diverged_at)}
    if run.wake_at is None:
        return problem
    return _("%(problem)s, tried again %(when)s") % {"problem": problem, "when": relative(run.wake_at, facts.now)}


def _misfit(error: str) -> str:
    return shortened(error, MOST).removesuffix(".")


_MISFITS: Final[Mapping[SummaryKind, Callable[[Facts], Explanation]]] = {
    SummaryKind.UNKNOWN_WORKFLOW: _unknown_workflow,
    SummaryKind.MISTAKE: _mistaken,
    SummaryKind.END_REFUSED: end_refused,
    SummaryKind.DIVERGED: _diverged_and_tried_again,
}


def running(facts: Facts) -> Explanation:
    """Explain a run that a worker has, or had: its steps, its worker, or what it was asked to do."""
    run, now = facts.run, facts.now
    if run.lease_expires_at is not None and not facts.is_leased:
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
        return _requested(facts)
    if facts.running:
        return _in_steps(facts)
    if run.crashes:
        return to_run_alone(facts)
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


def _requested(facts: Facts) -> Explanation:
    """Explain a run whose worker was asked to pause or to cancel it."""
    is_pause = facts.run.pending_request == Request.PAUSE
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
        detail=_("Running on worker %(worker)s") % {"worker": facts.run.worker},
        remedies=remedies,
    )


def _in_steps(facts: Facts, *, is_compensating: bool = False) -> Explanation:
    """Explain a run by its oldest running step."""
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
    """Say which worker has the run, and what is known about an abandoned attempt."""
    asked = next((each.abandon_asked_at for each in facts.running if each.abandon_asked_at is not None), None)
    if asked is None:
        return _("Worker %(worker)s has it") % {"worker": facts.run.worker}
    return _("Worker %(worker)s has it. An operator abandoned the attempt %(when)s") % {
        "worker": facts.run.worker,
        "when": relative(asked, facts.now),
    }


def paused(facts: Facts) -> Explanation:
    """Explain a paused run: why it is paused."""
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
        return Explanation(
            headline=_("Paused in the middle of its compensation, until it is resumed"), remedies=("resume",)
        )
    return Explanation(headline=_("Paused, until it is resumed"), remedies=("resume", "cancel"))


def rolling_back(facts: Facts) -> Explanation:
    """Explain a run that compensates: why, and what it does or waits for."""
    run, now = facts.run, facts.now
    if facts.summary.kind is SummaryKind.END_REFUSED:
        return end_refused(facts)
    if run.error is not None:
        place, error = why_it_failed(facts)
        why = _('Because it failed at "%(place)s": %(error)s') if place else _("Because %(error)s")
        why %= {"place": place, "error": error}
    else:
        why = _("Because it was cancelled")
    overdue = late(facts)
    if overdue is not None:
        return overdue
    is_waiting = not facts.is_leased and not facts.is_due
    if is_waiting and facts.summary.is_held:
        return _waiting_for_person(facts, why)
    if is_waiting and (of_children := compensating_children(facts)) is not None:
        return Explanation(headline=of_children, detail=shortened(why), remedies=HALTS)
    if run.wake_at is not None and run.wake_at > now:
        headline = _("Compensating; a rollback handler has failed, next try %(when)s")
        headline %= {"when": until(run.wake_at, now)}
        return Explanation(headline=headline, detail=shortened(why), remedies=("wake", *HALTS))
    if run.pending_request and facts.is_leased:
        return _requested(facts)
    if facts.running and facts.is_leased:
        return _in_steps(facts, is_compensating=True)
    return Explanation(headline=_("Compensating"), detail=shortened(why), remedies=HALTS)
