"""Whether this worker process was told to stop, and who is to hear of it.

Owns one flag. It is set from signal handlers, which may interrupt the main thread anywhere: so nothing here takes a
lock, and listeners are `SimpleQueue`s, whose `put` is made for that.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["ShutdownFlag", "stop"]


class ShutdownFlag:
    """A stop that can be requested from a signal handler.

    - `requested`: once True it stays so, until `clear`.
    - `reachable`: a signal that tells RQ's worker to stop sets this flag directly; without it the shutdown has to be
      looked up in Redis.
    - `beat`: keeps RQ's records of worker and job alive during a long job; None where RQ sees to that itself.
    """

    def __init__(self) -> None:
        self.requested = False
        self.reachable = False
        self.beat: Callable[[], None] | None = None
        self._listeners: tuple[SimpleQueue[str], ...] = ()

    def request(self) -> None:
        """Stop at the next operation."""
        self.requested = True
        for listener in self._listeners:
            listener.put("stop")

    def clear(self) -> None:
        """Forget the request; for tests, and for a process that is forked from one that was told to stop."""
        self.requested = False

    def listen(self, listener: SimpleQueue[str]) -> None:
        """Put "stop" into `listener` when a stop is requested; at once if it has been."""
        self._listeners = (*self._listeners, listener)
        if self.requested:
            listener.put("stop")

    def forget(self, listener: SimpleQueue[str]) -> None:
        """No longer tell `listener`."""
        self._listeners = tuple(each for each in self._listeners if each is not listener)


#: The stop of this process.
stop = ShutdownFlag()
