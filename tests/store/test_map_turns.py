"""Children of a map that wait for their turn: no verb lets them begin before it, or outlive their deadline.

A compensation waits for no turn: a recovered child may wait for one that never comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from durable import Context, CriticalError, RollbackContext, get_run, runtime, workflow
from durable.core.records import ENDED
from durable.operations.holds import hold_starts, release_starts
from durable.testing import Harness
from tests.support.stores import in_force, settle

PAID: list[int] = []
WRONG: set[str] = set()
FIRST, SECOND = "p:bills:0", "p:bills:1"


@pytest.fixture(autouse=True)
def fresh() -> None:
    PAID.clear()
    WRONG.clear()


def charge(number: int) -> int:
    PAID.append(number)
    return number


def refund(_: RollbackContext, number: int) -> None:
    if "handler" in WRONG:
        raise CriticalError("no refund")
    PAID.remove(number)


def refused() -> None:
    raise CriticalError("refused")


@workflow(name="turns.pay")
def pay(ctx: Context, number: int) -> None:
    ctx.rollback_checkpoint("undo")
    ctx.step("charge", charge, number, rollback=refund)
    if number == 0 and "code" in WRONG:
        raise TypeError("a mistake of the code")
    if number == 0 and "handler" in WRONG:
        ctx.step("book", refused)
    ctx.queue.next("end")


@workflow(name="turns.bills")
def bills(ctx: Context) -> None:
    ctx.rollback_checkpoint("undo")
    ctx.map("bills", pay.using(rollback=True), [(0,), (1,), (2,)], at_once=1, on_failure="finish")


@contextmanager
def engine(name: str, settings: Settings) -> Iterator[None]:
    settings.DURABLE = {**settings.DURABLE, "DIVERGENCE_GRACE": 0}
    with Harness() if name == "memory" else in_force():
        yield


def check_counts() -> None:
    [group] = runtime.current().store.groups_of("p")
    states = [each.state for each in runtime.current().store.members(group.spec.id, -1, 10)]
    ended = [states.count(each) for each in ("completed", "failed", "cancelled")]
    assert [group.completed, group.failed, group.cancelled] == ended
    assert group.waiting + group.running == sum(each not in ENDED for each in states)


each_engine = pytest.mark.parametrize("name", ["memory", "database"])


def first_waits_behind_second(fault: str) -> None:
    """The first child has failed, is recovered, and the second one has the only place meanwhile."""
    WRONG.add(fault)
    bills.using(id="p").start()
    settle()
    assert (get_run(FIRST).state, get_run(SECOND).state, PAID) == ("failed", "sleeping", [0, 1])
    WRONG.clear()
    get_run(FIRST).recover()


@pytest.mark.django_db
@each_engine
def test_one_that_waits_is_cancelled_with_its_rollback(name: str, settings: Settings) -> None:
    with engine(name, settings):
        first_waits_behind_second("code")
        settle()
        assert get_run(FIRST).state == "pending", "it waits for its turn"
        get_run(FIRST).cancel("not wanted", rollback=True)
        settle()
        assert (get_run(FIRST).state, PAID) == ("cancelled", [1])
        check_counts()
        get_run(SECOND).send("end")
        settle()
        get_run("p:bills:2").send("end")
        settle()
        assert (get_run("p").state, PAID) == ("completed", [1, 2])
        check_counts()


@pytest.mark.django_db
@each_engine
def test_one_that_waits_is_compensated_with_its_parent(name: str, settings: Settings) -> None:
    with engine(name, settings):
        first_waits_behind_second("code")
        settle()
        get_run("p").cancel("not wanted", rollback=True)
        settle()
        assert (get_run("p").state, PAID) == ("cancelled", [])
        check_counts()


@pytest.mark.django_db
@each_engine
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_one_whose_compensation_is_recovered_goes_on_with_it_at_once(
    name: str, is_cancelled: bool, settings: Settings
) -> None:
    with engine(name, settings):
        first_waits_behind_second("handler")
        settle()
        assert (get_run(FIRST).state, PAID) == ("failed", [1])
        check_counts()
        if is_cancelled:
            get_run("p").cancel("not wanted", rollback=True)
            settle()
            assert (get_run("p").state, PAID) == ("cancelled", [])
            return
        for each in (SECOND, "p:bills:2"):
            get_run(each).send("end")
            settle()
        assert (get_run("p").state, PAID) == ("completed", [1, 2])
        check_counts()


def _work(number: int) -> int:
    if number in FAILING:
        raise CriticalError("no")
    return number


@workflow(name="turns.work")
def work(ctx: Context, number: int) -> int:
    ctx.step("work", _work, number)
    ctx.sleep("a while", 10)
    return number


@workflow(name="turns.works")
def works(ctx: Context, at_once: int, deadline: float | None) -> list[int]:
    inputs = [(number,) for number in range(4)]
    return ctx.map("m", work.using(deadline=deadline), inputs, at_once=at_once, on_failure="finish").outputs


FAILING: set[int] = set()


@pytest.fixture
def failing() -> Iterator[set[int]]:
    yield FAILING
    FAILING.clear()


def turns_in_use(h: Harness) -> list[int]:
    h.settle()
    return [number for number in range(4) if get_run(f"p:m:{number}").state == "sleeping"]


@pytest.mark.django_db
@each_engine
@pytest.mark.parametrize("deadline", [None, 100])
def test_a_release_of_held_starts_gives_no_turn(name: Any, deadline: float | None) -> None:
    with Harness(store=name) as h:
        hold_starts(work)
        run = works.using(id="p").start(2, deadline)
        assert turns_in_use(h) == []
        release_starts(work)
        assert turns_in_use(h) == [0, 1]
        h.advance(10)
        assert turns_in_use(h) == [2, 3]
        h.advance(10)
        h.settle()
        assert run.output == [0, 1, 2, 3]
        check_counts()


@pytest.mark.django_db
@each_engine
@pytest.mark.parametrize("deadline", [None, 100])
def test_one_whose_turn_comes_while_it_is_held_begins_at_the_release(name: Any, deadline: float | None) -> None:
    with Harness(store=name) as h:
        hold_starts(work)
        works.using(id="p").start(1, deadline)
        h.settle()
        get_run("p:m:0").cancel()
        assert turns_in_use(h) == []
        release_starts(work)
        assert turns_in_use(h) == [1]
        check_counts()


@pytest.mark.django_db
@each_engine
@pytest.mark.parametrize("verb", ["none", "resume", "wake", "release"])
def test_one_that_waits_fails_at_its_deadline(name: Any, verb: str) -> None:
    with Harness(store=name) as h:
        if verb == "release":
            hold_starts(work)
        works.using(id="p").start(1, 60)
        h.settle()
        first, second = get_run("p:m:0"), get_run("p:m:1")
        if verb == "release":
            release_starts(work)
        else:
            first.pause()
        if verb == "resume":
            second.pause()
            second.resume()
        if verb == "wake":
            second.wake()
        assert second.wake_at == second.info().created_at + timedelta(seconds=60)
        if verb == "release":
            h.run(first)
            first.pause()
        h.advance(60)
        h.settle()
        assert second.error is not None
        assert (second.error.type, first.state) == ("RunDeadlineError", "paused")
        check_counts()


@pytest.mark.django_db
@each_engine
def test_one_that_is_recovered_and_waits_has_the_same_time_anew(name: Any, failing: set[int]) -> None:
    failing.add(1)
    with Harness(store=name) as h:
        works.using(id="p").start(2, 60)
        assert turns_in_use(h) == [0, 2], "that of 1 is free again"
        get_run("p:m:0").pause()
        h.advance(5)
        failing.clear()
        waits = get_run("p:m:1")
        waits.recover()
        assert waits.wake_at == h.now + timedelta(seconds=60)
        get_run("p:m:2").pause()
        h.advance(58)
        h.settle()
        get_run("p:m:0").resume()
        get_run("p:m:2").resume()
        h.settle()
        assert waits.state == "sleeping"
        check_counts()
