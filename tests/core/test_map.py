"""Maps: one child for each input, a bounded number at a time; in both flavours."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from durable import Context, CriticalError, get_run, workflow
from durable.core.children import maps
from durable.core.location import escape
from durable.errors import MapError
from durable.testing import Harness
from tests.core.flavours import declared
from tests.support.errors import check_failed

CALLS: list[Any] = []
FAIL: set[Any] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAIL.clear()


def work(number: int) -> int:
    CALLS.append(number)
    if number in FAIL:
        raise CriticalError(f"no {number}")
    return number * 10


@workflow(name="maps.one")
def one(ctx: Context, number: int, seconds: float = 0) -> int:
    if seconds:
        ctx.sleep("before", seconds)
    return ctx.step("work", work, number)


def _shown(result: Any) -> Any:
    return [
        result.outputs,
        [(each.number, each.child_id, str(each.error)) for each in result.failed],
        [(each.number, each.child_id, each.reason) for each in result.cancelled],
    ]


async def mapping(
    ctx: Any, count: int, at_once: int | None = None, on_failure: Any = "stop", seconds: float = 0
) -> Any:
    inputs = [(number, seconds) for number in range(count)]
    return _shown(await ctx.map("bills", one, inputs, at_once=at_once, on_failure=on_failure))


all_of, aall_of = declared("maps.all")(mapping)
both = pytest.mark.parametrize("parent", [all_of, aall_of], ids=["sync", "async"])


@both
def test_a_child_runs_for_each_input_and_the_outputs_are_in_their_order(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 3)
    assert h.run(run).state == "sleeping"
    assert run.summary == 'waiting for the children of the map "bills" (3)'
    assert [each.id for each in run.children(group="bills")] == ["p:bills:0", "p:bills:1", "p:bills:2"]
    assert h.finish(run).output == [[0, 10, 20], [], []]


@both
def test_no_inputs_give_an_empty_result_at_once(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 0)
    h.run(run)
    assert run.state == "completed"
    assert run.result() == [[], [], []]


@both
def test_at_most_so_many_run_at_once_and_the_parent_is_woken_once(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 5, 2)
    h.run(run)
    passes = []
    while True:
        due = [each.id for each in run.children() if each.info().wake_at is not None]
        open_ones = [each.id for each in run.children() if each.state == "pending"]
        if not open_ones:
            break
        assert len(due) == min(2, len(open_ones))
        h.run(due[-1])
        passes.append(run.state)
        assert (run.info().wake_at is not None) == (len(open_ones) == 1)
    h.settle()
    assert run.result() == [[0, 10, 20, 30, 40], [], []]
    assert sorted(CALLS) == [0, 1, 2, 3, 4]


@both
def test_failures_are_reported_if_the_others_are_to_finish(h: Harness, parent: Any) -> None:
    FAIL.update({1, 3})
    run = h.start(parent.using(id="p"), 5, 2, "finish")
    h.settle()
    assert run.result() == [
        [0, 20, 40],
        [(1, "p:bills:1", "CriticalError: no 1"), (3, "p:bills:3", "CriticalError: no 3")],
        [],
    ]


@both
def test_the_first_failure_cancels_the_others(h: Harness, parent: Any) -> None:
    FAIL.add(1)
    run = h.start(parent.using(id="p"), 50, 2)
    h.settle()
    assert run.state == "failed"
    error = run.info().error
    assert error is not None
    assert error.type == "MapError"
    assert error.message.startswith('1 of the 50 children of the map "bills" of maps.one failed, and 4')
    assert '"p:bills:1" failed: CriticalError: no 1' in error.message
    assert {each.state for each in run.children()} <= {"completed", "failed", "cancelled"}
    assert len(CALLS) <= 4


@both
def test_a_recovery_recovers_the_failed_children_and_starts_the_cancelled_ones_anew(h: Harness, parent: Any) -> None:
    FAIL.add(1)
    run = h.start(parent.using(id="p"), 4, 2)
    h.settle()
    assert run.state == "failed"
    done = CALLS.count(0)
    FAIL.clear()
    run.recover()
    assert get_run("p:bills:1").state == "pending"
    h.settle()
    assert run.result() == [[0, 10, 20, 30], [], []]
    assert CALLS.count(0) == done == 1
    assert CALLS.count(1) == 2
    assert get_run("p:bills:1").state == "completed"
    assert get_run("p:bills:3~1").state == "completed"
    assert get_run("p:bills:3").state == "cancelled"


@both
def test_a_recovery_of_a_parent_that_has_failed_while_its_children_ran(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p", deadline="50 s"), 3, 2, "finish", 30)
    h.settle()
    h.advance(30)
    h.settle()
    h.advance(20)
    h.settle()
    assert run.state == "failed"
    assert [each.state for each in run.children()] == ["completed", "completed", "cancelled"]
    run.recover()
    h.settle()
    h.advance(30)
    h.settle()
    assert run.result() == [[0, 10, 20], [], []]
    assert sorted(CALLS) == [0, 1, 2]
    assert get_run("p:bills:2~1").state == "completed"


@workflow(name="maps.loser")
def loser(ctx: Context, when: Literal["cancel", "leave"]) -> Any:
    def bills(inner: Context) -> Any:
        return inner.map(
            "bills", one.using(when_parent_ends=when), [(number, 60) for number in range(5)], at_once=2
        ).outputs

    def quick(inner: Context) -> str:
        inner.sleep("a while", 5)
        return "quick"

    winner = ctx.race("first", {"map": bills, "quick": quick}).value
    ctx.sleep("afterwards", 5)
    return winner


@pytest.mark.parametrize(("when", "states"), [("cancel", {"cancelled"}), ("leave", {"sleeping", "pending"})])
def test_the_children_of_a_losing_branch_are_cancelled_unless_they_are_left(
    h: Harness, when: str, states: set[str]
) -> None:
    run = h.start(loser.using(id="p"), when)
    h.settle()
    h.advance(5)
    h.settle()
    assert (run.state, {each.state for each in run.children()}) == ("sleeping", states)
    assert h.finish(run).output == "quick"


@both
def test_the_cancellation_of_the_parent_cancels_all(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 5, 2, "finish", 60)
    h.settle()
    run.cancel()
    h.settle()
    assert {each.state for each in run.children()} == {"cancelled"}


@both
def test_a_cancelled_child_is_reported(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 3, 1, "finish")
    h.run(run)
    get_run("p:bills:1").cancel(reason="not this one")
    h.settle()
    assert run.result() == [[0, 20], [], [(1, "p:bills:1", "not this one")]]


@both
def test_a_replay_in_place_of_what_follows_keeps_the_results(h: Harness, parent: Any) -> None:
    run = h.start(twice.using(id="p"))
    h.settle()
    assert run.result() == [[0, 10], "done"]
    run.replay("after")
    h.settle()
    assert run.result() == [[0, 10], "done"]
    assert [CALLS.count(0), CALLS.count(1)] == [1, 1]


@workflow(name="maps.twice")
def twice(ctx: Context) -> Any:
    outputs = ctx.map("bills", one, [(0,), (1,)]).outputs
    ctx.step("after", CALLS.append, "after")
    return [outputs, "done"]


def test_a_replay_in_place_from_the_map_cancels_its_children_and_starts_others(h: Harness) -> None:
    run = h.start(all_of.using(id="p"), 4, 2, "finish", 60)
    h.settle()
    plan = run.plan_replay("bills")
    assert any("cancels 4 children" in note for note in plan.notes)
    run.replay("bills", in_place=True)
    h.settle()
    h.advance(60)
    h.settle()
    h.advance(60)
    h.settle()
    assert run.result() == [[0, 10, 20, 30], [], []]
    assert get_run("p:bills:0").state == "cancelled"
    assert get_run("p:bills~1:0").state == "completed"


COUNT = {"inputs": 3}


@workflow(name="maps.changing")
def changing(ctx: Context) -> Any:
    return ctx.map("bills", one, [(number,) for number in range(COUNT["inputs"])]).outputs


def test_another_number_of_inputs_is_a_divergence(h: Harness) -> None:
    COUNT["inputs"] = 3
    run = h.start(changing.using(id="p"))
    h.run(run)
    COUNT["inputs"] = 2
    h.settle()
    check_failed(
        run.info(),
        "HistoryDivergedError",
        "a map of maps.one over 3 inputs, the code now has one of maps.one over 2",
    )


def test_a_block_catches_the_failure_of_a_map(h: Harness) -> None:
    FAIL.add(0)
    run = h.start(caught.using(id="p"))
    h.settle()
    assert run.result() == ["map", "bills", "MapError"]


@workflow(name="maps.caught")
def caught(ctx: Context) -> Any:
    result = ctx.try_block("bills here", lambda inner: inner.map("bills", one, [(0,)]).outputs)
    assert result.failure is not None
    return [result.failure.source, result.failure.name, result.failure.error.type]


def test_a_caught_failure_stays_when_the_child_is_recovered(h: Harness) -> None:
    FAIL.add(0)
    run = h.start(consoled.using(id="p"))
    h.settle()
    FAIL.clear()
    get_run("p:bills:0").recover()
    assert h.finish(run).output == "MapError"
    assert get_run("p:bills:0").result() == 0


@workflow(name="maps.consoled")
def consoled(ctx: Context) -> str:
    try:
        ctx.map("bills", one, [(0,)])
    except MapError as error:
        ctx.sleep("a while", 60)
        return type(error).__name__
    return "no failure"


def test_a_map_of_many_batches(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "_START_BATCH", 50)
    run = h.start(all_of.using(id="p"), 123, 30)
    h.run(run)
    assert len(run.children()) == 123
    h.settle()
    assert run.result() == [[number * 10 for number in range(123)], [], []]


@both
def test_a_crash_at_each_commit_of_the_parent_and_of_each_child(h: Harness, parent: Any) -> None:
    assert h.crash_everywhere(parent, 3, 2, "finish", 60) >= 20


def test_an_input_that_is_no_tuple_says_what_to_write(h: Harness) -> None:
    @workflow(name="maps.wrong")
    def wrong(ctx: Context) -> None:
        ctx.map("m", one, [1, 2, 3])  # type: ignore[arg-type]  # refused

    handle = h.start(wrong)
    h.settle()
    assert "take a tuple of arguments for each run, not 1" in str(handle.info().summary)
    assert "or (1,)" in str(handle.info().summary)


@workflow(name="maps.named")
def named(ctx: Context, name: str, count: int) -> Any:
    found = ctx.map(name, one, [(number,) for number in range(count)], at_once=2)
    return [found.outputs, [each.child_id for each in found]]


@pytest.mark.parametrize("parent_id", ["p", "🐈-7", "p" * 190])
@pytest.mark.parametrize("name", ["bills 🐈", "bills: of today", "n" * 128, "\u202ebills", "x~1"])
def test_each_child_has_an_id_of_its_own_whatever_the_map_and_its_parent_are_called(
    h: Harness, parent_id: str, name: str
) -> None:
    run = h.start(named.using(id=parent_id), name, 12)
    h.settle()
    outputs, ids = run.result()
    assert outputs == [number * 10 for number in range(12)]
    assert len(set(ids)) == 12
    assert [each.id for each in run.children(group=escape(name))] == ids
