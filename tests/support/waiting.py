"""Waiting for what another thread or process brings about; threads that act at once; a client that asks again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection, connections

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


THREADS = 4


def at_once(act: Callable[[int], None], threads: int = THREADS) -> None:
    """Call `act` with the numbers of some threads, all at the same time; raise what it raised."""
    begin = threading.Barrier(threads)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            begin.wait(120)
            act(number)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    started = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for each in started:
        each.start()
    for each in started:
        each.join(300)
    assert not errors, errors


def patiently(start: Callable[[], object]) -> None:
    """SQLite may say that it is locked; then nothing was done, and the caller tries again."""
    while True:
        try:
            start()
        except OperationalError as error:
            if connection.vendor != "sqlite" or "locked" not in str(error):
                raise
        else:
            return
