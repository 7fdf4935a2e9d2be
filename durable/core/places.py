"""Places of recorded values, for codecs that bind values to their places.

A place is a run, a field, and where in the run: nothing for the run's own input and output, a location for a value of
an entry, the id and the queue for a message. A message keeps its place when a wait receives it or a send records it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from durable.core.location import escape
from durable.core.records import EntryKind


class Place(NamedTuple):
    """The one place that a recorded value belongs to.

    `field` is "input", "output", "arguments", "state", "saved", "message" or "response". `where` is "" for the run's
    own values, the location of the entry or the branch, and for a message what `message_key` makes. An "input" with the
    id of a message is that of a run which the message may still start.
    """

    run_id: str
    field: str
    where: str = ""


def message_key(message_id: str, queue: str) -> str:
    """The `where` of a message's body and response."""
    return f"{len(message_id)}:{message_id}/{queue}"  # of no two messages and queues the same


def of_message(run_id: str, field: str, message_id: str, queue: str) -> Place:
    """The place of the "message" or the "response" of a message to this run."""
    return Place(run_id, field, message_key(message_id, queue))


def of_start(run_id: str, message_id: str) -> Place:
    """The place of the input that came with a message to this run: of the run that the message would have started."""
    return Place(run_id, "input", message_id)


def of_branch(run_id: str, location: str, name: str) -> Place:
    """The place of the output of a branch of the join or race at `location`."""
    return Place(run_id, "output", f"{location}/{escape(name)}")


class _Entry(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def data(self) -> Any: ...


def of_arguments(run_id: str, entry: _Entry) -> Place:
    """The place of an entry's arguments: for a send they are the body of its message."""
    if entry.kind != EntryKind.SEND:
        return Place(run_id, "arguments", entry.location)
    sent = entry.data
    return of_message(sent.get("to", run_id), "message", sent.get("message_id", ""), sent.get("queue", ""))
