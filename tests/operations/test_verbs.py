"""The verbs that start and steer runs: in each state, and what they refuse."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, get_origin

import pytest
from django.test import override_settings

from durable import Handle, get_run, workflow
from durable.core import registry
from durable.errors import (
    InvalidTransitionError,
    PayloadError,
    RunCancelledError,
    RunConflictError,
    RunFailedError,
    RunNotFoundError,
)
from durable.operations.audit import Actor, acting_as
from durable.testing import Harness
from tests.core import undoing
from tests.core.driving import evicted_pass
from tests.operations.conftest import NOW


@workflow(name="tests.verbs.order", queue="high")
def order(ctx: Any, number: int, *, express: bool = False) -> Any:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", lambda: number, rollback=undoing.undo)
    ctx.sleep("rest", 3600)
    return number, express


#: the same, for arguments that a type checker refuses
ANY_ORDER: Any = order


@workflow(name="tests.verbs.other")
def other(ctx: Any, number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def _nothing_undone() -> None:
    undoing.undone.clear()
    undoing.fails_left.clear()


# -- starting


def test_a_start_makes_a_pending_run_with_an_id_of_its_own(h: Harness) -> None:
    one, two = order.start(1), order.start(1, express=True)
    assert one.id != two.id
    assert (one.state, one.workflow, one.wake_at, one.output, one.error) == (
        "pending",
        "tests.verbs.order",
        NOW,
        None,
        None,
    )
    assert h._store.get(one.id).queue == "high"  # type: ignore[union-attr]
    assert h.finish(one).output == (1, False)
    assert h.finish(two).output == (1, True)


def test_a_start_with_an_id_that_exists_is_that_run(h: Harness) -> None:
    one = order.using(id="order-1").start(1)
    assert order.using(id="order-1").start(1) == one
    h.finish(one)
    assert order.using(id="order-1").start(1) == one
    assert one.state == "completed"


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (lambda: order.using(id="order-1").start(2), "with another input; choose another id"),
        (lambda: order.using(id="order-1").start(1, express=True), "with another input"),
        (lambda: other.using(id="order-1").start(1), 'as a run of "tests.verbs.order", not of "tests.verbs.other"'),
        (lambda: order.using(id="order-1", on_conflict="error").start(1), 'on_conflict="error" was asked for'),
    ],
)
def test_a_start_that_is_another_is_a_conflict(h: Harness, start: Callable[[], Any], text: str) -> None:
    order.using(id="order-1").start(1)
    with pytest.raises(RunConflictError) as caught:
        start()
    assert text in str(caught.value)
    assert caught.value.run_id == "order-1"
    assert get_run("order-1").state == "pending"


def test_a_timeout_that_is_over_takes_what_is_there(h: Harness) -> None:
    run = order.start(1)
    with pytest.raises(TimeoutError, match="after 0 s"):
        run.result(timeout=-5)
    with pytest.raises(TimeoutError, match="after 0 s"):
        run.ask("q", timeout=-5)
    h.finish(run)
    assert run.result(timeout=-5) == run.output


@pytest.mark.parametrize("timeout", ["10 ms", timedelta(milliseconds=10), 0.01, "-5 s", timedelta(days=-5)])
def test_a_wait_for_a_result_or_an_answer_takes_every_form_of_a_duration(h: Harness, timeout: Any) -> None:
    run = order.start(1)
    with pytest.raises(TimeoutError):
        run.result(timeout=timeout)
    with pytest.raises(TimeoutError):
        run.ask("q", timeout=timeout)
    with pytest.raises(TimeoutError):
        asyncio.run(run.aresult(timeout=timeout))
    with pytest.raises(TimeoutError):
        asyncio.run(run.aask("q", timeout=timeout))


@pytest.mark.parametrize(("timeout", "error"), [("soon", ValueError), ([5], TypeError), (float("nan"), ValueError)])
def test_an_unreadable_timeout_is_refused_by_name_before_a_message_is_sent(
    h: Harness, timeout: Any, error: type[Exception]
) -> None:
    run = order.start(1)
    with pytest.raises(error, match="a timeout"):
        run.result(timeout=timeout)
    with pytest.raises(error, match="a timeout"):
        run.ask("q", timeout=timeout, id="m")
    assert run.send("q", "another", id="m"), "a conflict, had the first one been sent"


def test_a_delay_and_another_queue(h: Harness) -> None:
    assert order.using(delay=timedelta(days=-42)).start(1).wake_at == h.now
    h.settle()
    run = order.using(delay="1 minute", queue="default").using(id="x").start(1)
    assert run.wake_at == NOW + timedelta(minutes=1)
    assert run.info().queue == "default"
    assert h.run_due() == 0
    h.advance(60)
    assert h.run_due() == 1


def test_using_leaves_the_workflow_as_it_is(h: Harness) -> None:
    how = order.using(id="a", queue="low", delay=60)
    later = how.using(delay=120, on_conflict="error")
    assert (how.name, how.queue, order.queue) == (order.name, "low", "high")
    assert registry.get(order.name) is order
    assert how.start(1).id == how.start(1).id == "a"
    assert how.start(1).wake_at == h.now + timedelta(seconds=60)
    with pytest.raises(RunConflictError):
        later.start(1)
    assert order.start(1).id != "a"
    assert h.start(order.using(id="b"), 2).id == "b"


def test_handles_are_what_they_were() -> None:
    handle = Handle[int]  # what a type checker reads
    assert get_origin(handle) is Handle
    assert pickle.loads(pickle.dumps(Handle("a", is_new=True))) == Handle("a")
    assert not hasattr(Handle("a"), "__dict__")


def test_start_many_takes_arguments_and_inputs(h: Harness) -> None:
    handles = order.start_many([(1,), [2], (3,)], ids=["a", "b", "c"])
    assert [each.id for each in handles] == ["a", "b", "c"]
    assert order.start_many([(1,), (2,)], ids=["a", "d"])[0] == handles[0]
    assert [h.finish(each).output[0] for each in handles] == [1, 2, 3]
    assert order.start_many([]) == []
    handles = order.start_many([order.input(1), order.input(2, express=True), order.using(queue="low").input(3)])
    assert [h.finish(each).output for each in handles] == [(1, False), (2, True), (3, False)]
    with pytest.raises(TypeError, match=r"start_many of tests.verbs.order got an input of tests.verbs.other"):
        ANY_ORDER.start_many([other.input(1)])


@pytest.mark.parametrize(
    ("start", "error", "text"),
    [
        (lambda: ANY_ORDER.start(), TypeError, "cannot be started with these arguments: missing a required argument"),
        (lambda: ANY_ORDER.start(1, 2), TypeError, "too many positional arguments"),
        (lambda: ANY_ORDER.start(1, sku=2), TypeError, "unexpected keyword argument 'sku'"),
        (lambda: ANY_ORDER.start(object()), PayloadError, "the input of tests.verbs.order"),
        (lambda: ANY_ORDER.start(lambda: 1), PayloadError, "the input of tests.verbs.order"),
        (lambda: order.using(id="").start(1), ValueError, "1 to 200 characters"),
        (lambda: order.using(id="x" * 201).start(1), ValueError, "this one has 201"),
        (lambda: order.using(id="a/b").start(1), ValueError, 'printable characters without "/"'),
        (lambda: order.using(id="a\nb").start(1), ValueError, "printable"),
        (lambda: order.using(id=5).start(1), TypeError, "a run's id is text, not 5"),  # type: ignore[arg-type]
        (
            lambda: order.using(delay="9999999 days").start(1),
            ValueError,
            "ends after the year 9999: choose a shorter one",
        ),
        (lambda: order.using(on_conflict="ignore"), ValueError, 'is "return" or "error"'),  # type: ignore[arg-type]
        (lambda: order.using(id="x").start_many([(1,)]), TypeError, "cannot share one id"),
        (lambda: order.start_many([(1,), (2,)], ids=["a"]), ValueError, ""),
        (lambda: order.start_many(["ab"]), TypeError, "a tuple of arguments for each run"),
    ],
)
def test_a_start_that_cannot_be_starts_nothing(
    h: Harness, start: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        start()
    assert text in str(caught.value)
    assert h._store.queues() == []


def test_an_output_that_the_codec_refuses_fails_the_run_without_compensation(h: Harness) -> None:
    def bad(ctx: Any) -> Any:
        ctx.rollback_checkpoint("from here")
        ctx.step("charge", lambda: 1, rollback=undoing.undo)
        return lambda: 1

    run = h.start(bad)
    assert h.run(run).state == "failed"
    assert run.error is not None
    assert (run.error.type, undoing.undone) == ("PayloadError", [])
    assert "the output of the workflow" in run.error.message


def test_each_pass_gets_a_copy_of_the_input(h: Harness) -> None:
    seen = []

    def mutating(ctx: Any, given: list[int]) -> None:
        seen.append(given[:])
        given.append(2)
        ctx.sleep("rest", 60)

    with override_settings(DURABLE={"GUARD": "off"}):  # which would tell of the change
        h.finish(h.start(mutating, [1]))
    assert seen == [[1], [1]]


def test_start_many_starts_all_or_none(h: Harness) -> None:
    order.using(id="b").start(1)
    with pytest.raises(RunConflictError):
        order.start_many([(1,), (2,), (3,)], ids=["a", "b", "c"])
    with pytest.raises(RunNotFoundError):
        get_run("a")


# -- steering, in every state


def pending(h: Harness) -> Handle:
    return order.using(id="run").start(1)


def sleeping(h: Harness) -> Handle:
    run = pending(h)
    h.run(run)
    return run


def running(h: Harness) -> Handle:
    run = pending(h)
    h._store.claim_run(run.id, now=h.now, lease_until=h.now + timedelta(seconds=30), worker="busy")
    return run


def failed(h: Harness) -> Handle:
    def fails(ctx: Any) -> None:
        raise ValueError("why")

    run = h.start(fails, id="run")
    h.run(run)
    return run


ARGUMENTS = {"send": ("q",), "move": ("default",)}


@pytest.mark.parametrize(
    "verb", ["pause", "resume", "cancel", "recover", "wake", "move", "restart", "send", "result", "history"]
)
def test_a_verb_on_nothing(h: Harness, verb: str) -> None:
    with pytest.raises(RunNotFoundError, match='there is no run "nobody"'):
        getattr(Handle("nobody"), verb)(*ARGUMENTS.get(verb, ()))


def test_a_move_keeps_the_wait_and_is_logged_with_both_queues(h: Harness) -> None:
    run = sleeping(h)
    before = run.wake_at
    with acting_as(Actor("cli", label="ada")):
        run.move("default")
    assert (run.info().queue, run.state, run.wake_at) == ("default", "sleeping", before)
    assert [(each.action, each.detail) for each in h.actions] == [("move", 'from the queue "high" to "default"')]
    h.advance("1 day")
    h.settle()
    assert run.state == "completed"


def test_a_run_is_not_moved_where_no_worker_can_be(h: Harness) -> None:
    run = sleeping(h)
    with pytest.raises(
        ValueError, match=r'no worker can serve the queue "hihg": did you mean "high"\? RQ_QUEUES has default, high'
    ):
        run.move("hihg")
    with pytest.raises(InvalidTransitionError, match='run "run" is in the queue "high" already'):
        run.move("high")
    assert run.info().queue == "high"


def test_a_paused_run_waits_for_resume(h: Harness) -> None:
    run = sleeping(h)
    run.pause()
    h.advance("1 day")
    assert h.run_due() == 0
    assert h.run(run).state == "paused"
    run.resume()
    assert h.run_due() == 1
    assert run.state == "completed"


def test_what_comes_while_it_is_paused_is_kept(h: Harness) -> None:
    run = h.start(lambda ctx: ctx.queue.next("wait", names=[]).body)
    h.run(run)
    run.pause()
    h.send(run, "q", 5)
    assert h.run_due() == 0
    run.resume()
    h.settle()
    assert run.output == 5


@pytest.mark.parametrize(("verb", "state"), [("pause", "paused"), ("cancel", "cancelled")])
def test_a_running_run_stops_at_its_next_operation(h: Harness, verb: str, state: str) -> None:
    calls: list[str] = []

    def steer() -> None:
        calls.append("a")
        getattr(get_run("run"), verb)()

    def ship(ctx: Any) -> str:
        ctx.step("a", steer)
        ctx.step("b", lambda: calls.append("b"))
        return "done"

    run = h.start(ship, id="run")
    assert h.run(run).state == state
    assert calls == ["a"]
    assert [each.location for each in run.history()] == ["a"]
    if verb == "pause":
        run.resume()
        assert h.finish(run).output == "done"
        assert calls == ["a", "b"]


def test_a_pause_can_be_taken_back_before_the_run_comes_to_it(h: Harness) -> None:
    run = running(h)
    run.pause()
    assert run.state == "running"
    run.resume()
    h.advance(60)
    assert h.run(run).state == "sleeping"


def test_a_running_run_that_is_cancelled_with_rollback_compensates(h: Harness) -> None:
    def ship(ctx: Any) -> None:
        ctx.rollback_checkpoint("from here")
        ctx.step("a", lambda: get_run("run").cancel("enough", rollback=True), rollback=undoing.undo)
        ctx.step("b", int)

    run = h.start(ship, id="run")
    assert h.run(run).state == "cancelled"
    assert undoing.undone == [None]


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("is_held", [True, False])
def test_a_cancel_that_a_worker_has_not_come_to_stands(h: Harness, rollback: bool, is_held: bool) -> None:
    run = running(h)
    run.cancel(rollback=rollback, reason="first")
    if not is_held:
        h.advance(3600)  # and the worker with it
    with pytest.raises(InvalidTransitionError, match=r"cannot pause .* being cancelled"):
        run.pause()
    with pytest.raises(InvalidTransitionError, match=r"cannot cancel .* being cancelled"):
        run.cancel(rollback=not rollback, reason="second")
    run.cancel(rollback=rollback, reason="first")
    h.advance(3600)
    assert h.run(run).state == "cancelled"


def test_an_evicted_run_that_was_to_be_paused_is_paused_by_the_next_pass(h: Harness) -> None:
    calls: list[str] = []

    def pause() -> None:
        calls.append("a")
        get_run("run").pause()

    def ship(ctx: Any) -> None:
        ctx.step("a", pause)
        ctx.step("b", lambda: calls.append("b"))

    run = h.start(ship, id="run")
    evicted_pass(h, "run", when=lambda: bool(calls))
    h.settle()
    assert run.state == "paused"
    assert calls == ["a"]


def test_results(h: Harness) -> None:
    assert other.start(4).result() == 4
    with pytest.raises(RunFailedError, match='run "run" failed: ValueError: why') as caught:
        failed(h).result()
    assert caught.value.error.type == "ValueError"
    cancelled = order.start(1)
    cancelled.cancel("no more")
    with pytest.raises(RunCancelledError, match=f'run "{cancelled.id}" was cancelled: no more'):
        cancelled.result()


def test_wake_tries_steps_in_backoff_at_once(h: Harness) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) < 2:
            raise ValueError
        return len(calls)

    run = h.start(lambda ctx: ctx.step("a", flaky, retry_backoff_base=3600, retry_backoff_max=3600))
    assert h.run(run).state == "sleeping"
    run.wake()
    assert h.run_due() == 1
    assert run.output == 2


def test_wake_may_end_sleeps(h: Harness) -> None:
    run = sleeping(h)
    run.wake()
    h.settle()
    assert run.state == "sleeping"
    run.wake(end_sleeps=True)
    h.settle()
    assert run.state == "completed"


def test_restart_is_a_new_run_with_the_same_input(h: Harness) -> None:
    old = order.using(id="old", queue="high").start(5, express=True)
    h.finish(old)
    new = old.restart()
    assert new.id != old.id
    record = h._store.get(new.id)
    assert record is not None
    assert (record.queue, record.replay_of_id, record.workflow) == ("high", "old", "tests.verbs.order")
    assert h.finish(new).output == (5, True)


def test_a_start_from_a_step_knows_its_parent(h: Harness) -> None:
    run = h.start(lambda ctx: ctx.step("start", lambda: other.start(1).id), id="parent")
    child = h.run(run).output
    record = h._store.get(child)
    assert record is not None
    assert record.parent_id == "parent"


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("resume", "completed")])
def test_what_is_asked_for_while_a_pass_is_about_to_pause_is_not_lost(h: Harness, verb: str, state: str) -> None:
    """The pass has read the pause, and its code is cleaning up, when the operator thinks better of it."""
    asked: list[str] = []

    @workflow(name="tests.thinking_better")
    def pausing(ctx: Any) -> None:
        run = get_run(ctx.run_id)
        ctx.step("pause", run.pause)
        try:
            ctx.step("b", lambda: None)
        finally:
            if not asked:
                asked.append(verb)
                getattr(run, verb)()

    handle = h.start(pausing)
    h.settle()
    assert asked == [verb]
    assert handle.state == state
