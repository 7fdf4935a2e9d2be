"""What a timeline reads besides its places: failed attempts, loops, and the members of an opened place.

In a short history the members are in the tree. In a long one they are looked up page by page: an entry by itself, a
scope without an entry (an iteration, a branch, a block) by its contents. The contents of a page's members are read if
they are few. Otherwise a member gets its own entry, or the first and the last one inside, and its open entries: enough
for its times, status and failures. Opening such a member reads its contents as `durable.inspection.places` reads a
history.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import Case, Count, Max, Min, Q, QuerySet, Value, When

from durable.core.records import EntryKind, EntryStatus
from durable.core.steps import SUMMARY
from durable.inspection.activities import RunningStep
from durable.inspection.entry_detail import loop_note
from durable.inspection.forks import FORKS, ForkOutcome, read_outcomes
from durable.inspection.history_counts import remembered
from durable.inspection.places import (
    COLUMNS,
    HAS_FAILED,
    Masked,
    Place,
    PlaceNode,
    Record,
    alone,
    at_or_below,
    build_place_tree,
    masked,
    read_places_inside,
    stands_for,
)
from durable.inspection.reading import read_alias
from durable.models import Attempt, Entry, Run
from durable.models.rows import dump_json
from durable.store.tables.surveys import long_data

Work = tuple[datetime, datetime]  # a span of work

_MOST_INSIDE: Final = 300  # entries at and inside the members of a page, if all are to be read
_WINDOWS: Final = (2_000, 20_000)  # entries to search for the members of a page
_EXAMINED: Final = 4  # candidates in multiples of a page; those that began before are left out
_SURROGATES: Final = 0xD800  # the first of the characters that no text has
_BEHIND_SURROGATES: Final = 0xE000
MOST_ATTEMPTS: Final = 400  # failed ones to draw
_BEHIND_ALL: Final = 10**15  # the ordinal of places that are not recorded yet
_MOST_LOOPS: Final = 50  # loops whose iterations are shown


class AttemptSpan(NamedTuple):
    """The span of a failed attempt.

    Its `number` counts from 1, and again from 1 after a recovery of its step.
    """

    begins_at: datetime
    ends_at: datetime
    number: int


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The newest failed attempts of a run by location, in order, and the numbers of all attempts by location.

    In a long history the numbers are by masked location. `left_out` is the number of omitted attempts.
    """

    _attempts: Mapping[str, Sequence[AttemptSpan]]
    _numbers: Mapping[str, int]
    _is_exact: bool
    left_out: int
    _folded: Mapping[str, Sequence[str]]  # the locations by masked location

    def at(self, location: str) -> Sequence[AttemptSpan]:
        return self._attempts.get(location, ())

    def spans(self, node: PlaceNode) -> Iterator[Work]:
        """Yield the begin and the end of the failed attempts of a node's own entries."""
        if node.is_folded and not self._is_exact:
            locations = self._drawn(node)
        else:
            locations = {record.location for record in node.records}
        for location in locations:
            for attempt in self.at(location):
                yield attempt.begins_at, attempt.ends_at

    def of(self, node: PlaceNode) -> int:
        """Return the number of failed attempts of a node's own entries."""
        if self._is_exact:
            return sum(self._numbers.get(location, 0) for location in {each.location for each in node.records})
        if masked(node.location) == node.location:
            return self._numbers.get(node.location, 0)
        if node.is_folded:  # inside a member that is opened
            return sum(len(self.at(location)) for location in self._drawn(node))
        return sum(len(self.at(record.location)) for record in node.records)

    def _drawn(self, node: PlaceNode) -> set[str]:
        """Return the locations in a folded node whose attempts are drawn."""
        return {each for each in self._folded.get(masked(node.location), ()) if stands_for(node.location, each)}


def read_attempts(run_id: str, *, is_exact: bool) -> FailedAttempts:
    """Return a run's failed attempts: one statement, two if there are more than `MOST_ATTEMPTS`."""
    found = Attempt.objects.using(read_alias()).filter(run=run_id).order_by()
    newest = found.order_by("-id").values_list("location", "started_at", "finished_at", "number")
    drawn = list(newest[: MOST_ATTEMPTS + 1])[:MOST_ATTEMPTS]
    attempts: dict[str, list[AttemptSpan]] = {}
    for location, begin, end, number in reversed(drawn):
        attempts.setdefault(location, []).append(AttemptSpan(begin, end, number))
    key = "location" if is_exact else "masked"
    if len(drawn) < MOST_ATTEMPTS:
        numbers = Counter(location if is_exact else masked(location) for location, *_ in drawn)
    else:
        grouped = found.annotate(masked=Masked("location")).values_list(key).annotate(number=Count("id"))
        numbers = Counter(dict(grouped))
    folded: dict[str, list[str]] = {}
    for location in attempts:
        folded.setdefault(masked(location), []).append(location)
    return FailedAttempts(attempts, numbers, is_exact, numbers.total() - len(drawn), folded)


def add_running(places: list[Place], steps: Iterable[RunningStep], *, is_exact: bool) -> None:
    """Add the running attempts to the places: a step is recorded only at the end of its first attempt."""
    by_location = {place.location: place for place in places}
    for number, step in enumerate(steps):
        if step.is_rollback:
            continue
        new = Record(
            ordinal=_BEHIND_ALL + number,
            location=step.location,
            kind=EntryKind.STEP.value,
            status=EntryStatus.RUNNING.value,
            attempts=step.attempt,
            created_at=step.began_at,
            last_attempt_at=step.began_at,
            next_attempt_at=None,
            completed_at=None,
            rollback_completed_at=None,
            has_failed_to_undo=False,
            described=dump_json({SUMMARY: step.summary}) if step.summary else None,
        )
        place = by_location.get(step.location) or (None if is_exact else by_location.get(masked(step.location)))
        if place is None:
            places.append(Place(location=new.location, kind=new.kind, ordinal=new.ordinal, records=[new]))
            continue
        known = next((each for each in place.records if each.location == new.location), None)
        if known is None:
            place.count += 1
        else:
            place.records.remove(known)
            new = new._replace(ordinal=known.ordinal, created_at=known.created_at)
        place.records.append(new)


def read_iterations(run_id: str, top: Iterable[PlaceNode]) -> dict[str, str]:
    """Return the iterations that loops have recorded, by location; one statement if there are loops."""
    loops = [node.first for each in top for node in each.walk() if node.kind == EntryKind.LOOP and not node.is_folded]
    if not loops:
        return {}
    found = Entry.objects.using(read_alias()).filter(run=run_id, location__in=loops[:_MOST_LOOPS])
    rows = found.order_by().values_list("pk", "location", "metadata__status")
    at = {key: (location, status) for key, location, status in rows}
    data = long_data(read_alias(), run_id, [(key, 0) for key in at])
    return {at[key][0]: loop_note(at[key][1], each) for key, each in data}


# -- the members of an opened place


def open_members(
    run: Run, top: Sequence[PlaceNode], opened: str, after: int, *, most: int, is_exact: bool
) -> int | None:
    """Give the folded node at `opened` its failed members and a page of `most`; a node around it only the member that
    contains it.

    Returns the ordinal after which the next page begins, or None. In a long history up to eight statements for a page,
    and up to six for each member around `opened`.
    """
    if is_exact:
        return _open_exact(top, opened, after, most)
    nodes = top
    unfinished = [
        record
        for node in top
        for record in node.all_records()
        if record.status != EntryStatus.COMPLETED or record.has_failed_to_undo
    ]
    while True:
        folded = [each for node in nodes for each in _with_members(node) if each.is_folded]
        node = next((each for each in folded if each.location == opened), None)
        if node is not None and node.has_all_members:
            return _open_exact(nodes, opened, after, most)
        if node is not None:
            return _open_page(run, node, unfinished, after, most)
        around = sorted((each for each in folded if _leads_to(each, opened)), key=_depth)
        if not around:
            return None
        [node, *_] = around
        member, is_whole = _read_member(run, node, opened, unfinished)
        if member is None:
            return None
        node.members = [member]
        if is_whole:
            return _open_exact([member], opened, after, most)
        nodes = [member]


# -- what the tree has already


def _open_exact(top: Sequence[PlaceNode], opened: str, after: int, most: int) -> int | None:
    nodes = (each for node in top for each in _with_members(node))
    node = next((each for each in nodes if each.is_folded and each.location == opened), None)
    if node is None:
        return None
    rest = sorted((each for each in node.members if each.ordinal > after), key=lambda each: each.ordinal)
    has_failed = (each for each in node.members if any(one.status in HAS_FAILED for one in each.all_records()))
    failed = list(has_failed) if after < 0 else []
    page = rest[:most]
    node.members = [*failed, *(each for each in page if each not in failed)]
    return page[-1].ordinal if len(rest) > most else None


def _with_members(node: PlaceNode) -> Iterator[PlaceNode]:
    """Yield the node, its members, and all nodes below."""
    yield node
    for inner in (*node.members, *node.children):
        yield from _with_members(inner)


def _leads_to(node: PlaceNode, opened: str) -> bool:
    """Return whether some member of the folded node is at or around `opened`."""
    member = _upto(opened, _depth(node))
    return member != node.location and stands_for(node.location, member)


def _depth(node: PlaceNode) -> int:
    return node.location.count("/") + 1


def _upto(location: str, depth: int) -> str:
    return "/".join(location.split("/")[:depth])


# -- one member


def _read_member(run: Run, node: PlaceNode, opened: str, unfinished: Iterable[Record]) -> tuple[PlaceNode | None, bool]:
    """Return the member of the folded node that is at or around `opened`, and whether all its contents were read."""
    location = _upto(opened, _depth(node))
    read = read_places_inside(run, location, unfinished)
    records = [record for place in read.places for record in place.records]
    outcomes = _outcomes(run.id, node, [location], records)
    every = [node for root in build_place_tree(read.places, outcomes, opened) for node in _with_members(root)]
    member = next((each for each in every if each.location == location), None)
    if member is not None:
        _tell_end(member, outcomes)
    return member, read.is_exact


# -- a page of members


_Rows = QuerySet[Entry, tuple[int, str]]  # ordinals and locations


class _Page(NamedTuple):
    """The locations of members in the order in which they began, and the ordinal after which the next page begins."""

    locations: list[str]
    more: int | None


def _open_page(run: Run, node: PlaceNode, unfinished: Iterable[Record], after: int, most: int) -> int | None:
    # no index has the order in which entries began
    what = f"{most} members of {node.location} after {after}"
    kinds = {record.kind for record in node.records}
    page = remembered(run, what, partial(_read_page, run.id, node.location, kinds, after, most))
    failed = [each for each in node.all_records() if each.status in HAS_FAILED] if after < 0 else []
    bad = dict.fromkeys(_upto(each.location, _depth(node)) for each in failed)
    wanted = list(dict.fromkeys([*list(bad)[:most], *page.locations]))
    if not node.may_be_scope:
        node.members = _closed(run.id, node, wanted, _records(run.id, _own(run.id, wanted).values()))
    elif (inside := _little_inside(run.id, wanted)) is not None:
        node.members = _closed(run.id, node, wanted, inside)
    else:
        own = _own(run.id, wanted)
        others = [each for each in wanted if each not in own]
        found = _records(run.id, [*own.values(), *_first_and_last(run.id, others)])
        node.members = _closed(run.id, node, wanted, [*unfinished, *found])
        for member in node.members:
            member.is_partial = True
    for member in node.members:
        if not member.records:  # the tree of one member does not know what is around it
            member.kind = node.kind
    return page.more


def _read_page(run_id: str, place: str, kinds: Set[str], after: int, most: int) -> _Page:
    """Return the members that began after the ordinal `after`; `kinds` are those of their entries, if they have any."""
    if not kinds:
        return _page_of_scopes(run_id, place, after, most)
    return _page_of_entries(_inside_after(run_id, place, after).filter(kind__in=kinds), place, most)


def _page_of_entries(rows: _Rows, place: str, most: int) -> _Page:
    """Return the page of members that are entries.

    One statement if entries of the place follow each other, else two.
    """
    window = list(rows[: _WINDOWS[0]])
    found = [(ordinal, location) for ordinal, location in window if stands_for(place, location)]
    if len(found) <= most and len(window) == _WINDOWS[0]:
        pattern = "/".join(map(_pattern, place.split("/")))
        found = list(rows.filter(location__regex=f"^{pattern}$")[: most + 1])
    return _Page([location for _, location in found[:most]], found[most - 1][0] if len(found) > most else None)


def _pattern(segment: str) -> str:
    """Return the pattern of the segments that a place stands for.

    "#" stands for the digits of a number, or for itself in a name.
    """
    return re.escape(segment).replace(re.escape("#"), "([0-9]+(?![0-9])|#)")


def _page_of_scopes(run_id: str, place: str, after: int, most: int) -> _Page:
    """Return the page of members that are scopes without an entry, found by the entries inside; up to three statements.

    A page has fewer than `most` if the next `_WINDOWS` contain many entries of few members.
    """
    depth = place.count("/") + 1
    rows = _inside_after(run_id, place, after)
    for size in _WINDOWS:
        window = list(rows[:size])
        members: dict[str, int] = {}  # with the ordinal of the first entry inside
        for ordinal, location in window:
            member = _upto(location, depth)
            if member not in members and stands_for(place, member):
                members[member] = ordinal
        if len(members) > most or len(window) < size:
            break
    examined = dict(list(members.items())[: most * _EXAMINED])
    begun = _begun_before(run_id, list(examined), after, depth) if after >= 0 else set()
    found = [(location, ordinal) for location, ordinal in examined.items() if location not in begun]
    locations = [location for location, _ in found[:most]]
    if len(found) > most:
        return _Page(locations, found[most - 1][1])
    if len(members) > len(examined):
        return _Page(locations, max(examined.values()))
    return _Page(locations, window[-1][0] if len(window) == size else None)


def _begun_before(run_id: str, members: Sequence[str], after: int, depth: int) -> set[str]:
    """Return the members that have an entry up to the ordinal `after`; one statement."""
    earlier = Entry.objects.using(read_alias()).filter(_within(members), run=run_id, ordinal__lte=after)
    return {_upto(location, depth) for location in earlier.order_by().values_list("location", flat=True)}


def _inside_after(run_id: str, place: str, after: int) -> _Rows:
    """Return, in order, ordinals and locations of the entries in the range of the place's members."""
    start = place.partition("#")[0]
    found = Entry.objects.using(read_alias()).filter(run=run_id, location__gte=start, ordinal__gt=after)
    if end := _behind(start):
        found = found.filter(location__lt=end)
    return found.order_by("ordinal").values_list("ordinal", "location")


def _behind(start: str) -> str:
    """Return the first text after all that begin with `start`; "" if there is none."""
    if not start:
        return ""
    following = ord(start[-1]) + 1
    if following > sys.maxunicode:
        return _behind(start[:-1])
    return start[:-1] + chr(_BEHIND_SURROGATES if following == _SURROGATES else following)


# -- reads for a page's members


def _own(run_id: str, members: Sequence[str]) -> dict[str, int]:
    """Return the keys of the members' own entries by location; one statement."""
    found = Entry.objects.using(read_alias()).filter(run=run_id, location__in=members).order_by()
    return dict(found.values_list("location", "pk"))


def _little_inside(run_id: str, members: Sequence[str]) -> list[Record] | None:
    """Return all entries at and inside the members; None if they are many. One statement."""
    found = Entry.objects.using(read_alias()).filter(_within(members), run=run_id).order_by("ordinal")
    records = _records(run_id, found.values("pk")[: _MOST_INSIDE + 1])
    return records if len(records) <= _MOST_INSIDE else None


def _records(run_id: str, keys: Iterable[int] | QuerySet[Entry, Any]) -> list[Record]:
    """Return the run's entries with these keys; one statement, which looks up only their metadata."""
    chosen = keys if isinstance(keys, QuerySet) else list(keys)
    rows = Entry.objects.using(read_alias()).filter(run=run_id, pk__in=chosen).with_metadata().values_list(*COLUMNS)
    return [Record(*row) for row in rows]


def _first_and_last(run_id: str, scopes: Sequence[str]) -> list[int]:
    """Return the keys of the first and the last entry inside each of these scopes; one statement."""
    if not scopes:
        return []
    which = Case(*(When(at_or_below(each), then=Value(number)) for number, each in enumerate(scopes)))
    found = Entry.objects.using(read_alias()).filter(_within(scopes), run=run_id).order_by()
    spans = found.annotate(member=which).values("member").annotate(first=Min("pk"), last=Max("pk"))
    return [key for span in spans.values_list("first", "last") for key in span]


def _outcomes(run_id: str, node: PlaceNode, members: Iterable[str], found: Iterable[Record]) -> dict[str, ForkOutcome]:
    """Return the outcomes, by location, of the forks around the node's members and among these entries.

    At most one statement, and one more for each batch of long outcomes.
    """
    around = {member.rpartition("/")[0] for member in members} if node.kind == "branch" else set()
    forks = dict.fromkeys(each.location for each in found if each.kind in FORKS)
    wanted = [*around, *list(forks)[:_MOST_INSIDE]]
    outcomes = read_outcomes(run_id, wanted).values() if wanted else ()
    return {outcome.location: outcome for outcome in outcomes}


def _tell_end(member: PlaceNode, outcomes: Mapping[str, ForkOutcome]) -> None:
    """Give a branch the end recorded by its fork; an entry has its own end."""
    fork = outcomes.get(member.location.rpartition("/")[0])
    if fork is None or member.records:
        return
    for name, branch in fork.branches.items():
        if fork.location_of(name) == member.location:
            member.end = branch.status


def _closed(run_id: str, node: PlaceNode, members: Sequence[str], found: Iterable[Record]) -> list[PlaceNode]:
    """Return the members of the folded node, with the entries that were found at and inside them."""
    records = {each.location: each for each in found}
    inside: dict[str, list[Record]] = {member: [] for member in members}
    for record in sorted(records.values()):
        member = _upto(record.location, members[0].count("/") + 1)
        if member in inside:
            inside[member].append(record)
    outcomes = _outcomes(run_id, node, members, (record for own in inside.values() for record in own))
    nodes = list[PlaceNode]()
    for member, own in inside.items():
        forks = {each.location: outcomes[each.location] for each in own if each.location in outcomes}
        tree = build_place_tree(map(alone, own), forks)  # a node for each, so that they are not folded again
        nodes += [each for root in tree for each in root.walk() if each.location == member]
    for each in nodes:
        _tell_end(each, outcomes)
    return nodes


def _within(locations: Sequence[str]) -> Q:
    return reduce(or_, map(at_or_below, locations), Q(pk__in=[]))
