"""The entries of maps, as far as the journal and the verbs have to know them; `durable.core.maps` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from durable.core.child_entries import RESULT
from durable.core.records import EntryKind, EntryRecord, EntryStatus, WhenParentEnds

#: Marks the entry of a map whose cancelled children the next pass starts anew.
ANEW: Final = "anew"
#: In the entry of a map whose failed children the next pass recovers: who has asked for it (`by`), and how far it has
#: come.
AGAIN: Final = "again"
#: In the entry of a map whose lost children are replaced: those that were taken out of the group (`children`), and the
#: position up to which the lost ones were looked at (`after`).
REPLACED: Final = "replaced"
#: Marks the entry of a map none of whose children begins any more, while the open ones are cancelled with their
#: rollback.
CLOSED: Final = "closed"

#: In the rollback policy of a map: the children from this number on are compensated, and whether one had completed.
UNDONE_FROM: Final = "from"
UNDONE_SOME: Final = "some"


def group_of(entry: EntryRecord) -> str | None:
    """Return the id of the group that the entry of a map has made, if it has."""
    found: str | None = entry.data.get("group") if entry.kind == EntryKind.MAP else None
    return found


def started_number(entry: EntryRecord) -> int:
    """Return how many children the operation has started, whatever has become of them: 0 for one that starts none."""
    if entry.kind == EntryKind.MAP:
        return 0 if group_of(entry) is None else int(entry.data.get("created", 0))
    if entry.kind != EntryKind.CHILD or entry.data["action"] == RESULT or "refused" in entry.data:
        return 0
    return int(entry.data.get("child") is not None)


def open_group(entry: EntryRecord) -> str | None:
    """Return the group that goes with the entry if the operation is taken back: its results have not been read."""
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
    """Return the children that were taken out of the group and not replaced yet, as ids and generations by number."""
    children = entry.data.get(REPLACED, {}).get("children", {})
    return {int(number): (child_id, generation) for number, (child_id, generation) in children.items()}


def waiting_again(entry: EntryRecord, by: Mapping[str, Any]) -> EntryRecord:
    """Return the entry of a failed map as that of one that goes on.

    The map recovers its failed children, and starts its cancelled ones anew.
    """
    data = {name: value for name, value in continued(entry).items() if name not in ("failure", "ended")}
    data[AGAIN] = {"by": dict(by)}
    return replace(entry, status=EntryStatus.PENDING, error=None, last_attempt_at=None, data=data)


def continued(entry: EntryRecord) -> dict[str, Any]:
    """Return the data of the entry of a map whose children begin again, the cancelled ones anew."""
    data = {name: value for name, value in entry.data.items() if name != CLOSED}
    if REPLACED in data:  # the end of the parent has also cancelled what an earlier recovery had started
        data[REPLACED] = {"after": -1, "children": data[REPLACED]["children"]}
    return {**data, ANEW: True}
