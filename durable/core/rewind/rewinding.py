"""Going back in a history: which entries are deleted, and which ones around them are reopened.

Shared by recovery and replay. Entries are replaced, never changed in place.

`Rewind` deletes entry by entry, and notes the deleted regions. With these, a database counts the deleted entries
(`durable.store.tables.surveys`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from durable.core.children.entries import (
    UNDONE_FROM,
    UNDONE_SOME,
    continued,
    dropped_with,
    group_of,
    open_maps,
    started_anew,
    started_children,
)
from durable.core.location import escape, is_within, parent
from durable.core.records import (
    NOTHING,
    EntryKind,
    EntryRecord,
    EntryStatus,
    Message,
    MessageState,
    RunChange,
    RunPatch,
    RunRecord,
    TagChange,
)
from durable.core.tags import rewound


class Region(NamedTuple):
    """The entries at and below `within` that began after the ordinal `after`, except those at and below `beside`.

    "" as `within` is the whole history, "" as `beside` nothing.
    """

    within: str
    after: int = -1
    beside: str = ""

    def covers(self, location: str, ordinal: int) -> bool:
        return (
            ordinal > self.after
            and (not self.within or is_within(location, self.within))
            and not (self.beside and is_within(location, self.beside))
        )

    def has_all_of(self, location: str) -> bool:
        """Return True if every entry at and below the location is in the region, whenever it began."""
        return self.after < 0 and not self.beside and (not self.within or is_within(location, self.within))


def simplified(regions: Iterable[Region]) -> list[Region]:
    """Return fewer or simpler regions that contain the same entries; those that compare ordinals come first.

    A region's exception can be dropped if another region contains the excepted entries.
    """
    every = list(dict.fromkeys(regions))
    found = [
        region._replace(beside="")
        if region.beside and any(each.has_all_of(region.beside) for each in every)
        else region
        for region in every
    ]
    return sorted(dict.fromkeys(found), key=lambda region: (bool(region.within), bool(region.beside)))


FORKS = (EntryKind.JOIN, EntryKind.RACE)

#: The columns to reset in an entry that is unfinished again.
UNFINISHED: dict[str, Any] = {
    "status": EntryStatus.RUNNING,
    "completed_at": None,
    "finished_ordinal": None,
    "output": None,
}


def first_try(policy: dict[str, Any]) -> dict[str, Any]:
    """Return the policy of a rollback handler with all its attempts restored."""
    return {**policy, "attempts": 0, "uncounted": 0, "retry_at": None}


def with_children_to_undo(entry: EntryRecord) -> dict[str, Any]:
    """Return the entry data of a child's or map's start, without the note that a rollback has found nothing to undo.

    The next rollback looks again, because the children may have been recovered.
    """
    forgotten = (NOTHING, UNDONE_FROM, UNDONE_SOME)
    policy = {name: value for name, value in entry.data["rollback"].items() if name not in forgotten}
    return {**entry.data, "rollback": policy}


class Rewind:
    """A run's entries, with those changed and deleted. Iterates over the kept ones in the order in which they began.

    `regions` contain exactly the deleted entries. They depend only on the entries around a place, not on which others
    were given.
    """

    def __init__(self, entries: Iterable[EntryRecord]) -> None:
        self.kept = {entry.location: entry for entry in entries}
        self.changed: dict[str, EntryRecord] = {}
        self.deleted: dict[str, EntryRecord] = {}
        self.regions: list[Region] = []
        for entry in self:
            if NOTHING in entry.data.get("rollback", ()):
                self.put(entry, data=with_children_to_undo(entry))

    def __iter__(self) -> Iterator[EntryRecord]:
        return iter(list(self.kept.values()))

    def get(self, location: str) -> EntryRecord | None:
        return self.kept.get(location)

    def put(self, entry: EntryRecord, **columns: Any) -> None:
        changed = replace(entry, **columns)
        self.kept[entry.location] = self.changed[entry.location] = changed

    def change(self, run: RunRecord, patch: RunPatch, messages: Callable[[], Sequence[Message]]) -> RunChange:
        """Return the verb's change of the run. Queries the inbox only if an entry is deleted."""
        inbox = messages() if self.deleted else ()
        return RunChange(
            run=patch,
            entries=list(self.changed.values()),
            deleted=list(self.deleted),
            unreceive=sorted({each.received_by for each in self.returned(inbox)}),
            retracted=sorted(self.sent_again(run.id, inbox)),
            dropped_children=self.dropped_children(),
            dropped_groups=self.dropped_groups(),
            tags=TagChange(run.created_at, tags) if (tags := self.tags()) else None,
        )

    def tags(self) -> dict[str, str | None]:
        """Return the tag values to restore, because deleted entries had replaced them; None for a tag that did not
        exist.
        """
        return rewound(self.kept.values(), self.deleted.values())

    def is_gone(self, location: str) -> bool:
        """Return True if the location is deleted, by itself or with the loop or race that pruned it."""
        while location:
            if location in self.deleted:
                return True
            location = parent(location)
        return False

    def returned(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages whose receipt is deleted, so that they are pending again."""
        return [each for each in messages if each.received_by and self.is_gone(each.received_by)]

    def sent_again(self, run_id: str, messages: Sequence[Message]) -> set[str]:
        """Return the messages that the run sent to itself and will send again, except those that a kept wait has
        received.
        """
        sent = {
            entry.data["message_id"]
            for entry in self.deleted.values()
            if entry.kind == EntryKind.SEND and entry.data["to"] == run_id
        }
        returned = {each.id for each in self.returned(messages)}
        return {
            each.id
            for each in messages
            if each.id in sent and (each.state == MessageState.PENDING or each.id in returned)
        }

    def start_anew(self, children: Collection[str]) -> None:
        """Let the kept operations that started these children start new ones."""
        for entry in self if children else ():
            if not set(started_children(entry)).isdisjoint(children):
                self.put(started_anew(entry))

    def start_lost_anew(self) -> None:
        """Let kept maps whose results were not read start new children in place of their cancelled ones."""
        for entry in open_maps(self):
            self.put(entry, data=continued(entry))

    def dropped_groups(self) -> list[str]:
        """Return the groups of children whose maps are deleted."""
        return [group for entry in self.deleted.values() if (group := group_of(entry)) is not None]

    def dropped_children(self) -> list[str]:
        """Return the children whose starts are deleted, and the places of deleted loops (`dropped_with`)."""
        return [dropped for entry in self.deleted.values() for dropped in dropped_with(entry)]

    def rewind_to(self, location: str, ordinal: int) -> None:
        """Delete everything at `location`, which began at `ordinal`, and what the scopes around it did after that."""
        self.delete(location)
        self.drop_later(location, ordinal)
        self.reopen_around(location)

    def around(self, location: str) -> EntryRecord | None:
        """Return the outermost loop or race around `location`, which can only be restarted whole."""
        segments = location.split("/")
        for depth in range(1, len(segments)):
            entry = self.kept.get("/".join(segments[:depth]))
            if entry is not None and entry.kind in (EntryKind.LOOP, EntryKind.RACE):
                return entry
        return None

    def drop_later(self, location: str, ordinal: int) -> None:
        """Delete what came later in the scopes around `location`. Other branches of a fork do not count as later."""
        segments = location.split("/")
        for depth in range(len(segments)):
            scope = "/".join(segments[:depth])
            around = self.kept.get(scope)
            if around is not None and around.kind in FORKS:
                continue
            # the entries inside of an entry began after it, and so are deleted with it
            self._drop(Region(scope, ordinal, "/".join(segments[: depth + 1])))

    def delete(self, location: str) -> None:
        self._drop(Region(location))

    def _drop(self, region: Region) -> None:
        self.regions.append(region)
        for entry in self:
            if region.covers(entry.location, entry.ordinal):
                self._forget(entry.location)

    def _forget(self, location: str) -> None:
        self.deleted[location] = self.kept.pop(location)
        self.changed.pop(location, None)

    def reopen_around(self, location: str) -> None:
        """Reopen the entries around `location`: a join runs the branch again, a loop or race is no longer complete."""
        segments = location.split("/")
        for depth in range(1, len(segments)):
            around = self.kept.get("/".join(segments[:depth]))
            if around is None or around.kind not in (*FORKS, EntryKind.LOOP):
                continue
            data = around.data
            if around.kind in FORKS:
                branches = {
                    name: {"status": "pending"} if escape(name) == segments[depth] else status
                    for name, status in data["branches"].items()
                }
                data = {**data, "branches": branches}
                if around.kind == EntryKind.RACE:
                    data["winner"] = None
            self.put(around, data=data, **UNFINISHED)
