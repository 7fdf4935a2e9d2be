"""Every error and every control-flow exception of the engine.

Errors derive from `DurableError` and may be caught by users. Control flow derives from `ControlFlow`, a
`BaseException`, so that an `except Exception` in a workflow cannot swallow a sleep or an eviction. This module formats
messages; it must not decide anything.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType

__all__ = [
    "CONTRACT_ERRORS",
    "STOPPED",
    "BranchCancelled",
    "BulkOrderError",
    "ControlFlow",
    "CriticalError",
    "DurableError",
    "EntryInProgressError",
    "EntryNotFoundError",
    "ErrorInfo",
    "Evicted",
    "HistoryDivergedError",
    "InvalidTransitionError",
    "JoinError",
    "LeaseLost",
    "MessageNotCompletedError",
    "MessageTimeoutError",
    "OpenTransactionError",
    "OutsideStepError",
    "Park",
    "PassAborted",
    "PayloadError",
    "RaceError",
    "ReplayRefusedError",
    "RollbackCheckpointError",
    "RollbackError",
    "RunCancelledError",
    "RunConflictError",
    "RunCrashedError",
    "RunFailedError",
    "RunNotFoundError",
    "StalePlanError",
    "StaleRunError",
    "StepExhaustedError",
    "StepTimeoutError",
    "UndiscoveredWorkflowError",
    "is_readable",
    "kind_of",
]


#: The text about a run that a mistake in its workflow's code has stopped.
STOPPED = "a mistake in the code: nothing was undone; fix the code, deploy, then recover"

MAX_MESSAGE = 10_000  # characters of an error's message that are kept
MAX_TRACEBACK = 50_000  # characters of its traceback that are kept

_HERE = Path(__file__).parent
_ENGINE = (str(_HERE) + os.sep, str(_HERE.parent / "drivers") + os.sep)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data, for a failure, a run and a history entry.

    `type` is the class's name, `message` its text, `traceback` the formatted frames or "".
    """

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        """Describe `error`; if its text cannot be read, describe that."""
        try:
            message = str(error)
        except UNREADABLE as broken:  # a user's __str__ may raise anything
            message = f"<the error's text could not be had: {kind_of(broken)}>"
        try:
            frames = "".join(traceback.format_exception(type(error), error, _user_frames(error.__traceback__)))
        except UNREADABLE as broken:
            frames = f"<the traceback could not be had: {kind_of(broken)}>"
        return cls(kind_of(error), _shortened(message, MAX_MESSAGE), _shortened(frames, MAX_TRACEBACK))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


#: What reading an exception of a user's class may raise.
UNREADABLE = (Exception, SystemExit, GeneratorExit)


def kind_of(error: BaseException) -> str:
    """Return the name of the error's class, without running code of that class."""
    name: str = type.__getattribute__(type(error), "__name__")
    return name


def is_readable(error: BaseException) -> bool:
    """Return True if this error, and those it came from, can be described."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    try:
        while left:
            found = left.pop()
            if found is None or id(found) in seen:
                continue
            seen.add(id(found))
            _ = (found.__class__, found.__traceback__, found.__suppress_context__, getattr(found, "__notes__", None))
            left += [found.__cause__, found.__context__]
    except UNREADABLE:
        return False
    return True


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from the first on that is not the engine's: the fault is nearly always in the user's code."""
    frame = frames
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_ENGINE):
        frame = frame.tb_next
    return frame or frames


def _shortened(text: str, limit: int) -> str:
    """Return `text` without its middle if it is longer than `limit`: both ends of a traceback say most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"


class DurableError(Exception):
    """The base class of all errors that users may catch."""


class CriticalError(DurableError):
    """Raised in a step: do not retry. Raised in a workflow: fail and compensate."""


class RollbackError(DurableError):
    """Raised in a step or a workflow: stop, do not retry, compensate. A try block catches it only if asked to."""


class StepExhaustedError(DurableError):
    """A step failed on its last attempt.

    `step` is its name, `last_error` the `ErrorInfo` of the last attempt.
    """

    def __init__(self, step: str, last_error: ErrorInfo) -> None:
        self.step = step
        self.last_error = last_error
        super().__init__(f'step "{step}" failed on its last attempt: {last_error}')


class StepTimeoutError(DurableError):
    """A step outlasted its timeout. `timeout` is in seconds."""

    def __init__(self, step: str, timeout: float) -> None:
        self.step = step
        self.timeout = timeout
        super().__init__(
            f'step "{step}" ran longer than its timeout of {timeout:g} s; give it a longer timeout=, '
            "retry_on_timeout=True, or less to do"
        )


class JoinError(DurableError):
    """At least one branch of a join failed; all have settled. `errors` maps branch to `ErrorInfo`."""

    def __init__(self, errors: Mapping[str, ErrorInfo]) -> None:
        self.errors = dict(errors)
        super().__init__(_branches("join failed", self.errors))


class RaceError(DurableError):
    """Every branch of a race failed. `errors` maps branch to `ErrorInfo`."""

    def __init__(self, errors: Mapping[str, ErrorInfo]) -> None:
        self.errors = dict(errors)
        super().__init__(_branches("all branches of the race failed", self.errors))


def _branches(what: str, errors: Mapping[str, ErrorInfo]) -> str:
    return f"{what}: " + "; ".join(f'branch "{name}": {error}' for name, error in errors.items())


class MessageTimeoutError(DurableError):
    """`queue.next` received nothing before its deadline."""

    def __init__(self, wait: str, names: Iterable[str]) -> None:
        self.wait = wait
        self.names = tuple(names)
        queues = ", ".join(self.names) or "any queue"
        super().__init__(
            f'wait "{wait}" received no message from {queues} before its deadline; '
            "use queue.next_batch where a message is optional"
        )


class MessageNotCompletedError(DurableError):
    """A scope has ended without completing a message that it had received with `completable=True`."""

    def __init__(self, wait: str, message_id: str) -> None:
        self.wait = wait
        self.message_id = message_id
        super().__init__(
            f'wait "{wait}" received message {message_id} with completable=True, and the scope it stands in has ended '
            "without completing it; call message.complete(...) before the end of the workflow, iteration, branch or block"
        )


class HistoryDivergedError(DurableError):
    """The code no longer fits the run's recorded history; nothing ran, and nothing is compensated.

    The message names the locations. Say in the code what has changed (`ctx.get_version`, `ctx.removed`), then recover
    the run.
    """


class EntryInProgressError(DurableError):
    """An operation was started while another one of the same scope runs: a missing `await`, or a context in two threads."""


class RollbackCheckpointError(DurableError):
    """A step has a rollback handler, or `operation` was called, but no `ctx.rollback_checkpoint()` comes before it."""

    def __init__(self, location: str, operation: str = "") -> None:
        self.location = location
        problem = (
            f"{operation} was called, but no rollback checkpoint comes before it, so that no step can be undone"
            if operation
            else f'step "{location}" has a rollback handler, but no rollback checkpoint comes before it in its scope or an '
            "enclosing one"
        )
        super().__init__(f"{problem}; call ctx.rollback_checkpoint(name) first")


class OpenTransactionError(DurableError):
    """A transaction was open around an operation, or left open by a step: it could take the record back."""

    def __init__(self, operation: str, problem: str = "", remedy: str = "") -> None:
        self.operation = operation
        problem = problem or (
            "was called inside transaction.atomic(): its record would be committed, or lost, with that transaction"
        )
        remedy = remedy or (
            "Call it outside, and put the transaction into the step: atomic=True makes the step's rows and its record one "
            "commit"
        )
        super().__init__(f"{operation} {problem}. {remedy}")

    @classmethod
    def left_open_by(cls, operation: str, databases: Iterable[str]) -> OpenTransactionError:
        """Return the error for `operation`, which left transactions open on `databases`; they have been rolled back."""
        where = " and ".join(f'"{each}"' for each in databases)
        return cls(
            operation,
            f"left a transaction open on the database {where}: it was rolled back",
            "End it in the same function: write `with transaction.atomic():`, and leave autocommit on",
        )


class OutsideStepError(DurableError):
    """Workflow code did something between its steps that belongs into a step: it would be repeated on each replay."""

    def __init__(self, action: str, remedy: str) -> None:
        self.action = action
        self.remedy = remedy
        super().__init__(f"{action} between the steps of a workflow would happen again on each replay: {remedy}")


class PayloadError(DurableError):
    """A value that the codec refuses, one over the size limit, or a record that it cannot read any more.

    `what` says which value (a step's output, a message's body), `path` where in it, `problem` what is wrong, `advice`
    what to do about it, and `action` what was tried: to "record" it or to "read" it.
    """

    def __init__(self, what: str, path: str, problem: str, advice: str, action: str = "record") -> None:
        self.what = what
        self.path = path
        self.problem = problem
        self.advice = advice
        self.action = action
        super().__init__(f"cannot {action} {what} at {path}: {problem}; {advice}")


class RunNotFoundError(DurableError):
    """No run has this id, or the run with this id is not one of the requested workflow."""

    def __init__(self, run_id: str, *, wanted: str = "", found: str = "") -> None:
        self.run_id = run_id
        if wanted:
            super().__init__(f'run "{run_id[:200]}" is a run of "{found}", not of "{wanted}"; check the id')
            return
        super().__init__(
            f'there is no run "{run_id[:200]}"; check the id, that the transaction of its start has committed, and that it was '
            "not pruned"
        )


class UndiscoveredWorkflowError(DurableError):
    """A start was refused: workers would not find the workflow, because no installed app imports it."""

    def __init__(self, workflow: str, place: str, module: str) -> None:
        self.workflow = workflow
        super().__init__(
            f'no worker would find the workflow "{workflow}", {place}, so it is not started: workers import the modules named '
            f"workflows.py of the installed apps, and what those import. Move the function into one of them, or import {module} "
            "there or in AppConfig.ready()"
        )


class RunConflictError(DurableError):
    """The id is taken by a run of another workflow or input, or `on_conflict="error"` was asked for."""

    def __init__(self, run_id: str, problem: str) -> None:
        self.run_id = run_id
        self.problem = problem
        super().__init__(f'run "{run_id}" exists already {problem}; choose another id')


class MessageConflictError(DurableError):
    """The run was sent a message with this id before, to another queue or with another body."""

    def __init__(self, run_id: str, message_id: str, problem: str) -> None:
        self.run_id = run_id
        self.message_id = message_id
        self.problem = problem
        super().__init__(
            f'run "{run_id}" was sent a message with the id "{message_id}" before, {problem}; give this message another id'
        )


class InvalidTransitionError(DurableError):
    """The verb is not allowed in the run's state. `allowed` lists the states in which it is; `run_id` is the run's, or
    "".

    `problem` is the reason, if it is not the state alone.
    """

    def __init__(
        self, state: str, allowed: Iterable[str], action: str = "this", run_id: str = "", *, problem: str = ""
    ) -> None:
        self.state = str(state)
        self.allowed = tuple(str(each) for each in allowed)
        self.action = action
        self.run_id = run_id
        if problem:
            super().__init__(problem)
            return
        message = f"cannot {action} a run that is {self.state}; allowed when it is {', '.join(self.allowed)}"
        if run_id:
            message += (
                f'. Run "{run_id}" {_WAYS_OUT.get(self.state, f"is {self.state} now: look again, and decide anew")}'
            )
        super().__init__(message)


_WAYS_OUT: Mapping[str, str] = {
    "completed": "has ended: restart() begins a new one with its input",
    "failed": "has ended: recover() lets it go on, restart() begins a new one with its input",
    "cancelled": "has ended: restart() begins a new one with its input",
    "paused": "stands still: resume() it first",
    "rolling_back": "is being compensated: wait until it has failed",
}


class StaleRunError(InvalidTransitionError):
    """The run has changed since the operator saw it: nothing was done. `state` is its current state."""

    def __init__(self, run_id: str, state: str, action: str) -> None:
        DurableError.__init__(
            self,
            f'cannot {action} run "{run_id}" as you saw it: it has moved on since, and is {state} now; look at it again, '
            "and decide anew",
        )
        self.run_id = run_id
        self.state = str(state)
        self.allowed = ()
        self.action = action


class BulkOrderError(DurableError):
    """A run that carries out an operator's order was started without that order."""

    def __init__(self, action: str, workflow: str) -> None:
        self.action = action
        self.workflow = workflow
        super().__init__(
            f"cannot {action} a run of {workflow}: it acts with the permissions, and in the name, of whoever ordered it; "
            "order it anew with durable.operations.bulk.apply"
        )


class EntryNotFoundError(DurableError):
    """The run's history has nothing at this location. `nearest` are recorded locations like it."""

    def __init__(self, run_id: str, location: str, nearest: Iterable[str] = ()) -> None:
        self.run_id = run_id
        self.location = location
        self.nearest = tuple(nearest)
        hint = f"; is it {' or '.join(self.nearest)}?" if self.nearest else "; look at handle.history()"
        super().__init__(f'run "{run_id}" has recorded nothing at "{location[:200]}"{hint}')


class ReplayRefusedError(DurableError):
    """The run cannot be replayed from there, not now or not in this way. `refusals` say why, and what to do."""

    def __init__(self, run_id: str, location: str, refusals: Iterable[str]) -> None:
        self.run_id = run_id
        self.location = location
        self.refusals = tuple(refusals)
        super().__init__(f'cannot replay run "{run_id}" from "{location}": {"; ".join(self.refusals)}')


class StalePlanError(DurableError):
    """The run's history has changed since the replay was planned: nothing was changed."""

    def __init__(self, run_id: str, location: str) -> None:
        self.run_id = run_id
        self.location = location
        super().__init__(
            f'the history of run "{run_id}" has changed since the replay from "{location}" was planned; plan it again, '
            "and look at what it would do now"
        )


class RunFailedError(DurableError):
    """The run whose result was requested has failed. `error` is its `ErrorInfo`.

    With `is_mistake`, a mistake in the workflow's code has stopped it: nothing was undone, and it can continue once the
    mistake is fixed.
    """

    def __init__(self, run_id: str, error: ErrorInfo, *, is_mistake: bool = False) -> None:
        self.run_id = run_id
        self.error = error
        self.is_mistake = is_mistake
        super().__init__(
            f'run "{run_id}" ' + (f"was stopped: {error}: {STOPPED}" if is_mistake else f"failed: {error}")
        )


class RunCancelledError(DurableError):
    """The run whose result was requested was cancelled. `reason` is the given one, or ""."""

    def __init__(self, run_id: str, reason: str = "") -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(f'run "{run_id}" was cancelled' + (f": {reason}" if reason else ""))


class RunCrashedError(DurableError):
    """The run killed its worker `MAX_CRASHES` times in a row without progress."""

    def __init__(self, crashes: int) -> None:
        self.crashes = crashes
        super().__init__(
            f"the worker died {crashes} times in a row while passing this run, without progress and outside a step; "
            "look for what exhausts memory or exits in the workflow's own code, mend it and recover the run"
        )


#: Errors against the program's contract with the engine: a run stopped by one is not compensated.
CONTRACT_ERRORS = (
    MessageNotCompletedError,
    HistoryDivergedError,
    EntryInProgressError,
    RollbackCheckpointError,
    PayloadError,
    OpenTransactionError,
    OutsideStepError,
)


class ControlFlow(BaseException):
    """The base class of the control flow that ends a pass or a branch without ending the run."""


class Park(ControlFlow):
    """Nothing more can be done now: wait for `deadline`, for a message, or for either.

    `names` is None (no message wanted), empty (a message of any queue) or the queues' names. `doing` says in words what
    the run is doing meanwhile, for lists.
    """

    def __init__(self, deadline: datetime | None, names: frozenset[str] | None = None, doing: str = "") -> None:
        self.deadline = deadline
        self.names = names
        self.doing = doing
        super().__init__()

    def merged(self, other: Park) -> Park:
        """Return the common wait of two branches: the earlier deadline, the messages of either."""
        deadlines = [each for each in (self.deadline, other.deadline) if each is not None]
        doing = "; ".join(filter(None, (self.doing, other.doing)))
        return Park(min(deadlines, default=None), _merged_names(self.names, other.names), doing)


def _merged_names(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other if one and other else frozenset()


class Evicted(ControlFlow):
    """The pass has to end: the worker stops, or an operator asked for a pause or a cancel (`request`)."""

    def __init__(self, request: str = "") -> None:
        self.request = request
        super().__init__(request)


class BranchCancelled(ControlFlow):
    """This branch lost its race."""


class LeaseLost(ControlFlow):
    """The run has a newer fence: another worker has claimed it. Nothing was written."""


class PassAborted(ControlFlow):
    """The store could not say whether a commit happened; the next pass reads the truth."""
