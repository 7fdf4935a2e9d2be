"""The entries of children, as far as the journal and the verbs know them; `durable.core.children` makes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from durable.core.records import EntryKind, EntryRecord, EntryStatus

#: What an entry of a child is: the start of one and the wait for it, the start alone, or the wait alone.
CALL: Final = "call"
START: Final = "start"
RESULT: Final = "result"

#: Marks the entry of a start that is made anew, and still names the child before: what that has done is undone first.
ANEW: Final = "anew"

#: The kind of the failure of a wait that has reached its deadline.
TIMEOUT: Final = "timeout"
#: The kind of the failure of a wait that could never end; without a child, if it was refused before the start.
DEADLOCK: Final = "deadlock"


def is_to_start(entry: EntryRecord) -> bool:
    """Return True if the operation has not started its child yet, or starts another one instead of it."""
    return entry.data.get("child") is None or ANEW in entry.data


def started_anew(entry: EntryRecord) -> EntryRecord:
    """Return the entry of a start as that of one that starts another child.

    One with `rollback=True` still names the child before: its next pass, or a rollback before that, undoes what is
    left.
    """
    data = {**entry.data, ANEW: True} if "rollback" in entry.data else {**entry.data, "child": None}
    return replace(entry, data=data)


def started_children(entry: EntryRecord) -> list[str]:
    """Return the child that the operation has started, if it has: it goes with its entry."""
    has_started = entry.kind == EntryKind.CHILD and entry.data["action"] != RESULT and "refused" not in entry.data
    return [entry.data["child"]] if has_started and not is_to_start(entry) else []


def dropped_with(entry: EntryRecord) -> list[str]:
    """Return what is dropped when the entry is taken back: the child that it has started, or the place of a loop.

    A start that is made anew still has the child before, which may go on, and hold the key, until it is undone.
    The entries of a loop's older iterations are gone: their children are those that were started below its place.
    A place ends with "/", which no id contains.
    """
    if entry.kind == EntryKind.LOOP and entry.data.get("pruned"):
        return [f"{entry.location}/"]
    if entry.kind == EntryKind.CHILD and ANEW in entry.data and entry.data["action"] != RESULT:
        return [entry.data["child"]]
    return started_children(entry)


def divided(dropped: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the ids of the dropped children, and the places below which all open ones are dropped."""
    given = list(dropped)
    return [each for each in given if not each.endswith("/")], tuple(each for each in given if each.endswith("/"))


def unread_children(entries: Iterable[EntryRecord]) -> list[str]:
    """Return the children that were started and whose ends no entry has recorded, in the order of their starts."""
    started: dict[str, None] = {}
    read: set[str] = set()
    for entry in entries:
        started.update(dict.fromkeys(started_children(entry)))
        if entry.kind == EntryKind.CHILD and entry.data["action"] != START and _has_read(entry):
            read.add(entry.data.get("child", ""))
    return [each for each in started if each not in read]


def waits_for(entry: EntryRecord, child_id: str) -> bool:
    """Return True if the operation, which has not ended, waits for this child."""
    return entry.kind == EntryKind.CHILD and entry.data["action"] != START and entry.data.get("child") == child_id


def _has_read(entry: EntryRecord) -> bool:
    if entry.status == EntryStatus.EXHAUSTED:
        return entry.data.get("failure", {}).get("kind") not in (TIMEOUT, DEADLOCK)
    return entry.status == EntryStatus.COMPLETED and "refused" not in entry.data


def begun_again(entry: EntryRecord) -> EntryRecord:
    """Return the entry of a failed operation as that of one that is tried again.

    A wait goes on, with a deadline of its own; a start that was refused because its id or key was taken is made again.
    """
    forgotten = {"failure", "deadline"} | ({"refused", "of_key", "child"} if "refused" in entry.data else set())
    data = {name: value for name, value in entry.data.items() if name not in forgotten}
    return replace(
        entry,
        status=EntryStatus.PENDING,
        error=None,
        last_attempt_at=None,
        completed_at=None,
        finished_ordinal=None,
        data=data,
    )
