"""One thread for all timeouts of branches: what is called off never comes, what is left comes in time and in order."""

from __future__ import annotations

import os
import threading
import time

import pytest

from durable.drivers import timeouts
from durable.drivers.timeouts import watch


def threads() -> int:
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
    assert threads() == 1


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
