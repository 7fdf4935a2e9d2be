"""Threads that are kept for the next piece of work, for as long as a user of them says.

Owns which threads are idle, and until when. Must not know what they do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class _Thread(Protocol):
    def end(self) -> None:
        """End the thread, which is idle, and wait for that."""


T = TypeVar("T", bound=_Thread)


@dataclass(slots=True)
class _State(Generic[T]):
    """Whether threads are kept, and the idle ones."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    idle: list[T] = field(default_factory=list)


class KeptThreads(Generic[T]):
    """Idle threads of one kind, within `keep`. A forked child has none: its parent's threads do not run there."""

    def __init__(self) -> None:
        self._state: _State[T] = _State()
        self._inherited: list[_State[T]] = []
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._inherited.append(self._state)  # what its threads own is shared with the parent: nothing may close it here
        self._state = _State()

    @property
    def are_kept(self) -> bool:
        """Whether some block of `keep` is open in this process."""
        return self._state.depth > 0

    def take(self) -> T | None:
        """Return an idle thread, which belongs to the caller from then on; None if there is none."""
        with self._state.lock:
            return self._state.idle.pop() if self._state.idle else None

    def give_back(self, thread: T) -> bool:
        """Keep the thread. Return False if threads are not kept: the caller ends it."""
        with self._state.lock:
            if self._state.depth:
                self._state.idle.append(thread)
            return self._state.depth > 0

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Keep threads within the block. At its end, end the idle ones and wait for that."""
        state = self._state
        with state.lock:
            state.depth += 1
        try:
            yield
        finally:
            if state.pid == os.getpid():  # else this is a child that was forked within the block
                self._leave(state)

    def _leave(self, state: _State[T]) -> None:
        with state.lock:
            state.depth -= 1
            ended = [] if state.depth else state.idle
            if not state.depth:
                state.idle = []
        for thread in ended:
            thread.end()
