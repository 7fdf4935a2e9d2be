"""Published events, and the runs that wait for events."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from durable.inspection.pagination import cursor_of, key_of
from durable.inspection.published import MOST_RUNS, WINDOW, list_events, list_waits
from durable.listings.access import refuse_events
from durable.listings.listing import Filter, Listing, Page, list_of
from durable.listings.shapes import Seen, Shape, field
from durable.listings.work import Count


class PublishedEvent(Shape):
    """An event, without its body."""

    id: str = field("event.event_id")
    name: str = field("event.name")
    key: str = field("event.key")
    published_at: datetime = field("event.published_at")
    delivered: int = field("event.delivered", help="How many runs that waited for it have got it.")
    got: list[str] = field(help=f"Runs that got it, at most {MOST_RUNS}, as long as they are there.")
    started: list[str] = field(help="The runs that it has started.")
    is_open: bool = field("event.is_open", help="Whether it may not have reached all that wait for it.")
    waiting: Count = field(help="How many runs have yet to get it.")


class EventWait(Shape):
    """A run that waits for an event."""

    run: str = field("run_id")
    workflow: str = field("run.workflow")
    location: str = field(help="The place of the wait in the run's history.")
    name: str
    key: str
    since: datetime | None = field(help="From when on a published event counts, for a wait with `within`.")


def _events(seen: Seen, *, limit: int, cursor: str | None = None, event: str = "", key: str = "") -> Page:
    refuse_events(if_limited=seen.within is not None)
    after = key_of(cursor, int)
    found = list_events(name=event, key=key, before=None if after is None else after[0], limit=limit + 1)
    last = found[limit - 1].event.pk if len(found) > limit else None
    return Page(results=found[:limit], next_cursor=None if last is None else cursor_of(last))


def _waits(seen: Seen, *, limit: int, cursor: str | None = None, event: str = "", key: str = "") -> Page:
    refuse_events(if_limited=seen.within is not None)
    after = key_of(cursor, str)
    found = list_waits(name=event, key=key, before=None if after is None else after[0], limit=limit + 1)
    last = found[limit - 1].pk if len(found) > limit else None
    return Page(results=found[:limit], next_cursor=None if last is None else cursor_of(last))


_FILTERS: Final = (
    Filter(name="event", does="Only those of events with this name.", metavar="NAME"),
    Filter(name="key", does="Only those with this key.", metavar="KEY"),
)
_SEARCHED: Final = f"Of a name or a key alone the newest {WINDOW:,} are searched."
_REFUSED: Final = "Where users see only some runs: 403."

EVENTS: Final = Listing(
    name="events",
    item=PublishedEvent,
    page=list_of(PublishedEvent, "EventPage", "A page of events, the newest first."),
    read=_events,
    about="messages",
    is_paged=True,
    filters=_FILTERS,
    over_rest=f"Return the published events that are still kept, the newest first. {_SEARCHED} {_REFUSED}",
)
EVENT_WAITS: Final = Listing(
    name="event_waits",
    item=EventWait,
    page=list_of(EventWait, "EventWaitPage", "A page of waits, the newest first."),
    read=_waits,
    about="messages",
    is_paged=True,
    filters=_FILTERS,
    over_rest=f"Return the runs that wait for events, the newest wait first. {_SEARCHED} {_REFUSED}",
)
