"""Readers of streams that are idle for a moment alone, so that a test sees their threads end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from durable.notifier import chunks
from durable.streams import hub
from tests.support.waiting import eventually


@pytest.fixture
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait at the end of the test until the threads that all readers share have ended."""
    for module in (hub, chunks):
        monkeypatch.setattr(module, "_IDLE", 0.05)
    monkeypatch.setattr(hub, "_LOOK_EVERY", 0.2)
    yield
    eventually(lambda: not {"durable-stream-readers", "durable-chunks"} & {each.name for each in threading.enumerate()})
