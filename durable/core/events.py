"""Events: waits of runs for what code publishes under a name and a key, whoever waits for it.

Owns the records of such a wait. It is the entry of a message: an event reaches the run as a message to a queue that
belongs to this one wait (`queue_of`). So a replay, a crash and a claim mean for an event what they mean for a message.

The wait is a row of a side table too, by which publishers find it. The row is committed, and then the pass looks for
events that are there already. A publisher commits its event, and then looks for rows. So at least one of them sees the
other, and neither waits for a lock of the other's transaction. Whoever delivers deletes the row in the same
transaction, under the lock of the run's row: each wait gets one event, once.

What counts is decided by the numbers of events, not by clocks: a wait notes the newest number before it begins, and
gets what is committed from then on. `within` adds what was published before, by the time that the publisher noted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from durable.core.control_flow import Park
from durable.core.effects import SAVE, Ask, Operation
from durable.core.errors import EventTimeoutError
from durable.core.ids import MAX_ID
from durable.core.location import EVENT_QUEUES, escape, general_location
from durable.core.messages import Wait, begin_wait, body_of, deadline_of, opened, take, take_in
from durable.core.places import Place, of_event, of_message
from durable.core.records import (
    AwaitedEvent,
    EntryKind,
    EntryRecord,
    EntryStatus,
    EventRecord,
    EventsDropped,
    Message,
    OutgoingMessage,
)
from durable.core.scope import Scope
from durable.core.summary import awaiting_event

MAX_NAME: Final = 128  # characters of an event's name
_SHOWN: Final = 60  # characters of it in a queue


def check_name(name: str) -> str:
    """Return `name` if an event can have it: 1 to 128 printable characters.

    Raises TypeError and ValueError for any other.
    """
    return _checked(name, "an event's name", MAX_NAME)


def check_key(key: str) -> str:
    """Return `key` if an event can have it: 1 to 200 printable characters. Raises TypeError and ValueError."""
    return _checked(key, "an event's key", MAX_ID)


def _checked(text: str, what: str, most: int) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} is text, not {text!r:.64}: write str(...)")
    if not (1 <= len(text) <= most and text.isprintable()):
        raise ValueError(f"{what} is made of 1 to {most} printable characters: {text[:64]!r}")
    return text


def queue_of(location: str, name: str, key: str) -> str:
    """Return the queue of a wait for an event.

    It is the same one after a replay in place. So the wait gets the event again that it got before.
    """
    digest = hashlib.sha256(f"{location}\0{name}\0{key}".encode()).hexdigest()[:32]
    return f"{EVENT_QUEUES}{digest}:{name[:_SHOWN]}"


def run_id_of(workflow: str, event_id: str) -> str:
    """Return the id of the run that an event starts: "<workflow>:<event id>", with a digest where that is too long."""
    whole = f"{workflow}:{event_id}"
    if len(whole) <= MAX_ID:
        return whole
    return f"{workflow}:{hashlib.sha256(event_id.encode()).hexdigest()}"


def delivery(event: EventRecord, wait: AwaitedEvent, *, copied: Callable[[str, Place, Place], str]) -> OutgoingMessage:
    """Return the message by which a wait gets an event. `copied` re-encodes the body for its place.

    The message was sent when the event was published. So what was published before a deadline counts, however late it
    is delivered.
    """
    message_id = f"{event.number}:{wait.id}"
    place = of_message(wait.run_id, "message", message_id, wait.queue)
    return OutgoingMessage(
        id=message_id,
        to=wait.run_id,
        queue=wait.queue,
        body=copied(event.body, of_event(event.name, event.id), place),
        sent_at=event.published_at,
    )


@dataclass(frozen=True, slots=True)
class PeekEvents(Ask):
    """Ask for the number of the newest event of this name and key. Answer: the number, 0 for none."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class TakeEvent(Ask):
    """Put the event that this wait gets into the run's inbox, if it was published before `before`.

    Answer: True if one was put there, False if there is none, None if the wait is gone: it has got one, or its run had
    ended, or it was copied from another database.
    """

    wait_id: str
    before: datetime | None


def await_event(
    scope: Scope, name: str, event: str, key: str, within: timedelta | None, timeout: timedelta | None
) -> Operation:
    """Wait for an event, and return its body. Raises EventTimeoutError when `timeout` has passed."""
    check_name(event)
    check_key(key)
    if within is not None and within < timedelta(0):
        raise ValueError(f"within is a length of time before the wait, not {within}")
    node = scope.cursor.match(EntryKind.MESSAGE, name)
    entry = node.entry
    if entry is not None and "names" in entry.data and _of(entry) != (event, key):
        scope.cursor.diverged(
            f'"{entry.location}" waits for {_told(entry)}, the code now waits for the event "{event}" with the key "{key}"',
            entry.location,
        )
    is_new = entry is None
    if entry is None:
        entry = scope.create(node, EntryKind.MESSAGE)
    if entry.status == EntryStatus.COMPLETED:
        scope.determinism.observe(entry)
        wait = Wait(name=name, names=entry.data["names"])
    else:
        begin = partial(_begin, scope, name, entry, event, key, within, timeout)
        if entry.data.get("event", {}).get("run") != scope.journal.run.id:
            yield from begin()
        wait = Wait(name=name, names=entry.data["names"])
        yield from _received(scope, wait, entry, begin, is_new=is_new)
    found = opened(scope, wait, entry)
    if not found:
        raise EventTimeoutError(name, event, key)
    return body_of(scope, wait, found[0])


def _of(entry: EntryRecord) -> tuple[str, str]:
    known = entry.data.get("event", {})
    return known.get("name", ""), known.get("key", "")


def _told(entry: EntryRecord) -> str:
    name, key = _of(entry)
    return f'the event "{name}" with the key "{key}"' if name else "a message"


def _begin(
    scope: Scope,
    name: str,
    entry: EntryRecord,
    event: str,
    key: str,
    within: timedelta | None,
    timeout: timedelta | None,
) -> Operation:
    """Begin the wait, and commit it.

    With its deadline, a wait begins anew that was copied from another run, or that the end of the run has dropped.
    """
    after: int = yield PeekEvents(event, key)
    journal, wait_id = scope.journal, scope.environment.new_id()
    wait = Wait(name=name, names=[queue_of(entry.location, event, key)], timeout=timeout)
    before = entry.data.get("event", {})
    if before.get("run") == journal.run.id:  # it goes on with what was published since it began
        after = min(after, before["after"])
    told: dict[str, Any] = {"name": event, "key": key, "id": wait_id, "run": journal.run.id, "after": after}
    if within is not None:
        told["within"] = within.total_seconds()
    kept = {"deadline": entry.data["deadline"]} if "deadline" in entry.data else {}
    with journal.lock:  # one commit for both
        begin_wait(scope, wait, entry, event=told, **kept)
        journal.has_awaited_events = True
        journal.add(
            AwaitedEvent(
                id=wait_id,
                run_id=journal.run.id,
                location=entry.location,
                queue=wait.queues(None)[0],
                name=event,
                key=key,
                after=after,
                since=None if within is None else entry.created_at - within,
                seen=0 if within is None else _last_number(scope, entry),
            )
        )
    yield SAVE


def _last_number(scope: Scope, entry: EntryRecord) -> int:
    """Return the number of the newest event that this operation has got in earlier iterations of its loops."""
    place = general_location(entry.location)
    others = (
        each
        for each in scope.journal.entries()
        if each.kind == EntryKind.MESSAGE and _of(each) == _of(entry) and general_location(each.location) == place
    )
    return max((_number_of(got["id"]) for each in others for got in each.data.get("received", ())), default=0)


def _number_of(message_id: str) -> int:
    """Return the number of the event by which the message came; 0 for a message that was copied from another run."""
    number, _, wait_id = message_id.partition(":")
    return int(number) if wait_id and number.isdecimal() else 0


def _received(
    scope: Scope, wait: Wait, entry: EntryRecord, begin: Callable[[], Operation], *, is_new: bool
) -> Operation:
    """Complete the entry once its wait has ended."""
    [queue] = wait.queues(entry)
    deadline = deadline_of(entry)
    is_past = deadline is not None and deadline <= scope.environment.now()
    before = deadline if is_past and not is_new else None  # what was published in time counts, however late it is now
    messages = yield from _look(scope, wait, entry, before)
    if messages is None:
        yield from begin()
        messages = yield from _look(scope, wait, entry, before)
    told = entry.data["event"]
    if not messages and not is_past:
        scope.journal.awaited_events[queue] = told["id"]
        doing = [awaiting_event(entry.location, told["name"], told["key"])]
        raise Park(deadline, frozenset({escape(queue)}), doing)
    if not messages:
        scope.journal.add(EventsDropped((told["id"],)))
        yield SAVE
        messages = yield from take(scope, wait, [queue], before)  # one may have been delivered until that commit
    if any(each.id.partition(":")[2] != told["id"] for each in messages):
        scope.journal.add(EventsDropped((told["id"],)))  # what the wait got before a replay in place
    yield from take_in(scope, wait, entry, messages)


def _look(scope: Scope, wait: Wait, entry: EntryRecord, before: datetime | None) -> Operation:
    """Return the message of the event, or no message; None if the wait is gone without one."""
    messages: list[Message] = yield from take(scope, wait, wait.queues(entry), before)
    if messages:
        return messages
    is_taken: bool | None = yield TakeEvent(entry.data["event"]["id"], before)
    if is_taken is False:
        return []
    messages = yield from take(scope, wait, wait.queues(entry), before)
    return messages if messages or is_taken else None
