"""Observers: who is told of passes and of the calls of users' functions while they happen; metrics and tracing are.

Owns who observes and how they are told. An observer decides nothing and breaks nothing: what it raises is logged and
goes no further. Where nobody observes, a pass pays for one look at an empty tuple and a call for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any

from durable.core.effects import Call
from durable.core.entries import RunRecord
from durable.core.run import PassOutcome

__all__ = ["UNWATCHED", "Observer", "Watch", "install", "passing", "uninstall"]

logger = logging.getLogger("durable")

_NOTHING: AbstractContextManager[None] = nullcontext()
_installed: tuple[Observer, ...] = ()


class Observer:
    """Told of passes and calls, in the thread (for an async function: in the task) where they happen.

    What a `..._begins` returns is given to the `..._ends` that belongs to it, which is called in the same context. A
    pass for which `pass_begins` returns None is not observed further.
    """

    def pass_begins(self, run: RunRecord, now: datetime) -> Any:
        """A pass of `run`, as it was claimed, begins at `now`."""

    def pass_ends(self, begun: Any, run: RunRecord, outcome: PassOutcome | None, error: BaseException | None) -> None:
        """It has ended: with an outcome, or with the error that cut it short (`LeaseLost`, `PassAborted`)."""

    def call_begins(self, run: RunRecord, call: Call) -> Any:
        """The function of a step, or its rollback handler, is about to be called."""

    def call_ends(self, begun: Any, run: RunRecord, call: Call, error: BaseException | None) -> None:
        """It has returned, or raised `error`."""


def install(observer: Observer) -> None:
    """Have `observer` told from the next pass on."""
    global _installed
    _installed = (*_installed, observer)


def uninstall(observer: Observer) -> None:
    """Have `observer` told no longer."""
    global _installed
    _installed = tuple(each for each in _installed if each is not observer)


class Watch:
    """Those who observe one pass, and its outcome once there is one."""

    __slots__ = ("_observers", "_run", "outcome")

    def __init__(self, run: RunRecord | None, observers: tuple[Observer, ...]) -> None:
        self._run = run
        self._observers = observers
        self.outcome: PassOutcome | None = None

    def calling(self, call: Call) -> AbstractContextManager[None]:
        """Around a call."""
        if self._run is None or not self._observers:
            return _NOTHING
        return _told_of_call(self._observers, self._run, call)


#: The watch of a pass that nobody observes.
UNWATCHED = Watch(None, ())


@contextmanager
def passing(run: RunRecord, now: Callable[[], datetime]) -> Iterator[Watch]:
    """Around a pass."""
    if not _installed:
        yield Watch(run, ())
        return
    moment = now()
    begun = [(each, token) for each in _installed if (token := _safely(each.pass_begins, run, moment)) is not None]
    watch = Watch(run, tuple(each for each, _ in begun))
    error: BaseException | None = None
    try:
        yield watch
    except BaseException as raised:
        error = raised
        raise
    finally:
        for each, token in reversed(begun):
            _safely(each.pass_ends, token, run, watch.outcome, error)


@contextmanager
def _told_of_call(observers: tuple[Observer, ...], run: RunRecord, call: Call) -> Iterator[None]:
    begun = [(each, _safely(each.call_begins, run, call)) for each in observers]
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for each, token in reversed(begun):
            _safely(each.call_ends, token, run, call, error)


def _safely(tell: Callable[..., Any], *args: Any) -> Any:
    try:
        return tell(*args)
    except Exception:  # noqa: BLE001 - an observer breaks nothing
        logger.exception("an observer failed: %s", getattr(tell, "__qualname__", tell))
        return None
