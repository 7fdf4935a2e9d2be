"""What a worker notes of its running steps, and how it obeys what operators ask of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from durable import AsyncContext, Break, Context, Continue, Handle, current_step, workflow
from durable.conf import conf
from durable.core import clock
from durable.core.causes import with_origin
from durable.core.current import timed_step
from durable.core.errors import ErrorInfo
from durable.core.witnesses import FIRST, is_of_first_claim
from durable.execution.connections import worker_name
from durable.execution.passes import execute_pass
from durable.inspection.activities import activities_of_runs, list_activities
from durable.inspection.tree import history_tree
from durable.models import Activity, Attempt, Entry, Run, StepSave
from durable.store import store_for
from durable.worker import activities, leases
from durable.worker.loop import InlinePool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.support.waiting import eventually, sleep_through
from tests.support.worker import working_threads

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

LIMIT = 120.0  # seconds
go_on = threading.Event()
begun: list[str] = []
after = threading.Event()
GATE = threading.Lock()


def hold(name: str = "held") -> str:
    """A step's function that goes on until the test lets it, a moment at a time."""
    begun.append(name)
    until = time.monotonic() + LIMIT
    while not go_on.is_set() and time.monotonic() < until:
        time.sleep(0.01)
    return name


def block(name: str = "blocked") -> str:
    """A step's function that blocks in one call of the system; from its second attempt on it returns at once."""
    begun.append(name)
    if begun.count(name) == 1:
        time.sleep(LIMIT)
    return name


def swallow() -> str:
    """A step's function that lets nothing end it before the test does; from its second call on it returns at once."""
    begun.append("swallow")
    if begun.count("swallow") == 1:
        sleep_through(go_on.is_set)
    return f"call {begun.count('swallow')}"


def through_durable() -> None:
    """A step's function that is called by durable's engine, which it has called itself."""

    def find(_location: str) -> None:
        hold()

    with_origin(ErrorInfo("ValueError", "no"), ["held"], find)


async def ahold(name: str = "held") -> str:
    begun.append(name)
    for _ in range(int(LIMIT / 0.01)):
        if begun.count(name) > 1 or go_on.is_set():
            break
        await asyncio.sleep(0.01)
    return name


async def aswallow() -> str:
    begun.append("swallow")
    is_first = begun.count("swallow") == 1
    while is_first and not go_on.is_set():
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            continue
    return f"call {begun.count('swallow')}"


RETRIED: dict[str, Any] = {"max_retries": 2, "retry_backoff_base": 0}


@workflow(name="tests.activities.one")
def one(ctx: Context, timeout: float = 90) -> Any:
    return ctx.step("hold", hold, timeout=timeout, **RETRIED)


@workflow(name="tests.activities.through")
def through(ctx: Context) -> None:
    ctx.step("through", through_durable)


@workflow(name="tests.activities.plain")
def plain(ctx: Context) -> None:
    ctx.step("wait", partial(GATE.acquire, True, LIMIT))


@workflow(name="tests.activities.blocked")
def blocked(ctx: Context, timeout: float = 90, atomic: bool = False) -> Any:
    return ctx.step("block", block, timeout=timeout, atomic=atomic, **RETRIED)


@workflow(name="tests.activities.swallowing")
def swallowing(ctx: Context) -> Any:
    ctx.step("before", lambda: None)
    return ctx.step("swallow", swallow, **RETRIED)


@workflow(name="tests.activities.ephemeral")
def ephemeral(ctx: Context) -> Any:
    ctx.step("before", lambda: begun.append("before"), ephemeral=True)
    return ctx.step("swallow", swallow, **RETRIED)


@workflow(name="tests.activities.markers")
def markers(ctx: Context) -> Any:
    ctx.get_version("version", 2)
    ctx.rollback_checkpoint("from here")
    ctx.sleep("for a moment", 0.01)
    return ctx.step("swallow", swallow, **RETRIED)


@workflow(name="tests.activities.first_iteration")
def first_iteration(ctx: Context) -> Any:
    return ctx.loop("each", lambda c, _state: Break(c.step("swallow", swallow, **RETRIED)), state=0)


@workflow(name="tests.activities.after_a_loop")
def after_a_loop(ctx: Context) -> Any:
    def iteration(c: Context, state: int) -> Continue[int] | Break[int]:
        c.step("count", lambda: state)
        return Continue(state + 1) if state < 3 else Break(state)

    ctx.loop("each", iteration, state=0, history_prune_interval=2, history_size=1)
    return ctx.step("swallow", swallow, **RETRIED)


@workflow(name="tests.activities.race")
def race(ctx: Context) -> Any:
    return ctx.race("first", {"only": lambda c: c.step("swallow", swallow, **RETRIED)}).value


@workflow(name="tests.activities.two_steps")
def two_steps(ctx: Context) -> Any:
    ctx.step("swallow", swallow, **RETRIED)
    ctx.step("after", after.wait, 120)
    return ctx.step("end", lambda: "ended")


@workflow(name="tests.activities.last")
def last(ctx: Context) -> Any:
    return ctx.step("block", block, max_retries=0)


@workflow(name="tests.activities.branches")
def branches(ctx: Context) -> Any:
    return ctx.join("all", {name: lambda c, name=name: c.step("hold", hold, name) for name in ("left", "right")})  # type: ignore[misc]


@workflow(name="tests.activities.beside_others")
def beside_others(ctx: Context, retries: int) -> Any:
    return ctx.join(
        "all",
        {
            "left": lambda c: c.step("swallow", swallow, **RETRIED),
            "middle": lambda c: c.step("done", lambda: begun.append("done")),
            "right": lambda c: c.step("hold", hold, "right", max_retries=retries, retry_backoff_base=0),
        },
    )


@workflow(name="tests.activities.abranches")
async def abranches(ctx: AsyncContext, seconds: float = 90) -> Any:
    async def branch(c: AsyncContext, name: str) -> Any:
        return await c.step("hold", ahold, name, timeout=seconds, **RETRIED)

    return await ctx.join("all", {name: lambda c, name=name: branch(c, name) for name in ("left", "right")})  # type: ignore[misc]


@workflow(name="tests.activities.abeside")
async def abeside(ctx: AsyncContext, retries: int) -> Any:
    async def left(c: AsyncContext) -> Any:
        return await c.step("swallow", aswallow, **RETRIED)

    async def right(c: AsyncContext) -> Any:
        return await c.step("hold", ahold, "right", max_retries=retries, retry_backoff_base=0)

    return await ctx.join("all", {"left": left, "right": right})


@workflow(name="tests.activities.stubbornly_undoing")
def stubbornly_undoing(ctx: Context) -> Any:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", lambda: "charged", rollback=stubborn_refund, **RETRIED)
    raise ValueError("undo")


@workflow(name="tests.activities.undoing")
def undoing(ctx: Context) -> Any:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", lambda: "charged", rollback=refund, **RETRIED)
    raise ValueError("undo")


def refund(_context: Any, _output: Any) -> None:
    hold("refund")


@workflow(name="tests.activities.tagging")
def tagging(ctx: Context) -> Any:
    ctx.tag(stage="before")
    return ctx.step("swallow", swallow, **RETRIED)


@workflow(name="tests.activities.short")
def short(ctx: Context) -> Any:
    return [ctx.step(f"step {number}", lambda: None) for number in range(50)]


def stubborn_refund(_context: Any, _output: Any) -> None:
    swallow()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    go_on.clear()
    begun.clear()
    monkeypatch.setattr(leases, "LONG", 0.2)
    monkeypatch.setattr(leases, "TICK", 0.05)
    yield
    go_on.set()


@pytest.fixture
def gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the worker give a run up half a second after a request that its step has not obeyed."""
    monkeypatch.setattr(activities, "GIVE_UP", 0.5)


@pytest.fixture
def working() -> Iterator[Callable[..., threading.Thread]]:
    with working_threads(go_on.set, LIMIT) as start:
        yield start


def beside(act: Callable[[], None], run: Callable[[], None]) -> None:
    """Call `run` in this thread, the main one, and `act` in another."""
    failed: list[BaseException] = []

    def call() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)
        finally:
            go_on.set()
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    run()
    thread.join(LIMIT)
    assert not failed, failed


def in_the_main_thread() -> None:
    loop = WorkerLoop(InlinePool(), store=store_for(conf.DATABASE), execute=execute_pass, stop=ShutdownFlag())
    with loop:
        loop.work("default", LIMIT)


def current(count: int = 1) -> list[Activity]:
    """The current activities, once there are so many, by location."""
    eventually(lambda: Activity.objects.current(timezone.now()).count() == count)
    return list(Activity.objects.current(timezone.now()).order_by("location"))


def ask(**columns: Any) -> None:
    eventually(lambda: Activity.objects.update(**columns) > 0)


def finished(handle: Handle[Any]) -> None:
    eventually(lambda: handle.state in {"completed", "failed", "cancelled"})


def given_up(handle: Handle[Any], **where: Any) -> Run:
    """Abandon the step as an operator does, and return the run once the worker has given it up."""
    eventually(lambda: Activity.objects.filter(**where).update(abandon_asked_at=timezone.now()) > 0)
    eventually(lambda: Run.objects.get(pk=handle.id).lease_expires_at is None)
    return Run.objects.get(pk=handle.id)


def errors_of(handle: Handle[Any]) -> list[str]:
    return [each.error.type for each in Attempt.objects.filter(run=handle.id).order_by("id")]


@workflow(name="tests.noted.leaving")
def leaving(ctx: Context) -> str:
    return ctx.step("leave", leave)


async def leave() -> str:
    """A step's function that leaves a task on its loop which swallows its cancellation."""
    asyncio.get_running_loop().create_task(stay())
    await asyncio.sleep(0)
    return "left"


async def stay() -> None:
    while not go_on.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


# -- what is noted


def test_a_long_step_is_noted_with_its_place_attempt_beginning_and_worker(
    working: Callable[..., threading.Thread],
) -> None:
    before = timezone.now()
    handle = one.start()
    working()
    [activity] = current()
    assert (activity.run_id, activity.location, activity.attempt) == (handle.id, "hold", 1)
    assert (activity.kind, activity.timeout, activity.worker) == ("step", 90.0, worker_name())
    assert before <= activity.began_at <= timezone.now()
    assert activity.fence == Run.objects.get(pk=handle.id).fence
    assert not Entry.objects.filter(run=handle.id).exists()
    go_on.set()
    finished(handle)
    eventually(lambda: not Activity.objects.exists())
    assert handle.output == "held"


def test_short_steps_never_reach_the_table(
    working: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = _reports(monkeypatch)
    monkeypatch.setattr(leases, "LONG", LIMIT)
    handle = short.start()
    working().join(LIMIT)
    assert handle.state == "completed"
    assert reported == []


@pytest.mark.slow
def test_what_an_async_step_leaves_on_its_loop_is_noted_until_it_ends() -> None:
    """Its run has ended meanwhile, and no worker has it."""
    store = store_for(conf.DATABASE)
    with WorkerLoop(InlinePool(), store=store, execute=execute_pass, stop=ShutdownFlag(), queues=["default"]) as loop:
        handle = leaving.start()
        loop.work("default", LIMIT)
        assert handle.output == "left"
        eventually(lambda: bool(list_activities(timezone.now()).steps))
        [step] = list_activities(timezone.now()).steps
        assert (step.run_id, step.location, step.attempt, step.worker) == (handle.id, "leave", 0, worker_name())
        assert step.left == "the task stay"
        store.forget_activities()  # which another worker does
        assert Activity.objects.exists()
        go_on.set()
        eventually(lambda: not Activity.objects.exists())


@pytest.mark.slow
def test_a_worker_that_ends_forgets_what_goes_on_in_it() -> None:
    store = store_for(conf.DATABASE)
    with WorkerLoop(InlinePool(), store=store, execute=execute_pass, stop=ShutdownFlag(), queues=["default"]) as loop:
        leaving.start()
        loop.work("default", LIMIT)
        eventually(lambda: Activity.objects.exists())
    assert not Activity.objects.exists()
    go_on.set()


@pytest.mark.parametrize("of", [branches, abranches])
def test_each_branch_is_noted_and_in_the_history_before_its_step_is_recorded(
    working: Callable[..., threading.Thread], of: Any
) -> None:
    handle = of.start()
    working()
    assert [each.location for each in current(2)] == ["all/left/hold", "all/right/hold"]
    run = Run.objects.get(pk=handle.id)
    running = activities_of_runs([run], timezone.now())[run.id]
    [around] = history_tree(run, running=running).roots
    # a block: the join is recorded with the first of its steps, and the location alone does not tell what it is
    assert (around.title, around.kind, around.status) == ("all", "block", "running")
    children = sorted(around.children, key=attrgetter("title"))  # they are in the order in which their steps began
    assert [(each.title, each.status) for each in children] == [("left", "running"), ("right", "running")]
    steps = [step for branch in children for step in branch.children]
    assert [(each.location, each.kind, each.status) for each in steps] == [
        ("all/left/hold", "step", "running"),
        ("all/right/hold", "step", "running"),
    ]
    assert all(each.running_since is not None for each in steps)
    go_on.set()
    finished(handle)
    assert {each.status for each in history_tree(run, running=running).nodes} == {"completed"}
    assert handle.output == {"left": "left", "right": "right"}


def test_each_slot_is_noted(working: Callable[..., threading.Thread]) -> None:
    handles = [one.start() for _ in range(8)]
    working(slots=8)
    assert {each.run_id for each in current(8)} == {each.id for each in handles}
    go_on.set()
    for handle in handles:
        finished(handle)


def test_a_rollback_handler_is_noted_as_one(working: Callable[..., threading.Thread]) -> None:
    handle = undoing.start()
    working()
    [activity] = current()
    assert (activity.location, activity.kind, activity.attempt) == ("charge", "rollback", 1)
    go_on.set()
    finished(handle)


@pytest.mark.slow
def test_a_clock_that_jumps_changes_no_beginning(
    working: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    one.start()
    working()
    [before] = current()
    reported = len(seen := _reports(monkeypatch))
    monkeypatch.setattr(clock, "now", lambda: timezone.now() - timedelta(hours=3))
    eventually(lambda: len(seen) > reported + 1)
    assert Activity.objects.get().began_at == before.began_at


def _reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    report = activities.Activities.report

    def noting(self: activities.Activities, running: Any) -> Any:
        answer = report(self, running)
        seen.append(len(running))
        return answer

    monkeypatch.setattr(activities.Activities, "report", noting)
    return seen


def test_a_run_that_was_taken_over_has_no_activity_of_the_late_worker(working: Callable[..., threading.Thread]) -> None:
    handle = one.start()
    working()
    [activity] = current()
    Run.objects.filter(pk=handle.id).update(fence=activity.fence + 1)  # as another worker does
    assert current(0) == []
    assert Activity.objects.left_over().count() <= 1
    go_on.set()
    eventually(lambda: not Activity.objects.exists())


# -- what steps save


def save_and_hold(name: str = "held") -> Any:
    step = current_step()
    begun.append(name)
    until, number = time.monotonic() + LIMIT, 0
    while not go_on.is_set() and time.monotonic() < until:
        number += 1
        step.save(number)
        time.sleep(0.01)
    return name


@workflow(name="tests.activities.saving")
def saving(ctx: Context) -> Any:
    return ctx.join("both", dict.fromkeys(("left", "right"), _saving_branch))


def _saving_branch(ctx: Context) -> Any:
    return ctx.step("save", save_and_hold, **RETRIED)


def test_what_running_steps_save_is_written_while_they_run(working: Callable[..., threading.Thread]) -> None:
    handle = saving.start()
    working()
    eventually(lambda: StepSave.objects.filter(number__gt=1).count() == 2)
    before = {each.location: each.number for each in StepSave.objects.all()}
    assert sorted(before) == ["both/left/save", "both/right/save"]
    eventually(lambda: all(each.number > before[each.location] for each in StepSave.objects.all()))
    go_on.set()
    finished(handle)
    eventually(lambda: not StepSave.objects.exists())


def test_a_worker_that_has_lost_the_run_replaces_no_save_of_the_next(working: Callable[..., threading.Thread]) -> None:
    handle = saving.start()
    working()
    eventually(lambda: StepSave.objects.count() == 2)
    fence = Run.objects.get(pk=handle.id).fence
    Run.objects.filter(pk=handle.id).update(fence=fence + 1)  # as another worker does
    StepSave.objects.update(fence=fence + 1, number=1, details="7")
    eventually(lambda: Activity.objects.left_over().exists() or not Activity.objects.exists())
    go_on.set()
    eventually(lambda: not Activity.objects.current(timezone.now()).exists())
    assert set(StepSave.objects.values_list("fence", "number", "details")) == {(fence + 1, 1, "7")}


# -- the stack


def stacks(count: int = 1) -> list[str]:
    """Ask for the stacks of so many steps, and return the answers."""
    current(count)
    ask(stack_asked_at=timezone.now())
    eventually(lambda: not Activity.objects.filter(stack_taken_at=None).exists())
    return list(Activity.objects.values_list("stack", flat=True))


@pytest.mark.parametrize(("of", "function"), [(one, "hold"), (branches, "hold"), (abranches, "ahold")])
def test_a_worker_answers_with_the_stack_of_the_step(
    working: Callable[..., threading.Thread], of: Any, function: str
) -> None:
    of.start()
    working()
    for stack in stacks(1 if of is one else 2):
        first, *_ = stack.splitlines()
        assert first.endswith(f"in {function}"), stack
        assert "test_activities.py" in first
        assert "durable/drivers" not in stack


def test_a_stack_begins_with_the_users_code_though_that_calls_durable(working: Callable[..., threading.Thread]) -> None:
    through.start()
    working()
    [stack] = stacks()
    frames = [line for line in stack.splitlines() if line.startswith("  File")]
    assert frames[0].endswith("in through_durable"), stack
    assert "durable/core/causes.py" in frames[1]
    assert frames[-1].endswith("in hold"), stack


def test_a_step_whose_function_has_no_frames_has_its_name_as_its_stack(
    working: Callable[..., threading.Thread],
) -> None:
    plain.start()
    with GATE:
        working()
        assert stacks() == ["The step calls lock.acquire, which has no Python frames at this moment."]


def test_the_main_threads_step_has_a_stack_too() -> None:
    found: list[str] = []
    one.start()
    beside(lambda: found.extend(stacks()), in_the_main_thread)
    assert found[0].splitlines()[0].endswith("in hold")


# -- abandoned


@pytest.mark.parametrize("timeout", [90, 0])
# on SQLite an atomic step keeps every other writer out until it ends
@pytest.mark.parametrize("atomic", [False, pytest.param(True, marks=pytest.mark.postgres)])
def test_in_the_main_thread_a_blocking_call_is_interrupted(timeout: float, atomic: bool) -> None:
    handle = blocked.start(timeout, atomic)
    beside(lambda: ask(abandon_asked_at=timezone.now()), in_the_main_thread)
    assert (handle.state, handle.output) == ("completed", "blocked")
    assert errors_of(handle) == ["AttemptAbandonedError"]
    assert begun == ["blocked", "blocked"]


@pytest.mark.parametrize("timeout", [90, 0])
def test_in_a_thread_it_is_interrupted_between_two_calls(
    working: Callable[..., threading.Thread], timeout: float
) -> None:
    handle = one.start(timeout)
    working()
    ask(abandon_asked_at=timezone.now())
    eventually(lambda: len(begun) == 2)
    go_on.set()
    finished(handle)
    assert errors_of(handle) == ["AttemptAbandonedError"]
    assert handle.output == "held"


@pytest.mark.parametrize("timeout", [90, 0])
def test_an_async_step_is_cancelled_and_its_neighbour_goes_on(
    working: Callable[..., threading.Thread], timeout: float
) -> None:
    handle = abranches.start(timeout)
    working()
    current(2)
    Activity.objects.filter(location="all/left/hold").update(abandon_asked_at=timezone.now())
    eventually(lambda: begun.count("left") == 2 or errors_of(handle) != [])
    go_on.set()
    finished(handle)
    assert errors_of(handle) == ["AttemptAbandonedError"]
    assert begun.count("right") == 1


def test_an_abandoned_last_attempt_fails_the_run() -> None:
    handle = last.start()
    beside(lambda: ask(abandon_asked_at=timezone.now()), in_the_main_thread)
    assert handle.state == "failed"
    assert "an operator abandoned the attempt" in str(handle.error)
    assert begun == ["blocked"]


@pytest.mark.slow
def test_a_step_that_cannot_be_interrupted_loses_its_run_and_writes_no_more(
    gives_up: None, working: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities, "AGAIN", 0.1)
    handle = swallowing.start()
    stuck = working()
    assert given_up(handle).crashes == 0
    working()
    finished(handle)
    assert stuck.is_alive()
    go_on.set()
    stuck.join(LIMIT)
    assert (handle.state, handle.output) == ("completed", "call 2")
    assert errors_of(handle) == ["AttemptAbandonedError"]
    [entry] = Entry.objects.filter(run=handle.id, location="swallow")
    assert entry.metadata.attempts == 2
    assert "abandoned" not in entry.data


@pytest.mark.slow
def test_after_its_last_attempt_a_step_that_was_given_up_is_exhausted(
    gives_up: None, working: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RETRIED, "max_retries", 0)
    handle = swallowing.start()
    working()
    given_up(handle)
    working()
    finished(handle)
    assert handle.state == "failed"
    assert begun == ["swallow"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "of", [ephemeral, markers, first_iteration, after_a_loop, race, tagging], ids=lambda of: of.name
)
def test_the_code_fits_the_history_of_a_run_that_was_given_up(
    of: Any, gives_up: None, working: Callable[..., threading.Thread]
) -> None:
    handle = of.using(tags={"tenant": "acme"}).start()
    working()
    given_up(handle)
    assert handle.tags == {"tenant": "acme"} | ({"stage": "before"} if of is tagging else {})
    working()
    eventually(lambda: handle.state == "completed" or Run.objects.get(pk=handle.id).diverged_at is not None)
    assert Run.objects.get(pk=handle.id).diverged_at is None
    assert handle.output == "call 2"
    assert errors_of(handle) == ["AttemptAbandonedError"]
    assert begun.count("before") == (1 if of is ephemeral else 0)


@pytest.mark.slow
@pytest.mark.parametrize("retries", [2, 0])
@pytest.mark.parametrize("of", [beside_others, abeside], ids=lambda of: of.name)
def test_the_steps_of_other_branches_are_counted_when_the_run_is_given_up(
    of: Any, retries: int, gives_up: None, working: Callable[..., threading.Thread]
) -> None:
    """They go on in their threads too: without a retry, none is called a second time beside itself."""
    handle = of.start(retries)
    stuck = working()
    claimed = current(2)[0].fence
    run = given_up(handle, location="all/left/swallow")
    assert (run.fence, run.crashes) == (claimed + 1, 0)
    working()
    if retries:
        eventually(lambda: begun.count("right") == 2)
    else:
        finished(handle)
        assert stuck.is_alive()
    go_on.set()
    finished(handle)
    assert begun.count("right") == (2 if retries else 1)
    assert begun.count("done") == (1 if of is beside_others else 0)
    assert sorted(errors_of(handle)) == ["AttemptAbandonedError", "WorkerDied"]
    [lost] = Attempt.objects.filter(run=handle.id, location="all/right/hold")
    assert "another branch could not be interrupted" in lost.error.message
    assert handle.state == ("completed" if retries else "failed")
    entries = Entry.objects.filter(run=handle.id, location__in=["all/left/swallow", "all/right/hold"])
    assert not [each.data for each in entries if {"abandoned", "given_up"} & set(each.data)]


@pytest.mark.slow
def test_a_rollback_handler_that_cannot_be_interrupted_loses_its_run_and_writes_no_more(
    gives_up: None, working: Callable[..., threading.Thread]
) -> None:
    handle = stubbornly_undoing.start()
    stuck = working()
    [activity] = current()
    assert activity.kind == "rollback"
    handle.abandon()
    eventually(lambda: Run.objects.get(pk=handle.id).lease_expires_at is None)
    run = Run.objects.get(pk=handle.id)
    assert (run.state, run.fence, run.crashes) == ("rolling_back", activity.fence + 1, 0)
    working()
    finished(handle)
    undone = Entry.objects.get(run=handle.id, location="charge").metadata.rollback_completed_at
    assert undone is not None
    assert stuck.is_alive()
    go_on.set()
    stuck.join(LIMIT)
    assert begun.count("swallow") == 2
    assert Entry.objects.get(run=handle.id, location="charge").metadata.rollback_completed_at == undone
    assert handle.state == "failed"
    assert 2 * FIRST <= Run.objects.get(pk=handle.id).fence - run.fence < 3 * FIRST  # one more claim


@pytest.mark.slow
def test_a_run_whose_attempt_ends_before_it_is_given_up_keeps_its_lease(
    gives_up: None, working: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up = leases.LeaseManager._give_up

    def late(self: leases.LeaseManager, step: timed_step, fence: int) -> None:
        go_on.set()
        eventually(lambda: Entry.objects.filter(run=handle.id, location="swallow").exists())
        give_up(self, step, fence)
        after.set()

    after.clear()
    monkeypatch.setattr(leases.LeaseManager, "_give_up", late)
    handle = two_steps.start()
    working()
    ask(abandon_asked_at=timezone.now())
    finished(handle)
    assert (handle.state, handle.output) == ("completed", "ended")
    run = Run.objects.get(pk=handle.id)
    assert is_of_first_claim(run.fence)
    assert run.crashes == 0
    assert errors_of(handle) == []


def test_what_was_asked_of_an_earlier_attempt_is_not_done_to_the_next(working: Callable[..., threading.Thread]) -> None:
    handle = one.start()
    working()
    [activity] = current()
    Activity.objects.filter(pk=activity.pk).update(attempt=7, abandon_asked_at=timezone.now())
    Activity.objects.filter(pk=activity.pk).update(stack_asked_at=timezone.now())
    assert begun == ["held"]
    go_on.set()
    finished(handle)
    assert errors_of(handle) == []


# -- the operators' verbs


def test_a_cancel_that_interrupts_ends_a_run_whose_step_blocks() -> None:
    handle = blocked.start()

    def act() -> None:
        eventually(lambda: Activity.objects.exists())
        handle.cancel("enough", interrupt=True)

    beside(act, in_the_main_thread)
    assert handle.state == "cancelled"
    assert begun == ["blocked"]
    assert errors_of(handle) == ["AttemptAbandonedError"]


@pytest.mark.slow
def test_a_cancel_that_interrupts_ends_a_run_whose_step_cannot_be_interrupted(
    gives_up: None, working: Callable[..., threading.Thread]
) -> None:
    handle = swallowing.start()
    working()
    eventually(lambda: Activity.objects.exists())
    handle.cancel(interrupt=True)
    eventually(lambda: Run.objects.get(pk=handle.id).lease_expires_at is None)
    working()
    finished(handle)
    assert handle.state == "cancelled"
    assert begun == ["swallow"]


def test_a_rollback_handler_that_is_abandoned_is_tried_again(working: Callable[..., threading.Thread]) -> None:
    handle = undoing.start()
    working()
    current()
    handle.abandon()
    eventually(lambda: begun.count("refund") == 2)
    go_on.set()
    finished(handle)
    assert handle.state == "failed"
    assert Entry.objects.get(run=handle.id, location="charge").metadata.rollback_completed_at is not None
