"""What the journal and the verbs need to know about the entries of children and maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from durable.core.names.renames import canonical, is_same
from durable.core.records import EntryKind, EntryRecord, EntryStatus, RunRecord, WhenParentEnds

#: The action of a child's entry: it starts the child and waits for it, only starts it, or only waits.
CALL: Final = "call"
START: Final = "start"
RESULT: Final = "result"

#: Marks the entry of a start that has to start a new child. It still names the earlier child, which is undone first.
ANEW: Final = "anew"

#: The kind of the failure of a wait that has reached its deadline.
TIMEOUT: Final = "timeout"
#: The kind of the failure of a wait that could never end; without a child, if it was refused before the start.
DEADLOCK: Final = "deadlock"


def is_to_start(entry: EntryRecord) -> bool:
    """Return True if the operation has not started its child yet, or has to start another one in its place."""
    return entry.data.get("child") is None or ANEW in entry.data


def started_anew(entry: EntryRecord) -> EntryRecord:
    """Return the entry of a start, changed so that it starts another child.

    With `rollback=True` the entry still names the earlier child, which the next pass, or a rollback before that, undoes
    first.
    """
    data = {**entry.data, ANEW: True} if "rollback" in entry.data else {**entry.data, "child": None}
    return replace(entry, data=data)


def started_children(entry: EntryRecord) -> list[str]:
    """Return the id of the child that the operation has started, as a list; empty if there is none."""
    has_started = entry.kind == EntryKind.CHILD and entry.data["action"] != RESULT and "refused" not in entry.data
    return [entry.data["child"]] if has_started and not is_to_start(entry) else []


def dropped_with(entry: EntryRecord) -> list[str]:
    """Return what is dropped with a deleted entry: the id of the child that it started, or the place of a loop.

    An entry that has to start a new child still owns the earlier one, which may run and hold the key until it is
    undone. The entries of a loop's older iterations are pruned, so their children are found by the loop's place. A
    place ends with "/", which no id contains.
    """
    if entry.kind == EntryKind.LOOP and entry.data.get("pruned"):
        return [f"{entry.location}/"]
    if entry.kind == EntryKind.CHILD and ANEW in entry.data and entry.data["action"] != RESULT:
        return [entry.data["child"]]
    return started_children(entry)


def taken_back(deleted: Iterable[EntryRecord]) -> list[str]:
    """Return where a recovery has taken back the start of children that are compensated with their parent.

    Their parent's compensation may have left nothing of them, and an operator may have recovered one since. So it is
    undone before another begins in its place (`is_taken_back`).
    """
    starts = (EntryKind.CHILD, EntryKind.MAP)
    return [entry.location for entry in deleted if entry.kind in starts and "rollback" in entry.data]


def is_taken_back(run: RunRecord, location: str) -> bool:
    """Return True if a recovery of the run has taken back what it started here last. A replay does not count."""
    noted = run.generations
    return location in noted or any(is_same(run.workflow, each, location) for each in noted)


def left_by_replay(run: RunRecord, deleted: Iterable[EntryRecord]) -> dict[str, int]:
    """Return the generations of the run after a replay that deletes these entries, and undoes no child."""
    begun = {canonical(run.workflow, each.location) for each in deleted if started_number(each)}
    noted = run.generations.items()
    return {each: number for each, number in noted if canonical(run.workflow, each) not in begun}


def divided(dropped: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the dropped children into ids, and places below which all open children are dropped."""
    given = list(dropped)
    return [each for each in given if not each.endswith("/")], tuple(each for each in given if each.endswith("/"))


def unread_children(entries: Iterable[EntryRecord]) -> list[str]:
    """Return the started children whose ends no entry has recorded yet, in the order of their starts."""
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
    """Return the entry of a failed operation, reset so that it is tried again.

    A wait continues with a new deadline. A start that was refused because its id or key was taken is repeated.
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


#: Marks the entry of a map whose cancelled children the next pass starts anew. In the entry of a map whose failed
#: children the next pass recovers: who asked for it (`by`), and the progress.
AGAIN: Final = "again"
#: In the entry of a map whose lost children are replaced: the children taken out of the group (`children`), and the
#: position up to which the search for lost ones has come (`after`).
REPLACED: Final = "replaced"
#: Marks the entry of a map that begins no more children, while the open ones are cancelled with their rollback.
CLOSED: Final = "closed"

#: In the rollback policy of a map: the children from this number on are compensated, and whether one had completed.
UNDONE_FROM: Final = "from"
UNDONE_SOME: Final = "some"


def group_of(entry: EntryRecord) -> str | None:
    """Return the id of the group that the entry of a map has made, or None."""
    found: str | None = entry.data.get("group") if entry.kind == EntryKind.MAP else None
    return found


def started_number(entry: EntryRecord) -> int:
    """Return how many children the operation has started, whatever their state now."""
    if entry.kind == EntryKind.MAP:
        return 0 if group_of(entry) is None else int(entry.data.get("created", 0))
    if entry.kind != EntryKind.CHILD or entry.data["action"] == RESULT or "refused" in entry.data:
        return 0
    return int(entry.data.get("child") is not None)


def open_group(entry: EntryRecord) -> str | None:
    """Return the group that is dropped if the operation is taken back, because its results were not read; else None."""
    is_left = entry.data.get("when_parent_ends") == WhenParentEnds.LEAVE
    return None if is_left or entry.status in (EntryStatus.COMPLETED, EntryStatus.EXHAUSTED) else group_of(entry)


def open_maps(entries: Iterable[EntryRecord]) -> list[EntryRecord]:
    """Return the maps whose groups have been made and whose results have not been read."""
    return [
        entry
        for entry in entries
        if group_of(entry) is not None and entry.status not in (EntryStatus.COMPLETED, EntryStatus.EXHAUSTED)
    ]


def taken_out(entry: EntryRecord) -> dict[int, tuple[str, int]]:
    """Return the children taken out of the group and not replaced yet: by number, their ids and generations."""
    children = entry.data.get(REPLACED, {}).get("children", {})
    return {int(number): (child_id, generation) for number, (child_id, generation) in children.items()}


def waiting_again(entry: EntryRecord, by: Mapping[str, Any]) -> EntryRecord:
    """Return the entry of a failed map, reset so that the map continues.

    The map then recovers its failed children and restarts its cancelled ones.
    """
    data = {name: value for name, value in continued(entry).items() if name not in ("failure", "ended")}
    data[AGAIN] = {"by": dict(by)}
    return replace(entry, status=EntryStatus.PENDING, error=None, last_attempt_at=None, data=data)


def continued(entry: EntryRecord) -> dict[str, Any]:
    """Return the entry data of a map that continues and restarts its cancelled children."""
    data = {name: value for name, value in entry.data.items() if name != CLOSED}
    if REPLACED in data:  # the end of the parent has also cancelled what an earlier recovery had started
        data[REPLACED] = {"after": -1, "children": data[REPLACED]["children"]}
    return {**data, ANEW: True}
