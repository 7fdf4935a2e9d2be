"""The current run, step and scope of this thread or task."""

from __future__ import annotations

import contextvars
import decimal
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from durable.core.effects import Call, StepInfo
from durable.core.records import RunRecord

if TYPE_CHECKING:
    from durable.core.scope import Scope

_step: contextvars.ContextVar[StepInfo | None] = contextvars.ContextVar("durable_step", default=None)
_run: contextvars.ContextVar[str | None] = contextvars.ContextVar("durable_run", default=None)
_place: contextvars.ContextVar[tuple[str, str]] = contextvars.ContextVar("durable_place", default=("", ""))
_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("durable_scope", default=None)


def current_step() -> StepInfo:
    """Return the running step. Raises RuntimeError outside a step's function."""
    info = _step.get()
    if info is None:
        raise RuntimeError(
            "current_step() can only be called inside a step function: call it in the function that ctx.step is given"
        )
    return info


def is_in_step() -> bool:
    """Return True if a step's function is running here."""
    return _step.get() is not None


def running_run() -> str | None:
    """Return the id of the run whose code is executed here, or None."""
    return _run.get()


def running_place() -> tuple[str, str, str]:
    """Return the id and the workflow of the current run, and the location of the current step, for logs; "" for none.

    Includes receivers of signals: they are not the run's code, but what they log is about the run.
    """
    info = _step.get()
    return (*_place.get(), info.location if info is not None else "")


def leave_code_around() -> None:
    """Clear the current step and scope for the rest of this context.

    A pass calls it first, in a context of its own: a step may execute a pass of another run, as with a `Harness`.
    """
    _step.set(None)
    _scope.set(None)
    decimal.setcontext(decimal.getcontext().copy())  # code changes it in place, which would affect other runs too


@contextmanager
def running_workflow(run_id: str | None, workflow: str = "") -> Iterator[None]:
    """Make `run_id` the run whose code is executed here, within the block; None for code of no run, as in a receiver of
    signals.
    """
    token = _run.set(run_id)
    place = _place.set(_place.get() if run_id is None else (run_id, workflow))
    try:
        yield
    finally:
        _place.reset(place)
        _run.reset(token)


class running_step:  # noqa: N801  # used like a function
    """Make `info` the current step, for a `with` block.

    A class rather than a generator, because it is entered for each step.
    """

    __slots__ = ("info", "token")

    def __init__(self, info: StepInfo) -> None:
        self.info = info

    def __enter__(self) -> None:
        self.token = _step.set(self.info)

    def __exit__(self, *exc: object) -> None:
        _step.reset(self.token)


class Interruptible(Protocol):
    """A call that can be interrupted from another thread."""

    def interrupt(self, step: timed_step) -> None:
        """Interrupt the call of `step`, unless it has ended."""


class timed_step:  # noqa: N801  # used like a function
    """Register the part of a step that its timeout limits: the call of its function, or the await of the result.

    Meanwhile the step is among `running_steps`. `since` is monotonic, `thread` the id of the thread. `awaitable` is the
    function's result, None while it runs. The driver sets `awaitable` and `interruptible`.
    """

    __slots__ = (
        "abandoned_at",
        "awaitable",
        "call",
        "has_no_sign",
        "interruptible",
        "is_interrupting",
        "since",
        "thread",
    )

    def __init__(self, call: Call) -> None:
        self.call = call
        self.since = time.monotonic()
        self.thread = get_ident()
        self.awaitable: Any = None
        self.interruptible: Interruptible | None = None
        self.is_interrupting = False
        self.abandoned_at: float | None = None
        #: The attempt was interrupted because its heartbeat expired.
        self.has_no_sign = False

    def time_left(self) -> float:
        """Return how many seconds the call may still take without a heartbeat; 0 or less if it is to be interrupted.

        Infinite without a timeout and a heartbeat.
        """
        now, timeout, heartbeat = time.monotonic(), self.call.timeout, self.call.info.heartbeat
        left = self.since + timeout - now if timeout > 0 else math.inf
        if heartbeat > 0:
            progress = self.call.info.begun_progress
            signed_at = progress.signed_at if progress is not None else None
            until_silent = max(self.since, signed_at or self.since) + heartbeat - now
            self.has_no_sign = until_silent <= min(left, 0)
            left = min(left, until_silent)
        return left

    @property
    def info(self) -> StepInfo:
        """The step, as its function sees it."""
        return self.call.info

    def is_of(self, run: RunRecord) -> bool:
        """Return True if the pass with this record of the run calls the step; an earlier pass has another record."""
        return self.call.info._run is run

    def abandon(self) -> None:
        """Interrupt the call as its timeout would. Called from another thread, repeatedly while the step runs.

        One interruption may not be enough: the call may swallow it, or be where nothing can interrupt it.
        """
        if self.abandoned_at is None:
            self.abandoned_at = time.monotonic()
        interruptible = self.interruptible
        if interruptible is not None:
            interruptible.interrupt(self)

    def __enter__(self) -> None:
        _timed[self] = None

    def __exit__(self, *exc: object) -> None:
        _timed.pop(self, None)


_timed: dict[timed_step, None] = {}


def running_steps() -> list[timed_step]:
    """Return the steps whose functions run in this process."""
    return list(_timed)


def is_running(step: timed_step) -> bool:
    """Return True if the step is still among `running_steps`."""
    return step in _timed


def current_scope() -> Scope | None:
    """Return the innermost scope whose code runs here, or None."""
    return _scope.get()


class running_scope:  # noqa: N801  # used like a function
    """Make `scope` the current one, for a `with` block.

    A class rather than a generator, because it is entered often.
    """

    __slots__ = ("scope", "token")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __enter__(self) -> None:
        self.token = _scope.set(self.scope)

    def __exit__(self, *exc: object) -> None:
        _scope.reset(self.token)
