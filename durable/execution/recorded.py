"""A pass that answers from the records of a run alone: it calls no function, asks no store, and writes nothing.

Owns the end of such a pass: at the first thing that the records do not say. The second replay of the test harness and
the check of histories against new code are passes of this kind.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

from durable.core.control_flow import ControlFlow
from durable.core.divergences import OperationAt
from durable.core.effects import Ask
from durable.core.journal import Event, Journal, Node
from durable.core.records import EntryKind, EntryRecord, Request, RunRecord
from durable.core.simple_operations import PeekTags
from durable.core.time_limits import History
from durable.execution.environment import Eviction
from durable.execution.host import PassHost
from durable.runtime import Runtime
from durable.store import Store


class NotRecorded(ControlFlow):
    """The records do not say how the code goes on."""


class RecordedHost(PassHost):
    """The host of a pass over the records of one run: each effect ends it with `NotRecorded`."""

    def __init__(self, run: RunRecord, history: History, at: Runtime) -> None:
        store = cast("Store", _Records(history))
        super().__init__(run, store, Eviction(), at, ())
        self.environment.emit = _ignore
        self.journal.limits = None  # what is past its deadline was not when it was recorded
        self.journal.request = Request.NONE

    def _end(self, *_args: Any, **_options: Any) -> NoReturn:
        raise NotRecorded

    calling = calling_here = save = save_atomically = wait = _end

    def ask(self, question: Ask) -> Any:
        # the entry that is to have the tags refuses to be made
        return {} if isinstance(question, PeekTags) else self._end()

    async def async_wait(self, _seconds: float) -> None:
        self._end()


class RefusingJournal(Journal):
    """A journal that ends the pass at the first operation that is not recorded.

    Except for those that are made to be inserted before others, and leave them as they are. What a branch of a fork has
    come to is noted as in a pass: it ends the branch, and the branches beside it go on.
    """

    _INSERTED = frozenset({EntryKind.REMOVED, EntryKind.VERSION_CHECK})
    _FORKS = frozenset({EntryKind.JOIN, EntryKind.RACE})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The operations that the code has come to and that are not recorded, or not to their end; one for each branch.
        self.not_answered: list[OperationAt] = []

    def create(self, scope: Node, segment: str, node: Node, kind: EntryKind, **columns: Any) -> EntryRecord:
        if kind not in self._INSERTED:
            self._refuse(kind, node.location)
        return super().create(scope, segment, node, kind, **columns)

    def mark(self, entry: EntryRecord, **columns: Any) -> None:
        if entry.kind not in self._INSERTED and not (entry.kind in self._FORKS and "status" not in columns):
            self._refuse(entry.kind, entry.location)
        super().mark(entry, **columns)

    def _refuse(self, kind: str, location: str) -> NoReturn:
        self.not_answered.append(OperationAt(kind, location))
        raise NotRecorded


def _ignore(event: Event) -> None:
    """Send nothing: no pass of a worker has come to it."""


class _Records:
    """The part of a store that a host needs: the records of one run."""

    def __init__(self, history: History) -> None:
        self._history = history

    def load(self, _run_id: str) -> History:
        return self._history
