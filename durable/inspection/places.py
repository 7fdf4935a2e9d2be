"""The places of a history: its entries, those whose locations differ in numbers alone counted together.

A short history is read whole. Of a long one the database counts the entries of each place, and a bounded number of
entries is read: the first and the last of each place, a sample in between, and every one that is not completed. So the
numbers of entries and what has failed are exact, and durations are those of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import BooleanField, CharField, ExpressionWrapper, F, Func, Q, TextField, Value
from django.db.models.functions import Concat, Replace, StrIndex, Substr

from durable.conf import conf
from durable.inspection import resting
from durable.inspection.capped_counts import grouped
from durable.inspection.progress import MOST_OPEN, OPEN, open_keys_of_long
from durable.inspection.resting import remembered
from durable.inspection.stored_counts import stored
from durable.models import Entry, Run
from durable.models.fields import unpack

__all__ = [
    "EXACT",
    "MOST_PLACES",
    "Place",
    "Places",
    "Record",
    "count_places",
    "masked",
    "read_inside",
    "read_locations",
    "read_places",
]

EXACT: Final = 2_000  # entries of a history that is read whole
MOST_PLACES: Final = 1_000
_SAMPLE: Final = 800  # entries that are read of a long history, besides those that are not completed
_FEWEST: Final = 3  # of a place's sample
_MOST_INSIDE: Final = 2_000  # entries inside the members that are shown
_WINDOW: Final = 500  # entries among which the members of a place are looked for first
_NUMBER: Final = re.compile("[0-9]+")
#: Some twenty keys of a group, joined by commas, and one in 32; NULL for none. On SQLite the last of the twenty may be
#: cut.
_KEYS_IN_POSTGRESQL: Final = (
    "ARRAY_TO_STRING((ARRAY_AGG(pk))[1:20], ','), ARRAY_TO_STRING(ARRAY_AGG(pk) FILTER (WHERE (pk & 31) = 0), ',')"
)
_KEYS_ELSEWHERE: Final = "SUBSTR(GROUP_CONCAT(pk), 1, 200), GROUP_CONCAT(CASE WHEN (pk & 31) = 0 THEN pk END)"

_HAS_FAILED_TO_UNDO: Final = ExpressionWrapper(
    Q(metadata__rollback_error__isnull=False, metadata__rollback_completed_at__isnull=True), BooleanField()
)
_COLUMNS: Final[Sequence[Any]] = (
    "ordinal",
    "location",
    "kind",
    "metadata__status",
    "metadata__attempts",
    "metadata__created_at",
    "metadata__last_attempt_at",
    "metadata__next_attempt_at",
    "metadata__completed_at",
    "metadata__rollback_completed_at",
    _HAS_FAILED_TO_UNDO,
)


class Record(NamedTuple):
    """The columns of an entry that a timeline needs."""

    ordinal: int
    location: str
    kind: str
    status: str
    attempts: int
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    completed_at: datetime | None
    rollback_completed_at: datetime | None
    has_failed_to_undo: bool


@dataclass(slots=True, kw_only=True)
class Place:
    """The entries of one masked location. `records` are all of them, or some if there are more: `count` is exact."""

    location: str  # with "#" for numbers if it stands for several entries
    kind: str
    ordinal: int  # of the first
    count: int = 1
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of a history, in the order in which they began.

    `is_exact`: each place is one entry. `is_coarse`: there are too many places, and what is inside of scopes is counted
    with the scope.
    """

    places: Sequence[Place]
    is_exact: bool
    is_coarse: bool = False


class Masked(Func):
    """A location with "#" for each number."""

    function = "REGEXP_REPLACE"
    template = "%(function)s(%(expressions)s, '[0-9]+', '#', 'g')"
    output_field = CharField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra_context: Any) -> Any:  # noqa: ARG002  # Django's
        """Replace digit by digit, then the longer runs of marks: SQLite has no regular expressions to replace with."""
        [expression] = self.get_source_expressions()
        for digit in "0123456789":
            expression = Replace(expression, Value(digit), Value("#"), output_field=TextField())
        for length in (8, 4, 2, 2):
            expression = Replace(expression, Value("#" * length), Value("#"), output_field=TextField())
        return compiler.compile(expression)


def masked(text: str) -> str:
    """Return `text` with "#" for each number."""
    return _NUMBER.sub("#", text)


def read_places(run: Run, open_keys: Sequence[int] | None = None) -> Places:
    """Return the places of a run's history; `open_keys` are those of `progress_of`, for a caller that has them.

    Two statements for a short history; six for a long one, and two more if it has more than `MOST_PLACES` places. Those
    that count, or look for what is open, are left out if it was counted and its run rests
    (`durable.inspection.resting`).
    """
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run.id).order_by("ordinal")
    if Entry.objects.using(conf.DATABASE).filter(run=run.id).order_by()[: EXACT + 1].count() <= EXACT:
        return Places(places=[_alone(Record(*row)) for row in found.values_list(*_COLUMNS)], is_exact=True)
    groups, is_coarse = remembered(
        run, "places", lambda: _groups_of(run), lambda found: sum(group.number for group in found[0])
    )
    places = _sampled(groups)
    for record in _open(run.id, open_keys_of_long(run) if open_keys is None else open_keys):
        place = places.get((masked(record.location), record.kind))
        if place is None:  # of a place inside a scope, or begun since
            places[record.location, record.kind] = _alone(record)
        elif record not in place.records:
            place.records.append(record)
    for place in places.values():
        place.records.sort()
        if place.count == 1 and place.records:
            place.location = place.records[0].location
    in_order = sorted(places.values(), key=lambda place: place.ordinal)
    return Places(places=in_order, is_exact=False, is_coarse=is_coarse)


def read_inside(run_id: str, scopes: Iterable[str]) -> list[Record]:
    """Return the entries at these locations and inside them, at most `_MOST_INSIDE`; one statement."""
    within = Q()
    for location in scopes:
        within |= Q(location=location) | Q(location__gte=f"{location}/", location__lt=f"{location}0")  # "0" follows "/"
    if not within:
        return []
    entries = Entry.objects.using(conf.DATABASE)
    # only of these the metadata is looked up, not of all that are inside
    first = entries.filter(within, run=run_id).order_by("ordinal").values("pk")[:_MOST_INSIDE]
    found = entries.filter(pk__in=first).with_metadata().order_by("ordinal")
    return [Record(*row) for row in found.values_list(*_COLUMNS)]


def read_locations(run: Run, place: str, *, after: int, most: int) -> list[tuple[int, str]]:
    """Return the ordinals and locations of the entries of a masked location in a long history that began after `after`.

    One statement where the next entries are mostly of this place, as in a loop; two else. None if they were read and
    the run rests: no index has the order in which entries began.
    """
    what = f"{most} locations of {place} after {after}"
    return remembered(run, what, lambda: _locations(run.id, place, after, most), lambda _: resting.LONG + 1)


def _locations(run_id: str, place: str, after: int, most: int) -> list[tuple[int, str]]:
    start = place.partition("#")[0]
    found = Entry.objects.using(conf.DATABASE).filter(run=run_id, location__gte=start, ordinal__gt=after)
    found = found.order_by("ordinal")
    if start:
        found = found.filter(location__lt=start[:-1] + chr(ord(start[-1]) + 1))
    window = list(found.values_list("ordinal", "location")[:_WINDOW])
    chosen = [(ordinal, location) for ordinal, location in window if masked(location) == place]
    if len(chosen) < most and len(window) == _WINDOW:
        whole = found.annotate(masked=Masked("location")).filter(masked=place)
        chosen = list(whole.values_list("ordinal", "location")[:most])
    return chosen[:most]


def _alone(record: Record) -> Place:
    return Place(location=record.location, kind=record.kind, ordinal=record.ordinal, records=[record])


class _Group(NamedTuple):
    """A place as the database counts it: `number` entries, `first` the ordinal of the first, `keys` of a sample."""

    location: str
    kind: str
    first: int
    number: int
    keys: list[int]


def count_places(run: Run) -> dict[str, Any]:
    """Return the places of a long history as JSON, for `durable.inspection.stored_counts`; up to three statements."""
    groups, is_coarse = _all_groups(run.id)
    return {"groups": groups, "is_coarse": is_coarse}


def _groups_of(run: Run) -> tuple[list[_Group], bool]:
    counts = stored(run, "places")
    if counts is None:
        return _all_groups(run.id)
    return [_Group(*group) for group in counts["groups"]], counts["is_coarse"]


def _all_groups(run_id: str) -> tuple[list[_Group], bool]:
    """Return the places of a long history, and whether they are coarse; one statement, up to three for many places."""
    groups = _groups(run_id, Masked("location"))
    is_coarse = len(groups) > MOST_PLACES
    if is_coarse:
        groups = _groups(run_id, Masked(_first_segment()))
    if len(groups) > MOST_PLACES:
        groups = _groups(run_id, Concat(Value("#"), F("kind"), output_field=CharField()))
    return groups, is_coarse


def _groups(run_id: str, location: Any) -> list[_Group]:
    """Return the places, those of one masked location together; one statement."""
    entries = Entry.objects.using(conf.DATABASE).filter(run=run_id).order_by().annotate(masked=location)
    is_postgresql = connections[conf.DATABASE].vendor == "postgresql"
    keys = _KEYS_IN_POSTGRESQL if is_postgresql else _KEYS_ELSEWHERE
    found = f"MIN(ordinal), COUNT(*), MIN(pk), MAX(pk), {keys}"
    groups = grouped(entries, ["masked", "kind", "ordinal", "pk"], 2, found, MOST_PLACES + 1)
    most = max(_FEWEST, _SAMPLE // max(1, len(groups)))
    return [
        _Group(location, unpack(kind), first, count, _sample(most, count, *keys))
        for location, kind, first, count, *keys in groups
    ]


def _sample(most: int, count: int, first: int, last: int, some: str, sampled: str | None) -> list[int]:
    """Return the keys of about `most` entries of a place, with the first and the last."""
    keys = [int(each) for each in (sampled or "").split(",") if each]
    if len(keys) < most:
        keys += [int(each) for each in some.split(",")[: min(count, most, 20)] if int(each) <= last]
    return list(dict.fromkeys([first, last, *keys[:: max(1, len(keys) // most)]]))


def _first_segment() -> Any:
    end = StrIndex(Concat(F("location"), Value("/"), output_field=TextField()), Value("/"))
    return Substr("location", 1, end - 1)


def _sampled(groups: Sequence[_Group]) -> dict[tuple[str, str], Place]:
    """Return the places of the groups, with a sample of their entries; one statement."""
    places: dict[tuple[str, str], Place] = {}
    chosen: dict[int, Place] = {}
    for location, kind, ordinal, count, keys in groups:
        place = places[location, kind] = Place(location=location, kind=kind, ordinal=ordinal, count=count)
        chosen |= dict.fromkeys(keys, place)
    found = Entry.objects.using(conf.DATABASE).select_related("metadata").filter(pk__in=chosen).order_by()
    for key, *row in found.values_list("pk", *_COLUMNS):
        chosen[key].records.append(Record(*row))
    return places


def _open(run_id: str, open_keys: Sequence[int] | None) -> list[Record]:
    """Return the newest entries that are not completed or whose compensation has failed; one statement."""
    entries = Entry.objects.using(conf.DATABASE)
    found = entries.few_of(run_id, OPEN) if open_keys is None else entries.filter(pk__in=open_keys)
    found = found.filter(metadata__isnull=False).order_by("-ordinal")
    return [Record(*row) for row in found.values_list(*_COLUMNS)[:MOST_OPEN]]
