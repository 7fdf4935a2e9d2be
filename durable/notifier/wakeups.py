"""Notices of due runs within one process: for workers without Redis, and for tests that mute notifications.

`durable.notifier.notify` sends a notice where it would otherwise use Redis: a run of a queue is due, or will be at a
moment. Nothing depends on a notice: due runs stay due in the database, and workers poll it as well.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Final, Protocol

from durable.conf import conf


class Listener(Protocol):
    """The receiver of notices. Both methods return at once, and may be called from any thread."""

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
    """Notify the listeners of this process that a run of `queue` is due now."""
    for each in _listeners:
        each.run_is_due(queue)


def notify_at(queue: str, moment: datetime) -> None:
    """Notify the listeners of this process that a run of `queue` is due at `moment` (aware)."""
    for each in _listeners:
        each.run_is_due_at(queue, moment)


_DJANGOS_TESTS: Final = "django.test.utils"
_loaded: dict[str, bool] = {}


def note_settings() -> None:
    """Remember the project's NOTIFY_IN_TESTS setting, for tests that override DURABLE."""
    _loaded["NOTIFY_IN_TESTS"] = bool(conf.NOTIFY_IN_TESTS)


def is_silent() -> bool:
    """Return True if nothing must be sent to Redis: in a test, unless the project's settings or the test's allow it."""
    return is_under_test() and not (conf.NOTIFY_IN_TESTS or _loaded.get("NOTIFY_IN_TESTS", False))


def is_under_test() -> bool:
    """Return True if Django's test environment is set up here, as `manage.py test` and pytest-django do."""
    state = getattr(sys.modules.get(_DJANGOS_TESTS), "_TestState", None)
    return hasattr(state, "saved_data")
