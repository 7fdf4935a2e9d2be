"""Stand-ins for what workflow code starts and sends by itself, between its operations, in a replay.

Both are allowed with an id: each pass does it again, and finds what the first one has done. A replay takes it for done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final, cast

from durable import runtime
from durable.core.records import Message, OutgoingMessage, RunRecord
from durable.execution.recorded import NotRecorded
from durable.runtime import Runtime
from durable.store import Store

_READS: Final = frozenset(
    {
        *(
            "get",
            "get_many",
            "states",
            "history",
            "limits",
            "attempts",
            "failure",
            "messages",
            "message",
            "sent_before",
        ),
        *("key_holder", "keys", "held", "children", "children_of", "group", "groups_of", "members", "at_once", "slots"),
    }
)


@contextmanager
def refusing_runtime(at: Runtime) -> Iterator[None]:
    """Within the block, what code does through durable's own functions reads, or is taken for done before."""
    refusing = replace(
        at,
        store=cast("Store", _Store(at.store)),
        notify=_ignore,
        notify_at=_ignore,
        poll_wait=_end,
        after_commit=_ignore,
    )
    runtime.activate(refusing)
    try:
        yield
    finally:
        runtime.deactivate(refusing)


def _ignore(*_: object) -> None:
    """Do nothing: the pass that has recorded the history has done it."""


def _end(*_: object, **__: object) -> Any:
    raise NotRecorded


class _Store:
    """Reads from the store, and takes starts and sends for done. Anything else ends the replay."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, bool]]:
        return [(each, False) for each in runs]

    def send(self, messages: Iterable[OutgoingMessage]) -> tuple[list[Message], frozenset[str]]:
        sent = [
            Message(id=each.id, run_id=each.to, queue=each.queue, body=each.body, sent_at=each.sent_at, order=0)
            for each in messages
        ]
        return sent, frozenset()

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._store, name) if name in _READS else _end
