"""What threads of branches have the pass's own thread do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from durable.drivers.errands import ThreadDelegate


class Asking(threading.Thread):
    """A thread that asks once, and leaves."""

    def __init__(self, errands: ThreadDelegate, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.errands = errands
        self.work = work
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.errands.do(self.work)
        except ValueError as error:
            self.answer = error
        self.errands.leave()

    def answered(self) -> Any:
        self.join(20)
        assert not self.is_alive(), "nobody did it"
        return self.answer


@pytest.fixture
def errands() -> ThreadDelegate:
    return ThreadDelegate()


def test_the_thread_that_made_them_does_them_for_the_others(errands: ThreadDelegate) -> None:
    with errands.served():
        asking = [Asking(errands, threading.get_ident) for _ in range(3)]
        errands.serve(3)
    assert {each.answered() for each in asking} == {threading.get_ident()}


def test_it_does_its_own_at_once(errands: ThreadDelegate) -> None:
    assert errands.do(threading.get_ident) == threading.get_ident()
    with errands.served():
        assert errands.do(threading.get_ident) == threading.get_ident()


def test_an_error_is_raised_where_it_was_asked_for(errands: ThreadDelegate) -> None:
    def broken() -> None:
        raise ValueError("broken")

    with errands.served():
        asking = Asking(errands, broken)
        errands.serve(1)
    assert str(asking.answered()) == "broken"


def test_where_nobody_serves_a_thread_does_its_own(errands: ThreadDelegate) -> None:
    asking = Asking(errands, threading.get_ident)
    assert asking.answered() == asking.ident


def test_what_was_asked_for_and_not_done_is_left_to_who_asked(errands: ThreadDelegate) -> None:
    with errands.served():
        asking = Asking(errands, threading.get_ident)
        while errands._asked.empty():
            threading.Event().wait(0.001)
    assert asking.answered() == asking.ident
