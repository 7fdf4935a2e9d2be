"""Messages to runs and their responses, and sends that start a run if none is open under their key."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from durable import runtime
from durable.core.duration import Duration, parse_remaining
from durable.core.errors import (
    InvalidTransitionError,
    MessageConflictError,
    MessageNotPendingError,
    MessageRefusedError,
    RunNotFoundError,
    StartRefusedError,
)
from durable.core.ids import MAX_ID, new_id
from durable.core.messages import check_queue_of_send
from durable.core.places import of_message, of_start
from durable.core.records import (
    ENDED,
    KeyedSend,
    Message,
    MessageState,
    OutgoingMessage,
    Request,
    RunChange,
    RunRecord,
    RunState,
)
from durable.core.words import Sentence, gettext_noop
from durable.instrumentation.observers import observe_verb
from durable.notifier import redis_clients
from durable.operations import audit
from durable.operations.audit import ActorScope, Attribution, audited
from durable.operations.common import (
    UNENDED,
    Waiting,
    await_for,
    check_not_an_order,
    check_state,
    describe_state,
    require_step,
    wait_for,
    waiting,
)
from durable.operations.queries import check_not_lost, record
from durable.operations.start import Call, Started, StartRequest, start
from durable.operations.start_options import note_refused
from durable.runtime import Runtime

logger = logging.getLogger("durable.operations")

#: At most one log line each half minute: a sender may use any id.
_log_this = redis_clients.LogThrottle()

#: The states of a message that its run has answered.
ANSWERED: Final = frozenset({MessageState.COMPLETED, MessageState.REFUSED})


class Sent(NamedTuple):
    """A message in a run's inbox: its id, and whether this send put it there."""

    id: str
    is_new: bool


def send(run_id: str, queue: str, body: Any, *, idempotency_id: str | None = None) -> Sent:
    """Send a message. If one was sent with the same `idempotency_id`, return that one and send nothing.

    Raises RunNotFoundError, InvalidTransitionError for an ended run, PayloadError, MessageNotAcceptedError for a
    message that the workflow does not declare, and MessageConflictError if the earlier message has another queue or
    body.
    """
    return _sent("send", run_id, queue, body, idempotency_id)


def _sent(action: str, run_id: str, queue: str, body: Any, idempotency_id: str | None) -> Sent:
    with observe_verb(action, queue, [run_id]):
        return _attributed(action, run_id, queue, body, idempotency_id)


def _attributed(action: str, run_id: str, queue: str, body: Any, idempotency_id: str | None) -> Sent:
    at = runtime.current()
    if audit.acting() is None:  # the application's own traffic, which is not logged
        message = _message(at, run_id, queue, body, idempotency_id)
        return _same(at, message, _put(at, message, body), acting=None)
    with audited(at, action, run_id) as attribution:
        message = _message(at, run_id, queue, body, idempotency_id)
        with at.store.transaction():
            run = attribution.lock()
            sent = _same(at, message, _put(at, message, body), attribution.acting)
            detail = _logged(sent.id, queue) + ("" if sent.is_new else ": was there already")
            at.store.log([attribution.done(before=run.state, after=run.state, detail=detail)])
        return sent


def _message(at: Runtime, run_id: str, queue: str, body: Any, idempotency_id: str | None) -> OutgoingMessage:
    if idempotency_id is None:
        require_step(f'sending to "{queue}"', "use ctx.queue.send(queue, body, to=...), or give the message an id")
    queue = check_queue_of_send(queue)
    message_id = new_id()
    return OutgoingMessage(
        id=message_id,
        to=run_id,
        queue=queue,
        body=at.encode(body, f'the body of a message to "{queue}"', of_message(run_id, "message", message_id, queue)),
        sent_at=at.now(),
        idempotency_id=_checked_message_id(idempotency_id),
    )


def _logged(message_id: str, queue: str) -> str:
    return f'message {message_id} to "{queue}"'


def _same(at: Runtime, wanted: OutgoingMessage, found: Message, acting: ActorScope | None) -> Sent:
    """Return the earlier send. Raises MessageConflictError if its message differs."""
    if found.id == wanted.id:
        return Sent(found.id, is_new=True)
    assert wanted.idempotency_id is not None
    if acting is not None and not acting.may_compare(found.run_id, ("send", "ask"), _logged(found.id, found.queue)):
        problem = "by another user; the permission durable.view_payload is needed to learn whether it is the same one"
    elif found.queue != wanted.queue:
        problem = f'to the queue "{found.queue}", not to "{wanted.queue}"'
    elif found.body != wanted.body and _body_of(at, found.run_id, found) != _body_of(at, wanted.to, wanted):
        problem = "with another body"
    else:
        return Sent(found.id, is_new=False)
    raise MessageConflictError(found.run_id, wanted.idempotency_id, problem)


def _body_of(at: Runtime, run_id: str, message: Message | OutgoingMessage) -> Any:
    return at.decode(message.body, of_message(run_id, "message", message.id, message.queue))


def _receiver(run_id: str) -> RunRecord:
    """Return the run. Raises RunNotFoundError, and logs it, because senders often ignore the error."""
    try:
        return record(run_id)
    except RunNotFoundError:
        if _log_this("no receiver"):
            logger.warning(
                "a message to run %s is refused, because there is no such run. If it was started, it has been pruned, or the "
                "database has lost it: a standby that lagged was promoted, or a backup was restored",
                ascii(run_id[:200]),
            )
        raise


def _put(at: Runtime, message: OutgoingMessage, body: Any) -> Message:
    """Put the message into the run's inbox; return it as stored, or the earlier one with its idempotency id.

    The body is checked against the workflow's declaration, if this process knows it.
    """
    run = _receiver(message.to)
    check_not_an_order(run.workflow, "send to")
    if run.state in ENDED and message.idempotency_id is not None:
        before = at.store.sent_before(run.id, message.idempotency_id)
        if before is not None:
            return before
    check_state(run, "send to", UNENDED)
    if (declared := at.messages_of(run.workflow)) is not None:
        declared.check(run.workflow, message.queue, body)
    stored, queues = at.store.send([message])
    if stored[0] is None:
        raise RunNotFoundError(message.to)
    if queues:
        at.notify(queues)
    return stored[0]


def delete_message(run_id: str, message_id: str) -> None:
    """Delete a message that the run has not received. A caller that waits for its answer keeps waiting.

    Its idempotency id becomes free. Raises RunNotFoundError, MessageNotPendingError, and InvalidTransitionError while a
    worker executes the run, because the run may receive the message at any moment.
    """
    at = runtime.current()
    with audited(at, "delete_message", run_id) as attribution:
        _taken_out(at, attribution, message_id, "")


def move_message(run_id: str, message_id: str, to: str) -> None:
    """Move a message that the run has not received to the end of another run's inbox; it keeps its id.

    Raises the errors of `delete_message` for the first run and of `send` for the other; nothing is done then.
    """
    at = runtime.current()
    with audited(at, "move_message", run_id) as attribution, at.store.transaction():
        target = record(to)
        if to == run_id:
            raise ValueError(f'the message is in the inbox of the run "{run_id}" already')
        attribution.check_sees(to)
        for each in sorted((run_id, to)):  # in one order, so that two operators who move messages do not deadlock
            at.store.change(each, lambda run, _entries: RunChange(run={"change_seq": run.change_seq}))
        message = _taken_out(at, attribution, message_id, f" moved to run {to}")
        body = at.copied(
            message.body,
            of_message(run_id, "message", message.id, message.queue),
            of_message(to, "message", message.id, message.queue),
        )
        moved = OutgoingMessage(
            id=message.id,
            to=to,
            queue=message.queue,
            body=body,
            sent_at=message.sent_at,
            idempotency_id=message.idempotency_id,
        )
        if _put(at, moved, _body_of(at, to, moved)).id != message.id:
            problem = "and keeps that one"
            raise MessageConflictError(to, message.idempotency_id or "", problem)
        told = f"{_logged(message.id, message.queue)}: moved from run {run_id}"
        at.store.log([attribution.done(before=target.state, after=target.state, detail=told, run_id=to)])


def _taken_out(at: Runtime, attribution: Attribution, message_id: str, told: str) -> Message:
    """Delete the message from the inbox of the run, and return it."""
    found: list[Message] = []

    def decide(run: RunRecord, _entries: object) -> RunChange:
        attribution.check_seen(run)
        check_not_an_order(run.workflow, "delete a message of")
        message = at.store.message(message_id)
        if message is None or message.run_id != run.id or message.state != MessageState.PENDING:
            is_received = message is not None and message.run_id == run.id
            raise MessageNotPendingError(run.id, message_id, is_received=is_received)
        if run.lease_expires_at is not None:
            text = gettext_noop(
                'cannot take a message from run "{run}": a worker has the run, and may receive the message at any moment; '
                "pause the run first, or try again when it waits"
            )
            problem = Sentence(text, run=run.id)
            raise InvalidTransitionError(run.state, UNENDED, attribution.action, run.id, problem=problem)
        found.append(message)
        detail = f"{_logged(message.id, message.queue)}:{told or ' deleted'}"
        action = attribution.done(before=run.state, after=run.state, detail=detail)
        # what was remembered of the run's history has the message
        return RunChange(run={"change_seq": run.change_seq + 1}, retracted=[message.id], action=action)

    at.store.change(attribution.run_id, decide)
    return found[0]


def _checked_message_id(idempotency_id: str | None) -> str | None:
    if idempotency_id is None:
        return None
    if not isinstance(idempotency_id, str):
        raise TypeError(f"a message's id is text, not {idempotency_id!r}: write id=str(...)")
    if not (1 <= len(idempotency_id) <= MAX_ID and idempotency_id.isprintable()):
        raise ValueError(f"a message's id is made of 1 to {MAX_ID} printable characters: {idempotency_id[:64]!r}")
    return idempotency_id


def ask(run_id: str, queue: str, body: Any, *, timeout: Duration | None, idempotency_id: str | None = None) -> Any:
    """Send a message and wait for its response. Raises the errors of `send`, MessageRefusedError and TimeoutError.

    If the run ends without an answer, RunFailedError, RunCancelledError or TimeoutError is raised at once.
    """
    return _response(wait_for(_asking(run_id, queue, body, timeout, idempotency_id)))


async def aask(
    run_id: str,
    queue: str,
    body: Any,
    *,
    timeout: Duration | None,  # noqa: ASYNC109  # the twin of ask()
    idempotency_id: str | None = None,
) -> Any:
    """`ask`, from an event loop."""
    return _response(await await_for(_asking(run_id, queue, body, timeout, idempotency_id)))


def _asking(
    run_id: str, queue: str, body: Any, timeout: Duration | None, idempotency_id: str | None
) -> Waiting[Message]:
    """Send the message in the first step of the wait, then poll for its response."""
    at = runtime.current()
    left = None if timeout is None else parse_remaining(timeout, "a timeout")  # refused before the message is sent
    message_id = _sent("ask", run_id, queue, body, idempotency_id).id
    return (
        yield from waiting(
            lambda: _answered(at, run_id, message_id),
            left,
            f'run "{run_id}" has not answered the message to "{queue}"',
            lambda: describe_state(record(run_id), at.now()),
        )
    )


def _response(message: Message) -> Any:
    place = of_message(message.run_id, "response", message.id, message.queue)
    response = runtime.current().decode(message.response, place)
    if message.state == MessageState.REFUSED:
        raise MessageRefusedError(str(response), message.run_id)
    return response


def _answered(at: Runtime, run_id: str, message_id: str) -> Message | None:
    """Return the message once it is completed or refused. Raises if the run has ended without either."""
    run = record(run_id)  # before the message: what the run did before it ended is seen below
    message = at.store.message(message_id)
    if message is not None and message.state in ANSWERED:
        return message
    check_not_lost(run)
    if run.state == RunState.COMPLETED:
        raise TimeoutError(f'run "{run_id}" has completed without answering the message')
    return None


_RECEIVING = tuple(each for each in UNENDED if each != RunState.ROLLING_BACK)


def start_or_send(request: StartRequest, call: Call, queue: str, body: Any) -> Started:
    """Send a message to the open run with the request's key; if there is none, start it in the same transaction.

    Raises the errors of `start` and `send`, and InvalidTransitionError if the open run is being cancelled or
    compensated: it has the key until its end, but would not receive the message.
    """
    assert request.key is not None
    try:
        with observe_verb("start_or_send", request.workflow) as verb:
            started = _start_or_send(request, call, queue, body)
            verb.runs = [started.id]
            return started
    except StartRefusedError as refusal:  # what `start` had recorded was rolled back
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
        sent = send(started.id, queue, body)
        at.store.note_keyed_sends([_noted(at, request, call, started, sent.id)])
    return started


def _noted(at: Runtime, request: StartRequest, call: Call, started: Started, message_id: str) -> KeyedSend:
    """Return the record of the message, with the input of the run that it would have started."""
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
