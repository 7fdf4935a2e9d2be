"""Call functions at a given time, unless they are cancelled before: one thread in place of a timer for each.

Owns that thread. Nearly all calls are cancelled soon, which does not wake the thread. The thread ends after some time
without calls, and starts again when there is one. Must not know the functions that it calls.
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

logger = logging.getLogger("durable.worker")

_IDLE: Final = 5.0  # seconds without calls after which the thread ends
_MOST_ENDED: Final = 100  # cancelled calls still in the heap, from which on they are removed


@dataclass(slots=True, order=True)
class Deadline:
    """One scheduled call; `moment` is monotonic."""

    moment: float
    number: int
    call: Callable[[], object] = field(compare=False)
    is_over: bool = field(default=False, compare=False)

    def end(self) -> None:
        """Cancel the call. It may be under way already."""
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
                except Exception:  # without this thread no timeout of a branch would ever happen again
                    logger.exception("the timeout of a branch could not be raised")


_watchdog = _Watchdog()


def _forget() -> None:
    """In a forked child, forget the parent's thread, which does not run here."""
    global _watchdog
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_forget)


def watch(seconds: float, call: Callable[[], object]) -> Deadline:
    """Call `call` in another thread after `seconds`, unless the deadline is ended before. It must not raise."""
    return _watchdog.watch(seconds, call)
