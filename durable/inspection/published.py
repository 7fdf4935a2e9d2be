"""Published events, who got them, and who waits: pages of both, the newest first, along their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import QuerySet

from durable.core import registry
from durable.core.events import run_id_of
from durable.core.records import ENDED
from durable.inspection.counting import Count, count_capped, sample_rows
from durable.inspection.reading import read_alias
from durable.models import Event, EventWait, QueueMessage, Run
from durable.models.rows import unpack

WINDOW: Final = 10_000  # the newest rows that are searched for a name without a key
MOST_RUNS: Final = 5  # that got an event, named for each
MOST_COUNTED: Final = 1_000  # waits that an event still has to reach

_ENDED: Final = sorted(state.value for state in ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEvent:
    """An event. `got` are runs that waited and got it, the first few; `started` the runs that it has started.

    `waiting` counts those that have yet to get it.
    """

    event: Event
    got: Sequence[str]
    started: Sequence[str]
    waiting: Count

    @property
    def more(self) -> int:
        """The number of runs that got it and are not named."""
        return max(0, self.event.delivered - len(self.got))


def list_events(*, name: str = "", key: str = "", before: int | None = None, limit: int) -> list[PublishedEvent]:
    """Return up to `limit` events with a number below `before`, the newest first; four statements at most.

    Those of a name, of a key, or both; of one of them alone only `WINDOW` events are searched.
    """
    rows: QuerySet[Event] = Event.objects.using(read_alias()).order_by("-id").defer("body")
    return _with_runs(list(_page(rows, name, key, before)[:limit]))


def list_waits(*, name: str = "", key: str = "", before: str | None = None, limit: int) -> list[EventWait]:
    """Return up to `limit` waits of open runs with an id below `before`, the newest first, with their runs; two
    statements at most. For `name` and `key` see `list_events`.
    """
    rows: QuerySet[EventWait] = EventWait.objects.using(read_alias()).order_by("-id")
    found = _page(rows, name, key, before).exclude(run__state__in=_ENDED)
    return list(found.select_related("run").defer("run__input", "run__output")[:limit])


def _page(rows: QuerySet[Any], name: str, key: str, before: int | str | None) -> QuerySet[Any]:
    found = rows if before is None else rows.filter(id__lt=before)
    if bool(name) != bool(key):
        last = found.values_list("id", flat=True)[WINDOW - 1 : WINDOW].first()
        found = found if last is None else found.filter(id__gte=last)
    return found.filter(**{column: value for column, value in (("name", name), ("key", key)) if value})


def _with_runs(found: Sequence[Event]) -> list[PublishedEvent]:
    """Read which runs got the events: the id of a message by which a run gets one begins with the event's number."""
    messages = QueueMessage.objects.using(read_alias()).order_by("id")
    given = [messages.filter(id__gte=f"{each.pk}:", id__lt=f"{each.pk};") for each in found]
    got = [[unpack(run_id) for (run_id,) in rows] for rows in sample_rows(given, ["run"], MOST_RUNS)]
    opened = [each for each in found if each.is_open]
    waits = EventWait.objects.using(read_alias()).order_by("after", "id")
    left = [waits.filter(name=each.name, key=each.key, after__lt=each.pk) for each in opened]
    counts = count_capped(left, MOST_COUNTED)
    waiting = dict(zip((each.pk for each in opened), counts, strict=True))
    starts = {
        each.pk: [run_id_of(of.name, each.event_id) for of in registry.all() if of.on == each.name] for each in found
    }
    wanted = [run_id for ids in starts.values() for run_id in ids]
    there = set(Run.objects.using(read_alias()).filter(pk__in=wanted).values_list("pk", flat=True)) if wanted else set()
    return [
        PublishedEvent(
            event=each,
            got=runs,
            started=[run_id for run_id in starts[each.pk] if run_id in there],
            waiting=waiting.get(each.pk, Count(number=0)),
        )
        for each, runs in zip(found, got, strict=True)
    ]
