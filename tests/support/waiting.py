"""Waiting for what another thread or process brings about; threads that act at once; a client that asks again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from django.db import InterfaceError, OperationalError, connection, connections

from durable.models import Run

if TYPE_CHECKING:
    from tests.e2e.workers import Workers


def eventually(
    condition: Callable[[], object], *, every: float = 0.01, seconds: float = 300.0, log: Path | None = None
) -> None:
    """Wait until another thread or process has done its part. `every` is seconds: more for a condition that costs much.

    What takes long is asked for less often: up to twenty times a second, with a fiftieth of what it has taken between.
    With the `log` of workers, a failure shows its end and the runs that have not ended.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "it did not happen" if log is None else _told(log)
        time.sleep(max(every, min(0.05, waited / 50)))


def _told(log: Path) -> str:
    left = list(Run.objects.open().values("id", "state", "crashes", "summary", "waiting_for", "wake_at")[:20])
    return f"{left}; {log.read_text(errors='replace')[-3000:]}"


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
    eventually(lambda: not Run.objects.exclude(state__in=["completed", "failed"]).exists(), every=0.05, log=log)


def kill_until_ended(
    workers: Workers, dice: random.Random, *, kills: int, log: Path, when: Callable[[], object] = lambda: True
) -> None:
    """Kill a worker at random moments, so many times at most, until all runs have ended; only `when` that is true."""

    def strike() -> bool:
        if not Run.objects.open().exists():
            return True
        time.sleep(dice.uniform(0.1, 0.6))
        if workers.kills < kills and when():
            workers.kill_one(dice)
        return False

    eventually(strike, every=0.0, seconds=400, log=log)


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
