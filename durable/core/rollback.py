"""Compensation: run the recorded handlers of completed steps, the newest first.

It needs neither the workflow's code nor the process that executed the steps. A handler is found by its recorded name,
and gets the recorded arguments and output. Each handler's success is a commit of its own. So after a crash, an eviction
or a handler's backoff, the remaining handlers run. The step's record names the compensation that has undone it; while
that entry is in the history, the step is not executed again.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from durable.core.children.rollback import undo, undo_map
from durable.core.control_flow import ControlFlow, Evicted, Park
from durable.core.effects import SAVE, Call, Operation, Save, StepInfo
from durable.core.errors import CriticalError, ErrorInfo, RollbackCheckpointError
from durable.core.journal import Event, Journal
from durable.core.limits.slots import closed
from durable.core.once import settle
from durable.core.options import RollbackContext, StepPolicy
from durable.core.outcomes import is_unsettled, may_need_undoing
from durable.core.records import NOTHING, EntryKind, EntryRecord, EntryStatus, Request
from durable.core.retries import FailedAttempt, RetryLater, asked_by, described, retry_of
from durable.core.rewind.rewinding import with_children_to_undo
from durable.core.saves import show
from durable.core.scope import Scope
from durable.core.summary import compensating


class RollbackFailed(Exception):  # not raised to users: the pass turns it into a state
    """A handler failed on its last attempt."""

    def __init__(self, location: str, error: ErrorInfo) -> None:
        self.location = location
        self.error = error
        super().__init__(location)


def has_compensation(journal: Journal) -> bool:
    """Return True if any handler is left to run, or may be: nobody knows whether its step was done."""
    return any(map(may_need_undoing, journal.entries()))


def compensable(journal: Journal) -> list[EntryRecord]:
    """Return the steps whose handlers are still to run, and the children still to be compensated, the newest first.

    Of a step among them nobody may know yet whether it was done.
    """
    left = [entry for entry in journal.entries() if may_need_undoing(entry)]
    return sorted(left, key=_place, reverse=True)


def _place(entry: EntryRecord) -> int:
    """Return the sort key of an entry: the end of its operation, or its beginning if it has not ended."""
    return entry.ordinal if entry.finished_ordinal is None else entry.finished_ordinal


def roll_back(journal: Journal, by: str | None = None) -> Operation:
    """Run the remaining handlers in reverse order of their steps' completion. Raises RollbackFailed, Park, Evicted.

    Whether a step was done of which nobody knows is asked first; while nobody does, a person is waited for. So nothing
    is undone that was not done, and all that was.
    `by` is the location of the compensation that the code called; None for the rollback at the run's end.
    """

    def check() -> None:
        if journal.environment.is_evicted():
            raise Evicted
        if journal.request == Request.PAUSE:  # a request to cancel comes too late
            raise Evicted(journal.request)

    for entry in compensable(journal):
        check()
        if entry.kind == EntryKind.CHILD:
            yield from _stopped_by(journal, entry, (yield from undo(journal, entry, by)))
        elif entry.kind == EntryKind.MAP:
            yield from _stopped_by(journal, entry, (yield from undo_map(journal, entry, by, check)))
        elif not is_unsettled(entry) or (yield from settle(journal, entry, _given_up(entry), holds=True)):
            yield from _compensate(journal, entry, by)


def _stopped_by(journal: Journal, entry: EntryRecord, error: ErrorInfo | None) -> Operation:
    """Stop if a child's compensation returned an error. The child's handlers have attempts of their own."""
    if error is not None:
        journal.update(entry, rollback_error=error)
        yield Save(is_failure=True)
        _tell_failed(journal, entry, 1, None, error)
        raise RollbackFailed(entry.location, error)


def _given_up(entry: EntryRecord) -> ErrorInfo:
    what = f'the run came to its rollback during attempt {entry.attempts} of step "{entry.location}"'
    return ErrorInfo("WorkerDied", what)


def _compensate(journal: Journal, entry: EntryRecord, by: str | None) -> Operation:
    policy = entry.data["rollback"]
    retry_at = policy.get("retry_at")
    if retry_at and (due := datetime.fromisoformat(retry_at)) > journal.environment.now():
        raise Park(due)
    try:
        yield _handler_call(journal, entry)
        data = entry.data if by is None else {**entry.data, "rollback": {**policy, "by": by}}
        journal.update(entry, data=data, rollback_completed_at=journal.environment.now(), rollback_error=None)
        yield SAVE
    except ControlFlow:
        raise
    except Exception as error:
        yield from _failed(journal, entry, error)


def _handler_call(journal: Journal, entry: EntryRecord) -> Call:
    environment, policy = journal.environment, entry.data["rollback"]

    def handle() -> Any:
        handler = environment.resolve(policy["handler"])
        args = environment.decode(entry.arguments, "arguments", entry.location) or ()
        context = RollbackContext(journal.run.id, entry.location, tuple(args), journal.eviction_reason)
        return handler(context, environment.decode(entry.output, "output", entry.location))

    name = f"rollback of {entry.location}"
    attempt = policy.get("attempts", 0) + 1
    info = StepInfo(
        journal.run,
        entry.location,
        attempt,
        journal.eviction_reason,
        "rollback",
        policy["timeout"],
        _show=partial(show, journal),
    )
    return Call(handle, (), name, policy["timeout"], info, is_rollback=True)


def _failed(journal: Journal, entry: EntryRecord, error: Exception) -> Operation:
    asked = asked_by(error) or error
    info = described(asked, within=error)
    policy = entry.data["rollback"]
    attempts, uncounted = policy.get("attempts", 0) + 1, policy.get("uncounted", 0)
    retry_at = None
    if not isinstance(asked, CriticalError):
        now = journal.environment.now()
        failed = FailedAttempt(
            run=journal.run,
            location=entry.location,
            purpose="rollback",
            attempts=attempts,
            uncounted=uncounted,
            began_at=now,
            failed_at=now,
        )
        retry = retry_of(failed, _options(policy), asked, info, journal.environment.max_uncounted_retries)
        retry_at, uncounted, info = retry.at, retry.uncounted, retry.error
        if isinstance(asked, RetryLater):
            yield from closed(journal, asked, retry_at, now)
    recorded = {
        **policy,
        "attempts": attempts,
        "retry_at": retry_at.isoformat() if retry_at else None,
        **({"uncounted": uncounted} if uncounted else {}),
    }
    journal.update(entry, data={**entry.data, "rollback": recorded}, rollback_completed_at=None, rollback_error=info)
    yield Save(is_failure=True)
    _tell_failed(journal, entry, attempts, retry_at, info)
    if retry_at is None:
        raise RollbackFailed(entry.location, info)
    raise Park(retry_at)


def _tell_failed(
    journal: Journal, entry: EntryRecord, attempt: int, retry_at: datetime | None, error: ErrorInfo
) -> None:
    details = {
        "location": entry.location,
        "attempt": attempt,
        "will_retry": retry_at is not None,
        "retry_at": retry_at,
        "error": error,
    }
    journal.environment.emit(Event("rollback_failed", details))


def _options(policy: dict[str, Any]) -> StepPolicy:
    return StepPolicy(
        max_retries=policy["max_retries"],
        retry_backoff_base=policy["base"],
        retry_backoff_max=policy["max"],
        backoff=policy["backoff"],
        retry_jitter=policy.get("jitter", 0.0),
    )


_MAX_REASON = 1_000  # characters of a reason that are kept


def compensate(scope: Scope, reason: str) -> Operation:
    """Run the rollback handlers of all completed steps that are not undone yet, the newest first."""
    if not isinstance(reason, str):
        raise TypeError(f"the reason of a compensation is text, not {reason!r}")
    if scope.is_concurrent:
        raise ValueError(
            "ctx.compensate undoes the steps of the whole run, so it has no place in a branch of a join or a race, beside "
            "which others run: raise an error in the branch, or compensate after the join or race"
        )
    journal = scope.journal
    node = scope.cursor.match_numbered(EntryKind.COMPENSATE)
    entry = node.entry
    if entry is None or entry.status != EntryStatus.COMPLETED:
        left = compensable(journal)
        if not left and not _has_checkpoint(scope):
            raise RollbackCheckpointError(node.location, "ctx.compensate()")
        if entry is None:
            data = {"reason": reason[:_MAX_REASON], "handlers": len(left)}
            entry = scope.create(node, EntryKind.COMPENSATE, data=data, status=EntryStatus.RUNNING)
            journal.update(entry)
        try:
            yield from roll_back(journal, by=entry.location)
        except Park as park:
            doing = [*park.doing, compensating(entry.data["reason"])]
            raise Park(park.deadline, doing=doing, children=park.children, groups=park.groups) from None
        except RollbackFailed as failed:
            scope.journal.stop(failed)
        for each in journal.entries():
            if NOTHING in each.data.get("rollback", ()):
                journal.update(each, data=with_children_to_undo(each))
        journal.finish(entry)
        yield SAVE
    scope.determinism.observe(entry)


def _has_checkpoint(scope: Scope) -> bool:
    return scope.has_checkpoint or any(each.kind == EntryKind.ROLLBACK_CHECKPOINT for each in scope.journal.entries())
