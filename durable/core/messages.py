"""Messages: waits that receive them, their completion, and sends.

Owns their records. A wait is one entry, which exists from the start of the wait and has its deadline. The receipt of a
message and its record are one commit.

A body is recorded as it was sent. When the message is received, its body is checked against the type that the code asks
for; whenever the code gets it, it is converted to that type. A misfit is recorded beside the body, permanently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from durable.core.body_types import Fault, Misfit, check_type, fit
from durable.core.compatibility import unreadable
from durable.core.control_flow import Park
from durable.core.duration import later
from durable.core.effects import SAVE, Ask, Operation
from durable.core.errors import (
    ErrorInfo,
    InvalidTransitionError,
    LinkTimeoutError,
    MessageBodyError,
    MessageNotAcceptedError,
    MessageTimeoutError,
    PayloadError,
    RunNotFoundError,
)
from durable.core.location import EVENT_QUEUES, LINK_QUEUES, escape, unescape
from durable.core.message_claims import record_of
from durable.core.numbers import check_whole
from durable.core.places import REFUSED, message_key
from durable.core.records import (
    ENDED,
    EntryKind,
    EntryRecord,
    EntryStatus,
    LinkClosed,
    Message,
    MessageCompleted,
    MessageReceived,
    OutgoingMessage,
    RunRecord,
    RunState,
)
from durable.core.results import Failure, with_failure
from durable.core.scope import Scope
from durable.core.summary import Doing, answering

E = TypeVar("E", bound=Exception)

#: The key in a received message's record of the faults of its body.
MISFIT: Final = "misfit"
#: The recorded refusal of a send that the receiving workflow does not accept.
NOT_ACCEPTED: Final = "not accepted"
#: As `names` of a receive: messages of any queue.
ANY: Final[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class PeekInbox(Ask):
    """Query the run's inbox (`Store.inbox`). Answer: the messages, which stay there until a save takes them."""

    names: tuple[str, ...]
    count: int
    before: datetime | None


@dataclass(frozen=True, slots=True)
class PeekRun(Ask):
    """Query another run. Answer: the run or None."""

    run_id: str


class AskedOfPeople(Protocol):
    """What people are asked by a wait (`durable.core.people.Asked`)."""

    def note(self, scope: Scope, name: str, entry: EntryRecord, expires_at: datetime | None) -> None:
        """Record the question of a wait that has begun, or what the code says of it now."""

    def closed(self, entry: EntryRecord) -> Any:
        """Return the change after which no answer is accepted."""

    def waiting(self, entry: EntryRecord) -> Doing:
        """Return what a run that waits for the answer is doing."""

    def timeout(self, name: str) -> Exception:
        """Return the error of a wait that nobody has answered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The parameters of a receive: at most `count` messages of the queues `names`, within `timeout` and before `until`.

    `names` is None for the queue that has the name of the wait, and empty for any queue. The earlier of `timeout` and
    `until` counts. `of` is the type of the bodies; None for the type that the workflow declares for each queue, if any.
    A wait for the answer of a link has the link's location and id; `until` is when the link expires. A wait for people
    has what they are asked, and its queue follows from the record of the question.
    """

    name: str
    names: Sequence[str] | None = None
    count: int = 1
    timeout: timedelta | None = None
    until: datetime | None = None
    is_completable: bool = False
    of: Any = None
    link: str | None = None
    link_id: str = ""
    asks: AskedOfPeople | None = None

    def __post_init__(self) -> None:
        if self.of is not None:
            check_type(self.of, f'the body of "{self.name}"')
        if isinstance(self.names, str):
            raise TypeError(f"names is a list of queues, not text: write names=[{self.names!r}]")
        if self.names is not None:
            object.__setattr__(self, "names", tuple(dict.fromkeys(self.names)))
            for each in self.names:
                escape(each)
        check_whole("count", self.count, least=1)

    def queues(self, entry: EntryRecord | None) -> Sequence[str]:
        """Return the queues of the wait; empty for any queue.

        A nameless wait that is recorded as one for any queue stays that: an earlier durable recorded it so.
        """
        if self.names is not None:
            return self.names
        if entry is not None and self.asks is not None:
            return list(entry.data["names"])
        if entry is not None and entry.data.get("names") == []:
            return ANY
        return (self.name,)

    def deadline(self, began_at: datetime) -> datetime | None:
        """Return when the wait ends without a message: never before `began_at`."""
        ends = [] if self.timeout is None else [later(began_at, self.timeout, "a wait")]
        if self.until is not None:
            ends.append(max(began_at, self.until))
        return min(ends, default=None)


@dataclass(frozen=True, slots=True)
class Received:
    """A message as recorded by its wait: "id", "name" (the queue), "body" (codec text), "sent_at", "completed".

    A refused message also counts as "completed" and has its reason under "refused". A body that does not fit has its
    faults under "misfit".
    """

    entry: EntryRecord
    record: dict[str, Any]


def mapped(operation: Operation, function: Callable[[Any], Any]) -> Operation:
    return function((yield from operation))


def receive_one(scope: Scope, wait: Wait) -> Operation:
    """Return the next message's record.

    Raises MessageTimeoutError, LinkTimeoutError or PersonTimeoutError when the deadline has passed.
    """
    entry = yield from _received(scope, wait)
    if not entry.data["received"] and wait.link is not None:
        raise LinkTimeoutError(wait.name, unescape(wait.link.rpartition("/")[2]))
    if not entry.data["received"] and wait.asks is not None:
        raise wait.asks.timeout(wait.name)
    if not entry.data["received"]:
        raise MessageTimeoutError(wait.name, wait.queues(entry))
    return opened(scope, wait, entry)[0]


def receive(scope: Scope, wait: Wait) -> Operation:
    """Return the records of up to `count` messages as soon as one has arrived; none when the deadline has passed."""
    entry = yield from _received(scope, wait)
    return opened(scope, wait, entry)


def _received(scope: Scope, wait: Wait) -> Operation:
    """Return the entry of the wait, once the wait has ended."""
    node = scope.cursor.match(EntryKind.MESSAGE, wait.name)
    entry = node.entry
    if entry is not None and entry.status == EntryStatus.COMPLETED:
        scope.determinism.observe(entry)
        return entry
    is_new = entry is None
    if entry is None:
        _check_declared(scope, wait)
        entry = begin_wait(scope, wait, scope.create(node, EntryKind.MESSAGE))
    if wait.asks is not None:
        wait.asks.note(scope, wait.name, entry, deadline_of(entry))
    queues = wait.queues(entry)
    deadline = deadline_of(entry)
    is_past = deadline is not None and deadline <= scope.environment.now()
    # Messages sent in time count, however late this worker is. A new wait takes every message that is there.
    messages = yield from take(scope, wait, queues, None if is_new or not is_past else deadline)
    if not messages and not is_past:
        if is_new and scope.is_concurrent:
            yield SAVE
        raise Park(deadline, frozenset(escape(each) for each in queues), _doing(wait, entry))
    if not messages and wait.link is not None and wait.until is not None and wait.until <= scope.environment.now():
        scope.journal.add(LinkClosed(wait.link_id))
        yield SAVE
        messages = yield from take(scope, wait, queues, None)  # an answer may have come until that commit
    elif not messages and wait.asks is not None:
        scope.journal.add(wait.asks.closed(entry))
        yield SAVE
        messages = yield from take(scope, wait, queues, None)  # as above
    yield from take_in(scope, wait, entry, messages)
    return entry


def take_in(scope: Scope, wait: Wait, entry: EntryRecord, messages: list[Message]) -> Operation:
    """Complete the wait with these messages, or with none."""
    messages, faults = _fitting(scope, wait, messages)
    records = [_record(each) for each in messages]
    if faults:
        records = [_misfit(scope, wait, records[0], faults)]
    scope.journal.finish(entry, data={**entry.data, "received": records})
    for each in messages:
        scope.journal.add(MessageReceived(each.id, entry.location))
    if REFUSED in (records[0] if records else ()):
        scope.journal.add(MessageCompleted(records[0]["id"], records[0][REFUSED], is_refused=True))
    yield SAVE
    scope.determinism.observe(entry)


def _doing(wait: Wait, entry: EntryRecord) -> list[Doing]:
    if wait.asks is not None:
        return [wait.asks.waiting(entry)]
    return [] if wait.link is None else [answering(wait.link)]


def _type_of(scope: Scope, wait: Wait, queue: str) -> Any:
    """Return the type of the bodies that this wait receives from a queue; None for any."""
    if wait.of is not None:
        return wait.of
    declared = scope.environment.messages_of(scope.journal.run.workflow)
    return None if declared is None else declared.get(queue)


def _check_declared(scope: Scope, wait: Wait) -> None:
    """Raise ValueError for a queue that the workflow does not declare: no message could be sent to it."""
    declared = scope.environment.messages_of(scope.journal.run.workflow)
    if declared is None or wait.link is not None or wait.asks is not None:
        return
    for each in wait.queues(None):
        if each not in declared:
            near = declared.nearest(each)
            advice = f'did you mean "{near[0]}"?' if near else f"it declares {', '.join(declared) or 'none'}"
            raise ValueError(
                f'the workflow declares no message "{each}", so none can be sent to the wait "{wait.name}": {advice}; or '
                "add it to messages= of its @workflow"
            )


def _fitting(scope: Scope, wait: Wait, messages: list[Message]) -> tuple[list[Message], tuple[Fault, ...]]:
    """Return the messages before the first whose body does not fit; if that one comes first, it alone, with its faults.

    The others stay in the inbox, in their order. So a wait that fails has received one message, and loses no
    well-formed one.
    """
    for number, message in enumerate(messages):
        hint = _type_of(scope, wait, message.queue)
        if hint is None:
            continue
        faults = _faults(scope, message, hint)
        if faults:
            kept = messages[: number or 1]
            scope.journal.claims.leave([each.id for each in messages[len(kept) :]])
            return kept, () if number else faults
    return messages, ()


def _faults(scope: Scope, message: Message, hint: Any) -> tuple[Fault, ...]:
    try:
        fit(scope.environment.decode(message.body, "message", message_key(message.id, message.queue)), hint)
    except Misfit as misfit:
        return misfit.faults
    except PayloadError:  # stops the run at the point where the code would get the body
        return ()
    return ()


def _misfit(scope: Scope, wait: Wait, record: dict[str, Any], faults: Sequence[Fault]) -> dict[str, Any]:
    """Return the record of a message whose body does not fit. A completable one is refused, since no code can answer
    it.
    """
    record = {**record, MISFIT: [list(each) for each in faults]}
    if not wait.is_completable:
        return record
    reason = f"the body does not fit: {'; '.join(map(str, faults))}"
    where = message_key(record["id"], record["name"])
    text = scope.environment.encode(reason, "the reason to refuse a message", "response", where)
    order = scope.journal.next_ordinal()
    return {**record, "completed": True, "completed_in": scope.location, "completed_order": order, REFUSED: text}


def body_of(scope: Scope, wait: Wait, received: Received) -> Any:
    """Return the body of a received message, converted to the type that the code asks for.

    A body that was received as another type by other code, and does not fit now, stops the run: its history was built
    on that body.
    """
    record, location = received.record, received.entry.location
    body = scope.recorded(location, "the message", record["body"], "message", message_key(record["id"], record["name"]))
    hint = _type_of(scope, wait, record["name"])
    if hint is None:
        return body
    try:
        return fit(body, hint)
    except Misfit as misfit:
        scope.journal.stop(unreadable(location, "the message", misfit))


def complete(scope: Scope, message_id: str, response: Any) -> Operation:
    """Complete a message that this scope or one around it received, with a response.

    Does nothing if the history records its completion in this scope. Raises ValueError if the message was completed or
    refused before.
    """
    yield from _settle(scope, message_id, response, is_refused=False)


def refuse(scope: Scope, message_id: str, reason: str) -> Operation:
    """Refuse a message that this scope or one around it received, with a reason for its sender.

    The rules are those of `complete`. Raises TypeError if the reason is not text, ValueError if it is empty.
    """
    if not isinstance(reason, str):
        raise TypeError(f"the reason of a refusal is text for the sender, not {reason!r}")
    if not reason.strip():
        raise ValueError('a refusal needs a reason, which its sender gets: write message.refuse("out of stock")')
    yield from _settle(scope, message_id, reason, is_refused=True)


def _settle(scope: Scope, message_id: str, response: Any, *, is_refused: bool) -> Operation:
    verb = "refused" if is_refused else "completed"
    entry = scope.receipts.wait_for(message_id)
    if entry is None:
        raise ValueError(
            f"message {message_id} was received in a scope that has ended, or in another branch: complete or refuse it in "
            "the scope that received it or in one within that"
        )
    if scope.receipts.is_completed(message_id):
        raise _settled_already(entry, message_id)
    if not (record := record_of(entry, message_id))["completed"]:
        what = f'the {"reason to refuse" if is_refused else "response to"} a message of "{entry.location}"'
        text = scope.environment.encode(response, what, "response", message_key(message_id, record["name"]))
        if _record_completion(scope, entry, message_id, text, is_refused=is_refused):
            yield SAVE
    record = record_of(entry, message_id)
    # Without "completed_in" it was recorded by a durable in which only the receiving scope could complete a message.
    if record.get("completed_in", scope.location) != scope.location:
        raise _settled_already(entry, message_id)  # by another branch
    if (REFUSED in record) != is_refused:
        found = "refused" if REFUSED in record else "completed"
        scope.cursor.diverged(
            f'a message of "{entry.location}" is recorded as {found}, but the code has it {verb}', entry.location
        )
    scope.receipts.complete(message_id)


def _record_completion(scope: Scope, entry: EntryRecord, message_id: str, response: str, *, is_refused: bool) -> bool:
    """Record the end of a message. Return False if another branch has just completed or refused it."""
    with scope.journal.lock:
        records = entry.data["received"]
        if record_of(entry, message_id)["completed"]:
            return False
        order = scope.journal.next_ordinal()
        done = {"completed": True, "completed_in": scope.location, "completed_order": order}
        if is_refused:
            done[REFUSED] = response
        records = [{**each, **done} if each["id"] == message_id else each for each in records]
        scope.journal.update(entry, data={**entry.data, "received": records})
        scope.journal.add(MessageCompleted(message_id, response, is_refused))
    return True


def _settled_already(entry: EntryRecord, message_id: str) -> ValueError:
    found = "refused" if REFUSED in record_of(entry, message_id) else "completed"
    return ValueError(f"message {message_id} has been {found} already; complete or refuse each message once")


def begin_wait(scope: Scope, wait: Wait, entry: EntryRecord, **more: Any) -> EntryRecord:
    """Write what the wait is into its entry, with `more` data."""
    deadline = wait.deadline(entry.created_at)
    scope.journal.update(
        entry,
        data={
            "names": list(wait.queues(None)),
            "count": wait.count,
            "deadline": None if deadline is None else deadline.isoformat(),
            "completable": wait.is_completable,
            **({} if wait.link is None else {"link": wait.link}),
            **more,
        },
    )
    return entry


def deadline_of(entry: EntryRecord) -> datetime | None:
    """Return when the wait ends without a message."""
    text = entry.data.get("deadline")
    return datetime.fromisoformat(text) if text else None


def take(scope: Scope, wait: Wait, queues: Sequence[str], before: datetime | None) -> Operation:
    """Claim messages for this wait: branches of one pass must not receive the same one."""
    claims = scope.journal.claims
    while True:
        limit = wait.count + claims.uncommitted_count()
        with claims.looking():
            found: list[Message] = yield PeekInbox(tuple(queues), limit, before)
            claimed = claims.claim(found, wait.count)
        if claimed or len(found) < limit:
            return claimed
        # Other branches have claimed the messages meanwhile: query again, with a higher limit.


def _record(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "name": message.queue,
        "body": message.body,
        "sent_at": message.sent_at.isoformat(),
        "completed": False,
    }


def opened(scope: Scope, wait: Wait, entry: EntryRecord) -> list[Received]:
    """Return what the completed wait has received. Raises MessageBodyError for a body that does not fit."""
    for record in entry.data["received"]:
        if MISFIT in record:
            faults = [Fault(*each) for each in record[MISFIT]]
            raise _failed(entry, wait.name, MessageBodyError(record["name"], record["id"], faults))
    if wait.is_completable:
        scope.receipts.add(entry)
    return [Received(entry, each) for each in entry.data["received"]]


def _failed(entry: EntryRecord, name: str, error: E) -> E:
    """Attach the failed entry to the error, so that a recovery of the run tries that operation again."""
    return with_failure(error, Failure("message", name, (entry.location,), ErrorInfo(type(error).__name__, str(error))))


def check_queue_of_send(queue: str) -> str:
    """Return `queue` if messages can be sent to it.

    Raises TypeError or ValueError for what is not a queue, and for the queue of a link: only its address answers it.
    """
    escape(queue)
    if queue.startswith(LINK_QUEUES):
        if queue.startswith(EVENT_QUEUES):
            raise ValueError(
                f'"{queue[:64]}" is the queue of a wait for an event, which is published: durable.publish()'
            )
        advice = "POST to its address, or answer the question"
        raise ValueError(f'"{queue[:64]}" is the queue of a link or of a question to people: {advice}')
    return str.__str__(queue)


def send(scope: Scope, queue: str, body: Any, to: str | None) -> Operation:
    """Send a message to this run or another, once.

    Raises RunNotFoundError, InvalidTransitionError for an ended run, and MessageNotAcceptedError.
    """
    queue = check_queue_of_send(queue)
    target = to if to is not None else scope.journal.run.id
    node = scope.cursor.match_numbered(EntryKind.SEND)
    entry = node.entry
    if entry is None:
        message_id = scope.environment.new_id()
        key = message_key(message_id, queue)
        text = scope.environment.encode(body, f'the body of a message to "{queue}"', "message", key, target)
        run = scope.journal.run if target == scope.journal.run.id else (yield PeekRun(target))
        refusal = None if run is scope.journal.run else _refusal(run)
        not_accepted = {} if refusal is not None else _not_accepted(scope, run.workflow, queue, body)
        refusal = NOT_ACCEPTED if not_accepted else refusal
        entry = scope.create(
            node,
            EntryKind.SEND,
            arguments=text,
            data={"queue": queue, "to": target, "message_id": message_id, "refused": refusal, **not_accepted},
        )
        if refusal is None:
            scope.journal.add(
                OutgoingMessage(id=message_id, to=target, queue=queue, body=text, sent_at=scope.environment.now())
            )
        scope.journal.finish(entry)
        yield SAVE
    elif (entry.data["queue"], entry.data["to"]) != (queue, target):
        scope.cursor.diverged(
            f'"{node.location}" sent to {entry.data["queue"]} of {entry.data["to"]}, the code now sends to {queue} of '
            f"{target}",
            node.location,
        )
    scope.determinism.observe(entry)
    if (told := entry.data.get(NOT_ACCEPTED)) is not None:
        faults = [Fault(*each) for each in told["faults"]]
        raise _failed(entry, queue, MessageNotAcceptedError(queue=queue, **{**told, "faults": faults}))
    _raise_refusal(target, entry.data["refused"])


def _not_accepted(scope: Scope, workflow: str, queue: str, body: Any) -> dict[str, Any]:
    """Return the record of a message that the workflow does not accept; nothing if it accepts it."""
    declared = scope.environment.messages_of(workflow)
    if declared is None:
        return {}
    try:
        declared.check(workflow, queue, body)
    except MessageNotAcceptedError as error:
        faults = [list(each) for each in error.faults]
        names = {"declared": list(error.declared), "nearest": list(error.nearest)}
        return {NOT_ACCEPTED: {"workflow": workflow, "faults": faults, **names}}
    return {}


def _refusal(run: RunRecord | None) -> str | None:
    """Return why a send is refused, in its recorded form; None if it is not."""
    if run is None:
        return "missing"
    return str(run.state) if run.state in ENDED else None


def _raise_refusal(target: str, refusal: str | None) -> None:
    if refusal == "missing":
        raise RunNotFoundError(target)
    if refusal is not None:
        raise InvalidTransitionError(refusal, [each for each in RunState if each not in ENDED], "send to", target)
