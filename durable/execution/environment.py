"""The environment of one pass: what the engine is given from outside (`durable.core.journal.Environment`).

Owns the clock, the codec and the limits of a pass, the flags by which a worker tells it that it has to end, and the
log messages, Django signals and observers that report it. Must not renew leases, and must not write to the store:
`durable.execution.commits` does.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from durable import signals
from durable.codec.binding import binding, encode_at, rebound, without_limit
from durable.conf import conf
from durable.core.causes import failed_at, numberless, pattern_of, place_of
from durable.core.current import running_workflow
from durable.core.effects import Call
from durable.core.errors import STOPPED, PayloadError
from durable.core.ids import new_id
from durable.core.journal import Event
from durable.core.links import HiddenTokens
from durable.core.names.recorded_names import resolve_name
from durable.core.outcomes import HeldReason
from durable.core.places import Place
from durable.core.records import TOO_LONG_HISTORY, RunRecord, RunState, StepChunk
from durable.core.registry import MessageTypes
from durable.core.saves import StatusSlot
from durable.execution.connections import DATABASE_TROUBLE, OpenTransactions
from durable.instrumentation import observers
from durable.link_tokens import new_link, token_of
from durable.runtime import Runtime, send_chunk
from durable.tag_hashes import stored_tags

logger = logging.getLogger("durable.pass")

#: The most bytes of a chunk that a step emits, as codec text.
MOST_OF_CHUNK: Final = 65_536

_told_of_length: deque[str] = deque(maxlen=1_000)  # ids of runs

_LOGGED: Final = frozenset(
    {"run_failed", "run_diverged", "run_mistaken", "step_failed", "step_unknown", "step_held", "rollback_failed"}
)


class PassEvents:
    """Reports the events of one pass of `run`. `on_call` is called before each call of a user's function."""

    def __init__(self, run: RunRecord, on_call: Callable[[Call], None] | None) -> None:
        self._run = run
        self._on_call = on_call
        self._state = str(run.state)  # the state that receivers were called with last
        #: The observers of this pass.
        self.observation = observers.NO_OBSERVATION

    def emit(self, event: Event) -> None:
        """Log the event if it matters to operators, and call the observers and the signal's receivers."""
        details: dict[str, Any] = {"run": self._run.id, "workflow": self._run.workflow, **event.details}
        if event.name == "run_changed":
            previous, self._state = self._state, details["state"]
            details["previous"] = previous
        if event.name in _LOGGED:
            _log(event, details)
        if not self.observation.is_idle:
            self.observation.event_happened(event)
        signal = signals.BY_NAME.get(event.name)
        if signal is not None and signal.receivers:
            with running_workflow(None):  # a receiver is not workflow code
                signals.send(signal, **details)

    def other_changed(self, run: RunRecord, previous: str) -> None:
        """Report that this pass has changed the state of another run, from `previous`."""
        if run.state == previous or not signals.run_changed.receivers:
            return
        with running_workflow(None):  # a receiver is not workflow code
            details = {"run": run.id, "workflow": run.workflow, "state": str(run.state), "previous": str(previous)}
            signals.send(signals.run_changed, **details)

    def children_started(
        self, children: Sequence[RunRecord], states: Callable[[Sequence[str]], Mapping[str, str]]
    ) -> None:
        """Report the children that this pass has started to the observers and the receivers of `run_changed`.

        `states` looks up the states of runs, once and only if there are receivers: a child of a workflow whose new
        starts are held is paused.
        """
        with running_workflow(None):  # a receiver is not workflow code
            for run in children:
                observers.started(run)
            if not children or not signals.run_changed.receivers:
                return
            found = _looked_up(states, [run.id for run in children])
            for run in children:
                is_held = found.get(run.id) == RunState.PAUSED
                details = {"run": run.id, "workflow": run.workflow, "previous": ""}
                signals.send(signals.run_changed, **details, state=str(RunState.PAUSED if is_held else run.state))

    def before_call(self, call: Call) -> None:
        """Report to the harness a call that is about to be made."""
        if self._on_call is not None:
            self._on_call(call)

    def commits_lost(self) -> None:
        """Log that a commit was refused because the database has lost earlier ones of this pass."""
        logger.error(
            "the database has lost commits of run %s that it had answered, as after a failover to a standby that lagged "
            "or a restored backup: nothing was written, and the run is loaded again and does again what is missing",
            self._run.id,
            extra={"run_id": self._run.id, "workflow": self._run.workflow},
        )

    def history_too_long(self) -> None:
        """Log, once in a process for each run, that its history is longer than is reasonable."""
        if self._run.id in _told_of_length:
            return
        _told_of_length.append(self._run.id)
        logger.warning(
            "run %s of %s has more than %s entries in its history: each pass loads them all, and each takes a kilobyte or "
            "more of the worker's memory. Let ctx.loop iterate, which deletes the entries of old iterations, or give parts of the "
            "work to children",
            self._run.id,
            self._run.workflow,
            f"{TOO_LONG_HISTORY:,}",
            extra={"run_id": self._run.id, "workflow": self._run.workflow},
        )

    def lease_lost(self) -> None:
        """Log that a commit was refused because another worker has claimed the run."""
        logger.warning(
            "run %s was taken over by another worker (fence %d is no longer the newest): nothing was written",
            self._run.id,
            self._run.fence,
        )


def _looked_up(states: Callable[[Sequence[str]], Mapping[str, str]], ids: Sequence[str]) -> Mapping[str, str]:
    try:
        return states(ids)
    except DATABASE_TROUBLE as error:  # the children are started, whatever the store says now
        logger.warning("the states of started children cannot be read: %s: %s", type(error).__name__, error)
        return {}


def _log(event: Event, details: Mapping[str, Any]) -> None:
    """Log events that operators search the log for, even without a signal receiver."""
    run, workflow, error = details["run"], details["workflow"], details.get("error")
    where = details.get("location", "")
    extra: dict[str, Any] = {"run_id": run, "workflow": workflow, "location": where}  # as `durable.logs.RunFilter` does
    if event.name == "run_failed":
        extra["location"] = failed_at(error, ())
        if event.cause is not None:
            extra["cause"] = [event.cause.place, event.cause.error_type, event.cause.pattern]
        # with the exception: an error tracker groups failed runs by it
        if details["is_mistake"]:
            logger.error(
                "run %s of %s stopped: %s: %s", run, workflow, STOPPED, error, exc_info=event.exception, extra=extra
            )
        else:
            logger.error("run %s of %s failed: %s", run, workflow, error, exc_info=event.exception, extra=extra)
    elif event.name == "run_diverged":
        logger.error("run %s of %s: this code does not fit its history: %s", run, workflow, error, extra=extra)
    elif event.name == "run_mistaken":
        text = "run %s of %s: a mistake in the code, tried again at %s: %s"
        logger.error(text, run, workflow, _moment(details["retry_at"]), error, extra=extra)
    elif event.name == "step_unknown":
        text = "run %s: nobody knows whether step %s%s was done: %s; its verify is asked"
        attempt = f", attempt {details['attempt']}," if details["attempt"] else ""  # of a run in doubt none is recorded
        logger.warning(text, run, where, attempt, error, extra=extra)
    elif event.name == "step_held":
        error = details["error"]
        extra["cause"] = [numberless(place_of(where)), error.type, pattern_of(error.message)]
        known = (
            "its attempts are used up" if details["reason"] == HeldReason.EXHAUSTED else "nobody knows if it was done"
        )
        text = "run %s of %s waits for a person: step %s%s: %s: %s"
        attempt = f", attempt {details['attempt']}" if details["attempt"] else ""
        logger.error(text, run, workflow, where, attempt, known, error, extra=extra)
    else:
        what = "step" if event.name == "step_failed" else "rollback handler of"
        then = f"tried again at {_moment(details['retry_at'])}" if details["will_retry"] else "not tried again"
        text = "run %s: %s %s failed, attempt %d: %s; %s"
        logger.log(_level(details), text, run, what, where, details["attempt"], error, then, extra=extra)


def _moment(moment: datetime) -> str:
    """Return a moment with its day: the next attempt may be days away."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _level(details: Mapping[str, Any]) -> int:
    """Return the log level of a failed attempt: low for one that the code expects.

    If it ends the run, that is logged as an error.
    """
    return logging.INFO if details.get("is_caught") and not details["will_retry"] else logging.WARNING


# The reasons of an eviction after which the pass may write nothing more.
LEASE_LOST = "lease_lost"
COMMITS_LOST = "commits_lost"


class Eviction:
    """Tells a pass, from any thread, that it has to end.

    `lease_ends_at` (monotonic) is when the lease expires unless it is renewed. A process that was suspended for longer
    notices that by its own clock, even before the renewing thread runs again. `is_changing_fence` is True while the
    pass raises its own fence, when the lease may seem lost under the old fence.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        self.lease_ends_at = math.inf
        self.is_changing_fence = False
        #: The operator's request of the run, as last read from the database.
        self.asked = ""
        #: What the pass shows of its run, None before it shows anything.
        self.status: StatusSlot | None = None

    @property
    def requested(self) -> bool:
        return self._event.is_set() or self._is_past_lease()

    @property
    def is_lost(self) -> bool:
        """True if the pass may write nothing more: another worker may have claimed the run, or commits are lost."""
        return self.reason in (LEASE_LOST, COMMITS_LOST) or self._is_past_lease()

    def _is_past_lease(self) -> bool:
        return time.monotonic() >= self.lease_ends_at

    @property
    def why(self) -> str:
        """The reason why the pass has to end, or else the operator's request; "" for none."""
        return self.reason or (LEASE_LOST if self._is_past_lease() else self.asked)

    def request(self, reason: str) -> None:
        """End the pass at its next operation."""
        self.reason = self.reason or reason
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until the pass has to end."""
        self._event.wait(seconds)


class PassEnvironment:
    """The environment of one pass of `run`."""

    def __init__(
        self,
        run: RunRecord,
        at: Runtime,
        *,
        eviction: Eviction,
        transactions: OpenTransactions,
        events: PassEvents,
        mistakes: tuple[type[Exception], ...],
    ) -> None:
        self._run = run
        self._codec = at.codec
        self._binding = binding(at.codec)
        self._eviction = eviction
        self.worker = run.worker
        self.build = conf.build
        self.short_sleep = conf.SHORT_SLEEP if at.short_sleep is None else at.short_sleep
        self.step_timeout = conf.STEP_TIMEOUT
        self.ask_timeout = conf.ASK_TIMEOUT
        self.max_uncounted_retries = conf.MAX_UNCOUNTED_RETRIES
        self.mistakes = mistakes
        self.now: Callable[[], datetime] = at.now
        self._monotonic = at.monotonic
        self._began = at.monotonic()
        self.emit = events.emit
        self.messages_of: Callable[[str], MessageTypes | None] = at.messages_of
        self.resolve: Callable[[str], Callable[..., Any]] = resolve_name
        self.on_save = at.on_save
        self._on_status = at.on_status
        self._deliver_chunk = send_chunk if at.chunks is None else at.chunks.append
        self.stored_tags: Callable[[Mapping[str, str]], dict[str, str]] = stored_tags
        self.is_in_transaction = transactions.is_open
        self._hidden = HiddenTokens()

    def on_status(self, slot: StatusSlot, *, in_step: bool) -> None:
        self._eviction.status = slot
        if in_step and self._on_status is not None and (newest := slot.newest()) is not None:
            self._on_status(newest)

    def encode(
        self,
        value: Any,
        what: str,
        field: str,
        where: str,
        of_run: str | None = None,
        *,
        is_collected: bool = False,
    ) -> str:
        if is_collected:
            text = encode_at(without_limit(self._codec), value, what, Place(of_run or self._run.id, field, where))
        elif self._binding is None:
            text = self._codec.encode(value, what=what)
        else:
            text = self._binding.encode(value, what=what, place=Place(of_run or self._run.id, field, where))
        # another run needs the address itself
        return self._hidden.hide(text) if self._hidden and of_run in (None, self._run.id) else text

    def decode(self, text: str | None, field: str, where: str) -> Any:
        if text is None:
            return None
        if self._hidden:
            text = self._hidden.show(text)
        if self._binding is None:
            return self._codec.decode(text)
        return self._binding.decode(text, place=Place(self._run.id, field, where))

    def adopt(self, text: str, run_id: str, where: str) -> str:
        return rebound(self._codec, text, Place(run_id, "output"), Place(self._run.id, "output", where))

    def decode_input(self) -> Any:
        """Return a fresh copy of the run's input, `{"args": [...], "kwargs": {...}}`. Raises PayloadError."""
        what = f"the input of {self._run.workflow}"
        if self._binding is None:
            return self._codec.decode(self._run.input, what=what)
        return self._binding.decode(self._run.input, what=what, place=Place(self._run.id, "input"))

    def on_chunk(self, location: str, attempt: int, number: int, chunk: Any) -> None:
        what = f'a chunk of step "{location}"'
        text = self.encode(chunk, what, "chunk", location)
        if (size := len(text.encode(errors="surrogatepass"))) > MOST_OF_CHUNK:
            advice = "emit smaller parts: readers get each as it is made"
            raise PayloadError(what, "$", f"{size:,} bytes as text, and {MOST_OF_CHUNK:,} are allowed", advice)
        self._send_chunk(location, attempt, number, text)

    def on_stream_end(self, location: str, attempt: int) -> None:
        self._send_chunk(location, attempt, 0, None)

    def _send_chunk(self, location: str, attempt: int, number: int, text: str | None) -> None:
        run = self._run
        chunk = StepChunk(
            run_id=run.id,
            queue=run.queue,
            location=location,
            fence=run.fence,
            attempt=attempt,
            number=number,
            text=text,
        )
        self._deliver_chunk(chunk)

    def worked(self) -> float:
        return self._monotonic() - self._began

    def is_evicted(self) -> bool:
        return self._eviction.requested

    def is_asked(self) -> bool:
        return bool(self._eviction.asked)

    def eviction_reason(self) -> str:
        return self._eviction.why

    def new_id(self) -> str:
        return new_id()

    def new_link(self) -> dict[str, str]:
        return new_link(self._run.id)

    def know_link(self, data: Mapping[str, Any]) -> str | None:
        token = token_of(self._run.id, data)
        if token is not None:
            self._hidden.know(data["id"], token)
        return token
