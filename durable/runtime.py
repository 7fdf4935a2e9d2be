"""The objects that the running process works with: the store, the codec, the clock and the notifier.

Production has one runtime, made from the settings; a test harness replaces it. Nothing here decides anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from durable.codec import Codec, JsonCodec
from durable.codec.binding import decode_at, encode_at, rebound
from durable.conf import conf
from durable.core import clock, registry
from durable.core.effects import Call, Operation
from durable.core.places import Place
from durable.core.records import SavedDetails, StatusRecord, StepChunk
from durable.core.registry import MessageTypes, UnknownWorkflowError, WorkflowDefinition
from durable.core.scope import Scope
from durable.store import Store, store_for


def _write_later(_saved: SavedDetails) -> None:
    """Do nothing: the worker's lease manager writes saved details once a second."""


def send_chunk(chunk: StepChunk) -> None:
    """Send what a step emits to its readers, through Redis."""
    from durable.notifier import chunks  # few processes emit

    chunks.send(chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The objects and functions that one process works with.

    `notify` notifies workers that these queues have due runs, `notify_at` timers of a new deadline. `poll_wait` waits
    between two queries for a result. `after_commit` calls a function if and when the caller's transaction commits.

    `monotonic` gives seconds that no change of the clock affects.

    The other fields are for a harness; None leaves the settings in force. `sleep` waits within a pass, `on_call` is
    called before each call of a step's function or rollback handler, `on_operation` before each operation of a
    workflow's code, `on_save` when a step saves its progress, `on_status` when a step sets its run's status, and
    `find_workflow` finds workflows that are not registered. `roll_back_inside` rolls back what code has left open on a
    database connection beyond a depth of transactions and savepoints, inside a test's transaction. `schedules` collects
    the names of the schedules that were made or synchronised while the runtime is active: a harness ticks these.
    `chunks` collects what steps emit.
    """

    store: Store
    codec: Codec
    now: Callable[[], datetime]
    notify: Callable[[Iterable[str]], None]
    notify_at: Callable[[str, datetime], None]
    poll_wait: Callable[[float], None]
    after_commit: Callable[[Callable[[], None]], None]
    monotonic: Callable[[], float] = time.monotonic
    short_sleep: float | None = None
    divergence_grace: float | None = None
    sequential_branches: bool = False
    sleep: Callable[[float], None] | None = None
    on_call: Callable[[Call], None] | None = None
    on_operation: Callable[[Scope, str, Operation], None] | None = None
    on_save: Callable[[SavedDetails], None] = _write_later
    on_status: Callable[[StatusRecord], None] | None = None
    chunks: list[StepChunk] | None = None
    find_workflow: Callable[[str], WorkflowDefinition | None] | None = None
    roll_back_inside: Callable[[BaseDatabaseWrapper, int], None] | None = None
    schedules: set[str] | None = None

    def encode(self, value: object, what: str, place: Place) -> str:
        """Return `value` as codec text for `place`. Raises PayloadError."""
        return encode_at(self.codec, value, what, place)

    def decode(self, text: str | None, place: Place) -> Any:
        """Return the value of codec text recorded at `place`, None for None. Raises PayloadError."""
        return None if text is None else decode_at(self.codec, text, place)

    def messages_of(self, workflow: str) -> MessageTypes | None:
        """Return the messages that a workflow declares; None if it declares none, or this process does not know it."""
        try:
            return registry.get(workflow).messages
        except UnknownWorkflowError:
            found = None if self.find_workflow is None else self.find_workflow(workflow)
            return None if found is None else found.messages

    def copied(self, text: str, old: Place, new: Place) -> str:
        """Return the codec text for a copy at `new` of text recorded at `old`. Raises PayloadError."""
        return rebound(self.codec, text, old, new)


_installed: list[Runtime] = []
_lock = threading.Lock()


def current() -> Runtime:
    """Return the active runtime: the newest harness's, or production's."""
    return _installed[-1] if _installed else production()


def is_replaced() -> bool:
    """Return whether a harness is active."""
    return bool(_installed)


def activate(runtime: Runtime) -> None:
    with _lock:
        _installed.append(runtime)


def deactivate(runtime: Runtime) -> None:
    with _lock:
        _installed.remove(runtime)


def production() -> Runtime:
    """Return the runtime that the settings describe."""
    from durable.notifier import notify

    alias = conf.DATABASE
    store = store_for(alias)
    notify.learn_with(store.learn_queues)
    return Runtime(
        store=store,
        codec=_codec(conf.CODEC, conf.MAX_PAYLOAD_BYTES),
        now=clock.now,
        notify=lambda queues: notify.notify_on_commit(queues, using=alias),
        notify_at=lambda queue, moment: notify.notify_at_on_commit(queue, moment, using=alias),
        poll_wait=time.sleep,
        after_commit=lambda callback: notify.on_commit(callback, using=alias),
    )


@cache
def _codec(path: str, max_bytes: int) -> Codec:
    found: Any = import_string(path)
    if isinstance(found, type):
        found = found(max_bytes=max_bytes) if issubclass(found, JsonCodec) else found()
    codec: Codec = found
    return codec
