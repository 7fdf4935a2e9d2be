"""The places of a history, similar ones counted together, and the tree in which they are folded.

A short history is read whole. For a long one the database counts the entries of each place, and a bounded number of
entries is read: the first and the last of each place, a sample in between, and all that are not completed. So the
counts and the failures are exact, and durations come from the sample.

A folded node stands for its members: it has their entries, and below it are their inner places, merged in turn. Its
location has "#" for numbers. A folded node that is to be opened also keeps its members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import (
    BooleanField,
    Case,
    CharField,
    ExpressionWrapper,
    F,
    Func,
    Q,
    QuerySet,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Concat, Replace, StrIndex, Substr
from django.db.models.lookups import Contains
from django.utils.translation import gettext as _

from durable.core.location import is_within, unescape, value_name
from durable.core.records import EntryKind, EntryStatus
from durable.core.steps import SUMMARY
from durable.inspection.counting import grouped
from durable.inspection.forks import FORKS, ForkOutcome
from durable.inspection.history_counts import remembered
from durable.inspection.progress import MOST_OPEN, OPEN, has_more_entries, open_keys_of_long
from durable.inspection.reading import read_alias
from durable.models import Entry, Run
from durable.models.rows import unpack
from durable.store.tables.surveys import short_data

EXACT: Final = 2_000  # entries of a history that is read whole
MOST_PLACES: Final = 1_000
_SAMPLE: Final = 800  # entries to read of a long history, in addition to those that are not completed
_FEWEST: Final = 3  # entries in a place's sample
_NUMBER: Final = re.compile("[0-9]+")
_MARK: Final = "\x01"  # escaped in names (`durable.core.location`)
#: About twenty keys of a group, joined by commas, and every 32nd; NULL for none. On SQLite the last one may be cut off.
_KEYS_IN_POSTGRESQL: Final = (
    "ARRAY_TO_STRING((ARRAY_AGG(pk))[1:20], ','), ARRAY_TO_STRING(ARRAY_AGG(pk) FILTER (WHERE (pk & 31) = 0), ',')"
)
_KEYS_ELSEWHERE: Final = "SUBSTR(GROUP_CONCAT(pk), 1, 200), GROUP_CONCAT(CASE WHEN (pk & 31) = 0 THEN pk END)"

#: The condition that a step's rollback handler has failed, and has not completed since.
HAS_FAILED_TO_UNDO: Final = ExpressionWrapper(
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
    HAS_FAILED_TO_UNDO,
    Case(When(Contains(F("data"), Value(f'"{SUMMARY}":"')), then=short_data()), output_field=TextField()),
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
    described: str | None = None  # the entry's data, as text, if it has a summary


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

    `is_exact`: each place is one entry. `is_coarse`: there are too many places, so the contents of scopes are counted
    with the scope.
    """

    places: Sequence[Place]
    is_exact: bool
    is_coarse: bool = False


class Masked(Func):
    """A location with "#" in place of each number."""

    function = "REGEXP_REPLACE"
    template = "%(function)s(%(expressions)s, '[0-9]+', '#', 'g')"
    output_field = CharField()

    def as_sqlite(self, compiler: Any, connection: Any, **extra_context: Any) -> Any:  # noqa: ARG002  # Django's
        """Replace digit by digit, then the longer runs of them: SQLite has no regular expressions to replace with.

        The character is one that no location has, so that a "#" of a name beside a number stays.
        """
        [expression] = self.get_source_expressions()
        for digit in "0123456789":
            expression = Replace(expression, Value(digit), Value(_MARK), output_field=TextField())
        for length in (8, 4, 2, 2):
            expression = Replace(expression, Value(_MARK * length), Value(_MARK), output_field=TextField())
        expression = Replace(expression, Value(_MARK), Value("#"), output_field=TextField())
        return compiler.compile(expression)


def masked(text: str) -> str:
    """Return `text` with "#" in place of each number."""
    return _NUMBER.sub("#", text)


def masked_below(location: str, scope: str) -> str:
    """Return a location inside `scope` with "#" in place of each number after the scope."""
    return scope + masked(location[len(scope) :])


def read_places(run: Run, open_keys: Sequence[int] | None = None) -> Places:
    """Return the places of a run's history; `open_keys` are those of `progress_of`, for a caller that has them.

    Two statements for a short history; six for a long one, and two more if it has more than `MOST_PLACES` places. The
    statements that count or search for open entries are skipped if the result is known and the run rests
    (`durable.inspection.history_counts`).
    """
    found = Entry.objects.using(read_alias()).with_metadata_of(run.id).order_by("ordinal")
    if not has_more_entries(run.id, EXACT):
        return Places(places=[alone(Record(*row)) for row in found.values_list(*COLUMNS)], is_exact=True)
    counts = remembered(
        run, "places", lambda: count_places(run), lambda found: sum(number for *_, number, _ in found["groups"])
    )
    opened = _open(run.id, open_keys_of_long(run) if open_keys is None else open_keys)
    return Places(places=_places(counts["groups"], opened), is_exact=False, is_coarse=counts["is_coarse"])


def read_places_inside(run: Run, scope: str, opened: Iterable[Record]) -> Places:
    """Return the places at and inside the location `scope`; `opened` are its entries that are not completed.

    Numbers before the end of `scope` stay. Two statements; three if there are more than `EXACT` entries, and two more
    if they have more than `MOST_PLACES` places.
    """
    entries = Entry.objects.using(read_alias())
    within = entries.filter(at_or_below(scope), run=run.id)
    if within.order_by("location")[: EXACT + 1].count() <= EXACT:
        # so that metadata is looked up only for these, not for the whole run
        found = entries.filter(pk__in=within.order_by().values("pk")).with_metadata().order_by("ordinal")
        return Places(places=[alone(Record(*row)) for row in found.values_list(*COLUMNS)], is_exact=True)
    groups, is_coarse = remembered(run, f"places in {scope}", lambda: _all_groups(run.id, scope))
    inside = [each for each in opened if is_within(each.location, scope)]
    return Places(places=_places(groups, inside, scope), is_exact=False, is_coarse=is_coarse)


def at_or_below(location: str) -> Q:
    """Return the condition that an entry is at or inside the location, as one range of the index.

    "0" is the character after "/". The range also has names that begin like the location's last one: "a 1" and "a 1 b".
    """
    inside = Q(location=location) | Q(location__gte=f"{location}/")
    return Q(location__gte=location, location__lt=f"{location}0") & inside


def alone(record: Record) -> Place:
    return Place(location=record.location, kind=record.kind, ordinal=record.ordinal, records=[record])


def _places(groups: Sequence[_Group], opened: Iterable[Record], scope: str = "") -> list[Place]:
    """Return the places in order, each with a sample of its entries and all that are not completed."""
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
    """A place as counted by the database: `number` entries, `first` the ordinal of the first, `keys` of a sample."""

    location: str
    kind: str
    first: int
    number: int
    keys: list[int]


def count_places(run: Run) -> dict[str, Any]:
    """Return the places of a long history as JSON, for `durable.inspection.history_counts`; up to three statements."""
    groups, is_coarse = _all_groups(run.id)
    return {"groups": groups, "is_coarse": is_coarse}


def _all_groups(run_id: str, scope: str = "") -> tuple[list[_Group], bool]:
    """Return the places of a long history, and whether they are coarse; one statement, up to three for many places.

    With a scope, those at its location and inside it.
    """
    found = Entry.objects.using(read_alias()).filter(run=run_id).order_by()
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
    """Return the places, grouped by masked location; one statement."""
    entries = entries.annotate(masked=location)
    is_postgresql = connections[read_alias()].vendor == "postgresql"
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
    """Return the places of the groups, with their samples of entries; one statement."""
    places: dict[tuple[str, str], Place] = {}
    chosen: dict[int, Place] = {}
    for location, kind, ordinal, count, keys in groups:
        place = places[location, kind] = Place(location=location, kind=kind, ordinal=ordinal, count=count)
        chosen |= dict.fromkeys(keys, place)
    found = Entry.objects.using(read_alias()).select_related("metadata").filter(pk__in=chosen).order_by()
    for key, *row in found.values_list("pk", *COLUMNS):
        chosen[key].records.append(Record(*row))
    return places


def _open(run_id: str, open_keys: Sequence[int] | None) -> list[Record]:
    """Return the newest entries that are not completed or whose compensation has failed; one statement."""
    entries = Entry.objects.using(read_alias())
    found = entries.few_of(run_id, OPEN) if open_keys is None else entries.filter(pk__in=open_keys)
    found = found.filter(metadata__isnull=False).order_by("-ordinal")
    return [Record(*row) for row in found.values_list(*COLUMNS)[:MOST_OPEN]]


_FOLDED_FROM: Final = 5  # siblings whose names differ only in numbers; iterations are folded from two on
_EQUAL_BRANCHES: Final = 9  # branches with the same places inside, whatever their names
_DEEPEST: Final = 12  # levels; deeper places are siblings, named by their path

_SCOPES: Final = (EntryKind.LOOP.value, *FORKS, "iteration", "branch", "block")

#: The statuses of places, from the least to the most urgent. "cancelled" and "caught" are those of a page.
GRAVITY: Final = (
    EntryStatus.COMPLETED.value,
    "cancelled",
    "caught",
    EntryStatus.PENDING.value,
    EntryStatus.RUNNING.value,
    EntryStatus.FAILED.value,
    EntryStatus.UNKNOWN.value,
    EntryStatus.EXHAUSTED.value,
    EntryStatus.HELD.value,
)
#: The statuses of a step whose last attempt has failed, as far as is known.
HAS_FAILED: Final = GRAVITY[GRAVITY.index(EntryStatus.FAILED.value) :]


@dataclass(slots=True, kw_only=True)
class PlaceNode:
    """A place, or several members folded into one.

    `kind` is that of its entries, or "iteration", "branch" or "block" for a scope without an entry. `count` is the
    number of members; 1 for a place that is not folded, 0 if it is not known. `records` are its own entries; some of
    them if it is folded. `first` is the location of the first member. `end` is the outcome of a join, race or branch,
    "" before there is one. `is_partial`: only some of its contents are below it. `has_all_members`: `members` is
    complete.
    """

    location: str
    first: str
    kind: str
    ordinal: int
    count: int = 1
    is_folded: bool = False
    records: list[Record] = field(default_factory=list)
    children: list[PlaceNode] = field(default_factory=list)
    members: Sequence[PlaceNode] = ()
    note: str = ""
    end: str = ""
    is_partial: bool = False
    has_all_members: bool = False

    @property
    def title(self) -> str:
        """The first member's name in its scope; with "#" for numbers if the place is folded."""
        depth = min(self.location.count("/"), _DEEPEST - 1)
        name = title_of("/".join(self.first.split("/")[depth:]))
        if not self.is_folded:
            return name
        return _("every branch") if self.location.endswith("/#") and masked(name) == name else masked(name)

    @property
    def status(self) -> str:
        """The outcome, or the worst status of its entries; for a scope without an entry, of its contents."""
        if self.end:
            return self.end
        found = {record.status for record in self.records} or {child.status for child in self.children}
        return max(found, key=GRAVITY.index, default=EntryStatus.COMPLETED.value)

    @property
    def is_scope(self) -> bool:
        return bool(self.children) or (self.is_partial and self.may_be_scope)

    @property
    def may_be_scope(self) -> bool:
        """Whether it may have places inside: a step and a sleep cannot."""
        return any(kind in _SCOPES for kind in (self.kind, *(record.kind for record in self.records)))

    def walk(self) -> Iterator[PlaceNode]:
        """Yield the node and all nodes below it, without members."""
        yield self
        for child in self.children:
            yield from child.walk()

    def all_records(self) -> Iterator[Record]:
        """Yield the entries of the node and of all nodes below it."""
        for node in self.walk():
            yield from node.records


def stands_for(place: str, location: str) -> bool:
    """Return True if this location is among the members of the place, a location with "#" for some numbers."""
    names, actual = place.split("/"), location.split("/")
    return len(names) == len(actual) and all(
        name in (segment, masked(segment)) for name, segment in zip(names, actual, strict=True)
    )


def build_place_tree(places: Iterable[Place], outcomes: Mapping[str, ForkOutcome], opened: str = "") -> list[PlaceNode]:
    """Return the root of the tree; `outcomes` are those of joins and races, by location.

    A folded node at `opened` keeps all its members; one around it keeps the member that contains it.
    """
    top: list[PlaceNode] = []
    nodes: dict[str, PlaceNode] = {}
    for place in places:
        node = _node_at(place.location, place, nodes, top)
        count = place.count
        if node.records:  # of another kind
            node.records, count = [*node.records, *place.records], node.count + count
        else:
            node.kind, node.records = place.kind, place.records
        if "#" in place.location and count > 1:
            _count(node, count, nodes)
    for location, outcome in outcomes.items():
        if location in nodes:
            _tell(nodes, top, location, outcome)
    return _folded(top, opened)


def _node_at(location: str, place: Place, nodes: dict[str, PlaceNode], top: list[PlaceNode]) -> PlaceNode:
    node = nodes.get(location)
    if node is not None:
        return node
    if "#" not in location and location.count("/") < _DEEPEST:  # most of those that are opened
        around, _, segment = location.rpartition("/")
        first = location
    else:
        segments = location.split("/")
        depth = min(len(segments), _DEEPEST) - 1
        around, segment = "/".join(segments[:depth]), segments[depth]
        actual = place.records[0].location.split("/") if place.records else segments
        first = "/".join(actual[: depth + 1] if len(segments) <= _DEEPEST else actual)
    parent = _node_at(around, place, nodes, top) if around else None
    kind = scope_kind(None if parent is None else parent.kind, segment)
    node = nodes[location] = PlaceNode(location=location, first=first, kind=kind, ordinal=place.ordinal)
    node.is_folded = "#" in location and location != first
    if node.is_folded:
        node.count = 0  # until it is counted
    (top if parent is None else parent.children).append(node)
    return node


def _count(node: PlaceNode, count: int, nodes: Mapping[str, PlaceNode]) -> None:
    """Store the number of entries at the scopes around each place, up to the innermost scope that has several."""
    node.is_folded, node.count = True, count
    location = node.location
    while "#" not in location.rpartition("/")[2]:
        location = location.rpartition("/")[0]
        scope = nodes.get(location)
        if scope is not None:
            scope.count = max(scope.count, count)


def scope_kind(around: str | None, segment: str) -> str:
    """Return the kind of a scope without an entry; `around` is the kind of the enclosing node."""
    if segment.startswith("~"):
        return "iteration"
    return "branch" if around in FORKS else "block"


def _tell(nodes: dict[str, PlaceNode], top: list[PlaceNode], location: str, outcome: ForkOutcome) -> None:
    """Give joins, races and their branches their recorded outcomes."""
    fork = nodes[location]
    fork.note = outcome.note
    if (status := outcome.status(fork.status)) != fork.status:
        fork.end = status
    for name, branch in outcome.branches.items():
        at = outcome.location_of(name)
        if at not in nodes and branch.status in ("completed", "pending"):
            continue  # it has recorded nothing
        unknown = Place(location=at, kind="branch", ordinal=fork.ordinal)
        node = _node_at(at, unknown, nodes, top)
        if not node.records:
            node.end = branch.status


def title_of(path: str, iteration: str = "") -> str:
    """Return the display name of one or several segments: "iteration 3", "charge", "notify 2".

    `iteration` is the word in the reader's language, for a caller that translates it once for thousands of names.
    """
    *around, last = path.split("/")
    if last.startswith("~"):
        title = (iteration or _("iteration %(number)s")) % {"number": last[1:]}
    else:
        if last.endswith("~v0"):  # the first value under its name
            return " / ".join([*map(unescape, around), value_name(last)])
        name, tilde, number = last.partition("~")  # a send's segment has a tilde and a number
        number = number.removeprefix("v")
        title = f"{unescape(name)} {int(number) + 1}" if tilde and number.isdigit() else unescape(last)
    return " / ".join([*map(unescape, around), title])


# -- folding


def _folded(siblings: Sequence[PlaceNode], opened: str, fork: PlaceNode | None = None) -> list[PlaceNode]:
    """Return the nodes of a scope, similar ones folded into one."""
    found: list[PlaceNode] = []
    for location, group in _alike(siblings).items():
        least = 2 if group[0].kind == "iteration" else _FOLDED_FROM
        if len(group) >= least or any(node.is_folded for node in group):
            found.append(_fold(location, group, opened))
        else:
            found += group
    single = [node for node in found if not node.is_folded]
    if fork is not None and len(single) >= _EQUAL_BRANCHES and len({_shape(node) for node in single}) == 1:
        found = [node for node in found if node.is_folded]
        found.append(_fold(f"{fork.location}/#", single, opened))
    for node in found:
        if not node.is_folded:
            node.children = _folded(node.children, opened, node if node.kind in FORKS else None)
    return sorted(found, key=lambda node: node.ordinal)


def _alike(siblings: Iterable[PlaceNode]) -> dict[str, list[PlaceNode]]:
    """Group the nodes by their masked locations in their scope."""
    groups: dict[str, list[PlaceNode]] = {}
    for node in siblings:
        around, slash, segment = node.location.rpartition("/")
        groups.setdefault(around + slash + masked(segment), []).append(node)
    return groups


def _shape(node: PlaceNode) -> frozenset[str]:
    """Return a description of a node's contents, to compare branches."""
    inside = len(node.location)
    return frozenset(masked(each.location[inside:]) for each in node.walk())


def _fold(location: str, group: Sequence[PlaceNode], opened: str) -> PlaceNode:
    folded = _merged(location, group, opened)
    if opened != location:
        folded.members = _members([node for node in group if is_within(opened, node.location)], opened)
    return folded


def _members(group: Iterable[PlaceNode], opened: str) -> list[PlaceNode]:
    """Return the members of the nodes, with folded ones taken apart and their contents folded."""
    members = [node for node in group if not node.is_folded]
    for node in members:
        node.children = _folded(node.children, opened, node if node.kind in FORKS else None)
    return members


def _merged(location: str, group: Sequence[PlaceNode], opened: str) -> PlaceNode:
    """Merge the nodes into one, with all their entries and their merged contents.

    It keeps its members if it is at `opened`.
    """
    [first, *others] = sorted(group, key=lambda node: node.ordinal)
    if not others and not first.is_folded:
        return replace(first, children=_merged_children(first.location, [first], opened))
    return PlaceNode(
        location=location,
        first=first.first,
        kind=first.kind,
        ordinal=first.ordinal,
        count=_count_of(group),
        is_folded=True,
        records=[record for node in group for record in node.records],
        children=_merged_children(location, group, opened),
        # after `children`, which takes apart the group's contents
        members=_members(group, opened) if opened == location else (),
        has_all_members=opened == location and not any(node.is_folded for node in group),
        end=max((node.end for node in group if node.end), key=GRAVITY.index, default=""),
    )


def _count_of(group: Sequence[PlaceNode]) -> int:
    # A scope without counted entries is one of the counted ones: it has something inside that the others lack.
    recorded = [node.count for node in group if node.records]
    if recorded:
        return sum(recorded)
    counted = [node.count for node in group if node.is_folded]
    if 0 in counted:
        return 0
    return max(*counted, len(group) - len(counted)) if counted else len(group)


def _merged_children(location: str, group: Iterable[PlaceNode], opened: str) -> list[PlaceNode]:
    inner: dict[str, list[PlaceNode]] = {}
    for node in group:
        for child in node.children:
            path = child.location[len(node.location) + 1 :]  # a path of several segments below the deepest level
            inner.setdefault(masked(path), []).append(child)
    merged = [_merged(f"{location}/{path}", children, opened) for path, children in inner.items()]
    return sorted(merged, key=lambda node: node.ordinal)
