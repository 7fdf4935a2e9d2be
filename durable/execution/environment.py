"""The environment of one pass: what the engine is given from outside (`durable.core.journal.Environment`).

Owns the clock, the codec and the limits of a pass. Must not write to the store: `durable.execution.commits` does.

Evictions: how a worker tells a pass that it has to end.

Owns the flags that the threads of a worker set and that a pass reads. Must not renew leases: `durable.worker.leases`
does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from durable.codec.binding import binding, encode_at, rebound, without_limit
from durable.conf import conf
from durable.core.ids import new_id
from durable.core.message_types import MessageTypes
from durable.core.names.recorded_names import resolve_name
from durable.core.places import Place
from durable.core.records import RunRecord
from durable.execution.events import PassEvents
from durable.execution.open_transactions import OpenTransactions
from durable.runtime import Runtime
from durable.tag_hashes import stored_tags

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


class PassEnvironment:
    """The environment of one pass of `run`."""

    def __init__(
        self,
        run: RunRecord,
        at: Runtime,
        *,
        eviction: Eviction,
        transactions: OpenTransactions,
        events: PassEvents,
        mistakes: tuple[type[Exception], ...],
    ) -> None:
        self._run = run
        self._codec = at.codec
        self._binding = binding(at.codec)
        self._eviction = eviction
        self.worker = run.worker
        self.build = conf.build
        self.short_sleep = conf.SHORT_SLEEP if at.short_sleep is None else at.short_sleep
        self.step_timeout = conf.STEP_TIMEOUT
        self.max_uncounted_retries = conf.MAX_UNCOUNTED_RETRIES
        self.mistakes = mistakes
        self.now: Callable[[], datetime] = at.now
        self._monotonic = at.monotonic
        self._began = at.monotonic()
        self.emit = events.emit
        self.messages_of: Callable[[str], MessageTypes | None] = at.messages_of
        self.resolve: Callable[[str], Callable[..., Any]] = resolve_name
        self.on_save = at.on_save
        self.stored_tags: Callable[[Mapping[str, str]], dict[str, str]] = stored_tags
        self.is_in_transaction = transactions.is_open

    def encode(
        self,
        value: Any,
        what: str,
        field: str,
        where: str,
        of_run: str | None = None,
        *,
        is_collected: bool = False,
    ) -> str:
        if is_collected:
            return encode_at(without_limit(self._codec), value, what, Place(of_run or self._run.id, field, where))
        if self._binding is None:
            return self._codec.encode(value, what=what)
        return self._binding.encode(value, what=what, place=Place(of_run or self._run.id, field, where))

    def decode(self, text: str | None, field: str, where: str) -> Any:
        if text is None:
            return None
        if self._binding is None:
            return self._codec.decode(text)
        return self._binding.decode(text, place=Place(self._run.id, field, where))

    def adopt(self, text: str, run_id: str, where: str) -> str:
        return rebound(self._codec, text, Place(run_id, "output"), Place(self._run.id, "output", where))

    def decode_input(self) -> Any:
        """Return a fresh copy of the run's input, `{"args": [...], "kwargs": {...}}`. Raises PayloadError."""
        what = f"the input of {self._run.workflow}"
        if self._binding is None:
            return self._codec.decode(self._run.input, what=what)
        return self._binding.decode(self._run.input, what=what, place=Place(self._run.id, "input"))

    def worked(self) -> float:
        return self._monotonic() - self._began

    def is_evicted(self) -> bool:
        return self._eviction.requested

    def is_asked(self) -> bool:
        return bool(self._eviction.asked)

    def eviction_reason(self) -> str:
        return self._eviction.why

    def new_id(self) -> str:
        return new_id()
