"""Evictions: how a worker tells a pass that it has to end.

Owns the flags that the threads of a worker set and that a pass reads. Must not renew leases: `durable.worker.leases`
does.
"""

from __future__ import annotations

import math
import threading
import time

# The reasons of an eviction after which the pass may write nothing more.
LEASE_LOST = "lease_lost"
COMMITS_LOST = "commits_lost"


class Eviction:
    """Tells a pass, from any thread, that it has to end.

    `lease_ends_at` (monotonic) is when the lease expires unless it is renewed. A process that was stopped for longer
    notices that by its own clock, even before the renewing thread has run again. `is_changing_fence` is True while the
    pass raises its own fence, when the lease may seem lost under the old fence.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        self.lease_ends_at = math.inf
        self.is_changing_fence = False
        #: The operator's request of the run, as last read from the database.
        self.asked = ""

    @property
    def requested(self) -> bool:
        """True if the pass has to end."""
        return self._event.is_set() or self._is_past_lease()

    @property
    def is_lost(self) -> bool:
        """True if the pass may write nothing more: another worker may have claimed the run, or commits are lost."""
        return self.reason in (LEASE_LOST, COMMITS_LOST) or self._is_past_lease()

    def _is_past_lease(self) -> bool:
        return time.monotonic() >= self.lease_ends_at

    @property
    def why(self) -> str:
        """The reason for which the pass has to end, or else the operator's request; "" for none."""
        return self.reason or (LEASE_LOST if self._is_past_lease() else self.asked)

    def request(self, reason: str) -> None:
        """End the pass at its next operation."""
        self.reason = self.reason or reason
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until the pass has to end."""
        self._event.wait(seconds)
