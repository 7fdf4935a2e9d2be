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
from django.db.models import BooleanField, CharField, ExpressionWrapper, F, Func, Q, QuerySet, TextField, Value
from django.db.models.functions import Concat, Replace, StrIndex, Substr

from durable.conf import conf
from durable.core.location import is_within
from durable.inspection import resting
from durable.inspection.capped_counts import grouped
from durable.inspection.progress import MOST_OPEN, OPEN, open_keys_of_long
from durable.inspection.resting import remembered
from durable.inspection.stored_counts import stored
from durable.models import Entry, Run
from durable.models.rows import unpack

EXACT: Final = 2_000  # entries of a history that is read whole
MOST_PLACES: Final = 1_000
_SAMPLE: Final = 800  # entries that are read of a long history, besides those that are not completed
_FEWEST: Final = 3  # of a place's sample
_NUMBER: Final = re.compile("[0-9]+")
_MARK: Final = "\x01"  # escaped in names (`durable.core.location`)
#: Some twenty keys of a group, joined by commas, and one in 32; NULL for none. On SQLite the last of the twenty may be
#: cut.
_KEYS_IN_POSTGRESQL: Final = (
    "ARRAY_TO_STRING((ARRAY_AGG(pk))[1:20], ','), ARRAY_TO_STRING(ARRAY_AGG(pk) FILTER (WHERE (pk & 31) = 0), ',')"
)
_KEYS_ELSEWHERE: Final = "SUBSTR(GROUP_CONCAT(pk), 1, 200), GROUP_CONCAT(CASE WHEN (pk & 31) = 0 THEN pk END)"

_HAS_FAILED_TO_UNDO: Final = ExpressionWrapper(
    Q(metadata__rollback_error__isnull=False, metadata__rollback_completed_at__isnull=True), BooleanField()
)
COLUMNS: Final[Sequence[Any]] = (
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
        """Replace digit by digit, then the longer runs of marks: SQLite has no regular expressions to replace with.

        The mark is one that no location has, so that a "#" of a name beside a number stays.
        """
        [expression] = self.get_source_expressions()
        for digit in "0123456789":
            expression = Replace(expression, Value(digit), Value(_MARK), output_field=TextField())
        for length in (8, 4, 2, 2):
            expression = Replace(expression, Value(_MARK * length), Value(_MARK), output_field=TextField())
        expression = Replace(expression, Value(_MARK), Value("#"), output_field=TextField())
        return compiler.compile(expression)


def masked(text: str) -> str:
    """Return `text` with "#" for each number."""
    return _NUMBER.sub("#", text)


def masked_below(location: str, scope: str) -> str:
    """Return a location that is inside `scope` with "#" for each number behind it."""
    return scope + masked(location[len(scope) :])


def read_places(run: Run, open_keys: Sequence[int] | None = None) -> Places:
    """Return the places of a run's history; `open_keys` are those of `progress_of`, for a caller that has them.

    Two statements for a short history; six for a long one, and two more if it has more than `MOST_PLACES` places. Those
    that count, or look for what is open, are left out if it was counted and its run rests
    (`durable.inspection.resting`).
    """
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run.id).order_by("ordinal")
    if Entry.objects.using(conf.DATABASE).filter(run=run.id).order_by()[: EXACT + 1].count() <= EXACT:
        return Places(places=[alone(Record(*row)) for row in found.values_list(*COLUMNS)], is_exact=True)
    groups, is_coarse = remembered(
        run, "places", lambda: _groups_of(run), lambda found: sum(group.number for group in found[0])
    )
    opened = _open(run.id, open_keys_of_long(run) if open_keys is None else open_keys)
    return Places(places=_places(groups, opened), is_exact=False, is_coarse=is_coarse)


def read_places_inside(run: Run, scope: str, opened: Iterable[Record]) -> Places:
    """Return the places at the location `scope` and inside it, of which `opened` are not completed.

    Numbers before the end of `scope` stay. Two statements; three if there are more than `EXACT` entries, and two more
    if they have more than `MOST_PLACES` places.
    """
    entries = Entry.objects.using(conf.DATABASE)
    within = entries.filter(at_or_below(scope), run=run.id)
    if within.order_by("location")[: EXACT + 1].count() <= EXACT:
        # only of these the metadata is looked up, not of all of the run
        found = entries.filter(pk__in=within.order_by().values("pk")).with_metadata().order_by("ordinal")
        return Places(places=[alone(Record(*row)) for row in found.values_list(*COLUMNS)], is_exact=True)
    groups, is_coarse = remembered(
        run, f"places in {scope}", lambda: _all_groups(run.id, scope), lambda _: resting.LONG + 1
    )
    inside = [each for each in opened if is_within(each.location, scope)]
    return Places(places=_places(groups, inside, scope), is_exact=False, is_coarse=is_coarse)


def at_or_below(location: str) -> Q:
    """Return the condition that an entry is at the location or inside it, for one range of the index.

    "0" follows "/". Names that begin like the last one of the location are in the range too: "a 1" and "a 1 b".
    """
    inside = Q(location=location) | Q(location__gte=f"{location}/")
    return Q(location__gte=location, location__lt=f"{location}0") & inside


def alone(record: Record) -> Place:
    """Return the place of one entry."""
    return Place(location=record.location, kind=record.kind, ordinal=record.ordinal, records=[record])


def _places(groups: Sequence[_Group], opened: Iterable[Record], scope: str = "") -> list[Place]:
    """Return the places in order, each with a sample of its entries and with those that are not completed."""
    places = _sampled(groups)
    for record in opened:
        place = places.get((masked_below(record.location, scope), record.kind))
        if place is None:  # of a place inside a scope, or begun since
            places[record.location, record.kind] = alone(record)
        elif record not in place.records:
            place.records.append(record)
    for place in places.values():
        place.records.sort()
        if place.count == 1 and place.records:
            place.location = place.records[0].location
    return sorted(places.values(), key=lambda place: place.ordinal)


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


def _all_groups(run_id: str, scope: str = "") -> tuple[list[_Group], bool]:
    """Return the places of a long history, and whether they are coarse; one statement, up to three for many places.

    With a scope, those at its location and inside it.
    """
    found = Entry.objects.using(conf.DATABASE).filter(run=run_id).order_by()
    entries = found.filter(at_or_below(scope)) if scope else found
    groups = _groups(entries, _masked_below(F("location"), scope))
    is_coarse = len(groups) > MOST_PLACES
    if is_coarse:
        groups = _groups(entries, _masked_below(_first_segment(scope), scope))
    if len(groups) > MOST_PLACES:
        prefix = f"{scope}/#" if scope else "#"
        groups = _groups(entries, Concat(Value(prefix), F("kind"), output_field=CharField()))
    return groups, is_coarse


def _masked_below(location: Any, scope: str) -> Any:
    if not scope:
        return Masked(location)
    return Concat(Value(scope), Masked(Substr(location, len(scope) + 1)), output_field=CharField())


def _groups(entries: QuerySet[Entry], location: Any) -> list[_Group]:
    """Return the places, those of one masked location together; one statement."""
    entries = entries.annotate(masked=location)
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


def _first_segment(scope: str) -> Any:
    """Return the location up to the first segment inside the scope."""
    begin = len(scope) + 2 if scope else 1
    rest = Substr(F("location"), begin)
    end = StrIndex(Concat(rest, Value("/"), output_field=TextField()), Value("/"))
    return Substr("location", 1, end + (begin - 2))


def _sampled(groups: Sequence[_Group]) -> dict[tuple[str, str], Place]:
    """Return the places of the groups, with a sample of their entries; one statement."""
    places: dict[tuple[str, str], Place] = {}
    chosen: dict[int, Place] = {}
    for location, kind, ordinal, count, keys in groups:
        place = places[location, kind] = Place(location=location, kind=kind, ordinal=ordinal, count=count)
        chosen |= dict.fromkeys(keys, place)
    found = Entry.objects.using(conf.DATABASE).select_related("metadata").filter(pk__in=chosen).order_by()
    for key, *row in found.values_list("pk", *COLUMNS):
        chosen[key].records.append(Record(*row))
    return places


def _open(run_id: str, open_keys: Sequence[int] | None) -> list[Record]:
    """Return the newest entries that are not completed or whose compensation has failed; one statement."""
    entries = Entry.objects.using(conf.DATABASE)
    found = entries.few_of(run_id, OPEN) if open_keys is None else entries.filter(pk__in=open_keys)
    found = found.filter(metadata__isnull=False).order_by("-ordinal")
    return [Record(*row) for row in found.values_list(*COLUMNS)[:MOST_OPEN]]
