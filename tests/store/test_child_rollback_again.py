"""What a rollback does to children that did not end well, and what the next rollback does after a recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pytest_django import Settings

from durable import AsyncContext, Context, CriticalError, RollbackContext, get_run, workflow
from durable.core.records import RunState
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import declared
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.slow

DONE: list[str] = []
FAIL: set[str] = set()
MISTAKE: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    DONE.clear()
    FAIL.clear()
    MISTAKE.clear()


def do(name: str) -> str:
    if name in FAIL:
        raise CriticalError(f"no {name}")
    DONE.append(name)
    return name


def undo(_: RollbackContext, name: str) -> None:
    do(f"undo {name}")


@workflow(name="undone_again.pay")
def pay(ctx: Context, name: str, seconds: float = 0) -> str:
    ctx.rollback_checkpoint("undo")
    paid = ctx.step("charge", do, f"charge {name}", rollback=undo)
    if seconds:
        ctx.sleep("s", seconds)
    if name in MISTAKE:
        raise TypeError("a mistake of the code")
    ctx.step("book", do, f"book {name}")
    return paid


UNDONE = pay.using(rollback=True)


@workflow(name="undone_again.starts")
def starts(ctx: Context, seconds: float = 0) -> Any:
    ctx.rollback_checkpoint("undo")
    child = ctx.start_child("a", UNDONE, "a")
    if seconds:
        ctx.sleep("s", seconds)
    child.result("a read")
    return ctx.step("end", do, "end")


@workflow(name="undone_again.ignores")
def ignores(ctx: Context, seconds: float = 0) -> Any:
    ctx.rollback_checkpoint("undo")
    ctx.start_child("a", UNDONE, "a", seconds)
    ctx.sleep("s", 30)
    return ctx.step("end", do, "end")


@workflow(name="undone_again.calls")
def calls(ctx: Context) -> Any:
    ctx.rollback_checkpoint("undo")
    ctx.child("a", UNDONE, "a")
    return ctx.step("end", do, "end")


def balance(name: str = "a") -> int:
    """How many charges are not undone."""
    return DONE.count(f"charge {name}") - DONE.count(f"undo charge {name}")


@pytest.mark.parametrize("parent", [starts, calls])
def test_a_failed_child_that_is_recovered_is_undone_by_the_next_rollback(h: Harness, parent: Any) -> None:
    FAIL.update({"book a", "end"})
    run = h.start(parent.using(id="p"))
    assert h.finish(run).state == "failed"
    assert balance() == 0, "the child has undone itself"
    FAIL.discard("book a")
    run.recover()
    assert h.finish(run).state == "failed"
    assert DONE.count("book a") == 1, "it has completed this time"
    assert balance() == 0
    FAIL.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert balance() == 1


@declared("undone_again.pays_before")
async def paying_before(ctx: Any, seconds: float) -> Any:
    await ctx.rollback_checkpoint("undo")
    await ctx.step("charge", do, "charge parent", rollback=undo)
    await ctx.child("a", UNDONE, "a", seconds)
    return await ctx.step("end", do, "end")


@pytest.mark.parametrize("seconds", [0, 60], ids=["completed", "open"])
@pytest.mark.parametrize("parent", paying_before, ids=["sync", "async"])
def test_a_child_that_was_recovered_by_itself_is_undone_before_a_recovery_of_its_parent_starts_another(
    h: Harness, parent: Any, seconds: float
) -> None:
    FAIL.add("book a")
    run = h.start(parent.using(id="p"), seconds)
    assert h.finish(run).state == "failed"
    assert (balance(), balance("parent")) == (0, 0)
    FAIL.clear()
    get_run("p:a").recover()
    h.settle()
    assert balance() == 1
    run.recover()
    h.settle()
    assert get_run("p:a").state == "cancelled"
    assert balance() == 1
    assert h.finish(run).state == "completed"
    assert (balance(), balance("parent")) == (1, 1)


@pytest.mark.parametrize("parent", paying_before, ids=["sync", "async"])
def test_a_replay_leaves_what_its_children_have_done_in_spite_of_a_recovery_before_and_behind_it(
    h: Harness, parent: Any
) -> None:
    FAIL.add("end")
    run = h.start(parent.using(id="p"), 0)
    assert h.finish(run).state == "failed"
    FAIL.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert balance() == 1
    FAIL.add("end")
    run.replay("a", in_place=True)
    assert h.finish(run).state == "failed"
    assert (get_run("p:a~1").state, get_run("p:a~2").state, balance()) == ("completed", "cancelled", 1)
    FAIL.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert (get_run("p:a~1").state, get_run("p:a~3").state, balance()) == ("completed", "completed", 2)


def test_a_child_of_a_branch_that_has_lost_is_undone(h: Harness) -> None:
    @workflow(name="undone_again.races")
    def races(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.race(
            "race",
            {
                "slow": lambda branch: branch.child("a", pay.using(rollback=True), "a", 600),
                "fast": lambda branch: branch.sleep("s", 5),
            },
        )
        return ctx.step("end", do, "end")

    FAIL.add("end")
    run = h.start(races.using(id="p"))
    assert h.finish(run).state == "failed"
    [child] = run.children()
    assert (child.state, DONE) == ("cancelled", ["charge a", "undo charge a"])


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_child_that_an_operator_has_cancelled_is_undone(h: Harness, when: str) -> None:
    FAIL.add("end")
    run = h.start(ignores.using(id="p"), 600)
    h.settle()
    assert balance() == 1
    if when == "before":
        get_run("p:a").cancel(reason="not wanted")
    h.advance(30)
    h.run(run)
    if when == "during":
        assert run.state == "rolling_back"
    assert h.finish(run).state == "failed"
    assert balance() == 0
    assert get_run("p:a").state == "cancelled"


def test_a_child_that_a_mistake_has_stopped_is_undone(h: Harness) -> None:
    MISTAKE.add("a")
    FAIL.add("end")
    run = h.start(ignores.using(id="p"))
    h.settle()
    assert h.finish(run).state == "failed"
    failure = h._store.failure("p:a")
    assert failure is not None
    assert (failure.is_open, get_run("p:a").state) == (False, "cancelled")
    assert balance() == 0


def test_a_child_whose_crashes_have_stopped_it_is_undone(h: Harness) -> None:
    FAIL.add("end")
    run = h.start(ignores.using(id="p"), 600)
    h.settle()
    child = h._store._runs["p:a"]
    h._store._runs["p:a"] = child.__class__(**{name: getattr(child, name) for name in child.__slots__})
    h._store._runs["p:a"].crashes = 1_000
    h.run("p:a")
    assert (get_run("p:a").state, balance()) == ("failed", 1)
    assert h.finish(run).state == "failed"
    assert balance() == 0


def test_a_child_that_was_cancelled_while_its_parent_waited_is_undone(h: Harness) -> None:
    @workflow(name="undone_again.waits")
    def waits(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        return ctx.child("a", UNDONE, "a", 600)

    run = h.start(waits.using(id="p"))
    h.settle()
    get_run("p:a").cancel(reason="not wanted")
    assert balance() == 1
    assert h.finish(run).state == "failed"
    assert balance() == 0
    run.recover()
    assert h.finish(run).state == "completed"
    assert balance() == 1


def test_a_child_that_cannot_be_started_again_is_not_looked_for(h: Harness) -> None:
    @workflow(name="undone_again.keyed")
    def keyed(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.child("a", pay.using(rollback=True, key="k"), "a", 600)
        return ctx.step("end", do, "end")

    run = h.start(keyed.using(id="p"))
    h.settle()
    get_run("p:a").cancel(rollback=True)
    assert h.finish(run).state == "failed"
    other = pay.using(key="k").start("other", 3600)
    run.recover()
    assert h.finish(run).state == "failed"
    assert run.error is not None
    assert run.error.type == "KeyConflictError"
    other.cancel()
    run.recover()
    assert h.finish(run).state == "completed"


def test_three_generations_are_undone_again_after_a_recovery(h: Harness) -> None:
    @workflow(name="undone_again.middle")
    def middle(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.child("leaf", UNDONE, "a")
        return ctx.step("middle", do, "charge middle", rollback=undo)

    @workflow(name="undone_again.top")
    def top(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.child("middle", middle.using(rollback=True))
        return ctx.step("end", do, "end")

    FAIL.add("end")
    run = h.start(top.using(id="p"))
    for number in (1, 2, 3):
        assert h.finish(run).state == "failed"
        assert DONE.count("charge a") == DONE.count("undo charge a") == number
        assert DONE.count("charge middle") == DONE.count("undo charge middle") == number
        run.recover()
    FAIL.clear()
    assert h.finish(run).state == "completed"
    assert balance() == 1


@pytest.mark.parametrize("how", [{"deadline": 40}, {"work_limit": "1 hour", "deadline": 40}])
def test_a_deadline_undoes_the_children(h: Harness, how: Any) -> None:
    run = h.start(starts.using(id="p", **how), 600)
    h.settle()
    assert get_run("p:a").state == "completed"
    h.advance(41)
    assert h.finish(run).state == "failed"
    assert run.error is not None
    assert run.error.type == "RunDeadlineError"
    assert balance() == 0


def test_the_deadline_of_a_child_does_not_stop_its_compensation(h: Harness) -> None:
    FAIL.update({"end", "undo charge a"})

    @workflow(name="undone_again.with_deadline")
    def with_deadline(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.child("a", pay.using(rollback=True, deadline=10), "a")
        ctx.sleep("s", 60)
        return ctx.step("end", do, "end")

    run = h.start(with_deadline.using(id="p"))
    h.settle()
    h.advance(60)
    assert h.finish(run).state == "failed", "the handler has failed"
    FAIL.discard("undo charge a")
    run.recover()
    assert h.finish(run).state == "failed"
    assert balance() == 0


def test_hundreds_of_children_are_undone(h: Harness) -> None:
    @workflow(name="undone_again.hundreds")
    def hundreds(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        for number in range(300):
            ctx.start_child(f"n{number}", UNDONE, str(number))
        ctx.sleep("s", 60)
        return ctx.step("end", do, "end")

    FAIL.add("end")
    run = h.start(hundreds.using(id="p"))
    h.settle()
    h.advance(60)
    assert h.finish(run).state == "failed"
    undone = [each.removeprefix("undo charge ") for each in DONE if each.startswith("undo")]
    assert undone == [str(number) for number in range(299, -1, -1)], "the newest first"


@workflow(name="undone_again.mistaken")
def mistaken(ctx: Context, when: str) -> Any:
    ctx.rollback_checkpoint("undo")
    child = ctx.start_child("a", UNDONE, "a", 600)
    ctx.sleep("s", 30)
    if "parent" in MISTAKE:
        raise TypeError("a mistake of the code")
    if when == "before the wait":
        ctx.step("middle", do, "middle")
    child.result("a read")
    return ctx.step("end", do, "end")


@workflow(name="undone_again.mistaken_async")
async def mistaken_async(ctx: AsyncContext, when: str) -> Any:
    await ctx.rollback_checkpoint("undo")
    child = await ctx.start_child("a", UNDONE, "a", 600)
    await ctx.sleep("s", 30)
    if "parent" in MISTAKE:
        raise TypeError("a mistake of the code")
    if when == "before the wait":
        await ctx.step("middle", do, "middle")
    await child.result("a read")
    return await ctx.step("end", do, "end")


@workflow(name="undone_again.called")
def called(ctx: Context, when: str) -> Any:
    ctx.rollback_checkpoint("undo")

    def errs(branch: Context) -> None:
        branch.sleep("s", 30)
        if "parent" in MISTAKE:
            raise TypeError("a mistake of the code")
        if when == "before the wait":
            branch.step("middle", do, "middle")

    ctx.join("both", {"child": lambda branch: branch.child("a", UNDONE, "a", 600), "errs": errs})
    return ctx.step("end", do, "end")


each_mistaken = pytest.mark.parametrize("parent", [mistaken, mistaken_async, called])


def child_of(run: Any, generation: int = 0) -> Any:
    """The child of this generation, from 0."""
    return sorted(run.children(), key=lambda each: each.id)[generation]


def stopped_by_a_mistake(h: Harness, parent: Any, when: str = "") -> Any:
    """A parent that a mistake has stopped, which has undone nothing, and whose open child was cancelled with it."""
    MISTAKE.add("parent")
    run = h.start(parent.using(id="p"), when)
    h.settle()
    h.advance(30)
    h.settle()
    assert (run.state, child_of(run).state, balance()) == ("failed", "cancelled", 1)
    MISTAKE.clear()
    return run


@each_mistaken
def test_a_child_that_a_recovery_starts_anew_is_undone_before(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    run.recover()
    assert h.finish(run).state == "completed"
    assert DONE == ["charge a", "undo charge a", "charge a", "book a", "end"]
    assert child_of(run, 1).state == "completed"


@each_mistaken
def test_one_that_the_recovered_parent_has_not_come_to_is_undone_with_its_parent(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    run.recover()
    run.cancel("not wanted", rollback=True)
    h.settle()
    assert (run.state, balance(), len(run.children())) == ("cancelled", 0, 1)


@each_mistaken
def test_while_it_is_undone_its_parent_waits_for_it(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    run.recover()
    h.run(run)
    child = child_of(run)
    assert (run.state, child.state, balance()) == ("sleeping", "rolling_back", 1)
    assert child.id in run.summary
    h.run(child.id)
    assert (child.state, balance()) == ("cancelled", 0)
    assert h._store._runs[child.id].request_reason == 'run "p" starts another child in its place'
    assert run.wake_at == h.now
    assert h.finish(run).state == "completed"


@each_mistaken
def test_while_a_handler_of_it_has_stopped_its_parent_waits_until_it_is_recovered(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    FAIL.add("undo charge a")
    run.recover()
    h.settle()
    child = child_of(run)
    for _ in range(2):
        assert (run.state, child.state, balance(), len(run.children())) == ("sleeping", "failed", 1, 1)
        assert f'waiting for child "{child.id}"' in run.summary
        h.advance("1 minute")
        h.settle()
    FAIL.clear()
    child.recover()
    h.settle()
    h.advance("1 minute")
    assert h.finish(run).state == "completed"
    assert DONE == ["charge a", "undo charge a", "charge a", "book a", "end"]


@each_mistaken
def test_a_cancel_with_rollback_then_stops_at_it_too(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    FAIL.add("undo charge a")
    run.recover()
    h.settle()
    run.cancel("not wanted", rollback=True)
    h.settle()
    assert (run.state, balance()) == ("failed", 1)
    assert f'the compensation of child "{child_of(run).id}" has stopped' in run.summary
    FAIL.clear()
    run.recover()
    h.settle()
    assert (run.state, balance(), len(run.children())) == ("cancelled", 0, 1)


@each_mistaken
def test_a_child_whose_run_is_gone_is_started_anew_all_the_same(h: Harness, parent: Any) -> None:
    run = stopped_by_a_mistake(h, parent)
    child = child_of(run).id
    run.recover()
    h._store._runs.pop(child)
    h._store._children._children["p"].pop(child)
    assert h.finish(run).state == "completed"


@each_mistaken
@pytest.mark.parametrize("when", ["before", "after"])
def test_whenever_a_worker_dies_after_the_recovery_the_charge_is_undone_once(parent: Any, when: Any) -> None:
    deaths = 0
    while True:
        DONE.clear()
        with Harness() as h:
            run = stopped_by_a_mistake(h, parent)
            run.recover()
            try:
                with h.crash_at(deaths + 1, when):
                    h.finish(run)
                break
            except SimulatedCrash:
                deaths += 1
            h.advance("1 hour")
            assert h.finish(run).state == "completed"
            if when == "after":  # before it, the function of a step or a handler has run and is called again
                assert DONE == ["charge a", "undo charge a", "charge a", "book a", "end"]
            first, *_, last = [number for number, each in enumerate(DONE) if each == "charge a"]
            undone = [number for number, each in enumerate(DONE) if each == "undo charge a"]
            assert first < min(undone) <= max(undone) < last
            assert len(run.children()) == 2
    assert deaths >= 6


def test_without_rollback_what_the_cancelled_child_has_done_stays(h: Harness) -> None:
    @workflow(name="undone_again.plain")
    def plain(ctx: Context) -> Any:
        ctx.start_child("a", pay, "a", 600)
        ctx.sleep("s", 30)
        if "parent" in MISTAKE:
            raise TypeError("a mistake of the code")
        ctx.sleep("t", 30)
        return ctx.step("end", do, "end")

    MISTAKE.add("parent")
    run = h.start(plain.using(id="p"))
    h.settle()
    h.advance(30)
    h.settle()
    assert run.state == "failed"
    MISTAKE.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert (get_run("p:a").state, get_run("p:a~1").state, balance()) == ("cancelled", "cancelled", 2)


@workflow(name="undone_again.listening_child")
def listening_child(ctx: Context) -> str:
    ctx.rollback_checkpoint("undo")
    paid = ctx.step("charge", do, "charge a", rollback=undo)
    ctx.queue.next("end")
    return paid


@workflow(name="undone_again.listening")
def listening(ctx: Context) -> str:
    ctx.rollback_checkpoint("undo")
    child = ctx.start_child("a", listening_child.using(rollback=True))
    ctx.queue.next("go")
    if "parent" in MISTAKE:
        raise TypeError("a mistake of the code")
    return child.result("a read")


@pytest.mark.django_db
def test_rows_are_undone_and_started_anew_too(settings: Settings) -> None:
    settings.DURABLE = {**settings.DURABLE, "DIVERGENCE_GRACE": 0}
    MISTAKE.add("parent")
    with in_force():
        run = listening.using(id="p").start()
        settle()
        run.send("go")
        settle()
        assert (run.state, get_run("p:a").state, balance()) == ("failed", "cancelled", 1)
        MISTAKE.clear()
        run.recover()
        settle()
        get_run("p:a~1").send("end")
        settle()
        assert run.result(timeout=1) == "charge a"
        assert DONE == ["charge a", "undo charge a", "charge a"]


@each_mistaken
@pytest.mark.parametrize("state", ["running", "completed"])
def test_a_replay_in_place_of_a_start_that_is_made_anew_drops_the_child_before(
    h: Harness, parent: Any, state: str
) -> None:
    """What it has done is not undone, and the plan says so; if it still goes on, it is cancelled."""
    run = stopped_by_a_mistake(h, parent)
    child = child_of(run)
    run.recover()
    others: dict[str, Any] = (
        {"wake_at": h.now, "finished_at": None} if state == "running" else {"output": '"a"', "request_reason": ""}
    )
    h._store._runs[child.id] = replace(h._store._runs[child.id], state=RunState(state), summary="", **others)
    place = next(each.location for each in run.history() if each.kind == "child")
    plan = run.plan_replay(place)
    assert plan.not_compensated == (place,)
    assert [each for each in plan.notes if "are not run" in each]
    assert (child.id in plan.children) == (state == "running")
    run.replay(place, in_place=True, plan_hash=plan.hash)
    h.settle()
    h.advance("1 minute")
    assert h.finish(run).state == "completed"
    assert child.state == ("completed" if state == "completed" else "cancelled")
    assert child_of(run, 1).state == "completed"
