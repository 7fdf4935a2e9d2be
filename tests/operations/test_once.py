"""What is asked for twice under one id is done once, and says so, in each store.

This holds for starts, restarts, replays and messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from durable import DurableError, MessageConflictError, RunConflictError, get_run, workflow
from durable.testing import Harness
from tests.support.stores import in_force

pytestmark = pytest.mark.django_db


@workflow(name="tests.once.waits")
def waits(ctx: Any, number: int = 0) -> int:
    ctx.step("one", int)
    ctx.queue.next("go")
    return number


@workflow(name="tests.once.spelled")
def spelled(ctx: Any, order_id: int, *, priority: str = "low") -> None: ...


@pytest.fixture(params=["memory", "database"])
def store(request: pytest.FixtureRequest) -> Iterator[None]:
    with Harness() if request.param == "memory" else in_force():
        yield


@pytest.mark.usefixtures("store")
class TestIsNew:
    def test_a_start_says_whether_it_made_the_run(self) -> None:
        assert waits.start().is_new is True
        first, again = waits.using(id="a").start(1), waits.using(id="a").start(1)
        assert (first.is_new, again.is_new, get_run("a").is_new) == (True, False, None)
        assert first == again == get_run("a")
        assert "is_new" not in repr(first)
        assert [each.is_new for each in waits.start_many([(1,), (2,)], ids=["a", "b"])] == [False, True]
        assert async_to_sync(waits.using(id="b").astart)(2).is_new is False

    def test_the_same_arguments_are_the_same_input_however_they_are_passed(self) -> None:
        first = spelled.using(id="order-42").start(42)
        assert spelled.using(id="order-42").start(order_id=42) == first
        assert spelled.using(id="order-42").start(42, priority="low") == first
        inputs = [spelled.input(order_id=42), spelled.input(43)]
        assert [each.is_new for each in spelled.start_many(inputs, ids=["order-42", "order-43"])] == [False, True]
        with pytest.raises(RunConflictError, match="another input"):
            spelled.using(id="order-42").start(order_id=42, priority="high")

    def test_so_do_restarts_and_replays(self) -> None:
        run = waits.using(id="a").start()
        assert [run.restart(id="b").is_new, run.restart(id="b").is_new, run.restart().is_new] == [True, False, True]
        with pytest.raises(RunConflictError):
            get_run("b").restart(id="a")


@pytest.mark.usefixtures("store")
class TestMessages:
    def test_the_same_message_again_is_the_first_one(self) -> None:
        run = waits.using(id="a").start()
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
        run = waits.using(id="a").start()
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
