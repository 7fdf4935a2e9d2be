"""The guard of a scope: one operation at a time, awaited, and none after the scope's end.

Owns whether an operation may begin here and now. Must not know the history.
"""

from __future__ import annotations

import sys

from durable.core.control_flow import BranchCancelled, ControlFlow, Evicted, Park
from durable.core.errors import EntryInProgressError, OpenTransactionError
from durable.core.journal import Environment, Journal
from durable.core.records import Request


class Branch:
    """A branch of a race or join. It is cancelled by itself or with the branch around it."""

    __slots__ = ("is_lost", "parent")

    def __init__(self, parent: Branch | None) -> None:
        self.parent = parent
        self.is_lost = False

    def is_cancelled(self) -> bool:
        """Return True if this branch, or one around it, lost its race."""
        branch: Branch | None = self
        while branch is not None:
            if branch.is_lost:
                return True
            branch = branch.parent
        return False


class OperationGuard:
    """Whether operations of one scope may begin, and which one runs."""

    __slots__ = ("_branch", "_calls", "_environment", "_journal", "_location", "begun", "busy", "ended_by", "unawaited")

    def __init__(self, journal: Journal, location: str, branch: Branch | None) -> None:
        self._journal = journal
        self._environment: Environment = journal.environment
        self._location = location
        self._branch = branch
        #: The operation that runs now, for error texts.
        self.busy: str | None = None
        #: The control flow that ended this scope. It is raised again at each later operation, even if the code swallows
        #: it.
        self.ended_by: ControlFlow | None = None
        #: Operations of an async scope that were called and not awaited yet.
        self.unawaited: dict[int, str] = {}
        #: The key of the one that was awaited last.
        self.begun = 0
        self._calls = 0

    def begin(self, label: str) -> None:
        """Reserve the scope for one operation.

        Raises EntryInProgressError while another one runs, and pending control flow.
        """
        if self.busy is not None:
            self._journal.stop(self._in_progress(self.busy, label))
        if self.unawaited:
            self._journal.stop(self._unawaited(label))
        if self.ended_by is not None:
            closing = sys.exception()
            # a generator that the code has left: Python would print any other exception of its cleaning up
            raise closing if isinstance(closing, GeneratorExit) else self.ended_by
        try:
            self.check_may_go_on()
        except ControlFlow as ending:
            self.ended_by = ending
            raise
        if self._environment.is_in_transaction():
            self._journal.stop(OpenTransactionError(label))
        self.busy = label

    def expect_await(self, label: str) -> int:
        """Note that an operation was called and has to be awaited; return its key in `unawaited`."""
        self._calls += 1
        self.unawaited[self._calls] = label
        return self._calls

    def note_cancelled(self, label: str) -> None:
        """Note that an operation was cancelled within the event loop: unless a race is lost, code must not continue
        without it.
        """
        if self._branch is not None and self._branch.is_cancelled():
            return
        if self._journal.poison is None:
            self._journal.poison = EntryInProgressError(
                f'{label} of scope "{self._location or "the root"}" was cancelled before it had ended, by asyncio.timeout, '
                "wait_for or a task's cancel(): where it stood is not recorded. Give a step a timeout=, a receive a "
                "timeout=, or let ctx.race decide between it and a ctx.sleep"
            )

    def check_may_go_on(self) -> None:
        """Raise what ends the pass, or the branch, at its next operation.

        That is a lost lease, an error of the code elsewhere, a lost race, an eviction, a request, a commit without an
        answer, or the end of the run's time.
        """
        self._journal.check_not_lost()
        if self._journal.poison is not None:
            raise self._journal.poison
        if self._branch is not None and self._branch.is_cancelled():
            raise BranchCancelled
        if self._journal.request != Request.NONE:
            raise Evicted(self._journal.request)
        if self._environment.is_evicted() or self._environment.is_asked():  # the next pass reads the request
            raise Evicted
        if self._journal.limits is not None and self._journal.excess() is not None:
            raise Evicted

    def finish(self) -> None:
        """Raise pending control flow, and an error for an operation that has not ended with the scope's code."""
        poison = self._journal.poison
        if self.ended_by is not None and (poison is None or not isinstance(self.ended_by, Park)):
            raise self.ended_by
        if poison is not None:
            raise poison
        if self.busy is not None:
            self._journal.stop(self._in_progress(self.busy, "the end of the code"))
        if self.unawaited:
            self._journal.stop(self._unawaited("the end of the code"))

    def _in_progress(self, running: str, started: str) -> EntryInProgressError:
        return EntryInProgressError(
            f'{running} of scope "{self._location or "the root"}" has not ended, but the code came to {started}: use the '
            "context that a body receives (not the outer one), call no operation in a step's function, and use ctx.join "
            "for concurrency"
        )

    def _unawaited(self, started: str) -> EntryInProgressError:
        key, operation = next(iter(self.unawaited.items()))
        # called after the one that is awaited now: both were made, and are awaited together
        is_gathered = key > self.begun
        advice = (
            "await one after the other, or use ctx.join for concurrency"
            if is_gathered
            else "it was called without `await`; write that before it"
        )
        return EntryInProgressError(
            f'{operation} of scope "{self._location or "the root"}" has not ended, but the code came to {started}: {advice}'
        )
