"""Starts that a rate may refuse, in each store: what takes a unit, what is rolled back, what is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from durable import Context, Limit, get_run, runtime, workflow
from durable.core.limits.rates import LimitClosing, RateKeyRow
from durable.errors import KeyConflictError, RunConflictError, StartRefusedError, UnknownLimitError
from durable.operations.audit import Actor, acting_as
from durable.operations.rates import close_limit, open_limit
from durable.testing import Harness
from tests.support.stores import in_force

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 4, 14, 0, tzinfo=UTC)
LIMITS = {"start-rates": {"rate": "1/hour"}, "start-burst": {"rate": "1/hour", "burst": 3}}


@workflow(name="start_rates.plain")
def plain(ctx: Context, number: int = 0) -> int:
    return number


@workflow(name="start_rates.own", limit=Limit("start-own", rate="1/hour", key=lambda team: team))
def own(ctx: Context, team: str) -> str:
    return team


@workflow(name="start_rates.waits")
def waits(ctx: Context, number: int = 0) -> int:
    return int(ctx.queue.next("go").body)


dropped = plain.using(rate="start-rates/acme", when_full="drop")


@pytest.fixture(autouse=True)
def limits(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": LIMITS}


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness(NOW) as harness:
        yield harness


def row(store: Any, limit: str = "start-rates", key: str = "acme") -> RateKeyRow:
    [found] = store.rate_keys(limit, [key], runtime.current().now())
    return found  # type: ignore[no-any-return]  # the store of the fixture


def test_the_second_start_is_refused_and_recorded(store: Any) -> None:
    first = dropped.using(id="first").start(1)
    with pytest.raises(StartRefusedError, match='the limit "start-rates/acme" has no room before') as caught:
        dropped.using(id="second").start(2)
    refusal = caught.value
    assert (refusal.limit, refusal.key, refusal.run_id) == ("start-rates", "acme", "second")
    assert timedelta(minutes=59) < refusal.retry_at - runtime.current().now() <= timedelta(hours=1)
    assert store.get("second") is None
    assert first.is_new
    assert row(store).refused == 1
    last = row(store).last_refused
    assert last is not None
    assert (last.workflow, last.run_id) == ("start_rates.plain", "second")
    assert plain.using(rate="start-rates/other", when_full="drop").start(3).is_new


def test_a_refusal_takes_nothing(store: Any) -> None:
    dropped.start(1)
    before = row(store).reserved_until
    for _ in range(3):
        with pytest.raises(StartRefusedError):
            dropped.start(2)
    assert row(store).reserved_until == before
    assert row(store).refused == 3


def test_async(store: Any) -> None:
    assert async_to_sync(dropped.astart)(1).is_new
    with pytest.raises(StartRefusedError):
        async_to_sync(dropped.astart)(1)


def test_a_run_that_has_the_id_takes_nothing_and_is_never_refused(store: Any) -> None:
    first = dropped.using(id="a").start(1)
    again = dropped.using(id="a").start(1)
    assert (again, again.is_new) == (first, False)
    with pytest.raises(RunConflictError):
        dropped.using(id="a").start(2)
    assert row(store).refused == 0


def test_a_run_that_has_the_key_takes_nothing_and_is_never_refused(store: Any) -> None:
    keyed = waits.using(key="k", rate="start-rates/acme", when_full="drop")
    first = keyed.start(1)
    assert keyed.start(2) == first
    with pytest.raises(KeyConflictError):
        keyed.using(if_open="error").start(2)
    assert keyed.start_or_send("go", 1, 2) == first
    assert row(store).refused == 0


def test_a_refused_replacement_cancels_nothing(store: Any) -> None:
    keyed = waits.using(key="k", if_open="replace", rate="start-rates/acme", when_full="drop")
    first = keyed.start(1)
    with pytest.raises(StartRefusedError):
        keyed.start(2)
    run = store.get(first.id)
    assert (run.state, run.pending_request) == ("pending", "")
    assert waits.open_run(key="k") == first


def test_a_refused_start_or_send_is_recorded_once(store: Any) -> None:
    keyed = waits.using(rate="start-rates/acme", when_full="drop")
    keyed.using(key="a").start_or_send("go", 1)
    with pytest.raises(StartRefusedError):
        keyed.using(key="b").start_or_send("go", 1)
    assert row(store).refused == 1
    assert waits.open_run(key="b") is None


def test_several_are_started_all_or_none(store: Any) -> None:
    burst = plain.using(rate="start-burst", when_full="drop")
    with pytest.raises(StartRefusedError):
        burst.start_many([(1,), (2,), (3,), (4,)], ids=["a", "b", "c", "d"])
    assert store.states(["a", "b", "c", "d"]) == {}
    assert len(burst.start_many([(1,), (2,), (3,)], ids=["a", "b", "c"])) == 3
    assert [each.is_new for each in burst.start_many([(1,), (2,)], ids=["a", "b"])] == [False, False]
    with pytest.raises(StartRefusedError):
        burst.start(4)


def test_what_is_rolled_back_gives_its_unit_back() -> None:
    with in_force():
        with transaction.atomic():
            dropped.start(1)
            transaction.set_rollback(True)
        assert dropped.start(2).is_new
        with transaction.atomic(), pytest.raises(StartRefusedError):
            dropped.using(id="x").start(3)  # the caller's transaction goes on
        assert row(runtime.current().store).refused == 1


def test_a_limit_that_nobody_defined_is_an_error(store: Any) -> None:
    with pytest.raises(UnknownLimitError, match='no limit "start-none" with a rate'):
        plain.using(rate="start-none", when_full="drop", id="a").start(1)
    assert store.get("a") is None


def test_a_workflows_own_rate(store: Any) -> None:
    once = own.using(when_full="drop")
    assert once.start("sales").is_new
    with pytest.raises(StartRefusedError) as caught:
        once.start("sales")
    assert (caught.value.limit, caught.value.key) == ("start-own", "sales")
    assert once.start("other").is_new
    with pytest.raises(StartRefusedError):
        own.using(rate="start-own/other", when_full="drop").start("other")


def test_one_run_of_a_workflow_with_a_rate_takes_one_unit(h: Harness) -> None:
    once = own.using(when_full="drop")
    assert h.finish(once.start("sales")).output == "sales"
    assert h.now == NOW
    h.advance(3600)
    assert h.finish(own.using(rate="start-own/sales", when_full="drop").start("sales")).output == "sales"
    assert (h.now - NOW).total_seconds() == 3600
    h.advance(3599)
    with pytest.raises(StartRefusedError) as caught:
        once.start("sales")
    assert (caught.value.retry_at - h.now).total_seconds() == 1
    h.advance(1)
    assert once.start("sales").is_new


def test_a_closed_limit_refuses(store: Any) -> None:
    dropped.using(rate="start-rates/fresh").start(1)
    until = runtime.current().now() + timedelta(days=2)
    close_limit("start-rates", until)
    with pytest.raises(StartRefusedError) as caught:
        dropped.start(1)
    assert caught.value.retry_at == until
    open_limit("start-rates")
    assert dropped.start(1).is_new
    store.close_rate("start-rates", "acme", LimitClosing(until=until))


def test_a_refusal_of_an_actor_is_in_the_audit_log(h: Harness) -> None:
    with acting_as(Actor("code", label="ada")):
        dropped.start(1)
        with pytest.raises(StartRefusedError):
            dropped.using(id="second").start(2)
    assert [(each.action, each.outcome, each.run_id != "") for each in h._store._actions] == [
        ("start", "done", True),
        ("start", "refused", True),
    ]
    assert row(h._store).refused == 1


def test_the_clock_decides(h: Harness) -> None:
    dropped.start(1)
    h.advance(3599)
    with pytest.raises(StartRefusedError):
        dropped.start(2)
    h.advance(1)
    assert h.finish(dropped.start(2)).output == 2


def test_in_a_step(h: Harness) -> None:
    assert h.finish(starting.start()).output == [True, "StartRefusedError"]


@workflow(name="start_rates.starting")
def starting(ctx: Context) -> list[Any]:
    first = ctx.step("first", lambda: dropped.start(1).is_new)
    again = ctx.try_step("second", lambda: dropped.start(2).is_new, max_retries=0)
    assert again.failure is not None
    return [first, again.failure.error.type]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rate": "start-rates"}, TypeError, 'needs when_full="drop" too'),
        ({"when_full": "drop"}, TypeError, "needs rate="),
        ({"rate": "a/", "when_full": "drop"}, ValueError, "empty key"),
        ({"rate": 7, "when_full": "drop"}, TypeError, "name of a limit"),
        ({"rate": "a", "when_full": "wait"}, ValueError, "when_full is one of"),
    ],
)
def test_options_that_are_refused(h: Harness, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plain.using(**options).start(1)


@workflow(name="start_rates.parent")
def parent(ctx: Context) -> int:
    return ctx.child("child", dropped, 1)


def test_a_child_is_not_dropped(h: Harness) -> None:
    run = h.start(parent)
    h.settle()
    assert "does not fit a child of start_rates.plain" in str(h.peek(run).error)
    assert get_run(run.id).state != "completed"
