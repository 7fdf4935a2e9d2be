"""Read the outline of a run (`durable.store.outline`) from a database.

Columns of values are not read at all. The engine's own data of an entry may contain values too. Long data is read in
batches of a bounded size, and what a plan does not need is dropped before the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from django.db.models import Case, F, QuerySet, TextField, When
from django.db.models.lookups import LessThanOrEqual

from durable.core.records import EntryRecord, Message
from durable.models import Entry, QueueMessage
from durable.models.batches import ByteLength, in_batches
from durable.models.fields import load_json
from durable.models.history import EntryQuerySet
from durable.store.outline import BARE_KINDS, bare_data
from durable.store.rows import ENTRY, MESSAGE

_SHORT: Final = 1_000  # characters of data that are read with the entry

_VALUES: Final = frozenset({"output", "arguments", "data", "error", "rollback_error"})
_NAMES: Final = [each.name for each in fields(EntryRecord) if each.name not in _VALUES]
_COLUMNS: Final = [name if name in ENTRY.names else f"metadata__{name}" for name in _NAMES]
_MESSAGE_NAMES: Final = [name for name in MESSAGE.names if name not in ("body", "response")]


def read(alias: str, run_id: str) -> tuple[list[EntryRecord], list[Message]]:
    """Return the run's entries by ordinal and its messages in order, without values."""
    entries = entries_of(alias, Entry.objects.using(alias).filter(run=run_id))
    return entries, messages_of(QueueMessage.objects.using(alias).filter(run_id=run_id).order_by("order"))


def messages_of(rows: QuerySet[QueueMessage]) -> list[Message]:
    """Return these messages without values."""
    return [Message(**row, body="") for row in rows.values(*_MESSAGE_NAMES)]


def short_data(column: str = "data") -> Case:
    """Return an expression: the text of an entry's data where it is short, else NULL, to be read with `long_data`."""
    return Case(When(LessThanOrEqual(ByteLength(column), _SHORT), then=F(column)), output_field=TextField())


def long_data(alias: str, weighed: Iterable[tuple[int, int]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the data of entries by their keys, without values. `weighed` has the length of each."""
    for keys in in_batches(weighed):
        rows = Entry.objects.using(alias).filter(pk__in=keys).order_by()
        for key, kind, data in rows.values_list("pk", "kind", "data"):
            yield key, bare_data(kind, data)


def entries_of(alias: str, rows: EntryQuerySet) -> list[EntryRecord]:
    """Return these entries by ordinal, without values."""
    found = rows.with_metadata().order_by("ordinal")
    entries: list[EntryRecord] = []
    long: dict[int, EntryRecord] = {}
    weighed: list[tuple[int, int]] = []
    for key, weight, data, *row in found.values_list("pk", ByteLength("data"), short_data(), *_COLUMNS):
        entry = EntryRecord(**dict(zip(_NAMES, row, strict=True)))
        entries.append(entry)
        if data is not None:
            entry.data = bare_data(entry.kind, load_json(data))
        elif entry.kind not in BARE_KINDS:
            long[key] = entry
            weighed.append((key, weight))
    for key, bare in long_data(alias, weighed):
        long[key].data = bare
    return entries
