"""The threads of branches: ended after each piece of work, or kept for the next one."""

from __future__ import annotations

import threading

import pytest

from durable.drivers import threads


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
