"""Whether notifications are muted in this process: in tests, because the workers they would reach are not the test's.

Owns only this answer. Due runs stay due in the database.
"""

from __future__ import annotations

import sys
from typing import Final

from durable.conf import conf

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
