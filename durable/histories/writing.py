"""Write the history of a run of the database as the lines of a file, with any number of entries in a bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone

from durable import runtime
from durable.conf import conf
from durable.core.errors import RunNotFoundError
from durable.core.records import EntryRecord, Message, RunRecord
from durable.histories.records import ENTRY, FORMAT, MESSAGE, RUN
from durable.histories.values import Values, converted_entry, converted_message, converted_run, converted_tags
from durable.models import Entry, QueueMessage
from durable.models.rows import in_batches, weight
from durable.replay_check.read_only import snapshot

_AT_ONCE: Final = 1024 * 1024  # bytes of recorded text in memory at a time
_OF_ENTRY: Final = [each.name for each in fields(EntryRecord)]
_OWN: Final = frozenset(each.attname for each in Entry._meta.concrete_fields)
_OF_MESSAGE: Final = [each.name for each in fields(Message)]
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def written_history(run_id: str, values: Values = Values.STORED) -> Iterator[str]:
    """Yield the lines of the history of a run, without their ends: all of one moment, whatever the run does meanwhile.

    Raises RunNotFoundError, and PayloadError for a value that has to be read and cannot be. The lines are read in one
    transaction, which ends with the last one.
    """
    with snapshot(conf.DATABASE):
        run = runtime.current().store.get(run_id)
        if run is None:
            raise RunNotFoundError(run_id)
        first = {
            "durable_history": FORMAT,
            "exported_at": timezone.now().isoformat(),
            "values": values.value,
            "run": RUN.data(converted_run(run, values)),
        }
        yield _encode({**first, **_tags(run, values)})
        entries = messages = 0
        found: QuerySet[Any] = Entry.objects.using(conf.DATABASE).with_metadata_of(run_id)
        columns = ("output", "arguments", "data")
        for entry in _batched(found.select_related("metadata").order_by("ordinal"), columns, _entry):
            yield _encode({"entry": ENTRY.data(converted_entry(run, entry, values))})
            entries += 1
        found = QueueMessage.objects.using(conf.DATABASE).filter(run=run_id).order_by("order")
        for message in _batched(found, ("body", "response"), _message):
            yield _encode({"message": MESSAGE.data(converted_message(run, message, values))})
            messages += 1
        yield _encode({"end": {"entries": entries, "messages": messages}})


def _tags(run: RunRecord, values: Values) -> dict[str, dict[str, str]]:
    """Return the fields of the first line that have the tags; none of a run without tags."""
    store = runtime.current().store
    now = store.tags([run.id]).get(run.id)
    if now is None:
        return {}
    at_start = store.tags([run.id], at_start=True).get(run.id, {})
    return {"tags": converted_tags(run, now, values), "tags_at_start": converted_tags(run, at_start, values)}


def _batched(found: QuerySet[Any], columns: tuple[str, ...], record: Callable[[Any], Any]) -> Iterator[Any]:
    for keys in in_batches(found.values_list("pk", weight(*columns)).iterator(), _AT_ONCE):
        rows = list(found.filter(pk__in=keys))
        rows.reverse()
        while rows:
            yield record(rows.pop())


def _entry(row: Entry) -> EntryRecord:
    about = row.metadata
    values = {name: getattr(row if name in _OWN else about, name) for name in _OF_ENTRY}
    row._state.fields_cache.clear()  # break the cycle of an entry and its metadata
    return EntryRecord(**values)


def _message(row: QueueMessage) -> Message:
    return Message(**{name: getattr(row, name) for name in _OF_MESSAGE})
