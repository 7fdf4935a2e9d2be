"""Two runs side by side: what differs between a run and another one of the same workflow, place by place.

Reads the skeletons of both histories, and the values of one page of places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from durable.conf import conf
from durable.core.places import Place
from durable.core.records import EntryStatus
from durable.inspection.capped_counts import sample_rows
from durable.inspection.payloads import payload, redacted_error
from durable.inspection.size_limit import TooLarge, read_within
from durable.models import Entry, Run
from durable.models.fields import unpack

__all__ = ["MOST", "PAGE", "Comparison", "Difference", "Side", "compare_runs"]

PAGE: Final = 50  # places of one page
MOST: Final = 50_000  # entries of each run that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one run has at a place. `output` is JSON data, None also if the user may not see it."""

    status: str
    attempts: int
    took: timedelta | None
    error: str
    is_given: bool
    output: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A place; a side is None if its run has nothing there. `differs` names what is not the same."""

    location: str
    kind: str
    left: Side | None
    right: Side | None
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A page of places of two runs, in the order in which the left one reached them, then the right one's own.

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
        """The start of the next page; None on the last."""
        end = self.start + len(self.rows)
        return end if end < self.total else None

    @property
    def previous_start(self) -> int | None:
        """The start of the previous page; None on the first."""
        return max(0, self.start - PAGE) if self.start else None


def compare_runs(left: Run, right: Run, *, with_payloads: bool, start: int = 0) -> Comparison:
    """Return a page of the places of both runs. A constant number of statements.

    Outputs are compared only with `with_payloads`: the answer that two values differ tells of the values.
    """
    sides = [_skeleton(each) for each in (left, right)]
    places = list(dict.fromkeys([*sides[0], *sides[1]]))
    start = min(max(0, start), max(0, len(places) - 1))
    shown = places[start : start + PAGE]
    read = [
        _read(run, [skeleton[each] for each in shown if each in skeleton], with_payloads)
        for run, skeleton in zip((left, right), sides, strict=True)
    ]
    return Comparison(
        left=left,
        right=right,
        rows=[_difference(each, read[0].get(each), read[1].get(each), with_payloads=with_payloads) for each in shown],
        start=start,
        total=len(places),
        is_cut=any(len(each) >= MOST for each in sides),
        inputs=_inputs(left, right) if with_payloads and start == 0 else None,
    )


def _skeleton(run: Run) -> dict[str, int]:
    """Return the keys of the run's entries by location, in the order in which they began."""
    entries = Entry.objects.using(conf.DATABASE).filter(run=run.pk).order_by("ordinal")
    [rows] = sample_rows([entries], ["ordinal", "location", "id"], MOST)
    return {unpack(location): key for _, location, key in sorted(rows)}


def _read(run: Run, keys: Sequence[int], with_payloads: bool) -> Mapping[str, tuple[str, Side]]:
    found = Entry.objects.using(conf.DATABASE).filter(pk__in=keys)
    outputs = read_within(found.order_by("pk"), "output") if with_payloads and keys else {}
    rows = found.select_related("metadata").defer("output", "arguments")
    return {each.location: (each.kind, _side(run, each, outputs.get(each.pk))) for each in rows}


def _side(run: Run, entry: Any, read: Sequence[Any] | TooLarge | None) -> Side:
    meta = entry.metadata
    began = meta.last_attempt_at or meta.created_at
    if isinstance(read, TooLarge):
        output: Any = str(read)
    else:
        text = None if read is None else read[0]
        place = Place(run.pk, "output", entry.location)
        output = payload(run.workflow, f"output:{entry.location}", text, place)
    is_failed = meta.status != EntryStatus.COMPLETED
    return Side(
        status=meta.status,
        attempts=meta.attempts,
        took=None if meta.completed_at is None else meta.completed_at - began,
        error=redacted_error(run.workflow, meta.error) if is_failed else "",
        is_given="given" in entry.data,
        output=output,
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
    found = read_within(Run.objects.using(conf.DATABASE).filter(pk__in=[left.pk, right.pk]).order_by("pk"), "input")
    shown = [_input(each, found.get(each.pk)) for each in (left, right)]
    return None if shown[0] == shown[1] else (shown[0], shown[1])


def _input(run: Run, read: Sequence[Any] | TooLarge | None) -> Any:
    if read is None or isinstance(read, TooLarge):
        return None if read is None else str(read)
    return payload(run.workflow, "input", read[0], Place(run.pk, "input"))
