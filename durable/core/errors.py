"""The errors of durable, and `ErrorInfo`: an error as data. `durable.errors` draws the tree.

This module formats messages; it decides nothing. What ends a pass without ending the run is in
`durable.core.control_flow`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from durable.core.words import Sentence, gettext_noop, kind_of, message_of, traceback_of

if TYPE_CHECKING:
    from durable.core.body_types import Fault
    from durable.core.divergences import Divergence

#: The text about a run that a mistake in its workflow's code has stopped.
STOPPED = gettext_noop("a mistake in the code: nothing was undone because of it; fix the code, deploy, then recover")

#: How the token of a link begins, so that it can be found in any text.
TOKEN_PREFIX: Final = "dlk_"  # noqa: S105  # it is not a token
#: The token of a link: the prefix and 256 bits.
TOKEN: Final = re.compile(TOKEN_PREFIX + r"[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
#: Stands for a token where it must not be read.
CUT_TOKEN: Final = f"{TOKEN_PREFIX}..."


def cut_tokens(text: str) -> str:
    """Return a text without the tokens of links."""
    return TOKEN.sub(CUT_TOKEN, text) if TOKEN_PREFIX in text else text


@dataclass(frozen=True, slots=True)
class Origin:
    """The failed operation that made a run fail, without the errors raised around it.

    `location` is the operation's. If the code of a branch failed outside any operation, it is the join's or race's, and
    `place` names the branch too. `message` is shortened.
    """

    location: str
    place: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data, for a failure, a run and a history entry.

    `type` is the class's name, `message` its text, `traceback` the formatted frames or "". `origin` is set on a run's
    error if an operation made the run fail.
    """

    type: str
    message: str
    traceback: str = ""
    origin: Origin | None = None

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        """Describe `error`, without the tokens of links. If its text cannot be read, describe that instead."""
        return cls(kind_of(error), cut_tokens(message_of(error)), cut_tokens(traceback_of(error)))

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> ErrorInfo:
        """Build an ErrorInfo from its `data`. Raises TypeError for anything else."""
        origin = data.get("origin")
        return cls(**{**data, "origin": None if origin is None else Origin(**origin)})

    @property
    def data(self) -> dict[str, Any]:
        """The error as JSON data, its type and its message first."""
        found: dict[str, Any] = {"type": self.type, "message": self.message, "traceback": self.traceback}
        return found if self.origin is None else {**found, "origin": asdict(self.origin)}

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class DurableError(Exception):
    """The base class of all errors that users may catch."""


# -- raised in workflow code


class WorkflowError(DurableError):
    """An operation of a workflow has failed, or the code ends the run on purpose.

    If it leaves the workflow, the run fails and its steps are compensated.
    """


class CriticalError(WorkflowError):
    """Raised in a step: do not retry. Raised in a workflow: fail and compensate."""


class DeadlockError(CriticalError):
    """A run would wait forever for a slot of a limit: it keeps the slot itself, or a run that waits for it does.

    The message says who holds what, and who waits for whom.
    """


class RollbackError(WorkflowError):
    """Raised in a step or a workflow: stop, do not retry, compensate. A try block catches it only if `catch` names
    it.
    """


class StepExhaustedError(WorkflowError):
    """A step failed on its last attempt.

    `step` is its name, `last_error` the `ErrorInfo` of the last attempt.
    """

    def __init__(self, step: str, last_error: ErrorInfo) -> None:
        self.step = step
        self.last_error = last_error
        super().__init__(f'step "{step}" failed on its last attempt: {last_error}')


class StepTimeoutError(WorkflowError):
    """A step outlasted its timeout. `timeout` is in seconds."""

    def __init__(self, step: str, timeout: float) -> None:
        self.step = step
        self.timeout = timeout
        super().__init__(
            f'step "{step}" ran longer than its timeout of {timeout:g} s; give it a longer timeout=, '
            "retry_on_timeout=True, or less to do"
        )


class HeartbeatTimeoutError(StepTimeoutError):
    """An attempt of a step gave no sign for longer than its heartbeat. `timeout` is the heartbeat, in seconds.

    It is retried by the step's policy, also without `retry_on_timeout`.
    """

    def __init__(self, step: str, timeout: float) -> None:
        super().__init__(step, timeout)
        text = (
            f'step "{step}" gave no sign for its heartbeat of {timeout:g} s; call current_step().save(...) more often, or '
            "give it a longer heartbeat="
        )
        self.args = (text,)


class AttemptAbandonedError(WorkflowError):
    """An operator has abandoned an attempt of a step while it ran. The step's own policy decides about the next one."""

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(f'an operator abandoned the attempt of step "{step}" while it ran')


class JoinError(WorkflowError):
    """At least one branch of a join failed; all have settled. `errors` maps branch to `ErrorInfo`."""

    def __init__(self, errors: Mapping[str, ErrorInfo]) -> None:
        self.errors = dict(errors)
        super().__init__(_branches("join failed", self.errors))


class RaceError(WorkflowError):
    """Every branch of a race failed. `errors` maps branch to `ErrorInfo`."""

    def __init__(self, errors: Mapping[str, ErrorInfo]) -> None:
        self.errors = dict(errors)
        super().__init__(_branches("all branches of the race failed", self.errors))


def _branches(what: str, errors: Mapping[str, ErrorInfo]) -> str:
    return f"{what}: " + "; ".join(f'branch "{name}": {error}' for name, error in errors.items())


class MessageTimeoutError(WorkflowError):
    """`queue.next` received nothing before its deadline."""

    def __init__(self, wait: str, names: Iterable[str]) -> None:
        self.wait = wait
        self.names = tuple(names)
        queues = ", ".join(self.names) or "any queue"
        super().__init__(
            f'wait "{wait}" received no message from {queues} before its deadline; '
            "use queue.next_batch where a message is optional"
        )


class MessageBodyError(WorkflowError):
    """A received message has a body that is not of the type which the code asked for.

    `queue` is the queue, `message_id` the message's id. `faults` say where and what is wrong: each has `at`, the place
    in the body ("items/0/sku", "" for the body itself), and `problem`. `field` is the place of the first.

    The message counts as received, and the next receive gets the one behind it: a message that stayed in the inbox
    would be found again by each receive, and no code of the workflow could get past it. It is not lost either: it stays
    among the run's messages, with its body. Nor is it skipped in silence, as it may be the only answer that the
    workflow waits for. The error is recorded with the wait, so that each pass raises it again, whatever the type has
    become. A message that was received with `completable=True` is refused: its sender gets MessageRefusedError.

    A run that fails because of it can be recovered once the code is changed: then the wait receives the same message
    again.
    """

    def __init__(self, queue: str, message_id: str, faults: Iterable[Fault]) -> None:
        self.queue = queue
        self.message_id = message_id
        self.faults = tuple(faults)
        self.field = self.faults[0].at
        super().__init__(
            f'message {message_id} to "{queue}" has a body of another type: {"; ".join(map(str, self.faults))}; the message '
            "counts as received. Catch MessageBodyError to wait for another one"
        )


class LinkTimeoutError(WorkflowError):
    """A wait for the answer of a link reached its deadline. `wait` is the name of the wait, `link` that of the link.

    If the link has expired too, its address answers 410 from now on, so that no later answer is lost unseen.
    """

    def __init__(self, wait: str, link: str) -> None:
        self.wait = wait
        self.link = link
        super().__init__(
            f'wait "{wait}" got no answer of link "{link}" before its deadline; catch LinkTimeoutError where an answer '
            "is optional"
        )


class EventTimeoutError(WorkflowError):
    """A wait for an event reached its deadline. `wait` is the name of the wait, `event` and `key` are of the event."""

    def __init__(self, wait: str, event: str, key: str) -> None:
        self.wait = wait
        self.event = event
        self.key = key
        super().__init__(
            f'wait "{wait}" got no event "{event}" with the key "{key}" before its deadline; catch EventTimeoutError where '
            "the event is optional"
        )


class PersonTimeoutError(WorkflowError):
    """Nobody has answered a question in time. `question` is its name.

    No answer is accepted from then on, so that no later one is lost unseen.
    """

    def __init__(self, question: str) -> None:
        self.question = question
        super().__init__(
            f'nobody has answered "{question}" before its deadline; catch PersonTimeoutError where the run can go on '
            "without an answer"
        )


class ChildFailedError(WorkflowError):
    """A child has failed. `child_id` is its id, `workflow` the name of its workflow, `error` its `ErrorInfo`."""

    def __init__(self, child_id: str, workflow: str, error: ErrorInfo) -> None:
        self.child_id = child_id
        self.workflow = workflow
        self.error = error
        super().__init__(f'child "{child_id}" of {workflow} failed: {error}')


class ChildCancelledError(WorkflowError):
    """A child was cancelled, or its run was deleted. `reason` is the given one, or ""."""

    def __init__(self, child_id: str, workflow: str, reason: str = "") -> None:
        self.child_id = child_id
        self.workflow = workflow
        self.reason = reason
        super().__init__(f'child "{child_id}" of {workflow} was cancelled{f": {reason}" if reason else ""}')


class MapError(WorkflowError):
    """Children of a map have failed or were cancelled, and `on_failure="stop"` has ended the others.

    `name` is that of the map, `workflow` the children's. Of `size` children, `failed` have failed, and `cancelled` were
    cancelled or have not run. `first` lists the first few failed children, in the order of the inputs: id and
    `ErrorInfo`.
    """

    def __init__(
        self,
        name: str,
        workflow: str,
        size: int,
        failed: int,
        cancelled: int,
        first: Sequence[tuple[str, ErrorInfo]] = (),
    ) -> None:
        self.name = name
        self.workflow = workflow
        self.size = size
        self.failed = failed
        self.cancelled = cancelled
        self.first = tuple(first)
        shown = "; ".join(f'"{child_id}" failed: {error}' for child_id, error in self.first)
        more = f"; and {failed - len(self.first)} more" if failed > len(self.first) else ""
        super().__init__(
            f'{failed} of the {size} children of the map "{name}" of {workflow} failed, and {cancelled} were cancelled'
            f"{f': {shown}{more}' if shown else ''}"
        )


class ChildTimeoutError(WorkflowError):
    """A wait for a child's result reached its deadline. The child continues. `wait` is the name of the wait."""

    def __init__(self, wait: str, child_id: str) -> None:
        self.wait = wait
        self.child_id = child_id
        super().__init__(
            f'wait "{wait}" reached its deadline before child "{child_id}" had ended; the child goes on: wait for it again '
            "under another name, or cancel it in a step"
        )


# -- raised where code breaks a rule of durable


class ContractError(DurableError):
    """Code has broken a rule of durable. The run stops, and nothing is compensated: fix the code, then recover the run.

    Blocks and branches do not catch it. A verb raises it too, for a value that cannot be recorded (`PayloadError`).
    """


class HistoryDivergedError(ContractError):
    """The code no longer fits the run's recorded history; nothing ran, and nothing is compensated.

    The message names the locations. Say in the code what has changed (`ctx.get_version`, `ctx.removed`), then recover
    the run. `locations` are those of the records that do not fit, and `divergence` says where code and history part;
    None for records that cannot be read.
    """

    locations: tuple[str, ...] = ()
    divergence: Divergence | None = None


class LinkAddressError(ContractError):
    """Links have no address here: the project says neither under which host it is reached nor where its URLs are."""


class EntryInProgressError(ContractError):
    """An operation was started while another one of its scope runs: a missing `await`, or a context in two threads."""


class RollbackCheckpointError(ContractError):
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


class OpenTransactionError(ContractError):
    """An operation found an open transaction, or a step left one open: a rollback of it could lose the record."""

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


class OutsideStepError(ContractError):
    """Workflow code did something outside of a step that belongs in a step: each replay would repeat it."""

    def __init__(self, action: str, remedy: str) -> None:
        self.action = action
        self.remedy = remedy
        super().__init__(f"{action} between the steps of a workflow would happen again on each replay: {remedy}")


class InputChangedError(ContractError):
    """A pass has changed the value of an argument of its workflow. `argument` is the argument's name."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        super().__init__(
            f'the input "{argument}" was changed during the pass: the next pass gets it as it was recorded, without the '
            "change; make a copy first, or keep the new value in a variable of its own (W123 of the rules)"
        )


class PayloadError(ContractError):
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


class MessageNotCompletedError(ContractError):
    """A scope has ended without completing a message that it had received with `completable=True`."""

    def __init__(self, wait: str, message_id: str) -> None:
        self.wait = wait
        self.message_id = message_id
        super().__init__(
            f'wait "{wait}" received message {message_id} with completable=True, and its scope has ended without '
            "completing it; call message.complete(...) or message.refuse(...) before the end of the workflow, iteration, "
            "branch or block"
        )


# -- raised by verbs


class OperationError(DurableError):
    """A verb (start, send, cancel, recover, replay, ...) was refused. It has changed nothing."""


class HoldError(OperationError):
    """The queue is paused already or not at all, or the workflow is held already or not at all."""


class RestoredDatabaseError(OperationError):
    """The database has not gone back in time, or the decision about it cannot be made now. The message says why."""


class ScheduleError(OperationError):
    """A schedule is not in the state that the verb expects, or belongs to the code. The message names the schedule."""


class StaleScheduleError(ScheduleError):
    """The schedule has changed since the actor looked at it."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f'the schedule "{name}" has changed since this page was made; look at it again')


class ScheduleNotFoundError(ScheduleError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f'no schedule has the name "{name[:200]}"; `durable schedules` lists them')


class RunNotFoundError(OperationError):
    """No run has this id, or the run with this id is not one of the requested workflow.

    `tick` says why the tick of a schedule, whose run would have this id, has started none.
    """

    def __init__(self, run_id: str, *, wanted: str = "", found: str = "", tick: str = "") -> None:
        self.run_id = run_id
        if tick:
            text = gettext_noop(
                'there is no run "{run}", because its schedule has started none for that moment: {tick}'
            )
            super().__init__(Sentence(text, run=run_id[:200], tick=tick))
            return
        if wanted:
            text = gettext_noop('run "{run}" is a run of "{found}", not of "{wanted}"; check the id')
            super().__init__(Sentence(text, run=run_id[:200], found=found, wanted=wanted))
            return
        super().__init__(
            Sentence(
                gettext_noop(
                    'there is no run "{run}"; check the id, that the transaction of its start has committed, and that it was '
                    "not pruned"
                ),
                run=run_id[:200],
            )
        )


class EntryNotFoundError(OperationError):
    """The run's history has nothing at this location. `nearest` are recorded locations like it."""

    def __init__(self, run_id: str, location: str, nearest: Iterable[str] = ()) -> None:
        self.run_id = run_id
        self.location = location
        self.nearest = tuple(nearest)
        told = {"run": run_id, "place": location[:200], "nearest": " or ".join(self.nearest)}
        if self.nearest:
            text = gettext_noop('run "{run}" has recorded nothing at "{place}"; is it {nearest}?')
        else:
            text = gettext_noop('run "{run}" has recorded nothing at "{place}"; look at handle.history()')
        super().__init__(Sentence(text, **told))


class NotAllowedError(OperationError):
    """This person may not answer the question, or not hand it over. `who` is the person, `why` says why not."""

    def __init__(self, who: str, question: str, why: str) -> None:
        self.who = who
        self.question = question
        self.why = why
        text = gettext_noop('{who} may not answer "{question}": {why}')
        super().__init__(Sentence(text, who=who[:200], question=question[:200], why=_told(why)))


class FormInvalidError(OperationError):
    """The form of the question refuses the answer. `errors` are lists of texts by field, "__all__" for the whole form.

    The question is as it was: it can be answered again.
    """

    def __init__(self, question: str, errors: Mapping[str, Sequence[str]]) -> None:
        self.question = question
        self.errors = {field: list(texts) for field, texts in errors.items()}
        told = "; ".join(f"{field}: {' '.join(texts)}" for field, texts in self.errors.items())
        text = gettext_noop('the answer to "{question}" does not fit its form: {errors}')
        super().__init__(Sentence(text, question=question[:200], errors=told[:1_000]))


class QuestionClosedError(OperationError):
    """The question is not open any more: it was answered, its time is over, or the run has gone on without it."""

    def __init__(self, question: str, why: str) -> None:
        self.question = question
        self.why = why
        super().__init__(
            Sentence(gettext_noop('"{question}" is not open: {why}'), question=question[:200], why=_told(why))
        )


def _told(why: str) -> Sentence:
    return why if isinstance(why, Sentence) else Sentence(why)


class RunConflictError(OperationError):
    """The id is taken by a run of another workflow or input, or `on_conflict="error"` was asked for."""

    def __init__(self, run_id: str, problem: str) -> None:
        self.run_id = run_id
        self.problem = problem
        text = gettext_noop('run "{run}" exists already {problem}; choose another id')
        super().__init__(Sentence(text, run=run_id, problem=problem))


class KeyConflictError(RunConflictError):
    """An open run of the workflow has the key. `run_id` is that run."""

    def __init__(self, run_id: str, key: str, *, is_child: bool = False, chain: Sequence[str] = ()) -> None:
        """Write the message. With `is_child`, an open run refused the start of a child. `chain` leads from that run
        down to the child's parent, if the run is one of its ancestors.
        """
        self.key = key
        self.chain = tuple(chain)
        if chain:
            text = gettext_noop(
                'run "{run}" has the key "{key}" until it ends, and this child is one of its descendants ({chain}): give the '
                "child another key"
            )
        elif is_child:
            text = gettext_noop(
                'run "{run}" is open and has the key "{key}": start the child when that run has ended, or with '
                'using(if_open="replace"), which cancels it'
            )
        else:
            text = gettext_noop(
                'run "{run}" is open and has the key "{key}": wait for its end, or cancel it; a start may also say '
                'if_open="return" or "replace"'
            )
        self.run_id = run_id
        self.problem = f'and has the key "{key}"'
        OperationError.__init__(self, Sentence(text, run=run_id, key=key, chain=" > ".join(self.chain)))


class MessageConflictError(OperationError):
    """The run was sent a message with this id before, to another queue or with another body."""

    def __init__(self, run_id: str, message_id: str, problem: str) -> None:
        self.run_id = run_id
        self.message_id = message_id
        self.problem = problem
        super().__init__(
            f'run "{run_id}" was sent a message with the id "{message_id}" before, {problem}; give this message another id'
        )


class EventConflictError(OperationError):
    """An event of this name was published with this id before, with another key or body. Nothing was published."""

    def __init__(self, event: str, event_id: str, problem: str) -> None:
        self.event = event
        self.event_id = event_id
        self.problem = problem
        super().__init__(
            f'an event "{event}" was published with the id "{event_id}" before, {problem}; give this event another id'
        )


class MessageNotAcceptedError(OperationError):
    """The workflow declares its messages, and this is not one of them: nothing was stored.

    `workflow` and `queue` are the message's target. If `queue` is not declared, `nearest` are similar declared names.
    If the body is not of the declared type, `faults` say where and what is wrong, as in `MessageBodyError`.
    """

    def __init__(
        self,
        workflow: str,
        queue: str,
        *,
        faults: Iterable[Fault] = (),
        declared: Iterable[str] = (),
        nearest: Iterable[str] = (),
    ) -> None:
        self.workflow = workflow
        self.queue = queue
        self.faults = tuple(faults)
        self.declared = tuple(declared)
        self.nearest = tuple(nearest)
        told = {"workflow": workflow, "queue": queue[:200], "faults": "; ".join(map(str, self.faults))}
        if self.faults:
            text = gettext_noop('the workflow {workflow} accepts no such body of a message to "{queue}": {faults}')
        elif self.nearest:
            told["nearest"] = " or ".join(f'"{each}"' for each in self.nearest)
            text = gettext_noop('the workflow {workflow} accepts no message "{queue}"; did you mean {nearest}?')
        else:
            told["declared"] = ", ".join(f'"{each}"' for each in self.declared) or "none"
            text = gettext_noop('the workflow {workflow} accepts no message "{queue}"; it declares {declared}')
        super().__init__(Sentence(text, **told))


class MessageNotPendingError(OperationError):
    """The run has no pending message with this id in its inbox."""

    def __init__(self, run_id: str, message_id: str, *, is_received: bool) -> None:
        self.run_id = run_id
        self.message_id = message_id
        self.is_received = is_received
        text = (
            gettext_noop('run "{run}" has received the message "{message}" already: it is a part of its history')
            if is_received
            else gettext_noop('run "{run}" has no message "{message}"; the page of the run lists its messages')
        )
        super().__init__(Sentence(text, run=run_id, message=message_id[:200]))


class InvalidTransitionError(OperationError):
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
        self.problem = problem
        if problem:
            super().__init__(problem)
            return
        message = f"cannot {action} a run that is {self.state}; allowed when it is {', '.join(self.allowed)}"
        if run_id:
            message += f'. Run "{run_id}" {_WAYS_OUT.get(self.state, f"is {self.state} now: look at it again before you decide")}'
        super().__init__(message)


_WAYS_OUT: Mapping[str, str] = {
    "completed": "has ended: restart() begins a new one with its input",
    "failed": "has ended: recover() lets it go on, restart() begins a new one with its input",
    "cancelled": "has ended: restart() begins a new one with its input",
    "paused": "is paused: resume() it first",
    "rolling_back": "is being compensated: wait until it has failed",
}


class EndRefusedError(OperationError):
    """The function that the workflow calls in the commit of an end (`on_end`) has failed: the run has not ended.

    `function` is its name, `error` what it has raised. Nothing of the commit was written.
    """

    def __init__(self, run_id: str, workflow: str, function: str, error: Exception) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.function = function
        self.error = error
        text = gettext_noop(
            'run "{run}" of {workflow} has not ended: {function}, the on_end of its workflow, failed in the commit of the '
            "end ({error}), and nothing of that commit was written. Fix the function and deploy it. A worker tries its own "
            "ends again; call a verb again yourself"
        )
        # the text of an error of the project's may quote its data, and this one is shown and logged as it is
        found = str(error) if isinstance(error, DurableError) else type(error).__name__
        super().__init__(Sentence(text, run=run_id, workflow=workflow, function=function, error=found))


class EndFunctionError(DurableError):
    """The function of `on_end` did what it may not do in the commit of an end; the error says what."""


class StaleRunError(InvalidTransitionError):
    """The run has changed since the operator looked at it: nothing was done. `state` is its current state."""

    def __init__(self, run_id: str, state: str, action: str) -> None:
        OperationError.__init__(
            self,
            f'cannot {action} run "{run_id}" as you saw it: it has changed since, and is {state} now; look at it again '
            "before you decide",
        )
        self.run_id = run_id
        self.state = str(state)
        self.allowed = ()
        self.action = action
        self.problem = ""


class ReplayRefusedError(OperationError):
    """The run cannot be replayed from this location, now or in this way. `refusals` say why, and what to do."""

    def __init__(self, run_id: str, location: str, refusals: Iterable[str]) -> None:
        self.run_id = run_id
        self.location = location
        self.refusals = tuple(refusals)
        super().__init__(f'cannot replay run "{run_id}" from "{location}": {"; ".join(self.refusals)}')


class StalePlanError(OperationError):
    """The run's history has changed since the replay was planned: nothing was changed."""

    def __init__(self, run_id: str, location: str) -> None:
        self.run_id = run_id
        self.location = location
        super().__init__(
            Sentence(
                gettext_noop(
                    'the history of run "{run}" has changed since the replay from "{place}" was planned; plan it again, and '
                    "look at what it would do now"
                ),
                run=run_id,
                place=location,
            )
        )


class UndiscoveredWorkflowError(OperationError):
    """A start was refused: workers would not find the workflow, because no installed app imports it."""

    def __init__(self, workflow: str, place: str, module: str) -> None:
        self.workflow = workflow
        super().__init__(
            f'no worker would find the workflow "{workflow}", {place}, so it is not started: workers import the modules named '
            f"workflows.py of the installed apps, and what those import. Move the function into one of them, or import {module} "
            "there or in AppConfig.ready()"
        )


class UnknownLimitError(OperationError):
    """A step or start wants a slot or units of a limit that is not defined, or has no number of slots or no rate.

    `known` are the limits that the worker's code and settings define.
    """

    def __init__(self, name: str, *, is_rate: bool = False, known: Sequence[str] = ()) -> None:
        self.name, self.is_rate = name, is_rate
        option, example = ("rate", '"500/min"') if is_rate else ("at_once", "4")
        what = f'limit "{name}" with a rate' if is_rate else f'limit "{name}"'
        known_here = f"; those defined are {', '.join(known)}" if known else ""
        super().__init__(
            f'there is no {what}: define it in DURABLE["LIMITS"] ({{"{name}": {{"{option}": {example}}}}}), or with {option}= '
            f"where a workflow names it{known_here}"
        )


class RateUnitsError(OperationError):
    """An attempt wants so many units of a rate that it would take more than a year."""

    def __init__(self, label: str, units: int, rate: str) -> None:
        self.label, self.units = label, units
        super().__init__(
            f'{units:,} units of "{label}" take more than a year at {rate}: ask for fewer with units=, or raise the rate of the '
            "limit"
        )


class CarrierError(OperationError):
    """A carrier of `DURABLE["CARRY"]` cannot be used, or has failed: nothing was started, or the run's pass waits.

    `name` is the carrier's.
    """

    def __init__(self, name: str, problem: str) -> None:
        self.name, self.problem = name, problem
        super().__init__(f'the carrier "{name}" of DURABLE["CARRY"] {problem}')


class StartRefusedError(OperationError):
    """A start with `when_full="drop"` found no room in the rate, and has started nothing.

    `retry_at` is when there is room. `run_id` is the id that the run would have had.
    """

    def __init__(self, workflow: str, run_id: str, limit: str, key: str, *, retry_at: datetime) -> None:
        self.workflow, self.run_id = workflow, run_id
        self.limit, self.key, self.retry_at = limit, key, retry_at
        label = f"{limit}/{key}" if key else limit
        text = gettext_noop(
            'no run of "{workflow}" was started: the rate of the limit "{label}" has no room before {when}; start it again then'
        )
        when = f"{retry_at:%Y-%m-%d %H:%M:%S} UTC"
        super().__init__(Sentence(text, workflow=workflow, label=label, when=when))


class StaleLimitError(OperationError):
    """The limit has changed since the actor looked at it; nothing was changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = gettext_noop('the limit "{name}" has changed since this page was made; look at it again')
        super().__init__(Sentence(text, name=name))


class BulkCountError(OperationError):
    """A bulk would act on another number of runs than expected; nothing was done."""

    def __init__(self, action: str, expected: int, found: str) -> None:
        self.action = action
        self.expected = expected
        super().__init__(
            Sentence(
                gettext_noop(
                    "{action} was expected to act on {expected} runs, and {found} allow it now: look at the selection again, "
                    "then give the new number"
                ),
                action=action,
                expected=f"{expected:,}",
                found=found,
            )
        )


class BulkNotStoppedError(OperationError):
    """A decision was given for a run that is not a bulk stopped by its canary; nothing was done."""

    def __init__(self, run_id: str, found: str) -> None:
        self.run_id = run_id
        super().__init__(
            f'run "{run_id}" is not a bulk that its canary has stopped: it is {found}. Pause, resume or cancel it like any '
            "other run"
        )


class BulkOrderError(OperationError):
    """A run that carries out an operator's order was started without that order."""

    def __init__(self, action: str, workflow: str) -> None:
        self.action = action
        self.workflow = workflow
        super().__init__(
            f"cannot {action} a run of {workflow}: it acts with the permissions, and in the name, of the user who ordered it; "
            "give a new order with durable.operations.bulk.apply"
        )


# -- the answer of a run


class MessageRefusedError(DurableError):
    """The run has refused the message (`message.refuse(reason)`). `reason` is the workflow's; `run_id` may be "".

    The answer is recorded: an `ask` with the same id of the message is refused again.
    """

    def __init__(self, reason: str, run_id: str = "") -> None:
        self.reason = reason
        self.run_id = run_id
        super().__init__(f'{f"""run "{run_id}" """ if run_id else "the run "}refused the message: {reason}')


# -- why a run has ended


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
            f"the worker died {'once' if crashes == 1 else f'{crashes} times in a row'} while executing this run, without progress and outside a step; "
            "look for code of the workflow itself that exhausts memory or exits, fix it, then recover the run"
        )


class RunDeadlineError(DurableError):
    """The run was not done by its deadline, or has used up its work limit."""

    @classmethod
    def of_deadline(cls, deadline: datetime, length: float | None) -> Self:
        """Return the error of a run that is past its deadline, `length` seconds after its start."""
        given = f", {timedelta(seconds=length)} after it was started or recovered" if length else ""
        return cls(
            f"the run was not done by its deadline of {deadline.isoformat(sep=' ', timespec='seconds')}{given}; look at what "
            "it waited for, then recover it, which gives it the same time anew, or start it again with a longer deadline="
        )

    @classmethod
    def of_work(cls, limit: float) -> Self:
        """Return the error of a run on which workers have worked for `limit` seconds."""
        return cls(
            f"workers have worked on the run for its work limit of {timedelta(seconds=limit)}; look at which steps take "
            "long, then recover it, which gives it the same time anew, or start it again with a longer work_limit="
        )
