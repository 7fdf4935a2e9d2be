"""A store in memory that takes part in Django's transactions: for tests of code that uses both.

What happens to the store inside `transaction.atomic()` is undone when that block, or one around it, rolls back, as in a
database. Django shows a rollback only by dropping the callbacks that were given to `on_commit` meanwhile. So the store
registers a callback in each savepoint in which it is used, keeps a snapshot of its earlier content, and checks at its
next use what became of the callback.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from django.db import connections, transaction

from durable.store.memory.store import MemoryStore, Tables
from durable.store.transactions import committed_or_raised


class TransactionalMemoryStore(MemoryStore):
    """A `MemoryStore` that follows the transactions of one database."""

    def __init__(self, using: str) -> None:
        super().__init__()
        self.using = using
        self._notes: list[_Snapshot] = []
        self._lock = _FollowingLock(self)

    def follow(self) -> None:
        """Undo what was rolled back since the last use, and keep a snapshot before the next change."""
        if self._notes:
            self._forget_what_has_ended()
        connection = connections[self.using]
        if not connection.in_atomic_block:
            return
        here = _Place(id(connection), tuple(connection.savepoint_ids))
        if not any(note.place == here for note in self._notes):
            self._notes = _without_released(self._notes, here)
        if not any(note.place == here for note in self._notes):
            self._notes.append(_Snapshot(here, self._tables(), _RollbackProbe(self.using)))

    @contextmanager
    def _taken_back_if_refused(self) -> Iterator[str | None]:
        with ExitStack() as around:
            alias: str | None = self.using
            try:
                around.enter_context(committed_or_raised(self.using))
            except Exception:  # noqa: BLE001  # whatever forbids it: a test without a database: the function may do without as well
                alias = None
            self.follow()
            around.enter_context(super()._taken_back_if_refused())
            yield alias

    def _forget_what_has_ended(self) -> None:
        for number, note in enumerate(self._notes):
            if note.fate.is_rolled_back:
                self._put_back(note.tables)
                del self._notes[number:]  # later changes were made on top of it
                break
        self._notes = [note for note in self._notes if not note.fate.is_committed]


class _FollowingLock:
    """The store's lock. Acquiring it first brings the store up to date with Django's transactions."""

    def __init__(self, store: TransactionalMemoryStore) -> None:
        self._store = store
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._store.follow()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@dataclass(frozen=True, slots=True)
class _Place:
    """The open savepoints of a connection, the outermost first."""

    connection: int
    savepoints: tuple[str | None, ...]

    def within(self, other: _Place) -> _Place:
        """Return this place without the savepoints that are no longer open in `other`."""
        if self.connection != other.connection:
            return self
        open_ones = 0
        for mine, theirs in zip(self.savepoints, other.savepoints, strict=False):
            if mine != theirs:
                break
            open_ones += 1
        return replace(self, savepoints=self.savepoints[:open_ones])


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The content of the store when it was first used at a place."""

    place: _Place
    tables: Tables
    fate: _RollbackProbe


def _without_released(notes: list[_Snapshot], here: _Place) -> list[_Snapshot]:
    """Return the snapshots with those of released savepoints moved to the enclosing place; only the oldest of each
    place.
    """
    kept: dict[_Place, _Snapshot] = {}
    for note in notes:
        place = note.place.within(here)
        kept.setdefault(place, replace(note, place=place))
    return list(kept.values())


class _RollbackProbe:
    """Detect whether the open transaction committed or rolled back.

    Django drops on_commit callbacks on rollback, so a dead weak reference means rollback.
    """

    __slots__ = ("_callback", "is_committed")

    def __init__(self, using: str) -> None:
        self.is_committed = False
        callback = _Callback(self)
        self._callback = weakref.ref(callback)
        transaction.on_commit(callback, using=using)

    @property
    def is_rolled_back(self) -> bool:
        return not self.is_committed and self._callback() is None


class _Callback:
    __slots__ = ("__weakref__", "_fate")

    def __init__(self, fate: _RollbackProbe) -> None:
        self._fate = fate

    def __call__(self) -> None:
        self._fate.is_committed = True
