"""The fixtures of the engine's tests, for the drivers'."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.core.conftest import flavour, h

__all__ = ["flavour", "h", "handled"]


@pytest.fixture
def handled() -> Iterator[threading.Event]:
    """Is set when Python has called the handler of SIGUSR1, which it does in the main thread."""
    event = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGUSR1, before)
