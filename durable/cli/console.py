"""A line for each step that this process executes: `shop.fulfil order-1: charge, 12 ms; sleeps until 14:00`.

Owns the wording and the writing of these lines: one write for each, so that lines of several processes and threads do
not mix. Names, ids and messages are foreign text: unprintable characters are escaped. The lines are for people at a
terminal; no program parses them. Without `install` the module costs nothing.

The line of a step is held back until the next event of its run, a matter of milliseconds, so that the line can say how
the pass continued.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TextIO

from django.core.management.color import Style
from django.utils import timezone

from durable.core import clock as moments
from durable.core import registry
from durable.core.control_flow import CommitsLost, LeaseLost
from durable.core.effects import Call
from durable.core.journal import Event
from durable.core.links import is_of_link
from durable.core.location import ANY_QUEUE
from durable.core.records import RunRecord, RunState
from durable.core.run_pass import PassOutcome
from durable.inspection.humanize import either, span
from durable.inspection.wording import display_location, display_queue
from durable.instrumentation import observers
from durable.instrumentation.observers import CallEnds, Observer, PassEnds

MAX_LINE: Final = 1_000  # characters: in UTF-8 fewer bytes than a pipe writes atomically
MAX_TEXT: Final = 300  # characters of a name or a message
_WAITS: Final = "waits"
_SLEEPS: Final = "sleeps until "


@dataclass(slots=True)
class _Pass:
    """A pass in progress: its run, the line that is held back, and the failures that were reported."""

    run: RunRecord
    waiting: str = ""
    seconds: dict[str, float] = field(default_factory=dict)  # of calls that failed, by location
    retry_at: datetime | None = None
    held: set[str] = field(default_factory=set)  # locations of steps that now wait for a person
    held_until: datetime | None = None  # when the newest of them fails by itself
    ending: str = ""
    has_failed: bool = False


class StepLines(Observer):
    """An observer of passes (`durable.instrumentation.observers`).

    `write` gets a line without its line break; `style` colours the line, or returns it unchanged.
    """

    def __init__(self, write: Callable[[str], None], style: Style) -> None:
        self._write = write
        self._style = style
        self._lock = threading.Lock()
        self._passes: dict[str, _Pass] = {}

    # -- calls of the observer

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds:  # noqa: ARG002 - an observer's signature
        pass_state = _Pass(run)
        with self._lock:
            self._passes[run.id] = pass_state

        def ends(outcome: PassOutcome | None, error: BaseException | None) -> None:
            with self._lock:
                if self._passes.get(run.id) is pass_state:
                    del self._passes[run.id]
                self._say_end(pass_state, outcome, error)

        return ends

    def call_begins(self, run: RunRecord, call: Call) -> CallEnds:
        began = time.monotonic()
        with self._lock:
            if (pass_state := self._passes.get(run.id)) is not None:
                self._flush(pass_state)

        def ends(error: BaseException | None) -> None:
            seconds = time.monotonic() - began
            with self._lock:
                if (pass_state := self._passes.get(run.id)) is not None:
                    self._call_ended(pass_state, call, seconds, error)

        return ends

    def event_happened(self, run: RunRecord, event: Event) -> None:
        with self._lock:
            if (pass_state := self._passes.get(run.id)) is None:
                return
            if event.name == "step_held":
                pass_state.held.add(event.details["location"])
                self._flush(pass_state)
                pass_state.held_until = event.details["until"]
                until = "" if pass_state.held_until is None else f", until {_at(pass_state.held_until)}"
                then = f"held, waits for a person{until}"
                self._say(pass_state, _failure(pass_state, event, then), self._style.ERROR)
            elif event.name == "step_unknown":
                self._flush(pass_state)
                self._say(pass_state, _failure(pass_state, event, "verify is asked"), self._style.WARNING)
            elif event.name in ("step_failed", "rollback_failed"):
                if event.details["location"] in pass_state.held:
                    return  # its line was the one of a held step
                self._flush(pass_state)
                self._say(
                    pass_state,
                    _failure(pass_state, event, _what_follows(event)),
                    self._style.WARNING if _retries(event) else self._style.ERROR,
                )
                pass_state.retry_at = event.details["retry_at"]
            elif (ending := _bad_ending(event)) is not None:
                pass_state.ending, pass_state.has_failed = ending, True

    # -- lines

    def _call_ended(self, pass_state: _Pass, call: Call, seconds: float, error: BaseException | None) -> None:
        location = call.info.location
        if isinstance(error, Exception):
            pass_state.seconds[location] = seconds  # its event comes when the failure is recorded
            return
        self._flush(pass_state)
        how = " undone" if call.is_rollback else " verified" if call.info._purpose == "verify" else ""
        what = f"{one_line(display_location(location))}{how}"
        if error is not None:
            pass_state.waiting = f"{what} interrupted after {_took(seconds)}"
            return
        again = f", attempt {call.info.attempt}" if call.info.attempt > 1 else ""
        pass_state.waiting = f"{what}, {_took(seconds)}{again}"

    def _say_end(self, pass_state: _Pass, outcome: PassOutcome | None, error: BaseException | None) -> None:
        ending = pass_state.ending or _ending(pass_state.run, outcome, error)
        if outcome is not None and outcome.wake_at is not None and outcome.wake_at == pass_state.retry_at:
            ending = ""  # the line of the failure has reported it
        is_held = outcome is not None and outcome.wake_at == pass_state.held_until
        if pass_state.held and (ending == _WAITS or (is_held and ending.startswith(_SLEEPS))):
            ending = ""  # so has that of the held step
        style = self._style.ERROR if pass_state.has_failed else _plain
        if outcome is not None and outcome.state == RunState.COMPLETED:
            style = self._style.SUCCESS
        line = "; ".join(filter(None, (pass_state.waiting, ending)))
        pass_state.waiting = ""
        if line:
            self._say(pass_state, line, style)

    def _flush(self, pass_state: _Pass) -> None:
        if pass_state.waiting:
            line, pass_state.waiting = pass_state.waiting, ""
            self._say(pass_state, line, _plain)

    def _say(self, pass_state: _Pass, what: str, style: Callable[[str], str]) -> None:
        line = f"{one_line(pass_state.run.workflow)} {one_line(pass_state.run.id)}: {what}"
        self._write(style(line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"))


def one_line(text: str) -> str:
    """Return `text` on one line, with unprintable characters escaped, in at most `MAX_TEXT` characters."""
    short = " ".join(text[: MAX_TEXT * 4].split())
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)
    return shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 1]}…"


def install(stream: TextIO, style: Style) -> None:
    """Report the steps of this process on `stream` from now on.

    If the project has configured no logging for durable, Python's last-resort handler would print failures twice: this
    function prevents that.
    """
    observers.install(StepLines(_writer(stream), style))
    logger = logging.getLogger("durable.pass")
    logger.addFilter(lambda _record: logger.hasHandlers())


def _writer(stream: TextIO) -> Callable[[str], None]:
    """Return a function that writes a line at once, past the stream's buffer, and never raises for a closed reader."""
    try:
        number: int | None = stream.fileno()
    except (OSError, AttributeError, ValueError):  # not a file, in tests
        number = None
    encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            if number is None:
                stream.write(f"{line}\n")
            else:
                stream.flush()
                os.write(number, f"{line}\n".encode(encoding, "backslashreplace"))

    return write


def _plain(line: str) -> str:
    return line


def _took(seconds: float) -> str:
    if seconds < 0.001:
        return "<1 ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else span(seconds)


def _at(moment: datetime) -> str:
    """Return a time by the project's clock: "14:00", "14:00:05", on another day "6 Dec 14:00"."""
    there, here = timezone.localtime(moment), timezone.localtime(moments.now())
    clock = f"{there:%H:%M:%S}" if there.second else f"{there:%H:%M}"
    if there.date() == here.date():
        return clock
    return f"{there.day} {there:%b} {clock}" if there.year == here.year else f"{there.day} {there:%b %Y} {clock}"


def _retries(event: Event) -> bool:
    return bool(event.details["will_retry"])


def _what_follows(event: Event) -> str:
    return f"tries again at {_at(event.details['retry_at'])}" if _retries(event) else "is not tried again"


def _failure(pass_state: _Pass, event: Event, then: str) -> str:
    """Return `charge failed after 12 ms, attempt 1: ConnectionError: 503; tries again at 14:00:05`.

    A step that is held or asked about need not have had an attempt: nobody knows whether it was done, after a restore.
    """
    details: Mapping[str, Any] = event.details
    what = one_line(display_location(details["location"]))
    handler = "the rollback handler of " if event.name == "rollback_failed" else ""
    seconds = pass_state.seconds.pop(details["location"], None)
    after = f" after {_took(seconds)}" if seconds is not None else ""
    error = one_line(str(details["error"]))
    if not details["attempt"]:
        return f"{what} may have been done: {error}; {then}"
    return f"{handler}{what} failed{after}, attempt {details['attempt']}: {error}; {then}"


def _bad_ending(event: Event) -> str | None:
    """Return what an event of the run says about the end of its pass."""
    details: Mapping[str, Any] = event.details
    if event.name == "run_failed":
        how = "stopped by a mistake in the code, nothing was undone" if details.get("is_mistake") else "failed"
        return f"{how}: {one_line(str(details['error']))}"
    if event.name == "run_mistaken":
        error = one_line(str(details["error"]))
        return f"a mistake in the code, tried again at {_at(details['retry_at'])}: {error}"
    if event.name == "run_diverged":
        error = one_line(str(details["error"]))
        return f"the code does not fit its history, tried again at {_at(details['retry_at'])}: {error}"
    return None


def _ending(run: RunRecord, outcome: PassOutcome | None, error: BaseException | None) -> str:
    """Return how a pass ended that no event has described."""
    if isinstance(error, CommitsLost):
        return "the database has lost commits of it, tried again"
    if isinstance(error, LeaseLost):
        return "taken over by another worker"
    if error is not None or outcome is None:
        return f"cut short, and tried again: {one_line(str(error))}"
    if outcome.due_now:
        return "handed over"
    until = "" if outcome.wake_at is None else _at(outcome.wake_at)
    if outcome.state == RunState.SLEEPING and run.workflow not in registry.registry:
        return f"no workflow of this name is known here, tried again at {until}"
    if outcome.state == RunState.ROLLING_BACK:
        return f"its compensation goes on at {until}"
    if outcome.state != RunState.SLEEPING:
        return str(outcome.state)
    if outcome.waiting_for is not None:
        names = sorted(outcome.waiting_for)
        links = [one_line(display_queue(each)) for each in names if is_of_link(each)]
        queues = [one_line(each) for each in names if not is_of_link(each)]
        awaited = [f"the answer of {either(links)}"] if links else []
        if not names or ANY_QUEUE in names:
            awaited.append("any message")
        elif queues:
            awaited.append(f"a message in {either(queues)}")
        return f"waits for {either(awaited)}{f' until {until}' if until else ''}"
    return f"{_SLEEPS}{until}" if until else _WAITS
