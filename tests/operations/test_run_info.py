"""What code learns of runs: one by one, several at once, in lists, and two compared; in few queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import Http404
from django.test.utils import CaptureQueriesContext

from durable import Context, Handle, RollbackContext, aget_run, aruns_info, get_run, runs_info, runtime, workflow
from durable.errors import RunNotFoundError
from durable.models import Run
from durable.operations import Actor, HistoryDifference, RunInfo, acting_as
from durable.shortcuts import aget_run_or_404, get_run_or_404
from durable.testing import Harness
from tests.operations.conftest import NOW
from tests.support.stores import in_force, passed


@workflow(name="tests.info.order")
def order(ctx: Context, number: int) -> dict[str, int]:
    ctx.queue.next("approval", names=["approved", "rejected"], timeout="1 day")
    return {"number": number}


@workflow(name="tests.info.fail")
def fail(ctx: Context) -> None:
    raise ValueError("no")


def assert_is_all_of(info: RunInfo, handle: Handle) -> None:
    same = ("id", "workflow", "state", "summary", "output", "error", "wake_at", "waiting_for")
    assert [getattr(info, each) for each in same] == [getattr(handle, each) for each in same]


@workflow(name="tests.info.pack")
def pack(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.queue.next("approval", names=["approved", "rejected"])
    ctx.step("pack", lambda: WAITS.append(awaited(ctx.run_id)), rollback=note)
    raise ValueError("no")


WAITS: list[list[Any]] = []


def awaited(run_id: str) -> list[Any]:
    """What users and operators learn of the queues for which a run waits."""
    row = RunInfo.of(runtime.current().store.get(run_id))  # type: ignore[arg-type]  # it is there
    return [row.state, row.waiting_for, get_run(run_id).waiting_for]


def note(rollback: RollbackContext, _output: object) -> None:
    WAITS.append(awaited(rollback.run_id))


def test_a_run_waits_for_no_message_once_it_has_arrived(h: Harness) -> None:
    WAITS.clear()
    run = pack.start()
    h.run(run)
    assert awaited(run.id) == ["sleeping", ["approved", "rejected"], ["approved", "rejected"]]
    h.send(run, "approved")
    h.run(run)
    assert run.state == "failed"
    assert WAITS == [["running", None, None], ["rolling_back", None, None]]


def test_info_is_what_the_properties_say(h: Harness) -> None:
    run = order.using(id="order-1", queue="high").start(7)
    before = run.info()
    assert (before.state, before.queue, before.created_at, before.started_at) == ("pending", "high", NOW, None)
    assert_is_all_of(before, run)
    h.run(run)
    waiting = run.info()
    assert (waiting.state, waiting.waiting_for, waiting.has_ended) == ("sleeping", ["approved", "rejected"], False)
    assert waiting.wake_at == NOW + timedelta(days=1)
    assert_is_all_of(waiting, run)
    h.send(run, "approved")
    h.finish(run)
    ended = run.info()
    assert (ended.state, ended.output, ended.has_ended, ended.finished_at) == ("completed", {"number": 7}, True, NOW)
    assert_is_all_of(ended, run)
    assert before.state == "pending"
    with pytest.raises(dataclasses.FrozenInstanceError):
        ended.state = "failed"  # type: ignore[misc]  # that is the question
    ended.output["number"] = 8
    assert ended.output == {"number": 7}


def test_the_error_of_a_failed_one(h: Harness) -> None:
    run = fail.start()
    h.finish(run)
    assert_is_all_of(run.info(), run)
    assert (run.info().error.type, run.info().error.message) == ("ValueError", "no")  # type: ignore[union-attr]


async def test_each_property_has_a_twin(h: Harness) -> None:
    run = await order.using(id="order-1").astart(7)
    await run.asend("approved")
    assert await run.aresult(timeout=1) == {"number": 7}
    info = await run.ainfo()
    assert info == run.info()
    twins = [
        await run.astate(),
        await run.aoutput(),
        await run.aerror(),
        await run.awake_at(),
        await run.awaiting_for(),
        await run.asummary(),
        await run.aworkflow(),
    ]
    assert twins == ["completed", {"number": 7}, None, None, None, run.summary, "tests.info.order"]
    assert await aruns_info([run.id, "none"]) == {run.id: info}


@pytest.mark.parametrize("look", [lambda run: run.info(), lambda run: run.state])
def test_of_no_run(h: Harness, look: Callable[[Handle], Any]) -> None:
    with pytest.raises(RunNotFoundError):
        look(Handle("none"))


def test_several_at_once(h: Harness) -> None:
    runs = order.start_many([(1,), (2,), (3,)], ids=["a", "b", "c"])
    found = runs_info(["c", "none", "a"])
    assert list(found) == ["c", "a"]
    assert found["a"] == runs[0].info()
    assert runs_info([]) == {}
    with pytest.raises(TypeError, match="a run's id is text, not 5"):
        runs_info([5])  # type: ignore[list-item]


def test_a_run_of_the_wrong_workflow(h: Harness) -> None:
    order.using(id="order-1").start(7)
    assert get_run("order-1", of=order).id == get_run_or_404("order-1", of=order).id == "order-1"
    with pytest.raises(RunNotFoundError) as caught:
        get_run("order-1", of=fail)
    assert str(caught.value) == 'run "order-1" is a run of "tests.info.order", not of "tests.info.fail"; check the id'
    for run_id, of in (("order-1", fail), ("order-2", order), ("order-2", None)):
        with pytest.raises(Http404):
            get_run_or_404(run_id, of)


async def test_a_run_of_the_wrong_workflow_from_async_code(h: Harness) -> None:
    await order.using(id="order-1").astart(7)
    assert (await aget_run("order-1", of=order)).id == (await aget_run_or_404("order-1")).id
    with pytest.raises(RunNotFoundError):
        await aget_run("order-1", of=fail)
    with pytest.raises(Http404):
        await aget_run_or_404("order-1", of=fail)


@pytest.mark.redis
@pytest.mark.django_db
class TestRows:
    """On the real store."""

    def test_one_query_each(self) -> None:
        order.start_many([(1,), (2,), (3,)], ids=["a", "b", "c"])
        run = get_run("b")
        for look in (run.info, lambda: runs_info(["a", "b", "c", "none"])):
            with CaptureQueriesContext(connection) as captured:
                look()
            assert len(captured) == 1
        with CaptureQueriesContext(connection) as captured:
            listed = [RunInfo.of(each) for each in Run.objects.of_workflow(order).open()]
        assert len(captured) == 1
        assert sorted(each.id for each in listed) == ["a", "b", "c"]
        assert next(each for each in listed if each.id == "b") == run.info() == runs_info(["b"])["b"]

    def test_lists_by_name(self) -> None:
        order.start_many([(1,), (2,), (3,), (4,)], ids=["open", "later", "cancelled", "paused"])
        fail.using(id="other").start()
        Run.objects.filter(pk="later").update(wake_at=datetime.now(UTC) + timedelta(hours=1))
        get_run("cancelled").cancel()
        get_run("paused").pause()

        def ids(runs: Any) -> set[str]:
            return {each.pk for each in runs}

        orders = Run.objects.of_workflow(order)
        assert (
            ids(orders) == ids(Run.objects.of_workflow("tests.info.order")) == {"open", "later", "cancelled", "paused"}
        )
        assert ids(Run.objects.of_workflow(order, fail)) == ids(Run.objects.all())
        assert ids(orders.open()) == {"open", "later", "paused"}
        assert ids(orders.ended()) == ids(orders.cancelled()) == {"cancelled"}
        assert ids(orders.failed()) == ids(orders.completed()) == set()
        assert ids(orders.in_state("paused", "cancelled")) == {"paused", "cancelled"}
        assert ids(orders.due()) == {"open"}
        with pytest.raises(ValueError, match="'asleep' is not a valid RunState"):
            orders.in_state("asleep")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["memory", "database"])
def test_a_run_that_a_worker_has_goes_on_at_no_moment(name: str) -> None:
    with Harness() if name == "memory" else in_force():
        run = order.using(id="held", delay="1 hour").start(1)
        assert run.wake_at == run.info().wake_at is not None
        at = runtime.current()
        now = at.now() + timedelta(hours=2)
        assert at.store.claim_run("held", now=now, lease_until=now + timedelta(minutes=1), worker="w") is not None
        assert (run.info().state, run.info().wake_at, run.wake_at) == ("running", None, None)


# -- two runs compared from code: what differs, place by place, on a harness and in each store


BROKEN: list[str] = []


def charge(number: int) -> int:
    if BROKEN:
        raise ValueError(BROKEN[0])
    return number


@workflow(name="tests.comparison.order")
def charging(ctx: Context, number: int, extra: str = "") -> int:
    charged = ctx.step("charge", charge, number, max_retries=0)
    if extra:
        ctx.step(extra, len, extra)
    return charged


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    BROKEN.clear()
    yield
    BROKEN.clear()


def told(found: list[HistoryDifference]) -> dict[str, tuple[str, ...]]:
    return {each.location: each.differs for each in found}


def test_two_runs_are_compared_place_by_place(h: Harness) -> None:
    for name in ("one", "same"):
        h.finish(charging.using(id=name).start(7))
    h.finish(charging.using(id="other").start(8, "note"))
    assert get_run("one").compare("same") == []
    found = get_run("one").compare(get_run("other"))
    assert told(found) == {"charge": ("output",), "note": ("place",)}
    [_, note] = found
    assert note.left is None
    assert note.right is not None
    assert note.right.data["output"] == len("note")
    assert told(get_run("other").compare("one")) == {"charge": ("output",), "note": ("place",)}


def test_failures_and_what_was_given_by_hand_differ(h: Harness) -> None:
    BROKEN.append("no answer")
    failed = charging.using(id="failed").start(7)
    h.finish(failed)
    BROKEN[:] = ["another answer"]
    other = charging.using(id="other").start(7)
    h.finish(other)
    assert told(failed.compare(other)) == {"charge": ("error",)}
    BROKEN.clear()
    with acting_as(Actor("cli", label="ada"), reason="asked the bank"):
        given = failed.give_output("charge", 7, id="given")
    h.finish(given)
    assert told(failed.compare(given)) == {"charge": ("status", "error", "output", "given by hand")}


def test_a_run_that_is_not_there(h: Harness) -> None:
    h.finish(charging.using(id="one").start(7))
    for left, right in (("one", "none"), ("none", "one")):
        with pytest.raises(RunNotFoundError):
            Handle(left).compare(right)


async def test_the_twin_says_the_same(h: Harness) -> None:
    for name, number in (("one", 7), ("two", 8)):
        await h.afinish(await charging.using(id=name).astart(number))
    assert await get_run("one").acompare("two") == get_run("one").compare("two")


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_on_each_store() -> None:
    with in_force() as at:
        one, two = charging.using(id="one").start(7), charging.using(id="two").start(8)
        for each in (one, two):
            passed(at, each.id)
        assert told(one.compare(two)) == {"charge": ("output",)}
