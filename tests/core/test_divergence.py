"""Code that no longer fits a run's history.

It is noticed before it does harm, at every depth, and the run continues after the fix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable import Break
from durable.errors import HistoryDivergedError
from durable.testing import Harness
from tests.core import undoing
from tests.core.flavours import Flavour
from tests.core.scopes import SCOPES, join, root
from tests.support.errors import check_failed, error_of

Body = Callable[[Any], Any]


class Code:
    """A workflow whose code can be changed between two passes: a list of operations by letter."""

    def __init__(self, scope: Any, text: str) -> None:
        self.scope = scope
        self.text = text
        self.calls: list[str] = []

    def make(self) -> Any:
        async def ship(ctx: Any) -> Any:
            return await self.scope(ctx, self.body)

        return ship

    async def body(self, ctx: Any) -> Any:
        return [await self.act(ctx, act) for act in self.text.split()]

    async def act(self, ctx: Any, act: str) -> Any:
        kind, _, name = act.partition(":")
        if name == "flaky":
            return await ctx.step(name, self.fail, retry_backoff_base=60, retry_backoff_max=60)
        if kind == "step":
            return await ctx.step(name, lambda: self.calls.append(name))
        if kind == "sleep":
            return await ctx.sleep(name, 60)
        if kind == "removed":
            return await ctx.removed(name, "step")
        if kind == "removed-sleep":
            return await ctx.removed(name, "sleep")
        if kind == "version":
            return await ctx.get_version(name, 2)
        if kind == "block":
            return (await ctx.try_block(name, self.inner)).ok
        if kind == "join":
            return await ctx.join(name, {"a": self.inner})
        if kind == "loop":
            return await ctx.loop(name, self.iteration)
        if kind == "send":
            return await ctx.queue.send(name, 1)
        assert kind == "message"
        return await ctx.queue.next_batch(name, names=[], timeout=0)

    def fail(self) -> None:
        self.calls.append("flaky")
        if self.calls.count("flaky") < 3:
            raise ValueError

    async def inner(self, ctx: Any) -> None:
        await ctx.step("inner", lambda: self.calls.append("inner"))

    async def iteration(self, ctx: Any) -> Any:
        await self.inner(ctx)
        return Break()


CHANGES = {
    "renamed": ("step:a sleep:s step:b", "step:x sleep:s step:b"),
    "removed first": ("step:a sleep:s step:b", "sleep:s step:b"),
    "removed all": ("step:a sleep:s step:b", ""),
    "removed last": ("step:a sleep:s step:b", "step:a"),
    "reordered": ("step:a step:b sleep:s", "step:b step:a sleep:s step:c"),
    "removed before a failed step": ("step:a step:flaky sleep:s", "step:flaky sleep:s"),
    "inserted": ("step:a sleep:s step:b", "step:a step:new sleep:s step:b"),
    "inserted block": ("step:a sleep:s", "step:a block:new sleep:s"),
    "inserted join": ("step:a sleep:s", "step:a join:new sleep:s"),
    "inserted loop": ("step:a sleep:s", "loop:new step:a sleep:s"),
    "inserted send": ("step:a sleep:s", "send:new step:a sleep:s"),
    "inserted message": ("step:a sleep:s", "message:new step:a sleep:s"),
    "step for sleep": ("step:a sleep:s", "step:a step:s"),
    "sleep for step": ("step:a sleep:s", "sleep:a sleep:s"),
    "block for step": ("step:a sleep:s", "block:a sleep:s"),
    "step for block": ("block:a sleep:s", "step:a sleep:s"),
    "step for join": ("join:a sleep:s", "step:a sleep:s"),
    "loop for join": ("join:a sleep:s", "loop:a sleep:s"),
    "other send": ("send:a sleep:s", "send:b sleep:s"),
    "removed as another kind": ("step:a sleep:s", "removed-sleep:a sleep:s"),
    "version before the end": ("step:a sleep:s", "version:v step:a"),
    "removed for another name": ("step:a sleep:s", "removed:b sleep:s"),
    "version instead of a step": ("step:a sleep:s", "version:a sleep:s"),
    "version gone again": ("version:v step:a sleep:s", "step:a sleep:s"),
    "step for message": ("message:a sleep:s", "step:a sleep:s"),
    "message for sleep": ("step:a sleep:s", "step:a message:s"),
    "message for send": ("send:a sleep:s", "message:a sleep:s"),
    "join for loop": ("loop:a sleep:s", "join:a sleep:s"),
    "loop for sleep": ("step:a sleep:s", "step:a loop:s"),
}


def reordered_is_noticed_late(change: str) -> bool:
    """Swapping two recorded operations does no harm by itself: each finds its record."""
    return change == "reordered"


@pytest.mark.few_async
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_and_mended(h: Harness, flavour: Flavour, scope: Any, change: str) -> None:
    before, after = CHANGES[change]
    code = Code(scope, before)
    run = h.start(flavour(code.make()))
    assert h.run(run).state == "sleeping"
    recorded = [(each.location, each.status) for each in run.history()]
    called = list(code.calls)

    code.text = after
    if "flaky" in before:
        h.advance(60)
    stopped = h.run(run)
    if reordered_is_noticed_late(change):
        assert stopped.error is None
        return
    assert stopped.state == "failed"
    assert stopped.error is not None
    assert stopped.error.type == "HistoryDivergedError", stopped.error.traceback
    assert code.calls == called, "noticed before it did harm"
    names = {act.partition(":")[2] for act in f"{before} {after}".split()} | {"send~0"}
    assert any(f'{name}"' in stopped.error.message for name in names), "it names the location"
    assert "ctx.removed(" in stopped.error.message
    assert "ctx.get_version(" in stopped.error.message

    code.text = before
    run.recover()
    assert h.finish(run).state == "completed"
    assert [(each.location) for each in run.history() if each.location in dict(recorded)]


@pytest.mark.few_async
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("second", ["step:a", "sleep:a", "removed:a", "version:a"])
def test_what_stands_for_a_step_cannot_stand_beside_it(h: Harness, flavour: Flavour, scope: Any, second: str) -> None:
    """The old code, or its stand-in, under one name: never both."""
    code = Code(scope, "step:a sleep:s")
    run = h.start(flavour(code.make()))
    h.run(run)
    code.text = f"removed:a {second} sleep:s"
    check_failed(h.run(run), "HistoryDivergedError", 'a" is used twice')
    code.text = "removed:a sleep:s"
    run.recover()
    assert h.finish(run).state == "completed"
    assert code.calls == ["a"]


@pytest.mark.parametrize("scope", SCOPES)
def test_new_operations_at_the_end_are_no_divergence(h: Harness, flavour: Flavour, scope: Any) -> None:
    code = Code(scope, "step:a sleep:s")
    run = h.start(flavour(code.make()))
    h.run(run)
    code.text = "step:a sleep:s step:b block:c join:d loop:e"
    assert h.finish(run).state == "completed"


@pytest.mark.parametrize("scope", SCOPES)
def test_removed_stands_for_what_is_gone(h: Harness, flavour: Flavour, scope: Any) -> None:
    code = Code(scope, "step:a step:b sleep:s step:c")
    old = h.start(flavour(code.make()))
    h.run(old)
    code.text = "removed:a step:b sleep:s step:c"
    new = h.start(flavour(code.make()))
    assert h.finish(old).state == "completed"
    assert h.finish(new).state == "completed"
    kinds = {each.location.rpartition("/")[2]: each.kind for each in new.history()}
    assert kinds["a"] == "removed"
    assert code.calls.count("a") == 1


@pytest.mark.parametrize("kind", ["join", "loop", "block"])
def test_removed_stands_for_what_had_operations_within(h: Harness, flavour: Flavour, kind: str) -> None:
    state = {"old": True}
    code = Code(root, "")

    async def ship(ctx: Any) -> Any:
        if state["old"]:
            await code.act(ctx, f"{kind}:a")
        else:
            await ctx.removed("a", "step" if kind == "block" else kind)
        await ctx.sleep("s", 60)

    run = h.start(flavour(ship))
    h.run(run)
    state["old"] = False
    assert h.finish(run).state == "completed"


def test_a_removed_send_keeps_its_number(h: Harness, flavour: Flavour) -> None:
    state = {"old": True}

    async def ship(ctx: Any) -> Any:
        if state["old"]:
            await ctx.queue.send("one", 1)
        else:
            await ctx.removed("one", "send")
        await ctx.queue.send("two", 2)
        await ctx.sleep("s", 60)

    old = h.start(flavour(ship))
    h.run(old)
    state["old"] = False
    new = h.start(flavour(ship))
    assert h.finish(old).state == "completed"
    assert h.finish(new).state == "completed"
    assert [each.queue for each in h._store.messages(old.id)] == ["one", "two"]
    assert [each.queue for each in h._store.messages(new.id)] == ["two"]


def test_removed_knows_the_kinds(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.removed("a", "steps")

    assert "removed knows the kinds step, loop, sleep" in error_of(h.run(h.start(flavour(ship)))).message


# -- versions


@pytest.mark.parametrize("scope", SCOPES)
def test_get_version_pins_a_run_to_what_its_history_was_made_by(h: Harness, flavour: Flavour, scope: Any) -> None:
    state = {"deployed": False}
    calls = []

    async def body(ctx: Any) -> Any:
        await ctx.step("before", int)
        version = await ctx.get_version("gate", 2) if state["deployed"] else 1
        if version == 1:
            await ctx.step("old way", lambda: calls.append("old"))
        else:
            await ctx.step("new way", lambda: calls.append("new"))
        await ctx.sleep("s", 60)
        return version

    async def ship(ctx: Any) -> Any:
        return await scope(ctx, body)

    old = h.start(flavour(ship))
    h.run(old)
    state["deployed"] = True
    new = h.start(flavour(ship))
    assert h.finish(old).output == 1
    assert h.finish(new).output == 2
    assert calls == ["old", "new"]


def test_a_version_stays_when_the_code_goes_on_to_a_later_one(h: Harness, flavour: Flavour) -> None:
    state = {"latest": 2}

    async def ship(ctx: Any) -> Any:
        version = await ctx.get_version("gate", state["latest"])
        await ctx.sleep("s", 60)
        return version

    run = h.start(flavour(ship))
    h.run(run)
    state["latest"] = 3
    assert h.finish(run).output == 2


def test_a_run_that_had_not_come_there_gets_the_latest(h: Harness, flavour: Flavour) -> None:
    state = {"deployed": False}

    async def ship(ctx: Any) -> Any:
        await ctx.sleep("s", 60)
        return await ctx.get_version("gate", 2) if state["deployed"] else None

    run = h.start(flavour(ship))
    h.run(run)
    state["deployed"] = True
    assert h.finish(run).output == 2


def test_after_a_completed_join_it_gives_the_latest(h: Harness, flavour: Flavour) -> None:
    """What lies inside a completed join counts as visited."""

    async def body(ctx: Any) -> Any:
        await ctx.step("a", int)

    async def ship(ctx: Any) -> Any:
        await join(ctx, body)
        await ctx.sleep("s", 60)
        return await ctx.get_version("gate", 3)

    assert h.finish(h.start(flavour(ship))).output == 3


@pytest.mark.parametrize("latest", [0, -1, True, "2", None])
def test_a_version_is_a_number(h: Harness, flavour: Flavour, latest: Any) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.get_version("gate", latest)

    assert "latest must be a whole number of at least 1" in error_of(h.run(h.start(flavour(ship)))).message


def test_a_version_fits_into_a_record(h: Harness) -> None:
    def huge(ctx: Any) -> Any:
        ctx.get_version("gate", 10**5000)

    largest = h.start(lambda ctx: ctx.get_version("gate", 2**63 - 1))
    assert h.run(largest).output == 2**63 - 1
    run = h.start(huge)
    check_failed(h.run(run), "ValueError", "latest must be at most 9,223,372,036,854,775,807, which is 2**63 - 1")


def test_versions_and_removals_are_crash_proof(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        await ctx.removed("a", "step")
        version = await ctx.get_version("gate", 2)
        await ctx.rollback_checkpoint("from here")
        await ctx.step("b", int)
        return version

    h.crash_everywhere(flavour(ship))


# -- what a divergence does not do


def test_nothing_is_compensated(h: Harness, flavour: Flavour) -> None:
    """Fault 10: a bad deploy must not compensate every run in flight."""
    name = {"now": "charge"}

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        await ctx.step(name["now"], lambda: 1, rollback=undoing.undo)
        await ctx.sleep("s", 60)

    run = h.start(flavour(ship))
    h.run(run)
    name["now"] = "charge card"
    assert h.run(run).state == "failed"
    assert undoing.undone == []
    name["now"] = "charge"
    run.recover()
    assert h.finish(run).state == "completed"


def test_what_the_wrong_code_noted_before_it_was_noticed_does_not_stay(h: Harness, flavour: Flavour) -> None:
    state = {"wrong": False}

    async def ship(ctx: Any) -> Any:
        if state["wrong"]:
            await ctx.get_version("gate", 2)
            await ctx.removed("gone", "step")
        await ctx.step("a", int)
        if not state["wrong"]:
            await ctx.sleep("s", 60)

    run = h.start(flavour(ship))
    h.run(run)
    state["wrong"] = True
    assert h.run(run).state == "failed"
    state["wrong"] = False
    run.recover()
    assert h.finish(run).state == "completed"


def test_a_changed_set_of_branches_is_noticed(h: Harness, flavour: Flavour) -> None:
    names = ["a", "b"]

    async def rest(ctx: Any) -> Any:
        await ctx.sleep("rest", 60)

    run = h.start(flavour.calling(lambda ctx: ctx.join("join", dict.fromkeys(names, rest))))
    h.run(run)
    names[:] = ["a", "c"]
    error = error_of(h.run(run))
    assert "was begun with the branches ['a', 'b'], the code now has ['a', 'c'] (b, c changed)" in error.message


def test_an_error_names_the_first_of_many_branches(h: Harness, flavour: Flavour) -> None:
    names = [f"b{number:03}" for number in range(300)]

    async def rest(ctx: Any) -> Any:
        await ctx.sleep("rest", 60)

    run = h.start(flavour.calling(lambda ctx: ctx.join("join", dict.fromkeys(names, rest))))
    h.run(run)
    del names[-30:]
    error = h.run(run).error
    assert error is not None
    assert "begun with the branches ['b000', 'b001'," in error.message
    assert "and 280 more], the code now has ['b000'," in error.message
    assert "and 250 more] (b270, b271," in error.message
    assert "b289, and 10 more changed)" in error.message


def test_what_lies_inside_something_completed_counts_as_visited(h: Harness, flavour: Flavour) -> None:
    state = {"name": "a"}

    async def body(ctx: Any) -> Any:
        await ctx.step(state["name"], int)
        return Break(1)

    async def ship(ctx: Any) -> Any:
        await ctx.loop("loop", body)
        await ctx.join("join", {"x": body})
        await ctx.race("race", {"x": body})
        await ctx.sleep("s", 60)
        return "done"

    run = h.start(flavour(ship))
    h.run(run)
    state["name"] = "b"
    assert h.finish(run).output == "done"


@pytest.mark.parametrize("after", [["c", "b"], ["b"], ["b", "a", "c"]], ids=["renamed", "removed", "added"])
def test_what_has_ended_keeps_the_branches_that_it_was_begun_with(
    h: Harness, flavour: Flavour, after: list[str]
) -> None:
    names = ["a", "b"]

    def named(name: str) -> Body:
        async def body(ctx: Any) -> Any:
            return await ctx.step("work", lambda: name)

        return body

    async def ship(ctx: Any) -> Any:
        branches = {name: named(name) for name in names}
        joined = await ctx.join("join", branches)
        raced = await ctx.race("race", branches)
        await ctx.sleep("rest", 60)
        return [sorted(joined.items()), raced.winner, raced.value]

    run = h.start(flavour(ship))
    h.run(run)
    names[:] = after
    assert h.finish(run).output == [[("a", "a"), ("b", "b")], "a", "a"]


# -- the grace period


def test_within_the_grace_period_it_is_tried_again(flavour: Flavour) -> None:
    with Harness(divergence_grace=600) as h:
        code = Code(root, "step:a sleep:s")
        run = h.start(flavour(code.make()))
        h.run(run)
        code.text = "step:b sleep:s"
        h.advance(60)
        tried = h.run(run)
        assert (tried.state, tried.error) == ("sleeping", None)
        assert tried.wake_at is not None
        assert tried.wake_at > h.now
        assert "does not fit the history" in run.summary
        h.advance(120)
        assert h.run(run).state == "sleeping"
        code.text = "step:a sleep:s"
        assert h.finish(run).state == "completed"
        assert code.calls == ["a"]


def test_the_summary_quotes_no_more_of_an_error_than_a_failed_run_keeps(flavour: Flavour) -> None:
    async def diverge(ctx: Any) -> None:
        raise HistoryDivergedError("x" * 1_000_000)

    with Harness(divergence_grace=600) as h:
        run = h.start(flavour(diverge))
        h.run(run)
        assert "does not fit the history" in run.summary
        assert len(run.summary) < 20_000


def test_after_the_grace_period_it_stops(flavour: Flavour) -> None:
    with Harness(divergence_grace=600) as h:
        code = Code(root, "step:a sleep:s")
        run = h.start(flavour(code.make()))
        h.run(run)
        begun = h.now
        code.text = "step:b sleep:s"
        check_failed(h.finish(run), "HistoryDivergedError")
        assert 600 <= (h.now - begun).total_seconds() - 60 <= 660
        run.recover()
        assert h.run(run).state == "sleeping", "a new grace period"


def test_a_run_whose_workflow_is_not_known_waits_for_a_worker_that_knows_it(h: Harness, flavour: Flavour) -> None:
    code = Code(root, "step:a")
    run = h.start(flavour(code.make()))
    known = dict(h._local)
    h._local.clear()
    assert h.run(run).state == "sleeping"
    assert "waiting for a worker that knows the workflow" in run.summary
    h._local.update(known)
    assert h.finish(run).state == "completed"
