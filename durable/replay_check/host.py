"""The host of the replay of a recorded run.

It refuses every effect, and imports nothing that only a record asks for. Its contexts log nothing.
"""

from __future__ import annotations

from typing import Any, TypeVar

from durable.context import AsyncContext, Context
from durable.core.errors import ErrorInfo
from durable.core.location import escape, join
from durable.core.recorded_names import resolve_used
from durable.core.records import EntryRecord, EntryStatus
from durable.core.scope import SILENT, Scope
from durable.execution.recorded import RecordedHost, RefusingJournal

T = TypeVar("T")


class RecordsJournal(RefusingJournal):
    """Notes the branches that fail although nothing in their records has failed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.failed_branches: list[tuple[str, ErrorInfo]] = []

    def mark(self, entry: EntryRecord, **columns: Any) -> None:
        if entry.kind in self._FORKS and "data" in columns:
            before = entry.data["branches"]
            for name, now in columns["data"]["branches"].items():
                is_new = now["status"] == EntryStatus.FAILED and before.get(name) != now
                if is_new and not now["origins"]:
                    self.failed_branches.append((join(entry.location, escape(name)), ErrorInfo(*now["error"])))
        super().mark(entry, **columns)

    def forget(self) -> None:
        """Give up the history, which the frames of an ended pass would keep until the next collection of garbage."""
        self.root.children = None


class RecordsHost(RecordedHost):
    """Answers from the records, which anybody may have written; contexts log nothing."""

    journal_class = RecordsJournal
    journal: RecordsJournal

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.environment.resolve = resolve_used

    def sync_context(self, scope: Scope, driver: Any) -> Context:
        return _silent(super().sync_context(scope, driver))

    def async_context(self, scope: Scope, driver: Any) -> AsyncContext:
        return _silent(super().async_context(scope, driver))


def _silent(context: T) -> T:
    logged: Any = context
    logged.logger.logger = SILENT
    return context
