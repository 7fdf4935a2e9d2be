"""Changes as events: their names and data, as server-sent events and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rest_framework.request import Request

from durable.api.access import is_still_permitted, may
from durable.api.idempotent import as_json
from durable.api.list_views import seen_of
from durable.api.stream.changes import News
from durable.core.records import EntryKind
from durable.listings.history import Entry, seen_history
from durable.listings.runs import Run, seen_runs
from durable.listings.shapes import data_of

HEARTBEAT = b": nothing new\n\n"


class NoLongerPermittedError(Exception):
    """The user's account or permission was removed after the stream was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event. A reader sends `id` to continue after the event; "" if that is not possible."""

    event: str
    data: Any
    id: str = ""


class EventBuilder:
    """Converts the changes of one run to events for one user: `run`, `entry`, `removed`, `reset`, `end`."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._may_see_payloads = may(request, "view_payload")

    def check_rights(self) -> None:
        """Check again what the user may see. Raises NoLongerPermittedError if the user may no longer see runs."""
        if not is_still_permitted(self.request):
            raise NoLongerPermittedError
        self._may_see_payloads = may(self.request, "view_payload")

    def events(self, news: News) -> Iterator[StreamEvent]:
        """Yield the events in the order in which the reader has to apply them. The last one has the id."""
        found = list(self._events(news))
        token = "" if news.token is None else str(news.token)
        yield from found[:-1]
        if found:
            yield StreamEvent(event=found[-1].event, data=found[-1].data, id=token)

    def _events(self, news: News) -> Iterator[StreamEvent]:
        run = news.run
        if news.is_reset:
            yield StreamEvent(event="reset", data={})
        if news.removed:
            yield StreamEvent(event="removed", data={"locations": list(news.removed)})
        seen = replace(seen_of(self.request), payloads=self._may_see_payloads)
        history = seen_history(seen, run)
        for entry in news.entries:
            yield StreamEvent(event="entry", data=data_of(Entry, entry, history))
        if news.has_changed or any(each.kind == EntryKind.TAG for each in news.entries):  # a run shows its tags
            yield StreamEvent(event="run", data=data_of(Run, run, seen_runs(seen, [run], is_brief=True)))
        if news.has_ended:
            yield StreamEvent(event="end", data={"id": run.id, "state": run.state})


def encode_event(event: StreamEvent) -> bytes:
    """Return the event as it is sent; the JSON is ASCII without line breaks."""
    lines = [f"event: {event.event}", f"data: {as_json(event.data)}"]
    if event.id:
        lines.append(f"id: {event.id}")
    return ("\n".join(lines) + "\n\n").encode("ascii")
