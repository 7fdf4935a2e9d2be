"""Children that are compensated with their parents, in both flavours."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Context, Continue, CriticalError, RollbackContext, get_run, workflow
from durable.core.errors import ErrorInfo
from durable.testing import Harness
from tests.core.flavours import declared

DONE: list[str] = []
FAIL: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    DONE.clear()
    FAIL.clear()


def do(name: str) -> str:
    if name in FAIL:
        raise CriticalError(f"no {name}")
    DONE.append(name)
    return name


def undo(_: RollbackContext, name: str) -> None:
    do(f"undo {name}")


@workflow(name="undone.one")
def one(ctx: Context, name: str, seconds: float = 0) -> str:
    ctx.rollback_checkpoint("undo")
    first = ctx.step("first", do, f"{name} 1", rollback=undo)
    ctx.step("second", do, f"{name} 2", rollback=undo)
    ctx.step("plain", do, f"{name} plain")
    if seconds:
        ctx.sleep("s", seconds)
    return first


@workflow(name="undone.plain")
def plain(ctx: Context, name: str) -> str:
    return ctx.step("plain", do, name)


UNDONE = one.using(rollback=True)


async def of_a_family(ctx: Any, end: str = "fail", seconds: float = 0) -> Any:
    await ctx.rollback_checkpoint("undo")
    await ctx.step("before", do, "before", rollback=undo)
    await ctx.child("a", UNDONE, "a")
    await ctx.step("between", do, "between", rollback=undo)
    started = await ctx.start_child("b", UNDONE, "b")
    await ctx.child("stays", one, "stays")
    await ctx.child("nothing", plain.using(rollback=True), "nothing")
    if seconds:
        await ctx.sleep("s", seconds)
    await started.result("b read")
    await ctx.step("after", do, "after", rollback=undo)
    if end == "wait":
        await ctx.sleep("wait", 3600)
    return await ctx.step("end", do, "end")


family, afamily = declared("undone.family")(of_a_family)
both = pytest.mark.parametrize("parent", [family, afamily], ids=["sync", "async"])
ORDER = ["undo after", "undo b 2", "undo b 1", "undo between", "undo a 2", "undo a 1", "undo before"]


def undone() -> list[str]:
    return [each for each in DONE if each.startswith("undo")]


def until_children_are_compensated(h: Harness, run: Any) -> None:
    """Run all up to the moment at which the parent waits for the compensation of its last child."""
    for _ in range(40):
        if run.state == "rolling_back":
            return
        for each in (*(child.id for child in run.children()), run.id):
            if run.state != "rolling_back" and get_run(each).state in ("pending", "sleeping"):
                h.run(each)
    raise AssertionError(run.state)


@both
def test_completed_children_are_compensated_at_their_places(h: Harness, parent: Any) -> None:
    FAIL.add("end")
    run = h.start(parent.using(id="p"))
    assert h.finish(run).state == "failed"
    assert undone() == ORDER
    states = {each.id: each.state for each in run.children()}
    assert states == {"p:a": "cancelled", "p:b": "cancelled", "p:stays": "completed", "p:nothing": "completed"}
    assert get_run("p:a").summary == "compensated: 2 steps were undone"
    assert h._store._runs["p:a"].request_reason == 'its parent "p" is compensated'


@both
def test_a_recovery_starts_the_compensated_children_anew(h: Harness, parent: Any) -> None:
    FAIL.add("end")
    run = h.start(parent.using(id="p"))
    h.finish(run)
    FAIL.clear()
    DONE.clear()
    run.recover()
    assert h.finish(run).output == "end"
    assert DONE.count("a 1") == DONE.count("b 1") == DONE.count("stays 1") == 1
    assert not undone()
    assert get_run("p:a~1").state == get_run("p:b~1").state == "completed"


@both
def test_a_cancel_with_rollback_compensates_children_and_cancels_open_ones(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), "wait")
    h.settle()
    run.cancel("enough", rollback=True)
    h.settle()
    assert run.state == "cancelled"
    assert undone() == ORDER


@pytest.mark.parametrize("is_held", [False, True], ids=["parked", "begun"])
def test_an_open_child_is_cancelled_with_its_rollback(h: Harness, is_held: bool) -> None:
    @workflow(name="undone.waits")
    def waits(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.step("before", do, "before", rollback=undo)
        return ctx.child("a", UNDONE, "a", 600.0)

    run = h.start(waits.using(id="p"))
    h.run(run)
    if not is_held:
        h.settle()
    run.cancel("enough", rollback=True)
    h.settle()
    assert (run.state, get_run("p:a").state) == ("cancelled", "cancelled")
    assert undone() == (["undo before"] if is_held else ["undo a 2", "undo a 1", "undo before"])


def test_a_parent_waits_until_its_child_is_compensated(h: Harness) -> None:
    FAIL.add("end")
    run = h.start(family.using(id="p"))
    until_children_are_compensated(h, run)
    assert run.summary == 'waiting for child "p:b"'
    assert get_run("p:b").state == "rolling_back"
    commits = h.commits
    assert h.run("p:b").state == "cancelled"
    assert h.commits == commits + 3
    assert run.wake_at is not None
    assert h.finish(run).state == "failed"


@both
def test_a_handler_of_a_child_that_fails_stops_the_parent_too(h: Harness, parent: Any) -> None:
    FAIL.update({"end", "undo a 1"})
    run = h.start(parent.using(id="p"))
    assert h.finish(run).state == "failed"
    assert 'the compensation of child "p:a" has stopped' in run.summary
    assert undone() == ORDER[:-2]
    child = get_run("p:a")
    assert (child.state, h._store._runs["p:a"].state_after_rollback) == ("failed", "cancelled")
    FAIL.remove("undo a 1")
    run.recover()
    h.settle()
    assert (run.state, child.state) == ("failed", "cancelled")
    assert undone() == ORDER
    assert run.error is not None
    assert run.error.message == "no end"


def test_the_child_may_be_recovered_first(h: Harness) -> None:
    FAIL.update({"end", "undo a 1"})
    run = h.start(family.using(id="p"))
    h.finish(run)
    FAIL.remove("undo a 1")
    get_run("p:a").recover()
    h.settle()
    assert get_run("p:a").state == "cancelled"
    run.recover()
    h.settle()
    assert undone() == ORDER


def test_a_child_that_is_gone_cannot_be_compensated(h: Harness) -> None:
    FAIL.add("end")
    run = h.start(family.using(id="p"), "fail", 60)
    h.settle()
    h._store._runs.pop("p:a")
    h._store._children._children["p"].pop("p:a")
    h.finish(run)
    assert run.state == "failed"
    assert "its run was deleted" in run.summary
    assert undone() == ORDER[:4]


def test_children_of_children(h: Harness) -> None:
    @workflow(name="undone.middle")
    def middle(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.step("m1", do, "m1", rollback=undo)
        ctx.child("leaf", UNDONE, "leaf")
        ctx.step("m2", do, "m2", rollback=undo)
        return "middle"

    @workflow(name="undone.top")
    def top(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.child("middle", middle.using(rollback=True))
        return ctx.step("end", do, "end")

    FAIL.add("end")
    run = h.start(top, id="p")
    assert h.finish(run).state == "failed"
    assert undone() == ["undo m2", "undo leaf 2", "undo leaf 1", "undo m1"]
    assert get_run("p:middle:leaf").state == get_run("p:middle").state == "cancelled"


def test_a_compensation_that_the_code_calls(h: Harness) -> None:
    @workflow(name="undone.calls")
    def calls(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.child("a", UNDONE, "a")
        ctx.compensate("not wanted")
        return ctx.step("end", do, "end")

    run = h.start(calls, id="p")
    assert h.finish(run).output == "end"
    assert undone() == ["undo a 2", "undo a 1"]
    assert get_run("p:a").state == "cancelled"


def test_children_of_pruned_iterations_are_compensated(h: Harness) -> None:
    @workflow(name="undone.loops")
    def loops(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")

        def body(turn: Context, state: int) -> Any:
            if state == 4:
                return turn.step("end", do, "end")
            turn.child("a", UNDONE, str(state))
            return Continue(state + 1)

        return ctx.loop("l", body, 0, history_prune_interval=1, history_size=0)

    FAIL.add("end")
    h.finish(h.start(loops, id="p"))
    assert undone() == [f"undo {number} {step}" for number in (3, 2, 1, 0) for step in (2, 1)]


def test_a_failed_child_was_compensated_by_its_own_failure(h: Harness) -> None:
    FAIL.add("a plain")
    run = h.start(family.using(id="p"))
    h.finish(run)
    assert undone() == ["undo a 2", "undo a 1", "undo before"]
    FAIL.clear()
    run.recover()
    assert h.finish(run).output == "end"
    assert [each.id for each in run.children()][:1] == ["p:a"]


@both
def test_a_crash_at_each_commit(h: Harness, parent: Any) -> None:
    FAIL.add("end")
    assert h.crash_everywhere(parent) >= 30
    counts = {each: undone().count(each) for each in ORDER}
    assert min(counts.values()) >= 30, counts


def test_a_pause_during_the_compensation(h: Harness) -> None:
    FAIL.add("end")
    run = h.start(family.using(id="p"))
    until_children_are_compensated(h, run)
    run.pause()
    h.settle()
    assert (run.state, get_run("p:b").state) == ("paused", "cancelled")
    run.resume()
    h.settle()
    assert run.state == "failed"
    assert undone() == ORDER


def test_a_rollback_needs_a_checkpoint(h: Harness) -> None:
    @workflow(name="undone.unchecked")
    def unchecked(ctx: Context) -> Any:
        return ctx.child("a", UNDONE, "a")

    run = h.start(unchecked)
    h.run(run)
    assert isinstance(run.error, ErrorInfo)
    assert "rollback checkpoint" in run.error.message
    with pytest.raises(TypeError, match="rollback"):
        UNDONE.start("a")
