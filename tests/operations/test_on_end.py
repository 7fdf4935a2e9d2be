"""`@workflow(on_end=...)`: the function is called in the commit that ends a run, whatever ends it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction

from durable import Context, RunInfo, get_run, workflow
from durable.core.records import RunState
from durable.errors import EndRefusedError, RunNotFoundError
from durable.operations import Actor, acting_as, bulk
from durable.operations.ends import CallAtEnd
from durable.testing import Harness, SimulatedCrash
from tests.core.flavours import Flavour

pytestmark = pytest.mark.django_db

ended: list[RunInfo] = []
fails: list[Callable[[RunInfo], object]] = []  # each fails once, unless it puts itself back


def note(run: RunInfo) -> None:
    """Write a row of the project for each end: its state, and its output or error."""
    for each in list(fails):
        fails.remove(each)
        each(run)
    ended.append(run)
    told = str(run.output) if run.error is None else run.error.message[:70]
    Group.objects.update_or_create(name=f"{run.id} is {run.state}: {told}")


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    ended.clear()
    fails.clear()


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return Flavour(request.param)


@pytest.fixture(params=["memory", "database"])
def h(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with Harness(store=request.param) as harness:
        yield harness


def rows() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def refuse(_run: RunInfo) -> None:
    raise ValueError("not yet")


@workflow(name="on_end.waiting", on_end=note)
def waiting(ctx: Context) -> str:
    ctx.queue.next("go")
    return "done"


@workflow(name="on_end.by_name", on_end="tests.operations.test_on_end.note")
def by_name(ctx: Context) -> str:
    return "named"


def one(ctx: Context) -> int:
    return 1


@workflow(name="on_end.failing", on_end=note)
def failing(ctx: Context) -> None:
    def charge() -> None:
        raise RuntimeError("declined")

    ctx.step("charge", charge, max_retries=0)


@workflow(name="on_end.undoing", on_end=note)
def undoing(ctx: Context) -> None:
    ctx.rollback_checkpoint("before")
    ctx.step("book", lambda: "seat", rollback=_give_back)
    ctx.queue.next("go")
    raise RuntimeError("sold out")


def _give_back(_ctx: Any, _output: str) -> None:
    Group.objects.create(name="given back")


@workflow(name="on_end.parent", on_end=note)
def parent(ctx: Context) -> str:
    child = ctx.start_child("wait", waiting)
    ctx.queue.next("leave")
    return child.id


def _made(function: Callable[..., Any]) -> Any:
    return workflow(name=f"on_end.{function.__name__}", on_end=note)(function)


# -- what ends a run


def test_a_return(h: Harness, flavour: Flavour) -> None:
    async def returning(ctx: Any) -> Any:
        return await ctx.step("one", lambda: 1)

    program = workflow(name=f"on_end.returning_{flavour.name}", on_end=note)(flavour(returning))
    run = program.using(id="a").start()
    h.settle()
    assert run.output == 1
    assert rows() == ["a is completed: 1"]
    [info] = ended
    assert (info.state, info.output, info.has_ended, info.error) == ("completed", 1, True, None)
    assert info.finished_at == run.info().finished_at


@pytest.mark.parametrize(
    ("flow", "told"),
    [
        (by_name, ["a is completed: named"]),
        (failing, ['a is failed: step "charge" failed on its last attempt: RuntimeError: declined']),
        (undoing, ["a is failed: sold out", "given back"]),
    ],
    ids=["a function that is given by its name", "a failure", "a rollback that is over"],
)
def test_an_end(h: Harness, flow: Any, told: list[str]) -> None:
    run = flow.using(id="a").start()
    h.send(run, "go")
    h.settle()
    assert rows() == told


@pytest.mark.parametrize("rollback", [False, True])
def test_a_cancel(h: Harness, rollback: bool) -> None:
    run = undoing.using(id="a").start()
    h.settle()
    run.cancel(reason="enough", rollback=rollback)
    assert rows() == ([] if rollback else ["a is cancelled: None"])
    h.settle()
    assert rows() == (["a is cancelled: None", "given back"] if rollback else ["a is cancelled: None"])
    assert run.state == "cancelled"


def test_a_cancel_of_a_run_that_has_not_begun_or_is_paused(h: Harness) -> None:
    waiting.using(id="a").start().cancel()
    paused = waiting.using(id="b").start()
    h.settle()
    paused.pause()
    paused.cancel()
    assert rows() == ["a is cancelled: None", "b is cancelled: None"]


def test_a_deadline(h: Harness) -> None:
    run = waiting.using(id="a", deadline="1 hour").start()
    h.finish(run)
    assert run.state == "failed"
    assert [each.state for each in ended] == ["failed"]
    assert rows()[0].startswith("a is failed: ")


def test_a_divergence_that_is_given_up(h: Harness) -> None:
    names = iter(["one", "two", "two"])

    def renamed(ctx: Context) -> None:
        ctx.step(next(names), lambda: 1)
        ctx.queue.next("go")

    strict = h._strict
    h._strict = False
    run = _made(renamed).using(id="a").start()
    h.settle()
    h.send(run, "go")
    h.settle()
    h._strict = strict
    assert run.state == "failed"
    assert rows()[0].startswith("a is failed: ")


def test_the_limit_of_crashes(h: Harness) -> None:
    def crashing(ctx: Context) -> None:
        raise SimulatedCrash

    run = _made(crashing).using(id="a").start()
    _crash_until(h, run, "failed")
    assert [each.error.type for each in ended if each.error is not None] == ["RunCrashedError"]


def _crash_until(h: Harness, run: Any, state: str) -> None:
    for _ in range(20):
        with suppress(SimulatedCrash):
            if h.run(run).state == state:
                return
    raise AssertionError(f"the run is {run.state}")


def test_the_end_of_its_parent_leaves_a_child_to_a_worker(h: Harness) -> None:
    run = parent.using(id="a").start()
    h.settle()
    h.send(run, "leave")
    h.settle()
    assert [(each.id, each.state) for each in ended] == [("a", "completed"), ("a:wait", "cancelled")]
    assert get_run("a:wait").info().state == "cancelled"
    assert rows() == ["a is completed: a:wait", "a:wait is cancelled: None"]


def test_a_cancel_of_its_parent_too(h: Harness) -> None:
    run = parent.using(id="a").start()
    h.settle()
    get_run("a:wait").pause()
    run.cancel()
    child = get_run("a:wait")
    assert (child.state, child.info().summary) == (
        "pending",
        'to be cancelled by a worker: its parent "a" has ended (cancelled)',
    )
    h.settle()
    assert rows() == ["a is cancelled: None", "a:wait is cancelled: None"]


def test_a_child_that_is_superseded_or_loses_a_race(h: Harness) -> None:
    def racing(ctx: Context) -> Any:
        won = ctx.race("first", {"child": lambda ctx: ctx.child("slow", waiting), "quick": lambda ctx: 1})
        return won.value

    run = _made(racing).using(id="a").start()
    h.settle()
    assert run.output == 1
    assert [each.state for each in ended if each.id != "a"] == ["cancelled"]


def test_a_run_that_is_replaced_by_another_with_its_key(h: Harness) -> None:
    waiting.using(id="a", key="k").start()
    h.settle()
    waiting.using(id="b", key="k", if_open="replace").start()
    assert rows() == ["a is cancelled: None"]


def test_a_bulk(h: Harness) -> None:
    ids = [waiting.using(id=f"r{number}").start().id for number in range(12)]
    h.settle()
    fails.append(refuse)
    assert bulk.apply("cancel", ids).done == 11
    assert len(rows()) == 11
    bulk.apply("cancel", ids, in_background=True)
    h.settle()
    assert len(rows()) == 12


def test_each_end_after_a_recovery_calls_it_again(h: Harness) -> None:
    attempts = iter([RuntimeError("down"), None])

    def once(ctx: Context) -> str:
        def call() -> str:
            if (error := next(attempts, None)) is not None:
                raise error
            return "up"

        return ctx.step("call", call, max_retries=0)

    run = _made(once).using(id="a").start()
    h.settle()
    run.recover()
    h.settle()
    assert [each.state for each in ended] == ["failed", "completed"]
    run.replay("call")
    h.settle()
    assert [each.state for each in ended] == ["failed", "completed", "completed"]


def test_a_run_of_another_workflow_calls_nothing(h: Harness) -> None:
    h.finish(h.start(one))
    assert ended == []


# -- one commit


@pytest.mark.parametrize(("when", "left"), [("before", []), ("after", ["a is completed: 1"])])
def test_a_crash_takes_both_or_neither(h: Harness, when: Any, left: list[str]) -> None:
    run = _made(one).using(id="a").start()
    with h.crash_at(1, when), pytest.raises(SimulatedCrash):
        h.run(run)
    assert rows() == left
    assert (run.state == "completed") is bool(left)
    h.settle()
    assert rows() == ["a is completed: 1"]


def test_crashes_at_every_commit(h: Harness) -> None:
    seen: list[tuple[str, list[str]]] = []

    def drive(trial: Harness, run: Any) -> None:
        trial.settle()
        trial.send(run, "go", id="once")
        trial.settle()
        seen.append((run.state, rows()))

    h.crash_everywhere(waiting, drive=drive)
    assert len(seen) > 2
    assert all(state == "completed" and len(found) == 1 for state, found in seen), seen


def test_an_error_takes_the_end_back_and_it_is_tried_again(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    fails.append(refuse)
    run = _made(one).using(id="a").start()
    h.settle()
    info = run.info()
    assert info.state == "sleeping"
    assert info.summary.startswith("cannot end: its on_end, tests.operations.test_on_end.note, failed, trying again: ")
    assert "ValueError: not yet" in info.summary
    assert rows() == []
    h.finish(run)
    assert rows() == ["a is completed: 1"]
    assert run.info().summary == ""


def test_what_a_pass_has_recorded_with_its_end_is_kept(h: Harness) -> None:
    calls: list[int] = []

    def two(ctx: Context) -> int:
        ctx.step("one", lambda: calls.append(1))
        return ctx.random.randint(1, 10**9)

    fails.extend([refuse, refuse])
    run = _made(two).using(id="a").start()
    h.finish(run)
    assert calls == [1]
    assert len(rows()) == 1


def test_an_end_that_is_refused_for_long_is_tried_less_often(h: Harness) -> None:
    tried = []

    def never(run: RunInfo) -> None:
        tried.append(run.id)
        fails.append(never)
        raise ValueError("never")

    fails.append(never)
    run = _made(one).using(id="a").start()
    for _ in range(30):
        h.settle()
        h.advance("60 s")
    assert run.state == "sleeping"
    assert 25 < len(tried) < 60
    fails.clear()
    h.finish(run)
    assert len(rows()) == 1


def test_finish_gives_up_an_end_that_stays_refused(h: Harness) -> None:
    def never(run: RunInfo) -> None:
        fails.append(never)
        raise ValueError("never")

    fails.append(never)
    begun = h.now
    run = _made(one).using(id="a").start()
    with pytest.raises(RuntimeError, match=r'run "a" has not ended .* its on_end, tests\..*\.note, failed.* never'):
        h.finish(run)
    assert h.now - begun < timedelta(hours=1)


def test_crashes_with_the_id_that_the_function_reads(h: Harness) -> None:
    flow = _made(one).using(id="order-7")
    assert h.crash_everywhere(flow) > 0
    assert {run.id for run in ended} == {"order-7"}


def test_an_error_refuses_the_verb(h: Harness) -> None:
    run = waiting.using(id="a").start()
    h.settle()
    fails.append(refuse)
    with pytest.raises(EndRefusedError, match=r"tests\.operations\.test_on_end\.note") as caught:
        run.cancel()
    assert "not yet" not in str(caught.value)  # the project's text is in the log
    assert isinstance(caught.value.__cause__, ValueError)
    assert (run.state, rows()) == ("sleeping", [])
    run.cancel()
    assert rows() == ["a is cancelled: None"]


def test_a_request_whose_end_is_refused_stays(h: Harness) -> None:
    def asking(ctx: Context) -> None:
        ctx.step("cancelled meanwhile", lambda: get_run("a").cancel(reason="enough"))
        ctx.sleep("rest", "1 hour")

    fails.extend([refuse, refuse])  # the first try is followed at once: the run has changed since its claim
    run = _made(asking).using(id="a").start()
    h.settle()
    assert run.state == "sleeping"
    h.advance("2 s")
    h.settle()
    assert (run.state, rows()) == ("cancelled", ["a is cancelled: None"])


def test_a_deadline_whose_end_is_refused_is_not_due_for_ever(h: Harness) -> None:
    fails.append(refuse)
    run = waiting.using(id="a", deadline="1 hour").start()
    h.finish(run)
    assert run.state == "failed"
    assert len(ended) == 1


def test_a_limit_of_crashes_whose_end_is_refused_stays_reached(h: Harness) -> None:
    begun: list[int] = []

    def dying(ctx: Context) -> None:
        begun.append(1)
        raise SimulatedCrash

    fails.append(refuse)
    run = _made(dying).using(id="a").start()
    _crash_until(h, run, "sleeping")
    count = len(begun)
    h.finish(run)
    assert (run.state, len(begun)) == ("failed", count)


def test_the_end_of_a_compensation_that_is_refused(h: Harness) -> None:
    run = undoing.using(id="a").start()
    h.send(run, "go")
    fails.append(refuse)
    h.settle()
    assert run.state == "rolling_back"
    h.finish(run)
    assert rows() == ["a is failed: sold out", "given back"]


def test_a_parent_is_woken_by_the_end_that_is_not_refused(h: Harness) -> None:
    def quick(ctx: Context) -> int:
        return 7

    child = _made(quick)

    def asks(ctx: Context) -> int:
        return int(ctx.child("quick", child))

    fails.append(refuse)
    run = h.start(asks)
    h.settle()
    assert run.state == "sleeping"
    assert h.finish(run).output == 7
    assert len(rows()) == 1


# -- what it may do


def test_it_may_start_and_message_runs(h: Harness) -> None:
    def first(ctx: Context) -> str:
        return "first"

    def follow(run: RunInfo) -> None:
        waiting.using(id=f"{run.id}-next", key="k").start()
        get_run("other").send("go")

    program = workflow(name="on_end.first", on_end=follow)(first)
    other = waiting.using(id="other").start()
    program.using(id="a", key="k").start()
    h.settle()
    assert other.state == "completed"
    assert get_run("a-next").info().parent_id is None
    assert get_run("a-next").state == "sleeping"


def test_what_it_starts_is_taken_back_with_the_end(h: Harness) -> None:
    def first(ctx: Context) -> str:
        return "first"

    def follow(run: RunInfo) -> None:
        waiting.using(id=f"{run.id}-next").start()
        for each in list(fails):
            fails.remove(each)
            each(run)

    program = workflow(name="on_end.taken_back", on_end=follow)(first)
    run = program.using(id="a").start()
    fails.append(refuse)
    h.settle()
    with pytest.raises(RunNotFoundError):
        get_run("a-next").info()
    h.finish(run)
    assert get_run("a-next").state == "sleeping"


def test_its_verbs_are_those_of_code_whoever_cancels(h: Harness) -> None:
    def follow(run: RunInfo) -> None:
        waiting.using(id=f"{run.id}-next").start()

    def first(ctx: Context) -> None:
        ctx.queue.next("go")

    program = workflow(name="on_end.as_code", on_end=follow)(first)
    run = program.using(id="a").start()
    h.settle()
    with acting_as(Actor("cli", label="ops"), reason="enough"):
        run.cancel()
    assert [each.source for each in h.actions if each.run_id == "a-next"] == []
    assert [each.source for each in h.actions if each.run_id == "a"] == ["cli"]


def test_it_may_have_no_effect_outside(h: Harness, tmp_path: Any) -> None:
    def write(_run: RunInfo) -> None:
        (tmp_path / "out").write_text("x")

    def swallow(_run: RunInfo) -> None:
        with suppress(Exception):
            subprocess.run(["true"], check=True)

    for number, effect in enumerate([write, swallow]):
        run = waiting.using(id=f"a{number}").start()
        fails.append(effect)
        with pytest.raises(EndRefusedError, match="outside of the database"):
            run.cancel()
    assert rows() == []
    assert not (tmp_path / "out").exists()


def test_an_error_of_the_database_that_it_catches_is_no_end(h: Harness) -> None:
    Group.objects.create(name="taken")

    def careless(_run: RunInfo) -> None:
        with suppress(IntegrityError):
            Group.objects.create(name="taken")

    def careful(_run: RunInfo) -> None:
        with suppress(IntegrityError), transaction.atomic():
            Group.objects.create(name="taken")

    run = waiting.using(id="a").start()
    h.settle()
    fails.append(careless)
    with pytest.raises(EndRefusedError):
        run.cancel()
    assert run.state == "sleeping"
    fails.append(careful)
    run.cancel()
    assert rows() == ["a is cancelled: None", "taken"]


def test_it_has_five_seconds(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 6.0])
    run = waiting.using(id="a").start()
    with monkeypatch.context() as patched:
        patched.setattr("durable.store.ends.monotonic", lambda: next(moments, 6.0))
        with pytest.raises(EndRefusedError, match="longer than 5 seconds"):
            run.cancel()
    assert run.state == "pending"


def test_the_timeouts_are_put_back(h: Harness) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has none")
    seen: list[tuple[str, ...]] = []

    def timeouts() -> tuple[str, ...]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
            return tuple(cursor.fetchone())

    before = timeouts()
    fails.append(lambda _run: seen.append(timeouts()))
    waiting.using(id="a").start().cancel()
    assert seen == [("5s", "500ms")]
    assert timeouts() == before
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '2s'")
        fails.append(lambda _run: seen.append(timeouts()))
        waiting.using(id="b").start().cancel()
        assert seen[1] == ("2s", "500ms")
        assert timeouts()[0] == "2s"


# -- the declaration


async def _async(run: RunInfo) -> None: ...


def _takes_none() -> None: ...


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (_async, "async"),
        (_takes_none, "one argument"),
        (7, "function or its dotted path"),
        ("ended", "dotted path"),
        ("shop.orders:ended", "dotted path"),
    ],
)
def test_what_is_no_function_is_refused_where_it_is_written(given: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        workflow(name="on_end.bad", on_end=given)(lambda ctx: None)


def test_a_name_that_cannot_be_imported_leaves_a_cancel_to_a_worker(h: Harness) -> None:
    def lost(ctx: Context) -> None:
        ctx.queue.next("go")

    program = workflow(name="on_end.lost", on_end="tests.operations.nowhere.ended")(lost)
    run = program.using(id="a").start()
    h.settle()
    run.cancel(reason="enough")
    assert (run.state, run.info().summary) == ("pending", "to be cancelled by a worker: enough")
    h.settle()  # this worker does not have it either
    assert run.state == "sleeping"
    assert "cannot end" in run.info().summary
    program.on_end = CallAtEnd(note)
    h.finish(run)
    assert rows() == ["a is cancelled: None"]
    assert run.state == RunState.CANCELLED
