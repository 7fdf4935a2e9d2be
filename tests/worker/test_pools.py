"""The threads of a pool: given work, kept, replaced."""

import threading

import pytest

from durable.worker import loop
from durable.worker.loop import ThreadPool
from tests.support.waiting import eventually

WAIT = 120.0  # seconds until a test gives up


class Noted(ThreadPool):
    """Notes which thread reports that it is free, or has ended."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.freed: list[int] = []

    def _report(self) -> None:
        self.freed.append(threading.get_ident())


def test_a_thread_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Noted(1)
    freed = pool.freed
    monkeypatch.setattr(loop.logger, "exception", lambda *args: 1 / 0)

    def die() -> None:
        raise SystemExit

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert pool.submit(die)
    eventually(lambda: len(freed) == 1)
    eventually(lambda: freed[0] not in {each.ident for each in threading.enumerate()})
    done = threading.Event()
    assert pool.submit(done.set)
    assert done.wait(WAIT)
    eventually(lambda: len(freed) == 2)
    pool.end()


def test_nothing_is_taken_beyond_the_count() -> None:
    pool = ThreadPool(2)
    go = threading.Event()
    assert pool.submit(go.wait)
    assert pool.submit(go.wait)
    assert not pool.submit(go.wait)
    go.set()
    pool.end()


def test_the_thread_that_was_busy_last_is_taken_first() -> None:
    pool = Noted(2)
    freed = pool.freed
    first, second = threading.Event(), threading.Event()
    assert pool.submit(first.wait)
    assert pool.submit(second.wait)
    first.set()
    eventually(lambda: len(freed) == 1)
    second.set()
    eventually(lambda: len(freed) == 2)
    assert pool.submit(lambda: None)
    eventually(lambda: len(freed) == 3)
    assert freed[2] == freed[1] != freed[0]
    pool.end()
