"""Where a `Harness` keeps its runs: in memory, where queries of durable's tables are refused, or in the database."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.core.management.color import no_style
from django.db import connection, connections, transaction
from django.db.models import Count
from django.test import Client, TestCase

from durable import Context, get_run, workflow
from durable.errors import RunNotFoundError
from durable.models import Attempt, Entry, EntryMetadata, OperatorAction, QueueMessage, Run
from durable.testing import Harness, RunsInMemoryError
from tests.support.stores import in_force

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@workflow(name="tests.harness_stores.greet")
def greet(ctx: Context, name: str) -> str:
    ctx.tag(guest=name)
    ctx.sleep("rest", 60)
    return ctx.step("greet", lambda: f"hello {name}")


def adds(ctx: Any) -> Any:
    ctx.step("add", lambda: Group.objects.create(name="added").pk and None, atomic=True)
    ctx.sleep("rest", 60)
    return ctx.step("count", Group.objects.count)


# -- in memory


@pytest.mark.parametrize(
    "query",
    [
        lambda: list(Run.objects.tagged(guest="Ada")),
        lambda: Run.objects.count(),
        lambda: Run.objects.filter(id="one").exists(),
        lambda: Run.objects.filter(id="one").first(),
        lambda: Run.objects.filter(id="one").update(queue="high"),
        lambda: Entry.objects.filter(location="rest").aggregate(Count("id")),
        lambda: list(EntryMetadata.objects.all()),
        lambda: list(Attempt.objects.values()),
        lambda: list(QueueMessage.objects.iterator()),
        lambda: list(Group.objects.filter(name__in=Run.objects.values("queue"))),
    ],
)
def test_a_query_that_cannot_see_the_runs_says_so(query: Any) -> None:
    with Harness(now=NOW) as h:
        h.start(greet.using(id="one"), "Ada")
        with pytest.raises(RunsInMemoryError, match=r'runs in memory.*Harness\(store="database"\)'):
            query()


@pytest.fixture
def one_in_the_database() -> str:
    return greet.using(id="stored").start("Ada").id


def test_of_runs_in_both_and_outside_of_the_block_those_of_the_database_are_read(
    one_in_the_database: str, django_assert_num_queries: Any
) -> None:
    assert Run.objects.get().id == one_in_the_database
    with Harness() as h:
        h.start(greet, "Bob")
    assert Run.objects.get().id == one_in_the_database
    with Harness() as h:
        h.start(greet.using(id="one"), "Ada")
        with django_assert_num_queries(1):
            assert Run.objects.get().id == one_in_the_database


def test_without_any_run_and_with_another_store_in_force_the_tables_are_read_as_ever() -> None:
    with Harness():
        assert not Run.objects.exists()
    with Harness() as h:
        h.start(greet, "Ada")
        with in_force():
            assert not Run.objects.exists()
        with Harness(store="database"):
            assert not Run.objects.exists()


def test_deletes_that_cascade_and_the_tables_around_runs_are_let_through() -> None:
    user = get_user_model().objects.create_user("staff")
    with Harness() as h:
        h.start(greet, "Ada")
        user.delete()  # looks for its rows in the audit log
        assert OperatorAction.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_tables_can_be_flushed_within_the_block() -> None:
    with Harness() as h:
        h.start(greet, "Ada")
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), [Run._meta.db_table], allow_cascade=True))


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_another_thread_opens_is_looked_at() -> None:
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(Run.objects.count())
        except RunsInMemoryError as error:
            found.append(error)
        finally:
            connections.close_all()

    with Harness() as h:
        h.start(greet, "Ada")
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert [type(each) for each in found] == [RunsInMemoryError]


def test_nothing_is_left_on_the_connection() -> None:
    before = list(connection.execute_wrappers)
    with Harness():
        assert connection.execute_wrappers != before
    assert connection.execute_wrappers == before


# -- in the database


def test_a_harness_on_the_database_keeps_its_runs_there() -> None:
    with Harness(now=NOW, store="database") as h:
        run = h.start(greet.using(id="one"), "Ada")
        assert h.run(run).wake_at == NOW + timedelta(minutes=1)
        assert [each.id for each in Run.objects.tagged(guest="Ada").open()] == ["one"]
        assert h.finish(run).output == "hello Ada"
        assert (h.now, get_run("one").output) == (NOW + timedelta(minutes=1), "hello Ada")
    assert Run.objects.completed().get().finished_at == NOW + timedelta(minutes=1)


def test_plain_functions_retries_and_messages_work_on_the_database() -> None:
    calls: list[int] = []

    def fails_once() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("503")
        return len(calls)

    def flaky(ctx: Any) -> Any:
        return ctx.step("call", fails_once)

    def waits(ctx: Any) -> Any:
        return ctx.queue.next("go", timeout="2 days").body

    with Harness(now=NOW, store="database") as h:
        assert h.finish(h.start(flaky, id="flaky")).output == 2
        assert Attempt.objects.get(run_id="flaky").error.type == "ConnectionError"
        run = h.start(waits)
        h.settle()
        assert h.peek(run).waiting_for == ["go"]
        h.send(run, "go", {"by": 7})
        assert h.finish(run).output == {"by": 7}


def test_a_caller_who_waits_for_a_result_lets_it_come() -> None:
    def at_once(ctx: Any) -> int:
        return 42

    with Harness(now=NOW, store="database") as h:
        assert h.start(at_once).result(timeout=5) == 42
        with pytest.raises(TimeoutError, match="nothing is due"):
            greet.start("Ada").result(timeout=5)


def test_the_audit_log_is_that_of_the_database() -> None:
    with Harness(now=NOW, store="database") as h:
        run = h.start(greet.using(id="one"), "Ada")
        run.cancel(reason="enough")
        assert [(each.action, each.reason) for each in h.actions] == [("cancel", "enough")]
    assert OperatorAction.objects.get().reason == "enough"


def test_children_end_with_their_parent_on_the_database() -> None:
    def parent(ctx: Any) -> Any:
        ctx.start_child("one", greet, "Ada")
        ctx.queue.next("never")

    with Harness(now=NOW, store="database") as h:
        run = h.start(parent)
        h.settle()
        run.cancel()
        h.settle()
        assert set(Run.objects.values_list("state", flat=True)) == {"cancelled"}


@pytest.mark.slow
def test_crashes_on_the_database_change_nothing() -> None:
    with Harness(now=NOW, store="database") as h:
        in_memory = Harness(now=NOW).crash_everywhere(adds)
        assert h.crash_everywhere(adds, check=Group.objects.count) == in_memory
        assert h.crash_everywhere(greet, "Ada") > 0
        assert h.assert_deterministic(greet, "Ada") > 0
    assert not Run.objects.exists()
    assert not Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_crash_everywhere_leaves_nothing_without_a_tests_transaction() -> None:
    with Harness(now=NOW, store="database") as h:
        assert h.crash_everywhere(greet, "Ada") > 0
        assert not Run.objects.exists()
        assert h.finish(h.start(greet, "Ada")).output == "hello Ada"
    assert Run.objects.get().state == "completed"


def test_what_a_rolled_back_block_started_is_gone() -> None:
    with Harness(now=NOW, store="database"):
        with transaction.atomic():
            greet.using(id="one").start("Ada")
            transaction.set_rollback(True)
        with pytest.raises(RunNotFoundError):
            get_run("one")


def test_another_store_is_refused() -> None:
    with pytest.raises(ValueError, match='"memory" or "database", not "redis"'):
        Harness(store="redis")  # type: ignore[arg-type]


class InATestCase(TestCase):
    """A view that lists runs, tested as a project would."""

    client: Client

    def setUp(self) -> None:
        self.h = self.enterContext(Harness(now=NOW, store="database"))

    def test_the_admin_lists_the_run(self) -> None:
        self.client.force_login(User.objects.create_superuser("root"))
        self.h.run(self.h.start(greet.using(id="order-7"), "Ada"))
        self.assertContains(self.client.get("/admin/durable/run/"), "order-7")


async def _one(ctx: Any) -> Any:
    return await ctx.step("one", lambda: 1)


def test_async_workflows_pass_on_the_database() -> None:
    async def crawl(ctx: Any) -> Any:
        await ctx.sleep("rest", 60)
        return await ctx.join("all", {"a": _one, "b": _one})

    with Harness(now=NOW, store="database") as h:
        assert h.finish(h.start(crawl)).output == {"a": 1, "b": 1}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("store", ["memory", "database"])
def test_a_run_that_is_cancelled_within_its_pass_ends_at_the_next_operation(store: Any) -> None:
    calls: list[str] = []

    def cancel(run_id: str) -> None:
        calls.append("cancel")
        get_run(run_id).cancel()

    async def crawl(ctx: Any) -> None:
        await ctx.step("cancel", cancel, ctx.run_id)
        await ctx.step("never", calls.append, "never")

    def plain(ctx: Any) -> None:
        ctx.step("cancel", cancel, ctx.run_id)
        ctx.step("never", calls.append, "never")

    with Harness(now=NOW, store=store) as h:
        assert [h.run(h.start(each)).state for each in (crawl, plain)] == ["cancelled", "cancelled"]
    assert calls == ["cancel", "cancel"]
