"""Children: started with the parent's commit, waited for, failed, cancelled, taken back; in both flavours."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from durable import ANY, Break, Context, Continue, CriticalError, get_run, workflow
from durable.errors import ChildFailedError, ChildTimeoutError, ReplayRefusedError, RunConflictError
from durable.testing import Harness
from tests.core.driving import threaded_pass
from tests.core.flavours import Flavour, declared
from tests.support.errors import check_failed

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAIL.clear()


FAIL: set[str] = set()


def work(name: str) -> str:
    CALLS.append(name)
    if name in FAIL:
        raise CriticalError(f"no {name}")
    return f"done {name}"


@workflow(name="children.one")
def one(ctx: Context, name: str, seconds: float = 0) -> str:
    if seconds:
        ctx.sleep("before", seconds)
    return ctx.step("work", work, name)


async def calling(ctx: Any, name: str = "a", seconds: float = 0) -> Any:
    return await ctx.child("label", one, name, seconds=seconds)


async def starting(ctx: Any, seconds: float = 0, limit: float | None = None) -> Any:
    child = await ctx.start_child("mail", one, "m", seconds)
    mine = await ctx.step("mine", work, "mine")
    return mine, child.id, await child.result("mail sent", timeout=limit)


calls, acalls = declared("children.calls")(calling)
starts, astarts = declared("children.starts")(starting)
both_calls = pytest.mark.parametrize("parent", [calls, acalls], ids=["sync", "async"])
both_starts = pytest.mark.parametrize("parent", [starts, astarts], ids=["sync", "async"])


@both_calls
def test_a_child_runs_and_its_output_is_returned(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"))
    assert h.run(run).state == "sleeping"
    assert run.summary == 'waiting for child "p:label"'
    assert run.waiting_for is None
    child = get_run("p:label")
    assert (child.state, child.workflow, child.info().parent_id) == ("pending", "children.one", "p")
    assert h.finish(run).output == "done a"
    assert CALLS == ["a"]
    [entry] = run.history()
    assert (entry.kind, entry.data["child"], entry.data["output"]) == ("child", "p:label", "done a")


@both_calls
def test_a_child_that_only_waits_wakes_nobody(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), "a", 60)
    h.settle()
    commits = h.commits
    h.run("p:label")
    assert h.run_due() == 0
    assert h.commits == commits + 1
    h.advance(60)
    h.settle()
    assert run.state == "completed"
    assert h.commits == commits + 1 + 2 + 2


@both_starts
def test_a_child_is_started_and_waited_for_later(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 60)
    h.settle()
    assert CALLS == ["mine"]
    assert h.finish(run).output == ("done mine", "p:mail", "done m")


@both_starts
def test_a_child_that_has_ended_before_the_wait(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"))
    assert h.finish(run).output == ("done mine", "p:mail", "done m")
    assert [(each.kind, each.location, each.status) for each in run.history()] == [
        ("child", "mail", "completed"),
        ("step", "mine", "completed"),
        ("child", "mail sent", "completed"),
    ]


@both_starts
def test_a_timeout_ends_the_wait_and_the_child_goes_on(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"), 60, 30)
    end = h.finish(run)
    assert (end.state, end.error.type if end.error else "") == ("failed", "ChildTimeoutError")
    assert get_run("p:mail").state == "cancelled"  # by its parent's end


def test_an_end_before_the_deadline_counts_however_late_the_worker_is(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 10, 30)
    h.settle()
    h.advance(10)
    h.run("p:mail")
    h.advance(60)
    h.settle()
    assert run.state == "completed"


def test_an_end_at_the_deadline_does_not(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 30, 30)
    h.settle()
    h.advance(30)
    h.run("p:mail")
    assert h.finish(run).state == "failed"


def test_the_result_of_one_child_twice(h: Harness) -> None:
    @workflow(name="children.twice")
    def twice(ctx: Context) -> Any:
        child = ctx.start_child("mail", one, "m", 60)
        with pytest.raises(ChildTimeoutError) as caught:
            child.result("soon", timeout=1)
        return caught.value.child_id == child.id, child.result("at last")

    assert h.finish(h.start(twice)).output == (True, "done m")


# -- failures


@both_calls
def test_the_failure_of_a_child_is_raised(h: Harness, parent: Any) -> None:
    FAIL.add("a")
    run = h.start(parent.using(id="p"))
    check_failed(h.finish(run), "ChildFailedError", 'child "p:label" of children.one failed: CriticalError: no a')


class DeclinedError(CriticalError):
    def __init__(self, code: str) -> None:
        super().__init__(f"declined with code {code}")


@workflow(name="children.declined")
def declined(ctx: Context) -> None:
    ctx.step("charge", decline)


def decline() -> None:
    raise DeclinedError("51")


def test_an_error_that_makes_a_sentence_of_its_argument_says_it_once_to_the_parent(h: Harness) -> None:
    seen: list[tuple[str, str]] = []

    @workflow(name="children.pays")
    def pays(ctx: Context) -> None:
        try:
            ctx.child("pay", declined)
        except ChildFailedError as error:
            seen.append((error.error.type, error.error.message))
        ctx.sleep("night", 60)
        ctx.child("again", declined)

    end = h.finish(h.start(pays))
    assert seen == [("DeclinedError", "declined with code 51")] * 3, "in each pass"
    assert end.error is not None
    assert end.error.message.endswith("children.declined failed: DeclinedError: declined with code 51")


def test_the_attributes_of_a_failure_are_the_same_on_replay(h: Harness) -> None:
    FAIL.add("a")
    seen: list[Any] = []

    @workflow(name="children.catches")
    def catches(ctx: Context) -> str:
        try:
            ctx.child("label", one, "a")
        except ChildFailedError as error:
            seen.append((error.child_id, error.workflow, error.error.type, error.error.message))
        ctx.sleep("s", 60)
        return "caught"

    assert h.finish(h.start(catches.using(id="p"))).output == "caught"
    assert seen == [("p:label", "children.one", "CriticalError", "no a")] * 2


def test_the_cancellation_of_a_child_is_an_error_of_the_operation(h: Harness) -> None:
    run = h.start(calls.using(id="p"), "a", 60)
    h.settle()
    get_run("p:label").cancel("enough")
    end = h.finish(run)
    assert (end.state, end.error.type if end.error else "") == ("failed", "ChildCancelledError")
    assert end.error is not None
    assert end.error.message.endswith("was cancelled: enough")


@pytest.mark.parametrize("catch", ["child", ("child", "step"), None])
def test_a_block_catches_it(h: Harness, catch: Any) -> None:
    FAIL.add("a")

    @workflow(name="children.blocks")
    def blocks(ctx: Context) -> Any:
        def body(block: Context) -> str:
            return block.child("label", one, "a")

        result = ctx.try_block("b", body) if catch is None else ctx.try_block("b", body, catch)
        assert result.failure is not None
        return result.ok, result.failure.source, result.failure.name, result.failure.error.type

    assert h.finish(h.start(blocks.using(id="p"))).output == (False, "child", "label", "CriticalError")
    assert get_run("p:b:label").state == "failed"


def test_a_block_that_catches_steps_does_not(h: Harness) -> None:
    FAIL.add("a")

    @workflow(name="children.steps_only")
    def steps_only(ctx: Context) -> Any:
        return ctx.try_block("b", lambda block: block.child("label", one, "a"), "step")

    assert h.finish(h.start(steps_only)).state == "failed"


# -- ids and options


def test_options_of_using(h: Harness) -> None:
    @workflow(name="children.options")
    def options(ctx: Context) -> None:
        ctx.start_child("a", one.using(id="mine", queue="slow", delay="1 min", when_parent_ends="leave"), "a")
        ctx.start_child("b", "children.one", "b")
        ctx.sleep("s", 1)

    run = h.start(options.using(id="p"))
    h.settle()
    mine = get_run("mine")
    assert mine.wake_at == h.now + timedelta(minutes=1)
    assert h.finish(run).state == "completed"
    assert (mine.state, get_run("p:b").state) == ("pending", "completed")
    h.finish("mine")
    assert mine.output == "done a"


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (lambda ctx: ctx.child("a", one.using(on_conflict="error"), "a"), "on_conflict"),
        (lambda ctx: ctx.child("a", one), "cannot be started with these arguments"),
        (lambda ctx: ctx.child("a", work, "a"), "not of <function"),
        (lambda ctx: ctx.child("a", "children.nobody"), "children.nobody"),
    ],
)
def test_what_is_refused(h: Harness, start: Any, problem: str) -> None:
    run = h.start(start)
    h.run(run)
    assert problem in str(run.error) + run.summary
    assert h.commits == 1


def test_an_option_of_children_is_refused_outside() -> None:
    with Harness(), pytest.raises(TypeError, match="when_parent_ends"):
        one.using(when_parent_ends="leave").start("a")
    with pytest.raises(ValueError, match="cancel"):
        one.using(when_parent_ends="never")  # type: ignore[arg-type]  # the mistake


def test_an_id_of_another_run_is_an_error_of_the_operation(h: Harness) -> None:
    @workflow(name="children.taken")
    def taken(ctx: Context) -> str:
        with pytest.raises(RunConflictError) as caught:
            ctx.child("label", one.using(id="theirs"), "a")
        ctx.sleep("s", 1)
        return caught.value.run_id

    h.start(one.using(id="theirs"), "x")
    assert h.finish(h.start(taken)).output == "theirs"
    assert CALLS == ["x"]


def test_a_readable_id_that_is_taken_is_not_used(h: Harness) -> None:
    h.start(one.using(id="p:label"), "x")
    run = h.start(calls.using(id="p"))
    assert h.finish(run).output == "done a"
    assert CALLS == ["x", "a"]


def test_ids_in_scopes() -> None:
    @workflow(name="children.scopes")
    def scopes(ctx: Context) -> Any:
        ids: list[str] = []

        def body(inner: Context, state: int) -> Any:
            ids.append(inner.start_child("x", one, "x").id)
            return Break(ids) if state else Continue(1)

        ctx.loop("l", body, 0)
        ids.append(ctx.start_child("a:b", one, "y").id)
        ids.append(ctx.start_child("a/b", one, "y").id)
        ids.append(ctx.start_child("n" * 120, one, "y").id)
        return ids

    with Harness(strict=False) as h:  # bodies fill the list, and a recorded body is not run again
        long = "p" * 150
        found = h.finish(h.start(scopes.using(id=long))).output
        assert found[:2] == [f"{long}:l:~0:x", f"{long}:l:~1:x"]
        assert found[3] == f"{long}:a%2Fb"
        assert len({*found}) == 5
        assert all(len(each) <= 200 for each in found)


@pytest.mark.parametrize("is_handled", [False, True], ids=["raised", "handled"])
@pytest.mark.parametrize("operation", ["child", "start_child"])
def test_a_recovery_starts_the_child_whose_id_was_taken(
    h: Harness, flavour: Flavour, operation: str, is_handled: bool
) -> None:
    theirs = one.using(id="theirs")

    async def refused(ctx: Any) -> str:
        done = "started"
        try:
            await getattr(ctx, operation)("label", theirs, "a")
        except RunConflictError:
            if not is_handled:
                raise
            done = "nothing"
        await ctx.step("later", work, "later")
        return done

    FAIL.add("later")
    h.start(theirs, "x")
    run = h.start(flavour(refused), id="p")
    h.finish(run)
    assert run.state == "failed"
    h._store._runs.pop("theirs")  # as a prune does
    FAIL.clear()
    run.recover()
    h.finish(run)
    assert run.state == "completed"
    assert (get_run("p").output == "nothing") == is_handled
    assert ("a" in CALLS) == (operation == "child" and not is_handled)
    assert [each.id for each in run.children()] == ([] if is_handled else ["theirs"])


@pytest.mark.parametrize("length", [198, 199, 200])
def test_an_explicit_id_of_any_length_is_started_anew(h: Harness, length: int) -> None:
    @workflow(name="children.long_id")
    def long_id(ctx: Context) -> Any:
        return ctx.child("label", one.using(id="i" * length), "a", 60)

    run = h.start(long_id, id="p")
    h.settle()
    for _ in range(2):
        run.replay("label", in_place=True)
        h.settle()
    first, second, third = run.children()
    assert (first.id, first.state, second.state) == ("i" * length, "cancelled", "cancelled")
    assert len({first.id, second.id, third.id}) == 3
    assert all(len(each.id) <= 200 and each.id.startswith("i" * 150) for each in (second, third))
    assert h.finish(run).output == "done a"


# -- branches


def test_branches_wait_for_their_children_together(h: Harness) -> None:
    @workflow(name="children.joins")
    def joins(ctx: Context) -> Any:
        return ctx.join(
            "both",
            {
                "a": lambda branch: branch.child("label", one, "a", 10),
                "b": lambda branch: branch.child("label", one, "b", 20),
                "c": lambda branch: branch.queue.next("news", timeout=30, names=["news"]).body,
            },
        )

    run = h.start(joins.using(id="p"))
    h.settle()
    assert run.waiting_for == ["news"]
    run.send("news", "hi")
    assert h.finish(run).output == {"a": "done a", "b": "done b", "c": "hi"}


def test_a_branch_that_waits_for_any_message_beside_a_child(h: Harness) -> None:
    @workflow(name="children.any")
    def any_or_child(ctx: Context) -> Any:
        return ctx.race(
            "first",
            {
                "a": lambda branch: branch.child("label", one, "a", 10),
                "b": lambda branch: branch.queue.next("news", names=ANY).body,
            },
        ).winner

    run = h.start(any_or_child)
    h.settle()
    assert run.waiting_for == []
    assert h.finish(run).output == "a"


def test_the_children_of_a_losing_branch_are_cancelled(h: Harness) -> None:
    @workflow(name="children.races")
    def races(ctx: Context) -> Any:
        def slow(branch: Context) -> str:
            branch.start_child("left", one.using(when_parent_ends="leave"), "left", 60)
            branch.start_child("dropped", one, "dropped", 60)
            return branch.child("label", one, "slow", 60)

        winner = ctx.race("first", {"slow": slow, "fast": lambda branch: branch.child("label", one, "fast", 1)}).winner
        ctx.sleep("s", 10)
        return winner

    run = h.start(races.using(id="p"))
    h.settle()
    h.advance(1)
    h.settle()
    assert run.state == "sleeping"
    states = {each: get_run(f"p:first:slow:{each}").state for each in ("left", "dropped", "label")}
    assert states == {"left": "sleeping", "dropped": "cancelled", "label": "cancelled"}
    summary = get_run("p:first:slow:label").summary
    assert summary == 'cancelled: its parent "p" has taken its start back'
    assert h.finish(run).output == "fast"


# -- the parent ends


@pytest.mark.parametrize("end", ["return", "raise", "cancel"])
def test_open_children_are_cancelled_with_their_parent(h: Harness, end: str) -> None:
    @workflow(name="children.leaves")
    def leaves(ctx: Context) -> None:
        ctx.start_child("cancelled", calls, "c", 60)
        ctx.start_child("left", one.using(when_parent_ends="leave"), "l", 60)
        if end == "cancel":
            ctx.sleep("s", 30)
        if end == "raise":
            raise ValueError("no")

    run = h.start(leaves.using(id="p"))
    h.run(run)
    h.run("p:cancelled")
    if end == "cancel":
        h.settle()
        run.cancel()
    h.settle()
    assert get_run("p:cancelled").state == "cancelled"
    if end != "return":  # where it had begun
        assert get_run("p:left").state == "sleeping"
    h.finish("p:left")
    assert CALLS == ["l"]


def test_a_grandchild_goes_with_its_grandparent(h: Harness) -> None:
    @workflow(name="children.top")
    def top(ctx: Context) -> Any:
        return ctx.child("middle", calls, "a", 60)

    run = h.start(top.using(id="p"))
    h.settle()
    run.cancel()
    assert [get_run(each).state for each in ("p:middle", "p:middle:label")] == ["cancelled", "cancelled"]
    assert get_run("p:middle:label").summary == 'cancelled: its parent "p:middle" has ended (cancelled)'


# -- recovery


def test_a_recovery_starts_a_cancelled_child_anew(h: Harness) -> None:
    run = h.start(calls.using(id="p"), "a", 60)
    h.settle()
    get_run("p:label").cancel()
    h.settle()
    assert run.state == "failed"
    run.recover()
    assert h.finish(run).output == "done a"
    assert get_run("p:label~1").state == "completed"


def test_a_recovery_recovers_the_failed_child_too(h: Harness) -> None:
    FAIL.add("a")

    @workflow(name="children.deep")
    def deep(ctx: Context) -> Any:
        return ctx.child("middle", calls, "a")

    run = h.start(deep.using(id="p"))
    assert h.finish(run).state == "failed"
    FAIL.clear()
    run.recover()
    assert [get_run(each).state for each in ("p", "p:middle", "p:middle:label")] == ["pending"] * 3
    assert h.finish(run).output == "done a"
    assert [(each.action, each.run_id) for each in h.actions] == [
        ("recover", "p:middle:label"),
        ("recover", "p:middle"),
        ("recover", "p"),
    ]


def test_a_recovery_of_a_wait_for_a_started_child(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 60)
    h.settle()
    get_run("p:mail").cancel()
    h.settle()
    assert run.state == "failed"
    run.recover()
    assert h.finish(run).output == ("done mine", "p:mail~1", "done m")


def test_a_recovery_of_a_replay_starts_its_own_child_for_the_failed_one_of_its_original(h: Harness) -> None:
    FAIL.add("m")
    original = h.start(starts.using(id="p"))
    assert h.finish(original).state == "failed"
    run = original.replay("mail sent", id="r")
    assert h.finish(run).state == "failed"
    FAIL.clear()
    run.recover()
    h.settle()
    assert (run.state, run.output) == ("completed", ("done mine", "r:mail", "done m"))
    assert (get_run("p:mail").state, original.state) == ("failed", "failed")


def test_a_recovery_after_a_timeout_waits_for_as_long_again(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 60, 90)
    h.run(run)
    h.advance(80)
    h.run("p:mail")
    h.finish(run)
    assert run.state == "failed"
    run.recover()
    h.settle()
    assert run.state == "sleeping"
    assert get_run("p:mail").state == "cancelled"
    assert h.finish(run).output == ("done mine", "p:mail~1", "done m")


def test_a_recovery_starts_the_children_anew_that_the_failure_has_cancelled(h: Harness) -> None:
    FAIL.add("b")

    @workflow(name="children.beside")
    def beside(ctx: Context) -> Any:
        left = ctx.start_child("left", one.using(when_parent_ends="leave"), "l", 60)
        first = ctx.start_child("first", one, "f", 60)
        ended = ctx.start_child("ended", one, "e").result("read")
        both = ctx.join(
            "both",
            {"a": lambda branch: branch.child("label", one, "a", 60), "b": lambda branch: branch.step("b", work, "b")},
        )
        return ended, both, first.result("r"), left.result("s")

    run = h.start(beside.using(id="p"))
    h.settle()
    get_run("p:both:a:label").cancel()
    assert h.finish(run).state == "failed"
    FAIL.clear()
    run.recover()
    assert h.finish(run).output == ("done e", {"a": "done a", "b": "done b"}, "done f", "done l")
    assert {each: CALLS.count(each) for each in "leaf"} == {"l": 1, "e": 1, "a": 1, "f": 1}
    assert get_run("p:first~1").state == get_run("p:left").state == "completed"


@pytest.mark.parametrize("parent", [calls, acalls, starts, astarts], ids=["calls", "acalls", "starts", "astarts"])
def test_a_crash_at_each_commit_of_parent_and_child(h: Harness, parent: Any) -> None:
    args = ("a", 60) if parent in (calls, acalls) else (60,)
    assert h.crash_everywhere(parent, *args) >= 10


def test_crashes_of_parents_and_children(h: Harness) -> None:
    @workflow(name="children.family")
    def family(ctx: Context) -> Any:
        first = ctx.start_child("first", calls, "x", 5)

        def branch(name: str) -> Any:
            return lambda ctx: ctx.child("label", one, name, 3)

        both = ctx.join("both", {"a": branch("a"), "b": branch("b")})
        raced = ctx.race("race", {"a": branch("c"), "b": lambda ctx: ctx.child("long", one, "d", 600)})
        return both, raced.winner, first.result("first ended")

    assert h.crash_everywhere(family, check=lambda: None) >= 40


# -- a child that a replay of its parent may read


def _replayed(h: Harness, state: str = "sleeping") -> tuple[Any, Any]:
    """A parent that has read its child and completed, and a replay that has not read it yet."""
    run = h.start(starts.using(id="p"))
    h.finish(run)
    copy = run.replay("mine", id="r")
    return run, copy


def test_a_completed_child_that_an_open_replay_may_read_is_not_replayed_in_place(h: Harness) -> None:
    _, copy = _replayed(h)
    child = get_run("p:mail")
    with pytest.raises(ReplayRefusedError, match="may still read its output"):
        child.replay("work", in_place=True)
    assert h.finish(copy).output == ("done mine", "p:mail", "done m")
    child.replay("work", in_place=True)


def test_a_replay_waits_for_a_child_of_its_original_that_was_recovered(h: Harness) -> None:
    FAIL.add("m")
    original = h.start(starts.using(id="p"))
    assert h.finish(original).state == "failed"
    copy = original.replay("mine", id="r")
    FAIL.clear()
    get_run("p:mail").recover()
    h.run(copy)
    assert (copy.state, copy.wake_at) == ("sleeping", h.now + timedelta(minutes=1))
    h.run("p:mail")
    assert h.run_due() == 0
    assert h.finish(copy).output == ("done mine", "p:mail", "done m")
    assert CALLS == ["mine", "m", "mine", "m"]


# -- children of iterations whose entries are gone


LEFT = one.using(when_parent_ends="leave")


async def looping(ctx: Any, rounds: int = 6, when: str = "cancel") -> Any:
    async def body(turn: Any, state: int) -> Any:
        await turn.start_child("mail", LEFT if when == "leave" else one, f"m{state}", 600.0)
        return Continue(state + 1) if state < rounds else Break(state)

    done = await ctx.loop("l", body, state=0, history_prune_interval=2, history_size=1)
    await ctx.sleep("s", 300)
    return done


loops, aloops = declared("children.loops")(looping)
both_loops = pytest.mark.parametrize("parent", [loops, aloops], ids=["sync", "async"])
FIRST = [f"p:l:~{number}:mail" for number in range(7)]


@both_loops
def test_a_replay_in_place_of_a_loop_cancels_the_children_of_its_pruned_iterations(h: Harness, parent: Any) -> None:
    run = h.start(parent.using(id="p"))
    h.settle()
    assert len([each for each in run.history() if each.kind == "child"]) < 7
    get_run("p:l:~0:mail").cancel()
    plan = run.plan_replay("l")
    assert sorted(plan.children) == FIRST[1:]
    run.replay("l", in_place=True, plan_hash=plan.hash)
    assert [get_run(each).state for each in FIRST] == ["cancelled"] * 7
    h.settle()
    assert [each.id for each in run.children("sleeping")] == [f"{each}~1" for each in FIRST]


def test_a_replay_in_place_behind_a_loop_cancels_none_of_its_children(h: Harness) -> None:
    run = h.start(loops.using(id="p"))
    h.settle()
    plan = run.plan_replay("s")
    assert plan.children == ()
    # what stays has started the last ones
    assert plan.in_place_refusals


@pytest.mark.parametrize("when", ["cancel", "leave"])
def test_the_children_of_the_pruned_iterations_of_a_losing_branch_are_cancelled(
    h: Harness, flavour: Flavour, when: str
) -> None:
    async def loses(ctx: Any) -> Any:
        async def slow(branch: Any) -> Any:
            return await looping(branch, 6, when)

        async def quick(branch: Any) -> None:
            await branch.sleep("s", 60)

        winner = (await ctx.race("r", {"slow": slow, "fast": quick})).winner
        await ctx.sleep("s", 30)
        return winner

    run = h.start(flavour(loses), id="p")
    h.settle()
    other = h.start(loops.using(id="other"))
    h.settle()
    h.advance(60)
    h.settle()
    assert run.state == "sleeping"
    expected = "cancelled" if when == "cancel" else "sleeping"
    assert {each.state for each in run.children()} == {expected}
    assert {each.state for each in other.children()} == {"sleeping"}
    assert len(run.children()) == 7


# -- from outside


def test_parents_and_children_of_a_handle(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 60)
    h.settle()
    child = get_run("p:mail")
    assert (child.parent, run.parent) == (run, None)
    assert run.children() == [child] == run.children("sleeping")
    assert run.children("completed") == [] == run.children(group="g") == child.children()
    with pytest.raises(ValueError, match="asleep"):
        run.children("asleep")


def test_a_replay_in_place_cancels_the_children_of_what_it_deletes(h: Harness) -> None:
    run = h.start(calls.using(id="p"), "a", 60)
    h.settle()
    plan = run.plan_replay("label")
    assert plan.children == ("p:label",)
    assert "is started again" in plan.notes[0]
    assert "cancels the children" in plan.notes[1]
    run.replay("label", in_place=True, plan_hash=plan.hash)
    assert get_run("p:label").state == "cancelled"
    assert h.finish(run).output == "done a"
    assert get_run("p:label~1").state == "completed"


def test_a_replay_that_keeps_an_open_child_is_refused(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 60)
    h.settle()
    for in_place in (True, False):
        with pytest.raises(ReplayRefusedError, match="have not ended"):
            run.replay("mine", in_place=in_place)
    h.finish("p:mail")
    copy = run.replay("mine", id="copy")
    assert h.finish(copy).output == ("done mine", "p:mail", "done m")


def test_a_replay_in_place_of_an_ended_parent_starts_cancelled_children_anew(h: Harness) -> None:
    run = h.start(starts.using(id="p"), 60, 30)
    assert h.finish(run).state == "failed"
    assert run.plan_replay("mine").children == ()
    run.replay("mine", in_place=True)
    h.settle()
    assert get_run("p:mail~1").state == "sleeping"


def test_a_completed_child_whose_parent_may_read_it_is_not_replayed_in_place(h: Harness) -> None:
    run = h.start(starts.using(id="p"))
    h.run(run)
    h.run("p:mail")
    child = get_run("p:mail")
    with pytest.raises(ReplayRefusedError, match="its parent has not ended"):
        child.replay("work", in_place=True)
    h.finish(run)
    child.replay("work", in_place=True)
    assert h.finish(child).state == "completed"


class _LooksFirst:
    """A store that both branches of a pass have asked for the run "same" before either commits."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, run_id: str) -> Any:
        self.looks += run_id == "same"
        return None if run_id == "same" and self.looks <= 2 else self.store.get(run_id)


def test_of_two_branches_that_start_children_with_one_id_at_once_one_is_refused(h: Harness) -> None:
    def branch(workflow: Any, *args: Any) -> Any:
        def body(ctx: Context) -> str:
            try:
                ctx.start_child("child", workflow.using(id="same"), *args)
            except RunConflictError as error:
                return str(error)
            return str(workflow.name)

        return body

    def family(ctx: Context) -> Any:
        return sorted(ctx.join("both", {"a": branch(one, "a"), "b": branch(calls, "b")}).values())

    run = h.start(family, id="p")
    threaded_pass(h, "p", store=_LooksFirst(h._store))
    started, refusal = sorted(h.finish(run).output, key=len)
    assert refusal == f'run "same" exists already as a run of "{started}", and is not this child; choose another id'
    assert [each.id for each in run.children()] == ["same"]
