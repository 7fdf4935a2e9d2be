"""The results that operations return to a workflow: values, failures, messages, and the two ways to end an iteration.

Frozen data; no access to a journal or a store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from durable.core.errors import ErrorInfo

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

T = TypeVar("T")


def frozen(cls: type[T]) -> type[T]:
    """Raise FrozenInstanceError for each assignment to an instance of a frozen dataclass with slots.

    `typing` tries to assign `__orig_class__` to the result of `cls[X](...)`, and ignores only an AttributeError. The
    dataclass's own `__setattr__` would raise TypeError for an unknown name, because it refers to the class without
    slots.
    """

    def refuse(self: T, name: str, _value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to {name!r} of {type(self).__name__}")

    cls.__setattr__ = refuse  # type: ignore[assignment]  # of the class, for all of its instances
    return cls


if TYPE_CHECKING:  # at run time a type variable of Python 3.11 has no default
    from typing_extensions import TypeVar as TypeVarWithDefault

    V_co = TypeVarWithDefault("V_co", covariant=True, default=Any)
    B_co = TypeVarWithDefault("B_co", covariant=True, default=Any)
    Answer_co = TypeVarWithDefault("Answer_co", covariant=True, default=None)
else:
    V_co = TypeVar("V_co", covariant=True)
    B_co = TypeVar("B_co", covariant=True)
    Answer_co = TypeVar("Answer_co", covariant=True)

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=BaseException)

StepFailureKind = Literal["critical", "timeout", "exhausted", "rollback", "payload"]
BlockSource = Literal["step", "join", "race", "child", "map", "message", "block"]
#: what `try_step` and `try_block` can catch
StepCatch = Literal["critical", "timeout", "exhausted", "rollback"]
BlockCatch = Literal["step", "join", "race", "child", "map", "rollback"]


# Without slots: on Python 3.11 `Break[int](3)` cannot make an instance of a dataclass that is frozen and has slots.
@dataclass(frozen=True)
class Continue(Generic[V_co]):
    """Continue the loop: `state` is the state of the next iteration."""

    state: V_co = None  # type: ignore[assignment]  # Continue() is a Continue[None]


@dataclass(frozen=True)
class Break(Generic[V_co]):
    """End the loop; `value` is the loop's value."""

    value: V_co = None  # type: ignore[assignment]  # Break() is a Break[None]


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The reason why a step failed for good.

    `kind` is "critical" (CriticalError, or `retry_if` returned False), "timeout", "exhausted" (all attempts failed) or
    "rollback" (RollbackError). `step` is the step's name, `attempts` the count of attempts, and `error` the last error.
    """

    kind: StepFailureKind
    step: str
    attempts: int
    error: ErrorInfo


@frozen
@dataclass(frozen=True, slots=True)
class StepResult(Generic[T_co]):
    """The result of `try_step`: a `value` if `ok`, else a `failure`."""

    ok: bool
    value: T_co | None = None
    failure: StepFailure | None = None


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """The reason why a block failed.

    `source` and `name` say which operation failed, with which `error`. For a step, `step` is its `StepFailure`.
    """

    source: BlockSource
    name: str
    error: ErrorInfo
    step: StepFailure | None = None


@frozen
@dataclass(frozen=True, slots=True)
class BlockResult(Generic[T_co]):
    """The result of `try_block`: a `value` if `ok`, else a `failure`."""

    ok: bool
    value: T_co | None = None
    failure: BlockFailure | None = None


@frozen
@dataclass(frozen=True, slots=True)
class RaceResult(Generic[T_co]):
    """The result of `race`: the name of the branch that completed first, and its value."""

    winner: str
    value: T_co


@frozen
@dataclass(frozen=True, slots=True)
class QueueMessage(Generic[B_co, Answer_co]):
    """A received message. `name` is the queue that it was sent to, `sent_at` the time at which it was sent.

    `QueueMessage[Approval]` has a body of that type. An async workflow uses `AsyncQueueMessage` and awaits `complete`.
    """

    id: str
    name: str
    body: B_co
    sent_at: datetime
    _complete: Callable[[str, Any], Answer_co] | None = field(default=None, repr=False, compare=False)
    _is_completed: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)
    _refuse: Callable[[str, str], Answer_co] | None = field(default=None, repr=False, compare=False)

    if not TYPE_CHECKING:  # at run time a type variable of Python 3.11 has no default

        def __class_getitem__(cls, types: Any) -> Any:
            chosen = types if isinstance(types, tuple) else (types, None)
            return super(QueueMessage, cls).__class_getitem__(chosen)

    @property
    def is_completed(self) -> bool:
        """True once the code has completed or refused the message, at the same point in each pass. False if it is not
        completable.

        A branch does not see what the branches beside it complete; the code after the join or race does.
        """
        return self._is_completed is not None and self._is_completed(self.id)

    def complete(self, response: Any = None) -> Answer_co:
        """Answer a message that was received with `completable=True`: `handle.ask` of the sender returns `response`.

        Call it once, in the scope that received the message or in one inside it: a loop's iteration, a block, a branch.
        Raises ValueError for a message that is not completable or is already completed.
        """
        if self._complete is None:
            raise ValueError(f"message {self.id} was not received with completable=True, so it cannot be completed")
        return self._complete(self.id, response)

    def refuse(self, reason: str) -> Answer_co:
        """Refuse a message received with `completable=True`: `handle.ask` of the sender raises MessageRefusedError with
        `reason`.

        Use it instead of `complete`, with the same rules, and only once. Raises TypeError or ValueError if the reason
        is not text or is empty.
        """
        if self._refuse is None:
            raise ValueError(f"message {self.id} was not received with completable=True, so it cannot be refused")
        return self._refuse(self.id, reason)


#: A message of an async workflow: `await message.complete(response)`. The same class, so that records hold one name.
AsyncQueueMessage: TypeAlias = QueueMessage[B_co, Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Failure:
    """The origin of an operation's error, for try blocks, joins and recovery. It is attached to the error.

    `origins` are the locations of the entries that failed.
    """

    source: BlockSource
    name: str
    origins: tuple[str, ...]
    error: ErrorInfo
    step: StepFailure | None = None


_ATTRIBUTE = "_durable_failure"


def with_failure(error: E, failure: Failure) -> E:
    setattr(error, _ATTRIBUTE, failure)
    return error


#: The output of a child of a map.
M_co = TypeVar("M_co", covariant=True)


@frozen
@dataclass(frozen=True, slots=True)
class MapChild(Generic[M_co]):
    """The end of one child of a map.

    `number` is the index of its arguments among the inputs, from 0. A completed child has an `output`, a failed one an
    `error`; `reason` says why one was cancelled, or is "".
    """

    number: int
    child_id: str
    state: Literal["completed", "failed", "cancelled"]
    output: M_co | None = None
    error: ErrorInfo | None = None
    reason: str = ""


@frozen
@dataclass(frozen=True, slots=True)
class MapResult(Generic[M_co]):
    """The children of a map that has ended, one for each input and in the order of the inputs.

    `outputs` has the outputs of the completed children, `failed` and `cancelled` the other children. If there are no
    others, `outputs[n]` belongs to input `n`; else use `child.number` of `children`, or iterate over the result.
    """

    children: Sequence[MapChild[M_co]]

    def __iter__(self) -> Iterator[MapChild[M_co]]:
        return iter(self.children)

    def __len__(self) -> int:
        return len(self.children)

    @property
    def outputs(self) -> list[M_co]:
        """The outputs of the children that have completed."""
        return [each.output for each in self.children if each.state == "completed"]  # type: ignore[misc]  # an output may be None

    @property
    def failed(self) -> list[MapChild[M_co]]:
        """The children that have failed."""
        return [each for each in self.children if each.state == "failed"]

    @property
    def cancelled(self) -> list[MapChild[M_co]]:
        """The children that were cancelled, or whose runs were deleted."""
        return [each for each in self.children if each.state == "cancelled"]


def failure_of(error: BaseException) -> Failure | None:
    """Return the failure attached to `error`; None if no operation raised it."""
    failure = getattr(error, _ATTRIBUTE, None)
    return failure if isinstance(failure, Failure) else None


def origins_of(error: BaseException) -> list[str]:
    """Return the locations of the failures that led to `error`, in order.

    These are its own, those of the errors in a group, of its cause, and of the error that was being handled when it was
    raised. For an error raised by an operation, the error handled before does not count.
    """
    found: set[str] = set()
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:  # an error raised from its own consequence makes a cycle
            continue
        seen.add(id(each))
        failure = failure_of(each)
        if failure is not None:
            found.update(failure.origins)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        left.append(each.__cause__)
        if failure is None and not each.__suppress_context__:
            left.append(each.__context__)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Markdown:
    """A text in Markdown, for `ctx.publish`: pages render it, without the HTML in it."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Markdown takes text, not {self.text!r}")


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """What one person has answered to a question (`ctx.ask_person`).

    `data` is what the form says, or True or False without a form. `by` is the name of the user, or the mail address of
    somebody without an account; `key` is "user:" with the primary key, or "mail:" with the address.
    """

    data: Any
    by: str
    key: str
    at: datetime
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How people have decided a question (`ctx.ask_person`).

    `data`, `by`, `at` and `comment` are those of the answer that decided it, `answers` all of them in their order.
    `approved` is False if that answer was a refusal.
    """

    data: Any
    by: str
    at: datetime
    comment: str
    approved: bool
    answers: tuple[PersonAnswer, ...]
