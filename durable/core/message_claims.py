"""The inbox of a run during one pass: which of its messages a wait of this pass has claimed.

Branches look into the inbox at the same time, and must not receive the same message. A claim is held from the look that
found the message until no look is under way any more that could be older than the commit which took it out.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from durable.core.records import Message

__all__ = ["MessageClaims"]


class MessageClaims:
    """What the waits of one pass have claimed. For several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._uncommitted: set[str] = set()
        self._committed: set[str] = set()  # to be forgotten once nobody is looking
        self._looks = 0

    def uncommitted_count(self) -> int:
        """How many messages that lie in the inbox are claimed and perhaps not committed yet."""
        return len(self._uncommitted)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Around a look into the inbox and the claim of what it found."""
        with self._lock:
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                self._forget_committed()

    def claim(self, found: Iterable[Message], count: int) -> list[Message]:
        """Up to `count` of the messages, for one wait."""
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

    def committed(self, ids: Collection[str]) -> None:
        """These have been taken out of the inbox."""
        with self._lock:
            self._uncommitted.difference_update(ids)
            self._committed.update(self._held.intersection(ids))
            self._forget_committed()

    def _forget_committed(self) -> None:
        """A look that begins from now on does not see them, so they need not be known any more."""
        if not self._looks and self._committed:
            self._held -= self._committed
            self._committed.clear()
