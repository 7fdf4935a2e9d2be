"""`durable.testing`: the harness that users test their workflows with."""

from __future__ import annotations

import contextvars
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from durable import Context, Handle, NotDone, aget_run, get_run, workflow
from durable.core import ids
from durable.errors import MessageTimeoutError, RunConflictError, RunNotFoundError
from durable.testing import Harness, SimulatedCrash

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@workflow(name="tests.harness.greet")
def greet(ctx: Any, name: str) -> str:
    ctx.sleep("rest", 60)
    return f"hello {name}"


def waits(ctx: Any) -> Any:
    return ctx.queue.next("wait", ["go", "stop"], timeout=3600).body


# -- passes and the clock


def test_the_code_under_test_starts_runs_as_ever() -> None:
    with Harness(now=NOW) as h:
        handle = greet.using(id="one").start("Ada")
        assert h.run("one").state == "sleeping"
        assert h.finish("one").output == "hello Ada"
        assert handle.result() == get_run("one").output == "hello Ada"


def test_a_pass_says_where_it_left_the_run() -> None:
    with Harness(now=NOW) as h:
        run = h.start(waits)
        left = h.run(run)
        assert (left.state, left.output, left.error) == ("sleeping", None, None)
        assert (left.wake_at, left.waiting_for) == (NOW + timedelta(hours=1), ["go", "stop"])
        h.send(run, "go", 5)
        left = h.run(run)
        assert (left.state, left.output, left.wake_at, left.waiting_for) == ("completed", 5, None, None)
        assert h.run(run) == h.peek(run) == left, "an ended run is left as it is"


def test_a_failing_workflow_does_not_raise() -> None:
    def fails(ctx: Any) -> None:
        raise KeyError("why")

    with Harness() as h:
        left = h.run(h.start(fails))
    assert left.state == "failed"
    assert left.error is not None
    assert (left.error.type, left.error.message) == ("KeyError", "'why'")


def test_advance_runs_nothing_and_settle_runs_all_that_is_due() -> None:
    with Harness(now=NOW) as h:
        runs = [greet.start(str(n)) for n in range(3)]
        assert h.run_due() == 3
        assert h.run_due() == 0
        h.advance("1 minute")
        assert h.now == NOW + timedelta(minutes=1)
        assert {run.state for run in runs} == {"sleeping"}
        h.settle()
        assert {run.state for run in runs} == {"completed"}


def test_finish_says_what_a_run_waits_for_that_no_deadline_brings() -> None:
    def forever(ctx: Any) -> None:
        ctx.queue.next("wait", ["go"])

    with Harness() as h:
        run = h.start(forever)
        with pytest.raises(
            RuntimeError, match="is sleeping and does not end by itself: waiting for a message in go; send"
        ):
            h.finish(run)
        run.pause()
        with pytest.raises(RuntimeError, match="is paused and does not end by itself"):
            h.finish(run)
        with pytest.raises(RunNotFoundError):
            h.finish("nobody")


def test_finish_advances_through_other_runs_deadlines() -> None:
    def asks(ctx: Any) -> None:
        ctx.sleep("rest", 30)
        ctx.queue.send("go", 7, to="waiting")

    with Harness(now=NOW) as h:
        h.start(waits, id="waiting")
        h.start(asks)
        assert h.finish("waiting").output == 7
        assert h.now == NOW + timedelta(seconds=30)


def test_due_runs_of_several_queues_are_passed_in_the_order_in_which_they_became_due() -> None:
    passed: list[str] = []

    @workflow(name="tests.harness.notes")
    def notes(ctx: Any) -> None:
        ctx.step("note", passed.append, ctx.run_id)

    with Harness(now=NOW) as h:
        for seconds, queue in enumerate(["default", "high", "default", "high"]):
            notes.using(id=f"{queue}-{seconds}", queue=queue, delay=seconds).start()
        h.advance(10)
        assert h.run_due() == 4
    assert passed == ["default-0", "high-1", "default-2", "high-3"]


@pytest.mark.django_db
@pytest.mark.parametrize("store", ["memory", "database"])
def test_runs_without_an_id_that_were_started_at_one_moment_begin_in_the_order_of_their_starts(
    store: Literal["memory", "database"],
) -> None:
    begun: list[int] = []

    def note(ctx: Any, number: int) -> None:
        begun.append(number)

    with Harness(now=NOW, store=store) as h:
        for number in range(100):
            h.start(note, number)
        h.settle()
    assert begun == list(range(100))


def test_ids_are_made_in_order_and_not_ahead_of_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_newest", 0)
    clock = [1_800_000_000_000_000_000]
    monkeypatch.setattr("durable.core.ids.time.time_ns", lambda: clock[0])
    made = [ids.new_id() for _ in range(10_000)]  # all at one moment
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {uuid.UUID(each).version for each in made} == {7}
    assert uuid.UUID(made[0]).int >> 80 == clock[0] // 1_000_000

    clock[0] -= 60_000_000_000
    assert uuid.UUID(ids.new_id()).int >> 80 == clock[0] // 1_000_000


def test_runs_that_are_due_for_ever_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable.testing._MAX_PASSES", 50)

    def fail() -> None:
        raise ValueError

    with Harness() as h:
        h.start(lambda ctx: ctx.step("a", fail, retry_backoff_base=0, max_retries=1000))
        with pytest.raises(RuntimeError, match="after 51 passes runs are still due"):
            h.settle()


def test_the_clock_is_aware() -> None:
    with pytest.raises(ValueError, match="must be an aware datetime"):
        Harness(now=datetime(2026, 1, 1))  # noqa: DTZ001


def test_outside_the_block_nothing_is_left_of_it() -> None:
    with Harness() as outer:
        outer_run = outer.start(greet, "Ada", id="same")
        with Harness() as inner:
            inner.start(greet, "Bob", id="same")
            assert inner.finish("same").output == "hello Bob"
        assert outer.finish(outer_run).output == "hello Ada"


WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


def remembers(ctx: Any) -> str:
    found = WORD.get()
    WORD.set("said")
    return found


async def remembers_too(ctx: Any) -> str:
    found = WORD.get()
    WORD.set("said")
    await ctx.step("one", str)
    return found


@pytest.mark.parametrize("body", [remembers, remembers_too])
def test_a_pass_leaves_nothing_in_the_context_of_its_caller(body: Any) -> None:
    with Harness(now=NOW) as h:
        h.run(h.start(body))
        before = len(contextvars.copy_context())
        for _ in range(3):
            assert h.run(h.start(body)).output == ""
        assert len(contextvars.copy_context()) == before


def test_a_result_that_is_waited_for_makes_what_is_due_happen() -> None:
    def quick(ctx: Any) -> Any:
        return ctx.step("a", lambda: 3)

    with Harness() as h:
        assert h.start(quick).result() == 3
        with pytest.raises(TimeoutError, match="nothing is due"):
            h.start(waits).result()


def test_branches_run_in_turn() -> None:
    order: list[str] = []

    def branch(name: str) -> Any:
        return lambda ctx: [ctx.step(f"{n}", lambda: order.append(name)) for n in range(2)]

    with Harness() as h:
        h.run(h.start(lambda ctx: ctx.join("join", {name: branch(name) for name in "abc"})))
    assert order == list("aabbcc")


def test_the_fixture_is_a_harness_in_force(durable_harness: Harness) -> None:
    assert durable_harness.finish(greet.start("Ada")).output == "hello Ada"


async def test_verbs_have_twins_for_async_tests(durable_harness: Harness) -> None:
    handle = await greet.using(id="a").astart("Ada")
    assert (await aget_run("a")).id == handle.id
    await handle.asend("go", 1)
    await handle.apause()
    await handle.aresume()
    assert await handle.ahistory() == []
    await handle.acancel("enough")


# -- crashes


def test_a_crash_comes_where_it_was_asked_for() -> None:
    calls: list[str] = []

    def two(ctx: Any) -> str:
        ctx.step("a", lambda: calls.append("a"))
        ctx.step("b", lambda: calls.append("b"))
        return "done"

    with Harness() as h:
        run = h.start(two)
        with h.crash_at(2), pytest.raises(SimulatedCrash):
            h.run(run)
        assert calls == ["a", "b"]
        assert h.commits == 1
        assert h.finish(run).output == "done"
        assert calls == ["a", "b", "b"]


def test_crash_everywhere_accepts_a_workflow_that_stands_it() -> None:
    def steady(ctx: Any, given: int) -> Any:
        first = ctx.step("a", lambda: given)
        ctx.sleep("rest", 60)
        return first + ctx.step("b", lambda: 1)

    with Harness() as h:
        assert h.crash_everywhere(steady, 4) == 2 * 4


def until_noon(ctx: Context) -> str:
    ctx.sleep("rest", "1 hour")
    ctx.step("ask", str)
    try:
        ctx.queue.next("answer", until=NOW + timedelta(hours=3))
    except MessageTimeoutError:
        return "late"
    return "answered"


def test_crash_everywhere_names_a_drive_that_moves_the_clock_twice() -> None:
    def drive(h: Harness, handle: Handle) -> None:
        h.advance("2 hours")
        h.settle()
        h.send(handle, "answer", id="one")
        h.finish(handle)

    with Harness(NOW) as h, pytest.raises(AssertionError, match=r"^`drive` moved the clock with advance") as caught:
        h.crash_everywhere(until_noon, drive=drive)
    assert "Write advance_to(moment)" in str(caught.value)


def test_advance_to_comes_to_the_same_moment_however_often_it_is_called() -> None:
    def drive(h: Harness, handle: Handle) -> None:
        h.advance_to(NOW + timedelta(hours=2))
        h.settle()
        h.send(handle, "answer", id="one")
        h.finish(handle)

    with Harness(NOW) as h:
        assert h.crash_everywhere(until_noon, drive=drive) > 0
        h.advance_to(NOW + timedelta(hours=2))
        h.advance_to(NOW + timedelta(hours=1))
        assert h.now == NOW + timedelta(hours=2)
        with pytest.raises(ValueError, match="has no time zone"):
            h.advance_to(datetime(2026, 1, 1))  # noqa: DTZ001


def test_crash_everywhere_finds_code_that_is_not_deterministic() -> None:
    draws = iter(range(1000))

    def drawing(ctx: Any) -> int:
        drawn = next(draws)
        ctx.step("a", int)
        return drawn

    with Harness(strict=False) as h, pytest.raises(AssertionError, match="changed the outcome"):
        h.crash_everywhere(drawing)


def test_crash_everywhere_says_that_a_moment_differs_after_a_death() -> None:
    def stamped(ctx: Context) -> datetime:
        ctx.step("charge", lambda: None, once=True, verify=lambda: NotDone())
        ctx.sleep("a while", "1 hour")
        return ctx.now()

    with Harness() as h, pytest.raises(AssertionError, match=r"a moment in it, such as ctx\.now\(\)"):
        h.crash_everywhere(stamped)


def test_crash_everywhere_finds_state_outside_of_steps() -> None:
    seen: list[int] = []

    def remembering(ctx: Any) -> int:
        seen.append(ctx.step("a", int))
        ctx.step("b", int)
        return len(seen)

    with Harness(strict=False) as h, pytest.raises(AssertionError, match="changed the outcome"):
        h.crash_everywhere(remembering)


def test_crash_everywhere_finds_code_that_takes_another_way() -> None:
    calls: list[int] = []

    def wandering(ctx: Any) -> None:
        calls.append(1)
        ctx.step("even" if len(calls) % 2 else "odd", int)
        ctx.step("last", int)

    with Harness() as h, pytest.raises(AssertionError, match="HistoryDivergedError"):
        h.crash_everywhere(wandering)


@pytest.mark.django_db
def test_crash_everywhere_compares_the_applications_rows() -> None:
    def careless(ctx: Any) -> None:
        ctx.step("a", lambda: Group.objects.create(name=f"group {Group.objects.count()}").name)

    def careful(ctx: Any) -> None:
        ctx.step("a", lambda: Group.objects.create(name=f"group {Group.objects.count()}").name, atomic=True)

    with Harness() as h:
        with pytest.raises(
            AssertionError,
            match=r"before commit 1 of 2 changed .*check\(\) returned is 2 instead of 1\. .*not idempotent",
        ):
            h.crash_everywhere(careless, check=Group.objects.count)
        assert h.crash_everywhere(careful, check=Group.objects.count) == 4
    assert Group.objects.count() == 0, "each run's rows are rolled back"


def test_crash_everywhere_lets_a_check_assert() -> None:
    sent: list[int] = []

    def mailing(ctx: Any) -> None:
        sent.clear()
        ctx.step("a", lambda: sent.append(1))
        ctx.step("b", lambda: sent.append(2))

    def check() -> None:
        assert sent == [1, 2]

    with Harness() as h, pytest.raises(AssertionError):
        h.crash_everywhere(mailing, check=check)


def test_crash_everywhere_plays_the_world_outside() -> None:
    def drive(h: Harness, handle: Any) -> None:
        h.send(handle, "go", "now", id="once")
        h.finish(handle)

    with Harness() as h:
        assert h.crash_everywhere(waits, drive=drive) > 0


# -- transactions of the application's


class Refused(Exception):
    pass


class TransactionTests(TestCase):
    """Promise 4, within the transaction that a test case holds open."""

    def setUp(self) -> None:
        self.h = self.enterContext(Harness(now=NOW))

    def refused(self) -> Any:
        return pytest.raises(Refused)

    def test_a_start_that_is_rolled_back_did_not_happen(self) -> None:
        with self.refused(), transaction.atomic():
            Group.objects.create(name="one")
            greet.using(id="gone").start("Ada")
            assert get_run("gone").state == "pending", "one sees one's own"
            raise Refused
        with pytest.raises(RunNotFoundError):
            get_run("gone")
        assert self.h.run_due() == 0
        greet.using(id="gone").start("another")

    def test_a_start_that_is_committed_did(self) -> None:
        with transaction.atomic():
            greet.using(id="here").start("Ada")
        assert self.h.finish("here").output == "hello Ada"

    def test_only_what_was_inside_is_undone(self) -> None:
        greet.using(id="before").start("Ada")
        with transaction.atomic():
            greet.using(id="around").start("Ada")
            with self.refused(), transaction.atomic():
                greet.using(id="inside").start("Ada")
                raise Refused
            greet.using(id="after").start("Ada")
        for run_id in ("before", "around", "after"):
            get_run(run_id)
        with pytest.raises(RunNotFoundError):
            get_run("inside")

    def test_a_released_savepoint_goes_with_the_one_around_it(self) -> None:
        with self.refused(), transaction.atomic():
            with transaction.atomic():
                greet.using(id="inner").start("Ada")
            with transaction.atomic():
                greet.using(id="second").start("Ada")
            greet.using(id="outer").start("Ada")
            raise Refused
        for run_id in ("inner", "second", "outer"):
            with pytest.raises(RunNotFoundError):
                get_run(run_id)

    def test_other_ways_to_roll_back(self) -> None:
        with self.refused(), transaction.atomic(), transaction.atomic(savepoint=False):
            greet.using(id="gone").start("Ada")
            raise Refused
        with pytest.raises(RunNotFoundError):
            get_run("gone")
        with transaction.atomic():
            greet.using(id="gone").start("Ada")
            transaction.set_rollback(True)
        with pytest.raises(RunNotFoundError):
            get_run("gone")

    def test_a_savepoint_by_hand(self) -> None:
        savepoint = connection.savepoint()
        assert savepoint is not None
        with transaction.atomic():
            greet.using(id="here").start("Ada")
        connection.savepoint_commit(savepoint)
        get_run("here")

    def test_messages_and_verbs(self) -> None:
        run = self.h.start(waits, id="run")
        self.h.run(run)
        with self.refused(), transaction.atomic():
            run.send("go", 1)
            raise Refused
        assert self.h.run_due() == 0
        with self.refused(), transaction.atomic():
            run.cancel()
            assert run.state == "cancelled"
            raise Refused
        assert run.state == "sleeping"
        with transaction.atomic():
            run.send("go", 2)
        self.h.settle()
        assert run.output == 2

    def test_passes_inside_go_with_the_rows_that_they_wrote(self) -> None:
        def writes(ctx: Any) -> None:
            ctx.step("a", lambda: Group.objects.create(name="one").name, atomic=True)

        run = self.h.start(writes, id="run")
        with self.refused(), transaction.atomic():
            assert self.h.run(run).state == "completed"
            raise Refused
        assert Group.objects.count() == 0
        assert run.state == "pending"
        assert self.h.run(run).state == "completed"
        assert Group.objects.get().name == "one"

    def test_what_a_step_starts_inside_a_block_that_it_rolls_back(self) -> None:
        def starts(ctx: Any) -> None:
            def step() -> None:
                try:
                    with transaction.atomic():
                        greet.using(id="gone").start("Ada")
                        raise Refused
                except Refused:
                    greet.using(id="here").start("Ada")

            ctx.step("a", step, atomic=True)
            ctx.step("b", lambda: greet.using(id="after").start("Ada").id)

        assert self.h.run(self.h.start(starts)).state == "completed"
        get_run("here")
        get_run("after")
        with pytest.raises(RunNotFoundError):
            get_run("gone")

    def test_an_atomic_step_that_fails_started_nothing(self) -> None:
        def starts(ctx: Any) -> None:
            def step() -> None:
                greet.using(id="gone").start("Ada")
                raise Refused

            ctx.step("a", step, atomic=True, max_retries=0)

        assert self.h.run(self.h.start(starts)).state == "failed"
        with pytest.raises(RunNotFoundError):
            get_run("gone")

    def test_captured_callbacks_count_as_a_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            greet.using(id="here").start("Ada")
        assert self.h.finish("here").output == "hello Ada"

    def test_a_conflict_is_not_remembered(self) -> None:
        with self.refused(), transaction.atomic():
            greet.using(id="one").start("Ada")
            raise Refused
        greet.using(id="one").start("Bob")
        with pytest.raises(RunConflictError):
            greet.using(id="one").start("Ada")

    def test_many_savepoints_leave_few_notes(self) -> None:
        for number in range(100):
            with transaction.atomic():
                greet.using(id=f"run {number}").start("Ada")
        store: Any = self.h._store
        assert len(store._notes) <= 2


class CommittingTests(TransactionTestCase):
    """The same where transactions commit for good."""

    def test_commit_and_rollback(self) -> None:
        seen: list[str] = []
        with Harness(now=NOW):
            with transaction.atomic():
                transaction.on_commit(lambda: seen.append(get_run("here").state))
                greet.using(id="here").start("Ada")
                transaction.on_commit(lambda: seen.append(get_run("here").state))
            get_run("here")
            with pytest.raises(Refused):
                self.start_and_refuse()
            with pytest.raises(RunNotFoundError):
                get_run("gone")
        assert seen == ["pending", "pending"]
        assert not connection.in_atomic_block

    @transaction.atomic
    def start_and_refuse(self) -> None:
        greet.using(id="gone").start("Ada")
        raise Refused
