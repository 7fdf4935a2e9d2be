"""Limits of workflows and steps: who runs, who waits in line, what a crash leaves; in both flavours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import pytest

from durable import AsyncContext, Context, CriticalError, Limit, RetryLater, get_run, workflow
from durable.core.control_flow import PassAborted
from durable.core.limits.slot_records import SlotKind, SlotWant
from durable.errors import UnknownLimitError
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.testing import Harness
from tests.core.driving import evicted_pass, threaded_pass

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


def work(name: str) -> str:
    CALLS.append(name)
    return f"done {name}"


def by_tenant(tenant: str, **_: object) -> str:
    return tenant


@workflow(name="slots.open", limit=Limit("slots-open", at_once=1, key=by_tenant, hold="open"))
def exclusive(ctx: Context, tenant: str) -> str:
    ctx.sleep("night", 60)
    return ctx.step("work", work, tenant)


@workflow(name="slots.aopen", limit=Limit("slots-open", at_once=1, key=by_tenant, hold="open"))
async def aexclusive(ctx: AsyncContext, tenant: str) -> str:
    await ctx.sleep("night", 60)
    return await ctx.step("work", work, tenant)


@workflow(name="slots.running", limit=Limit("slots-running", at_once=1))
def running(ctx: Context, name: str) -> str:
    ctx.step("first", work, f"{name} 1")
    ctx.sleep("night", 60)
    return ctx.step("second", work, f"{name} 2")


@workflow(name="slots.steps", limit=Limit("slots-gpu", at_once=10))
def steps(ctx: Context, name: str) -> str:
    ctx.step("before", work, f"{name} before")
    return ctx.step("render", work, name, limit="slots-gpu/card")


@workflow(name="slots.asteps")
async def asteps(ctx: AsyncContext, name: str) -> str:
    await ctx.step("before", work, f"{name} before")
    return await ctx.step("render", work, name, limit="slots-gpu/card")


both_open = pytest.mark.parametrize("job", [exclusive, aexclusive], ids=["sync", "async"])
both_steps = pytest.mark.parametrize("job", [steps, asteps], ids=["sync", "async"])


def held(h: Harness, *ids: str, location: str | None = None) -> list[str]:
    rows = h._store.slots(ids)
    return [each.run_id for each in rows if each.is_held and location in (None, each.location)]


@both_open
def test_a_run_holds_its_slot_from_its_first_pass_to_its_end(h: Harness, job: Any) -> None:
    one, two = h.start(job, "acme", id="one"), h.start(job, "acme", id="two")
    other = h.start(job, "emca", id="other")
    h.settle()
    assert get_run("two").info().summary == "number 1 in line for slots-open/acme (1 of 1 held)"
    assert held(h, "one", "two", "other") == ["one", "other"]
    assert h.peek(two).wake_at is None
    h.advance(60)
    h.settle()
    assert h.peek(one).state == h.peek(other).state == "completed"
    assert held(h, "two") == ["two"]
    h.finish(two)
    assert CALLS == ["acme", "emca", "acme"]
    assert h._store.slots(["one", "two", "other"]) == []


def test_a_run_holds_its_slot_while_a_worker_passes_it(h: Harness) -> None:
    for name in ("a", "b"):
        h.start(running, name, id=name)
    h.settle()
    assert CALLS == ["a 1", "b 1"]
    assert h._store.slots(["a", "b"]) == []
    h.advance(60)
    h.settle()
    assert CALLS == ["a 1", "b 1", "a 2", "b 2"]


@both_steps
def test_a_step_waits_for_a_slot(h: Harness, job: Any) -> None:
    h.start(exclusive, "x", id="holder")
    holder = h._store.claim_run("holder", now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
    assert holder is not None
    card = SlotWant("slots-gpu", "card", SlotKind.STEP, 1)
    assert h._store.acquire("holder", holder.fence, "mine", [card], h.now).is_granted
    handle = h.start(job, "y", id="y")
    h.settle()
    assert h.peek(handle).state == "sleeping"
    assert "in line for slots-gpu/card (1 of 1 held)" in str(handle.info().summary)
    assert [each.status for each in handle.history() if each.location == "render"] == ["pending"]
    h._store.expire_lease("holder", h.now)
    get_run("holder").cancel()
    h.settle()
    assert h.peek(handle).output == "done y"
    assert CALLS == ["y before", "y"]
    assert h._store.slots(["holder", "y"]) == []


@pytest.mark.parametrize("job", [exclusive, aexclusive, running, steps], ids=["open", "aopen", "running", "steps"])
def test_a_crash_at_each_commit(h: Harness, job: Any) -> None:
    assert h.crash_everywhere(job, "acme", check=lambda: sorted(set(CALLS))) >= 6


def test_a_failed_attempt_gives_up_its_slot(h: Harness) -> None:
    attempts: list[str] = []

    @workflow(name="slots.failing")
    def failing(ctx: Context, name: str) -> str:
        return ctx.step("try", lambda: flaky(name), limit="slots-flaky", max_retries=3)

    def flaky(name: str) -> str:
        attempts.append(name)
        if attempts.count(name) < 2:
            raise RetryLater("30 s")
        return name

    h._store._slots.limits["slots-flaky"] = 1
    one, two = h.start(failing, "one", id="1"), h.start(failing, "two", id="2")
    h.settle()
    assert attempts == ["one", "two"]
    h.finish(one)
    h.finish(two)
    assert attempts == ["one", "two", "one", "two"]


def test_a_limit_without_a_definition_is_a_mistake_of_the_code(h: Harness) -> None:
    @workflow(name="slots.unknown")
    def unknown(ctx: Context) -> None:
        ctx.step("render", work, "x", limit="slots-nobody")

    handle = h.start(unknown)
    h.settle()
    assert h.peek(handle).state == "failed"
    assert 'there is no limit "slots-nobody"' in str(handle.info().summary)
    assert CALLS == []


def test_a_key_that_is_no_text_is_a_mistake_of_the_code(h: Harness) -> None:
    @workflow(name="slots.key", limit=Limit("slots-key", at_once=1, key=lambda pk: pk))
    def keyed(ctx: Context, pk: int) -> None:
        ctx.step("work", work, str(pk))

    handle = h.start(keyed, 7)
    h.settle()
    assert "write key=lambda ...: str(...)" in str(handle.info().summary)
    assert CALLS == []


def test_branches_wait_side_by_side_and_others_go_on(h: Harness) -> None:
    @workflow(name="slots.branches")
    def branches(ctx: Context) -> Any:
        return ctx.join(
            "all",
            {
                "limited": lambda b: b.step("render", work, "limited", limit="slots-b"),
                "free": lambda b: b.step("work", work, "free"),
            },
        )

    h._store._slots.limits["slots-b"] = 0
    handle = h.start(branches)
    h.settle()
    assert CALLS == ["free"]
    assert h.peek(handle).state == "sleeping"
    h._store._slots.limits["slots-b"] = 1
    h.settle()
    assert h.peek(handle).output == {"limited": "done limited", "free": "done free"}


def test_a_losing_branch_leaves_its_line(h: Harness) -> None:
    @workflow(name="slots.race")
    def race(ctx: Context) -> Any:
        won = ctx.race(
            "first",
            {
                "limited": lambda b: b.step("render", work, "limited", limit="slots-r"),
                "message": lambda b: b.queue.next("mail").body,
            },
        )
        ctx.sleep("night", 60)
        return won.value

    h._store._slots.limits["slots-r"] = 0
    handle = h.start(race)
    h.settle()
    assert [each.location for each in h._store.slots([handle.id])] == ["first/limited/render"]
    handle.send("mail", "hello")
    h.settle()
    assert h.peek(handle).state == "sleeping"
    assert h._store.slots([handle.id]) == []
    h.finish(handle)
    assert h.peek(handle).output == "hello"


def test_a_finished_step_holds_no_slot_while_another_branch_works() -> None:
    @workflow(name="slots.beside")
    def beside(ctx: Context) -> Any:
        return ctx.join(
            "all",
            {
                "limited": lambda b: b.step("render", work, "limited", limit="slots-x"),
                "other": lambda b: b.step("look", lambda: held(h, b.run_id)),
            },
        )

    with Harness(strict=False) as h:
        h._store._slots.limits["slots-x"] = 1
        handle = h.start(beside)
        h.finish(handle)
        assert h.peek(handle).output == {"limited": "done limited", "other": []}


class Refusing:
    """The store of a harness, which refuses the slots of this location the first time, as a database may."""

    def __init__(self, inner: Any, location: str) -> None:
        self.inner, self.location, self.refused = inner, location, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def acquire(self, run_id: str, fence: int, location: str, *others: Any) -> Any:
        if location == self.location and not self.refused:
            self.refused += 1
            raise RuntimeError("could not serialize access")
        return self.inner.acquire(run_id, fence, location, *others)


def cut_short(h: Harness, run_id: str, location: str) -> None:
    """A pass that ends where it asks for the slot of this location, and whose worker hands the run back."""
    claimed = h._store.claim_run(run_id, now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
    assert claimed is not None
    with pytest.raises(PassAborted):
        execute_pass(claimed, store=Refusing(h._store, location), eviction=Eviction(), at=h._runtime)
    h._store.release([(run_id, claimed.fence)], h.now)


def test_a_pass_that_was_cut_short_leaves_no_slot_held() -> None:
    @workflow(name="slots.cut_short")
    def both(ctx: Context) -> Any:
        return ctx.join(
            "all",
            {each: partial(lambda each, b: b.step("s", work, each, limit="slots-y"), each) for each in ("one", "two")},
        )

    with Harness(strict=False) as h:
        h._store._slots.limits["slots-y"] = 1
        handle = h.start(both)
        cut_short(h, handle.id, "all/two/s")
        assert held(h, handle.id) == []
        h.settle()
        assert h.peek(handle).output == {"one": "done one", "two": "done two"}
        assert CALLS == ["one", "two"]


def test_a_slot_that_a_recorded_step_has_kept_is_given_up_by_the_next_pass(h: Harness) -> None:
    """However it came to be kept: the run goes on, and does not wait for itself."""

    @workflow(name="slots.kept")
    def both(ctx: Context) -> str:
        ctx.step("one", work, "one", limit="slots-z")
        ctx.sleep("night", 60)
        return ctx.step("two", work, "two", limit="slots-z")

    h._store._slots.limits["slots-z"] = 1
    handle = h.start(both)
    h.settle()
    h._store._slot_table.take(handle.id, "one", [SlotWant("slots-z")], h.now)
    other = h.start(steps_of_z, id="other")
    h.settle()
    assert get_run("other").info().summary == "number 1 in line for slots-z (1 of 1 held)"
    h.finish(handle)
    assert h.peek(handle).output == "done two"
    assert h.peek(other).output == "done z"


@workflow(name="slots.of_z")
def steps_of_z(ctx: Context) -> str:
    return ctx.step("z", work, "z", limit="slots-z")


def test_threads_of_branches_take_slots_through_the_thread_of_the_pass(h: Harness) -> None:
    @workflow(name="slots.threads")
    def threads(ctx: Context) -> Any:
        return ctx.join("all", {str(n): partial(render, str(n)) for n in range(4)})

    def render(name: str, b: Context) -> str:
        return b.step("s", work, name, limit="slots-t")

    h._store._slots.limits["slots-t"] = 2
    handle = h.start(threads)
    for _ in range(6):
        if h.peek(handle).state != "completed":
            threaded_pass(h, handle.id)
    assert h.peek(handle).output == {str(n): f"done {n}" for n in range(4)}
    assert sorted(CALLS) == ["0", "1", "2", "3"]
    assert h._store.slots([handle.id]) == []


def test_an_evicted_pass_keeps_its_slots(h: Harness) -> None:
    handle = h.start(running, "a", id="a")
    evicted_pass(h, "a", when=lambda: True, after_begin=True)
    assert [each.kind for each in h._store.slots(["a"])] == [SlotKind.RUNNING]
    h.finish(handle)
    assert h._store.slots(["a"]) == []


def test_a_compensation_gives_its_slots_up_at_its_end(h: Harness) -> None:
    @workflow(name="slots.saga", limit=Limit("slots-saga", at_once=1, hold="open"))
    def saga(ctx: Context) -> None:
        ctx.rollback_checkpoint("undo")
        ctx.step("charge", work, "charge", rollback=refund)
        raise CriticalError("no")

    handle = h.start(saga)
    h.settle()
    assert h.peek(handle).state == "failed"
    assert CALLS == ["charge", "refund"]
    assert h._store.slots([handle.id]) == []


def refund(_rollback: Any, _output: str) -> None:
    CALLS.append("refund")


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3", 10**7])
def test_a_limit_says_what_is_wrong(wrong: Any) -> None:
    with pytest.raises(ValueError, match="at_once must be a whole number from 0 to 999,999, not "):
        Limit("x", at_once=wrong)


def test_names_of_limits() -> None:
    with pytest.raises(ValueError, match='without "/"'):
        Limit("a/b", at_once=1)
    with pytest.raises(ValueError, match="'running' or 'open', not 'step'"):
        Limit("a", at_once=1, hold="step")  # type: ignore[arg-type]  # refused
    with pytest.raises(TypeError, match="a workflow's limit is a Limit"):
        workflow(name="slots.wrong", limit="gpu")(lambda ctx: None)  # type: ignore[arg-type]  # refused
    assert issubclass(UnknownLimitError, Exception)


# -- slots that a run has and does not use: after a crash, a pause, other code, or the begin of its compensation


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
def left_running(ctx: Context) -> str:
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


def test_a_branch_that_loses_after_a_crash_in_its_first_attempt(h: Harness) -> None:
    @workflow(name="left.race")
    def race(ctx: Context) -> None:
        branches: dict[str, Callable[[Context], Any]] = {
            "message": lambda b: b.queue.next("mail").body,
            "limited": lambda b: b.step("work", dies, limit="left-step"),
        }
        ctx.race("first", branches)
        ctx.sleep("night", "9 days")

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


def test_code_without_the_step_after_a_crash_in_its_first_attempt(h: Harness) -> None:
    is_deployed = False

    @workflow(name="left.changed")
    def changed(ctx: Context) -> None:
        if not is_deployed:
            ctx.step("work", dies, limit="left-step")
        ctx.sleep("night", "9 days")

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
def test_code_that_limits_a_step_and_no_longer_its_workflow(
    h: Harness, hold: Literal["open", "running"], is_child: bool
) -> None:
    """The run has its slot of the workflow still, and does not wait for it."""

    @workflow(name="left.moved", limit=Limit("left-moved", at_once=1, hold=hold))
    def moved(ctx: Context) -> str:
        ctx.sleep("night", 60)
        return ctx.step("work", lambda: "done", limit="left-moved")

    first = h.start(parent if is_child else moved)
    h.settle()
    moved.limits = None
    assert h.finish(first).output == "done"
    assert h._store._slots.held == {}


def test_a_run_that_is_paused_after_a_crash(h: Harness) -> None:
    handle, other = h.start(left_running, id="paused"), h.start(left_running)
    claimed = h._store.claim_run("paused", now=h.now, lease_until=h.now + timedelta(seconds=30), worker="w")
    assert claimed is not None
    assert h._store.acquire("paused", claimed.fence, "", [RUNNING], h.now).is_granted
    handle.pause()
    h._store.expire_lease("paused", h.now)
    h.settle()
    assert handle.state == "paused"
    assert other.state == "completed"


def test_a_run_that_gets_its_slot_and_has_no_code(h: Harness) -> None:
    end_holder = hold(h, RUNNING)
    h.start(left_running, id="unknown")
    h.run("unknown")
    end_holder()
    assert [each.is_held for each in h._store.slots(["unknown"])] == [True]
    h._store._runs["unknown"] = replace(h._store._runs["unknown"], workflow="left.removed")
    other = h.start(left_running)
    h.settle()
    assert get_run("unknown").state == "sleeping"
    assert other.state == "completed"


def test_a_run_that_is_compensated_leaves_its_line(h: Harness) -> None:
    @workflow(name="left.saga")
    def saga(ctx: Context) -> None:
        ctx.rollback_checkpoint("undo")
        ctx.step("charge", lambda: "charged", rollback=undo, retry_backoff_base=3600, retry_backoff_max=3600)
        ctx.step("work", lambda: "done", limit="left-step")

    UNDONE.clear()
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
