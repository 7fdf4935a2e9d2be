"""Waits that could never end: for a limit that the run itself, or a run that waits for it, keeps until its end."""

from __future__ import annotations

from typing import Any

import pytest

from durable import AsyncContext, Context, Limit, get_run, runtime, workflow
from durable.errors import DeadlockError
from durable.testing import Harness
from tests.support.stores import settle

pytestmark = pytest.mark.django_db


def by_name(name: str, *_: object) -> str:
    return name


OPEN = Limit("deadlocks-open", at_once=1, key=by_name, hold="open")
PASSING = Limit("deadlocks-open", at_once=1, key=by_name)
TWO = Limit("deadlocks-two", at_once=2, hold="open")


@workflow(name="deadlocks.leaf", limit=OPEN)
def leaf(ctx: Context, name: str) -> str:
    return ctx.step("work", str, name)


@workflow(name="deadlocks.passing", limit=PASSING)
def passing(ctx: Context, name: str) -> str:
    return ctx.step("work", str, name)


@workflow(name="deadlocks.steps")
def steps(ctx: Context, name: str) -> str:
    return ctx.step("work", str, name, limit=f"deadlocks-open/{name}")


LEAVES = {"leaf": leaf, "passing": passing, "steps": steps}


@workflow(name="deadlocks.parent", limit=OPEN)
def parent(ctx: Context, name: str, kind: str, of: str) -> Any:
    return ctx.child("label", LEAVES[kind], of)


@workflow(name="deadlocks.aparent", limit=OPEN)
async def aparent(ctx: AsyncContext, name: str, kind: str, of: str) -> Any:
    return await ctx.child("label", LEAVES[kind], of)


@workflow(name="deadlocks.between")
def between(ctx: Context, name: str, kind: str, of: str) -> Any:
    return ctx.child("label", LEAVES[kind], of)


@workflow(name="deadlocks.above", limit=OPEN)
def above(ctx: Context, name: str, kind: str, of: str) -> Any:
    return ctx.child("between", between, name, kind, of)


@workflow(name="deadlocks.passing_parent", limit=PASSING)
def passing_parent(ctx: Context, name: str, kind: str, of: str) -> Any:
    return ctx.child("label", LEAVES[kind], of)


def failure(run_id: str) -> tuple[str, str]:
    run = get_run(run_id)
    assert (run.state, run.error is not None) == ("failed", True)
    assert run.error is not None
    return run.error.type, run.error.message


CHAIN = {
    "parent": 'run "p" keeps all of it until its end; write hold="running"',
    "above": 'run "p" keeps all of it until its end, and "p" waits for "p:between"; write hold="running"',
}


@pytest.mark.parametrize("kind", ["leaf", "passing"])
@pytest.mark.parametrize("tree", [parent, above], ids=["parent", "grandparent"])
def test_a_child_that_could_never_begin_is_refused_at_its_start(engine: str, tree: Any, kind: str) -> None:
    run = tree.using(id="p").start("a", kind, "a")
    settle()
    at = "p" if tree is parent else "p:between"
    error, text = failure(at)
    assert error == "DeadlockError"
    assert text.startswith('child "label" of deadlocks.')
    assert CHAIN[tree.__name__] in text
    assert "the limit deadlocks-open/a for ever" in text
    assert [each.id for each in get_run(at).children()] == [], "no child was started"
    assert run.state == "failed"


@pytest.mark.parametrize("tree", [parent, above], ids=["parent", "grandparent"])
def test_a_step_that_could_never_begin_is_refused(engine: str, tree: Any) -> None:
    tree.using(id="p").start("a", "steps", "a")
    settle()
    last = "p:label" if tree is parent else "p:between:label"
    error, text = failure(last)
    assert error == "DeadlockError"
    assert text.startswith('step "work" would wait for the limit deadlocks-open/a for ever: run "p" keeps all of it')
    assert f'waits for "{last}"' in text
    [attempt] = get_run(last).history()
    assert (attempt.status, attempt.attempts) == ("exhausted", 1)
    assert runtime.current().store.slots(["p", last]) == []


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("tree", [parent, aparent, above], ids=["sync", "async", "grandparent"])
def test_another_key_is_no_deadlock(h: Harness, tree: Any, kind: str) -> None:
    assert h.finish(h.start(tree, "a", kind, "b")).output == "b"


@pytest.mark.parametrize("kind", LEAVES)
def test_what_a_parent_holds_while_it_runs_is_free_when_it_parks(engine: str, kind: str) -> None:
    run = passing_parent.using(id="p").start("a", kind, "a")
    settle()
    assert (run.state, run.output) == ("completed", "a")


def test_an_async_parent(h: Harness) -> None:
    run = h.start(aparent, "a", "leaf", "a")
    h.settle()
    assert failure(run.id)[0] == "DeadlockError"


@pytest.mark.parametrize("catch", ["block", "except"])
def test_the_refusal_is_recorded_and_can_be_caught(h: Harness, catch: str) -> None:
    @workflow(name="deadlocks.catches", limit=OPEN)
    def catches(ctx: Context, name: str) -> Any:
        if catch == "block":
            found = ctx.try_block("try", lambda ctx: ctx.child("label", leaf, name), catch=["child"])
            assert found.failure is not None
            seen = found.failure.source, found.failure.error.type
        else:
            try:
                ctx.child("label", leaf, name)
            except DeadlockError as error:
                seen = "child", type(error).__name__
        ctx.sleep("then", 5)
        return seen

    run = h.start(catches, "a")
    h.settle()
    h.advance(5)
    assert h.finish(run).output == ("child", "DeadlockError")
    assert h.crash_everywhere(catches, "b", check=lambda: None) >= 2


def test_a_recovery_tries_again(h: Harness) -> None:
    run = h.start(parent.using(id="p"), "a", "leaf", "a")
    h.settle()
    assert failure("p")[0] == "DeadlockError"
    h._store.set_limit("deadlocks-open", 2)
    run.recover()
    assert h.finish(run).output == "a"


def test_a_start_alone_is_no_deadlock_and_its_result_is(engine: str) -> None:
    @workflow(name="deadlocks.starts", limit=OPEN)
    def starts(ctx: Context, name: str, waits: bool) -> str:
        child = ctx.start_child("later", leaf.using(when_parent_ends="leave"), name)
        ctx.step("mine", str, "mine")
        return child.result("done") if waits else "left"

    run = starts.using(id="p").start("a", False)
    settle()
    assert (run.state, run.output) == ("completed", "left")
    assert get_run("p:later").state == "completed", "the end of the parent let it begin"
    starts.using(id="q").start("a", True)
    settle()
    error, text = failure("q")
    assert error == "DeadlockError"
    assert text.startswith('child "done" of deadlocks.leaf would wait')
    assert get_run("q:later").state == "completed", "it may begin once its parent has ended"


def test_a_wait_for_a_child_whose_step_stands_in_line(h: Harness) -> None:
    """The child has looked before its parent waited for it: it looks again each minute."""

    @workflow(name="deadlocks.waits_later", limit=OPEN)
    def waits_later(ctx: Context, name: str) -> Any:
        child = ctx.start_child("later", steps, name)
        ctx.sleep("meanwhile", 600)
        return child.result("done")

    run = h.start(waits_later.using(id="p"), "a")
    h.settle()
    assert h.peek("p:later").state == "sleeping"
    h.advance(300)
    h.settle()
    assert h.peek("p:later").state == "sleeping", "the parent sleeps, and may end without it"
    h.advance(400)
    h.settle()
    h.advance(60)
    h.settle()
    assert failure("p:later")[0] == "DeadlockError"
    assert h.finish(run).state == "failed"


@pytest.mark.parametrize("generations", [1, 2, 3])
def test_all_slots_of_a_limit(engine: str, generations: int) -> None:
    @workflow(name="deadlocks.nested", limit=TWO)
    def nested(ctx: Context, left: int) -> str:
        return ctx.child("next", nested, left - 1) if left else "bottom"

    run = nested.using(id="p").start(generations)
    settle()
    if generations == 1:
        assert run.output == "bottom"
        return
    error, text = failure("p:next")
    assert error == "DeadlockError"
    assert 'run "p" and "p:next" keep all of it until their ends, and "p" waits for "p:next"' in text


@pytest.mark.parametrize("hold", ["open", "running"])
def test_a_step_that_waits_for_its_own_run(engine: str, hold: Any) -> None:
    @workflow(name="deadlocks.own", limit=Limit("deadlocks-own", at_once=1, hold=hold))
    def own(ctx: Context) -> Any:
        found = ctx.try_step("work", str, "a", limit="deadlocks-own")
        return found.failure and (found.failure.kind, found.failure.error.type)

    run = own.using(id="p").start()
    settle()
    assert run.output == ("critical", "DeadlockError")


def test_children_of_a_map(h: Harness) -> None:
    @workflow(name="deadlocks.maps", limit=OPEN)
    def maps(ctx: Context, name: str) -> Any:
        return len(ctx.map("all", leaf, [("a",), ("b",)], on_failure="finish").failed)

    run = h.start(maps.using(id="p"), "a")
    assert h.finish(run).output == 1
    [lost] = [each for each in get_run("p").children() if each.state == "failed"]
    assert failure(lost.id)[0] == "DeadlockError"


def test_a_line_behind_other_runs_is_no_deadlock(h: Harness) -> None:
    first = h.start(parent.using(id="other"), "b", "leaf", "a")
    run = h.start(leaf.using(id="p"), "a")
    h.settle()
    assert (first.state, run.state) == ("completed", "completed")


def test_a_limit_that_is_lowered_fails_no_run_that_has_begun(h: Harness) -> None:
    @workflow(name="deadlocks.goes_on", limit=Limit("deadlocks-low", at_once=2))
    def goes_on(ctx: Context) -> str:
        ctx.sleep("night", 60)
        return ctx.step("work", str, "done")

    @workflow(name="deadlocks.low", limit=Limit("deadlocks-low", at_once=2, hold="open"))
    def low(ctx: Context) -> str:
        return ctx.child("label", goes_on)

    run = h.start(low.using(id="p"))
    h.settle()
    h._store.set_limit("deadlocks-low", 1)
    h.advance(60)
    h.settle()
    assert h.peek("p:label").state == "sleeping"
    h._store.set_limit("deadlocks-low", 2)
    assert h.finish(run).output == "done"
