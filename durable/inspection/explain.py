"""Explain a run to an operator: what the run does or waits for, until when, and how the operator can act.

Reads a run's row, and its open entries if the caller passes them; decides nothing. Serves lists (a row alone, no query)
as well as a run's own page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durable.conf import conf
from durable.core.location import ANY_QUEUE, display_location, unescape
from durable.core.mistakes import TRYING_AGAIN, has_stopped, shown
from durable.core.records import EntryKind, EntryStatus, Request, RunState
from durable.core.run_pass import COMPENSATED, HANDLER_FAILED, steps_undone
from durable.inspection.humanize import either, relative, shortened, span, until
from durable.inspection.payloads import redacted, redacted_error
from durable.inspection.undone import Undone, undone_steps
from durable.models import Entry, QueueMessage, Run
from durable.notifier import redis_clients

__all__ = ["LATE", "Explanation", "awaited_queues", "explain", "explain_fully", "open_entries"]

LATE: Final = timedelta(seconds=60)  # a due run that no worker has claimed for this long needs attention
MOST_OPEN: Final = 50  # open entries that an explanation reads
_MOST_MESSAGES = 1_000
_MOST_OF_A_MISFIT = 800  # characters of what does not fit: it ends with what to do
#: The prefix of an exhausted step's error, before the original error; the explanation names the step already.
_LAST_ATTEMPT = re.compile(r"^StepExhaustedError: step .*? failed on its last attempt: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An explanation: `headline` is one sentence without a full stop, `detail` more facts and advice, or "".

    `needs_attention`: the run will not continue well without a person. `remedies` are verbs, the likeliest first.
    `location` is the entry that the explanation is about, or "".
    """

    headline: str
    detail: str = ""
    needs_attention: bool = False
    remedies: tuple[str, ...] = ()
    location: str = ""

    @property
    def text(self) -> str:
        """The headline and the detail, as sentences."""
        return " ".join(f"{each.rstrip('.')}." for each in (self.headline, self.detail) if each)


def explain(
    run: Run,
    now: datetime,
    entries: Sequence[Entry] = (),
    unreceived: int | None = None,
    undone: Undone | None = None,
) -> Explanation:
    """Explain what the run does at `now`.

    `entries` are its open entries with their metadata, see `open_entries`; without them the row alone is used.
    `unreceived` is the number of messages in its inbox that no wait has received, None if they were not counted.
    `undone` are the steps that its compensation has undone, None without any or if they were not read.
    """
    return _BY_STATE[RunState(run.state)](_Facts(run, now, entries, unreceived, undone))


def explain_fully(run: Run, now: datetime) -> Explanation:
    """Do what `explain` does, with all available data; two more queries, three for a run that undid steps in scopes."""
    if run.state in (RunState.FAILED, RunState.CANCELLED):
        return explain(run, now, open_entries(run.id), undone=undone_steps(run.id))
    unreceived = QueueMessage.objects.using(conf.DATABASE).filter(run=run, state="pending").order_by("order")
    return explain(run, now, open_entries(run.id), unreceived[:_MOST_MESSAGES].count())


def open_entries(run_id: str) -> list[Entry]:
    """Return the run's uncompleted entries, at most `MOST_OPEN`, in the order in which they began, without payloads."""
    recorded = Entry.objects.using(conf.DATABASE).with_metadata_of(run_id)
    found = recorded.exclude(metadata__status=EntryStatus.COMPLETED.value)
    found = found.select_related("metadata").defer("output", "arguments", "data")
    return list(found.order_by("ordinal")[:MOST_OPEN])


def awaited_queues(run: Run) -> list[str] | None:
    """Return the message queues that the run waits for, [] for any; None if it waits for no message."""
    if not run.waiting_for:
        return None
    return [] if run.waiting_for == ANY_QUEUE else [unescape(each) for each in run.waiting_for.strip("/").split("/")]


@dataclass(frozen=True, slots=True)
class _Facts:
    run: Run
    now: datetime
    entries: Sequence[Entry]
    unreceived: int | None
    undone: Undone | None

    @property
    def is_held(self) -> bool:
        return self.run.lease_expires_at is not None and self.run.lease_expires_at > self.now

    @property
    def is_late(self) -> bool:
        return self.run.wake_at is not None and not self.is_held and self.now - self.run.wake_at > LATE

    @property
    def is_due(self) -> bool:
        return self.run.wake_at is not None and self.run.wake_at <= self.now

    @property
    def summary(self) -> str:
        """The row's summary without the time at its end: the explanation gives the time in other words."""
        text = self.run.summary
        if self.run.wake_at is not None:
            text = text.removesuffix(f"{self.run.wake_at:%Y-%m-%d %H:%M:%S} UTC")
            for tail in ("waiting for ", "; goes on at ", " or "):
                text = text.removesuffix(tail)
        return shortened(text)

    def open(self, *statuses: str) -> Entry | None:
        """Return the newest open step with one of these statuses."""
        steps = [each for each in self.entries if each.kind == EntryKind.STEP and each.metadata.status in statuses]
        return steps[-1] if steps else None


def _pending(facts: _Facts) -> Explanation:
    run, now = facts.run, facts.now
    because = f" ({facts.summary})" if facts.summary else ""
    if run.wake_at is not None and run.wake_at > now:
        begins = "Starts" if run.started_at is None else "Goes on"
        return Explanation(headline=f"{begins} {until(run.wake_at, now)}{because}", remedies=("wake", "cancel"))
    return _late(facts) or Explanation(headline=f'Waiting for a worker of the queue "{run.queue}"{because}')


def _late(facts: _Facts) -> Explanation | None:
    run = facts.run
    if not facts.is_late or run.wake_at is None:
        return None
    known = redis_clients.queue_names()
    serve = f"See that a worker serves it: python manage.py durable_worker {run.queue}"
    unknown = f"RQ_QUEUES lacks this queue, and has {', '.join(known) or 'none'}: add it, or start the run on another"
    return Explanation(
        headline=f'Due for {_since(run.wake_at, facts.now)}, and no worker of the queue "{run.queue}" has taken it',
        detail=serve if run.queue in known or not conf.REDIS else unknown,
        needs_attention=True,
        remedies=("wake",),
    )


def _running(facts: _Facts) -> Explanation:
    run, now = facts.run, facts.now
    if run.lease_expires_at is not None and not facts.is_held:
        gone = f"Its worker {run.worker} has given no sign of life for {_since(run.lease_expires_at, now)}"
        is_long = now - run.lease_expires_at > LATE
        goes_on = (
            "No other has taken it over: see that one serves its queue" if is_long else "Another one takes it over"
        )
        return Explanation(headline=gone, detail=goes_on, needs_attention=is_long)
    if run.pending_request:
        asked = "pause" if run.pending_request == Request.PAUSE else "cancel"
        return Explanation(
            headline=f"Asked to {asked}: takes effect at the next operation",
            detail=f"Running on worker {run.worker}",
            remedies=("resume",) if asked == "pause" else (),
        )
    step = facts.open(EntryStatus.RUNNING, EntryStatus.FAILED)
    if step is not None:
        began = step.metadata.last_attempt_at
        since = f", for {_since(began, now)}" if began is not None else ""
        headline = f'Running step "{display_location(step.location)}", attempt {max(1, step.metadata.attempts)}{since}'
        return Explanation(headline=headline, detail=f"Worker {run.worker} has it", location=step.location)
    crashes = f"; it has crashed {run.crashes} workers in a row" if run.crashes else ""
    return Explanation(headline=f"Running on worker {run.worker}{crashes}", needs_attention=run.crashes > 1)


def _sleeping(facts: _Facts) -> Explanation:
    run = facts.run
    if run.diverged_at is not None:
        return _mistaken(facts) if run.summary.startswith(TRYING_AGAIN) else _diverged(facts)
    late = _late(facts)
    if run.waiting_for:
        return _waiting(facts, late)
    if late is not None:
        return late
    if facts.is_due:
        return Explanation(headline=f'Due, waiting for a worker of the queue "{run.queue}"')
    step = facts.open(EntryStatus.FAILED)
    location = step.location if step is not None else ""
    doing = facts.summary
    if not doing and step is not None and step.metadata.error is not None:
        doing = f'step "{display_location(step.location)}" failed ({step.metadata.error.type}), attempt {step.metadata.attempts}'
    is_retrying = step is not None or doing.startswith('step "')
    headline = _capital(doing or "asleep")
    if run.wake_at is not None:
        headline += f"{', next try' if is_retrying else ' until'} {until(run.wake_at, facts.now)}"
    return Explanation(headline=headline, remedies=("wake", "pause", "cancel"), location=location)


def _waiting(facts: _Facts, late: Explanation | None) -> Explanation:
    run, now = facts.run, facts.now
    queues = awaited_queues(run)
    where = either(queues) if queues else "any queue"
    beside, _, rest = facts.summary.partition("waiting for")
    also = f"{_capital(beside.rstrip('; '))}; waiting" if rest and beside.strip("; ") else "Waiting"
    wait = next((each for each in reversed(facts.entries) if each.kind == EntryKind.MESSAGE), None)
    location = wait.location if wait is not None else ""
    if late is not None:
        return Explanation(
            headline=f"{also} for a message in {where}; a message or the deadline came {relative(run.wake_at or now, now)}",
            detail=f"No worker has taken it since. {late.detail}",
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


def _diverged(facts: _Facts) -> Explanation:
    run, now = facts.run, facts.now
    again = f", tried again {relative(run.wake_at, now)}" if run.wake_at is not None else ""
    since = f" for {_since(run.diverged_at, now)}" if run.diverged_at is not None else ""
    if run.summary.startswith("waiting for a worker that knows"):
        detail = "Deploy the code that has the workflow to the workers of its queue, or cancel the run"
        headline = f'No worker knows the workflow "{run.workflow}"{since}{again}'
        return Explanation(headline=headline, detail=detail, needs_attention=True, remedies=("wake", "cancel"))
    return Explanation(
        headline=f"The code of the workers does not fit its history{since}{again}",
        detail=f"{_after(_told(run), 'ends: ')}. If no deploy is under way, fix the code, with ctx.removed() or "
        "ctx.get_version()",
        needs_attention=True,
        remedies=("wake", "pause"),
    )


def _mistaken(facts: _Facts) -> Explanation:
    run, now = facts.run, facts.now
    again = f", tried again {relative(run.wake_at, now)}" if run.wake_at is not None else ""
    since = f" for {_since(run.diverged_at, now)}" if run.diverged_at is not None else ""
    return Explanation(
        headline=f"A mistake in the code of the workers{since}{again}",
        detail=f"{_after(_told(run), 'ends: ')}. Nothing is undone meanwhile. If no deploy is under way, fix the code",
        needs_attention=True,
        remedies=("wake", "pause"),
    )


def _paused(facts: _Facts) -> Explanation:
    rest = " in the middle of its compensation" if facts.run.state_after_rollback else ""
    return Explanation(headline=f"Paused{rest}, until somebody resumes it", remedies=("resume", "cancel"))


def _rolling_back(facts: _Facts) -> Explanation:
    run, now = facts.run, facts.now
    why = f"because {redacted_error(run.workflow, run.error)}" if run.error is not None else "because it was cancelled"
    late = _late(facts)
    if late is not None:
        return late
    if run.wake_at is not None and run.wake_at > now:
        headline = f"Compensating; a rollback handler has failed, next try {until(run.wake_at, now)}"
        return Explanation(headline=headline, detail=shortened(_capital(why)), remedies=("wake", "pause"))
    return Explanation(headline="Compensating", detail=shortened(_capital(why)), remedies=("pause",))


def _completed(facts: _Facts) -> Explanation:
    return Explanation(headline=f"Completed {_ended(facts)}")


def _cancelled(facts: _Facts) -> Explanation:
    reason = facts.run.request_reason
    undone = _undone(facts)
    return Explanation(
        headline=f"Cancelled {_ended(facts)}{f'; compensated: {undone}' if undone else ''}",
        detail=shortened(f"Reason: {reason}") if reason else "",
        remedies=("restart",),
    )


def _failed(facts: _Facts) -> Explanation:
    run, error = facts.run, facts.run.error
    location = run.origins[0] if run.origins else ""
    what = shortened(redacted_error(run.workflow, error)) if error is not None else "for a reason that was not recorded"
    if has_stopped(run.state, run.diverged_at, run.summary):
        return Explanation(
            headline=f"Stopped by a mistake in the code: {shortened(shown(_told(run)))}",
            detail="Nothing was undone. Fix the code, deploy it, then recover the run: it goes on where it was",
            needs_attention=True,
            remedies=("recover", "replay", "restart"),
        )
    if not run.state_after_rollback and run.summary.startswith(HANDLER_FAILED):
        return Explanation(
            headline=f"Compensation has stopped {_ended(facts)}: {shortened(_told(run).removesuffix('; recover() goes on with it'))}",
            detail="Its code was undoing its steps. Fix what the handler needs, then recover the run: the compensation goes on with the "
            "handlers that are left, and then the code",
            needs_attention=True,
            remedies=("recover",),
        )
    if run.state_after_rollback:
        return Explanation(
            headline=f"Compensation has stopped {_ended(facts)}: {shortened(_told(run).removesuffix('; recover() goes on with it'))}",
            detail=f"It was undoing its steps because it failed: {what}. Fix what the handler needs, then recover the run: the compensation goes on "
            "with the handlers that are left",
            needs_attention=True,
            remedies=("recover",),
        )
    if error is not None and error.type == "HistoryDivergedError":
        return Explanation(
            headline="Stopped: the code no longer fits its history",
            detail=f"{shortened(redacted_error(run.workflow, error))} Nothing was compensated. Fix the code, then recover the run: it goes on where it was",
            needs_attention=True,
            remedies=("recover", "replay", "restart"),
        )
    if error is not None and error.type == "RunCrashedError":
        return Explanation(
            headline=f"Stopped {_ended(facts)}: it crashed {run.crashes} workers in a row",
            detail="Look at the workers' logs for what kills them (memory, a native library), then recover the run",
            needs_attention=True,
            remedies=("recover", "replay"),
        )
    undone = _undone(facts)
    goes_on = "what failed is tried again and the rest goes on from there"
    if undone:
        goes_on = "it goes back to the earliest step that was undone, and does all from there again"
    when = f" {relative(run.finished_at, facts.now)}" if run.finished_at is not None else ""
    where = f' at "{display_location(location)}"' if location else ""
    return Explanation(
        headline=f"Failed{where}{when}: {_LAST_ATTEMPT.sub('', what)}{f'; compensated: {undone}' if undone else ''}",
        detail=f"Fix the cause, then recover the run: {goes_on}"
        if facts.undone is None
        else f"Compensated: {facts.undone.text}",
        needs_attention=True,
        remedies=("recover", "replay", "restart"),
        location=location,
    )


def _undone(facts: _Facts) -> str:
    """How many steps the compensation at the run's end has undone; "" for none, as far as the row or the entries tell."""
    if facts.undone is not None:
        return steps_undone(len(facts.undone.locations))
    told = facts.run.summary
    return told.removeprefix(COMPENSATED).partition(";")[0] if told.startswith(COMPENSATED) else ""


def _since(then: datetime, now: datetime) -> str:
    return span((now - then).total_seconds())


def _ended(facts: _Facts) -> str:
    finished, created = facts.run.finished_at, facts.run.created_at
    if finished is None:
        return ""
    return f"{relative(finished, facts.now)}, after {span((finished - created).total_seconds())}"


def _told(run: Run) -> str:
    """Return the row's summary; if it quotes an error, redacted like one."""
    return str(redacted(run.workflow, "error", run.summary))


def _after(text: str, mark: str) -> str:
    return shortened(text.partition(mark)[2] or text, _MOST_OF_A_MISFIT).removesuffix(".")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


_BY_STATE: Final[dict[RunState, Callable[[_Facts], Explanation]]] = {
    RunState.PENDING: _pending,
    RunState.RUNNING: _running,
    RunState.SLEEPING: _sleeping,
    RunState.PAUSED: _paused,
    RunState.ROLLING_BACK: _rolling_back,
    RunState.COMPLETED: _completed,
    RunState.FAILED: _failed,
    RunState.CANCELLED: _cancelled,
}
