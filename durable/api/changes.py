"""The changes in a run's history since the last query.

A follower knows the state of its reader: each entry by its key, and the entry's progress. It reads the run's row, and
the entries only if they can have changed: a run that no worker executes costs one look at its row. Within a run, keys
of entries grow in the order of its commits, and its one counter numbers completions; so new and newly completed entries
are found without reading the old ones. Deletions (a loop's old iterations, a replay in place) show in the number of
entries.

What a reader has is kept in a few bytes for each entry: a key and a digest, a number that identifies the state that was
sent. Locations are stored compressed: they are needed only after an entry was deleted.
"""

from __future__ import annotations

import json
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import astuple, dataclass, field
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.db.models import Case, Count, F, Q, Subquery, TextField, Value, When

from durable.conf import conf
from durable.core.numbers import read_whole
from durable.core.records import ENDED, EntryStatus, RunState
from durable.inspection.counting import fitting
from durable.inspection.pagination import InvalidCursorError
from durable.models import Entry, Run
from durable.models.history import EntryQuerySet
from durable.models.rows import weight

CHUNK: Final = 200  # entries that are sent at once
CHUNK_BYTES: Final = 256 * 1024  # bytes of entries as stored: a slow reader holds one chunk in memory
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
#: An entry's data that changes: a loop's iteration, the state of a join's branches, the next try of a handler.
_MOVING_DATA: Final = Case(
    When(metadata__status=EntryStatus.COMPLETED.value, metadata__rollback_error__isnull=True, then=Value(None)),
    default=F("data"),
    output_field=TextField(),
)

_Row = tuple[Any, ...]  # bytes of _COLUMNS


@dataclass(frozen=True, slots=True)
class Token:
    """The state of a reader.

    The reader has the entries up to the key `newest` (and their number), completions up to the number `finished`, other
    entries with the digest `unsettled`, and the run's row with the digest `row`; and possibly the run's end.
    """

    newest: int = 0
    count: int = 0
    finished: int = 0
    unsettled: int = 0
    row: int = 0
    ended: int = 0

    @classmethod
    def parsed(cls, text: str) -> Token:
        """Parse a token's text. Raises InvalidCursorError."""
        numbers = [number for part in text.split("-") if (number := read_whole(part)) is not None]
        if len(numbers) != 6 or text.count("-") != 5:
            raise InvalidCursorError(text)
        return cls(*numbers)

    def __str__(self) -> str:
        return "-".join(map(str, astuple(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The changes found by one query. `run` is its row; `has_changed` says whether the row has changed.

    With `is_reset`, the reader must drop its state, and everything is sent again. `token` identifies everything sent so
    far; None while a reader that resumes there could miss something. `size`: the bytes of the entries as they are
    stored. `has_more`: look again at once. `has_ended`: this is the last change.
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


UNKNOWN: Final = -1  # the digest of an entry that the reader has in an unknown state
_PACK: Final = 256  # locations that are compressed together


class KnownEntry(NamedTuple):
    """An entry that the reader has."""

    key: int
    digest: int
    location: str


class Digests:
    """Keys with their digests, in the order in which they were added: 16 bytes for each."""

    __slots__ = ("digests", "keys")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self.keys, self.digests = array("q"), array("q")
        for key, digest in pairs:
            self.keys.append(key)
            self.digests.append(digest)

    def __len__(self) -> int:
        return len(self.keys)

    def first(self, number: int) -> list[tuple[int, int]]:
        return list(zip(self.keys[:number], self.digests[:number], strict=True))

    def drop(self, number: int) -> None:
        del self.keys[:number], self.digests[:number]


class ReaderState:
    """The entries that a reader has, by key."""

    __slots__ = ("_known", "_loose", "_packed")

    def __init__(self) -> None:
        self._known = Digests()  # ascending
        self._packed: list[bytes] = []  # the locations, `_PACK` in each element
        self._loose: list[str] = []  # locations that do not fill an element yet

    def __len__(self) -> int:
        return len(self._known)

    @property
    def newest(self) -> int:
        """The largest key; 0 for none."""
        return self._known.keys[-1] if len(self._known) else 0

    @property
    def digests(self) -> Iterator[tuple[int, int]]:
        """Yield all keys with their digests, ascending."""
        return zip(self._known.keys, self._known.digests, strict=True)

    def digest(self, key: int) -> int | None:
        """Return the digest of the entry; None if the reader does not have the entry."""
        at = self._find(key)
        return None if at is None else self._known.digests[at]

    def put(self, key: int, digest: int, location: str) -> None:
        """Record that the reader now has this entry."""
        at = self._find(key)
        if at is not None:
            self._known.digests[at] = digest
        elif key > self.newest:
            self._append(key, digest, location)
        else:
            self._fill(sorted([*self._all(), KnownEntry(key, digest, location)]))

    def keep(self, keys: Set[int]) -> list[KnownEntry]:
        """Drop all other entries, and return them."""
        gone = [each for each in self._all() if each.key not in keys]
        if gone:
            self._fill([each for each in self._all() if each.key in keys])
        return gone

    def _find(self, key: int) -> int | None:
        at = bisect_left(self._known.keys, key)
        return at if at < len(self._known) and self._known.keys[at] == key else None

    def _append(self, key: int, digest: int, location: str) -> None:
        self._known.keys.append(key)
        self._known.digests.append(digest)
        self._loose.append(location)
        if len(self._loose) == _PACK:
            self._packed.append(zlib.compress(json.dumps(self._loose).encode("ascii")))
            self._loose = []

    def _fill(self, known: Iterable[KnownEntry]) -> None:
        self._known, self._packed, self._loose = Digests(), [], []
        for each in known:
            self._append(*each)

    def _all(self) -> Iterator[KnownEntry]:
        locations = self._locations()
        for (key, digest), location in zip(self.digests, locations, strict=True):
            yield KnownEntry(key, digest, location)

    def _locations(self) -> Iterator[str]:
        for pack in self._packed:
            yield from json.loads(zlib.decompress(pack))
        yield from self._loose


@dataclass(slots=True)
class Follower:
    """Follows one run for one reader.

    `read_run` returns its row, or raises RunNotFoundError; `since` is the state of the reader.
    """

    read_run: Callable[[], Run]
    since: Token | None = None
    _reader: ReaderState = field(default_factory=ReaderState)
    #: entries to send: first those that have changed for the reader, then new ones in the order of their keys
    _pending: Digests = field(default_factory=Digests)
    _finished: int = 0
    _row: int | None = None
    _run: Run | None = None
    _token: Token | None = None

    def look(self) -> News:
        """Return the changes, up to `CHUNK` entries and `CHUNK_BYTES` at once. Raises RunNotFoundError."""
        if self._pending:
            return self._news()
        run = self._run = self.read_run()  # before its entries: the next look sees changes after this
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
        """Resume from the reader's state. Return True if that is outdated, so that the reader has to start over."""
        rows, since, is_reset = sorted(_rows(entries), key=itemgetter(0)), self.since, False
        if since is not None:
            had = [row for row in rows if row[0] <= since.newest]
            is_reset = len(had) != since.count
            if not is_reset:
                digests = [(row[0], _entry_digest(row, since.finished)) for row in had]
                knows_all = _unsettled_digest(digests) == since.unsettled
                for row, (key, digest) in zip(had, digests, strict=True):
                    self._reader.put(key, digest if knows_all or _is_settled(digest) else UNKNOWN, row[1])
        self._note(rows)
        return is_reset, []

    def _go_on(self, run: Run, entries: EntryQuerySet) -> list[str]:
        """Note what has changed, and return the locations that are empty now.

        The number of entries is read in one statement with those that may have changed. The newest entry that was sent
        is always included: if it was deleted, there may be no other row to carry the number.
        """
        newest = self._reader.newest
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
        if number - sum(row[0] > newest for row in rows) != len(self._reader):
            return self._compare(_rows(entries))
        self._note(rows)
        return []

    def _compare(self, rows: list[_Row]) -> list[str]:
        """Examine all entries, because some were deleted."""
        places = {row[1] for row in rows}
        gone = self._reader.keep({row[0] for row in rows})
        self._finished = 0
        self._note(rows)
        return [each.location for each in gone if each.location not in places]

    def _note(self, rows: Iterable[_Row]) -> None:
        rows = sorted(rows, key=itemgetter(0))
        self._finished = max([self._finished, *(row[4] or 0 for row in rows)])
        digests = ((row[0], _entry_digest(row, self._finished)) for row in rows)
        changed = [(key, digest) for key, digest in digests if self._reader.digest(key) != digest]
        known = [pair for pair in changed if self._reader.digest(pair[0]) is not None]
        self._pending = Digests([*known, *(pair for pair in changed if self._reader.digest(pair[0]) is None)])

    def _news(self, *, has_changed: bool = False, removed: Sequence[str] = (), is_reset: bool = False) -> News:
        assert self._run is not None
        chunk = self._pending.first(CHUNK)
        entries, number, size = _read(self._run, [key for key, _ in chunk])
        sent = dict(chunk[:number])
        for entry in entries:
            self._reader.put(entry.pk, sent[entry.pk], entry.location)
        self._pending.drop(number)
        is_whole = not self._pending or self._reader.digest(self._pending.keys[0]) is None
        has_ended = self._run.state in ENDED and not self._pending
        if sent or removed or is_reset or has_changed or self._token is None:  # else the reader's state is unchanged
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
        """Return the state of the reader after this query."""
        assert self._row is not None
        return Token(
            newest=self._reader.newest,
            count=len(self._reader),
            finished=self._finished,
            unsettled=_unsettled_digest(self._reader.digests),
            row=self._row,
            ended=int(has_ended),
        )


def _rows(entries: EntryQuerySet, *also: str) -> list[_Row]:
    return list(entries.annotate(moving_data=_MOVING_DATA).values_list(*_COLUMNS, *also))


def _number_of_entries(run: Run) -> Subquery:
    entries = Entry.objects.using(conf.DATABASE).filter(run=run).order_by().values("run")
    return Subquery(entries.annotate(number=Count("*")).values("number"))


def _read(run: Run, keys: Sequence[int]) -> tuple[list[Entry], int, int]:
    """Return the run's entries that fit into one chunk, in the order of their keys, with their number and bytes."""
    if not keys:
        return [], 0, 0
    entries = Entry.objects.using(conf.DATABASE).filter(run=run)
    size_of_row = weight("data", "metadata__error", "metadata__rollback_error")
    sizes = dict(entries.filter(pk__in=keys).values_list("pk", size_of_row))
    chosen, size = fitting(((key, sizes.get(key, 0)) for key in keys), CHUNK_BYTES)  # a deleted entry has none
    found = entries.filter(pk__in=chosen).select_related("metadata").defer("output", "arguments").order_by("id")
    return list(found), len(chosen), size


def _row_digest(run: Run) -> int:
    """Return a digest of the row, ignoring heartbeats."""
    return _digest(
        (
            run.state,
            run.fence,
            run.change_seq,
            run.message_count,
            run.wake_at,
            run.pending_request,
            run.worker,
            run.summary,
            *_said(run),
        )
    )


def _said(run: Run) -> list[tuple[int, int]]:
    """Return which status the run has, if it has one and was read with it."""
    shown = getattr(run, "shown", None) if Run.shown.is_cached(run) else None
    return [] if shown is None else [(shown.fence, shown.number)]


def _digest(sent: object) -> int:
    """Return a number that identifies what was sent; never 0."""
    return zlib.crc32(repr(sent).encode(errors="surrogatepass")) or 1


def _entry_digest(row: _Row, finished: int) -> int:
    """Return a number from 0 on for the row; odd if a reader with completions up to `finished` has its completion."""
    text = repr(row).encode(errors="surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=8).digest()) >> 2
    _, _, status, _, completion, compensated_at, rollback_error, _, _ = row
    is_untouched = compensated_at is None and rollback_error is None
    is_known = (
        status == EntryStatus.COMPLETED.value and completion is not None and completion <= finished and is_untouched
    )
    return number << 1 | is_known


def _is_settled(digest: int) -> bool:
    """Return whether the entry will not change any more, as far as its reader knows."""
    return bool(digest & 1)


def _unsettled_digest(digests: Iterable[tuple[int, int]]) -> int:
    return _digest([pair for pair in digests if not _is_settled(pair[1])])
