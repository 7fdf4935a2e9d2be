"""Slots that a run has and does not use: after a crash, a pause, other code, or the begin of its compensation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from durable import Context, Limit, get_run, workflow
from durable.core.limits.slot_records import SlotKind, SlotWant
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.testing import Harness

UNDONE: list[int] = []


class WorkerDies(BaseException):
    pass


def dies() -> None:
    raise WorkerDies


def undo(_rollback: Any, _output: str) -> None:
    UNDONE.append(1)
    if len(UNDONE) == 1:
        raise ValueError("later")


@workflow(name="left.running", limit=Limit("left-running", at_once=1))
def running(ctx: Context) -> str:
    return ctx.step("work", lambda: "done")


@workflow(name="left.step")
def limited(ctx: Context) -> str:
    return ctx.step("work", lambda: "done", limit="left-step")


@workflow(name="left.holder")
def holder(_ctx: Context) -> None:
    pass


RUNNING = SlotWant("left-running", "", SlotKind.RUNNING, 1)
STEP = SlotWant("left-step", "", SlotKind.STEP, 1)


def hold(h: Harness, want: SlotWant) -> Callable[[], None]:
    """Let a run hold the slot; return what ends that run."""
    h.start(holder, id="holder")
    claimed = h._store.claim_run("holder", now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
    assert claimed is not None
    assert h._store.acquire("holder", claimed.fence, "mine", [want], h.now).is_granted

    def end() -> None:
        h._store.expire_lease("holder", h.now)
        get_run("holder").cancel()
        h._sweep_slots()

    return end


def crash(h: Harness, run_id: str) -> None:
    """A pass whose worker dies in a step."""
    claimed = h._store.claim_run(run_id, now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
    assert claimed is not None
    with pytest.raises(WorkerDies):
        execute_pass(claimed, store=h._store, eviction=Eviction(), at=h._runtime)
    h._store.expire_lease(run_id, h.now)


def test_a_branch_that_loses_after_a_crash_in_its_first_attempt() -> None:
    @workflow(name="left.race")
    def race(ctx: Context) -> None:
        branches: dict[str, Callable[[Context], Any]] = {
            "message": lambda b: b.queue.next("mail").body,
            "limited": lambda b: b.step("work", dies, limit="left-step"),
        }
        ctx.race("first", branches)
        ctx.sleep("night", "9 days")

    with Harness() as h:
        h._store._slots.limits["left-step"] = 1
        handle = h.start(race, id="race")
        crash(h, "race")
        assert [each.location for each in h._store.slots(["race"])] == ["first/limited/work"]
        other = h.start(limited)
        handle.send("mail", "hello")
        h.settle()
        assert handle.state == "sleeping"
        assert h._store.slots(["race"]) == []
        assert other.state == "completed"


def test_code_without_the_step_after_a_crash_in_its_first_attempt() -> None:
    is_deployed = False

    @workflow(name="left.changed")
    def changed(ctx: Context) -> None:
        if not is_deployed:
            ctx.step("work", dies, limit="left-step")
        ctx.sleep("night", "9 days")

    with Harness() as h:
        h._store._slots.limits["left-step"] = 1
        handle = h.start(changed, id="changed")
        crash(h, "changed")
        is_deployed = True
        h.settle()
        assert handle.state == "sleeping"
        assert h._store.slots(["changed"]) == []


@workflow(name="left.parent")
def parent(ctx: Context) -> str:
    return str(ctx.child("only", "left.moved"))


@pytest.mark.parametrize("is_child", [False, True])
@pytest.mark.parametrize("hold", ["open", "running"])
def test_code_that_limits_a_step_and_no_longer_its_workflow(hold: Literal["open", "running"], is_child: bool) -> None:
    """The run has its slot of the workflow still, and does not wait for it."""

    @workflow(name="left.moved", limit=Limit("left-moved", at_once=1, hold=hold))
    def moved(ctx: Context) -> str:
        ctx.sleep("night", 60)
        return ctx.step("work", lambda: "done", limit="left-moved")

    with Harness() as h:
        first = h.start(parent if is_child else moved)
        h.settle()
        moved.limits = None
        assert h.finish(first).output == "done"
        assert h._store._slots.held == {}


def test_a_run_that_is_paused_after_a_crash() -> None:
    with Harness() as h:
        handle, other = h.start(running, id="paused"), h.start(running)
        claimed = h._store.claim_run("paused", now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
        assert claimed is not None
        assert h._store.acquire("paused", claimed.fence, "", [RUNNING], h.now).is_granted
        handle.pause()
        h._store.expire_lease("paused", h.now)
        h.settle()
        assert handle.state == "paused"
        assert other.state == "completed"


def test_a_run_that_gets_its_slot_and_has_no_code() -> None:
    with Harness() as h:
        end_holder = hold(h, RUNNING)
        h.start(running, id="unknown")
        h.run("unknown")
        end_holder()
        assert [each.is_held for each in h._store.slots(["unknown"])] == [True]
        h._store._runs["unknown"] = replace(h._store._runs["unknown"], workflow="left.removed")
        other = h.start(running)
        h.settle()
        assert get_run("unknown").state == "sleeping"
        assert other.state == "completed"


def test_a_run_that_is_compensated_leaves_its_line() -> None:
    @workflow(name="left.saga")
    def saga(ctx: Context) -> None:
        ctx.rollback_checkpoint("undo")
        ctx.step("charge", lambda: "charged", rollback=undo, retry_backoff_base=3600, retry_backoff_max=3600)
        ctx.step("work", lambda: "done", limit="left-step")

    UNDONE.clear()
    with Harness() as h:
        end_holder = hold(h, STEP)
        handle = h.start(saga, id="saga")
        h.run("saga")
        other = h.start(limited)
        h.run(other.id)
        handle.cancel(rollback=True)
        h.settle()
        assert handle.state == "rolling_back"
        end_holder()
        h.settle()
        assert handle.state == "rolling_back"
        assert other.state == "completed"
        h.finish(handle)
        assert len(UNDONE) == 2
