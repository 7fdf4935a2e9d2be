"""Carriers that fail, are gone, or give what they may not: nothing is lost, or happens for the wrong tenant."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from durable import AsyncContext, Context, RollbackContext, carriers, runtime, workflow
from durable.checks.configuration import check_carriers
from durable.errors import CarrierError
from durable.testing import Harness
from tests.carry import carrying
from tests.carry.carrying import Broken, carrying_with, tenant
from tests.support.errors import check_failed

PATH = "tests.carry.carrying.Broken"


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    Broken.saves = staticmethod(lambda: "acme")
    Broken.restores = staticmethod(carrying.carry.restored)
    carriers._tell_of_unread.cache_clear()
    with carrying_with({"tenant": PATH}):
        yield


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness(strict=False) as harness:
        yield harness


DONE: list[Any] = []


def note(what: str) -> str:
    DONE.append((what, tenant.get()))
    return what


def undo(_context: RollbackContext, output: str) -> None:
    note(f"undo {output}")


@workflow(name="tests.carry.orders")
def orders(ctx: Context, fails: bool = False) -> str:
    ctx.rollback_checkpoint("begin")
    ctx.step("charge", note, "charge", rollback=undo)
    ctx.sleep("sleep", "1 hour")
    ctx.step("ship", note, "ship")
    if fails:
        raise ValueError("no")
    return "done"


@workflow(name="tests.carry.aorders")
async def aorders(ctx: AsyncContext) -> Any:
    return await ctx.step("charge", anote)


async def anote() -> str:
    return note("charge")


def refuse(*_: object) -> Any:
    raise LookupError("no such tenant")


@pytest.fixture(autouse=True)
def undone() -> None:
    DONE.clear()


# -- in save()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "set is not JSON serializable"),
        (float("nan"), "not JSON compliant"),
        ((1, 2), "does not give back, of type tuple"),
        ({1: "one"}, "does not give back, of type dict"),
        ("x" * 9_000, "saves too much: 9,"),
        (object, "not JSON serializable"),
    ],
    ids=["set", "nan", "tuple", "numbers as keys", "too large", "class"],
)
def test_what_is_not_json_is_refused_where_the_run_is_started(h: Harness, value: Any, why: str) -> None:
    Broken.saves = staticmethod(lambda: value)
    with pytest.raises(CarrierError, match='the carrier "tenant"') as refused:
        orders.using(id="run").start()
    assert why in str(refused.value)
    assert refused.value.name == "tenant"
    assert runtime.current().store.get("run") is None


def test_an_async_save_is_refused_without_a_warning(h: Harness) -> None:
    async def save() -> str:
        return "acme"

    Broken.saves = staticmethod(save)
    with pytest.raises(CarrierError, match="coroutine"):
        orders.start()


def test_what_save_raises_is_named_and_chained(h: Harness) -> None:
    Broken.saves = staticmethod(refuse)
    with pytest.raises(CarrierError) as refused:
        orders.using(id="run").start()
    assert str(refused.value) == (
        f'the carrier "tenant" of DURABLE["CARRY"] ({PATH}) has failed in save(): LookupError: no such tenant'
    )
    assert isinstance(refused.value.__cause__, LookupError)
    assert runtime.current().store.get("run") is None


def test_a_start_in_a_step_that_cannot_save_fails_the_step(h: Harness) -> None:
    run = h.start(starts)
    Broken.saves = staticmethod(refuse)
    assert h.finish(run).state == "failed"
    assert "has failed in save()" in str(h.peek(run).error)


@workflow(name="tests.carry.starts")
def starts(ctx: Context) -> None:
    ctx.step("start", lambda: orders.start().id, max_retries=0)


# -- in restored()


def not_a_manager(value: str) -> Any:
    return value


@contextmanager
def breaks_at_entry(value: str) -> Iterator[None]:
    raise LookupError("no such tenant")
    yield


@pytest.mark.parametrize("which", [refuse, not_a_manager, breaks_at_entry], ids=lambda each: each.__name__)
def test_a_carrier_that_fails_is_a_mistake_with_its_name_and_recover_goes_on(
    h: Harness, which: Callable[[str], Any]
) -> None:
    Broken.restores = staticmethod(which)
    run = h.start(orders)
    end = h.run(run)
    assert end.state == "failed"
    assert end.error is not None
    assert end.error.type == "CarrierError"
    assert end.error.message.startswith(f'the carrier "tenant" of DURABLE["CARRY"] ({PATH}) has failed in restored(): ')
    assert DONE == []
    Broken.restores = staticmethod(carrying.carry.restored)
    run.recover()
    assert h.finish(run).state == "completed"
    assert DONE == [("charge", "acme"), ("ship", "acme")]


def test_within_the_grace_period_the_run_waits_and_goes_on_by_itself() -> None:
    with Harness(divergence_grace=600, strict=False) as h:
        Broken.restores = staticmethod(refuse)
        run = h.start(orders)
        end = h.run(run)
        assert end.state == "sleeping"
        assert 'the carrier "tenant"' in str(run.info().summary)
        Broken.restores = staticmethod(carrying.carry.restored)
        assert h.finish(run).state == "completed"


def test_one_that_fails_in_the_middle_of_a_pass_records_no_attempt(h: Harness) -> None:
    times: Iterator[Any] = iter([carrying.carry.restored, refuse])
    Broken.restores = staticmethod(lambda value: next(times, refuse)(value))
    run = h.start(orders)
    check_failed(h.run(run), "CarrierError")
    assert DONE == []
    assert [each.location for each in run.history() if each.kind == "step"] == []
    Broken.restores = staticmethod(carrying.carry.restored)
    run.recover()
    assert h.finish(run).state == "completed"


def test_one_that_fails_before_an_async_step(h: Harness) -> None:
    times: Iterator[Any] = iter([carrying.carry.restored, refuse])
    Broken.restores = staticmethod(lambda value: next(times, refuse)(value))
    run = h.start(aorders)
    end = h.run(run)
    assert (end.state, end.error is not None and end.error.type) == ("failed", "CarrierError")
    assert DONE == []


def test_no_rollback_handler_is_called_for_the_wrong_tenant() -> None:
    with Harness(divergence_grace=600, strict=False) as h:
        run = h.start(orders.using(deadline="2 hours"), True)
        h.run(run)
        Broken.restores = staticmethod(refuse)
        h.advance("3 hours")
        end = h.run(run)
        assert end.state == "sleeping", "the deadline has passed, and its handlers would be called without a tenant"
        assert end.wake_at is not None
        assert end.wake_at > h.now, "it is not due all the time"
        run.cancel(rollback=True)
        assert h.run(run).state in ("sleeping", "rolling_back")
        assert DONE == [("charge", "acme")]
        Broken.restores = staticmethod(carrying.carry.restored)
        h.finish(run)
        assert ("undo charge", "acme") in DONE


def test_a_compensation_stops_and_recover_continues_it(h: Harness) -> None:
    run = h.start(orders, True)
    h.run(run)
    h.advance("1 hour")
    kept: list[Any] = []

    def once_more(value: str) -> Any:
        kept.append(value)
        return carrying.carry.restored(value) if len(kept) < 3 else refuse()

    Broken.restores = staticmethod(once_more)
    end = h.run(run)
    assert end.state == "failed"
    assert DONE == [("charge", "acme"), ("ship", "acme")]
    Broken.restores = staticmethod(carrying.carry.restored)
    run.recover()
    h.finish(run)
    assert DONE[-1] == ("undo charge", "acme")


def test_a_pause_and_a_cancel_need_no_carrier(h: Harness) -> None:
    Broken.restores = staticmethod(refuse)
    run = h.start(orders)
    run.pause()
    assert run.state == "paused"
    run.resume()
    run.cancel()
    assert run.state == "cancelled"


# -- at the end of restored()


@contextmanager
def breaks_at_exit(value: str) -> Iterator[None]:
    with carrying.carry.restored(value):
        yield
    raise LookupError("left too late")


def test_an_error_at_the_end_is_logged_and_changes_nothing(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    Broken.restores = staticmethod(breaks_at_exit)
    run = h.start(orders)
    with caplog.at_level(logging.ERROR, "durable.pass"):
        assert h.finish(run).state == "completed"
    assert 'the carrier "tenant"' in caplog.text
    assert "left too late" in caplog.text
    assert tenant.get() is None


def test_it_swallows_no_error(h: Harness) -> None:
    class Swallows:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> bool:
            assert error == (None, None, None)
            return True

    Broken.restores = staticmethod(lambda _value: Swallows())
    run = h.start(orders, True)
    assert h.finish(run).state == "failed"
    assert str(h.peek(run).error).startswith("ValueError")


def test_those_before_a_failed_one_are_left(h: Harness) -> None:
    left: list[str] = []

    @contextmanager
    def first(_value: str) -> Iterator[None]:
        try:
            yield
        finally:
            left.append("first")

    Broken.saves, Broken.restores = staticmethod(lambda: "one"), staticmethod(first)
    with carrying_with({"first": PATH, "second": "tests.carry.carrying.RefusesToRestore"}):
        run = h.start(orders)
        assert h.run(run).state == "failed"
    assert left == ["first"]


# -- gone, or other than before


def test_one_that_is_gone_leaves_its_value_unread_and_says_so(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    run = h.start(orders)
    with carrying_with({}), caplog.at_level(logging.WARNING, "durable.pass"):
        h.run(run)
        assert DONE == [("charge", None)]
        assert caplog.text.count('nobody reads the value of "tenant"') == 1, "once for each run, not for each step"
    h.finish(run)
    assert DONE == [("charge", None), ("ship", "acme")], "its value is kept"


def test_a_setting_that_is_none_stops_no_worker(h: Harness) -> None:
    run = h.start(orders)
    with carrying_with(None):
        h.run(run)
        assert orders.start().state == "pending"
    assert DONE == [("charge", None)]


def test_an_async_rollback_handler_and_a_race_have_it(h: Harness) -> None:
    run = h.start(aundone)
    assert h.finish(run).state == "failed"
    assert DONE == [("one", "acme"), ("two", "acme"), ("undo", "acme")]


@workflow(name="tests.carry.aundone")
async def aundone(ctx: AsyncContext) -> None:
    await ctx.rollback_checkpoint("begin")
    await ctx.race("race", {"a": first, "b": second})
    await ctx.step("two", note, "two", rollback=aundo)
    raise ValueError("no")


async def first(ctx: AsyncContext) -> str:
    return await ctx.step("one", note, "one")


async def second(ctx: AsyncContext) -> None:
    await ctx.sleep("sleep", "1 hour")


async def aundo(_context: RollbackContext, _output: str) -> None:
    note("undo")


def test_the_other_carriers_of_a_run_go_on_without_one_that_is_gone(h: Harness) -> None:
    with carrying_with({"gone": PATH, "tenant": PATH}):
        run = h.start(orders)
    h.run(run)
    assert DONE == [("charge", "acme")]


def test_children_keep_what_this_process_cannot_read(h: Harness) -> None:
    with carrying_with({"gone": PATH}):
        run = h.start(parent)
    h.finish(run)
    row = runtime.current().store.get(f"{run.id}:child")
    assert row is not None
    assert json.loads(row.carried or "") == {"gone": "acme"}


@workflow(name="tests.carry.parent")
def parent(ctx: Context) -> Any:
    return ctx.child("child", starts_nothing)


@workflow(name="tests.carry.starts_nothing")
def starts_nothing(ctx: Context) -> None: ...


def test_a_carrier_that_is_new_is_not_asked_to_restore(h: Harness) -> None:
    with carrying_with({}):
        run = h.start(orders)
    h.run(run)
    assert DONE == [("charge", None)]


# -- the setting


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("tests.carry.carrying.nothing", "nothing"),
        ("no.such.module", "No module named"),
        ("tests.carry.carrying.SavesOnly", "has no restored()"),
        ("tests.carry.carrying.NeedsArguments", "missing 1 required positional argument"),
        ("tests.carry.carrying.tenant", "has no save() and no restored()"),
    ],
)
def test_a_carrier_that_cannot_be_used_is_an_error_of_the_check_and_of_a_start(path: str, why: str) -> None:
    with carrying_with({"tenant": path}), Harness():
        [found] = check_carriers()
        assert (found.id, why in found.msg) == ("durable.E027", True), found.msg
        with pytest.raises(CarrierError, match='the carrier "tenant"'):
            orders.start()


@pytest.mark.parametrize(
    "path",
    ["tests.carry.carrying.carry", "tests.carry.carrying.Tenant", "tests.carry.carrying.factory", "tests.carry.module"],
)
def test_an_object_a_class_a_function_and_a_module_are_carriers(h: Harness, path: str) -> None:
    with carrying_with({"tenant": path}):
        assert check_carriers() == []
        with carrying.carry.restored("acme"):
            run = h.start(orders)
        h.finish(run)
    assert DONE == [("charge", "acme"), ("ship", "acme")]


def test_the_values_of_an_observer_change_nothing(h: Harness) -> None:
    """What was there before observers are called is there after them: a carrier is none."""
    run = h.start(orders)
    with carrying.carry.restored("outside"):
        h.finish(run)
        assert tenant.get() == "outside"
    assert DONE == [("charge", "acme"), ("ship", "acme")]
