"""Observers of passes, of the calls of users' functions, and of verbs; metrics and tracing are observers.

Owns the list of observers and how they are called. An observer must not decide or break anything: its errors are logged
and not raised. Without observers, a pass costs one check of an empty tuple, and a call costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from durable.core.effects import Call
from durable.core.journal import Event
from durable.core.records import RunRecord
from durable.core.run_pass import PassOutcome

logger = logging.getLogger("durable")

_installed: tuple[Observer, ...] = ()


#: Called when a pass has ended: with its outcome, or with the error that ended it early (`LeaseLost`, `PassAborted`).
PassEnds = Callable[[PassOutcome | None, BaseException | None], None]
#: Called when a call or a verb has ended: with the error that it raised, or None.
CallEnds = Callable[[BaseException | None], None]


@dataclass(slots=True)
class VerbCall:
    """A call of a verb of `durable.operations`, such as "start", "send" or "pause_queue".

    `about` is what the verb was given besides runs: the workflow of a start, the queue of a message, the name of a
    schedule; or "". `runs` are the ids of its runs, which a start knows at its end only.
    """

    action: str
    about: str
    runs: Sequence[str] = ()


class Observer(Protocol):
    """Called at passes and calls, in the thread (for an async function: in the task) where they happen.

    The function that a method returns is called at the end, in the same context. An observer may also have a method
    `event_happened(run, event)`. It is called with the engine's events of the pass (`durable.core.journal.Event`), once
    the changes they are about are committed. If it has a method `start_refused(limit)`, that is called for each start
    that the rate of a limit has refused. If it has a method `verb_begins(call)`, that is called before each verb, with
    a `VerbCall`, and may return a function as `call_begins` does. Verbs call each other. A class that names this one as
    its base has the methods that it needs; the others do nothing.
    """

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:  # noqa: ARG002  # an observer has its own
        """Called when a pass of `run`, as it was claimed, begins at `now`.

        Return None to ignore the rest of the pass.
        """
        return None

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds | None:  # noqa: ARG002  # an observer has its own
        """Called before the function of a step, or its rollback handler, is called."""
        return None

    def run_started(self, run: RunRecord) -> None:  # noqa: ARG002  # as above
        """Called for a new run, by the process that starts it, when the transaction that has started it is committed.

        For a child by the worker whose pass has started it, inside that pass.
        """
        return


def lateness(run: RunRecord, now: datetime) -> float | None:
    """Return how many seconds the run had been due at the beginning of its pass.

    Return None for a pass that continues a run whose worker died: that run was not waiting.
    """
    if run.wake_at is None or run.crashes:
        return None
    return max(0.0, (now - run.wake_at).total_seconds())


def install(observer: Observer) -> None:
    """Call `observer` from the next pass on."""
    global _installed
    _installed = (*_installed, observer)


def uninstall(observer: Observer) -> None:
    """Report nothing more to the observer."""
    global _installed
    _installed = tuple(each for each in _installed if each is not observer)


def started(run: RunRecord) -> None:
    """Report a new run to the observers."""
    for each in _installed:
        _safely(each.run_started, run)


def start_refused(limit: str) -> None:
    """Report a start refused by a limit's rate to observers with that method."""
    for each in _installed:
        if (hears := getattr(each, "start_refused", None)) is not None:
            _safely(hears, limit)


@contextmanager
def observe_verb(action: str, about: str = "", runs: Sequence[str] = ()) -> Iterator[VerbCall]:
    """Observe a verb; a context manager around it."""
    call = VerbCall(action, about, runs)
    if not _installed:
        yield call
        return
    begin = [begins for each in _installed if (begins := getattr(each, "verb_begins", None)) is not None]
    with _until_the_end([ends for each in begin if (ends := _safely(each, call)) is not None]):
        yield call


class PassObservation:
    """The observers of one pass, and its outcome once there is one."""

    __slots__ = ("_observers", "_run", "outcome")

    def __init__(self, run: RunRecord | None, observers: tuple[Observer, ...]) -> None:
        self._run = run
        self._observers = observers
        self.outcome: PassOutcome | None = None

    @property
    def is_idle(self) -> bool:
        """True if no observer is interested in calls."""
        return not self._observers

    def calling(self, call: Call) -> AbstractContextManager[None]:
        """Return the context manager to enter around a call."""
        begun = (_safely(each.call_begins, self._run, call) for each in self._observers)
        return _until_the_end([ends for ends in begun if ends is not None])

    def event_happened(self, event: Event) -> None:
        """Report an event of the pass to the observers with `event_happened`."""
        for each in self._observers:
            if (hears := getattr(each, "event_happened", None)) is not None:
                _safely(hears, self._run, event)


#: For a pass without observers.
NO_OBSERVATION = PassObservation(None, ())


@contextmanager
def observe_pass(run: RunRecord, now: Callable[[], datetime]) -> Iterator[PassObservation]:
    """Observe a pass; a context manager around it."""
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
def _until_the_end(begun: Sequence[CallEnds]) -> Iterator[None]:
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        for ends in reversed(begun):
            _safely(ends, error)


def _safely(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:
        logger.exception("an observer failed: %s", getattr(call, "__qualname__", call))
        return None
