"""A client that is as stubborn as a queue of web requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connections

T = TypeVar("T")


def force(call: Callable[[], T], seconds: float = 60.0) -> T:
    """The answer of a call that may be repeated: ids make it the same call."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (OperationalError, InterfaceError):
            connections.close_all()
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
