"""The flag that says whether this worker process is to stop, and the queues that are notified of it.

Owns one flag. It is set in signal handlers, which may interrupt the main thread anywhere. So nothing here takes a lock,
and listeners are `SimpleQueue`s, whose `put` is reentrant.

Delays of a worker before it tries again what an outage has prevented.
"""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue
from typing import Final


class ShutdownFlag:
    """A request to stop that may be made in a signal handler. Once `requested` is True it stays True, until `clear`."""

    def __init__(self) -> None:
        self.requested = False
        self._listeners: tuple[SimpleQueue[str], ...] = ()

    def request(self) -> None:
        """Request a stop: passes end at their next operation."""
        self.requested = True
        for listener in self._listeners:
            listener.put("stop")

    def clear(self) -> None:
        """Withdraw the request. For tests, and for a process forked from a stopping one."""
        self.requested = False

    def listen(self, listener: SimpleQueue[str]) -> None:
        """Put "stop" into `listener` when a stop is requested, or at once if it was requested before."""
        self._listeners = (*self._listeners, listener)
        if self.requested:
            listener.put("stop")

    def forget(self, listener: SimpleQueue[str]) -> None:
        """Stop notifying `listener`."""
        self._listeners = tuple(each for each in self._listeners if each is not listener)

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a stop is requested."""
        listener: SimpleQueue[str] = SimpleQueue()
        self.listen(listener)
        try:
            with contextlib.suppress(Empty):
                listener.get(timeout=seconds)
        finally:
            self.forget(listener)


#: The flag of this process.
stop = ShutdownFlag()


# Seconds until the next try while the database or Redis is unreachable. A second late is what due runs may be anyway
# (MAX_WAIT of the Scheduler), and a server that restarts is not disturbed by a try a second from each process.
RETRY: Final = 1.0
