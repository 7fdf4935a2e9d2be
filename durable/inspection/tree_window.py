"""The entries that a page of the tree of a long history is made of: those of the page, and what tells of them.

A short history is read whole, and its positions count places. In a long one positions count entries in the order in which
they began, and the database finds those of the page. So a page costs the same wherever it begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import BooleanField, Exists, ExpressionWrapper, Q, QuerySet

from durable.conf import conf
from durable.core.records import EntryKind
from durable.inspection.activities import RunningStep
from durable.inspection.progress import MOST_OPEN, OPEN
from durable.models import Attempt, Entry

__all__ = ["LONG", "MOST", "Row", "Window", "read_rows", "read_window"]

LONG: Final = 5_000  # entries of a history that is read whole
MOST: Final = 50_000  # entries with failed attempts that are paged through

#: A step's rollback handler has failed, and has not completed since.
_HAS_FAILED_TO_UNDO: Final = ExpressionWrapper(
    Q(metadata__rollback_error__isnull=False, metadata__rollback_completed_at__isnull=True), BooleanField()
)
_COLUMNS: Final[Sequence[Any]] = ("id", "location", "kind", "metadata__status", _HAS_FAILED_TO_UNDO)
_AROUND: Final = (EntryKind.LOOP.value, EntryKind.JOIN.value, EntryKind.RACE.value)

#: Key, location, kind and status of an entry, and whether its rollback handler has failed for good.
Row = tuple[int, str, str, str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A page of a long history.

    `rows` are the entries of the page, the ones around them, and the newest that are not completed, as they began. `keys`
    are those of the page. Of `total` entries the page begins at `start`. `is_cut`: some entries are on no page.
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


def read_rows(run_id: str) -> list[Row] | None:
    """Return the entries of a history as they began; None if it is long. One statement, two for a long or empty one."""
    # without the order of the index, the whole table may be read up to the first entry
    in_order = _entries(run_id).order_by("location")
    is_long = Exists(in_order[LONG : LONG + 1])
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run_id).filter(~is_long).order_by("ordinal")
    rows = list(found.values_list(*_COLUMNS))
    return None if not rows and list(in_order.values_list("location")[:1]) else rows


def read_window(
    run_id: str,
    *,
    start: int | None,
    size: int,
    only_failed: bool,
    at_end: bool,
    running: Sequence[RunningStep],
    open_keys: Sequence[int] | None,
) -> Window:
    """Return a page of a long history, see `history_tree`. `open_keys` are those of `progress_of`.

    At most six statements; one more without `open_keys`.
    """
    if open_keys is None:
        newest = Entry.objects.using(conf.DATABASE).few_of(run_id, OPEN).order_by("-ordinal")
        open_keys = list(newest.values_list("pk", flat=True)[:MOST_OPEN])
    is_cut = False
    if only_failed:
        chosen = _of_interest(run_id, open_keys, running)
        is_cut, total = len(chosen) > MOST, min(len(chosen), MOST)
        start = _within(total - size if at_end and start is None else start or 0, total)
        keys = chosen[start : min(start + size, total)]
    else:
        order = _Order(run_id, newest=2 * size if start is None else 0)
        total = order.total
        if start is None:
            start = _start(order, open_keys, running, size, at_end=at_end)
        start = _within(start, total)
        keys = order.keys(start, size)
    return Window(rows=_rows(run_id, keys, open_keys), keys=frozenset(keys), start=start, total=total, is_cut=is_cut)


def _within(start: int, total: int) -> int:
    return min(max(0, start), max(0, total - 1))


class _Order:
    """The entries of a run as they began. No index has that order, so each look reads the ordinals of all of them.

    `newest` is the number of last ones that are read at once: a page around the current node is mostly among them.
    """

    def __init__(self, run_id: str, newest: int) -> None:
        self._run_id = run_id
        self.total = _entries(run_id).order_by("location").count()
        rows = _entries(run_id).order_by("-ordinal").values_list("ordinal", "pk")
        self._newest: list[tuple[int, int]] = list(rows[:newest]) if newest else []

    def position(self, ordinal: int) -> int:
        """Return how many entries began before the one with this ordinal; one statement unless it is a newest one."""
        after = sum(each > ordinal for each, _ in self._newest)
        if after < len(self._newest):
            return self.total - after - 1
        return _entries(self._run_id).filter(ordinal__lt=ordinal).count()

    def keys(self, start: int, size: int) -> list[int]:
        """Return the keys of `size` entries from a position on; one statement unless they are all newest ones."""
        after = max(0, self.total - start - size)  # entries behind these
        if start >= self.total - len(self._newest):
            backwards = [key for _, key in self._newest[after : self.total - start]]
        elif start > self.total // 2:
            found = _entries(self._run_id).order_by("-ordinal").values_list("pk", flat=True)
            backwards = list(found[after : self.total - start])
        else:
            found = _entries(self._run_id).order_by("ordinal").values_list("pk", flat=True)
            return list(found[start : start + size])
        return backwards[::-1]


def _entries(run_id: str) -> QuerySet[Entry]:
    return Entry.objects.using(conf.DATABASE).filter(run=run_id).order_by()


def _of_interest(run_id: str, open_keys: Sequence[int], running: Iterable[RunningStep]) -> list[int]:
    """Return the keys of what is not completed, has failed attempts or runs now, one more than `MOST`."""
    failed = Attempt.objects.using(conf.DATABASE).filter(run=run_id).order_by().values("location")
    wanted = Q(pk__in=open_keys) | Q(location__in=failed) | Q(location__in=[step.location for step in running])
    return list(_entries(run_id).filter(wanted).order_by("ordinal").values_list("pk", flat=True)[: MOST + 1])


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
