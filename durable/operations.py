"""The verbs: everything that starts, steers or reads a run from outside a pass.

Each verb validates, changes the run in one atomic step of the store, and rings the bell. Inside a transaction of the
caller's it happens if and when that transaction commits. Surfaces and handles go through here; nothing here runs
workflow code.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from durable import backend, signals
from durable.backend import Backend
from durable.core.current import running_run
from durable.core.entries import (
    ENDED,
    Entry,
    Kind,
    MessageState,
    OutgoingMessage,
    Request,
    RunChange,
    RunPatch,
    RunRecord,
    RunState,
    Status,
)
from durable.core.errors import (
    InvalidTransitionError,
    RunCancelledError,
    RunConflictError,
    RunFailedError,
    RunNotFoundError,
)
from durable.core.location import ANY_QUEUE, escape, unescape
from durable.core.recovery import recover as recovery_of
from durable.core.rollback import is_compensable
from durable.history import HistoryEntry, readable
from durable.ids import MAX_ID, check_id, new_id

__all__ = [
    "StartRequest",
    "ask",
    "cancel",
    "history",
    "output",
    "pause",
    "record",
    "recover",
    "restart",
    "result",
    "resume",
    "send",
    "start",
    "waiting_for",
    "wake",
]

_LOOK_EVERY = (0.01, 0.5)  # seconds between two looks for a result: the first, the longest
_UNENDED = tuple(each for each in RunState if each not in ENDED)

Call = tuple[str | None, tuple[Any, ...], dict[str, Any]]


# -- starting


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What to start, and how. `delay` is in seconds."""

    workflow: str
    function: Callable[..., Any]
    queue: str
    delay: float = 0.0
    refuses_existing: bool = False


def start(request: StartRequest, calls: Sequence[Call]) -> list[str]:
    """Start a run for each call (id or None, arguments, keywords), in one statement; their ids, in order.

    Raises TypeError for arguments that do not fit, ValueError for an id that cannot be one, PayloadError, and
    RunConflictError for an id that is taken by another workflow or input.
    """
    at = backend.current()
    signature = inspect.signature(request.function)
    runs = [_new_run(at, request, call, signature) for call in calls]
    if not runs:
        return []
    created = at.store.create(runs)
    for wanted, (found, is_new) in zip(runs, created, strict=True):
        if not is_new:
            _check_same(at, request, wanted, found)
    new = [run for run, is_new in created if is_new]
    if new:
        _announce(at, request.queue, new[0].wake_at)
        for run in new:
            _tell(run, previous="")
    return [run.id for run in runs]


def _new_run(at: Backend, request: StartRequest, call: Call, signature: inspect.Signature) -> RunRecord:
    run_id, args, kwargs = call
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{request.workflow} cannot be started with these arguments: {error}") from None
    now = at.now()
    return RunRecord(
        id=new_id() if run_id is None else check_id(run_id),
        workflow=request.workflow,
        queue=request.queue,
        input=at.codec.encode({"args": list(args), "kwargs": kwargs}, what=f"the input of {request.workflow}"),
        created_at=now,
        wake_at=now + timedelta(seconds=request.delay),
        parent_id=running_run(),
    )


def _check_same(at: Backend, request: StartRequest, wanted: RunRecord, found: RunRecord) -> None:
    if request.refuses_existing:
        raise RunConflictError(found.id, 'and on_conflict="error" was asked for')
    if found.workflow != wanted.workflow:
        raise RunConflictError(found.id, f'as a run of "{found.workflow}", not of "{wanted.workflow}"')
    if found.input != wanted.input and at.codec.decode(found.input) != at.codec.decode(wanted.input):
        raise RunConflictError(found.id, f'as a run of "{found.workflow}" with another input')


# -- reading


def record(run_id: str) -> RunRecord:
    """The run's row. Raises RunNotFoundError."""
    found = backend.current().store.get(run_id)
    if found is None:
        raise RunNotFoundError(run_id)
    return found


def output(run_id: str) -> Any:
    """What the workflow returned; None before."""
    return _decode(backend.current(), record(run_id).output)


def waiting_for(run_id: str) -> list[str] | None:
    """The queues of which the run waits for a message, [] for any; None if it waits for none."""
    text = record(run_id).waiting_for
    if not text:
        return None
    return [] if text == ANY_QUEUE else [unescape(each) for each in text.strip("/").split("/")]


def history(run_id: str) -> list[HistoryEntry]:
    """The records of the run's operations, in the order in which they began. Raises RunNotFoundError."""
    at = backend.current()
    entries = at.store.history(run_id)
    if not entries:
        record(run_id)
    return [readable(entry, lambda text: _decode(at, text)) for entry in entries]


def result(run_id: str, timeout: float | None) -> Any:
    """Wait until the run has ended; its output. Raises RunFailedError, RunCancelledError, TimeoutError."""
    at = backend.current()
    run = _wait(at, lambda: _ended(run_id), timeout, f'run "{run_id}" has not ended')
    if run.state == RunState.FAILED:
        assert run.error is not None
        raise RunFailedError(run_id, run.error)
    if run.state == RunState.CANCELLED:
        raise RunCancelledError(run_id, run.request_reason)
    return _decode(at, run.output)


def _ended(run_id: str) -> RunRecord | None:
    run = record(run_id)
    return run if run.state in ENDED else None


def _wait(at: Backend, look: Callable[[], Any], timeout: float | None, problem: str) -> Any:
    """Look again and again, less and less often, until there is something. Raises TimeoutError."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause, longest = _LOOK_EVERY
    while (found := look()) is None:
        left = longest if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{problem} after {timeout:g} s; it goes on, look again later")
        at.pause(min(pause, left))
        pause = min(pause * 1.5, longest)
    return found


# -- messages


def send(run_id: str, queue: str, body: Any, *, idempotency_id: str | None = None) -> str:
    """Send a message; its id. Raises RunNotFoundError, InvalidTransitionError for an ended run, PayloadError."""
    at = backend.current()
    escape(queue)
    message = OutgoingMessage(
        id=new_id(),
        to=run_id,
        queue=queue,
        body=at.codec.encode(body, what=f'the body of a message to "{queue}"'),
        sent_at=at.now(),
        idempotency_id=_checked_message_id(idempotency_id),
    )
    run = record(run_id)
    if run.state in ENDED and (sent := _sent_before(at, run_id, idempotency_id)):
        return sent
    _check_state(run, "send to", _UNENDED)
    stored, ring = at.store.send([message])
    if stored[0] is None:
        raise RunNotFoundError(run_id)
    if ring:
        at.ring(ring)
    return stored[0].id


def _sent_before(at: Backend, run_id: str, idempotency_id: str | None) -> str | None:
    """The id of the message that was sent with this idempotency id, before the run ended."""
    if idempotency_id is None:
        return None
    return next((each.id for each in at.store.messages(run_id) if each.idempotency_id == idempotency_id), None)


def _checked_message_id(idempotency_id: str | None) -> str | None:
    if idempotency_id is None:
        return None
    if not isinstance(idempotency_id, str):
        raise TypeError(f"a message's id is text, not {idempotency_id!r}: write id=str(...)")
    if not (1 <= len(idempotency_id) <= MAX_ID and idempotency_id.isprintable()):
        raise ValueError(f"a message's id is made of 1 to {MAX_ID} printable characters: {idempotency_id[:64]!r}")
    return idempotency_id


def ask(run_id: str, queue: str, body: Any, *, timeout: float | None, idempotency_id: str | None = None) -> Any:
    """Send a message and wait for its response. Raises what `send` raises, and TimeoutError."""
    at = backend.current()
    message_id = send(run_id, queue, body, idempotency_id=idempotency_id)

    def look() -> Any:
        message = at.store.message(message_id)
        return message if message is not None and message.state == MessageState.COMPLETED else None

    message = _wait(at, look, timeout, f'run "{run_id}" has not answered the message to "{queue}"')
    return _decode(at, message.response)


# -- steering


def wake(run_id: str, *, end_sleeps: bool = False) -> None:
    """Give the run a pass now and try steps in backoff at once; with `end_sleeps`, end its sleeps too."""
    allowed = (RunState.PENDING, RunState.SLEEPING, RunState.RUNNING, RunState.ROLLING_BACK)

    def decide(run: RunRecord, entries: Callable[[], list[Entry]]) -> RunChange:
        _check_state(run, "wake", allowed)
        now = at.now()
        changed = [woken for each in entries() if (woken := _woken(each, end_sleeps, now))]
        return RunChange(run={"wake_at": now, "signal": run.signal + 1}, entries=changed)

    at = backend.current()
    _changed(at, run_id, decide)


def _woken(entry: Entry, end_sleeps: bool, now: datetime) -> Entry | None:
    if entry.kind == Kind.STEP and entry.status == Status.FAILED and entry.next_attempt_at is not None:
        return replace(entry, next_attempt_at=None)
    if entry.kind == Kind.STEP and is_compensable(entry) and entry.data["rollback"].get("retry_at"):
        return replace(entry, data={**entry.data, "rollback": {**entry.data["rollback"], "retry_at": None}})
    if end_sleeps and entry.kind == Kind.SLEEP and entry.data.get("state") == "pending":
        return replace(entry, status=Status.COMPLETED, completed_at=now, data={**entry.data, "state": "interrupted"})
    return None


def pause(run_id: str) -> None:
    """Stop the run until it is resumed: a parked one at once, a running one at its next operation."""
    allowed = (RunState.PENDING, RunState.SLEEPING, RunState.RUNNING, RunState.ROLLING_BACK)

    def decide(run: RunRecord, _entries: Callable[[], list[Entry]]) -> RunChange:
        _check_state(run, "pause", allowed)
        if _is_held(at, run):
            return RunChange(run={"request": Request.PAUSE, "signal": run.signal + 1})
        patch = _unheld(RunState.PAUSED)
        patch |= {"wake_at": None, "summary": "paused"}
        return RunChange(run=patch, raise_fence=True)

    at = backend.current()
    _changed(at, run_id, decide)


def resume(run_id: str) -> None:
    """Let a paused run go on, or take back a pause that a running one has not come to."""

    def decide(run: RunRecord, _entries: Callable[[], list[Entry]]) -> RunChange:
        if run.request == Request.PAUSE:
            return RunChange(run={"request": Request.NONE})
        _check_state(run, "resume", (RunState.PAUSED,))
        state = RunState.ROLLING_BACK if run.outcome else RunState.PENDING
        return RunChange(run={"state": state, "wake_at": at.now(), "summary": "resumed", "signal": run.signal + 1})

    at = backend.current()
    _changed(at, run_id, decide)


def cancel(run_id: str, *, reason: str = "", rollback: bool = False) -> None:
    """End the run for good: a parked one at once, a running one at its next operation; with `rollback`, compensate."""
    allowed = (RunState.PENDING, RunState.SLEEPING, RunState.RUNNING, RunState.PAUSED)

    def decide(run: RunRecord, entries: Callable[[], list[Entry]]) -> RunChange:
        _check_state(run, "cancel", allowed)
        now = at.now()
        if run.outcome:  # paused while it compensates
            raise InvalidTransitionError(RunState.ROLLING_BACK, allowed, "cancel")
        if _is_held(at, run):
            request = Request.CANCEL_ROLLBACK if rollback else Request.CANCEL
            return RunChange(run={"request": request, "request_reason": reason, "signal": run.signal + 1})
        patch = _unheld(RunState.CANCELLED)
        patch["request_reason"] = reason
        if rollback and any(is_compensable(entry) for entry in entries()):
            patch |= {"state": RunState.ROLLING_BACK, "outcome": RunState.CANCELLED, "wake_at": now}
            patch |= {"summary": "compensating", "signal": run.signal + 1}
        else:
            patch |= {
                "wake_at": None,
                "finished_at": now,
                "waiting_for": "",
                "summary": reason and f"cancelled: {reason}",
            }
        return RunChange(run=patch, raise_fence=True)

    at = backend.current()
    _changed(at, run_id, decide)


def recover(run_id: str) -> None:
    """Let a failed run go on: what made it fail is tried again, what it compensated is done again."""

    def decide(run: RunRecord, entries: Callable[[], list[Entry]]) -> RunChange:
        _check_state(run, "recover", (RunState.FAILED,))
        return recovery_of(run, entries(), at.now())

    at = backend.current()
    _changed(at, run_id, decide)


def restart(run_id: str) -> str:
    """Start a new run of the same workflow with the same input; its id."""
    at = backend.current()
    old = record(run_id)
    now = at.now()
    new = RunRecord(
        id=new_id(),
        workflow=old.workflow,
        queue=old.queue,
        input=old.input,
        created_at=now,
        wake_at=now,
        replay_of_id=old.id,
    )
    at.store.create([new])
    at.ring({new.queue})
    _tell(new, previous="")
    return new.id


# -- details


def _changed(at: Backend, run_id: str, decide: Callable[[RunRecord, Callable[[], list[Entry]]], RunChange]) -> None:
    previous = ""

    def remembering(run: RunRecord, entries: Callable[[], list[Entry]]) -> RunChange:
        nonlocal previous
        previous = run.state
        return decide(run, entries)

    changed = at.store.change(run_id, remembering)
    _announce(at, changed.queue, changed.wake_at)
    if changed.state != previous:
        _tell(changed, previous)


def _announce(at: Backend, queue: str, wake_at: datetime | None) -> None:
    """Tell workers that a run is due, or timers when it will be."""
    if wake_at is None:
        return
    if wake_at <= at.now():
        at.ring({queue})
    else:
        at.alarm(queue, wake_at)


def _check_state(run: RunRecord, action: str, allowed: Sequence[RunState]) -> None:
    if run.state not in allowed:
        raise InvalidTransitionError(run.state, allowed, action)


def _is_held(at: Backend, run: RunRecord) -> bool:
    """Whether a worker is passing the run now."""
    return run.lease_expires_at is not None and run.lease_expires_at > at.now()


def _unheld(state: RunState) -> RunPatch:
    return {"state": state, "lease_expires_at": None, "worker": "", "request": ""}


def _tell(run: RunRecord, previous: str) -> None:
    signals.send(signals.run_changed, run=run.id, workflow=run.workflow, state=str(run.state), previous=str(previous))


def _decode(at: Backend, text: str | None) -> Any:
    return None if text is None else at.codec.decode(text)
