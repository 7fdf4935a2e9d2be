"""A run's history as a tree: scopes, loops with their iterations, branches with their winner, and pruned entries.

A history is read as a skeleton (locations and statuses, no payloads), and only the nodes of one page are read in full.
A short history is read whole, and its positions count places. In a long one positions count entries in the order in
which they began, and the database finds the entries of the page, so that all pages cost the same. Results are
remembered while the run rests (`durable.inspection.history_counts`), with the entries of the neighbouring pages. A note
at the loop or race says which of its entries were deleted.

A step is recorded at the end of its first attempt; before that, its node comes from the steps that run now. A join or
loop that is not recorded yet is a block.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import Count, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext

from durable.core.entry_shapes import CANNOT_BE_SHOWN, readable
from durable.core.location import unescape
from durable.core.records import EntryKind, EntryStatus, RunState
from durable.inspection.activities import RunningStep
from durable.inspection.entry_detail import failed_note, given_note, link_of, loop_note, map_note, note_links, wait_note
from durable.inspection.forks import FAILED, FORKS, ForkOutcome, fatal_locations, read_fatal, read_outcomes
from durable.inspection.held import held_of
from durable.inspection.history_counts import remembered
from durable.inspection.landmarks import landmarks_of
from durable.inspection.places import GRAVITY, HAS_FAILED, HAS_FAILED_TO_UNDO, scope_kind, title_of
from durable.inspection.progress import entries_counted, has_more_entries, newest_open
from durable.inspection.reading import read_alias
from durable.inspection.run_facts import tags_note
from durable.inspection.shown import summary_of
from durable.models import Attempt, Entry, Run
from durable.models.rows import ByteLength, load_json
from durable.store.tables.surveys import in_stretches, long_data, short_data

PAGE: Final = 200  # nodes of one page
LONG: Final = 5_000  # entries of a history that is read whole
MOST: Final = 50_000  # entries with failed attempts to page through
_BLOCK: Final = 2_000  # entries whose order is read in one query

_COLUMNS: Final[Sequence[Any]] = ("id", "location", "kind", "metadata__status", HAS_FAILED_TO_UNDO)
_AROUND: Final = (EntryKind.LOOP.value, EntryKind.JOIN.value, EntryKind.RACE.value)

#: Key, location, kind and status of an entry, and whether its rollback handler has failed for good.
Row = tuple[int, str, str, str, bool]

#: Statuses that "only what failed" leaves out: a branch that lost a race is "cancelled".
_SETTLED: Final = (EntryStatus.COMPLETED, "cancelled")
#: States in which the run's row says which failures were not caught.
_TOLD: Final = (RunState.COMPLETED, RunState.FAILED)
_ENDS_OF_BRANCHES: Final = frozenset({EntryStatus.COMPLETED, FAILED, "cancelled"})
_OPEN: Final = frozenset(EntryStatus) - {EntryStatus.COMPLETED, EntryStatus.EXHAUSTED}


@dataclass(slots=True, kw_only=True)
class TreeNode:
    """One location in the history.

    `kind` is its entry's, or "iteration", "branch" or "block" for a scope without an entry. `status` is the entry's; a
    scope's is the worst status of its contents; a branch's is the one that its join or race gives it ("cancelled" for a
    branch that lost before its end), and a join or race that raised an error is "failed". `is_caught`: it has failed,
    and the run's code continued all the same. `is_not_undone`: a step's rollback handler has failed, and has not
    completed since. `failed_attempts` are a step's, including those before a recovery. `entry` has metadata but no
    payloads; only nodes of the page have it. `running` is the running attempt of a step, or call of its rollback
    handler; a step in its first attempt has no entry yet. `summary` is the line of text that a step's call has for
    people. `note` is additional text, for example about pruned
    iterations.
    """

    location: str
    title: str
    kind: str
    status: str
    depth: int
    position: int = 0
    entry_id: int | None = None
    entry: Entry | None = None
    running: RunningStep | None = None
    summary: str = ""
    note: str = ""
    is_winner: bool = False
    is_caught: bool = False
    is_not_undone: bool = False
    failed_attempts: int = 0
    size: int = 1  # nodes in this subtree, including this one
    children: Sequence[TreeNode] = ()

    @property
    def is_open(self) -> bool:
        return self.status in _OPEN

    @property
    def running_since(self) -> datetime | None:
        """When the running attempt or call began, or None."""
        return None if self.running is None else self.running.began_at

    @property
    def has_failed(self) -> bool:
        """Whether the node or one below it has failed, caught or not."""
        return self.status in HAS_FAILED

    @property
    def needs_attention(self) -> bool:
        """Whether the node or one below it has failed without being caught."""
        return self.has_failed and not self.is_caught

    def add(self, child: TreeNode) -> None:
        """Append a child. Most nodes of a long history have none, and get no list."""
        if isinstance(self.children, list):
            self.children.append(child)
        else:
            self.children = [*self.children, child]

    def walk(self) -> Iterator[TreeNode]:
        """Yield the node and all nodes below it, in the order in which they are shown."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePage:
    """A page of a history. `roots` hold the nodes of this page and the scopes around them. Positions count from 0.

    `size` is the requested number of nodes.
    """

    roots: Sequence[TreeNode]
    nodes: Sequence[TreeNode]  # of this page, in order
    start: int
    total: int
    size: int
    is_cut: bool = False

    @property
    def previous_start(self) -> int | None:
        return max(0, self.start - self.size) if self.start else None

    @property
    def end(self) -> int:
        return self.start + len(self.nodes)

    @property
    def next_start(self) -> int | None:
        return self.end if self.end < self.total else None


def history_tree(
    run: Run,
    *,
    start: int | None = None,
    size: int = PAGE,
    only_failed: bool = False,
    at_end: bool = False,
    running: Iterable[RunningStep] = (),
    entries: int | None = None,
    open_keys: Sequence[int] | None = None,
    with_payloads: bool = False,
) -> TreePage:
    """Return `size` nodes of the history of a run from the position `start` on.

    `running` are the run's running steps.

    Without `start`: the page of the run's current node, or the first page. With `at_end`, and without `start`: the last
    nodes, or those from the run's current node on if it comes earlier. With `only_failed`: only nodes with failed
    attempts, without completion or running now, with the scopes around them. In a long history positions count entries,
    and the scopes around those of a page are not among its nodes. `entries` and `open_keys` are those of `progress_of`,
    for a caller that has them. Results for a long history are remembered while its run rests
    (`durable.inspection.history_counts`). `with_payloads`: the note at a step that waits for a person names its
    arguments. A constant number of statements, at most nine, and five more where steps wait for a person.
    """
    rows, running = read_rows(run, entries), list(running)
    if rows is None:
        keys_of_open = newest_open(run) if open_keys is None else open_keys
        if only_failed:
            window = _window_of_interest(run, start, size, keys_of_open, running, at_end=at_end)
        else:
            window = _window(run, start, size, keys_of_open, running, entries, at_end=at_end)
        found = _page_of(run, window, running if window.is_last else [], size)
        return _filled(run, found, with_payloads=with_payloads)
    has_forks = any(kind in FORKS for _, _, kind, *_ in rows)
    outcomes = read_outcomes(run.id) if has_forks else {}
    built = _Builder(rows, outcomes, _failed_attempts(run.id), running)
    roots = built.roots
    _mark_caught(run, built.nodes, lambda: fatal_locations(run.origins, outcomes.values()))
    if only_failed:
        roots = list(filter(None, (_kept(root) for root in roots)))
    nodes = [node for root in roots for node in root.walk()]
    for position, node in enumerate(nodes):
        node.position = position
    if start is None:
        start, last = _place_of_interest(nodes), len(nodes) - size
        start = (min(start, last) if start else last) if at_end else start // size * size
    start = min(max(0, start), max(0, len(nodes) - 1))
    found = TreePage(roots=roots, nodes=nodes[start : start + size], start=start, total=len(nodes), size=size)
    return _filled(run, found, with_payloads=with_payloads)


def _page_of(run: Run, window: Window, running: Iterable[RunningStep], size: int) -> TreePage:
    forks = [location for _, location, kind, *_ in window.rows if kind in FORKS]
    outcomes = read_outcomes(run.id, forks) if forks else {}
    built = _Builder(window.rows, outcomes, _failed_attempts(run.id, window.locations), running, is_whole=False)
    _mark_caught(run, built.nodes, lambda: read_fatal(run.id, run.origins))
    nodes = [node for root in built.roots for node in root.walk()]
    page = [node for node in nodes if node.entry_id in window.keys or (node.running and node.entry_id is None)]
    for position, node in enumerate(page, window.start):
        node.position = position
    total = max(window.total, window.start + len(page))
    return TreePage(roots=built.roots, nodes=page, start=window.start, total=total, size=size, is_cut=window.is_cut)


def _filled(run: Run, found: TreePage, *, with_payloads: bool) -> TreePage:
    """Read what the nodes of the page show, and leave out the nodes that are neither on the page nor around it."""
    shown = {id(node) for node in found.nodes}
    _fill(run, found.nodes)
    held = [node for node in found.nodes if node.status == EntryStatus.HELD and node.entry]
    _ask(run, held, with_payloads=with_payloads)
    return replace(found, roots=list(filter(None, (_cut(root, shown) for root in found.roots))))


def _place_of_interest(nodes: Sequence[TreeNode]) -> int:
    """Return the position of the last leaf that is not completed; 0 if all are."""
    places = [
        node.position
        for node in nodes
        if (node.entry_id or node.running) and not node.children and node.status != EntryStatus.COMPLETED
    ]
    return places[-1] if places else 0


class _Builder:
    """Builds nodes from rows, in the order in which the entries began.

    `is_whole`: the whole history is read, so branches of joins and races without an entry get a node too.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        outcomes: Mapping[int, ForkOutcome],
        failed_attempts: Mapping[str, int],
        running: Iterable[RunningStep],
        *,
        is_whole: bool = True,
    ) -> None:
        self.roots: list[TreeNode] = []
        self.nodes: dict[str, TreeNode] = {}
        self._iteration = gettext("iteration %(number)s")  # looked up once: a history has thousands
        self._kinds = {location: kind for _, location, kind, *_ in rows}
        for entry_id, location, kind, status, has_failed_to_undo in rows:
            node = self._node(location)
            node.entry_id, node.kind, node.status = entry_id, kind, status
            node.failed_attempts = failed_attempts.get(location, 0)
            if has_failed_to_undo:
                node.is_not_undone = True
                node.note = gettext("compensation failed")
        forks = [(self.nodes[location], outcomes[key]) for key, location, *_ in rows if key in outcomes]
        for node, outcome in forks:
            node.note = outcome.note
            node.status = outcome.status(node.status)
            for name in outcome.branches if is_whole else ():
                self._node(outcome.location_of(name))
        for step in running:
            self._show_running(step)
        for root in self.roots:
            _sum_up(root)
        for node, outcome in forks:
            self._show_branches(node, outcome)

    def _show_running(self, step: RunningStep) -> None:
        """Mark the nodes of running steps; a step in its first attempt gets a node. A completed step is not marked."""
        if step.is_rollback:
            if (undone := self.nodes.get(step.location)) is not None:
                undone.running = step
            return
        node = self._node(step.location)
        if node.entry_id is None or node.status != EntryStatus.COMPLETED:
            node.summary = step.summary
            node.kind, node.status, node.running = EntryKind.STEP, EntryStatus.RUNNING, step

    def _show_branches(self, fork: TreeNode, outcome: ForkOutcome) -> None:
        """Give the branches the statuses that their join or race has recorded."""
        for branch in fork.children:
            name = unescape(branch.location.rpartition("/")[2])
            end = outcome.branches.get(name)
            if branch.entry_id is not None or end is None:
                continue
            if branch.status != EntryStatus.HELD or end.status in _ENDS_OF_BRANCHES:
                branch.status = end.status
            branch.is_winner = name == outcome.winner
            if outcome.winner is not None and not branch.is_winner:
                branch.note = gettext("lost; its records are pruned, except steps with a rollback handler")

    def _node(self, location: str) -> TreeNode:
        node = self.nodes.get(location)
        if node is None:
            around, _, segment = location.rpartition("/")
            parent = self._node(around) if around else None
            node = TreeNode(
                location=location,
                title=title_of(segment, self._iteration),
                kind=scope_kind(self._kinds.get(around), segment),
                status=EntryStatus.COMPLETED,
                depth=0 if parent is None else parent.depth + 1,
            )
            self.nodes[location] = node
            if parent is None:
                self.roots.append(node)
            else:
                parent.add(node)
        return node


def _sum_up(node: TreeNode) -> None:
    """Give scopes without an entry the worst status of their contents."""
    for child in node.children:
        _sum_up(child)
    node.size = 1 + sum(child.size for child in node.children)
    if node.entry_id is None and node.children:
        node.status = max((child.status for child in node.children), key=GRAVITY.index)


def _kept(node: TreeNode) -> TreeNode | None:
    """Return the node with the descendants that failed at least once or are not completed; None if there are none."""
    node.children = list(filter(None, (_kept(child) for child in node.children)))
    is_of_interest = bool(node.failed_attempts or node.running) or node.is_not_undone
    is_of_interest = is_of_interest or node.status not in _SETTLED
    return node if node.children or is_of_interest else None


def _failed_attempts(run_id: str, locations: Sequence[str] | None = None) -> dict[str, int]:
    found = Attempt.objects.using(read_alias()).filter(run=run_id).order_by()
    if locations is not None:
        found = found.filter(location__in=locations)
    return dict(found.values_list("location").annotate(number=Count("id")))


def _mark_caught(run: Run, nodes: Mapping[str, TreeNode], fatal: Callable[[], set[str]]) -> None:
    """Mark final failures that did not make the run fail, once the run's code has continued or ended.

    `fatal` returns the locations of the failures that made the run fail.
    """
    failed = [
        node
        for node in nodes.values()
        if node.status == EntryStatus.EXHAUSTED
        or (node.status == EntryStatus.FAILED and node.kind in (*FORKS, "branch"))
    ]
    if not failed or run.state not in _TOLD:
        return
    locations = fatal()
    for node in failed:
        node.is_caught = node.location not in locations


def _cut(node: TreeNode, shown: set[int]) -> TreeNode | None:
    """Return the node with its children on the page; None if neither it nor a child is on the page."""
    children = list(filter(None, (_cut(child, shown) for child in node.children)))
    if not children and id(node) not in shown:
        return None
    node.children = children
    return node


# -- details of the page's own nodes


def _fill(run: Run, page: Sequence[TreeNode]) -> None:
    """Read the entries of the page, and note facts from their data."""
    by_id = {node.entry_id: node for node in page if node.entry_id is not None}
    found = Entry.objects.using(read_alias()).select_related("metadata").defer("output", "arguments", "data")
    shown: list[Any] = list(found.filter(run=run, pk__in=by_id).annotate(short=short_data(), weight=ByteLength("data")))
    data_of = {entry.pk: readable(entry.kind, load_json(entry.short)) for entry in shown if entry.short is not None}
    data_of |= long_data(read_alias(), run.id, [(each.pk, each.weight) for each in shown if each.pk not in data_of])
    for entry in shown:
        entry.data = data_of.get(entry.pk, {})
    note_links(run, shown)
    for entry in shown:
        node = by_id[entry.pk]
        node.entry = entry
        if entry.kind == EntryKind.STEP:
            node.summary = summary_of(run.workflow, entry.data)
        if wrong := entry.data.get(CANNOT_BE_SHOWN):
            node.note = gettext("cannot be shown: %(problem)s") % {"problem": wrong}
        elif entry.kind == EntryKind.LOOP:
            node.note = loop_note(node.status, entry.data)
        elif entry.kind == EntryKind.MESSAGE:
            node.note = wait_note(entry)
        elif entry.kind == EntryKind.STEP and "given" in entry.data:
            node.note = given_note(entry.data["given"])
        elif entry.kind == EntryKind.STEP and (note := failed_note(entry.data)):
            node.note = note
        elif entry.kind == EntryKind.CHILD:
            node.note = str(entry.data.get("child") or "")
        elif entry.kind == EntryKind.MAP:
            node.note = map_note(entry.data)
        elif entry.kind == EntryKind.TAG:
            node.note = tags_note(run.workflow, entry.data)
        elif (link := link_of(run, entry)) is not None:
            node.note = link.note
        elif entry.kind == EntryKind.COMPENSATE:
            node.note = str(entry.data.get("reason", ""))


def _ask(run: Run, waiting: Sequence[TreeNode], *, with_payloads: bool) -> None:
    """Note at the steps that wait for a person what is asked."""
    if not waiting:
        return
    now = timezone.now()
    held = held_of(run, with_payloads=with_payloads, locations=[node.location for node in waiting])
    asked = {each.location: each.question(now) for each in held}
    for node in waiting:
        node.note = asked.get(node.location, node.note)


# -- reading the entries of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A page of a long history.

    `rows` are the entries of the page, those around them, and the newest that are not completed, in the order in which
    they began. `keys` are those of the page, which begins at `start` of `total` entries. `is_cut`: some entries are on
    no page.
    """

    rows: Sequence[Row]
    keys: Collection[int]
    start: int
    total: int
    is_cut: bool = False

    @property
    def is_last(self) -> bool:
        return self.start + len(self.keys) >= self.total

    @property
    def locations(self) -> list[str]:
        return [location for key, location, *_ in self.rows if key in self.keys]


def read_rows(run: Run, entries: int | None) -> list[Row] | None:
    """Return the entries of a history in the order in which they began; None if it is long.

    `entries` is their number, or None.

    One statement, none for a long history. If the number is not known, and this process has not counted the history:
    one, and two for a long or empty one.
    """
    if entries is None:
        entries = entries_counted(run)
    if entries is not None and entries > LONG:
        return None
    found = Entry.objects.using(read_alias()).with_metadata_of(run.id).order_by("ordinal")
    if entries is not None:
        return list(found.values_list(*_COLUMNS))
    rows = list(found.if_at_most(LONG, run.id).values_list(*_COLUMNS))
    return None if not rows and has_more_entries(run.id, 0) else rows


def _window(
    run: Run,
    start: int | None,
    size: int,
    open_keys: Sequence[int],
    running: Sequence[RunningStep],
    entries: int | None,
    *,
    at_end: bool,
) -> Window:
    """Return a page of a long history, see `history_tree`; at most six statements, and one more without `entries`."""
    order = _Order(run, entries)
    if start is None:
        start = _start(run.id, order, open_keys, running, size, at_end=at_end)
    start = _within(start, order.total)
    keys = order.keys(start, size)
    rows = _rows(run.id, keys, open_keys)
    return Window(rows=rows, keys=frozenset(keys), start=start, total=order.total)


def _window_of_interest(
    run: Run, start: int | None, size: int, open_keys: Sequence[int], running: Sequence[RunningStep], *, at_end: bool
) -> Window:
    """Return a page of what failed, runs or is not completed in a long history."""
    chosen = _of_interest(run, open_keys, running)
    total = min(len(chosen), MOST)
    start = _within(total - size if at_end and start is None else start or 0, total)
    keys = list(chosen[start : min(start + size, total)])
    rows = _rows(run.id, keys, open_keys)
    return Window(rows=rows, keys=frozenset(keys), start=start, total=total, is_cut=len(chosen) > MOST)


def _within(start: int, total: int) -> int:
    return min(max(0, start), max(0, total - 1))


class _Order:
    """The entries of a run in the order in which they began. No index has that order, so each query reads the ordinals
    of all, or of a part of a history that was counted ahead (`durable.inspection.landmarks`).

    Therefore a query returns `_BLOCK` entries, which are remembered for the next pages. `total` is the number of all
    entries; without it they are counted.
    """

    def __init__(self, run: Run, total: int | None) -> None:
        self._run = run
        self._landmarks = landmarks_of(run)
        self._entries = _entries(run.id)
        self.total = self._counted() if total is None else total

    def position(self, ordinal: int) -> int:
        """Return how many entries began before the one with this ordinal.

        One statement, and a second one unless the entry is one of the newest.
        """
        if self._landmarks is not None:
            passed, amid, _ = self._landmarks.divided(ordinal - 1)
            here = 0 if amid is None else self._entries.filter(in_stretches([amid]), ordinal__lt=ordinal).count()
            return sum(each.number() for each in passed) + here
        ordinals, _ = self._newest()
        after = len(ordinals) - bisect_right(ordinals, ordinal)
        if after < len(ordinals):
            return self.total - after - 1
        before = self._entries.filter(ordinal__lt=ordinal)
        return remembered(self._run, f"entries before {ordinal}", before.count)

    def keys(self, start: int, size: int) -> list[int]:
        """Return the keys of `size` entries from a position on; one statement."""
        if self._landmarks is not None:
            stretches, begin = self._landmarks.around(start, start + size)
            found = self._entries.filter(in_stretches(stretches)).order_by("ordinal").values_list("pk", flat=True)
            return list(found[begin : begin + size])
        if start >= self.total - _BLOCK:
            _, newest = self._newest()
            begin = max(0, self.total - len(newest))
            return list(newest[start - begin : start - begin + size])
        begin = start // _BLOCK * _BLOCK
        what = f"keys from {begin} on for pages of {size}"
        block = remembered(self._run, what, lambda: self._between(begin, begin + _BLOCK + size))
        return list(block[start - begin : start - begin + size])

    def _counted(self) -> int:
        if self._landmarks is not None:
            return sum(each.number() for each in self._landmarks.stretches)
        return remembered(self._run, "entries", self._entries.order_by("location").count)

    def _newest(self) -> tuple[array[int], array[int]]:
        """Return the ordinals and the keys of the newest entries, as they began."""
        return remembered(self._run, "newest entries", self._read_newest)

    def _read_newest(self) -> tuple[array[int], array[int]]:
        rows = list(self._entries.order_by("-ordinal").values_list("ordinal", "pk")[:_BLOCK])[::-1]
        return array("q", [ordinal for ordinal, _ in rows]), array("q", [key for _, key in rows])

    def _between(self, begin: int, end: int) -> array[int]:
        """Return the keys of the entries between two positions, found from the nearer end of the history."""
        if begin <= self.total // 2:
            return array("q", self._entries.order_by("ordinal").values_list("pk", flat=True)[begin:end])
        found = self._entries.order_by("-ordinal").values_list("pk", flat=True)
        return array("q", list(found[max(0, self.total - end) : self.total - begin])[::-1])


def _entries(run_id: str) -> QuerySet[Entry]:
    return Entry.objects.using(read_alias()).filter(run=run_id).order_by()


def _of_interest(run: Run, open_keys: Sequence[int], running: Sequence[RunningStep]) -> Sequence[int]:
    """Return the keys of entries that are not completed, have failed attempts or run now, up to one more than
    `MOST`.
    """

    def read() -> Sequence[int]:
        return _read_of_interest(run.id, open_keys, running)

    return read() if running else remembered(run, "of interest", read)


def _read_of_interest(run_id: str, open_keys: Sequence[int], running: Iterable[RunningStep]) -> Sequence[int]:
    failed = Attempt.objects.using(read_alias()).filter(run=run_id).order_by().values("location")
    conditions = [Q(location__in=failed), Q(pk__in=open_keys), Q(location__in=[step.location for step in running])]
    # not one condition with OR, which would read each entry of the history
    first, *others = (_entries(run_id).filter(each).values_list("ordinal", "pk") for each in conditions)
    return array("q", [key for _, key in first.union(*others).order_by("ordinal")[: MOST + 1]])


def _start(
    run_id: str, order: _Order, open_keys: Sequence[int], running: Iterable[RunningStep], size: int, *, at_end: bool
) -> int:
    """Return the start of the page with the last entry that is not completed, or with a running step that is not
    recorded yet.
    """
    last = order.total - size
    if any(not step.is_rollback for step in running):
        return last if at_end else max(0, order.total - 1) // size * size
    found = _entries(run_id).filter(pk__in=open_keys).order_by("-ordinal")
    rows = list(found.values_list("ordinal", "kind"))
    ordinal = next((ordinal for ordinal, kind in rows if kind not in _AROUND), rows[0][0] if rows else 0)
    position = order.position(ordinal) if rows else 0
    if at_end:
        return min(position, last) if position else last
    return position // size * size


def _rows(run_id: str, keys: Sequence[int], open_keys: Sequence[int]) -> list[Row]:
    """Return the entries with these keys and those around the first ones, in the order in which they began; two
    statements.
    """
    locations = _entries(run_id).filter(pk__in=keys).values_list("location", flat=True)
    around = {location[:end] for location in locations for end in _ends(location)}
    wanted = Q(pk__in=[*keys, *open_keys]) | Q(location__in=sorted(around))
    found = _entries(run_id).filter(wanted).select_related("metadata").order_by("ordinal")
    return list(found.values_list(*_COLUMNS))


def _ends(location: str) -> list[int]:
    return [position for position, character in enumerate(location) if character == "/"]
