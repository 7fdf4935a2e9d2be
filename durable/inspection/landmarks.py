"""Landmarks of long histories: counted by the sweep, read by pages that show a part of a history in its order.

What they are is in `durable.store.surveys`.
"""

from __future__ import annotations

from typing import Any, Final

from django.db.models import BigIntegerField, ExpressionWrapper, F, Max, Min

from durable.inspection.counting import grouped
from durable.inspection.history_counts import stored
from durable.inspection.reading import read_alias
from durable.models import Entry, Run
from durable.models.rows import unpack
from durable.store.surveys import Landmarks, Sort
from durable.store.tables.surveys import is_compensable, is_handled

_STRETCHES: Final = 512
_MOST: Final = 100_000  # rows of the answer: more than there can be


def landmarks_of(run: Run) -> Landmarks | None:
    """Return the landmarks of a long history that rests and was counted, else None; no statement."""
    found = stored(run, "landmarks")
    return None if found is None else Landmarks.load({"landmarks": found})


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
