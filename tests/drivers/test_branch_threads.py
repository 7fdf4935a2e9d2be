"""The threads of branches: how long they live, what they delegate to the pass's own thread, and their timeouts."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from durable.drivers import threads, timeouts
from durable.drivers.threads import Serving, ThreadDelegate
from durable.drivers.timeouts import watch


class Log:
    """What was called, in which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def noting(self, what: str) -> threads.Work:
        return lambda: self.calls.append((what, threading.get_ident()))

    def names(self) -> list[str]:
        return [what for what, _ in self.calls]

    def idents(self) -> set[int]:
        return {ident for _, ident in self.calls}


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What ended threads by being raised in them."""
    found: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type))
    return found


def living() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "durable-branch"}


def test_a_thread_that_is_not_kept_has_ended_its_work_before_the_wait_is_over(log: Log) -> None:
    threads.run(log.noting("work"), log.noting("end"))()
    assert log.names() == ["work", "end"]
    assert len(log.idents()) == 1
    assert threading.get_ident() not in log.idents()


def test_a_kept_thread_does_the_next_work_and_ends_once(log: Log) -> None:
    before = living()  # a thread that was not kept ends just after it has been waited for
    with threads.keep():
        for _ in range(3):
            threads.run(log.noting("work"), log.noting("end"))()
        assert log.names() == ["work"] * 3
    assert log.names() == ["work"] * 3 + ["end"]
    assert len(log.idents()) == 1
    assert living() <= before


def test_work_at_the_same_time_has_threads_of_its_own(log: Log) -> None:
    before = living()  # a thread that was not kept ends just after it has been waited for
    both = threading.Barrier(2)

    def work() -> None:
        both.wait(120)
        log.noting("work")()

    with threads.keep():
        for _ in range(2):
            for wait in [threads.run(work, log.noting("end")) for _ in range(2)]:
                wait()
        assert len(log.idents()) == 2
    assert log.names() == ["work"] * 4 + ["end"] * 2
    assert living() <= before


def test_only_the_outermost_block_ends_what_is_kept(log: Log) -> None:
    with threads.keep():
        with threads.keep():
            threads.run(log.noting("work"), log.noting("end"))()
        assert log.names() == ["work"]
    assert log.names() == ["work", "end"]


def test_a_thread_still_at_work_when_the_block_is_left_ends_afterwards(log: Log) -> None:
    may_end = threading.Event()
    with threads.keep():
        wait = threads.run(lambda: may_end.wait(120), log.noting("end"))
    assert log.names() == []
    may_end.set()
    wait()
    assert log.names() == ["end"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_work_that_breaks_out_ends_its_thread_and_no_wait_hangs(log: Log, crashes: list[object], is_kept: bool) -> None:
    def broken() -> None:
        raise KeyboardInterrupt

    def twice() -> None:
        threads.run(broken, log.noting("end"))()
        threads.run(log.noting("work"), log.noting("end"))()

    if is_kept:
        with threads.keep():
            twice()
    else:
        twice()
    assert log.names() == ["end", "work", "end"]
    while living():  # the thread ends just after it has been waited for
        threading.Event().wait(0.01)
    assert crashes == [KeyboardInterrupt]


# -- calls that threads of branches delegate to the pass's own thread


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


def test_a_signal_that_another_thread_gets_is_handled_while_the_owner_serves(
    delegate: ThreadDelegate, handled: threading.Event
) -> None:
    seen: list[bool] = []

    def work() -> None:
        delegate.call(int)  # the owner has begun to serve
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        seen.append(handled.wait(30))
        serving.leave()

    with delegate.served() as serving:
        thread = threading.Thread(target=work)
        thread.start()
        serving.serve(1)
    thread.join(60)
    assert seen == [True]


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


# -- one thread for all timeouts of branches: what is called off never comes, what is left comes in time and in order


def watching_threads() -> int:
    return sum(thread.name == "durable-timeouts" for thread in threading.enumerate())


def test_calls_come_in_the_order_of_their_moments() -> None:
    """Their moments are asked for: this thread may come to the second call long after the first one."""
    seen: list[str] = []
    all_are_known, done = threading.Event(), threading.Event()
    watch(0, lambda: all_are_known.wait(60))
    late = watch(0.1, lambda: seen.append("late"))
    early = watch(0.05, lambda: seen.append("early"))
    watch(0.15, done.set)
    all_are_known.set()
    assert done.wait(60)
    assert seen == (["early", "late"] if early.moment < late.moment else ["late", "early"])
    assert watching_threads() == 1


def test_what_is_called_off_never_comes_and_is_forgotten() -> None:
    seen: list[int] = []
    for number in range(10_000):
        watch(3600, lambda number=number: seen.append(number)).end()  # type: ignore[misc]  # a lambda's default
    assert len(timeouts._watchdog._watches) < 1_000
    done = threading.Event()
    watch(0.01, done.set)
    assert done.wait(60)
    assert seen == []


def test_the_thread_ends_when_there_is_nothing_to_watch_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "_IDLE", 0.01)
    timeouts._forget()
    for _ in range(3):
        done = threading.Event()
        watch(0.01, done.set)
        assert done.wait(60)
        deadline = time.monotonic() + 60
        while timeouts._watchdog._is_served and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not timeouts._watchdog._is_served


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    watch(3600, lambda: None)
    if (child := os.fork()) == 0:
        done = threading.Event()
        watch(0.01, done.set)
        os._exit(0 if done.wait(60) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_call_that_raises_ends_no_other_one() -> None:
    def fail() -> None:
        raise RuntimeError("its loop is closed")

    failed, done = threading.Event(), threading.Event()
    watch(0, fail)
    watch(0, failed.set)
    assert failed.wait(60)
    watch(0, done.set)
    assert done.wait(60)
