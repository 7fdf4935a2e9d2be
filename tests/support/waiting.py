"""Waiting for a condition that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from durable.models import Run


def eventually(condition: Callable[[], bool], *, every: float = 0.01) -> None:
    """Wait until another thread has done its part. `every` is seconds: more for a condition that costs much."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(every)


def sleep_through(condition: Callable[[], bool]) -> None:
    """Wait as code does that nothing can interrupt: what is raised in this thread meanwhile is dropped."""
    while True:
        try:
            while not condition():
                time.sleep(0.01)
        except BaseException:
            continue
        return


def wait_until_ended(log: Path) -> None:
    deadline = time.monotonic() + 300
    while left := list(Run.objects.exclude(state__in=["completed", "failed"]).values("id", "state", "summary")):
        assert time.monotonic() < deadline, f"{left}; {log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.05)
