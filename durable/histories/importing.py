"""A history of a file as records of this project's database: values for its codec, and perhaps other ids."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

from durable import runtime
from durable.core.entry_shapes import check_shape
from durable.core.places import Place
from durable.core.records import EntryRecord, Message, RunRecord
from durable.core.replay import moved_entry, moved_message
from durable.histories.reading import StoredHistory
from durable.histories.records import ENTRY, MESSAGE, RUN
from durable.histories.values import PLAIN, Values

_encode: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def moved_history(history: StoredHistory, prefix: str = "") -> tuple[RunRecord, list[EntryRecord], list[Message]]:
    """Return the run, its entries and its messages for this project, the ids of the run and its messages with `prefix`.

    Times and random numbers of a run under another id stay those of its original. Raises PayloadError for a value that
    cannot be written for this project, and ValueError for an entry that durable does not write so.
    """
    at, old = runtime.current(), history.run
    for each in history.entries:
        try:
            check_shape(each)
        except ValueError as error:
            raise ValueError(f'the entry "{each.location}" is of another shape: {error}') from error
    new_id = f"{prefix}{old.id}"

    def copied(text: str, place: Place, new: Place) -> str:
        if history.values is Values.STORED:
            return at.copied(text, place, new)
        return at.encode(PLAIN.decode(text), f"the {new.field} to import", new)

    def own(text: str, field: str) -> str:
        return copied(text, Place(old.id, field), Place(new_id, field))

    ids = {each.id: f"{prefix}{each.id}" for each in history.messages}
    run = replace(
        old,
        id=new_id,
        input=own(old.input, "input"),
        output=None if old.output is None else own(old.output, "output"),
    )
    if prefix:
        run.seed, run.began_at = old.seed or old.id, old.began_at or old.created_at
    entries = [moved_entry(each, old.id, new_id, ids, copied) for each in history.entries]
    return run, entries, [moved_message(each, new_id, ids[each.id], copied) for each in history.messages]


def digest_of(history: StoredHistory) -> str:
    """Return a name of the content: 32 hexadecimal digits, the same for each export of the same records."""
    found = hashlib.sha256()
    lines: list[Any] = [RUN.data(history.run)]
    lines += [ENTRY.data(each) for each in history.entries]
    lines += [MESSAGE.data(each) for each in history.messages]
    if history.tags:
        lines += [history.tags, history.tags_at_start]
    for each in lines:
        found.update(_encode(each).encode())
    return found.hexdigest()[:32]
