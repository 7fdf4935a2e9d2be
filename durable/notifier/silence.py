"""Whether bells stay silent in this process: in tests, because the workers that would hear them are not the test's.

Owns the answer only. What is due stays due, in the database.
"""

from __future__ import annotations

import sys
from typing import Final

from durable.conf import conf

__all__ = ["is_silent", "is_under_test", "note_settings"]

_DJANGOS_TESTS: Final = "django.test.utils"
_loaded: dict[str, bool] = {}


def note_settings() -> None:
    """Remember what the project's settings say of RING_IN_TESTS, for tests that override DURABLE."""
    _loaded["RING_IN_TESTS"] = bool(conf.RING_IN_TESTS)


def is_silent() -> bool:
    """Whether nothing is to be sent to Redis: in a test, unless the project's settings or the test's say otherwise."""
    return is_under_test() and not (conf.RING_IN_TESTS or _loaded.get("RING_IN_TESTS", False))


def is_under_test() -> bool:
    """Whether Django's test environment is set up here, which `manage.py test` and pytest-django do."""
    state = getattr(sys.modules.get(_DJANGOS_TESTS), "_TestState", None)
    return hasattr(state, "saved_data")
