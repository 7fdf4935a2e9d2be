"""Scopes: the root, a loop's iteration, a branch or a try block, during one pass.

Owns whether an operation may begin here and now (`OperationGuard`). Must not know the history.

A `Scope` holds together what its operations need: the cursor in its history (`durable.core.replay_cursor`), that guard,
its clock and dice (`Determinism`), the messages that it received (`durable.core.message_claims`), and whether what
comes next may have been done already (`Doubt`). It decides nothing itself.
"""

from __future__ import annotations

import logging
import random
import sys
import uuid
from datetime import datetime
from typing import Any, Final

from durable.core.compatibility import unreadable
from durable.core.control_flow import BranchCancelled, ControlFlow, Evicted, Park
from durable.core.errors import EntryInProgressError, OpenTransactionError
from durable.core.journal import Environment, Journal, Node
from durable.core.message_claims import Receipts
from durable.core.names.renames import canonical
from durable.core.records import DoubtOver, EntryKind, EntryRecord, Request, RunRecord
from durable.core.replay_cursor import ReplayCursor
from durable.core.saves import checked_status, recall, show

#: The key in an entry's data: the attempt whose outcome is unknown is one of the lost time.
IN_DOUBT: Final = "in_doubt"
#: The key in an entry's data of when `verify`, or a person, said that the step was not done.
NOT_DONE: Final = "not_done"
#: The key in the data of a join or race of the branches whose doubt is over, and of the decision that it is about.
_CERTAIN: Final = "certain"


class Determinism:
    """The clock and the dice of one scope."""

    __slots__ = ("_location", "_random", "_run", "moment")

    def __init__(self, run: RunRecord, location: str, parent: Determinism | None) -> None:
        self._run = run
        self._location = location
        self._random: random.Random | None = None
        #: The time of the newest record that this scope's code has seen.
        self.moment: datetime = parent.moment if parent is not None else run.began_at or run.created_at

    def observe(self, entry: EntryRecord) -> None:
        """Note that the code has seen this record: the scope's time is not before the record's."""
        moment = entry.completed_at or entry.last_attempt_at or entry.created_at
        self.moment = max(self.moment, moment)

    @property
    def random(self) -> random.Random:
        """Return a generator seeded by run and location: it draws the same numbers in each pass."""
        if self._random is None:
            oldest = canonical(self._run.workflow, self._location)
            self._random = random.Random(f"{self._run.seed or self._run.id}/{oldest}")  # noqa: S311  # not for secrets
        return self._random

    def uuid4(self) -> uuid.UUID:
        """Return a UUID drawn from `random`."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)


class Branch:
    """A branch of a race or join. It is cancelled alone, or with the branch around it."""

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
    """Decides whether an operation of one scope may begin, and knows which one runs."""

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
        #: The key of the operation that was awaited last.
        self.begun = 0
        self._calls = 0

    def begin(self, label: str) -> None:
        """Reserve the scope for one operation.

        Raises EntryInProgressError while another operation runs; raises pending control flow again.
        """
        if self.busy is not None:
            self._journal.stop(self._in_progress(self.busy, label))
        if self.unawaited:
            self._journal.stop(self._unawaited(label))
        if self.ended_by is not None:
            closing = sys.exception()
            # for a generator that the code has left: Python would print any other exception raised by its clean-up
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
        """Note that an operation was called but not awaited yet; return its key in `unawaited`."""
        self._calls += 1
        self.unawaited[self._calls] = label
        return self._calls

    def note_cancelled(self, label: str) -> None:
        """Note that an operation was cancelled within the event loop. The code must not continue without it, unless its
        race is lost.
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
        """Raise whatever has to end the pass or the branch at its next operation.

        That is a lost lease, an error in another branch's code, a lost race, an eviction, a request, an unanswered
        commit, or an exceeded time limit.
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
        # called after the one awaited now: both were made first, and are awaited together
        is_gathered = key > self.begun
        advice = (
            "await one after the other, or use ctx.join for concurrency"
            if is_gathered
            else "it was called without `await`; write that before it"
        )
        return EntryInProgressError(
            f'{operation} of scope "{self._location or "the root"}" has not ended, but the code came to {started}: {advice}'
        )


class Doubt:
    """What a branch of a run may have done that its database has forgotten. `since` is the moment of the decision.

    A database that went back in time lacks what its runs did last. The runs that were open then may be marked as
    in doubt (`durable restored --unknown`). A run repeats what it did, so what it may have done are the next steps
    without a record of each of its branches. Before an attempt of such a step, its outcome counts as unknown
    (`durable.core.once`): `verify` is asked, and without one a person is. This holds for each plain step too. It
    does not hold for an atomic step, whose effects were in the database and are lost with its record, nor for an
    ephemeral one, which may be repeated at any time.

    Owns when the doubt of a branch is over. If a step was done, the steps after it may have been done too. If it
    was not, the branch had not got further: the doubt is over when that step has completed now. (If it fails now,
    it may have failed then as well, and the code may have gone on with another step.) The doubt is over, too,
    behind a sleep that was recorded before the loss and lasted until after the decision.

    - A loop and a try block continue the branch that they are in. Each branch of a join or race has a doubt of its
      own.
    - Behind a join the doubt is over if it is in one of the branches, because the join waits for all of them.
      Behind a race it is over if it is in the branch that won.
    - A child that is started in doubt is in doubt from its first step on.

    The end of a branch's doubt is recorded in the entry of its join or race, as that of the step may be pruned.
    The end of the run's is a change of the same commit as the step.
    """

    __slots__ = ("_branch", "_fork", "is_over", "since")

    def __init__(self, since: datetime, fork: EntryRecord | None = None, branch: str = "") -> None:
        self.since = since
        self._fork = fork
        self._branch = branch
        self.is_over = fork is not None and branch in _certain(fork, since)

    @classmethod
    def of_run(cls, journal: Journal) -> Doubt | None:
        """Return the doubt of the run's own branch, None without one."""
        since = None if journal.limits is None else journal.limits.in_doubt
        return None if since is None else cls(since)

    def of_branch(self, fork: EntryRecord, branch: str) -> Doubt | None:
        """Return the doubt of a branch that begins here, None without one."""
        return None if self.is_over else Doubt(self.since, fork, branch)

    def is_about(self, entry: EntryRecord) -> bool:
        """Return True if the next attempt of this step may have been made in the lost time."""
        return not self.is_over and not self._was_not_done(entry)

    def end_with(self, journal: Journal, entry: EntryRecord) -> None:
        """Let the doubt be over with this step, which has completed, if it was not done in the lost time."""
        if not self.is_over and self._was_not_done(entry):
            self.end(journal)

    def end_behind(self, journal: Journal, sleep: EntryRecord, deadline: datetime) -> None:
        """Let the doubt be over behind this sleep, if it had not ended in the lost time."""
        if not self.is_over and sleep.created_at < self.since < deadline:
            self.end(journal)

    def end_with_fork(self, journal: Journal, fork: EntryRecord) -> None:
        """Let the doubt be over behind this join or race, if it is over in a branch that it has waited for."""
        certain = [] if self.is_over else _certain(fork, self.since)
        winner = fork.data["winner"] if fork.kind == EntryKind.RACE else None
        if certain and (winner is None or winner in certain):
            self.end(journal)

    def end(self, journal: Journal) -> None:
        """Let the doubt be over from here on, and the next commit record that."""
        self.is_over = True
        fork = self._fork
        if fork is None:
            journal.add(DoubtOver())
            return
        with journal.lock:
            branches = [*_certain(fork, self.since), self._branch]
            journal.update(fork, data={**fork.data, _CERTAIN: {"of": self.since.isoformat(), "branches": branches}})

    def _was_not_done(self, entry: EntryRecord) -> bool:
        told = entry.data.get(NOT_DONE)
        return told is not None and datetime.fromisoformat(told) >= self.since


def _certain(fork: EntryRecord, since: datetime) -> list[str]:
    """Return the branches whose doubt is over, if it is that of this decision."""
    recorded: dict[str, Any] = fork.data.get(_CERTAIN) or {"of": "", "branches": []}
    return list(recorded["branches"]) if recorded["of"] == since.isoformat() else []


class Scope:
    """One scope during one pass."""

    __slots__ = (
        "awaited",
        "branch",
        "cursor",
        "determinism",
        "doubt",
        "environment",
        "guard",
        "has_checkpoint",
        "is_concurrent",
        "journal",
        "location",
        "receipts",
    )

    def __init__(self, journal: Journal, node: Node, parent: Scope | None = None, branch: Branch | None = None) -> None:
        self.journal = journal
        self.environment: Environment = journal.environment
        #: The scope's location; "" for the root.
        self.location: str = node.location
        #: What the code of an async scope has returned to be awaited; None for others.
        self.awaited: Any = None
        self.branch: Branch | None = branch or (parent.branch if parent else None)
        self.is_concurrent: bool = branch is not None or (parent is not None and parent.is_concurrent)
        self.has_checkpoint: bool = parent is not None and parent.has_checkpoint
        self.cursor: ReplayCursor = ReplayCursor(journal, node, parent.cursor if parent else None)
        self.guard: OperationGuard = OperationGuard(journal, node.location, self.branch)
        self.determinism: Determinism = Determinism(journal.run, node.location, parent.determinism if parent else None)
        self.receipts: Receipts = Receipts(parent.receipts if parent else None)
        #: Whether what comes next may have been done already; None for a run without doubt.
        self.doubt: Doubt | None = Doubt.of_run(journal) if parent is None else parent.doubt

    def create(self, node: Node, kind: EntryKind, **columns: Any) -> EntryRecord:
        """Create an entry of this scope at `node`, not marked yet."""
        segment = node.location.rpartition("/")[2]
        return self.journal.create(self.cursor.node, segment, node, kind, **columns)

    def finish(self, error: Exception | None = None) -> None:
        """End the scope, whose code has ended with `error`.

        Raises pending control flow, and an error for an operation under way or an entry not matched.
        """
        self.guard.finish()
        self.cursor.finish(error)

    def show(self, text: str, done: float | None, of: float | None, eta: datetime | None) -> None:
        """Set the status of the run, unless the history goes on behind this call: then an earlier pass has set it."""
        if not isinstance(text, str):
            raise TypeError(f"a status is text, not {text!r}: write str(...)")
        parts = checked_status(text, done, of, eta)
        if self.cursor.unvisited():
            recall(self.journal, text)
        else:
            show(self.journal, parts)

    def recorded(
        self, location: str, what: str, text: str | None, field: str = "output", where: str | None = None
    ) -> Any:
        """Decode the codec text recorded at `location` as `field`, or at `where` inside of it.

        Stops the run if this code cannot read it, whatever the project's codec raises.
        """
        try:
            return self.environment.decode(text, field, location if where is None else where)
        except Exception as error:
            self.journal.stop(unreadable(location, what, error))


#: A silent logger, for code that is being replayed. It has no name, because logging.config would enable a named one.
SILENT: Final = logging.Logger("silent")  # noqa: LOG001  # it is to have no place among the others
SILENT.disabled = True


class ReplayLogger(logging.LoggerAdapter[logging.Logger]):
    """`logger` for the code of one scope, silent during replay."""

    def __init__(self, logger: logging.Logger, scope: Scope) -> None:
        run = scope.journal.run
        super().__init__(logger, {"run_id": run.id, "workflow": run.workflow, "location": scope.location})
        self._cursor = scope.cursor

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # logging's name
        """Return False while the code has not reached all recorded entries."""
        return not self._cursor.unvisited() and super().isEnabledFor(level)
