"""Calls at a moment, unless they are called off before: what a timer for each would do, in one thread for all.

Almost all of them are called off, at once: that costs no wake-up of the thread. It ends when it has had nothing to watch for
a while, and begins anew when there is something. Knows nothing of what is called.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

__all__ = ["Deadline", "watch"]

logger = logging.getLogger("durable.worker")

_IDLE: Final = 5.0  # seconds
_MOST_ENDED: Final = 100  # watches that are over, and still in the heap, before they are looked for


@dataclass(slots=True, order=True)
class Deadline:
    """One call that is waited for; `moment` is by the monotonic clock."""

    moment: float
    number: int
    call: Callable[[], object] = field(compare=False)
    is_over: bool = field(default=False, compare=False)

    def end(self) -> None:
        """Call it off. It may be under way already."""
        self.is_over = True
        _watchdog.note_end()


class _Watchdog:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[Deadline] = []
        self._numbers = count()
        self._ended = 0
        self._is_served = False

    def watch(self, seconds: float, call: Callable[[], object]) -> Deadline:
        new = Deadline(time.monotonic() + seconds, next(self._numbers), call)
        with self._changed:
            heapq.heappush(self._watches, new)
            if not self._is_served:
                threading.Thread(target=self._serve, name="durable-timeouts", daemon=True).start()
                self._is_served = True
            elif self._watches[0] is new:
                self._changed.notify()
        return new

    def note_end(self) -> None:
        with self._changed:
            self._ended += 1
            if self._ended > _MOST_ENDED and self._ended > len(self._watches) // 2:
                self._watches = [each for each in self._watches if not each.is_over]
                heapq.heapify(self._watches)
                self._ended = 0

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._watches:
                    self._changed.wait(_IDLE)
                if not self._watches:
                    self._is_served = False
                    return
                first = self._watches[0]
                left = first.moment - time.monotonic()
                if left > 0 and not first.is_over:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                heapq.heappop(self._watches)
            if not first.is_over:
                try:
                    first.call()
                except Exception:  # without this thread no timeout of a branch would ever come again
                    logger.exception("a timeout of a branch could not be told")


_watchdog = _Watchdog()


def _forget() -> None:
    """In a forked child: the parent's thread is not here."""
    global _watchdog
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_forget)


def watch(seconds: float, call: Callable[[], object]) -> Deadline:
    """Have `call` called in another thread after so many seconds, unless the watch ends before. It must not raise."""
    return _watchdog.watch(seconds, call)
