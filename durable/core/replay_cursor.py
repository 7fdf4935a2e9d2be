"""The replay cursor of a scope: the operations of its code, matched with the recorded entries.

Names are unique in a scope and its operations are sequential. Owns these decisions: which recorded entry an operation
matches, and, at the scope's end, whether every recorded entry was matched.
"""

from __future__ import annotations

from typing import NoReturn

from durable.core.divergences import BLOCK, Divergence, DivergenceKind, OperationAt
from durable.core.errors import HistoryDivergedError
from durable.core.journal import Journal, Node
from durable.core.location import escape, join, listed, numbered_segment, value_segment
from durable.core.mistakes import is_mistake
from durable.core.outcomes import FAILURE
from durable.core.records import EntryKind, EntryRecord, EntryStatus

# These two kinds may be inserted before entries that older code recorded.
_MAY_PRECEDE = frozenset({EntryKind.REMOVED, EntryKind.VERSION_CHECK})
_MAX_RECORDED = 5  # records that a divergence lists
_FINAL = frozenset({EntryStatus.COMPLETED, EntryStatus.EXHAUSTED})


def _has_ended(entry: EntryRecord) -> bool:
    return entry.status in _FINAL or FAILURE in entry.data


class ReplayCursor:
    """The position of a scope's code in the history."""

    __slots__ = ("_journal", "_numbers", "_parent", "_used", "_values", "location", "node")

    def __init__(self, journal: Journal, node: Node, parent: ReplayCursor | None) -> None:
        self._journal = journal
        self._parent = parent
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}  # how many operations without a name there were, by kind
        self._values: dict[str, int] | None = None  # how many were published, by name
        self.node = node
        self.location: str = node.location

    # -- operations

    def match(self, kind: EntryKind, name: str) -> Node:
        """Return the node of the operation `name`: the recorded one with its entry, or a new one without.

        Raises HistoryDivergedError if the code does not fit the history.
        """
        return self._match(kind, escape(name))

    def match_numbered(self, kind: EntryKind, *, is_removed: bool = False) -> Node:
        """Return the node of this scope's next send, compensation or call that tags the run.

        With `is_removed`, that of the `removed` that stands in for one.
        """
        number = self._numbers.get(kind, 0)
        self._numbers[kind] = number + 1
        return self._match(EntryKind.REMOVED if is_removed else kind, numbered_segment(kind, number))

    def match_value(self, name: str, kind: EntryKind = EntryKind.PUBLISH) -> Node:
        """Return the node of this scope's next value under this name, or of the `removed` that stands in for one."""
        if self._values is None:
            self._values = {}
        number = self._values.get(name, 0)
        segment = value_segment(name, number)
        self._values[name] = number + 1
        return self._match(kind, segment)

    def match_block(self, name: str) -> Node:
        """Return the node of a try block.

        It has no entry of its own, so a block in which nothing was recorded is new in each pass.
        """
        segment = escape(name)
        node = self.recorded(segment)
        if node is None:
            return self._journal.attach(self.node, segment, Node(join(self.location, segment)))
        if node.entry is not None:
            self.diverged(
                f'expected a try block at "{node.location}", found a {node.entry.kind}',
                node.location,
                kind=DivergenceKind.KIND,
                code=OperationAt(BLOCK, node.location),
            )
        self.node.unvisited -= 1
        return node

    def _match(self, kind: EntryKind, segment: str) -> Node:
        node = self.recorded(segment)
        if node is None:
            if kind not in _MAY_PRECEDE and (left := self.unvisited()):
                self.diverged(
                    f'the code comes to the {kind} "{join(self.location, segment)}", which is not in the history, '
                    f"but the history goes on with {listed(left)}",
                    *left,
                    kind=DivergenceKind.ADDED,
                    code=OperationAt(kind, join(self.location, segment)),
                )
            return Node(join(self.location, segment))
        entry = node.entry
        if entry is None and kind != EntryKind.REMOVED:
            self.diverged(
                f'expected a {kind} at "{node.location}", found a try block',
                node.location,
                kind=DivergenceKind.KIND,
                code=OperationAt(kind, node.location),
            )
        if entry is not None and entry.kind != kind and kind != EntryKind.REMOVED:
            self.diverged(
                f'expected a {kind} at "{node.location}", found a {entry.kind}',
                node.location,
                kind=DivergenceKind.KIND,
                code=OperationAt(kind, node.location),
            )
        self.node.unvisited -= 1
        if self.node.unvisited and kind not in _MAY_PRECEDE and entry is not None and not _has_ended(entry):
            # The operation would continue now; but an unfinished entry was the last that the scope's code reached.
            left = self.left_over()
            self.diverged(
                f'the code comes to the {kind} "{node.location}", which has not ended, but the history has '
                f"{listed(left)} before it",
                *left,
                kind=DivergenceKind.SKIPPED,
                code=OperationAt(kind, node.location),
            )
        return node

    def recorded(self, segment: str) -> Node | None:
        """Return the recorded node of an operation, under any of its names; None if it is new."""
        key = self.key(segment)
        self._use(key, segment)
        return self.node.child(key)

    def key(self, segment: str) -> str:
        """Return the segment under which this scope stores the operation: the oldest, if it was renamed."""
        names = self._journal.names
        return segment if names is None else names.segment(self.location, segment)

    def _use(self, key: str, segment: str) -> None:
        if key in self._used:
            where = join(self.location, segment)
            error = HistoryDivergedError(
                f'"{where}" is used twice; a name is unique within its scope. Give each operation a name of its own; '
                'to repeat one, use ctx.loop, or number the names (f"send {number}")'
            )
            error.locations = (where,)
            error.divergence = Divergence(
                kind=DivergenceKind.USED_TWICE,
                scope=self.location,
                problem=f'"{where}" is used twice',
                code=self._place(where),
                recorded=(),
            )
            self._journal.stop(error)
        self._used.add(key)

    # -- differences between code and history

    def unvisited(self) -> list[str]:
        """Return the recorded entries that the code has not reached: of this scope or, for a new node, of one around
        it.
        """
        cursor: ReplayCursor | None = self
        while cursor is not None:
            if cursor.node.unvisited:
                return cursor.left_over()
            cursor = cursor._parent
        return []

    def left_over(self) -> list[str]:
        """Return the locations of this scope's recorded entries that its code has not reached, in recorded order."""
        children = self.node.children or {}
        left = [node for segment, node in children.items() if segment not in self._used]
        return [node.location for node in sorted(left, key=Node.began)]

    def finish(self, error: Exception | None) -> None:
        """End the scope, whose code has ended with `error`. Raises HistoryDivergedError for an unmatched entry.

        If the code made a mistake before the end of the history, that is raised instead: it explains more.
        """
        if self.node.unvisited:
            if error is not None and is_mistake(error, self._journal.environment.mistakes):
                self._journal.stop(error)
            left = self.left_over()
            problem = f"the code ended, but the history goes on with {listed(left)}"
            self.diverged(problem, *left, kind=DivergenceKind.REMOVED, raised=error)

    def diverged(
        self,
        problem: str,
        *locations: str,
        kind: DivergenceKind = DivergenceKind.CHANGED,
        code: OperationAt | None = None,
        raised: Exception | None = None,
    ) -> NoReturn:
        """Stop the run: its code does not fit its history.

        `locations` are those of the records, `code` the operation that the code has come to, `raised` the error that
        ended the code.
        """
        where = self.location or "the root"
        error = HistoryDivergedError(
            f"in {where}: {problem}. The code has changed since this history was recorded, or does not do the same "
            "each time (a clock, dice or a query between steps). Bring the operation back, mark it as removed "
            "with ctx.removed(name, kind), or branch on ctx.get_version(name, latest)"
        )
        error.locations = tuple(locations)
        recorded = tuple(map(self._place, locations[:_MAX_RECORDED]))
        if kind is DivergenceKind.CHANGED:
            code = recorded[0]
        error.divergence = Divergence(
            kind=kind, scope=self.location, problem=problem, code=code, recorded=recorded, raised=raised
        )
        self._journal.stop(error)

    def _place(self, location: str) -> OperationAt:
        entry = self._journal.entry_at(location)
        return OperationAt(BLOCK if entry is None else entry.kind, location)
