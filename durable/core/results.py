"""What operations hand to a workflow: results, failures, messages, and the two ways to end an iteration.

Frozen data. Nothing here touches a journal or a store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from durable.core.errors import ErrorInfo

if TYPE_CHECKING:  # at run time a type variable of Python 3.11 has no default
    from typing_extensions import TypeVar as TypeVarWithDefault

    V_co = TypeVarWithDefault("V_co", covariant=True, default=Any)
    Answer_co = TypeVarWithDefault("Answer_co", covariant=True, default=None)
else:
    V_co = TypeVar("V_co", covariant=True)
    Answer_co = TypeVar("Answer_co", covariant=True)

__all__ = [
    "AsyncQueueMessage",
    "BlockCatch",
    "BlockFailure",
    "BlockResult",
    "Break",
    "Continue",
    "Failure",
    "QueueMessage",
    "RaceResult",
    "StepCatch",
    "StepFailure",
    "StepResult",
    "failure_of",
    "with_failure",
]

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=BaseException)

StepFailureKind = Literal["critical", "timeout", "exhausted", "rollback", "payload"]
BlockSource = Literal["step", "join", "race", "block"]
#: what `try_step` and `try_block` can catch
StepCatch = Literal["critical", "timeout", "exhausted", "rollback"]
BlockCatch = Literal["step", "join", "race", "rollback"]


# Without slots: on Python 3.11 `Break[int](3)` cannot make an instance of a dataclass that is frozen and has slots.
@dataclass(frozen=True)
class Continue(Generic[V_co]):
    """Go on with the loop, with this state for the next iteration."""

    state: V_co = None  # type: ignore[assignment]  # Continue() is a Continue[None]


@dataclass(frozen=True)
class Break(Generic[V_co]):
    """End the loop; `value` is the loop's value."""

    value: V_co = None  # type: ignore[assignment]  # Break() is a Break[None]


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
class StepResult(Generic[T_co]):
    """What `try_step` returns: `ok` with a `value`, or not, with a `failure`."""

    ok: bool
    value: T_co | None = None
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """Why a block failed: which operation (`source`, `name`), its `error`, and for a step its `StepFailure`."""

    source: BlockSource
    name: str
    error: ErrorInfo
    step: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class BlockResult(Generic[T_co]):
    """What `try_block` returns: `ok` with a `value`, or not, with a `failure`."""

    ok: bool
    value: T_co | None = None
    failure: BlockFailure | None = None


@dataclass(frozen=True, slots=True)
class RaceResult(Generic[T_co]):
    """What `race` returns: the name of the branch that finished first, and its value."""

    winner: str
    value: T_co


@dataclass(frozen=True, slots=True)
class QueueMessage(Generic[Answer_co]):
    """A received message. `name` is the queue it came in, `sent_at` when it was sent.

    `complete(response=None)` answers a message received with `completable=True`, once; in an async workflow, which
    annotates messages as `AsyncQueueMessage`, it is awaited. Raises ValueError for a message that is not completable or completed already. Code completes it in the scope
    that received it or in one within: a loop's iteration, a block, a branch.
    """

    id: str
    name: str
    body: Any
    sent_at: datetime
    _complete: Callable[[str, Any], Answer_co] | None = field(default=None, repr=False, compare=False)
    _is_completed: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)

    @property
    def is_completed(self) -> bool:
        """Whether the code has completed the message: False before that, in each pass, and for one that is not completable.

        A branch learns nothing of what the branches beside it complete; the code after the join or race does.
        """
        return self._is_completed is not None and self._is_completed(self.id)

    def complete(self, response: Any = None) -> Answer_co:
        """Answer the message; `handle.ask` of the sender returns `response`."""
        if self._complete is None:
            raise ValueError(f"message {self.id} was not received with completable=True, so it cannot be completed")
        return self._complete(self.id, response)


#: A message of an async workflow: `await message.complete(response)`. The same class, so that records hold one name.
AsyncQueueMessage: TypeAlias = QueueMessage[Awaitable[None]]


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
