"""Facts about a history without reading all of it: surveys for the plan of a replay, and outlines without values.

Owns the shapes. `durable.store.tables.surveys` queries a database; `survey_of` and `bare_entry` use a history in
memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from durable.core.entry_shapes import readable
from durable.core.records import EntryKind, EntryRecord, EntryStatus, Message
from durable.core.rewind.rewinding import Rewind


@dataclass(frozen=True, slots=True)
class Listed:
    """The first locations of some entries, in the order in which they began, and how many there are in all."""

    first: Sequence[str] = ()
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The entries that a replay deletes, and those that stay.

    Of the deleted entries: `steps` and `sends`; `compensable` are completed steps with a rollback handler, and starts
    of children that are compensated with their parent; `races`; `has_receipts` is False if none is of messages or of a
    loop; `has_loops`. `has_handlers`: a kept step has a rollback handler, or a kept start of children a rollback.
    `has_children`: some entry of the history is of a child.
    """

    deleted: Listed = field(default_factory=Listed)
    steps: Listed = field(default_factory=Listed)
    sends: Listed = field(default_factory=Listed)
    compensable: Listed = field(default_factory=Listed)
    kept: Listed = field(default_factory=Listed)
    races: Listed = field(default_factory=Listed)
    has_receipts: bool = True
    has_loops: bool = False
    has_handlers: bool = False
    has_children: bool = False


class Mark(tuple[int, ...]):
    """Numbers that change whenever an entry of the history begins, ends, fails or is undone."""

    __slots__ = ()


def mark_of(entries: Iterable[EntryRecord]) -> Mark:
    """Return the mark of a history in memory."""
    number = newest = attempts = ends = last = undone = running = 0
    for each in entries:
        number += 1
        newest = max(newest, each.ordinal)
        attempts += each.attempts
        running += each.status == EntryStatus.RUNNING
        undone += each.rollback_completed_at is not None
        if each.finished_ordinal is not None:
            ends += 1
            last = max(last, each.finished_ordinal)
    return Mark((number, newest, attempts, running, ends, last, undone))


def survey_of(history: Rewind, most: int) -> Survey:
    """Return the survey of a whole history in memory, after a rewind."""
    gone, kept = (sorted(each, key=lambda entry: entry.ordinal) for each in (history.deleted.values(), history))
    return Survey(
        deleted=listed(gone, most),
        steps=listed([each for each in gone if each.kind == EntryKind.STEP], most),
        sends=listed([each for each in gone if each.kind == EntryKind.SEND], most),
        compensable=listed([each for each in gone if each.is_compensable], most),
        kept=listed(kept, most),
        has_loops=any(each.kind == EntryKind.LOOP for each in gone),
        has_handlers=any("rollback" in each.data for each in kept),
        has_children=any(each.kind in (EntryKind.CHILD, EntryKind.MAP) for each in (*kept, *gone)),
    )


def listed(entries: Sequence[EntryRecord], most: int) -> Listed:
    """Return the locations of the first of these entries, and their number."""
    return Listed(tuple(each.location for each in entries[:most]), len(entries))


#: Kinds of entries whose data no plan needs, so that it is not read if it is long.
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
