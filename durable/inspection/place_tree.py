"""The places of a history as a tree in which iterations, equal branches and numbered siblings are folded.

A folded node stands for its members: it has their entries, and below it are the places inside of them, merged in turn.
Its location has "#" for numbers. Where something is to be opened, a folded node keeps its members beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.utils.translation import gettext as _

from durable.core.location import is_within, unescape
from durable.core.records import EntryKind, EntryStatus
from durable.inspection.fork_outcomes import FORKS, ForkOutcome
from durable.inspection.places import Place, Record, masked

_FOLDED_FROM: Final = 5  # siblings whose names differ in numbers alone; iterations are folded from two on
_EQUAL_BRANCHES: Final = 9  # branches with the same places inside, whatever their names
_DEEPEST: Final = 12  # levels; what is deeper stands beside each other with its path

_SCOPES: Final = (EntryKind.LOOP.value, *FORKS, "iteration", "branch", "block")

_GRAVITY: Final = (
    EntryStatus.COMPLETED.value,
    "cancelled",
    EntryStatus.PENDING.value,
    EntryStatus.RUNNING.value,
    EntryStatus.FAILED.value,
    EntryStatus.EXHAUSTED.value,
)


@dataclass(slots=True, kw_only=True)
class PlaceNode:
    """A place, or the members that are folded into one.

    `kind` is its entries', or "iteration", "branch" or "block" for a scope without an entry. `count` is the number of
    members; 1 for a place that is not folded, 0 if it is not known. `records` are its own entries, of a folded place
    some of them. `first` is the location of the first member. `end` is the outcome of a join, a race or a branch, and
    "" before it has one. `is_partial`: only some of what is inside is below it. `has_all_members`: `members` are all.
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
        """The name of the first member in its scope; of a folded place with "#" for numbers."""
        depth = min(self.location.count("/"), _DEEPEST - 1)
        name = _title("/".join(self.first.split("/")[depth:]))
        if not self.is_folded:
            return name
        return _("every branch") if self.location.endswith("/#") and masked(name) == name else masked(name)

    @property
    def status(self) -> str:
        """The outcome, or the worst status of its entries; of a scope without an entry that of what is inside."""
        if self.end:
            return self.end
        found = {record.status for record in self.records} or {child.status for child in self.children}
        return max(found, key=_GRAVITY.index, default=EntryStatus.COMPLETED.value)

    @property
    def is_scope(self) -> bool:
        """Whether there are places inside."""
        return bool(self.children) or (self.is_partial and self.may_be_scope)

    @property
    def may_be_scope(self) -> bool:
        """Whether places can be inside: a step and a sleep have none."""
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
    """Return True if the place, a location with "#" for some of its numbers, has this location among its members."""
    names, actual = place.split("/"), location.split("/")
    return len(names) == len(actual) and all(
        name in (segment, masked(segment)) for name, segment in zip(names, actual, strict=True)
    )


def build_place_tree(places: Iterable[Place], outcomes: Mapping[str, ForkOutcome], opened: str = "") -> list[PlaceNode]:
    """Return the top of the tree; `outcomes` are those of joins and races, by location.

    A folded node that is at `opened` keeps all its members, and one around it the member that it leads through.
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
        parent = _node_at(around, place, nodes, top) if around else None
        kind = _scope_kind(parent, segment)
        node = nodes[location] = PlaceNode(location=location, first=location, kind=kind, ordinal=place.ordinal)
        (top if parent is None else parent.children).append(node)
        return node
    segments = location.split("/")
    depth = min(len(segments), _DEEPEST) - 1
    around = "/".join(segments[:depth])
    parent = _node_at(around, place, nodes, top) if around else None
    actual = place.records[0].location.split("/") if place.records else segments
    first = "/".join(actual[: depth + 1] if len(segments) <= _DEEPEST else actual)
    node = nodes[location] = PlaceNode(
        location=location, first=first, kind=_scope_kind(parent, segments[depth]), ordinal=place.ordinal
    )
    node.is_folded = "#" in location and location != first
    if node.is_folded:
        node.count = 0  # until it is counted
    (top if parent is None else parent.children).append(node)
    return node


def _count(node: PlaceNode, count: int, nodes: Mapping[str, PlaceNode]) -> None:
    """Note the number of entries at the scopes around them, up to the innermost one of which there are several."""
    node.is_folded, node.count = True, count
    location = node.location
    while "#" not in location.rpartition("/")[2]:
        location = location.rpartition("/")[0]
        scope = nodes.get(location)
        if scope is not None:
            scope.count = max(scope.count, count)


def _scope_kind(parent: PlaceNode | None, segment: str) -> str:
    if segment.startswith("~"):
        return "iteration"
    return "branch" if parent is not None and parent.kind in FORKS else "block"


def _tell(nodes: dict[str, PlaceNode], top: list[PlaceNode], location: str, outcome: ForkOutcome) -> None:
    """Give a join or race and its branches the outcomes that they have recorded."""
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


def _title(segment: str) -> str:
    """Return a name for people, as the tree of the history has it."""
    names = segment.split("/")
    if names[-1].startswith("~"):
        names[-1] = _("iteration %(number)s") % {"number": names[-1][1:]}
    else:
        name, mark, number = names[-1].partition("~")  # a send's segment has a mark and a number
        names[-1] = f"{unescape(name)} {int(number) + 1}" if mark and number.isdigit() else unescape(names[-1])
    return " / ".join([*map(unescape, names[:-1]), names[-1]])


# -- folding


def _folded(siblings: Sequence[PlaceNode], opened: str, fork: PlaceNode | None = None) -> list[PlaceNode]:
    """Return the nodes of a scope, equal ones as one."""
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
    """Return the nodes by their masked locations in their scope."""
    groups: dict[str, list[PlaceNode]] = {}
    for node in siblings:
        around, slash, segment = node.location.rpartition("/")
        groups.setdefault(around + slash + masked(segment), []).append(node)
    return groups


def _shape(node: PlaceNode) -> frozenset[str]:
    """Return what is inside a node, to compare branches."""
    inside = len(node.location)
    return frozenset(masked(each.location[inside:]) for each in node.walk())


def _fold(location: str, group: Sequence[PlaceNode], opened: str) -> PlaceNode:
    """Return one node for the members."""
    folded = _merged(location, group, opened)
    if opened != location:
        folded.members = _members([node for node in group if is_within(opened, node.location)], opened)
    return folded


def _members(group: Iterable[PlaceNode], opened: str) -> list[PlaceNode]:
    """Return those of the nodes that are no folded ones, what is inside of them folded."""
    members = [node for node in group if not node.is_folded]
    for node in members:
        node.children = _folded(node.children, opened, node if node.kind in FORKS else None)
    return members


def _merged(location: str, group: Sequence[PlaceNode], opened: str) -> PlaceNode:
    """Return one node with the entries of all these, and with what is inside of them merged.

    It has members if it is at `opened`.
    """
    [first, *others] = sorted(group, key=lambda node: node.ordinal)
    if not others and not first.is_folded:
        return PlaceNode(
            location=first.location,
            first=first.first,
            kind=first.kind,
            ordinal=first.ordinal,
            records=first.records,
            children=_merged_children(first.location, [first], opened),
            note=first.note,
            end=first.end,
        )
    return PlaceNode(
        location=location,
        first=first.first,
        kind=first.kind,
        ordinal=first.ordinal,
        count=_count_of(group),
        is_folded=True,
        records=[record for node in group for record in node.records],
        children=_merged_children(location, group, opened),
        # after `children`: these take apart what is inside of the group
        members=_members(group, opened) if opened == location else (),
        has_all_members=opened == location and not any(node.is_folded for node in group),
        end=max((node.end for node in group if node.end), key=_GRAVITY.index, default=""),
    )


def _count_of(group: Sequence[PlaceNode]) -> int:
    # A scope without entries beside those that the database has counted is one of them: it has something inside that no
    # other has.
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
            path = child.location[len(node.location) + 1 :]  # of several segments below the deepest level
            inner.setdefault(masked(path), []).append(child)
    merged = [_merged(f"{location}/{path}", children, opened) for path, children in inner.items()]
    return sorted(merged, key=lambda node: node.ordinal)
