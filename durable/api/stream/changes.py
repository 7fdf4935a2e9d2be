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
from hashlib import blake2b
from typing import Any, Final

from django.db.models import Case, Count, F, Q, Subquery, TextField, Value, When

from durable.api.sizes import fitting, sized
from durable.api.stream.told import UNKNOWN, Marks, Told
from durable.conf import conf
from durable.core.records import ENDED, EntryStatus, RunState
from durable.inspection.pagination import InvalidCursorError
from durable.models import Entry, Run
from durable.models.querysets import EntryQuerySet

__all__ = ["CHUNK", "CHUNK_BYTES", "Follower", "News", "Token"]

CHUNK: Final = 200  # entries that are told at once
CHUNK_BYTES: Final = 256 * 1024  # of them, as they are stored: a reader who does not read holds a chunk
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
    When(metadata__status=EntryStatus.COMPLETED.value, metadata__rollback_error__isnull=True, then=Value(None)),
    default=F("data"),
    output_field=TextField(),
)

_Row = tuple[Any, ...]  # of _COLUMNS


@dataclass(frozen=True, slots=True)
class Token:
    """What a reader has: entries up to the key `newest`, so many of them, completions up to the number `finished`, the
    others as `unsettled` stands for them, the run's row as `row` does, and whether it was told of its end."""

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
    None while a reader who begins again there could miss something. `size`: the bytes of the entries as they are stored.
    `has_more`: look again at once. `has_ended`: this is the last there is.
    """

    run: Run
    has_changed: bool = False
    entries: Sequence[Entry] = ()
    size: int = 0
    removed: Sequence[str] = ()
    is_reset: bool = False
    token: Token | None = None
    has_more: bool = False
    has_ended: bool = False


@dataclass(slots=True)
class Follower:
    """Follows one run for one reader. `read_run` gives its row, or raises RunNotFoundError; `since` is what the reader has."""

    read_run: Callable[[], Run]
    since: Token | None = None
    _told: Told = field(default_factory=Told)
    #: what is to be told: entries that the reader knows otherwise, then new ones in the order of their keys
    _pending: Marks = field(default_factory=Marks)
    _finished: int = 0
    _row: int | None = None
    _run: Run | None = None
    _token: Token | None = None

    def look(self) -> News:
        """What is new, up to `CHUNK` entries and `CHUNK_BYTES` at once. Raises RunNotFoundError."""
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
        """Take up where the reader stopped. True if the reader has to begin anew, since what it has is no longer so."""
        rows, since, is_reset = sorted(_rows(entries), key=_key), self.since, False
        if since is not None:
            had = [row for row in rows if row[0] <= since.newest]
            is_reset = len(had) != since.count
            if not is_reset:
                marks = [(row[0], _mark(row, since.finished)) for row in had]
                knows_all = _unsettled_digest(marks) == since.unsettled
                for row, (key, mark) in zip(had, marks, strict=True):
                    self._told.put(key, mark if knows_all or _is_settled(mark) else UNKNOWN, row[1])
        self._note(rows)
        return is_reset, []

    def _go_on(self, run: Run, entries: EntryQuerySet) -> list[str]:
        """Note what has changed; the places that are empty now.

        How many entries there are comes with those that may have changed, of one moment with them. The newest one that was
        told is always asked for: where it is gone, there may be no other row to bring the number.
        """
        newest = self._told.newest
        may_have_changed = (
            Q(metadata__entry__gte=newest)
            | ~Q(metadata__status=EntryStatus.COMPLETED.value)
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
        places = {row[1] for row in rows}
        gone = self._told.keep({row[0] for row in rows})
        self._finished = 0
        self._note(rows)
        return [each.location for each in gone if each.location not in places]

    def _note(self, rows: Iterable[_Row]) -> None:
        rows = sorted(rows, key=_key)
        self._finished = max([self._finished, *(row[4] or 0 for row in rows)])
        marks = ((row[0], _mark(row, self._finished)) for row in rows)
        changed = [(key, mark) for key, mark in marks if self._told.mark(key) != mark]
        known = [pair for pair in changed if self._told.mark(pair[0]) is not None]
        self._pending = Marks([*known, *(pair for pair in changed if self._told.mark(pair[0]) is None)])

    def _news(self, *, has_changed: bool = False, removed: Sequence[str] = (), is_reset: bool = False) -> News:
        assert self._run is not None
        chunk = self._pending.first(CHUNK)
        entries, number, size = _read([key for key, _ in chunk])
        told = dict(chunk[:number])
        for entry in entries:
            self._told.put(entry.pk, told[entry.pk], entry.location)
        self._pending.drop(number)
        is_whole = not self._pending or self._told.mark(self._pending.keys[0]) is None
        has_ended = self._run.state in ENDED and not self._pending
        if told or removed or is_reset or has_changed or self._token is None:  # else what was told is what it was
            self._token = self._stand(has_ended=has_ended) if is_whole else None
        return News(
            run=self._run,
            has_changed=has_changed,
            entries=entries,
            size=size,
            removed=removed,
            is_reset=is_reset,
            token=self._token,
            has_more=bool(self._pending),
            has_ended=has_ended,
        )

    def _stand(self, *, has_ended: bool) -> Token:
        """What the reader has now."""
        assert self._row is not None
        return Token(
            newest=self._told.newest,
            count=len(self._told),
            finished=self._finished,
            unsettled=_unsettled_digest(self._told.marks),
            row=self._row,
            ended=int(has_ended),
        )


def _key(row: _Row) -> int:
    key: int = row[0]
    return key


def _rows(entries: EntryQuerySet, *also: str) -> list[_Row]:
    return list(entries.annotate(moving_data=_MOVING_DATA).values_list(*_COLUMNS, *also))


def _number_of_entries(run: Run) -> Subquery:
    entries = Entry.objects.using(conf.DATABASE).filter(run=run).order_by().values("run")
    return Subquery(entries.annotate(number=Count("*")).values("number"))


def _read(keys: Sequence[int]) -> tuple[list[Entry], int, int]:
    """The first of these entries that one chunk can hold, in the order of their keys; how many they are, and their bytes."""
    if not keys:
        return [], 0, 0
    entries = Entry.objects.using(conf.DATABASE)
    columns = ("data", "metadata__error", "metadata__rollback_error")
    sizes = dict(sized(entries.filter(pk__in=keys), *columns))
    chosen, size = fitting(((key, sizes.get(key, 0)) for key in keys), CHUNK_BYTES)  # one that is gone has none
    found = entries.filter(pk__in=chosen).select_related("metadata").defer("output", "arguments").order_by("id")
    return list(found), len(chosen), size


def _row_digest(run: Run) -> int:
    """What of the row is news: not a heartbeat."""
    return _digest((run.state, run.fence, run.signal, run.messages, run.wake_at, run.request, run.worker, run.summary))


def _digest(told: object) -> int:
    """A number that stands for what was told; never 0."""
    return zlib.crc32(repr(told).encode(errors="surrogatepass")) or 1


def _mark(row: _Row, finished: int) -> int:
    """A number from 0 on that stands for the row; odd for one that a reader who has seen completions up to `finished` knows."""
    text = repr(row).encode(errors="surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=8).digest()) >> 2
    _, _, status, _, completion, compensated_at, rollback_error, _, _ = row
    is_untouched = compensated_at is None and rollback_error is None
    is_known = (
        status == EntryStatus.COMPLETED.value and completion is not None and completion <= finished and is_untouched
    )
    return number << 1 | is_known


def _is_settled(mark: int) -> bool:
    """Whether the entry changes no more, as far as its reader knows."""
    return bool(mark & 1)


def _unsettled_digest(marks: Iterable[tuple[int, int]]) -> int:
    return _digest([pair for pair in marks if not _is_settled(pair[1])])
