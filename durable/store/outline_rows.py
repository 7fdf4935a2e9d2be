"""Reading the outline of a run (`durable.store.outline`) from a database.

The columns of values are not read at all. The engine's own data of an entry may hold values too: where it is long it is
read in batches of `BATCH_BYTES`, and what a plan does not need of it is dropped before the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from django.db.models import Case, F, TextField, When
from django.db.models.functions import Length
from django.db.models.lookups import LessThanOrEqual

from durable.core.entries import Entry, Message
from durable.models import Entry as EntryModel
from durable.models import QueueMessage
from durable.models.fields import load_json
from durable.store.outline import BARE_KINDS, bare_data
from durable.store.rows import ENTRY, MESSAGE

__all__ = ["BATCH_BYTES", "read"]

BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH: Final = 2_000  # rows
_SHORT: Final = 1_000  # characters of data that are read with the entry

_VALUES: Final = frozenset({"output", "arguments", "data", "error", "rollback_error"})
_NAMES: Final = [each.name for each in fields(Entry) if each.name not in _VALUES]
_COLUMNS: Final = [name if name in ENTRY.names else f"metadata__{name}" for name in _NAMES]
_MESSAGE_NAMES: Final = [name for name in MESSAGE.names if name not in ("body", "response")]


def read(alias: str, run_id: str) -> tuple[list[Entry], list[Message]]:
    """The run's entries by ordinal and its messages in order, without values."""
    return _entries(alias, run_id), _messages(alias, run_id)


def _entries(alias: str, run_id: str) -> list[Entry]:
    found = EntryModel.objects.using(alias).with_metadata_of(run_id).order_by("ordinal")
    entries: list[Entry] = []
    weights: list[tuple[int, int]] = []
    by_key: dict[int, Entry] = {}
    weight = Length("data")
    short = Case(When(LessThanOrEqual(weight, _SHORT), then=F("data")), output_field=TextField())
    for key, length, data, *row in found.values_list("pk", weight, short, *_COLUMNS):
        entry = Entry(**dict(zip(_NAMES, row, strict=True)))
        entries.append(entry)
        if data is not None:
            entry.data = bare_data(entry.kind, load_json(data))
        elif entry.kind not in BARE_KINDS:
            weights.append((key, length))
            by_key[key] = entry
    for keys in _batches(weights):
        rows = EntryModel.objects.using(alias).filter(pk__in=keys).order_by()
        for key, data in rows.values_list("pk", "data"):
            by_key[key].data = bare_data(by_key[key].kind, data)
    return entries


def _batches(weights: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The keys in batches of no more than BATCH_BYTES, or of one."""
    batch: list[int] = []
    total = 0
    for key, weight in weights:
        if batch and (total + weight > BATCH_BYTES or len(batch) >= _BATCH):
            yield batch
            batch, total = [], 0
        batch.append(key)
        total += weight
    if batch:
        yield batch


def _messages(alias: str, run_id: str) -> list[Message]:
    found = QueueMessage.objects.using(alias).filter(run_id=run_id).order_by("order")
    rows: Iterator[dict[str, Any]] = iter(found.values(*_MESSAGE_NAMES))
    return [Message(**row, body="") for row in rows]
