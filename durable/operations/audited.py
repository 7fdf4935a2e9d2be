"""How a verb is attributed: the actor's permission, the run as the actor saw it, and the row of the audit log.

The row of an action that is done is written in the transaction of its change. What is denied or refused changes
nothing, and its row is written after that is certain.
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
    PayloadError,
    RunConflictError,
    RunNotFoundError,
    StalePlanError,
    StaleRunError,
)
from durable.core.records import ActionRecord, RunChange, RunRecord
from durable.operations import audit
from durable.operations.audit import ActorScope, OperationDeniedError, Outcome
from durable.runtime import Runtime

__all__ = ["REFUSALS", "Attribution", "UnseenRunError", "audited", "outcome_of"]

_DETAIL = 2_000  # characters of an error that the log keeps

#: What a verb raises when it did nothing and will not.
REFUSALS = (DurableError, ValueError, TypeError)

_OUTCOMES: tuple[tuple[tuple[type[Exception], ...], Outcome], ...] = (
    ((OperationDeniedError,), Outcome.DENIED),
    ((StaleRunError, StalePlanError), Outcome.STALE),
    ((RunNotFoundError, EntryNotFoundError), Outcome.MISSING),
    ((RunConflictError, MessageConflictError), Outcome.CONFLICT),
    ((PayloadError, ValueError, TypeError), Outcome.INVALID),
    ((DurableError,), Outcome.REFUSED),
)


class UnseenRunError(RunNotFoundError):
    """The run that a verb made, or that has the id already, is not there for the actor; nothing was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One call of a verb, and who it is by; `acting` is None for the application's own code."""

    at: Runtime
    action: str
    run_id: str
    acting: ActorScope | None
    reason: str

    def check_seen(self, run: RunRecord) -> None:
        """Raises StaleRunError if the run, locked, is no longer as the actor saw it."""
        expected = None if self.acting is None else self.acting.expected
        if expected is not None and expected != audit.revision(run):
            raise StaleRunError(run.id, run.state, self.action)

    def sees(self, run_id: str) -> bool:
        """Whether the run is there for the actor."""
        return self.acting is None or self.acting.sees is None or self.acting.sees(run_id)

    def check_sees(self, run_id: str) -> None:
        """Raises UnseenRunError if the run is not there for the actor. To be called in the transaction that may have made it."""
        if not self.sees(run_id):
            raise UnseenRunError(run_id)

    def lock(self) -> RunRecord:
        """The run, locked until the transaction ends, as the actor saw it. Raises RunNotFoundError, StaleRunError."""

        def decide(run: RunRecord, _entries: object) -> RunChange:
            self.check_seen(run)
            return RunChange(run={"signal": run.signal})

        return self.at.store.change(self.run_id, decide)

    def done(self, *, before: str, after: str, detail: str = "", run_id: str | None = None) -> ActionRecord:
        """The row that tells of the change, to be written with it."""
        return self._row(Outcome.DONE, before, after, detail, run_id)

    def _row(self, outcome: Outcome, before: str, after: str, detail: str, run_id: str | None = None) -> ActionRecord:
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
        )

    def _state(self) -> str:
        """Where the run is, as far as that can be said after a refusal."""
        try:
            run = self.at.store.get(self.run_id) if self.run_id else None
        except Error:  # a transaction of the caller's is broken
            return ""
        return "" if run is None else str(run.state)

    def refused(self, error: Exception) -> None:
        """Log that nothing was done, and why."""
        if self.acting is not None:
            state = self._state()
            audit.log_refused(self.acting, self._row(outcome_of(error), state, state, str(error)))


def outcome_of(error: Exception) -> Outcome:
    """What came of an action that raised this."""
    return next(outcome for kinds, outcome in _OUTCOMES if isinstance(error, kinds))


@contextmanager
def audited(at: Runtime, action: str, run_id: str, *, reason: str = "") -> Iterator[Attribution]:
    """The call of a verb on a run ("" if it has no id yet). Raises OperationDeniedError before anything is done.

    `reason` is the verb's own; without one, the actor's counts.
    """
    acting = audit.acting()
    by = Attribution(
        at=at, action=action, run_id=_known(run_id), acting=acting, reason=reason or (acting.reason if acting else "")
    )
    if acting is None:
        yield by
        return
    try:
        acting.check(action)
        yield by
    except REFUSALS as error:
        by.refused(error)
        raise


def _known(run_id: object) -> str:
    """The id, as far as it is one: what else was given is refused by the verb, and the log has room for ids only."""
    return run_id if isinstance(run_id, str) and len(run_id) <= 200 else ""
