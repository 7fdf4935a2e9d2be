"""Observers: who is told of passes and of the calls of users' functions while they happen; metrics and tracing are.

Owns who observes and how they are told. An observer decides nothing and breaks nothing: what it raises is logged and
goes no further. Where nobody observes, a pass pays for one look at an empty tuple and a call for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Protocol

from durable.core.effects import Call
from durable.core.journal import Event
from durable.core.records import RunRecord
from durable.core.run_pass import PassOutcome

__all__ = [
    "NO_OBSERVATION",
    "CallEnds",
    "Observer",
    "PassEnds",
    "PassObservation",
    "install",
    "lateness",
    "observe_pass",
    "started",
    "uninstall",
]

logger = logging.getLogger("durable")

_installed: tuple[Observer, ...] = ()


#: Told that a pass has ended: with an outcome, or with the error that cut it short (`LeaseLost`, `PassAborted`).
PassEnds = Callable[[PassOutcome | None, BaseException | None], None]
#: Told that a call has ended: with the error that the function raised, or None.
CallEnds = Callable[[BaseException | None], None]


class Observer(Protocol):
    """Told of passes and calls, in the thread (for an async function: in the task) where they happen.

    What is returned is called at the end, in the same context. An observer that also has a method
    `event_happened(run, event)` is told of the engine's events of the pass (`durable.core.journal.Event`), once what they
    tell of is committed.
    """

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        """A pass of `run`, as it was claimed, begins at `now`. None: this pass is not to be observed further."""

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds:
        """The function of a step, or its rollback handler, is about to be called."""

    def run_started(self, run: RunRecord) -> None:
        """A run is new. Told where it was started, before the caller's transaction commits, if there is one."""


def lateness(run: RunRecord, now: datetime) -> float | None:
    """For how many seconds the run has been due at the beginning of its pass.

    None for a pass that goes on where a worker died: that run was not waiting.
    """
    if run.wake_at is None or run.crashes:
        return None
    return max(0.0, (now - run.wake_at).total_seconds())


def install(observer: Observer) -> None:
    """Have `observer` told from the next pass on."""
    global _installed
    _installed = (*_installed, observer)


def uninstall(observer: Observer) -> None:
    """Have `observer` told no longer."""
    global _installed
    _installed = tuple(each for each in _installed if each is not observer)


def started(run: RunRecord) -> None:
    """Tell that a run is new."""
    for each in _installed:
        _safely(each.run_started, run)


class PassObservation:
    """Those who observe one pass, and its outcome once there is one."""

    __slots__ = ("_observers", "_run", "outcome")

    def __init__(self, run: RunRecord | None, observers: tuple[Observer, ...]) -> None:
        self._run = run
        self._observers = observers
        self.outcome: PassOutcome | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody wants to be told of calls."""
        return not self._observers

    def calling(self, call: Call) -> AbstractContextManager[None]:
        """Around a call."""
        assert self._run is not None, "the watch of no run has no observers"
        return _told_of_call(self._observers, self._run, call)

    def event_happened(self, event: Event) -> None:
        """Tell those who want to know of an event of the pass."""
        for each in self._observers:
            if (hears := getattr(each, "event_happened", None)) is not None:
                _safely(hears, self._run, event)


#: The watch of a pass that nobody observes.
NO_OBSERVATION = PassObservation(None, ())


@contextmanager
def observe_pass(run: RunRecord, now: Callable[[], datetime]) -> Iterator[PassObservation]:
    """Around a pass."""
    if not _installed:
        yield PassObservation(run, ())
        return
    moment = now()
    begun = [(each, ends) for each in _installed if (ends := _safely(each.pass_begins, run, moment)) is not None]
    watch = PassObservation(run, tuple(each for each, _ in begun))
    error: BaseException | None = None
    try:
        yield watch
    except BaseException as raised:
        error = raised
        raise
    finally:
        for _, ends in reversed(begun):
            _safely(ends, watch.outcome, error)


@contextmanager
def _told_of_call(observers: tuple[Observer, ...], run: RunRecord, call: Call) -> Iterator[None]:
    begun = [ends for each in observers if (ends := _safely(each.call_begins, run, call)) is not None]
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for ends in reversed(begun):
            _safely(ends, error)


def _safely(tell: Callable[..., Any], *args: Any) -> Any:
    try:
        return tell(*args)
    except Exception:
        logger.exception("an observer failed: %s", getattr(tell, "__qualname__", tell))
        return None
