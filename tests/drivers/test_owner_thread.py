"""Calls that threads of branches delegate to the pass's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from durable.drivers import threads
from durable.drivers.threads import Serving, ThreadDelegate


class Asking(threading.Thread):
    """A thread that delegates one call, and leaves."""

    def __init__(self, delegate: ThreadDelegate, function: Callable[[], Any], serving: Serving | None = None) -> None:
        super().__init__(daemon=True)
        self.delegate = delegate
        self.function = function
        self.serving = serving
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.delegate.call(self.function)
        except ValueError as error:
            self.answer = error
        if self.serving is not None:
            self.serving.leave()

    def answered(self) -> Any:
        self.join(60)
        assert not self.is_alive(), "the call was not made"
        return self.answer


class Interrupted(Exception):
    """What a signal handler raises in the owner."""


@pytest.fixture
def delegate() -> ThreadDelegate:
    return ThreadDelegate()


def broken() -> None:
    raise ValueError("broken")


def test_the_owner_makes_the_calls_of_other_threads(delegate: ThreadDelegate) -> None:
    with delegate.served() as serving:
        asking = [Asking(delegate, threading.get_ident, serving) for _ in range(3)]
        serving.serve(3)
    assert {each.answered() for each in asking} == {threading.get_ident()}


def test_the_owner_makes_its_own_calls_at_once(delegate: ThreadDelegate) -> None:
    assert delegate.call(threading.get_ident) == threading.get_ident()
    with delegate.served():
        assert delegate.call(threading.get_ident) == threading.get_ident()


def test_an_error_is_raised_in_the_thread_that_asked(delegate: ThreadDelegate) -> None:
    with delegate.served() as serving:
        asking = Asking(delegate, broken, serving)
        serving.serve(1)
    assert str(asking.answered()) == "broken"


def test_a_thread_makes_its_own_calls_while_the_owner_does_not_serve(delegate: ThreadDelegate) -> None:
    asking = Asking(delegate, threading.get_ident)
    assert asking.answered() == asking.ident
    with delegate.served():
        pass
    asking = Asking(delegate, threading.get_ident)
    assert asking.answered() == asking.ident


def test_a_call_that_was_not_made_is_left_to_the_thread_that_asked(delegate: ThreadDelegate) -> None:
    with delegate.served() as serving:
        asking = Asking(delegate, threading.get_ident, serving)
        while serving._asked.empty():
            threading.Event().wait(0.001)
    assert asking.answered() == asking.ident


@pytest.mark.parametrize("is_made", [False, True], ids=["before the call", "before its outcome is put"])
def test_a_call_that_an_interruption_cuts_off_is_left_to_the_thread_that_asked(
    delegate: ThreadDelegate, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    made: list[int] = []

    def interrupt(call: Any) -> None:
        if is_made:
            call._function()
        raise Interrupted

    monkeypatch.setattr(threads._Call, "make", interrupt)
    with suppress(Interrupted), delegate.served() as serving:
        asking = Asking(delegate, lambda: made.append(threading.get_ident()), serving)
        serving.serve(1)
        pytest.fail("not interrupted")
    asking.answered()
    assert made == ([threading.get_ident()] if is_made else []) + [asking.ident]


def test_a_thread_that_leaves_after_an_interruption_does_not_end_the_next_serving(delegate: ThreadDelegate) -> None:
    with delegate.served() as interrupted:
        pass
    with delegate.served() as serving:
        interrupted.leave()
        asking = Asking(delegate, threading.get_ident, serving)
        serving.serve(1)
    assert asking.answered() == threading.get_ident()
