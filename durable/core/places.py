"""Recorded values and their places: for code that reads, copies or shows values, and for codecs that bind them to a
place.

A place is a run, a field, and where in the run: nothing for the run's own input and output, a location for a value of
an entry, the id and the queue for a message. A message keeps its place when a wait receives it or a send records it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from durable.core.location import escape
from durable.core.records import EntryKind

#: The key in a received message's record of why it was refused, as codec text.
REFUSED: Final = "refused"


class Place(NamedTuple):
    """The one place that a recorded value belongs to.

    `field` is "input", "output", "arguments", "state", "saved", "chunk", "message" or "response". `where` is "" for the
    run's own values, the location for those of an entry or a branch, and `message_key` for a message's. An "input" with
    a message's id is the input of a run that the message may still start. An "event" is the body of one, of no run.
    """

    run_id: str
    field: str
    where: str = ""


def message_key(message_id: str, queue: str) -> str:
    """Return the `where` of a message's body and response."""
    return f"{len(message_id)}:{message_id}/{queue}"  # different for any two messages and queues


def queue_of(key: str) -> str:
    """Return the queue of a `message_key`."""
    length, _, rest = key.partition(":")
    return rest[int(length) + 1 :]


def of_message(run_id: str, field: str, message_id: str, queue: str) -> Place:
    """Return the place of the "message" or the "response" of a message to this run."""
    return Place(run_id, field, message_key(message_id, queue))


def of_event(name: str, event_id: str) -> Place:
    """Return the place of the body of an event, which belongs to no run."""
    return Place("", "event", message_key(event_id, name))


def of_start(run_id: str, message_id: str) -> Place:
    """Return the place of the input sent with a message to this run, for the run that the message would have
    started.
    """
    return Place(run_id, "input", message_id)


def of_branch(run_id: str, location: str, name: str) -> Place:
    """Return the place of the output of a branch of the join or race at `location`."""
    return Place(run_id, "output", f"{location}/{escape(name)}")


class _Entry(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def data(self) -> Any: ...


class _EntryWithValues(_Entry, Protocol):
    @property
    def arguments(self) -> str | None: ...
    @property
    def output(self) -> str | None: ...


def of_arguments(run_id: str, entry: _Entry) -> Place:
    """Return the place of an entry's arguments; for a send, that of its message's body."""
    if entry.kind != EntryKind.SEND:
        return Place(run_id, "arguments", entry.location)
    sent = entry.data
    return of_message(sent.get("to", run_id), "message", sent.get("message_id", ""), sent.get("queue", ""))


class RecordedValue(NamedTuple):
    """A recorded value of an entry: its codec text, None for none, and its place.

    `name` is "arguments", "body" (of a send), "output", "state" (of a loop), "message" and "refusal" (of a wait) or
    "branch" (its output, of a join or a race). `of` is the queue of a message or the name of a branch, else "".
    """

    name: str
    text: str | None
    place: Place
    of: str = ""


def values_of(run_id: str, entry: _EntryWithValues) -> Iterator[RecordedValue]:
    """Yield all values of an entry of this run: its arguments, its output, and those in its data."""
    data, location = entry.data, entry.location
    if entry.kind == EntryKind.SEND:
        yield RecordedValue("body", entry.arguments, of_arguments(run_id, entry), data.get("queue", ""))
    else:
        yield RecordedValue("arguments", entry.arguments, Place(run_id, "arguments", location))
    yield RecordedValue("output", entry.output, Place(run_id, "output", location))
    if entry.kind == EntryKind.LOOP and "state" in data:
        yield RecordedValue("state", data["state"], Place(run_id, "state", location))
    if entry.kind == EntryKind.MESSAGE:
        for each in data.get("received", ()):
            message_id, queue = each["id"], each["name"]
            yield RecordedValue("message", each["body"], of_message(run_id, "message", message_id, queue), queue)
            if REFUSED in each:
                yield RecordedValue("refusal", each[REFUSED], of_message(run_id, "response", message_id, queue), queue)
    for name, branch in data.get("branches", {}).items():
        if "output" in branch:
            yield RecordedValue("branch", branch["output"], of_branch(run_id, location, name), name)


class ChangedValues(NamedTuple):
    """The three parts of an entry that contain values."""

    arguments: Any
    output: Any
    data: dict[str, Any]


def with_values(run_id: str, entry: _EntryWithValues, change: Callable[[str, Place], Any]) -> ChangedValues:
    """Return the parts of an entry with each value changed. `change` is called in the order of `values_of`."""
    changed = iter([None if text is None else change(text, place) for _, text, place, _ in values_of(run_id, entry)])
    arguments, output, data = next(changed), next(changed), dict(entry.data)
    if entry.kind == EntryKind.LOOP and "state" in data:
        data["state"] = next(changed)
    if entry.kind == EntryKind.MESSAGE and "received" in data:
        data["received"] = [
            {**each, "body": next(changed), **({REFUSED: next(changed)} if REFUSED in each else {})}
            for each in data["received"]
        ]
    if "branches" in data:
        data["branches"] = {
            name: {**branch, "output": next(changed)} if "output" in branch else branch
            for name, branch in data["branches"].items()
        }
    return ChangedValues(arguments, output, data)
