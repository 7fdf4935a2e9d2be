"""Starts under a key, and what is asked for twice under one id, in each store; and the order of the rules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from durable import get_run, runtime, workflow
from durable.core.places import Place
from durable.errors import (
    DurableError,
    InvalidTransitionError,
    KeyConflictError,
    MessageConflictError,
    PayloadError,
    RunConflictError,
)
from durable.operations.holds import hold_starts, release_starts
from durable.testing import Harness
from tests.support.stores import in_force

pytestmark = pytest.mark.django_db


@workflow(name="tests.keys.waits")
def waits(ctx: Any, number: int = 0) -> Any:
    ctx.step("one", int)
    return number, ctx.queue.next("go").body


@workflow(name="tests.keys.other")
def other(ctx: Any, number: int = 0) -> int:
    return number


@workflow(name="tests.keys.parent")
def parent(ctx: Any) -> int:
    child = ctx.start_child("child", other.using(key="k", delay=10), 1)
    return int(child.result("output"))


@workflow(name="tests.keys.compensates")
def compensates(ctx: Any) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.step("one", int, rollback=undo)
    ctx.queue.next("go")


def undo(rollback: Any, output: int) -> None:
    raise RuntimeError("the handler waits for its next attempt")


def number_of(run_id: str) -> int:
    run = runtime.current().store.get(run_id)
    assert run is not None
    [number] = runtime.current().decode(run.input, Place(run_id, "input"))["args"]
    return int(number)


@pytest.mark.usefixtures("store")
class TestIfOpen:
    @pytest.mark.parametrize("how", [{}, {"if_open": "return"}])
    def test_return(self, how: dict[str, Any]) -> None:
        first = waits.using(key="k", **how).start(1)
        again = waits.using(key="k", **how).start(2)
        assert again == first
        assert (first.is_new, again.is_new) == (True, False)
        assert number_of(first.id) == 1
        assert waits.open_run(key="k") == first
        assert other.open_run(key="k") is None
        assert other.using(key="k").start(1) != first
        assert waits.using(key="K").start(2) != first

    def test_error(self) -> None:
        first = waits.using(key="k", if_open="error").start(1)
        with pytest.raises(KeyConflictError) as caught:
            waits.using(key="k", if_open="error").start(1)
        assert isinstance(caught.value, RunConflictError)
        assert (caught.value.run_id, caught.value.key) == (first.id, "k")
        assert 'has the key "k"' in str(caught.value)
        first.cancel()
        assert waits.using(key="k", if_open="error").start(1).is_new

    def test_replace(self) -> None:
        first = waits.using(key="k", id="a").start(1)
        second = waits.using(key="k", if_open="replace", id="b").start(2)
        assert second.is_new
        assert first.state == "cancelled"
        assert 'replaced by run "b"' in first.summary
        assert waits.open_run(key="k") == second
        assert number_of("b") == 2
        third = waits.using(key="k").start(3)
        assert third == second

    def test_a_cancelled_run_has_no_key(self) -> None:
        first = waits.using(key="k").start(1)
        first.cancel()
        assert waits.open_run(key="k") is None
        assert async_to_sync(waits.aopen_run)(key="k") is None
        assert async_to_sync(waits.using(key="k").astart)(2).is_new

    def test_the_rules_of_an_id_come_first(self) -> None:
        first = waits.using(key="k", id="a").start(1)
        assert waits.using(key="k", id="a", if_open="error").start(1) == first
        assert waits.using(key="k", id="a", if_open="replace").start(1) == first
        assert first.state == "pending"
        with pytest.raises(RunConflictError, match="another input"):
            waits.using(key="k", id="a").start(2)
        with pytest.raises(RunConflictError, match="on_conflict"):
            waits.using(key="k", id="a", on_conflict="error").start(1)
        ended = waits.using(id="ended").start(1)
        ended.cancel()
        assert waits.using(key="k", id="ended").start(1) == ended, "though another run has the key"
        assert waits.using(key="k", id="new", on_conflict="error").start(2) == first, (
            "no run has the id, one has the key"
        )
        assert number_of("a") == 1

    def test_a_transaction_that_is_rolled_back(self) -> None:
        def fail() -> None:
            with runtime.current().store.transaction():
                waits.using(key="k").start(1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert waits.open_run(key="k") is None
        assert waits.using(key="k").start(1).is_new


@pytest.mark.usefixtures("store")
class TestStartOrSend:
    def test_starts_then_sends(self) -> None:
        cart = waits.using(key="cart-7")
        first = cart.start_or_send("go", "apple", 7)
        assert first.is_new
        second = cart.start_or_send("go", "pear", 8)
        assert second == first
        assert not second.is_new
        messages = runtime.current().store.messages(first.id)
        assert [each.queue for each in messages] == ["go", "go"]
        assert number_of(first.id) == 7
        first.cancel()
        third = async_to_sync(cart.astart_or_send)("go", "plum", 9)
        assert third.is_new
        assert len(runtime.current().store.messages(third.id)) == 1

    def test_both_or_nothing(self) -> None:
        with pytest.raises(PayloadError):
            waits.using(key="k").start_or_send("go", lambda: 1, 7)
        assert waits.open_run(key="k") is None

    def test_an_id_that_has_ended_is_not_sent_to(self) -> None:
        waits.using(id="a", key="k").start(1).cancel()
        with pytest.raises(InvalidTransitionError):
            waits.using(id="a", key="k").start_or_send("go", 1, 1)

    @pytest.mark.parametrize("how", [{"if_open": "replace"}, {"debounce": 1, "at_most": 2}])
    def test_what_does_not_go_together(self, how: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="leave out"):
            waits.using(key="k", **how).start_or_send("go", 1, 1)
        with pytest.raises(TypeError, match="needs a key"):
            waits.start_or_send("go", 1, 1)


class TestRunning:
    def test_a_message_reaches_the_code(self, h: Harness) -> None:
        run = waits.using(key="k").start_or_send("go", "apple", 7)
        assert h.finish(run.id).output == (7, "apple")
        again = waits.using(key="k").start_or_send("go", "pear", 8)
        assert again.is_new
        assert h.finish(again.id).output == (8, "pear")

    def test_a_run_that_is_being_compensated_keeps_its_key(self, h: Harness) -> None:
        run = compensates.using(key="k").start()
        h.run(run.id)
        run.cancel(rollback=True)
        h.run(run.id)
        assert run.state == "rolling_back"
        assert compensates.using(key="k").start() == run
        with pytest.raises(InvalidTransitionError, match="being cancelled or compensated"):
            compensates.using(key="k").start_or_send("go", 1)
        with pytest.raises(InvalidTransitionError):
            compensates.using(key="k", if_open="replace").start()
        assert compensates.open_run(key="k") == run

    def test_a_replay_in_place_asks_for_the_key_again(self, h: Harness) -> None:
        first = waits.using(key="k", id="a").start(1)
        h.run("a")
        first.cancel()
        second = waits.using(key="k", id="b").start(2)
        with pytest.raises(KeyConflictError, match='run "b" is open and has the key "k"'):
            first.replay("one", in_place=True)
        assert first.state == "cancelled"
        second.cancel()
        first.replay("one", in_place=True)
        assert waits.open_run(key="k") == first

    def test_recover_when_the_key_is_free(self, h: Harness) -> None:
        run = compensates.using(key="k", id="a").start()
        h.run("a")
        run.cancel(rollback=True)
        h.finish("a")
        assert run.state == "failed", "its handler has no attempts left"
        compensates.using(key="k", id="b").start()
        with pytest.raises(KeyConflictError):
            run.recover()
        assert run.state == "failed"
        get_run("b").cancel()
        run.recover()
        assert compensates.open_run(key="k") == run


class TestDebounce:
    def test_the_last_input_begins_when_it_is_quiet(self, h: Harness) -> None:
        report = other.using(key="team-1", debounce="30 s", at_most="5 min")
        began = h.now
        first = report.start(1)
        assert first.is_new
        for number in range(2, 5):
            h.advance(10)
            again = report.start(number)
            assert again == first
            assert not again.is_new
        assert first.wake_at == began + _seconds(60)
        h.advance(29)
        assert h.run_due() == 0
        h.advance(1)
        assert h.run_due() == 1
        assert first.output == 4
        assert report.start(5) != first

    def test_keep_first(self, h: Harness) -> None:
        report = other.using(key="k", debounce=30, at_most=300, keep="first")
        run = report.start(1)
        h.advance(10)
        report.start(2)
        assert h.finish(run.id).output == 1
        assert run.wake_at is None

    def test_at_most(self, h: Harness) -> None:
        report = other.using(key="k", debounce=30, at_most=100)
        began, run = h.now, report.start(0)
        for number in range(1, 9):
            h.advance(12)
            assert report.start(number) == run
        assert run.wake_at == began + _seconds(100)
        h.advance(4)
        assert h.run_due() == 1
        assert run.output == 8

    def test_a_run_that_has_begun_is_left_alone(self, h: Harness) -> None:
        report = waits.using(key="k", debounce=30, at_most=60)
        first = report.start(1)
        h.run(first.id)
        second = report.start(2)
        assert second.is_new
        assert second != first
        assert first.state == "sleeping"
        assert waits.open_run(key="k") == second
        h.send(first.id, "go", "x")
        assert h.finish(first.id).output == (1, "x")
        assert waits.open_run(key="k") == second

    @pytest.mark.parametrize("if_open", ["return", "error", "replace"])
    def test_unless_it_is_said_what_becomes_of_it(self, h: Harness, if_open: Any) -> None:
        report = waits.using(key="k", debounce=30, at_most=60, if_open=if_open)
        first = report.start(1)
        h.advance(10)
        assert report.start(2) == first, "it has not begun: it is moved"
        h.run(first.id)
        if if_open == "error":
            with pytest.raises(KeyConflictError):
                report.start(3)
        else:
            assert (report.start(3) == first) == (if_open == "return")
        assert (first.state == "cancelled") == (if_open == "replace")

    def test_an_id_comes_first_and_moves_are_counted(self, h: Harness) -> None:
        report = other.using(key="k", debounce=30, at_most=60)
        began, first = h.now, report.using(id="a").start(1)
        h.advance(10)
        assert report.using(id="a").start(1) == first
        assert first.wake_at == began + _seconds(30), "the run of that id is returned, not moved"
        assert report.using(id="b").start(2) == first
        assert first.wake_at == began + _seconds(40)
        assert number_of("a") == 2
        key = runtime.current().store.keys(["a"])["a"]
        assert (key.moves, key.moved_at) == (1, h.now)

    @pytest.mark.parametrize("where", ["memory", "database"])
    @pytest.mark.parametrize("is_held", [False, True])
    def test_a_run_is_not_put_off_behind_its_deadline(self, where: Any, is_held: bool) -> None:
        report = other.using(key="k", debounce=40, at_most=300, deadline=60)
        with Harness(store=where) as h:
            if is_held:
                hold_starts(other)
            ends_at, first = h.now + _seconds(60), report.start(1)
            for number in (2, 3):
                h.advance(20)
                assert report.start(number) == first
            if is_held:
                release_starts(other)
            assert first.wake_at == ends_at
            h.advance(20)
            again = report.start(4)
            assert again.is_new, "the first one can only fail"
            assert number_of(first.id) == 3
            h.settle()
            assert (first.state, other.open_run(key="k")) == ("failed", again)
            assert h.finish(again).output == 4

    @pytest.mark.parametrize("where", ["memory", "database"])
    @pytest.mark.parametrize("if_open", [None, "return"])
    def test_a_child_keeps_what_its_parent_has_given(self, where: Any, if_open: Any) -> None:
        with Harness(store=where) as h:
            run = parent.using(id="p").start()
            h.settle()
            child = get_run("p:child")
            due_at = child.wake_at
            again = other.using(key="k", debounce=30, at_most=60, if_open=if_open).start(2)
            assert again.is_new == (if_open is None)
            assert other.open_run(key="k") == again
            assert child.wake_at == due_at
            assert h.finish(run).output == 1
            h.finish(again)
            assert again.output == (2 if again.is_new else 1)

    def test_in_each_database(self) -> None:
        with in_force():
            report = other.using(key="k", debounce=300, at_most=1_000)
            first = report.start(1)
            before = first.wake_at
            assert report.start(2) == first
            assert first.wake_at is not None
            assert before is not None
            assert first.wake_at >= before
            assert number_of(first.id) == 2


class TestRefusals:
    @pytest.mark.parametrize(
        ("how", "error", "text"),
        [
            ({"key": ""}, ValueError, "1 to 200 printable"),
            ({"key": "x" * 201}, ValueError, "1 to 200 printable"),
            ({"key": "a\nb"}, ValueError, "printable"),
            ({"key": 7}, TypeError, "str"),
            ({"key": "k", "if_open": "skip"}, ValueError, "'return', 'error', 'replace'"),
            ({"key": "k", "keep": "middle"}, ValueError, "'last', 'first'"),
            ({"if_open": "return"}, TypeError, "needs key"),
            ({"debounce": 1, "at_most": 2}, TypeError, "needs key"),
            ({"key": "k", "at_most": 2}, TypeError, "needs debounce"),
            ({"key": "k", "keep": "last"}, TypeError, "needs debounce"),
            ({"key": "k", "debounce": 1}, TypeError, "at_most"),
            ({"key": "k", "debounce": 10, "at_most": 2}, ValueError, "less than"),
            ({"key": "k", "debounce": 1, "at_most": 2, "delay": 1}, TypeError, "leave one out"),
        ],
    )
    def test_options(self, h: Harness, how: dict[str, Any], error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            other.using(**how).start(1)

    def test_start_many(self, h: Harness) -> None:
        with pytest.raises(TypeError, match="share one key"):
            other.using(key="k").start_many([(1,)])


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


# -- what is asked for twice under one id is done once, and says so, in each store


@workflow(name="tests.once.waits")
def waits_once(ctx: Any, number: int = 0) -> int:
    ctx.step("one", int)
    ctx.queue.next("go")
    return number


@workflow(name="tests.once.spelled")
def spelled(ctx: Any, order_id: int, *, priority: str = "low") -> None: ...


@pytest.mark.usefixtures("store")
class TestIsNew:
    def test_a_start_says_whether_it_made_the_run(self) -> None:
        assert waits_once.start().is_new is True
        first, again = waits_once.using(id="a").start(1), waits_once.using(id="a").start(1)
        assert (first.is_new, again.is_new, get_run("a").is_new) == (True, False, None)
        assert first == again == get_run("a")
        assert "is_new" not in repr(first)
        assert [each.is_new for each in waits_once.start_many([(1,), (2,)], ids=["a", "b"])] == [False, True]
        assert async_to_sync(waits_once.using(id="b").astart)(2).is_new is False

    def test_the_same_arguments_are_the_same_input_however_they_are_passed(self) -> None:
        first = spelled.using(id="order-42").start(42)
        assert spelled.using(id="order-42").start(order_id=42) == first
        assert spelled.using(id="order-42").start(42, priority="low") == first
        inputs = [spelled.input(order_id=42), spelled.input(43)]
        assert [each.is_new for each in spelled.start_many(inputs, ids=["order-42", "order-43"])] == [False, True]
        with pytest.raises(RunConflictError, match="another input"):
            spelled.using(id="order-42").start(order_id=42, priority="high")

    def test_so_do_restarts_and_replays(self) -> None:
        run = waits_once.using(id="a").start()
        assert [run.restart(id="b").is_new, run.restart(id="b").is_new, run.restart().is_new] == [True, False, True]
        with pytest.raises(RunConflictError):
            get_run("b").restart(id="a")


@pytest.mark.usefixtures("store")
class TestMessages:
    def test_the_same_message_again_is_the_first_one(self) -> None:
        run = waits_once.using(id="a").start()
        first = run.send("go", {"n": [1, 2.5, None]}, id="m")
        assert run.send("go", {"n": [1, 2.5, None]}, id="m") == first
        assert async_to_sync(run.asend)("go", {"n": [1, 2.5, None]}, id="m") == first
        assert run.send("go", {"n": [1, 2.5, None]}, id="m2") != first

    @pytest.mark.parametrize(
        ("queue", "body", "text"),
        [
            ("other", 1, 'to the queue "go", not to "other"; give this message another id'),
            ("go", 2, "with another body; give this message another id"),
            ("go", None, "with another body"),
        ],
    )
    def test_another_message_with_its_id_is_a_conflict(self, queue: str, body: Any, text: str) -> None:
        run = waits_once.using(id="a").start()
        run.send("go", 1, id="m")
        for _ in range(2):
            with pytest.raises(MessageConflictError) as caught:
                run.send(queue, body, id="m")
            assert text in str(caught.value)
            assert (caught.value.run_id, caught.value.message_id) == ("a", "m")
            run.cancel() if run.state == "pending" else None  # an ended run answers alike
        assert issubclass(MessageConflictError, DurableError)
        with pytest.raises(MessageConflictError):
            async_to_sync(run.asend)(queue, body, id="m")
        with pytest.raises(MessageConflictError):
            run.ask(queue, body, id="m", timeout=0)
        assert run.send("go", 1, id="m")
