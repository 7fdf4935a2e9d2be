"""The status of a run: what is written when, what a replay does, and how long it stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from durable import Context, Handle, current_step, workflow
from durable.core.records import Status
from durable.models import Run, RunStatus
from durable.store.postgres import PostgresStore
from durable.testing import Harness
from durable.worker import leases
from tests.core.flavours import Flavour
from tests.faults.passing import pass_once
from tests.support.waiting import eventually
from tests.support.worker import working_threads

BOTH = pytest.mark.parametrize("flavour", [Flavour("sync"), Flavour("async")], ids=repr)
LIMIT = 120.0  # seconds
STEPS = 100
go_on = threading.Event()


def text_of(handle: Handle[Any]) -> str | None:
    return None if handle.status is None else handle.status.text


@BOTH
class TestInTheHarness:
    def test_the_newest_status_wins_and_is_no_entry(self, flavour: Flavour) -> None:
        eta = datetime(2030, 1, 2, 3, tzinfo=UTC)

        @flavour
        async def run(ctx: Any) -> str:
            ctx.status("first")
            ctx.status("waiting for the courier", done=3, of=7, eta=eta)
            await ctx.sleep("wait", 60)
            await ctx.status("done")  # async code may await it
            return "end"

        with Harness() as h:
            handle = h.start(run)
            assert handle.status is None
            began = h.now
            h.settle()
            said = Status(text="waiting for the courier", done=3, of=7, eta=eta, at=began)
            assert handle.status == said == handle.info().status
            assert [each.kind for each in handle.history()] == ["sleep"]
            assert h.finish(handle).output == "end"
            assert handle.status == Status(text="done", at=h.now)  # a run that has ended keeps its last

    def test_a_replay_sets_no_old_status_again(self, flavour: Flavour) -> None:
        @flavour
        async def run(ctx: Any) -> None:
            ctx.status("before the step")
            await ctx.step("pages", flavour.function(pages))
            await ctx.sleep("wait", 60)
            await ctx.sleep("wait longer", 60)

        with Harness() as h:
            handle = h.start(run)
            h.settle()
            assert text_of(handle) == "page 3"
            first = handle.status
            h.advance(61)
            h.settle()  # a pass that replays the step, and sets nothing
            assert handle.status == first

    def test_a_step_shows_how_far_it_is_and_keeps_the_text(self, flavour: Flavour) -> None:
        seen: list[Status | None] = []

        def work() -> None:
            step = current_step()
            for done in (0, 500):
                step.progress(done=done, of=1000)
                seen.append(handle.status)
            step.progress(text="almost there")
            seen.append(handle.status)

        @flavour
        async def run(ctx: Any) -> None:
            ctx.status("importing")
            await ctx.step("import", flavour.function(work))

        with Harness() as h:
            handle = h.start(run)
            h.settle()
            assert [(each.text, each.done, each.of, each.part) for each in seen if each] == [
                ("importing", 0, 1000, 0.0),
                ("importing", 500, 1000, 0.5),
                ("almost there", None, None, None),
            ]

    def test_a_retry_keeps_the_text_of_the_pass_before(self, flavour: Flavour) -> None:
        attempts: list[int] = []

        def work() -> None:
            attempts.append(1)
            current_step().progress(done=len(attempts), of=2)
            if len(attempts) == 1:
                raise ValueError("again")

        @flavour
        async def run(ctx: Any) -> None:
            ctx.status("importing")
            await ctx.step("import", flavour.function(work), retry_backoff_base=60)

        with Harness() as h:
            handle = h.start(run)
            h.finish(handle)
            assert handle.status is not None
            assert (handle.status.text, handle.status.done) == ("importing", 2)

    def test_a_branch_that_goes_on_sets_it_while_another_is_replayed(self, flavour: Flavour) -> None:
        async def waiting(ctx: Any) -> None:
            ctx.status("left waits")
            await ctx.queue.next("go")

        async def later(ctx: Any) -> None:
            ctx.status("right sleeps")
            await ctx.sleep("wait", 60)
            ctx.status("right is done")

        @flavour
        async def run(ctx: Any) -> None:
            await ctx.join("both", {"left": flavour(waiting), "right": flavour(later)})

        with Harness() as h:
            handle = h.start(run)
            h.settle()
            assert text_of(handle) == "right sleeps"
            h.advance(61)
            h.settle()
            assert text_of(handle) == "right is done"

    def test_it_survives_a_crash_at_each_commit(self, flavour: Flavour) -> None:
        @flavour
        async def run(ctx: Any) -> str:
            ctx.status("first", done=1, of=3)
            await ctx.step("one", flavour.function(pages))
            ctx.status("second", done=2, of=3)
            await ctx.sleep("wait", 60)
            ctx.status("third", done=3, of=3)
            return "end"

        def drive(h: Harness, handle: Handle[Any]) -> None:
            h.finish(handle)
            assert handle.status is not None
            assert (handle.status.text, handle.status.done, handle.status.of) == ("third", 3, 3)

        with Harness() as h:
            h.crash_everywhere(run, drive=drive)


class TestValues:
    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({"text": "x" * 501}, "501 characters, and 500 are allowed"),
            ({"text": 7}, "a status is text, not 7"),
            ({"text": None}, "a status is text, not None"),
            ({"text": "a", "done": -1}, r"done is a number from 0 to 2\*\*53, not -1"),
            ({"text": "a", "done": float("nan")}, "done is a number from 0"),
            ({"text": "a", "done": float("inf")}, "done is a number from 0"),
            ({"text": "a", "done": "3"}, "done is a number, not '3'"),
            ({"text": "a", "done": True}, "done is a number, not True"),
            ({"text": "a", "done": 1, "of": -7}, "of is a number from 0"),
            ({"text": "a", "of": 7}, "of= is of done="),
            ({"text": "a", "eta": "soon"}, "eta is an aware datetime"),
            ({"text": "a", "eta": datetime.fromisoformat("2030-01-01")}, "eta must be an aware datetime"),
        ],
    )
    def test_what_is_no_status_is_refused(self, given: dict[str, Any], error: str) -> None:
        def run(ctx: Context) -> None:
            text = given.pop("text")
            with pytest.raises((TypeError, ValueError), match=error):
                ctx.status(text, **given)

        with Harness(strict=False) as h:
            handle = h.start(run)
            assert h.finish(handle).state == "completed"
            assert handle.status is None

    @pytest.mark.parametrize(("done", "of", "part"), [(3, 6, 0.5), (9, 6, 1.0), (0, 0, 1.0), (2.5, 10, 0.25)])
    def test_the_part_that_is_done_is_between_0_and_1(self, done: float, of: float, part: float) -> None:
        assert Status(text="", done=done, of=of, at=datetime.now(UTC)).part == part


def pages() -> None:
    for number in range(1, 4):
        current_step().progress(done=number, of=3, text=f"page {number}")


# -- with workers


@workflow(name="tests.status.plain")
def plain(ctx: Context) -> list[None]:
    return [ctx.step(f"step {number}", lambda: None) for number in range(5)]


@workflow(name="tests.status.talking")
def talking(ctx: Context) -> None:
    for number in range(5):
        ctx.status(f"step {number}", done=number, of=5)
        ctx.step(f"step {number}", lambda: None)


def hold(pause: float = 0.02) -> None:
    step = current_step()
    number = 0
    while not go_on.wait(pause):
        number += 1
        step.progress(done=number, text="held")


@workflow(name="tests.status.holding")
def holding(ctx: Context, atomic: bool = False) -> None:
    ctx.status("before")
    ctx.step("hold", hold, atomic=atomic)


@workflow(name="tests.status.silent")
def silent(ctx: Context) -> None:
    ctx.status("nothing to commit")
    go_on.wait(LIMIT)
    ctx.step("end", lambda: None)


@workflow(name="tests.status.hundred")
def hundred(ctx: Context, talks: bool) -> None:
    ctx.step("hold", partial(hold, 0.2) if talks else lambda: go_on.wait(LIMIT))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    go_on.clear()
    monkeypatch.setattr(leases, "LONG", 0.2)
    monkeypatch.setattr(leases, "TICK", 0.05)
    yield
    go_on.set()


@pytest.fixture
def working() -> Iterator[Callable[..., threading.Thread]]:
    with working_threads(go_on.set, LIMIT) as start:
        yield start


pytest_workers = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


class TestWorkers:
    pytestmark = pytest_workers

    @pytest.mark.parametrize("atomic", [False, True])
    def test_the_status_of_a_running_step_is_written_while_it_runs(
        self, fast: None, working: Callable[[], threading.Thread], atomic: bool
    ) -> None:
        handle = holding.start(atomic)
        working()
        eventually(lambda: RunStatus.objects.filter(text="held").exists())
        first = RunStatus.objects.get()
        eventually(lambda: RunStatus.objects.get().number > first.number + 3)
        assert Run.objects.get(pk=handle.id).state == "running"
        go_on.set()
        eventually(lambda: handle.state == "completed")
        assert text_of(handle) == "held"

    def test_a_status_without_a_commit_is_written_by_the_worker(
        self, fast: None, working: Callable[[], threading.Thread]
    ) -> None:
        handle = silent.start()
        working()
        eventually(lambda: text_of(handle) == "nothing to commit")
        assert not handle.history()

    def test_a_worker_that_has_lost_the_run_writes_none(
        self, fast: None, working: Callable[[], threading.Thread]
    ) -> None:
        handle = holding.start()
        working()
        eventually(lambda: RunStatus.objects.filter(text="held").exists())
        fence = Run.objects.get(pk=handle.id).fence
        Run.objects.filter(pk=handle.id).update(fence=fence + 1)  # as another worker does
        RunStatus.objects.update(fence=fence + 1, number=1, text="the next worker's")
        go_on.set()
        eventually(lambda: not [each for each in threading.enumerate() if each.name == "durable-leases"])
        assert text_of(handle) == "the next worker's"

    def test_a_replay_in_place_takes_it_away(self) -> None:
        handle = talking.start()
        pass_once(handle)
        assert text_of(handle) == "step 4"
        handle.replay("step 2", in_place=True)
        assert handle.status is None
        pass_once(handle)
        assert text_of(handle) == "step 4"
        assert handle.restart().status is None

    def test_a_deleted_run_leaves_none(self) -> None:
        handle = talking.start()
        pass_once(handle)
        Run.objects.filter(pk=handle.id).delete()
        assert not RunStatus.objects.exists()


class TestCost:
    """Counted in rows and transactions of PostgreSQL."""

    pytestmark = [*pytest_workers, pytest.mark.postgres]

    def test_a_run_without_a_status_makes_the_statements_of_before(self) -> None:
        with connection.execute_wrapper(recording := Recording()):
            pass_once(plain.start())
        assert not [each for each in recording.statements if "runstatus" in each]
        assert not RunStatus.objects.exists()

    def test_a_status_with_each_step_costs_no_commit_more(self) -> None:
        commits = {}
        for each in (plain, talking):
            handle = each.start()
            before = committed()
            pass_once(handle)
            commits[each] = committed() - before
        assert commits[talking] == commits[plain]

    @pytest.mark.slow
    def test_the_statuses_of_a_hundred_steps_are_one_commit(
        self, fast: None, working: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        """In one worker process. Whatever else writes meanwhile are the calls that it makes for silent steps too."""
        settings.DURABLE = {**settings.DURABLE, "CLAIM_BATCH": STEPS}  # no notification brings the job back
        shown: list[int] = []
        calls: list[str] = []
        for name in ("show", "renew", "report"):
            monkeypatch.setattr(PostgresStore, name, counted(getattr(PostgresStore, name), calls, shown))
        for _ in range(STEPS):
            hundred.start(True)
        working(STEPS)
        eventually(lambda: Run.objects.filter(state="running").exists())
        if Run.objects.filter(state="pending").exists():  # the claim found fewer; nobody here notifies of the others
            working(STEPS)
        eventually(lambda: RunStatus.objects.filter(text="held").count() == STEPS)
        begun, before, first = len(calls), committed(), len(shown)
        eventually(lambda: len(shown) >= first + 5)
        written = committed() - before
        assert written <= len(calls) - begun
        assert calls[begun:].count("show") < sum(shown[first:]) / 20, "each writes the statuses of many steps"

    def test_the_pages_of_the_table_keep_room_for_updates(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'durable_runstatus'")
            assert cursor.fetchone() == (["fillfactor=70"],)


def counted(call: Callable[..., Any], calls: list[str], shown: list[int]) -> Callable[..., Any]:
    """Note each call of a method of a store, and of how many runs `show` writes the statuses."""

    def counting(store: Any, given: Any, *args: Any, **options: Any) -> Any:
        calls.append(call.__name__)
        if call.__name__ == "show":
            shown.append(len(given))
        return call(store, given, *args, **options)

    return counting


class Recording:
    """Records the statements of a connection."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements.append(sql)
        return execute(sql, params, many, context)


def committed() -> int:
    """The number of the newest transaction that has written: each one takes the next."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        [(number,)] = cursor.fetchall()
    return int(number)


def test_a_moment_in_another_zone_is_kept_in_utc() -> None:
    def run(ctx: Context) -> None:
        ctx.status("a", eta=datetime.fromisoformat("2030-01-01T12:00:00+02:00"))

    with Harness() as h:
        handle = h.start(run)
        h.finish(handle)
        assert handle.status is not None
        assert handle.status.eta == datetime(2030, 1, 1, 10, tzinfo=UTC)
        assert handle.status.eta.utcoffset() == timedelta()
