"""Threads that all act at the same time, each with connections of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import OperationalError, connection, connections

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
