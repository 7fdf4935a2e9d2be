"""The messages of a pass: those that its waits have claimed, and completable ones that its code has received.

Branches query the inbox at the same time, and must not receive the same message. So a claim outlasts the commit that
takes the message out, until no query that began before that commit is under way.

The wait's entry records for each message whether it is completed, in which scope, and when among the run's entries (an
ordinal). A scope's code learns of a completion when it completes the message itself, or when it has seen the end of the
loop, join, race or block in which that happened. That is at the same point in each pass, even if the record has the
completion before.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from durable.core.location import is_within
from durable.core.records import EntryRecord, Message


class MessageClaims:
    """The messages claimed by the waits of one pass. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._uncommitted: set[str] = set()
        self._committed: set[str] = set()  # forgotten once no query is under way
        self._looks = 0

    def uncommitted_count(self) -> int:
        """Return how many messages in the inbox are claimed and may not be committed yet."""
        return len(self._uncommitted)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Wrap a query of the inbox and the claims of the messages that it finds."""
        with self._lock:
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                self._forget_committed()

    def claim(self, found: Iterable[Message], count: int) -> list[Message]:
        """Claim up to `count` of the messages for one wait."""
        with self._lock:
            free = [each for each in found if each.id not in self._held][:count]
            ids = {each.id for each in free}
            self._held |= ids
            self._uncommitted |= ids
            return free

    def give_back(self, ids: Collection[str]) -> None:
        """Release claims: other waits may claim these messages again."""
        with self._lock:
            self._held.difference_update(ids)
            self._committed.difference_update(ids)

    def leave(self, ids: Collection[str]) -> None:
        """Release the claims of messages that the claiming wait does not receive."""
        with self._lock:
            self._held.difference_update(ids)
            self._uncommitted.difference_update(ids)

    def committed(self, ids: Collection[str]) -> None:
        """Note that a commit has taken these messages out of the inbox."""
        with self._lock:
            self._uncommitted.difference_update(ids)
            self._committed.update(self._held.intersection(ids))
            self._forget_committed()

    def _forget_committed(self) -> None:
        """Forget committed messages once no query is under way: a later query does not find them."""
        if not self._looks and self._committed:
            self._held -= self._committed
            self._committed.clear()


def record_of(wait: EntryRecord, message_id: str) -> dict[str, Any]:
    record: dict[str, Any] = next(each for each in wait.data["received"] if each["id"] == message_id)
    return record


class Receipts:
    """The received messages of one scope and, through `parent`, those of the scopes around it, shared by branch
    threads.
    """

    __slots__ = ("_completed", "_entries", "_parent")

    def __init__(self, parent: Receipts | None) -> None:
        self._parent = parent
        self._entries: dict[str, EntryRecord] = {}
        self._completed: set[str] = set()

    def add(self, wait: EntryRecord) -> None:
        """Note that the code has received the messages of a wait's entry."""
        for record in wait.data["received"]:
            self._entries[record["id"]] = wait

    def adopt(self, inner: Receipts) -> None:
        """Take over what the code of an inner scope has received and completed."""
        self._entries.update(inner._entries)
        self._completed.update(inner._completed)

    def complete(self, message_id: str) -> None:
        self._completed.add(message_id)

    def learn(self, location: str, but_not: str | None = None) -> None:
        """Note that the code has seen the end of `location`, or of everything in it except the iteration `but_not`,
        which begins now.
        """
        for receipts in self._chain():
            for wait in receipts._waits():
                for record in wait.data["received"]:
                    where = record.get("completed_in")
                    if where is None or not is_within(where, location):
                        continue
                    if but_not is None or not is_within(where, but_not):
                        self._completed.add(record["id"])

    def wait_for(self, message_id: str) -> EntryRecord | None:
        """Return the entry of the wait that received the message, in this scope or one around it; None for an unknown
        message.
        """
        return next((each._entries[message_id] for each in self._chain() if message_id in each._entries), None)

    def is_completed(self, message_id: str) -> bool:
        """Return True if the code in this scope knows that the message is completed."""
        return any(message_id in each._completed for each in self._chain())

    def completions(self) -> Iterator[tuple[str, int]]:
        """Yield where each message of this scope and of those around it was completed, with the ordinal."""
        for receipts in self._chain():
            for wait in receipts._waits():
                for record in wait.data["received"]:
                    if "completed_in" in record:
                        yield record["completed_in"], record["completed_order"]

    def uncompleted_messages(self) -> Iterator[tuple[EntryRecord, str]]:
        """Yield the waits of this scope that have uncompleted messages, with these messages."""
        for message_id, wait in self._entries.items():
            if not record_of(wait, message_id)["completed"]:
                yield wait, message_id

    def _waits(self) -> Collection[EntryRecord]:
        return {each.location: each for each in self._entries.values()}.values()

    def _chain(self) -> Iterator[Receipts]:
        receipts: Receipts | None = self
        while receipts is not None:
            yield receipts
            receipts = receipts._parent
