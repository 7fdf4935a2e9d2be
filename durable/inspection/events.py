"""The events of a run, one by one: entries that began and ended, failed attempts, messages, and what operators did. And
its log, as kept by `durable.logs.RunLogHandler`: by key, with levels and places, redacted.

Paged by key, forwards and backwards. The key of an event is its time, the rank of its source and the row's key there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self

from django.db.models import Case, DateTimeField, Expression, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce, Greatest, Least
from django.utils.dateparse import parse_datetime

from durable.inspection.history_counts import remembered, stored
from durable.inspection.humanize import shortened
from durable.inspection.payloads import redacted, redacted_error
from durable.inspection.reading import read_alias
from durable.inspection.undone import handler_attempts, stuck_step
from durable.models import Attempt, Entry, EntryMetadata, LogLine, OperatorAction, QueueMessage, Run

PAGE: Final = 100
_LONGEST: Final = 200  # characters of an error


@dataclass(frozen=True, slots=True, order=True)
class EventKey:
    """The place of an event among the others. `str` makes it the parameter of an address."""

    at: datetime
    rank: int
    row: int

    def __str__(self) -> str:
        return f"{self.at.isoformat()}~{self.rank}~{self.row}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a parameter; None if it is not a key."""
        at, rank, row = [*text.split("~"), "", ""][:3]
        try:
            moment = parse_datetime(at)
            if moment is None or moment.tzinfo is None:
                return None
            return cls(moment, int(rank), int(row)) if len(rank) < 3 and len(row) < 20 else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the run.

    `what`: created, started, began, "attempt failed", completed, compensated, "message sent", an operator's verb,
    "compensation failed" (the last attempt of a rollback handler, at the end of the run that it stopped), or the state
    in which the run has ended. `kind` is that of the entry at `location`, "" without one. `attempt` is its number, None
    where there is none. `by` is the worker or the operator, "" if it is not recorded.
    """

    key: EventKey
    what: str
    kind: str = ""
    location: str = ""
    attempt: int | None = None
    by: str = ""
    detail: str = ""

    @property
    def at(self) -> datetime:
        return self.key.at


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """A page of events, in the order that was asked for; `next_key` is None on the last one."""

    events: Sequence[Event]
    next_key: EventKey | None


def list_events(
    run: Run, *, after: EventKey | None = None, is_newest_first: bool = False, entries: int = 0
) -> EventPage:
    """Return a page of the run's events after the key `after`, the oldest or the newest first; six statements.

    One more for a run whose compensation has stopped. Callers that have counted the entries pass their number as
    `entries`: then, results for a long history are remembered while its run rests
    (`durable.inspection.history_counts`).
    """
    found = [
        each
        for each in (*_of_row(run), *_of_stopped_compensation(run))
        if _is_behind(each.key, after, is_newest_first=is_newest_first)
    ]
    found += _acted(run, _Slice(_ACTED, after, is_newest_first))
    what = f"events {is_newest_first} {after or ''} {run.message_count}"
    read: Callable[[], Sequence[Event]] = partial(_known_of_history, run, after, is_newest_first=is_newest_first)
    found += remembered(run, what, read, lambda _: entries)
    found.sort(key=attrgetter("key"), reverse=is_newest_first)
    page = _in_full(run, found[:PAGE])
    return EventPage(events=page, next_key=page[-1].key if len(found) > PAGE else None)


@dataclass(frozen=True, slots=True)
class _Slice:
    """The part of a source's rows that may be on the page."""

    rank: int
    after: EventKey | None
    is_newest_first: bool

    def of(
        self, found: QuerySet[Any], moment: str, *columns: str, row: str = "pk"
    ) -> Iterator[tuple[EventKey, tuple[Any, ...]]]:
        """Yield key and columns of the rows that have a time in `moment`; `row` is the column that numbers them."""
        found = found.filter(**{f"{moment}__isnull": False})
        if self.after is not None:
            found = found.filter(self.behind(moment, row))
        sign = "-" if self.is_newest_first else ""
        rows = found.order_by(f"{sign}{moment}", f"{sign}{row}").values_list(moment, row, *columns)
        for at, number, *values in rows[: PAGE + 1]:
            yield EventKey(at, self.rank, number), tuple(values)

    def behind(self, moment: str, row: str) -> Q:
        """Return the condition that a row's event comes after the key."""
        key = self.after
        assert key is not None
        beyond = "lt" if self.is_newest_first else "gt"
        further = Q(**{f"{moment}__{beyond}": key.at})
        at_once = Q(**{moment: key.at})
        if self.rank == key.rank:
            return further | at_once & Q(**{f"{row}__{beyond}": key.row})
        is_behind = self.rank < key.rank if self.is_newest_first else self.rank > key.rank
        return further | at_once if is_behind else further


def _of_row(run: Run) -> Iterator[Event]:
    """Yield the events recorded in the run's own row."""
    yield Event(key=EventKey(run.created_at, 0, 0), what="created")
    if run.started_at is not None:
        yield Event(key=EventKey(run.started_at, 0, 1), what="started")
    if run.finished_at is not None:
        detail = shortened(redacted_error(run.workflow, run.error), _LONGEST) if run.error is not None else ""
        yield Event(key=EventKey(run.finished_at, _ENDED, 0), what=run.state, detail=detail)


def _of_stopped_compensation(run: Run) -> Iterator[Event]:
    """Yield the failure of the rollback handler that has stopped the run; only the last attempt's error is recorded."""
    stuck = stuck_step(run)
    if stuck is not None and run.finished_at is not None:
        yield Event(
            key=EventKey(run.finished_at, _NOT_COMPENSATED, 0),
            what="compensation failed",
            kind=stuck.kind,
            location=stuck.location,
            attempt=handler_attempts(stuck) or None,
            detail=shortened(redacted_error(run.workflow, stuck.metadata.rollback_error), _LONGEST),
        )


def _failed(run: Run, part: _Slice) -> Iterator[Event]:
    found = Attempt.objects.using(read_alias()).filter(run=run)
    for key, (location, number, worker) in part.of(found, "finished_at", "location", "number", "worker"):
        yield Event(key=key, what=_WHAT[_FAILED], kind="step", location=location, attempt=number, by=worker)


def _sent(run: Run, part: _Slice) -> Iterator[Event]:
    found = QueueMessage.objects.using(read_alias()).filter(run=run)
    for key, (queue, location) in part.of(found, "sent_at", "queue", "received_by", row="order"):
        yield Event(key=key, what=_WHAT[_SENT], location=location, detail=queue)


def _acted(run: Run, part: _Slice) -> Iterator[Event]:
    found = OperatorAction.objects.using(read_alias()).filter(run_id=run.id, outcome="done")
    for key, (action, label, source, reason) in part.of(
        found, "created_at", "action", "actor_label", "source", "reason"
    ):
        yield Event(key=key, what=action, by=label or source, detail=shortened(reason, _LONGEST))


#: The ranks of events at one time.
_SENT: Final = 1
_ACTED: Final = 2
_BEGAN: Final = 3
_FAILED: Final = 4
_COMPLETED: Final = 5
_COMPENSATED: Final = 6
_NOT_COMPENSATED: Final = 7
_ENDED: Final = 8
#: The first pages that are stored, by whether the newest event is the first.
_PAGES: Final = {False: "oldest first", True: "newest first"}
_OF_ENTRIES: Final[Mapping[int, tuple[str, str]]] = {
    _BEGAN: ("created_at", "began"),
    _COMPLETED: ("completed_at", "completed"),
    _COMPENSATED: ("rollback_completed_at", "compensated"),
}
#: The words of what a history holds, by rank.
_WHAT: Final = {_SENT: "message sent", _FAILED: "attempt failed"} | {
    rank: what for rank, (_, what) in _OF_ENTRIES.items()
}


def count_events(run: Run) -> dict[str, Any]:
    """Return the history's events on the first pages as JSON, for `durable.inspection.history_counts`.

    They are those of so many `messages`, whose arrival does not always change what a count is valid for. Six
    statements.
    """
    return {"messages": run.message_count} | {
        page: [
            [each.key.at.isoformat(), each.key.rank, each.key.row, each.location, each.attempt, each.by, each.detail]
            for each in _of_history(run, None, is_newest_first=is_newest_first)
        ]
        for is_newest_first, page in _PAGES.items()
    }


def _known_of_history(run: Run, after: EventKey | None, *, is_newest_first: bool) -> Sequence[Event]:
    """Return the events of the history; without a statement if those of the first page are stored."""
    pages = stored(run, "events") if after is None else None
    if pages is None or pages["messages"] != run.message_count:
        return _of_history(run, after, is_newest_first=is_newest_first)
    return [
        Event(
            key=EventKey(datetime.fromisoformat(moment), rank, row),
            what=_WHAT[rank],
            kind="step" if rank == _FAILED else "",
            location=location,
            attempt=attempt,
            by=by,
            detail=detail,
        )
        for moment, rank, row, location, attempt, by, detail in pages[_PAGES[is_newest_first]]
    ]


def _of_history(run: Run, after: EventKey | None, *, is_newest_first: bool) -> Sequence[Event]:
    """Return the first events of entries, failed attempts and messages, with one more than fit on a page."""
    found = [
        *_of_entries(run, after, is_newest_first=is_newest_first),
        *_failed(run, _Slice(_FAILED, after, is_newest_first)),
        *_sent(run, _Slice(_SENT, after, is_newest_first)),
    ]
    return sorted(found, key=attrgetter("key"), reverse=is_newest_first)[: PAGE + 1]


def _of_entries(run: Run, after: EventKey | None, *, is_newest_first: bool) -> Sequence[Event]:
    """Return the events of entries; one statement, which sorts entries by the first remaining event of each."""
    never = _FIRST if is_newest_first else _LAST
    left = {rank: _left(rank, moment, after, never, is_newest_first) for rank, (moment, _) in _OF_ENTRIES.items()}
    recorded = EntryMetadata.objects.using(read_alias()).of_runs(run.id)
    found: QuerySet[Any] = recorded.annotate(left=(Greatest if is_newest_first else Least)(*left.values()))
    ranks = sorted(left, reverse=is_newest_first)
    rank = Case(*(When(left=left[each], then=Value(each)) for each in ranks), default=Value(0))
    found = found.exclude(left=never).annotate(rank=rank)
    sign = "-" if is_newest_first else ""
    columns = [moment for moment, _ in _OF_ENTRIES.values()]
    rows = found.order_by(f"{sign}left", f"{sign}rank", f"{sign}pk").values_list("pk", "attempts", *columns)
    events = list[Event]()
    for row, attempts, *moments in rows[: PAGE + 1]:
        for (number, (_, what)), at in zip(_OF_ENTRIES.items(), moments, strict=True):
            if at is not None and _is_behind(EventKey(at, number, row), after, is_newest_first=is_newest_first):
                attempt = attempts or None if number == _COMPLETED else None
                events.append(Event(key=EventKey(at, number, row), what=what, attempt=attempt))
    return events


_FIRST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 30, tzinfo=UTC)


def _left(rank: int, moment: str, after: EventKey | None, never: datetime, is_newest_first: bool) -> Expression:
    """Return an expression: an entry's time if its event comes after the key, else `never`."""
    if after is None:
        return Coalesce(F(moment), Value(never), output_field=DateTimeField())
    condition = Q(**{f"{moment}__isnull": False}) & _Slice(rank, after, is_newest_first).behind(moment, "pk")
    return Case(When(condition, then=F(moment)), default=Value(never), output_field=DateTimeField())


def _is_behind(key: EventKey, after: EventKey | None, *, is_newest_first: bool) -> bool:
    return after is None or (key < after if is_newest_first else key > after)


def _in_full(run: Run, events: Sequence[Event]) -> list[Event]:
    """Add the places of entries and the errors of failed attempts to the events; two statements."""
    keys = {event.key.row for event in events if event.key.rank in _OF_ENTRIES}
    entries = Entry.objects.using(read_alias()).filter(run=run, pk__in=keys).order_by()
    places = {key: (location, kind) for key, location, kind in entries.values_list("pk", "location", "kind")}
    failed = {event.key.row for event in events if event.key.rank == _FAILED}
    attempts = Attempt.objects.using(read_alias()).filter(pk__in=failed).order_by()
    errors = dict(attempts.values_list("pk", "error"))
    shown = []
    for event in events:
        if event.key.rank in _OF_ENTRIES:
            location, kind = places.get(event.key.row, ("", ""))
            event = replace(event, location=location, kind=kind)
        elif event.key.rank == _FAILED:
            detail = redacted_error(run.workflow, errors.get(event.key.row))
            event = replace(event, detail=shortened(detail, _LONGEST))
        shown.append(event)
    return shown


#: The levels that a filter may name, by name.
LEVELS: Final = {
    name: logging.getLevelNamesMapping()[name] for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLine:
    """A line of a run's log; `text` is redacted as the field "log". `id` is its key, greater for later lines."""

    id: int
    at: datetime
    level: str
    logger: str
    location: str
    text: str


def read_logs(
    run: Run,
    *,
    level: str = "",
    place: str = "",
    before: int | None = None,
    after: int | None = None,
    limit: int = 200,
) -> list[LoggedLine]:
    """Return up to `limit` lines in the order in which they were written; one statement over the lines of one run.

    `level` omits lines below it; `place`, a location or its beginning, omits lines of other steps. Without `after` they
    are the newest ones, or the newest before `before`; with `after` the first ones after it.
    """
    lines = LogLine.objects.using(read_alias()).filter(run=run)
    if level:
        lines = lines.filter(level__gte=LEVELS[level])
    if place:
        lines = lines.filter(location=place) | lines.filter(location__startswith=f"{place}/")
    if before is not None:
        lines = lines.filter(id__lt=before)
    found: Sequence[LogLine]
    if after is not None:
        found = list(lines.filter(id__gt=after).order_by("id")[:limit])
    else:
        found = list(lines.order_by("-id")[:limit])[::-1]
    return [
        LoggedLine(
            id=each.pk,
            at=each.at,
            level=logging.getLevelName(each.level),
            logger=each.logger,
            location=each.location,
            text=str(redacted(run.workflow, "log", each.text)),
        )
        for each in found
    ]


def newest_line(run: Run) -> int | None:
    lines = LogLine.objects.using(read_alias()).filter(run=run).order_by("-id")
    return lines.values_list("id", flat=True).first()


def is_kept() -> bool:
    """Whether the settings have a handler that keeps the logs of runs."""
    from django.conf import settings

    handlers: Any = (settings.LOGGING or {}).get("handlers", {})
    return any("RunLogHandler" in str(each.get("class", each.get("()", ""))) for each in handlers.values())
