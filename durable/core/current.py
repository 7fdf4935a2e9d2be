"""Where this thread or task is: the run that is being passed, and the step whose function runs."""

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
    """Who the running step is. Raises RuntimeError outside a step's function."""
    info = _step.get()
    if info is None:
        raise RuntimeError("current_step() is there only inside a step's function: call it in what ctx.step is given")
    return info


def is_in_step() -> bool:
    """Whether a step's function is running here."""
    return _step.get() is not None


def running_run() -> str | None:
    """The id of the run that is being passed here, if any."""
    return _run.get()


def running_place() -> tuple[str, str, str]:
    """The id and the workflow of the run that this is about, and the location of the step; "" for what there is not.

    For logs: a receiver of signals is not the run's code, but what it logs is about the run.
    """
    info = _step.get()
    return (*_place.get(), info.location if info is not None else "")


@contextmanager
def running_workflow(run_id: str | None, workflow: str = "") -> Iterator[None]:
    """Makes `run_id` the run that is being passed here; None: no run's code is, as in a receiver of signals."""
    token = _run.set(run_id)
    place = _place.set(_place.get() if run_id is None else (run_id, workflow))
    try:
        yield
    finally:
        _place.reset(place)
        _run.reset(token)


class running_step:  # noqa: N801  # used like a function
    """Makes `info` the current step, for a `with` block. A class, because it is entered for each step."""

    __slots__ = ("info", "token")

    def __init__(self, info: StepInfo) -> None:
        self.info = info

    def __enter__(self) -> None:
        self.token = _step.set(self.info)

    def __exit__(self, *exc: object) -> None:
        _step.reset(self.token)


class timed_step:  # noqa: N801  # used like a function
    """Around what a step's timeout is about, the call of its function or the wait for what that returned.

    It is among `timed_steps` meanwhile.
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
    """The steps whose functions run in this process, and since when by the monotonic clock."""
    return [(each.info, each.since) for each in list(_timed)]


def current_scope() -> Scope | None:
    """The innermost scope whose code runs here, if any."""
    return _scope.get()


class running_scope:  # noqa: N801  # used like a function
    """Makes `scope` the current one, for a `with` block. A class, because it is entered for each scope."""

    __slots__ = ("scope", "token")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __enter__(self) -> None:
        self.token = _scope.set(self.scope)

    def __exit__(self, *exc: object) -> None:
        _scope.reset(self.token)
