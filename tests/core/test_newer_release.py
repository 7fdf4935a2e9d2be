"""A run recorded by a newer release of durable, or of the code.

It stops, nothing is compensated, and it goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from durable import Break, Handle
from durable.core.compatibility import FORMAT
from durable.core.records import EntryRecord, RunChange
from durable.testing import Harness, Pass, SimulatedCrash
from tests.core import undoing
from tests.core.conftest import NOW
from tests.core.flavours import Flavour
from tests.core.scopes import SCOPES

TAG = '{"$:hologram":"a"}'


def rewrite(
    h: Harness, run: Handle, name: str, write: Callable[[EntryRecord], EntryRecord]
) -> tuple[EntryRecord, EntryRecord]:
    """Change the entry whose location ends in `name`, as a newer release could have written it; before and after."""
    [before] = [each for each in h._store.load(run.id) if each.location.endswith(name)]
    after = write(before)
    h._store.change(run.id, lambda _row, _entries: RunChange(run={}, entries=[after]))
    return before, after


def put(h: Harness, run: Handle, entry: EntryRecord) -> None:
    h._store.change(run.id, lambda _row, _entries: RunChange(run={}, entries=[entry]))


def stopped_without_harm(run: Handle, stopped: Pass, *, at: str) -> str:
    """Check how the pass stopped; its message."""
    assert stopped.state == "failed"
    assert stopped.error is not None
    assert stopped.error.type == "HistoryDivergedError", stopped.error.traceback
    assert at in stopped.error.message
    assert undoing.undone == []
    return stopped.error.message


@dataclass(frozen=True)
class Newer:
    """What a newer release may have made of a completed step."""

    write: Callable[[EntryRecord], EntryRecord]
    says: str


NEWER = {
    "kind": Newer(lambda each: replace(each, kind="teleport"), "kind 'teleport'"),
    "status": Newer(lambda each: replace(each, status="frozen"), "status 'frozen'"),
    "format": Newer(lambda each: replace(each, data={**each.data, "format": FORMAT + 1}), f"format {FORMAT + 1}"),
    "odd format": Newer(lambda each: replace(each, data={**each.data, "format": "new"}), "format 'new'"),
    "output": Newer(lambda each: replace(each, output=TAG), "the output of the step"),
}


@pytest.mark.few_async
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("newer", NEWER)
def test_what_a_newer_release_recorded_stops_the_run_and_nothing_else(
    h: Harness, flavour: Flavour, scope: Any, newer: str
) -> None:
    calls: list[str] = []

    async def body(ctx: Any) -> Any:
        await ctx.step("charge", lambda: "paid", rollback=undoing.undo)
        await ctx.sleep("s", 60)
        return await ctx.step("after", calls.append, "after")

    async def ship(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("from here")
        return await scope(ctx, body)

    run = h.start(flavour(ship))
    h.run(run)
    before, after = rewrite(h, run, "charge", NEWER[newer].write)
    h.advance(60)
    message = stopped_without_harm(run, h.run(run), at=after.location.rpartition("/")[2])
    assert NEWER[newer].says in message
    assert "newer release" in message or "cannot be read by this code" in message
    assert calls == []
    put(h, run, before)
    run.recover()
    assert h.finish(run).state == "completed"
    assert calls == ["after"]
    assert undoing.undone == []


async def in_join(ctx: Any) -> Any:
    async def quick(ctx: Any) -> str:
        return "value"

    async def slow(ctx: Any) -> None:
        await ctx.sleep("s", 60)

    return (await ctx.join("where", {"quick": quick, "slow": slow}))["quick"]


async def in_race(ctx: Any) -> Any:
    async def quick(ctx: Any) -> str:
        return "value"

    found = await ctx.race("where", {"quick": quick})
    await ctx.sleep("s", 60)
    return found.value


async def in_loop(ctx: Any) -> Any:
    async def body(ctx: Any, state: str) -> Any:
        await ctx.sleep("s", 60)
        return Break(state)

    return await ctx.loop("where", body, state="value")


async def in_message(ctx: Any) -> Any:
    message = await ctx.queue.next("where", ["mail"])
    await ctx.sleep("s", 60)
    return message.body


def branches_with(entry: EntryRecord, output: str) -> EntryRecord:
    branches = {**entry.data["branches"], "quick": {**entry.data["branches"]["quick"], "output": output}}
    return replace(entry, data={**entry.data, "branches": branches})


VALUES: dict[str, tuple[Any, Callable[[EntryRecord], EntryRecord]]] = {
    "join": (in_join, lambda each: branches_with(each, TAG)),
    "race": (in_race, lambda each: branches_with(each, TAG)),
    "loop": (in_loop, lambda each: replace(each, data={**each.data, "state": TAG})),
    "message": (
        in_message,
        lambda each: replace(each, data={**each.data, "received": [{**each.data["received"][0], "body": TAG}]}),
    ),
}


@pytest.mark.parametrize("value", VALUES)
def test_a_recorded_value_that_cannot_be_read_stops_the_run(h: Harness, flavour: Flavour, value: str) -> None:
    workflow, write = VALUES[value]
    run = h.start(flavour(workflow))
    h.send(run, "mail", "value")
    h.run(run)
    before, _ = rewrite(h, run, "where", write)
    h.advance(60)
    assert "hologram" in stopped_without_harm(run, h.run(run), at='"where')
    put(h, run, before)
    run.recover()
    assert h.finish(run).output == "value"


def test_an_input_that_cannot_be_read_stops_the_run(h: Harness, flavour: Flavour) -> None:
    async def ship(ctx: Any, order: int) -> int:
        return order

    run = h.start(flavour(ship), 7)
    given = h._store._runs[run.id].input
    h._store._runs[run.id].input = TAG
    stopped_without_harm(run, h.run(run), at="the input")
    h._store._runs[run.id].input = given
    run.recover()
    assert h.finish(run).output == 7


def test_within_the_grace_period_another_worker_may_pass_it(flavour: Flavour) -> None:
    """In a rolling deploy the newer release is at work already."""
    with Harness(now=NOW, divergence_grace=600) as h:

        async def ship(ctx: Any) -> Any:
            value = await ctx.step("a", lambda: "value")
            await ctx.sleep("s", 60)
            return value

        run = h.start(flavour(ship))
        h.run(run)
        before, _ = rewrite(h, run, "a", NEWER["kind"].write)
        h.advance(60)
        assert h.run(run).state == "sleeping"
        assert "newer release" in run.summary
        put(h, run, before)
        assert h.finish(run).output == "value"


def test_past_its_deadline_it_is_not_tried_again_at_once(flavour: Flavour) -> None:
    with Harness(now=NOW, divergence_grace=600) as h:

        async def ship(ctx: Any) -> Any:
            value = await ctx.step("a", lambda: "value")
            await ctx.sleep("s", 60)
            return value

        run = h.start(h._definition(flavour(ship)).using(deadline=60))
        h.run(run)
        before, _ = rewrite(h, run, "a", NEWER["kind"].write)
        h.advance(60)
        parked = h.run(run)
        assert parked.state == "sleeping"
        assert parked.wake_at is not None
        assert parked.wake_at > h.now
        put(h, run, before)
        end = h.finish(run)
        assert (end.state, end.error.type if end.error else "") == ("failed", "RunDeadlineError")


@pytest.mark.parametrize("grace", [0, 600])
def test_a_compensation_waits_for_the_release_that_can_read_it(flavour: Flavour, grace: float) -> None:
    async def charge(ctx: Any) -> None:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: "paid", rollback=undoing.undo)
        await ctx.sleep("s", 60)

    with Harness(now=NOW, divergence_grace=grace) as h:
        run = h.start(flavour(charge))
        h.run(run)
        h._store.change(
            run.id, lambda _row, _entries: RunChange(run={"state": "rolling_back", "state_after_rollback": "failed"})
        )
        newer = EntryRecord("note", "teleport", 9, NOW, status="completed")
        put(h, run, newer)
        ended = h.run(run)
        assert ended.state == ("rolling_back" if grace else "failed")
        assert "newer release" in run.summary
        assert undoing.undone == []


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_it_can_be_stopped_by_an_operator_all_the_same(h: Harness, flavour: Flavour, verb: str) -> None:
    """Also where a worker has it, and finds the request when it comes to the run again."""

    async def ship(ctx: Any) -> Any:
        await ctx.step("a", int)
        await ctx.sleep("s", 60)

    run = h.start(flavour(ship))
    h.run(run)
    rewrite(h, run, "a", NEWER["kind"].write)
    h._store.change(run.id, lambda row, _entries: RunChange(run={"pending_request": verb, "wake_at": NOW}))
    assert h.run(run).state == {"cancel": "cancelled", "pause": "paused"}[verb]


@pytest.mark.parametrize("begin", ["failure", "request", "cancel at once"])
def test_a_compensation_has_a_grace_period_of_its_own(flavour: Flavour, begin: str) -> None:
    """One that begins late in the grace period of an earlier divergence is not stopped at the end of that."""
    fails = False

    async def charge(ctx: Any) -> None:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("charge", lambda: "paid", rollback=undoing.undo)
        await ctx.sleep("s", 60)
        if fails:
            raise ValueError("why")

    with Harness(now=NOW, divergence_grace=600) as h:
        run = h.start(flavour(charge))
        h.run(run)
        newer = EntryRecord("note", "teleport", 9, NOW, status="completed")
        put(h, run, newer)
        h.advance(60)
        assert h.run(run).state == "sleeping"
        h._store._entries[run.id].pop("note")
        undoing.fails_left[:] = [SimulatedCrash()]
        if begin == "failure":
            fails = True
        elif begin == "request":
            h._store.change(run.id, lambda _row, _entries: RunChange(run={"pending_request": "cancel_rollback"}))
        else:
            run.cancel(rollback=True)
        with pytest.raises(SimulatedCrash):  # in the rollback handler
            h.run(run)
        put(h, run, newer)
        h.advance(600)
        assert h.run(run).state == "rolling_back"
        h._store._entries[run.id].pop("note")
        assert h.finish(run).state == ("failed" if begin == "failure" else "cancelled")
        assert undoing.undone == ["paid"]
