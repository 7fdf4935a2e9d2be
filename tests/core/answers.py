"""Messages that tests send to completable receives, and their responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable.testing import Harness


def responses(h: Harness, run_id: str) -> list[Any]:
    """The response of each message, in the order of the sends; ... where there is none."""
    decode = h._runtime.codec.decode
    return [... if each.response is None else decode(each.response) for each in h._store.messages(run_id)]


def sends(*queues: str) -> Callable[[Harness, Any], None]:
    """Sends a message with its number to each of the queues, and finishes the run."""

    def drive(h: Harness, run: Any) -> None:
        for number, queue in enumerate(queues):
            if run.state not in ("completed", "failed"):
                h.send(run, queue, number, id=f"message {number}")
        h.finish(run)

    return drive
