"""Notices of due runs within one process, for workers without Redis (`DURABLE["REDIS"] = False`).

Owns the listeners. `durable.notifier.notify` sends a notice where it would otherwise use Redis: a run of a queue is
due, or will be at a moment. Nothing depends on a notice: workers poll the database as well (`durable.worker.polling`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Listener(Protocol):
    """Receives notices. Both methods return at once, and may be called from any thread."""

    def run_is_due(self, queue: str) -> None:
        """Note that a run of `queue` is due now."""

    def run_is_due_at(self, queue: str, moment: datetime) -> None:
        """Note that a run of `queue` is due at `moment` (aware)."""


_listeners: tuple[Listener, ...] = ()


def listen(listener: Listener) -> None:
    """Send notices to `listener` from now on."""
    global _listeners
    _listeners = (*_listeners, listener)


def unlisten(listener: Listener) -> None:
    """Send no more notices to `listener`."""
    global _listeners
    _listeners = tuple(each for each in _listeners if each is not listener)


def notify(queue: str) -> None:
    """Tell the listeners of this process that a run of `queue` is due now."""
    for each in _listeners:
        each.run_is_due(queue)


def notify_at(queue: str, moment: datetime) -> None:
    """Tell the listeners of this process that a run of `queue` is due at `moment` (aware)."""
    for each in _listeners:
        each.run_is_due_at(queue, moment)
