"""The entries that a page of the tree of a long history is made of: those of the page, and what tells of them.

A short history is read whole, and its positions count places. In a long one positions count entries in the order in
which they began, and the database finds those of the page. So a page costs the same wherever it begins. What is found
is remembered while the run rests (`durable.inspection.history_counts`), with the entries of the pages beside.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Exists, Q, QuerySet

from durable.conf import conf
from durable.core.records import EntryKind
from durable.inspection import history_counts
from durable.inspection.activities import RunningStep
from durable.inspection.history_counts import remembered
from durable.inspection.places import HAS_FAILED_TO_UNDO
from durable.inspection.progress import entries_counted, has_more_entries, newest_open
from durable.models import Attempt, Entry, Run

LONG: Final = 5_000  # entries of a history that is read whole
MOST: Final = 50_000  # entries with failed attempts that are paged through
_BLOCK: Final = 2_000  # entries whose order is read at once
_MOST_KEPT: Final = 10_000  # keys of entries with failed attempts that are remembered

_COLUMNS: Final[Sequence[Any]] = ("id", "location", "kind", "metadata__status", HAS_FAILED_TO_UNDO)
_AROUND: Final = (EntryKind.LOOP.value, EntryKind.JOIN.value, EntryKind.RACE.value)

#: Key, location, kind and status of an entry, and whether its rollback handler has failed for good.
Row = tuple[int, str, str, str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A page of a long history.

    `rows` are the entries of the page, the ones around them, and the newest that are not completed, as they began.
    `keys` are those of the page. Of `total` entries the page begins at `start`. `is_cut`: some entries are on no page.
    """

    rows: Sequence[Row]
    keys: Collection[int]
    start: int
    total: int
    is_cut: bool

    @property
    def is_last(self) -> bool:
        """Whether no entry follows the page."""
        return self.start + len(self.keys) >= self.total

    @property
    def locations(self) -> list[str]:
        """The locations of the page's entries."""
        return [location for key, location, *_ in self.rows if key in self.keys]


def read_rows(run: Run, entries: int | None) -> list[Row] | None:
    """Return the entries of a history as they began; None if it is long.

    `entries` is their number, None if it is not known.

    One statement, none for a long history. If the number is not known, and this process has not counted the history:
    one, and two for a long or empty one.
    """
    if entries is None:
        entries = entries_counted(run)
    if entries is not None and entries > LONG:
        return None
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run.id).order_by("ordinal")
    if entries is not None:
        return list(found.values_list(*_COLUMNS))
    # The same statement asks whether it is long: in the order of the index, without which the whole table may be read.
    is_long = Exists(_entries(run.id).order_by("location")[LONG : LONG + 1])
    rows = list(found.filter(~is_long).values_list(*_COLUMNS))
    return None if not rows and has_more_entries(run.id, 0) else rows


def read_window(
    run: Run,
    *,
    start: int | None,
    size: int,
    only_failed: bool,
    at_end: bool,
    running: Sequence[RunningStep],
    entries: int | None,
    open_keys: Sequence[int] | None,
) -> Window:
    """Return a page of a long history, see `history_tree`. `entries` and `open_keys` are those of `progress_of`.

    At most six statements; one more without `entries`, and one without `open_keys`. Three where the rest is remembered.
    """
    if open_keys is None:
        open_keys = newest_open(run)
    is_cut = False
    if only_failed:
        chosen = _of_interest(run, open_keys, running)
        is_cut, total = len(chosen) > MOST, min(len(chosen), MOST)
        start = _within(total - size if at_end and start is None else start or 0, total)
        keys = list(chosen[start : min(start + size, total)])
    else:
        order = _Order(run, entries)
        total = order.total
        if start is None:
            start = _start(order, open_keys, running, size, at_end=at_end)
        start = _within(start, total)
        keys = order.keys(start, size)
    rows = _rows(run.id, keys, open_keys)
    return Window(rows=rows, keys=frozenset(keys), start=start, total=total, is_cut=is_cut)


def _within(start: int, total: int) -> int:
    return min(max(0, start), max(0, total - 1))


class _Order:
    """The entries of a run as they began. No index has that order, so each look reads the ordinals of all of them.

    Therefore a look reads `_BLOCK` entries, which are remembered: the next pages have nothing to look for. `total` is
    the number of all entries; without it they are counted.
    """

    def __init__(self, run: Run, total: int | None) -> None:
        self._run = run
        self._entries = _entries(run.id)
        self.total = self._counted() if total is None else total

    def position(self, ordinal: int) -> int:
        """Return how many entries began before the one with this ordinal.

        One statement, and a second one unless the entry is one of the newest.
        """
        ordinals, _ = self._newest()
        after = len(ordinals) - bisect_right(ordinals, ordinal)
        if after < len(ordinals):
            return self.total - after - 1
        before = self._entries.filter(ordinal__lt=ordinal)
        return remembered(self._run, f"entries before {ordinal}", before.count)

    def keys(self, start: int, size: int) -> list[int]:
        """Return the keys of `size` entries from a position on; one statement."""
        if start >= self.total - _BLOCK:
            _, newest = self._newest()
            begin = max(0, self.total - len(newest))
            return list(newest[start - begin : start - begin + size])
        begin = start // _BLOCK * _BLOCK
        what = f"keys from {begin} on for pages of {size}"
        block = remembered(self._run, what, lambda: self._between(begin, begin + _BLOCK + size))
        return list(block[start - begin : start - begin + size])

    def _counted(self) -> int:
        return remembered(self._run, "entries", self._entries.order_by("location").count)

    def _newest(self) -> tuple[array[int], array[int]]:
        """Return the ordinals and the keys of the newest entries, as they began."""
        return remembered(self._run, "newest entries", self._read_newest)

    def _read_newest(self) -> tuple[array[int], array[int]]:
        rows = list(self._entries.order_by("-ordinal").values_list("ordinal", "pk")[:_BLOCK])[::-1]
        return array("q", [ordinal for ordinal, _ in rows]), array("q", [key for _, key in rows])

    def _between(self, begin: int, end: int) -> array[int]:
        """Return the keys of the entries at these positions, found from the nearer end of the history."""
        if begin <= self.total // 2:
            return array("q", self._entries.order_by("ordinal").values_list("pk", flat=True)[begin:end])
        found = self._entries.order_by("-ordinal").values_list("pk", flat=True)
        return array("q", list(found[max(0, self.total - end) : self.total - begin])[::-1])


def _entries(run_id: str) -> QuerySet[Entry]:
    return Entry.objects.using(conf.DATABASE).filter(run=run_id).order_by()


def _of_interest(run: Run, open_keys: Sequence[int], running: Sequence[RunningStep]) -> Sequence[int]:
    """Return the keys of what is not completed, has failed attempts or runs now, one more than `MOST`."""

    def read() -> Sequence[int]:
        return _read_of_interest(run.id, open_keys, running)

    if running:
        return read()
    return remembered(
        run, "of interest", read, lambda found: history_counts.LONG + 1 if len(found) <= _MOST_KEPT else 0
    )


def _read_of_interest(run_id: str, open_keys: Sequence[int], running: Iterable[RunningStep]) -> Sequence[int]:
    failed = Attempt.objects.using(conf.DATABASE).filter(run=run_id).order_by().values("location")
    conditions = [Q(location__in=failed), Q(pk__in=open_keys), Q(location__in=[step.location for step in running])]
    # not one condition with OR: each entry of the history would be read for it
    first, *others = (_entries(run_id).filter(each).values_list("ordinal", "pk") for each in conditions)
    return array("q", [key for _, key in first.union(*others).order_by("ordinal")[: MOST + 1]])


def _start(order: _Order, open_keys: Sequence[int], running: Iterable[RunningStep], size: int, *, at_end: bool) -> int:
    """Return where the page begins that has the last entry without completion, or what runs before its first record."""
    last = order.total - size
    if any(not step.is_rollback for step in running):
        return last if at_end else max(0, order.total - 1) // size * size
    found = Entry.objects.using(conf.DATABASE).filter(pk__in=open_keys).order_by("-ordinal")
    rows = list(found.values_list("ordinal", "kind"))
    ordinal = next((ordinal for ordinal, kind in rows if kind not in _AROUND), rows[0][0] if rows else 0)
    position = order.position(ordinal) if rows else 0
    if at_end:
        return min(position, last) if position else last
    return position // size * size


def _rows(run_id: str, keys: Sequence[int], open_keys: Sequence[int]) -> list[Row]:
    """Return the entries with these keys and those around the first ones, as they began; two statements."""
    locations = _entries(run_id).filter(pk__in=keys).values_list("location", flat=True)
    around = {location[:end] for location in locations for end in _ends(location)}
    wanted = Q(pk__in=[*keys, *open_keys]) | Q(run=run_id, location__in=sorted(around))
    found = Entry.objects.using(conf.DATABASE).filter(wanted).select_related("metadata").order_by("ordinal")
    return list(found.values_list(*_COLUMNS))


def _ends(location: str) -> list[int]:
    return [position for position, character in enumerate(location) if character == "/"]
