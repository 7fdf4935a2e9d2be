"""The grammar of the scenarios: the operations of a program and the actions from outside, as data.

How they are written in JSON is `reading`'s business, what they do `interpreter`'s and `play`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
Failure = Literal["error", "critical", "rollback", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that returns `value`; `fail[k - 1]` says how its k-th call fails."""

    name: str
    value: Json
    fail: tuple[Failure, ...] = ()
    max_retries: int | None = None
    base_ms: int | None = None
    max_ms: int | None = None
    ephemeral: bool = False
    retry_on_timeout: bool = False
    rollback: bool = False

    def failure_of(self, call: int) -> Failure | None:
        """How the call with this number (from 1) fails; None if it returns the value."""
        return self.fail[call - 1] if call <= len(self.fail) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TryStep:
    """`step`, with its failures of the kinds `catch` (None: the default kinds) as values."""

    step: Step
    catch: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.step.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A block around `body`."""

    name: str
    body: Body
    catch: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`body` until its state, counted up from 0, reaches `until`."""

    name: str
    until: int
    body: Body
    prune: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    name: str
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepUntil:
    """`at_ms` counts from the scenario's start; negative: the past."""

    name: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """One message of the queues `names`, of any if there are none."""

    name: str
    names: tuple[str, ...]
    timeout_ms: int | None = None
    completable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatch:
    """Up to `count` messages of the queues `names`, of any if there are none."""

    name: str
    names: tuple[str, ...]
    count: int
    timeout_ms: int | None = None
    completable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    name: str
    latest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Stands for an operation of the kind `original` that is no more."""

    name: str
    original: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    name: str
    branches: Branches


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    name: str
    branches: Branches


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """The workflow's own code raises."""

    kind: Failure
    message: str


Operation: TypeAlias = (
    Step
    | TryStep
    | Try
    | Loop
    | Sleep
    | SleepUntil
    | Next
    | NextBatch
    | Version
    | Removed
    | Checkpoint
    | Join
    | Race
    | Raise
)
Body: TypeAlias = tuple[Operation, ...]
Branches: TypeAlias = tuple[tuple[str, Body], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One pass, due or not."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Recover the run if it is failed, else nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The clock moves; nothing runs."""

    ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    queue: str
    body: Json


Action: TypeAlias = Run | Recover | Advance | SendMessage


def operations(body: Body) -> Iterator[Operation]:
    """Every operation of the body, nested ones included."""
    for operation in body:
        yield operation
        match operation:
            case Try() | Loop():
                yield from operations(operation.body)
            case Join() | Race():
                for _, branch in operation.branches:
                    yield from operations(branch)
            case _:
                pass
