"""Attribution of a verb: check the actor's permission and the run's revision, and write the row of the audit log.

The row of a successful action is written in the transaction of its change. A denied or refused action changes nothing;
its row is written once that is certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import Error

from durable.core.errors import (
    DurableError,
    EntryNotFoundError,
    MessageConflictError,
    MessageNotAcceptedError,
    MessageNotPendingError,
    OperationError,
    PayloadError,
    RunConflictError,
    RunNotFoundError,
    ScheduleNotFoundError,
    StalePlanError,
    StaleRunError,
    StaleScheduleError,
)
from durable.core.records import ActionRecord, RunChange, RunRecord
from durable.core.words import Sentence, gettext_noop
from durable.operations import audit
from durable.operations.audit import ActorScope, OperationDeniedError, Outcome
from durable.runtime import Runtime

_DETAIL = 2_000  # characters of an error that the log keeps

#: The errors that a verb raises when it did nothing and will do nothing.
REFUSALS = (DurableError, ValueError, TypeError)

_OUTCOMES: tuple[tuple[tuple[type[Exception], ...], Outcome], ...] = (
    ((OperationDeniedError,), Outcome.DENIED),
    ((StaleRunError, StalePlanError, StaleScheduleError), Outcome.STALE),
    ((RunNotFoundError, EntryNotFoundError, MessageNotPendingError, ScheduleNotFoundError), Outcome.MISSING),
    ((RunConflictError, MessageConflictError), Outcome.CONFLICT),
    ((PayloadError, MessageNotAcceptedError, ValueError, TypeError), Outcome.INVALID),
    ((DurableError,), Outcome.REFUSED),
)


class UnseenRunError(RunNotFoundError):
    """The actor may not see the run that a verb created, or that has the id or the key already; nothing was done.

    `key` is the key of an open run, whose id the text does not tell; "" if it is about an id.
    """

    def __init__(self, run_id: str, *, key: str = "") -> None:
        super().__init__(run_id)
        self.key = key
        if key:
            text = gettext_noop('an open run that the user may not see has the key "{key}"; start one with another key')
            OperationError.__init__(self, Sentence(text, key=key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One call of a verb, with its actor; `acting` is None for the application's own code.

    `subject` is the kind and the name of what a verb that is not about a run is about.
    """

    at: Runtime
    action: str
    run_id: str
    acting: ActorScope | None
    reason: str
    subject: tuple[str, str] = ("", "")

    def check_seen(self, run: RunRecord) -> None:
        """Compare the locked run with what the actor saw. Raises StaleRunError if it has changed."""
        expected = None if self.acting is None else self.acting.expected
        if expected is not None and expected != audit.revision(run):
            raise StaleRunError(run.id, run.state, self.action)

    def sees(self, run_id: str) -> bool:
        """Return whether the actor may see the run."""
        return self.acting is None or self.acting.sees is None or self.acting.sees(run_id)

    def check_sees(self, run_id: str, *, key: str = "") -> None:
        """Raise UnseenRunError if the actor may not see the run, which was found by its `key` if that is given.

        Call this in the transaction that may have created it.
        """
        if not self.sees(run_id):
            raise UnseenRunError(run_id, key=key)

    def lock(self) -> RunRecord:
        """Lock the run until the transaction ends, and return it. Raises RunNotFoundError, StaleRunError."""

        def decide(run: RunRecord, _entries: object) -> RunChange:
            self.check_seen(run)
            return RunChange(run={"change_seq": run.change_seq})

        return self.at.store.change(self.run_id, decide)

    def done(
        self, *, before: str, after: str, detail: str = "", run_id: str | None = None, number: int = 0
    ) -> ActionRecord:
        """Return the audit row for a completed change, to be written in the transaction of that change."""
        return self._row(Outcome.DONE, before, after, detail, run_id, number)

    def _row(
        self, outcome: Outcome, before: str, after: str, detail: str, run_id: str | None = None, number: int = 0
    ) -> ActionRecord:
        kind, name = self.subject
        actor = audit.code_actor() if self.acting is None else self.acting.actor
        return ActionRecord(
            action=self.action,
            run_id=self.run_id if run_id is None else run_id,
            source=actor.source,
            outcome=str(outcome),
            created_at=self.at.now(),
            actor_id=actor.user_key,
            actor_label=actor.name,
            reason=self.reason,
            before=str(before),
            after=str(after),
            detail=detail[:_DETAIL],
            bulk_id=audit.bulk_id(),
            subject_kind=str(kind),
            subject=_known(name),
            number=number,
        )

    def _state(self) -> str:
        """The run's current state, or what can be said of it after a refusal."""
        try:
            run = self.at.store.get(self.run_id) if self.run_id else None
        except Error:  # the caller's transaction is broken
            return ""
        return "" if run is None else str(run.state)

    def refused(self, error: Exception) -> None:
        """Log that the verb changed nothing, and why."""
        if self.acting is not None:
            state = self._state()
            audit.log_refused(self.acting, self._row(outcome_of(error), state, state, str(error)))


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of an action that raised this error."""
    return next(outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds))


@contextmanager
def audited(
    at: Runtime, action: str, run_id: str, *, reason: str = "", subject: tuple[str, str] = ("", "")
) -> Iterator[Attribution]:
    """Attribute one call of a verb on a run ("" if it has no id yet). Raises OperationDeniedError before any change.

    `reason` is the verb's own argument. Without it the actor's reason is used. `subject` is the kind and the name of
    what a verb that is not about a run is about.
    """
    acting = audit.acting()
    attribution = Attribution(
        at=at,
        action=action,
        run_id=_known(run_id),
        acting=acting,
        reason=reason or (acting.reason if acting else ""),
        subject=subject,
    )
    if acting is None:
        yield attribution
        return
    try:
        acting.check(action)
        yield attribution
    except REFUSALS as error:
        attribution.refused(error)
        raise


def _known(run_id: object) -> str:
    """Return the id if it has the form of one, else "".

    The verb refuses anything else, and the log has room for ids only.
    """
    return run_id if isinstance(run_id, str) and len(run_id) <= 200 else ""
