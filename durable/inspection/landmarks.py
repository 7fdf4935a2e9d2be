"""Landmarks of long histories: counted by the sweep, read by pages that show a part of a history in its order.

What they are is in `durable.store.surveys`.
"""

from __future__ import annotations

from typing import Any, Final

from django.db.models import BigIntegerField, ExpressionWrapper, F, Max, Min, QuerySet

from durable.core.records import EntryKind
from durable.inspection.counting import grouped
from durable.inspection.history_counts import stored
from durable.inspection.reading import read_alias
from durable.models import Entry, Run
from durable.models.rows import unpack
from durable.store.surveys import Landmarks, Sort
from durable.store.tables.surveys import in_stretches, is_compensable, is_handled

_STRETCHES: Final = 512
_MOST: Final = 100_000  # rows of the answer: more than there can be


def landmarks_of(run: Run) -> Landmarks | None:
    """Return the landmarks of a long history that rests and was counted, else None; no statement."""
    found = stored(run, "landmarks")
    return None if found is None else Landmarks.load({"landmarks": found})


def at_ordinals(run: Run, first: int, last: int) -> QuerySet[Entry]:
    """Return the run's entries with these ordinals, in their order.

    Of a long history that rests and was counted, a part is searched.
    """
    found = Entry.objects.using(read_alias()).filter(run=run, ordinal__range=(first, last)).order_by("ordinal")
    landmarks = landmarks_of(run)
    return found if landmarks is None else found.filter(in_stretches(landmarks.between(first, last)))


def newest_of_kind(run: Run, kind: EntryKind, most: int) -> QuerySet[Entry]:
    """Return the newest `most` entries of a kind, the newest first.

    Of a long history that rests and was counted, a part is searched, and none if it has no such entry.
    """
    found = Entry.objects.using(read_alias()).filter(run=run, kind=kind.value).order_by("-ordinal")
    landmarks = landmarks_of(run)
    if landmarks is not None:
        found = found.filter(in_stretches(landmarks.with_newest(kind, most)))
    return found[:most]


def count_landmarks(run: Run) -> dict[str, Any]:
    """Return the landmarks of a long history as JSON, for `durable.inspection.history_counts`; two statements."""
    entries = Entry.objects.using(read_alias()).filter(run=run.id).order_by()
    span = entries.aggregate(first=Min("ordinal"), last=Max("ordinal"))
    first, last = span["first"] or 0, span["last"] or 0
    width = (last - first) // _STRETCHES + 1
    sorted_ = entries.annotate(
        position=ExpressionWrapper((F("ordinal") - first) / width, BigIntegerField()),
        is_handled=is_handled(),
        is_compensable=is_compensable(),
    )
    columns = ["position", "kind", "is_handled", "is_compensable", "pk"]
    stretches: dict[int, list[Any]] = {}
    for position, kind, handled, compensable, number, low, high in grouped(
        sorted_, columns, 4, "COUNT(*), MIN(pk), MAX(pk)", _MOST
    ):
        stretch = stretches.setdefault(position, [position, low, high, {}])
        stretch[1:3] = min(stretch[1], low), max(stretch[2], high)
        stretch[3][Sort(unpack(kind), bool(handled), bool(compensable)).text] = number
    return {"first": first, "width": width, "stretches": [stretches[each] for each in sorted(stretches)]}
