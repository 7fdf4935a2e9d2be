"""A pass: what happens between the claim of a run and the commit that parks or ends it.

Owns the ends of a pass. `run_pass` is an operation like any other, and the same drivers perform its effects. Each way
out of the workflow's code ends in exactly one commit, which patches the run's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from durable.core import transitions
from durable.core.bodies import run_body
from durable.core.causes import with_origin
from durable.core.compatibility import cannot_read, named_twice
from durable.core.control_flow import (
    EndUnknown,
    Evicted,
    LeaseLost,
    NotRestored,
    Park,
    PassAborted,
    StartRefused,
)
from durable.core.effects import Operation, Save
from durable.core.errors import (
    ContractError,
    EndRefusedError,
    ErrorInfo,
    HistoryDivergedError,
    OpenTransactionError,
    RunCrashedError,
    UnknownLimitError,
)
from durable.core.journal import Event, Journal
from durable.core.limits.rates import RateWant
from durable.core.limits.slot_records import SlotWant
from durable.core.limits.slots import acquired, reserved
from durable.core.location import waiting_text
from durable.core.mistakes import described, is_mistake
from durable.core.records import EntryRecord, Request, RunPatch, RunState
from durable.core.results import origins_of
from durable.core.rollback import RollbackFailed, has_compensation, roll_back
from durable.core.scope import Scope
from durable.core.summary import Summary, SummaryKind, waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWants:
    """What a pass needs of limits before it calls the workflow: units of rates, and slots."""

    rates: Sequence[RateWant]
    slots: Sequence[SlotWant]


#: Returns the wants of a pass of the run.
Slots = Callable[[], PassWants]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPolicy:
    """The limits of a pass.

    `divergence_grace` is how many seconds to wait for another worker's code after a divergence or a mistake.
    """

    max_crashes: int = 5
    divergence_grace: float = 0.0
    divergence_retry: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """The end of a pass. `due_now`: the run can continue at once. `queues_to_notify`: the queues of the runs made due
    by the commit that ended the pass. `is_long`: the history has more than `LONG_HISTORY` entries.
    """

    state: str
    output: Any = None
    error: ErrorInfo | None = None
    wake_at: datetime | None = None
    waiting_for: frozenset[str] | None = None
    due_now: bool = False
    queues_to_notify: frozenset[str] = frozenset()
    is_long: bool = False


def run_pass(
    journal: Journal, workflow: Callable[[Any], Any] | None, policy: PassPolicy, slots: Slots | None = None
) -> Operation:
    """Execute one pass of the run: continue its rollback, or call `workflow(context)`. Returns a PassOutcome.

    `workflow` is None if this process does not know it; then the run waits for a worker that does. A run whose end is
    refused by the workflow's `on_end` waits too, and the next pass ends it again.
    """
    try:
        return (yield from _run_pass(journal, workflow, policy, slots))
    except EndUnknown:
        return (yield from _wait_to_end(journal, Summary(SummaryKind.UNKNOWN_WORKFLOW, workflow=journal.run.workflow)))
    except EndRefusedError as refused:
        summary = Summary(SummaryKind.END_REFUSED, function=refused.function, error=described(refused.error))
        return (yield from _wait_to_end(journal, summary))


def _run_pass(
    journal: Journal, workflow: Callable[[Any], Any] | None, policy: PassPolicy, slots: Slots | None
) -> Operation:
    journal.has_running_slots = slots is not None or workflow is None  # from its line, or from a worker that died
    if journal.unreadable and not _is_to_stop(journal):
        return (yield from _diverged(journal, cannot_read(journal.unreadable), policy))
    if journal.doubled and not _is_to_stop(journal):
        return (yield from _diverged(journal, named_twice(*journal.doubled[0]), policy))
    if journal.not_restored is not None and not _is_to_stop(journal):
        return (yield from _not_restored(journal, journal.not_restored, policy))
    try:
        return (yield from _continue(journal, workflow, policy, slots))
    except NotRestored as refused:
        if _is_to_stop(journal):
            return (yield from _honour(journal, journal.request))
        return (yield from _not_restored(journal, refused.error, policy))
    except UnknownLimitError as error:  # of a rollback handler
        return (yield from _mistaken(journal, error, policy))


def _is_to_stop(journal: Journal) -> bool:
    """Return True if a request ends the pass, and needs neither the history nor the code."""
    return journal.request in (Request.PAUSE, Request.CANCEL) and journal.run.state != RunState.ROLLING_BACK


def _continue(
    journal: Journal, workflow: Callable[[Any], Any] | None, policy: PassPolicy, slots: Slots | None
) -> Operation:
    if journal.run.state == RunState.ROLLING_BACK:
        if journal.run.crashes >= policy.max_crashes:
            return (yield from _stop_after_crashes(journal))
        journal.release_step_slots()
        return (yield from _compensate(journal))
    if journal.request != Request.NONE:
        return (yield from _honour(journal, journal.request))
    if journal.run.crashes >= policy.max_crashes:
        return (yield from _stop_after_crashes(journal))
    if (excess := journal.excess()) is not None:
        return (yield from _fail(journal, excess, may_compensate=True))
    if workflow is None:
        return (yield from _wait_for_code(journal))
    scope = Scope(journal, journal.root)
    try:
        if slots is not None:
            yield from _admitted(journal, slots())
        value = yield from run_body(scope, workflow)
        output = journal.environment.encode(value, "the output of the workflow", "output", "")
        if journal.environment.is_in_transaction():
            raise OpenTransactionError("the end of the workflow")
    except Park as park:
        return (yield from _ended_first(journal, journal.request) or _park(journal, park))
    except Evicted as eviction:
        return (yield from _ended_first(journal, eviction.request) or _hand_over(journal))
    except (LeaseLost, PassAborted):
        raise
    except HistoryDivergedError as error:
        return (yield from _diverged(journal, error, policy))
    except StartRefused as refused:
        return (yield from _fail(journal, refused.error, may_compensate=False))
    except ContractError as error:
        return (yield from _stop(journal, error, origins_of(error)))
    except RollbackFailed as failed:
        return (yield from _stop_at_handler(journal, failed))
    except Exception as error:
        if journal.request != Request.NONE:  # the request came before the code ended, with or without an error
            return (yield from _honour(journal, journal.request))
        if is_mistake(error, journal.environment.mistakes):
            return (yield from _mistaken(journal, error, policy))
        return (yield from _fail(journal, error, may_compensate=True))
    if journal.request != Request.NONE:
        return (yield from _honour(journal, journal.request))
    if journal.environment.is_asked():
        return (yield from _hand_over(journal))
    try:
        return (yield from _complete(journal, output))
    except OpenTransactionError as error:
        return (yield from _stop(journal, error, origins_of(error)))


def _ended_first(journal: Journal, request: str) -> Operation | None:
    """Return what a request or an exceeded time limit makes of the run, instead of parking it; None without one."""
    if request != Request.NONE:
        return _honour(journal, request)
    if (excess := journal.excess()) is not None:
        return _fail(journal, excess, may_compensate=True)
    return None


def _admitted(journal: Journal, wants: PassWants) -> Operation:
    """Wait for the pass's moment in each rate, then take its slots. Raises Park if the wait is long."""
    for rate in wants.rates:
        yield from reserved(journal, "", rate, may_begin=not wants.slots)
    if wants.slots:
        yield from acquired(journal, "", wants.slots)
        for rate in wants.rates:
            yield from reserved(journal, "", rate)


# -- the ways out


def _complete(journal: Journal, output: str) -> Operation:
    yield Save(transitions.completed(journal.run, now=journal.environment.now(), output=output))
    value = journal.environment.decode(output, "output", "")
    _tell(journal, RunState.COMPLETED, "run_completed", output=value)
    return PassOutcome(state=RunState.COMPLETED, output=value)


def _park(journal: Journal, park: Park, summary: Summary | None = None) -> Operation:
    wake_at = journal.wake_at(park.deadline)
    patch = transitions.parked(
        journal.run,
        wake_at=wake_at,
        waiting_for=waiting_text(park.names, park.children | park.groups),
        summary=waiting(park) if summary is None else summary,
    )
    yield Save(
        patch,
        park_change_seq=journal.run.change_seq,
        awaited_children=sorted(park.children),
        awaited_slots=sorted(park.slots),
        awaited_groups=sorted(park.groups),
    )
    _tell(journal, patch["state"])
    return PassOutcome(state=patch["state"], wake_at=wake_at, waiting_for=park.names)


def _hand_over(journal: Journal) -> Operation:
    """Make the run due again for another worker, because the pass was evicted."""
    now = journal.environment.now()
    is_asked = journal.environment.is_asked()
    summary = Summary(SummaryKind.STOP_REQUESTED if is_asked else SummaryKind.HANDED_OVER)
    patch = transitions.handed_over(journal.run, now=now, summary=summary)
    yield Save(patch, park_change_seq=journal.run.change_seq)  # it may have been moved to another queue meanwhile
    _tell(journal, RunState.PENDING)
    return PassOutcome(state=RunState.PENDING, wake_at=now, due_now=True)


def _honour(journal: Journal, request: str) -> Operation:
    """Carry out an operator's request that came during the pass."""
    if request == Request.PAUSE:
        yield Save(transitions.paused(journal.run, summary=Summary(SummaryKind.PAUSED)))
        _tell(journal, RunState.PAUSED)
        return PassOutcome(state=RunState.PAUSED)
    journal.withdraw_starts()
    if request == Request.CANCEL_ROLLBACK and has_compensation(journal):
        patch = transitions.cancel_rollback_begun(journal.run, summary=Summary(SummaryKind.COMPENSATING))
        return (yield from _begin_rollback(journal, patch))
    return (yield from _end(journal, transitions.cancelled(journal.run, now=journal.environment.now())))


def _diverged(journal: Journal, error: HistoryDivergedError, policy: PassPolicy) -> Operation:
    """Handle code that does not fit the history: wait for other code; after the grace period, stop the run."""
    info = ErrorInfo.of(error)
    waits = Summary(SummaryKind.DIVERGED, error=info.message)  # which is shortened
    outcome = yield from _wait_for_other_code(journal, Event("run_diverged", {"error": info}), waits, policy)
    if outcome is not None:
        return outcome
    if journal.run.state == RunState.ROLLING_BACK:
        return (
            yield from _stop_compensating(journal, info, Summary(SummaryKind.COMPENSATION_STOPPED, error=str(info)))
        )
    return (yield from _fail(journal, error, may_compensate=False))


def _mistaken(journal: Journal, error: Exception, policy: PassPolicy) -> Operation:
    """Handle a mistake in the code: wait for other code; after the grace period, stop the run. No failure is recorded
    to be reset.
    """
    info = ErrorInfo.of(error)
    summary = Summary(SummaryKind.MISTAKE, error=described(error))
    outcome = yield from _wait_for_other_code(journal, Event("run_mistaken", {"error": info}), summary, policy)
    if outcome is not None:
        return outcome
    if journal.run.state == RunState.ROLLING_BACK:
        stopped = Summary(SummaryKind.COMPENSATION_STOPPED, error=str(info))
        return (yield from _stop_compensating(journal, info, stopped))
    return (yield from _stop(journal, error))


def _not_restored(journal: Journal, error: Exception, policy: PassPolicy) -> Operation:
    """Handle what travels with the run and could not be put in force: a mistake of the code, also in a compensation.

    No deadline ends the run meanwhile: its rollback handlers would be called without.
    """
    journal.not_restored = error
    return (yield from _mistaken(journal, error, policy))


def _stop(journal: Journal, error: Exception, origins: Iterable[str] = ()) -> Operation:
    """Stop a run whose code has a mistake or has broken a rule of durable: nothing is undone.

    A recovery resets the failures at `origins`.
    """
    origins, now = sorted(origins), journal.environment.now()
    info = with_origin(ErrorInfo.of(error), origins, journal.entry_at)
    journal.note_end(error, ())
    journal.withdraw_starts()
    summary = Summary(SummaryKind.STOPPED_BY_MISTAKE, error=described(error))
    patch = transitions.stopped(journal.run, now=now, error=info, origins=origins, summary=summary)
    return (yield from _end(journal, patch, info, is_mistake=True))


def _wait_for_other_code(journal: Journal, event: Event, summary: Summary, policy: PassPolicy) -> Operation:
    """Let the run try again later: in a rolling deploy, another worker's code may be right.

    Returns None once the grace period is over. Uncommitted changes of the wrong code are dropped, as in a crash: the
    history must fit the right code.
    """
    journal.discard()
    journal.has_running_slots |= bool(journal.slots_at)  # of steps that were not recorded
    now = journal.environment.now()
    since = journal.run.diverged_at or now
    waited = (now - since).total_seconds()
    if waited >= policy.divergence_grace:
        return None
    delay = min(max(policy.divergence_retry, waited / 4), policy.divergence_grace - waited + 1)
    wake_at = now + timedelta(seconds=delay)
    # a worker that cannot read the history, or restore what travels with the run, does not end it at its deadline
    if not journal.unreadable and journal.not_restored is None:
        wake_at = journal.wake_at(wake_at) or wake_at
    patch = transitions.diverging(journal.run, since=since, wake_at=wake_at, summary=summary)
    yield Save(patch, park_change_seq=journal.run.change_seq)
    journal.environment.emit(Event(event.name, {**event.details, "retry_at": wake_at}))
    _tell(journal, patch["state"])
    return PassOutcome(state=patch["state"], wake_at=wake_at)


def _wait_for_code(journal: Journal) -> Operation:
    """Park a run whose workflow this process does not know; it is tried again after the next deploy."""
    now = journal.environment.now()
    since = journal.run.diverged_at or now
    wake_at = journal.wake_at(_next_try(since, now))
    summary = Summary(SummaryKind.UNKNOWN_WORKFLOW, workflow=journal.run.workflow)
    patch = transitions.diverging(journal.run, since=since, wake_at=wake_at, summary=summary)
    yield Save(patch, park_change_seq=journal.run.change_seq)
    _tell(journal, RunState.SLEEPING)
    return PassOutcome(state=RunState.SLEEPING, wake_at=wake_at)


def _next_try(since: datetime, now: datetime) -> datetime:
    return now + timedelta(seconds=min(60.0, 1.0 + (now - since).total_seconds() / 4))


def _wait_to_end(journal: Journal, summary: Summary) -> Operation:
    """Park a run that cannot end here, whatever ends it. Nothing of the end is recorded: the next pass comes to it
    again, as after a crash.

    The count of crashes stays, which the first commit of a pass would reset: they may be why the run ends.
    """
    now = journal.environment.now()
    since = journal.run.diverged_at or now
    wake_at = _next_try(since, now)  # a deadline that has passed does not make the run due
    patch = transitions.diverging(journal.run, since=since, wake_at=wake_at, summary=summary)
    if journal.run.crashes:
        patch["crashes"] = journal.run.crashes
    yield Save(patch, park_change_seq=journal.run.change_seq)
    _tell(journal, patch["state"])
    return PassOutcome(state=patch["state"], wake_at=wake_at)


def _fail(journal: Journal, error: Exception, *, may_compensate: bool) -> Operation:
    origins = sorted(origins_of(error))
    info = with_origin(ErrorInfo.of(error), origins, journal.entry_at)
    journal.note_end(error, origins)
    journal.withdraw_starts()
    if may_compensate and has_compensation(journal):
        summary = Summary(SummaryKind.COMPENSATING)
        patch = transitions.rollback_begun(journal.run, error=info, origins=origins, summary=summary)
        return (yield from _begin_rollback(journal, patch))
    now = journal.environment.now()
    return (yield from _end(journal, transitions.failed(journal.run, now=now, error=info, origins=origins), info))


def _stop_after_crashes(journal: Journal) -> Operation:
    """Stop a run that has crashed too many workers in a row; nothing is compensated."""
    run, now = journal.run, journal.environment.now()
    crash = ErrorInfo.of(RunCrashedError(run.crashes))
    is_compensating = run.state == RunState.ROLLING_BACK
    summary = Summary(SummaryKind.COMPENSATION_STOPPED, error=str(crash)) if is_compensating else ""
    patch = transitions.crash_limit_reached(run, now=now, error=crash, summary=summary)
    return (yield from _end(journal, patch, patch["error"]))


def _begin_rollback(journal: Journal, patch: RunPatch) -> Operation:
    """Commit the beginning of the compensation, then compensate the run."""
    journal.release_step_slots()
    yield Save(patch)
    for name, value in patch.items():
        setattr(journal.run, name, value)
    journal.request = patch.get("pending_request", journal.request)
    return (yield from _compensate(journal))


def _compensate(journal: Journal) -> Operation:
    """Run the remaining handlers, then end the run with its recorded outcome."""
    run = journal.run
    try:
        yield from roll_back(journal)
    except Park as park:
        return (
            yield from _park(
                journal,
                park,
                None if park.children or park.groups or park.doing else Summary(SummaryKind.HANDLER_BACKOFF),
            )
        )
    except Evicted as eviction:
        if eviction.request == Request.PAUSE:
            return (yield from _honour(journal, eviction.request))
        now = journal.environment.now()
        yield Save(transitions.handed_over(run, now=now, summary=""), park_change_seq=run.change_seq)
        return PassOutcome(state=RunState.ROLLING_BACK, wake_at=now, due_now=True)
    except RollbackFailed as failed:
        return (yield from _stop_at_handler(journal, failed))
    now = journal.environment.now()
    count = sum(_is_undone(entry) for entry in journal.entries())
    is_cancelled = run.state_after_rollback == RunState.CANCELLED
    summary = Summary(SummaryKind.COMPENSATED, count=count, recoverable=not is_cancelled)
    if is_cancelled:
        return (yield from _end(journal, transitions.cancel_rolled_back(run, now=now, summary=summary)))
    return (yield from _end(journal, transitions.rolled_back(run, now=now, summary=summary), run.error))


def _stop_at_handler(journal: Journal, failed: RollbackFailed) -> Operation:
    summary = Summary(SummaryKind.HANDLER_FAILED, location=failed.location, error=str(failed.error))
    return (yield from _stop_compensating(journal, failed.error, summary))


def _stop_compensating(journal: Journal, error: ErrorInfo, summary: Summary) -> Operation:
    """Stop a run whose compensation cannot continue; its outcome is kept, so that recover can continue it."""
    now = journal.environment.now()
    patch = transitions.rollback_stopped(journal.run, now=now, error=error, summary=summary)
    return (yield from _end(journal, patch, patch["error"]))


# -- details


def _end(journal: Journal, patch: RunPatch, error: ErrorInfo | None = None, *, is_mistake: bool = False) -> Operation:
    """Commit the end of the run, failed with this error or cancelled, and log it."""
    yield Save(patch)
    if patch["state"] == RunState.FAILED:
        _tell(journal, RunState.FAILED, "run_failed", error=error, is_mistake=is_mistake)
    else:
        _tell(journal, patch["state"])
    return PassOutcome(state=patch["state"], error=error)


def _is_undone(entry: EntryRecord) -> bool:
    """Whether the entry is a step undone by the end of the run, rather than by a compensation that the code called."""
    return entry.rollback_completed_at is not None and entry.data.get("rollback", {}).get("by") is None


def _tell(journal: Journal, state: str, name: str | None = None, **details: Any) -> None:
    journal.environment.emit(Event("run_changed", {"state": str(state)}))
    if name is not None:
        journal.environment.emit(Event(name, details, journal.exception, journal.cause))
