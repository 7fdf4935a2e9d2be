"""What travels with a run is in force wherever its code is called, and nowhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from durable import AsyncContext, Context, RollbackContext, RunInfo, cron, event, every, get_run, publish, workflow
from durable.core import registry
from durable.errors import EndRefusedError
from durable.models import Run, Schedule, Tick
from durable.operations import bulk
from durable.operations.schedules import verbs as schedules
from durable.operations.schedules.sync import synchronise
from durable.operations.schedules.tick import tick_due
from durable.runtime import Runtime
from durable.testing import Harness
from tests.carry import carrying
from tests.carry.carrying import Broken, ThreadTenant, carrying_with, of_the_process, tenant, thread_tenant
from tests.support.stores import in_force, settle

CARRY = {"tenant": "tests.carry.carrying.carry"}
BOTH = {**CARRY, "thread": "tests.carry.carrying.thread_carry"}


@contextmanager
def acting_for(name: str | None) -> Iterator[None]:
    token = tenant.set(name)
    carrying.here.tenant = name
    try:
        yield
    finally:
        tenant.reset(token)
        carrying.here.tenant = None


def seen(*_: object) -> list[str | None]:
    return [tenant.get(), thread_tenant()]


UNDONE: list[Any] = []


def undo(_context: RollbackContext, _output: Any) -> None:
    UNDONE.append(seen())


def fail() -> None:
    raise ValueError("no")


@workflow(name="tests.carry.places")
def places(ctx: Context) -> dict[str, Any]:
    found: dict[str, Any] = {"code": tenant.get(), "step": ctx.step("step", seen)}
    found["atomic"] = ctx.step("atomic", seen, atomic=True)
    found["timed"] = ctx.step("timed", seen, timeout="5 seconds")
    found["join"] = ctx.join("join", {"a": branch, "b": branch, "c": branch})
    found["child"] = ctx.child("child", child)
    found["map"] = [each.output for each in ctx.map("map", child, [(), ()]).children]
    ctx.sleep("sleep", "1 hour")
    found["later"] = ctx.step("later", seen)
    return found


def branch(ctx: Context) -> Any:
    return [tenant.get(), ctx.step("in a branch", seen)]


@workflow(name="tests.carry.child")
def child(ctx: Context) -> Any:
    return [tenant.get(), ctx.step("step", seen)]


@workflow(name="tests.carry.achild")
async def achild(ctx: AsyncContext) -> Any:
    return [tenant.get(), await ctx.step("step", seen)]


@workflow(name="tests.carry.aplaces")
async def aplaces(ctx: AsyncContext) -> dict[str, Any]:
    found: dict[str, Any] = {"code": tenant.get(), "step": await ctx.step("step", seen)}
    found["async step"] = await ctx.step("async step", aseen)
    found["awaitable"] = await ctx.step("awaitable", lambda: aseen())
    found["join"] = await ctx.join("join", {"a": abranch, "b": abranch})
    await ctx.sleep("sleep", "1 hour")
    found["task"] = await asyncio.create_task(alater())
    return found


async def aseen() -> str | None:
    await asyncio.sleep(0)
    return tenant.get()


async def alater() -> str | None:
    return tenant.get()


async def abranch(ctx: AsyncContext) -> list[Any]:
    return [tenant.get(), await ctx.step("plain", seen), await ctx.step("async", aseen)]


@workflow(name="tests.carry.undone")
def undone(ctx: Context) -> None:
    ctx.rollback_checkpoint("begin")
    ctx.step("first", str, rollback=undo)
    ctx.step("fails", fail, max_retries=0)


@pytest.fixture(params=["memory", "database"])
def h(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Harness]:
    with carrying_with(BOTH), Harness(store=request.param) as harness:
        yield harness


ACME: Any = ["acme", "acme"]
IN_BRANCH: Any = ["acme", ACME]


def test_it_is_in_force_in_each_place_of_a_run(h: Harness) -> None:
    with acting_for("acme"):
        run = h.start(places)
    h.finish(run)
    assert run.output == {
        "code": "acme",
        "step": ACME,
        "atomic": ACME,
        "timed": ACME,
        "join": dict.fromkeys("abc", IN_BRANCH),
        "child": IN_BRANCH,
        "map": [IN_BRANCH, IN_BRANCH],
        "later": ACME,
    }
    assert seen() == [None, None], "nothing is left behind"
    assert ThreadTenant.entered == 0


def test_it_is_in_force_in_each_place_of_an_async_run(h: Harness) -> None:
    with acting_for("acme"):
        run = h.start(aplaces)
    h.finish(run)
    in_branch = ["acme", ACME, "acme"]
    join = dict.fromkeys("ab", in_branch)
    assert run.output == {
        "code": "acme",
        "step": ACME,
        "async step": "acme",
        "awaitable": "acme",
        "join": join,
        "task": "acme",
    }
    assert seen() == [None, None]
    assert ThreadTenant.entered == 0


def test_it_is_in_force_in_rollback_handlers(h: Harness) -> None:
    UNDONE.clear()
    with acting_for("acme"):
        run = h.start(undone)
    assert h.finish(run).state == "failed"
    assert UNDONE == [ACME]
    assert seen() == [None, None]


@pytest.mark.parametrize("which", [child, achild], ids=["sync", "async"])
def test_a_carrier_may_read_rows(transactional_db: None, which: Any) -> None:
    User.objects.create_user("ada")
    with carrying_with({"user": "tests.carry.carrying.Queries"}), Harness(store="database") as h:
        run = h.start(which)
        assert h.finish(run).state == "completed"
    with carrying_with({"user": "tests.carry.carrying.Queries"}), in_force():
        real = which.start()
        settle()
    assert run.output == real.output == ["ada", ["ada", None]]


# -- where it comes from


@workflow(name="tests.carry.starter")
def starter(ctx: Context) -> None:
    ctx.step("start", lambda: places.using(id="from a step").start().id)
    ctx.step("start for another", start_for_another)
    ctx.start_child("child", child)
    ctx.start_child("with a key", child.using(key="one"))


def start_for_another() -> None:
    with carrying.carry.restored("other"):
        child.using(id="from another").start()


def carried(run_id: str) -> Any:
    found = Run.objects.values_list("carried", flat=True).get(pk=run_id)
    return None if found is None else json.loads(found)


ACME_ROW: Any = {"tenant": "acme", "thread": "acme"}


@pytest.fixture
def at(transactional_db: None) -> Iterator[Runtime]:
    with carrying_with(BOTH), in_force() as at:
        yield at


def test_children_have_a_copy_and_a_start_in_a_step_asks_anew(at: Runtime) -> None:
    with acting_for("acme"):
        run = starter.start()
    settle()
    assert carried(run.id) == ACME_ROW
    assert carried(f"{run.id}:child") == carried(f"{run.id}:with a key") == ACME_ROW
    assert carried("from a step") == ACME_ROW
    assert carried("from another") == {"tenant": "other", "thread": "acme"}


def test_restarts_replays_and_recoveries_keep_it_whoever_asks(at: Runtime) -> None:
    with acting_for("acme"):
        run = undone.start()
    settle()
    with acting_for("operator"):
        restarted = run.restart()
        replayed = run.replay("fails")
        run.recover()
    assert carried(restarted.id) == carried(replayed.id) == carried(run.id) == ACME_ROW
    UNDONE.clear()
    settle()
    assert UNDONE == [ACME] * 3


@workflow(name="tests.carry.collects")
def collects(ctx: Context) -> list[Any]:
    found = ctx.queue.next_batch("items", names=["add"], timeout=0)
    ctx.step("meanwhile", send_more)
    return [each.body for each in found]


MEANWHILE: list[str] = []


def send_more() -> None:
    with carrying.carry.restored("other"):
        while MEANWHILE:
            collects.using(key="k").start_or_send("add", MEANWHILE.pop())


def test_a_run_that_takes_over_the_messages_of_a_key_starts_as_the_first_did(at: Runtime) -> None:
    MEANWHILE[:] = ["b"]
    with acting_for("acme"):
        first = collects.using(key="k").start_or_send("add", "a")
    settle()
    second = first.passed_on_to
    assert second is not None
    assert second.output == ["b"]
    assert carried(second.id) == carried(first.id) == ACME_ROW


def test_a_start_with_a_taken_id_leaves_what_the_run_carries(at: Runtime) -> None:
    with acting_for("acme"):
        child.using(id="run").start()
    with acting_for("other"):
        child.using(id="run").start()
    assert carried("run") == ACME_ROW


def test_starts_of_many_ask_once(at: Runtime) -> None:
    asked: list[str] = []

    def save() -> str:
        asked.append("asked")
        return "acme"

    Broken.saves = staticmethod(save)
    with carrying_with({"tenant": "tests.carry.carrying.Broken"}):
        runs = child.start_many([child.input() for _ in range(3)])
    assert len(asked) == 1
    assert [carried(run.id) for run in runs] == [{"tenant": "acme"}] * 3


def test_nothing_is_kept_where_nothing_is_active_or_nobody_carries(at: Runtime) -> None:
    run = child.start()
    with carrying_with({}), acting_for("acme"):
        other = child.start()
    assert carried(run.id) is carried(other.id) is None


def test_durables_own_runs_carry_nothing(at: Runtime) -> None:
    with acting_for("acme"):
        run = child.start()
        report = bulk.apply("cancel", [run.id], in_background=True)
    assert report.run_id is not None
    assert carried(report.run_id) is None


@workflow(name="tests.carry.on_paid", on=event("tests.carry.paid"))
def on_paid(ctx: Context, body: Any) -> None: ...


def test_the_run_of_an_event_carries_what_is_active_where_it_is_published(at: Runtime) -> None:
    with acting_for("acme"):
        publish("tests.carry.paid", {}, key="1", id="e1")
    assert carried("tests.carry.on_paid:e1") == ACME_ROW


# -- runs of schedules


def nightly(ctx: Context) -> list[Any]:
    return [tenant.get(), ctx.step("step", seen)]


workflow(name="tests.carry.nightly")(nightly)


@pytest.fixture
def scheduled() -> Iterator[str]:
    """The name of a workflow with a schedule in its code, which other tests do not see."""
    declared = workflow(name="tests.carry.scheduled", schedule=cron("0 2 * * *"))(nightly)
    yield "tests.carry.scheduled"
    registry.registry.unregister(declared)


def moved_on(name: str) -> datetime:
    moment = Schedule.objects.get(name=name).next_at
    assert moment is not None
    return moment


def test_the_runs_of_a_schedule_that_somebody_has_made_carry_what_was_active_then(at: Runtime) -> None:
    with acting_for("acme"):
        schedules.create("made", "tests.carry.nightly", every("1 hour"))
    with acting_for("other"):
        made = Schedule.objects.get(name="made")
        made.rule = every("2 hours")
        made.save()
        tick_due(moved_on("made"), only={"made"})
        run_now = schedules.run_now("made", force=True)
    tick = Tick.objects.filter(schedule__name="made").earliest("number")
    assert carried(tick.run_id) == carried(run_now.run_id) == ACME_ROW
    settle()
    assert get_run(run_now.run_id).output == IN_BRANCH


def test_the_runs_of_a_schedule_in_the_code_carry_what_is_active_in_the_process_that_ticks(
    at: Runtime, scheduled: str
) -> None:
    with acting_for("deploy"):
        synchronise()
    with acting_for("worker"):
        tick_due(moved_on(scheduled), only={scheduled})
    tick = Tick.objects.get(schedule__name=scheduled)
    assert carried(tick.run_id) == {"tenant": "worker", "thread": "worker"}
    Schedule.objects.update(next_at=moved_on(scheduled) + timedelta(days=1))


def test_a_schedule_whose_carrier_fails_loses_this_moment_alone(at: Runtime, scheduled: str) -> None:
    Broken.saves = staticmethod(fail)
    synchronise()
    with carrying_with({"tenant": "tests.carry.carrying.Broken"}):
        tick_due(moved_on(scheduled), only={scheduled})
    tick = Tick.objects.get(schedule__name=scheduled)
    assert (tick.outcome, tick.run_id) == ("refused", "")
    assert 'the carrier "tenant"' in tick.why


# -- functions at the end


ENDS: list[Any] = []


def ended(run: RunInfo) -> None:
    ENDS.append([run.state, *seen()])


@workflow(name="tests.carry.ends", on_end=ended)
def ends(ctx: Context, fails: bool = False) -> None:
    ctx.step("step", fail if fails else str, max_retries=0)


@pytest.mark.parametrize("fails", [False, True])
def test_on_end_in_a_pass(at: Runtime, fails: bool) -> None:
    ENDS.clear()
    with acting_for("acme"):
        ends.start(fails)
    settle()
    assert [["failed" if fails else "completed", "acme", "acme"]] == ENDS


def test_on_end_in_the_process_of_an_operator(at: Runtime) -> None:
    ENDS.clear()
    with acting_for("acme"):
        run = ends.start()
    with acting_for("operator"):
        run.cancel()
        assert seen() == ["operator", "operator"]
    assert ENDS == [["cancelled", "acme", "acme"]]


def test_no_end_is_made_for_the_wrong_tenant(at: Runtime) -> None:
    ENDS.clear()
    with carrying_with({"tenant": "tests.carry.carrying.Broken"}):
        Broken.saves = staticmethod(lambda: "acme")
        Broken.restores = staticmethod(refuse)
        run = ends.start()
        with pytest.raises(EndRefusedError, match='the carrier "tenant"'):
            run.cancel()
        assert (run.state, ENDS) == ("pending", [])
        Broken.restores = staticmethod(carrying.carry.restored)
        run.cancel()
    assert ENDS == [["cancelled", "acme", None]]


def refuse(_value: Any) -> Any:
    raise LookupError("no such tenant")


def test_the_replay_of_a_harness_has_what_a_carrier_puts_into_variables_of_a_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def code(ctx: Context) -> Any:
        ctx.step("step", seen)
        return of_the_process()

    with carrying_with({"tenant": "tests.carry.carrying.ProcessTenant"}), Harness() as h:
        monkeypatch.setitem(carrying.of_process, "tenant", "acme")
        handle = h.start(code)
        monkeypatch.setitem(carrying.of_process, "tenant", None)
        assert h.finish(handle).output == ["acme", "acme"]
