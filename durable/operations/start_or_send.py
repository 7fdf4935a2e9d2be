"""Sending a message to the open run that has a key, or starting one and sending to that."""

from __future__ import annotations

from typing import Any

from durable import runtime
from durable.core.errors import InvalidTransitionError, StartRefusedError
from durable.core.places import of_start
from durable.core.records import KeyedSend, Request, RunRecord, RunState
from durable.core.words import Sentence, gettext_noop
from durable.operations import messages
from durable.operations.common import UNENDED
from durable.operations.start import Call, Started, StartRequest, start
from durable.operations.start_rates import note_refused
from durable.runtime import Runtime

_RECEIVING = tuple(each for each in UNENDED if each != RunState.ROLLING_BACK)


def start_or_send(request: StartRequest, call: Call, queue: str, body: Any) -> Started:
    """Start a run with the request's key unless one is open, and send it the message: both or nothing.

    Raises what `start` and `send` raise, and InvalidTransitionError for an open run that is being cancelled or
    compensated: it has the key until it has ended, and would not receive the message.
    """
    assert request.key is not None
    try:
        return _start_or_send(request, call, queue, body)
    except StartRefusedError as refusal:  # what `start` has noted was rolled back
        note_refused(runtime.current(), refusal)
        raise


def _start_or_send(request: StartRequest, call: Call, queue: str, body: Any) -> Started:
    at = runtime.current()
    assert request.key is not None
    with at.store.transaction():
        while True:
            started = start(request, [call])[0]
            if started.is_new or started.id == call[0]:
                break
            holder = at.store.key_holder(request.workflow, request.key.key, lock=True)
            if holder is not None and holder.id == started.id:  # otherwise the run has ended meanwhile
                _check_receives(holder)
                break
        sent = messages.send(started.id, queue, body)
        at.store.note_keyed_sends([_noted(at, request, call, started, sent.id)])
    return started


def _noted(at: Runtime, request: StartRequest, call: Call, started: Started, message_id: str) -> KeyedSend:
    """Return the message, with the input of the run that it would have started."""
    if started.is_new:
        return KeyedSend(message_id=message_id, run_id=started.id, was_first=True)
    _, args, kwargs = call
    given = {"args": list(args), "kwargs": kwargs}
    place = of_start(started.id, message_id)
    text = at.encode(given, f"the input of {request.workflow}", place)
    return KeyedSend(message_id=message_id, run_id=started.id, input=text)


def _check_receives(run: RunRecord) -> None:
    if run.state == RunState.ROLLING_BACK or run.pending_request in (Request.CANCEL, Request.CANCEL_ROLLBACK):
        text = gettext_noop(
            'cannot send to run "{run}": it is being cancelled or compensated, and has the key until it has ended; try again then'
        )
        raise InvalidTransitionError(run.state, _RECEIVING, "send to", run.id, problem=Sentence(text, run=run.id))
