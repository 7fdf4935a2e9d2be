"""What operations hand to a workflow: results, failures, messages, and the two ways to end an iteration.

Frozen data. Nothing here touches a journal or a store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from durable.core.errors import ErrorInfo

__all__ = [
    "BlockFailure",
    "BlockResult",
    "Break",
    "Continue",
    "Failure",
    "QueueMessage",
    "RaceResult",
    "StepFailure",
    "StepResult",
    "failure_of",
    "with_failure",
]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

StepFailureKind = Literal["critical", "timeout", "exhausted", "rollback", "payload"]
BlockSource = Literal["step", "join", "race", "block"]


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on with the loop, with this state for the next iteration."""

    state: Any = None


@dataclass(frozen=True, slots=True)
class Break:
    """End the loop; `value` is the loop's value."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a step failed for good.

    `kind`: "critical" (CriticalError, or `retry_if` said no), "timeout", "exhausted" (out of attempts), "rollback"
    (RollbackError). `step` is the step's name, `attempts` how many were made, `error` the last one.
    """

    kind: StepFailureKind
    step: str
    attempts: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class StepResult(Generic[T]):
    """What `try_step` returns: `ok` with a `value`, or not, with a `failure`."""

    ok: bool
    value: T | None = None
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """Why a block failed: which operation (`source`, `name`), its `error`, and for a step its `StepFailure`."""

    source: BlockSource
    name: str
    error: ErrorInfo
    step: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class BlockResult(Generic[T]):
    """What `try_block` returns: `ok` with a `value`, or not, with a `failure`."""

    ok: bool
    value: T | None = None
    failure: BlockFailure | None = None


@dataclass(frozen=True, slots=True)
class RaceResult(Generic[T]):
    """What `race` returns: the name of the branch that finished first, and its value."""

    winner: str
    value: T


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A received message. `name` is the queue it came in, `sent_at` when it was sent.

    `complete(response=None)` answers a message received with `completable=True`, once; in an async workflow it is
    awaited. Raises ValueError for a message that is not completable or completed already. Code completes it in the scope
    that received it or in one within: a loop's iteration, a block, a branch.
    """

    id: str
    name: str
    body: Any
    sent_at: datetime
    _complete: Callable[[str, Any], Any] | None = field(default=None, repr=False, compare=False)
    _is_completed: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)

    @property
    def is_completed(self) -> bool:
        """Whether the code has completed the message: False before that, in each pass, and for one that is not completable.

        A branch learns nothing of what the branches beside it complete; the code after the join or race does.
        """
        return self._is_completed is not None and self._is_completed(self.id)

    def complete(self, response: Any = None) -> Any:
        """Answer the message; `handle.ask` of the sender returns `response`."""
        if self._complete is None:
            raise ValueError(f"message {self.id} was not received with completable=True, so it cannot be completed")
        return self._complete(self.id, response)


@dataclass(frozen=True, slots=True)
class Failure:
    """What an operation's error carries: whence it came, for try blocks, joins and recovery.

    `origins` are the locations of the entries whose failure it is.
    """

    source: BlockSource
    name: str
    origins: tuple[str, ...]
    error: ErrorInfo
    step: StepFailure | None = None


_ATTRIBUTE = "_durable_failure"


def with_failure(error: E, failure: Failure) -> E:
    """`error`, carrying `failure`."""
    setattr(error, _ATTRIBUTE, failure)
    return error


def failure_of(error: BaseException) -> Failure | None:
    """The failure that `error` carries, if it is an operation's."""
    failure = getattr(error, _ATTRIBUTE, None)
    return failure if isinstance(failure, Failure) else None
