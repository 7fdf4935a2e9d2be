"""A history and an inbox without values, from which replay plans are made, however large outputs and messages are.

Owns which values are left out. Must not read a database.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from durable.core.entry_shapes import readable
from durable.core.records import EntryKind, EntryRecord, Message

#: Kinds of entries whose data no plan needs, so that long data of them is not read.
BARE_KINDS: Final[Collection[str]] = frozenset({EntryKind.MESSAGE})

_FORKS: Final = frozenset({EntryKind.JOIN, EntryKind.RACE})
_OF_A_BRANCH: Final = ("status", "open")


def bare_data(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an entry without states of loops, outputs of branches and bodies of messages."""
    data = readable(kind, data)
    if kind == EntryKind.MESSAGE:
        return {name: value for name, value in data.items() if name != "received"}
    if kind == EntryKind.LOOP:
        return {name: value for name, value in data.items() if name != "state"}
    if kind in _FORKS:
        branches = {
            name: {each: branch[each] for each in _OF_A_BRANCH if each in branch}
            for name, branch in data.get("branches", {}).items()
        }
        return {**data, "branches": branches}
    return dict(data)


def bare_entry(entry: EntryRecord) -> EntryRecord:
    """Return the entry without output, arguments, errors, and the values in its data."""
    data = bare_data(entry.kind, entry.data)
    return replace(entry, output=None, arguments=None, data=data, error=None, rollback_error=None)


def bare_message(message: Message) -> Message:
    """Return the message without its body and its response."""
    return replace(message, body="", response=None)
