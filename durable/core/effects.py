"""Effects: what an operation asks its driver to do.

An operation is a generator; it yields one of these, and is sent the outcome or thrown the error. All
logic stays in the operation; a driver only performs, synchronously or asynchronously.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from durable.core.idempotency_keys import idempotency_key
from durable.core.records import RunPatch, RunRecord

if TYPE_CHECKING:
    from durable.core.scope import Scope

__all__ = [
    "SAVE",
    "Body",
    "Call",
    "Effect",
    "Fork",
    "GetRunState",
    "Operation",
    "PeekInbox",
    "Save",
    "ShortSleep",
    "StepInfo",
]


@dataclass(slots=True)  # not frozen, as Call
class StepInfo:
    """What a step's function may know about itself (`durable.current_step()`)."""

    _run: RunRecord = field(repr=False)
    location: str
    attempt: int
    is_evicted: Callable[[], bool] = field(repr=False)
    _purpose: str = field(default="step", repr=False)
    #: In seconds; 0 for none.
    timeout: float = field(default=0.0, repr=False)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of the step, and another for each step, run and, after a compensation, each recovery."""
        return idempotency_key(self._run, self.location, self._purpose)


@dataclass(frozen=True, slots=True)
class Save:
    """Commit what the journal holds, and patch the run's row. Answer: None, once it is committed.

    Raises OpenTransactionError where a transaction was left open that the commit would have become a part of, and has been
    rolled back; not if the commit `is_failure`, and so tells of something worse, or ends the pass of a run that has not
    completed.
    """

    run: RunPatch | None = None
    park_signal: int | None = None
    is_failure: bool = False


#: Commit what the journal holds.
SAVE: Final = Save()


@dataclass(slots=True)  # not frozen: made for each step, and a frozen one takes three times as long
class Call:
    """Call a user's function with these arguments. Answer: its value. Raises what it raises, or StepTimeoutError.

    With `record`, the call, `record(value)` and a save are one transaction; where other branches run beside it,
    `is_concurrent`, that save takes the step's record alone. `timeout` is in seconds, 0 for none.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str
    timeout: float
    info: StepInfo
    record: Callable[[Any], None] | None = None
    is_rollback: bool = False
    is_concurrent: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """Call a body of workflow code with a context for `scope`, then `args`. Answer: its value."""

    scope: Scope
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """Drive the branches concurrently until all have ended; they raise nothing. Answer: None.

    Once `is_decided()` branches that have not begun need not begin, and running async ones are cancelled.
    """

    branches: Sequence[Operation]
    is_decided: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class PeekInbox:
    """Look into the run's inbox: `Store.inbox`. Answer: the messages, which stay there until a save takes them."""

    names: tuple[str, ...]
    count: int
    before: datetime | None


@dataclass(frozen=True, slots=True)
class GetRunState:
    """Look at another run. Answer: its state, or None if there is none."""

    run_id: str


@dataclass(frozen=True, slots=True)
class ShortSleep:
    """Wait in memory, for a time too short to park. In seconds."""

    seconds: float


Effect = Save | Call | Body | Fork | PeekInbox | GetRunState | ShortSleep
Operation = Generator[Effect, Any, Any]
