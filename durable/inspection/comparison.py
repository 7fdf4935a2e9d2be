"""Two runs side by side: what differs between a run and another one of the same workflow, place by place.

The database finds the places of the page and counts all; only the entries of the page are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db.models import Exists, OuterRef, QuerySet

from durable.core.places import Place
from durable.core.records import EntryStatus
from durable.inspection.entry_detail import whole_data
from durable.inspection.history_counts import remembered
from durable.inspection.landmarks import landmarks_of
from durable.inspection.payloads import TooLarge, payload, read_within, redacted_error
from durable.inspection.reading import read_alias
from durable.models import Entry, Run
from durable.store.tables.surveys import in_stretches

PAGE: Final = 50  # places on one page
MOST: Final = 50_000  # places of the left run, and places of the right one alone, that are paged through


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two compared runs at a place. `output` is JSON data; None if it is missing or the user may not see
    it.
    """

    status: str
    attempts: int
    took: timedelta | None
    error: str
    is_given: bool
    output: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A place; a side is None if its run has nothing there. `differs` names the differences."""

    location: str
    kind: str
    left: Side | None
    right: Side | None
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A page of places of two runs, in the order of the left run; then those that only the right run has.

    `inputs` are both inputs as JSON data, None without the permission to see payloads or if they are the same.
    """

    left: Run
    right: Run
    rows: Sequence[Difference]
    start: int
    total: int
    is_cut: bool
    inputs: tuple[Any, Any] | None = None

    @property
    def next_start(self) -> int | None:
        end = self.start + len(self.rows)
        return end if end < self.total else None

    @property
    def previous_start(self) -> int | None:
        return max(0, self.start - PAGE) if self.start else None


def compare_runs(left: Run, right: Run, *, with_payloads: bool, start: int = 0) -> Comparison:
    """Return a page of the places of both runs. A constant number of statements.

    Outputs are compared only with `with_payloads`, because that two values differ is information about them.
    """
    recorded, own = _entries(left), _own(right, left)
    numbers = [_count(recorded), _count_own(own, right, left)]
    of_left, of_right = (min(each, MOST) for each in numbers)
    start = min(max(0, start), max(0, of_left + of_right - 1))
    shown = _first_places(left, start, min(start + PAGE, of_left))
    shown += _places(own, max(0, start - of_left), min(start + PAGE - of_left, of_right))
    read = _read(left, right, shown, with_payloads)
    return Comparison(
        left=left,
        right=right,
        rows=[_difference(each, read[0].get(each), read[1].get(each), with_payloads=with_payloads) for each in shown],
        start=start,
        total=of_left + of_right,
        is_cut=any(each > MOST for each in numbers),
        inputs=_inputs(left, right) if with_payloads and start == 0 else None,
    )


def _entries(run: Run) -> QuerySet[Entry]:
    return Entry.objects.using(read_alias()).filter(run=run.pk)


def _own(run: Run, other: Run) -> QuerySet[Entry]:
    """Return the entries at places that the other run lacks."""
    return _entries(run).filter(~Exists(_entries(other).filter(location=OuterRef("location"))))


def _count(entries: QuerySet[Entry]) -> int:
    """Count up to one more than `MOST`, along the index."""
    return entries.order_by("location")[: MOST + 1].count()


def _count_own(own: QuerySet[Entry], run: Run, other: Run) -> int:
    """Count the places that only `run` has. Counts of long histories are remembered while both runs rest."""
    if other.lease_expires_at is not None:
        return _count(own)
    what = f"beside {other.state} {other.fence} {other.change_seq} {other.created_at.isoformat()} {other.id}"
    return remembered(run, what, partial(_count, own), lambda number: number)


def _first_places(run: Run, start: int, end: int) -> list[str]:
    """Return the locations of the run's entries between two positions, as `_places` does.

    Of a long history that rests and was counted, it reads the part around these positions.
    """
    landmarks = landmarks_of(run)
    if landmarks is None:
        return _places(_entries(run), start, end)
    stretches, begin = landmarks.around(start, end)
    return _places(_entries(run).filter(in_stretches(stretches)), begin, begin + end - start)


def _places(entries: QuerySet[Entry], start: int, end: int) -> list[str]:
    """Return the locations of these entries between two positions, in the order in which they began."""
    return list(entries.order_by("ordinal").values_list("location", flat=True)[start:end]) if start < end else []


def _read(
    left: Run, right: Run, places: Sequence[str], with_payloads: bool
) -> tuple[Mapping[str, tuple[str, Side]], Mapping[str, tuple[str, Side]]]:
    """Read both runs' sides of these places; two statements, and up to two for each run with payloads."""
    both = Entry.objects.using(read_alias()).filter(run__in=[left.pk, right.pk])
    at_places = both.filter(location__in=places).order_by()
    run_of = dict(at_places.values_list("pk", "run_id"))
    rows = list(both.filter(pk__in=run_of).select_related("metadata").defer("output", "arguments"))

    def sides(run: Run) -> Mapping[str, tuple[str, Side]]:
        of_run = [each for each in rows if each.run_id == run.pk]
        found = both.filter(run=run, pk__in=[each.pk for each in of_run]).order_by("pk")
        outputs = read_within(found, "output") if with_payloads and of_run else {}
        return {each.location: (each.kind, _side(run, each, outputs.get(each.pk))) for each in of_run}

    return sides(left), sides(right)


def _side(run: Run, entry: Any, read: Sequence[Any] | TooLarge | None) -> Side:
    meta = entry.metadata
    began = meta.last_attempt_at or meta.created_at
    is_failed = meta.status != EntryStatus.COMPLETED
    is_given = "given" in whole_data(entry)
    return Side(
        status=meta.status,
        attempts=meta.attempts,
        took=None if meta.completed_at is None or is_given else meta.completed_at - began,
        error=redacted_error(run.workflow, meta.error) if is_failed else "",
        is_given=is_given,
        output=_shown(run, f"output:{entry.location}", read, Place(run.pk, "output", entry.location)),
    )


def _difference(
    location: str, left: tuple[str, Side] | None, right: tuple[str, Side] | None, *, with_payloads: bool
) -> Difference:
    kind = (left or right or ("", None))[0]
    one, other = (None if each is None else each[1] for each in (left, right))
    if one is None or other is None:
        return Difference(location=location, kind=kind, left=one, right=other, differs=("place",))
    names = ["status", "attempts", "error", "is_given", *(["output"] if with_payloads else [])]
    differs = tuple(
        "given by hand" if name == "is_given" else name for name in names if getattr(one, name) != getattr(other, name)
    )
    return Difference(location=location, kind=kind, left=one, right=other, differs=differs)


def _inputs(left: Run, right: Run) -> tuple[Any, Any] | None:
    found = read_within(Run.objects.using(read_alias()).filter(pk__in=[left.pk, right.pk]).order_by("pk"), "input")
    one, other = (_shown(each, "input", found.get(each.pk), Place(each.pk, "input")) for each in (left, right))
    return None if one == other else (one, other)


def _shown(run: Run, field: str, read: Sequence[Any] | TooLarge | None, place: Place) -> Any:
    """Return a payload that `read_within` has read as JSON data, or the text that says that it is too large."""
    if isinstance(read, TooLarge):
        return str(read)
    return payload(run.workflow, field, None if read is None else read[0], place)
