"""The messages of a run's inbox that waits of the current pass have claimed.

Branches query the inbox at the same time, and must not receive the same message. A claim is kept from the query that
found the message until no query is under way that may be older than the commit which took the message out.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from durable.core.records import Message


class MessageClaims:
    """The messages claimed by the waits of one pass. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._uncommitted: set[str] = set()
        self._committed: set[str] = set()  # forgotten once no query is under way
        self._looks = 0

    def uncommitted_count(self) -> int:
        """Return how many messages in the inbox are claimed and perhaps not committed yet."""
        return len(self._uncommitted)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Wrap a query of the inbox and the claim of the messages found."""
        with self._lock:
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                self._forget_committed()

    def claim(self, found: Iterable[Message], count: int) -> list[Message]:
        """Claim up to `count` of the messages, for one wait."""
        with self._lock:
            free = [each for each in found if each.id not in self._held][:count]
            ids = {each.id for each in free}
            self._held |= ids
            self._uncommitted |= ids
            return free

    def give_back(self, ids: Collection[str]) -> None:
        """Let other waits claim these again."""
        with self._lock:
            self._held.difference_update(ids)
            self._committed.difference_update(ids)

    def leave(self, ids: Collection[str]) -> None:
        """Let other waits claim these: the one that has claimed them does not receive them."""
        with self._lock:
            self._held.difference_update(ids)
            self._uncommitted.difference_update(ids)

    def committed(self, ids: Collection[str]) -> None:
        """Note that these have been taken out of the inbox."""
        with self._lock:
            self._uncommitted.difference_update(ids)
            self._committed.update(self._held.intersection(ids))
            self._forget_committed()

    def _forget_committed(self) -> None:
        """Forget committed messages while no query is under way: a later query does not find them."""
        if not self._looks and self._committed:
            self._held -= self._committed
            self._committed.clear()
