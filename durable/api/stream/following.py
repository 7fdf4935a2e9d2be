"""What is new in a run's history since somebody looked last.

A follower knows what its reader was told: each entry by its key, and how far it was. It reads the run's row, and its
entries only where they can have changed: a run that nobody passes costs one look at its row. Within a run, keys of entries
grow in the order of its commits, and completions are numbered by its one counter; so new entries, and newly completed ones,
are found without reading the old. That something was deleted (a loop's old iterations, a replay in place) shows in the
number of those that were there.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from django.db.models import Case, Count, F, Q, Subquery, TextField, Value, When

from durable.conf import conf
from durable.core.entries import ENDED, RunState, Status
from durable.inspection.keys import InvalidCursorError
from durable.models import Entry, Run
from durable.querysets import EntryQuerySet

__all__ = ["CHUNK", "Follower", "News", "Token"]

CHUNK: Final = 200  # entries that are told at once
_LONGEST: Final = 120  # characters of a token
_MOVING: Final = frozenset({RunState.RUNNING.value, RunState.ROLLING_BACK.value})
_COLUMNS: Final = (
    "id",
    "location",
    "metadata__status",
    "metadata__attempts",
    "metadata__finished_ordinal",
    "metadata__rollback_completed_at",
    "metadata__rollback_error",
    "metadata__next_attempt_at",
    "moving_data",
)
#: An entry's data as long as it changes: a loop's iteration, the state of a join's branches, the next try of a handler.
_MOVING_DATA: Final = Case(
    When(metadata__status=Status.COMPLETED.value, metadata__rollback_error__isnull=True, then=Value(None)),
    default=F("data"),
    output_field=TextField(),
)

_Row = tuple[Any, ...]  # of _COLUMNS


@dataclass(frozen=True, slots=True)
class Token:
    """What a reader has: entries up to the key `newest`, so many of them, completions up to the number `finished`, the
    others as `unsettled` stands for them, the run's row as `row` does, and whether he was told of its end."""

    newest: int = 0
    count: int = 0
    finished: int = 0
    unsettled: int = 0
    row: int = 0
    ended: int = 0

    @classmethod
    def parsed(cls, text: str) -> Token:
        """The token that `text` was made of. Raises InvalidCursorError."""
        parts = text.split("-")
        if len(text) > _LONGEST or len(parts) != 6 or not all(part.isascii() and part.isdigit() for part in parts):
            raise InvalidCursorError(text)
        numbers = [int(part) for part in parts]
        if max(numbers) >= 2**63:
            raise InvalidCursorError(text)
        return cls(*numbers)

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one look found. `run` is its row; `has_changed` says whether that is news.

    With `is_reset`, what the reader has is void, and all is told anew. `token` stands for all that was told up to here;
    None while a reader who begins again there could miss something. `has_more`: look again at once. `has_ended`: this
    is the last there is.
    """

    run: Run
    has_changed: bool = False
    entries: Sequence[Entry] = ()
    removed: Sequence[str] = ()
    is_reset: bool = False
    token: Token | None = None
    has_more: bool = False
    has_ended: bool = False


@dataclass(slots=True)
class Follower:
    """Follows one run for one reader. `read_run` gives its row, or raises RunNotFoundError; `since` is what he has."""

    read_run: Callable[[], Run]
    since: Token | None = None
    #: by key: the entries that the reader has, as he knows them; None where that is not known
    _told: dict[int, _Row | None] = field(default_factory=dict)
    #: what is to be told: entries that he knows otherwise, then new ones in the order of their keys
    _pending: list[_Row] = field(default_factory=list)
    _finished: int = 0
    _row: int | None = None
    _run: Run | None = None
    _token: Token | None = None

    def look(self) -> News:
        """What is new, up to `CHUNK` entries at once. Raises RunNotFoundError."""
        if self._pending:
            return self._news()
        run = self._run = self.read_run()  # before its entries: what changes after it is seen by the next look
        is_first = self._row is None
        before = self._row if self._row is not None else self.since.row if self.since is not None else None
        self._row = _row_digest(run)
        has_changed = self._row != before
        if not is_first and not has_changed and run.state not in _MOVING:
            return self._news()
        entries = Entry.objects.using(conf.DATABASE).with_metadata_of(run.id)
        is_reset, removed = self._begin(entries) if is_first else (False, self._go_on(run, entries))
        return self._news(has_changed=has_changed, removed=removed, is_reset=is_reset)

    def _begin(self, entries: EntryQuerySet) -> tuple[bool, list[str]]:
        """Take up where the reader stopped. True if he has to begin anew, since what he has is no longer so."""
        rows, since, is_reset = _rows(entries), self.since, False
        if since is not None:
            had = [row for row in rows if row[0] <= since.newest]
            is_reset = len(had) != since.count
            if not is_reset:
                knows_all = _digest(_unsettled(had, since.finished)) == since.unsettled
                self._told = {row[0]: row if knows_all or _is_settled(row, since.finished) else None for row in had}
        self._note(rows)
        return is_reset, []

    def _go_on(self, run: Run, entries: EntryQuerySet) -> list[str]:
        """Note what has changed; the places that are empty now.

        How many entries there are comes with those that may have changed, of one moment with them. The newest one that was
        told is always asked for: where it is gone, there may be no other row to bring the number.
        """
        newest = max(self._told, default=0)
        may_have_changed = (
            Q(metadata__entry__gte=newest)
            | ~Q(metadata__status=Status.COMPLETED.value)
            | Q(metadata__finished_ordinal__gt=self._finished)
            | Q(metadata__rollback_completed_at__isnull=False)
            | Q(metadata__rollback_error__isnull=False)
        )
        found = _rows(entries.filter(may_have_changed).annotate(number=_number_of_entries(run)), "number")
        number = found[0][-1] if found else 0
        rows = [row[:-1] for row in found]
        if number - sum(row[0] > newest for row in rows) != len(self._told):
            return self._compare(_rows(entries))
        self._note(rows)
        return []

    def _compare(self, rows: list[_Row]) -> list[str]:
        """Some entries are gone: look at all that are there."""
        keys, places = {row[0] for row in rows}, {row[1] for row in rows}
        gone = {key: row for key, row in self._told.items() if key not in keys}
        self._told = {key: row for key, row in self._told.items() if key in keys}
        self._finished = 0
        self._note(rows)
        return [row[1] for row in gone.values() if row is not None and row[1] not in places]

    def _note(self, rows: Iterable[_Row]) -> None:
        rows = sorted(rows, key=lambda row: row[0])
        changed = [row for row in rows if self._told.get(row[0]) != row]
        self._pending = [row for row in changed if row[0] in self._told]
        self._pending += [row for row in changed if row[0] not in self._told]
        self._finished = max([self._finished, *(row[4] or 0 for row in rows)])

    def _news(self, *, has_changed: bool = False, removed: Sequence[str] = (), is_reset: bool = False) -> News:
        assert self._run is not None
        chunk, self._pending = self._pending[:CHUNK], self._pending[CHUNK:]
        is_whole = not self._pending or self._pending[0][0] not in self._told
        self._told |= {row[0]: row for row in chunk}
        has_ended = self._run.state in ENDED and not self._pending
        if chunk or removed or is_reset or has_changed or self._token is None:  # else what was told is what it was
            self._token = self._stand(has_ended=has_ended) if is_whole else None
        return News(
            run=self._run,
            has_changed=has_changed,
            entries=_read(chunk),
            removed=removed,
            is_reset=is_reset,
            token=self._token,
            has_more=bool(self._pending),
            has_ended=has_ended,
        )

    def _stand(self, *, has_ended: bool) -> Token:
        """What the reader has now."""
        assert self._row is not None
        told = [row for row in self._told.values() if row is not None]
        return Token(
            newest=max(self._told, default=0),
            count=len(self._told),
            finished=self._finished,
            unsettled=_digest(_unsettled(told, self._finished)),
            row=self._row,
            ended=int(has_ended),
        )


def _rows(entries: EntryQuerySet, *also: str) -> list[_Row]:
    return list(entries.annotate(moving_data=_MOVING_DATA).values_list(*_COLUMNS, *also))


def _number_of_entries(run: Run) -> Subquery:
    entries = Entry.objects.using(conf.DATABASE).filter(run=run).order_by().values("run")
    return Subquery(entries.annotate(number=Count("*")).values("number"))


def _read(rows: Sequence[_Row]) -> list[Entry]:
    if not rows:
        return []
    entries = Entry.objects.using(conf.DATABASE).filter(pk__in=[row[0] for row in rows])
    return list(entries.select_related("metadata").defer("output", "arguments").order_by("id"))


def _row_digest(run: Run) -> int:
    """What of the row is news: not a heartbeat."""
    return _digest((run.state, run.fence, run.signal, run.messages, run.wake_at, run.request, run.worker, run.summary))


def _digest(told: object) -> int:
    """A number that stands for what was told; never 0."""
    return zlib.crc32(repr(told).encode(errors="surrogatepass")) or 1


def _unsettled(rows: Iterable[_Row], finished: int) -> list[_Row]:
    return sorted((row for row in rows if not _is_settled(row, finished)), key=lambda row: row[0])


def _is_settled(row: _Row, finished: int) -> bool:
    """Whether whoever has seen completions up to this number knows the entry as it is."""
    _, _, status, _, number, compensated_at, rollback_error, _, _ = row
    is_untouched = compensated_at is None and rollback_error is None
    return status == Status.COMPLETED.value and number is not None and number <= finished and is_untouched
