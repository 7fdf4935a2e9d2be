"""Maps whose children are compensated with their parents, in both flavours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from durable import Context, CriticalError, RollbackContext, get_run, runtime, workflow
from durable.core.errors import RollbackCheckpointError
from durable.core.records import RunRecord
from durable.errors import MapError
from durable.testing import Harness
from tests.core.flavours import declared
from tests.support.stores import settle

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

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


@workflow(name="mapundo.one")
def one(ctx: Context, number: int, seconds: float = 0) -> str:
    ctx.rollback_checkpoint("undo")
    charged = ctx.step("charge", do, f"charge {number}", rollback=undo)
    if seconds:
        ctx.sleep("s", seconds)
    ctx.step("check", do, f"check {number}")
    return charged


@workflow(name="mapundo.plain")
def plain(ctx: Context, number: int) -> str:
    return ctx.step("plain", do, f"plain {number}")


UNDONE = one.using(rollback=True)


@declared("mapundo.family")
async def families(
    ctx: Any, count: int, at_once: int | None = None, on_failure: Any = "stop", seconds: float = 0
) -> Any:
    await ctx.rollback_checkpoint("undo")
    await ctx.step("before", do, "before", rollback=undo)
    inputs = [(number, seconds) for number in range(count)]
    result = await ctx.map("bills", UNDONE, inputs, at_once=at_once, on_failure=on_failure)
    await ctx.step("after", do, "after", rollback=undo)
    await ctx.sleep("pause", 60)
    await ctx.step("end", do, "end")
    return result.outputs


family, _ = families
both = pytest.mark.parametrize("parent", families, ids=["sync", "async"])


@declared("mapundo.brief")
async def briefs(ctx: Any, count: int, at_once: int | None, on_failure: Any) -> Any:
    await ctx.rollback_checkpoint("undo")
    await ctx.step("before", do, "before", rollback=undo)
    inputs = [(number,) for number in range(count)]
    result = await ctx.map("bills", UNDONE, inputs, at_once=at_once, on_failure=on_failure)
    await ctx.step("end", do, "end")
    return result.outputs


brief, abrief = briefs
#: Both flavours in memory, and one in a database: there it is the same history.
each_brief = pytest.mark.parametrize(
    ("engine", "parent"),
    [("memory", brief), ("memory", abrief), ("database", brief)],
    ids=["memory-sync", "memory-async", "database"],
    indirect=["engine"],
)


@contextmanager
def forked(engine: str) -> Iterator[None]:
    """Let a database forget what happens inside the block, so that a run goes on from where it was.

    The store in memory keeps it.
    """
    done = list(DONE)
    if engine == "memory":
        yield
        return
    savepoint = connection.savepoint()
    assert savepoint is not None
    yield
    connection.savepoint_rollback(savepoint)
    DONE[:] = done


def undone() -> list[str]:
    return [each for each in DONE if each.startswith("undo")]


def charges_left() -> set[str]:
    """Return the charges that were made and not given back.

    Each is made and given back at most once between two looks.
    """
    left: dict[str, int] = {}
    for each in DONE:
        name = each.removeprefix("undo ")
        if name.startswith("charge"):
            left[name] = left.get(name, 0) + (1 if name == each else -1)
    assert not any(number < 0 for number in left.values()), left
    return {name for name, number in left.items() if number}


@both
@pytest.mark.parametrize(("at_once", "order"), [(None, [[4, 3, 2, 1, 0]]), (2, [[4, 3], [2, 1], [0]])])
def test_the_children_are_undone_at_the_place_of_their_map(
    h: Harness, parent: Any, at_once: int | None, order: Any
) -> None:
    FAIL.add("end")
    run = h.start(parent.using(id="p"), 5, at_once)
    assert h.finish(run).state == "failed"
    found = undone()
    assert (found[0], found[-1]) == ("undo after", "undo before")
    between = found[1:-1]
    for batch in order:  # those of a batch have no order
        expected = {f"undo charge {number}" for number in batch}
        assert set(between[: len(batch)]) == expected
        between = between[len(batch) :]
    assert not between
    assert {each.state for each in run.children()} == {"cancelled"}
    assert get_run("p:bills:3").summary == "compensated: 1 step was undone"
    assert run.summary.startswith("compensated: 3 steps were undone")


@both
def test_a_recovery_starts_the_map_again(h: Harness, parent: Any) -> None:
    FAIL.add("end")
    run = h.start(parent.using(id="p"), 3, 2)
    h.finish(run)
    FAIL.clear()
    DONE.clear()
    run.recover()
    assert h.finish(run).output == ["charge 0", "charge 1", "charge 2"]
    assert DONE.count("charge 0") == 1
    assert not undone()
    assert get_run("p:bills~1:0").state == "completed"


@both
@pytest.mark.parametrize("on_failure", ["stop", "finish"])
@pytest.mark.parametrize("at_once", [None, 2])
def test_no_charge_stays_behind_a_failed_map(h: Harness, parent: Any, on_failure: str, at_once: int | None) -> None:
    FAIL.update({"check 1", "end"})
    run = h.start(parent.using(id="p"), 5, at_once, on_failure, 30)
    assert h.finish(run).state == "failed"
    assert not charges_left()
    assert undone()[-1] == "undo before"
    FAIL.clear()
    DONE.clear()
    run.recover()
    assert h.finish(run).state == "completed"
    assert charges_left() == {f"charge {number}" for number in range(5)}


def test_a_failed_map_has_cancelled_the_others_with_their_rollback_before_it_raises(h: Harness) -> None:
    @workflow(name="mapundo.caught")
    def caught(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        try:
            ctx.map("bills", UNDONE, [(0, 0.0), (1, 0.0), (2, 600.0), (3, 600.0)])
        except MapError as error:
            ctx.step("caught", do, "caught")
            return [error.failed, error.cancelled]
        return None

    FAIL.add("check 1")
    run = h.start(caught.using(id="p"))
    h.finish(run)
    assert run.result() == [1, 2]
    assert set(DONE[: DONE.index("caught")]) >= {"undo charge 1", "undo charge 2", "undo charge 3"}
    assert charges_left() == {"charge 0"}
    assert h._store._runs["p:bills:3"].request_reason == 'its parent "p" has taken its start back'


@both
def test_a_cancel_with_rollback_undoes_children_that_run_and_that_have_ended(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 6, 2, "finish", 30)
    h.settle()
    h.advance(30)
    h.settle()
    assert {each.state for each in run.children()} == {"completed", "sleeping", "pending"}
    run.cancel("enough", rollback=True)
    h.settle()
    assert run.state == "cancelled"
    assert not charges_left()
    assert undone()[-1] == "undo before"
    assert {each.state for each in run.children()} == {"cancelled"}


@both
def test_a_child_whose_own_compensation_stops_stops_that_of_the_parent(h: Harness, parent: Any) -> None:
    FAIL.update({"end", "undo charge 1", "undo charge 2"})
    run = h.start(parent.using(id="p"), 4)
    assert h.finish(run).state == "failed"
    assert 'the compensation of child "p:bills:2", and that of 1 others, has stopped' in run.summary
    assert "undo before" not in DONE
    FAIL.difference_update({"undo charge 1", "undo charge 2"})
    run.recover()
    h.settle()
    assert run.state == "failed"
    assert not charges_left()
    assert undone()[-1] == "undo before"


def test_children_with_nothing_to_undo_stay_and_their_map_is_kept_by_a_recovery(h: Harness) -> None:
    @workflow(name="mapundo.nothing")
    def nothing(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        result = ctx.map("bills", plain.using(rollback=True), [(0,), (1,)])
        ctx.step("end", do, "end")
        return result.outputs

    FAIL.add("end")
    run = h.start(nothing.using(id="p"))
    assert h.finish(run).state == "failed"
    assert {each.state for each in run.children()} == {"completed"}
    FAIL.clear()
    run.recover()
    assert h.finish(run).output == ["plain 0", "plain 1"]
    assert DONE == ["plain 0", "plain 1", "end"]


def test_a_deleted_child_stops_the_compensation(h: Harness) -> None:
    FAIL.add("end")
    run = h.start(family.using(id="p"), 3)
    h.settle()
    h._store._runs.pop("p:bills:1")
    h._store._children._children["p"].pop("p:bills:1")
    h.finish(run)
    assert "1 child of the map cannot be compensated: deleted" in run.summary


def test_a_compensation_that_the_code_calls(h: Harness) -> None:
    @workflow(name="mapundo.called")
    def called(ctx: Context) -> Any:
        ctx.rollback_checkpoint("undo")
        ctx.map("bills", UNDONE, [(0,), (1,)])
        ctx.compensate("changed our mind")
        ctx.step("then", do, "then")
        return "done"

    run = h.start(called.using(id="p"))
    assert h.finish(run).output == "done"
    assert set(undone()) == {"undo charge 0", "undo charge 1"}
    assert DONE[-1] == "then"


@both
def test_a_crash_at_each_commit(parent: Any) -> None:
    FAIL.add("end")
    with Harness() as h:
        assert h.crash_everywhere(parent, 3, 2) >= 30
    assert not charges_left()


@both
def test_a_crash_at_each_commit_of_a_map_that_fails(parent: Any) -> None:
    FAIL.add("check 1")
    with Harness() as h:
        assert h.crash_everywhere(parent, 3, 2, "stop", 60) >= 30
    assert not charges_left()


def test_the_parent_is_woken_once_for_a_batch(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    FAIL.add("end")
    run = h.start(family.using(id="p"), 1200)
    h.settle()
    claims: list[str] = []
    taken = h._store._taken

    def counted(run_id: str, *given: Any) -> RunRecord:
        claims.append(run_id)
        return taken(run_id, *given)

    monkeypatch.setattr(h._store, "_taken", counted)
    h.finish(run)
    assert not charges_left()
    assert 0 < claims.count("p") <= 8
    assert len(run.history()) == 6


@both
def test_a_pause_during_the_compensation(h: Harness, parent: Any) -> None:
    FAIL.add("end")
    run = h.start(parent.using(id="p"), 4, 2)
    h.settle()
    h.advance(60)
    h.run(run)
    assert run.state == "rolling_back"
    assert run.summary == 'waiting for the children of the map "bills" (4)'
    run.pause()
    h.settle()
    assert run.state == "paused"
    run.resume()
    h.settle()
    assert run.state == "failed"
    assert not charges_left()


def test_a_rollback_needs_a_checkpoint(h: Harness) -> None:
    @workflow(name="mapundo.unchecked")
    def unchecked(ctx: Context) -> Any:
        return ctx.map("bills", UNDONE, [(0,)]).outputs

    run = h.start(unchecked)
    h.settle()
    assert run.error is not None
    assert run.error.type == RollbackCheckpointError.__name__


def test_a_replay_as_a_new_run_compensates_the_children_that_it_has_copied(h: Harness) -> None:
    run = h.start(family.using(id="p"), 3)
    assert h.finish(run).state == "completed"
    FAIL.add("end")
    other = run.replay("end")
    assert h.finish(other).state == "failed"
    assert not charges_left()


# -- every moment, on every store


@each_brief
@pytest.mark.parametrize("failing", ["", "check 1", "end"])
@pytest.mark.parametrize(("at_once", "on_failure"), [(None, "stop"), (2, "finish"), (1, "stop")])
def test_whenever_the_run_is_cancelled_with_its_rollback_no_charge_is_left(
    engine: str, parent: Any, failing: str, at_once: int | None, on_failure: str
) -> None:
    FAIL.add(failing)
    run = parent.using(id="p0").start(3, at_once, on_failure)
    for moment in range(60):
        if run.state in ("completed", "failed"):
            break
        with forked(engine):
            if run.state != "rolling_back":
                run.cancel("enough", rollback=True)
            settle()
            assert run.state in ("cancelled", "failed")
            assert not charges_left()
        if engine == "memory":
            DONE.clear()
            run = parent.using(id=f"p{moment + 1}").start(3, at_once, on_failure)
            settle(moment + 1)
        else:
            settle(1)
    assert moment >= 5


@each_brief
@pytest.mark.parametrize("failing", ["check 0", "check 2", "end"])
@pytest.mark.parametrize(("at_once", "on_failure"), [(None, "stop"), (2, "finish"), (1, "stop")])
def test_a_recovery_charges_each_child_once_after_a_rollback(
    engine: str, parent: Any, failing: str, at_once: int | None, on_failure: str
) -> None:
    FAIL.update({failing, "end"})
    run = parent.using(id="p").start(3, at_once, on_failure)
    settle()
    assert run.state == "failed"
    assert not charges_left()
    for _ in range(2):
        run.recover()
        settle()
        assert run.state == "failed"
        assert not charges_left()
    FAIL.clear()
    run.recover()
    settle()
    assert run.state == "completed"
    assert charges_left() == {"charge 0", "charge 1", "charge 2"}


@each_brief
@pytest.mark.parametrize("at_once", [None, 1])
def test_children_that_were_recovered_by_themselves_are_undone_before_the_map_starts_again(
    engine: str, parent: Any, at_once: int | None
) -> None:
    FAIL.update({"check 0", "check 2", "end"})
    run = parent.using(id="p").start(4, at_once, "finish")
    settle()
    assert run.state == "failed"
    assert not charges_left()
    FAIL.clear()
    for each in run.children(state="failed"):
        each.recover()
    settle()
    assert charges_left() == {"charge 0", "charge 2"}
    run.recover()
    settle()
    assert run.state == "completed"
    for number in range(4):
        assert DONE.count(f"charge {number}") - DONE.count(f"undo charge {number}") == 1, number


@each_brief
def test_the_map_waits_for_a_child_that_was_recovered_by_itself_and_whose_compensation_has_stopped(
    engine: str, parent: Any
) -> None:
    FAIL.update({"check 0", "end"})
    run = parent.using(id="p").start(2, None, "finish")
    settle()
    FAIL.clear()
    get_run("p:bills:0").recover()
    settle()
    assert charges_left() == {"charge 0"}
    FAIL.add("undo charge 0")
    run.recover()
    settle()
    assert (run.state, run.info().summary.partition(";")[0]) == ("sleeping", 'waiting for child "p:bills:0"')
    assert charges_left() == {"charge 0"}
    FAIL.clear()
    get_run("p:bills:0").recover()
    run.wake()
    settle()
    assert run.state == "completed"
    for number in range(2):
        assert DONE.count(f"charge {number}") - DONE.count(f"undo charge {number}") == 1, number


@each_brief
def test_a_replay_leaves_what_the_children_have_done_in_spite_of_a_recovery_before_and_behind_it(
    engine: str, parent: Any
) -> None:
    FAIL.add("end")
    run = parent.using(id="p").start(2, None, "finish")
    settle()
    FAIL.clear()
    run.recover()
    settle()
    assert run.state == "completed"
    FAIL.add("end")
    run.replay("bills", in_place=True)
    settle()
    assert run.state == "failed"
    FAIL.clear()
    run.recover()
    settle()
    assert run.state == "completed"
    made = (None, "~1", "~2", "~3")
    states = [get_run(f"p:bills{each or ''}:0").state for each in made]
    assert states == ["cancelled", "completed", "cancelled", "completed"]
    assert DONE.count("charge 1") - DONE.count("undo charge 1") == 2


@each_brief
def test_stopped_compensations_of_children_are_recovered_with_their_parent(engine: str, parent: Any) -> None:
    FAIL.update({"end", "undo charge 0", "undo charge 2"})
    run = parent.using(id="p").start(3, None, "stop")
    settle()
    assert run.state == "failed"
    assert charges_left() == {"charge 0", "charge 2"}
    FAIL.discard("undo charge 0")
    run.recover()
    settle()
    assert (run.state, charges_left()) == ("failed", {"charge 2"})
    FAIL.discard("undo charge 2")
    get_run("p:bills:2").recover()
    settle()
    run.recover()
    settle()
    assert (run.state, charges_left()) == ("failed", set())
    assert undone()[-1] == "undo before"


def test_a_replay_keeps_the_children_that_it_may_have_to_compensate(engine: str) -> None:
    run = brief.using(id="p").start(3, 2, "stop")
    settle()
    assert run.state == "completed"
    FAIL.add("end")
    other = run.replay("end")
    assert runtime.current().store.readers_of("p:bills:1") == [other.id]
    settle()
    assert other.state in ("failed", "rolling_back")


def test_a_replay_in_place_says_that_the_children_of_the_map_are_not_compensated(engine: str) -> None:
    run = brief.using(id="p").start(3, 2, "stop")
    settle()
    plan = run.plan_replay("bills")
    assert plan.not_compensated == ("bills",)
    DONE.clear()
    FAIL.add("end")
    run.replay("bills", in_place=True)
    settle()
    assert run.state == "failed"
    assert not charges_left()
    assert {get_run(f"p:bills~1:{number}").state for number in range(3)} == {"cancelled"}
