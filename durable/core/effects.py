"""Effects: the requests of an operation to its driver.

The engine is written once and never blocks. Whatever blocks, or differs between threads and an event loop, is an
effect: a value that an operation yields. psycopg's `generators.py` and `waiting.py` divide the work in this way.

**How to read an operation.** An operation is a generator. Read `answer = yield Call(...)` as a call: the driver
performs the effect and resumes the generator with the answer, or throws the effect's error into it at the `yield`.
`yield from` runs another operation as a part of this one. What the generator returns is the operation's value. An
operation that yields nothing is one that needs nothing, as a replayed step does. This is the whole of a driver::

    effect = next(operation)                    # StopIteration: the operation has returned
    while True:
        try:
            answer = perform(effect)
        except BaseException as error:
            effect = operation.throw(error)
        else:
            effect = operation.send(answer)

**Who drives what.** `run_pass` is an operation too, driven by the worker. It yields a `Body` for the workflow's code.
The driver calls that code, and each `ctx.step(...)` in it is driven in turn, inside the perform of the `Body`. Bodies
nest in the same way: an iteration, a try block or a branch is a `Body` that an operation yields.

**Who performs what.** `SyncDriver` performs effects in threads, `AsyncDriver` in an event loop; `Host` is what both are
given (`durable.drivers.host`):

============  ==========================================================================================
effect        performed by
============  ==========================================================================================
Save          `Host.save`, in the pass's own thread: a commit of the store
Call          the driver: the function in this thread or task, with its timeout; `Host.calling` around it.
              With `record`: `Host.save_atomically`
Body          the driver, with the context that `Host.sync_context` or `Host.async_context` makes
Fork          the driver: a thread or a task for each branch
Ask           `Host.ask`, in the pass's own thread: a query of the store, or a change in a transaction of its own
ShortSleep    `Host.wait` or `Host.async_wait`
============  ==========================================================================================

All decisions are the operation's; a driver must not decide anything.

**Control flow.** What ends a pass or a branch without ending the run is raised, as a `ControlFlow`
(`durable.core.control_flow`): `Park` where nothing can be done now, `Evicted` where the pass has to end. It derives
from `BaseException`, passes through the workflow's code, through the `Body` that called it, and so on outwards, up to
the branch or to `run_pass`, which commits the end of the pass. `except Exception` in the workflow's code does not see
it. If the code catches it nevertheless, the scope's guard raises it again at each later operation and at the scope's
end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from durable.core.errors import CriticalError
from durable.core.records import EntryRecord, RunPatch, RunRecord, Uncommitted
from durable.core.saves import checked_status, idempotency_key

if TYPE_CHECKING:
    from durable.core.saves import StepProgress
    from durable.core.scope import Scope


_NOTHING_TO_SAVE: Final = {
    "rollback": "it is a rollback handler, which has no next attempt to save for",
    "verify": "it is a step's verify, which only asks",
}


@dataclass(slots=True)  # not frozen, as Call
class StepInfo:
    """The step, as its function may know it (`durable.current_step()`)."""

    _run: RunRecord = field(repr=False)
    location: str
    attempt: int
    _eviction_reason: Callable[[], str] = field(repr=False)
    _purpose: str = field(default="step", repr=False)
    #: In seconds; 0 for none.
    timeout: float = field(default=0.0, repr=False)
    #: In seconds; 0 for none: for how long the attempt may give no sign.
    heartbeat: float = field(default=0.0, repr=False)
    _begin_progress: Callable[[], StepProgress] | None = field(default=None, repr=False)
    _progress: StepProgress | None = field(default=None, repr=False)
    _show: Callable[..., None] | None = field(default=None, repr=False)
    _on_chunk: Callable[[str, int, int, Any], None] | None = field(default=None, repr=False)
    #: The numbers of the chunks, None before the first.
    _numbers: Iterator[int] | None = field(default=None, repr=False)
    _key: str = field(default="", repr=False)  # that of the attempt that is asked about, of another run after a replay

    def is_evicted(self) -> bool:
        """Return True if the attempt should end: the worker stops, or an operator has asked to end or pause the run."""
        return bool(self._eviction_reason())

    def eviction_reason(self) -> str:
        """Return why the attempt should end, as `Context.eviction_reason` does; "" if it should not."""
        return self._eviction_reason()

    def save(self, details: Any = None) -> None:
        """Save `details` for the step's next attempt. It also counts as a heartbeat.

        `details` is any value that can be recorded, at most 4 KiB as text; the newest replaces the one before. A worker
        writes it once a second, and with a failed attempt: a worker that is killed loses at most what was saved in the
        last second. May be called from any thread that the function was given this object in. Raises PayloadError, and
        CriticalError in an atomic step and in a rollback handler.
        """
        if self._begin_progress is None:
            why = _NOTHING_TO_SAVE.get(
                self._purpose,
                "it is atomic: what an attempt has done is rolled back if it fails, so that the next one begins anew; "
                "leave atomic=True out and write rows in transactions of your own, or save nothing",
            )
            raise CriticalError(f'save() cannot be used in "{self.location}": {why}')
        self.saves().save(details)

    def emit(self, chunk: Any) -> None:
        """Show `chunk`, a part of what the step makes, to those who read its stream now (`handle.stream`).

        `chunk` is any value that can be recorded, at most 64 KiB as text. It also counts as a heartbeat. Chunks are not
        kept: the truth is the step's result, and a chunk that cannot be sent is lost. The call does not wait. Threads
        may emit, each of its chunks in order. Raises PayloadError, and CriticalError in a rollback handler and in a
        `verify`.
        """
        if self._on_chunk is None:
            raise CriticalError(f'emit() cannot be used in "{self.location}": {_NOTHING_TO_SAVE[self._purpose]}')
        if self._numbers is None:
            self._numbers = count(1)
        self._on_chunk(self.location, self.attempt, next(self._numbers), chunk)
        if self.heartbeat > 0 and self._begin_progress is not None:
            self.saves().sign()

    @property
    def has_emitted(self) -> bool:
        """Whether the attempt has a stream, for the engine."""
        return self._numbers is not None

    @property
    def saved(self) -> Any:
        """The details that the previous attempt saved last; None if there are none, or for the first attempt."""
        return None if self._begin_progress is None else self.saves().before()

    def progress(self, *, done: float | None = None, of: float | None = None, text: str | None = None) -> None:
        """Show how far the step is, as the status of its run: `progress(done=300, of=1000, text="page 300")`.

        Replaces the run's status, as `ctx.status` does. Without `text`, the text stays. A worker writes it within a
        second, or with the step's commit, and makes no commit for it. It also counts as a heartbeat. May be called from
        any thread that the function was given this object in. Raises TypeError and ValueError, as `ctx.status` does.
        """
        if self._show is not None:
            self._show(checked_status(text, done, of), in_step=True)
        if self.heartbeat and self._begin_progress is not None:
            self.saves().sign()

    def saves(self) -> StepProgress:
        """Return the saves of this attempt, for the engine."""
        if self._progress is None:
            assert self._begin_progress is not None, "a step that cannot save has no progress"
            self._progress = self._begin_progress()
        return self._progress

    @property
    def begun_progress(self) -> StepProgress | None:
        """The saves of this attempt, None until its function uses them; for the engine."""
        return self._progress

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def idempotency_key(self) -> str:
        """A key for external systems, the same for all attempts of the step.

        It differs for each step and run and, after a compensation, for each recovery. In a step's `verify` it is the
        step's own.
        """
        if self._purpose == "verify":
            return self._key or idempotency_key(self._run, self.location)
        return idempotency_key(self._run, self.location, self._purpose)


@dataclass(frozen=True, slots=True)
class Save:
    """Commit what the journal holds, and patch the run's row. Answer: None, once it is committed.

    Raises OpenTransactionError if a transaction was left open around the commit; that transaction has been rolled back.
    Does not raise it if the commit reports a worse failure anyway (`is_failure`), or ends the pass of a run that has
    not completed. `awaited_children` and `awaited_groups` are those whose ends the run waits for, `awaited_slots` the
    locations that wait for slots.
    """

    run: RunPatch | None = None
    park_change_seq: int | None = None
    is_failure: bool = False
    awaited_children: Sequence[str] = ()
    awaited_slots: Sequence[str] = ()
    awaited_groups: Sequence[str] = ()


#: Commit what the journal holds.
SAVE: Final = Save()


@dataclass(slots=True)  # not frozen: made for each step, and a frozen one takes three times as long
class Call:
    """Call a user's function with these arguments. Answer: its value. Raises the function's error, or StepTimeoutError.

    With `record`, the call, `record(value)` and a save are one transaction. If other branches run beside it
    (`is_concurrent`), that save writes the step's record only. `timeout` is in seconds, 0 for none. `entry` is the
    step's; None for a rollback handler and for `verify`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    name: str
    timeout: float
    info: StepInfo
    record: Callable[[Any], None] | None = None
    is_rollback: bool = False
    is_concurrent: bool = False
    entry: EntryRecord | None = None
    #: `Journal.uncommitted` of the pass; None without an `entry`.
    uncommitted: Callable[[EntryRecord, Collection[str]], Uncommitted | None] | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """Call a body of workflow code with a context for `scope`, then `args`. Answer: its value."""

    scope: Scope
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """Drive the branches concurrently until all have ended; they raise nothing. Answer: None.

    Once `is_decided()`, branches that have not begun need not begin, and running async ones are cancelled.
    """

    branches: Sequence[Operation]
    is_decided: Callable[[], bool]


class Ask:
    """Query the store, or let it change something outside of this run's history. Answer: see each question.

    Each question is a subclass, beside the operation that uses it; `durable.execution` answers them.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ShortSleep:
    """Wait in memory, for a time too short to park. In seconds."""

    seconds: float


Effect = Save | Call | Body | Fork | Ask | ShortSleep
Operation = Generator[Effect, Any, Any]
