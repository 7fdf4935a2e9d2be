"""A journal without a pass around it, and what is taken of it."""

from __future__ import annotations

from typing import Any

from durable.core.journal import Journal, Node
from durable.core.records import Batch, EntryKind, EntryRecord, EntryStatus, RunPatch, RunRecord
from tests.core.conftest import NOW


class Clock:
    """As much of an environment as a journal needs to make entries and batches."""

    build = ""

    def now(self) -> Any:
        return NOW


def entry(location: str, ordinal: int = 0, **columns: Any) -> EntryRecord:
    return EntryRecord(location=location, kind=EntryKind.STEP, ordinal=ordinal, created_at=NOW, **columns)


def journal(*entries: EntryRecord) -> Journal:
    run = RunRecord(id="run", workflow="w", queue="q", input="[]", created_at=NOW, state="running", fence=7)
    return Journal(run, entries, Clock())  # type: ignore[arg-type]  # it needs no more


def make(journal: Journal, location: str) -> EntryRecord:
    made = journal.create(journal.root, location, Node(location), EntryKind.STEP)
    journal.update(made, status=EntryStatus.COMPLETED)
    return made


def take(journal: Journal, run: RunPatch | None = None, only: str | None = None) -> Batch:
    batch = journal.take_batch(run, None, only=only)
    assert batch is not None
    return batch


def commit(journal: Journal, run: RunPatch | None = None) -> Batch:
    batch = take(journal, run)
    journal.mark_committed(batch)
    return batch
