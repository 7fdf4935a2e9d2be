"""The current run, step and scope of this thread or task."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from durable.core.effects import StepInfo

if TYPE_CHECKING:
    from durable.core.scope import Scope

__all__ = [
    "current_scope",
    "current_step",
    "is_in_step",
    "running_place",
    "running_run",
    "running_scope",
    "running_step",
    "running_workflow",
    "timed_step",
    "timed_steps",
]

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
    """Return the id and the workflow of the run, and the location of the step, that code here is about; "" for none.

    For logs: a receiver of signals is not the run's code, but what it logs is about the run.
    """
    info = _step.get()
    return (*_place.get(), info.location if info is not None else "")


@contextmanager
def running_workflow(run_id: str | None, workflow: str = "") -> Iterator[None]:
    """Make `run_id` the run whose code is executed here; None for code of no run, as in a receiver of signals."""
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


class timed_step:  # noqa: N801  # used like a function
    """Wrap what a step's timeout limits: the call of its function, or the wait for the returned awaitable.

    Meanwhile the step is among `timed_steps`.
    """

    __slots__ = ("info", "since")

    def __init__(self, info: StepInfo) -> None:
        self.info = info
        self.since = time.monotonic()

    def __enter__(self) -> None:
        _timed[self] = None

    def __exit__(self, *exc: object) -> None:
        _timed.pop(self, None)


_timed: dict[timed_step, None] = {}


def timed_steps() -> list[tuple[StepInfo, float]]:
    """Return the steps whose functions run in this process, with their start times (monotonic)."""
    return [(each.info, each.since) for each in list(_timed)]


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
