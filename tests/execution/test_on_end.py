"""`on_end` in transactions of their own, as workers call it: nothing that it does leaves a run and its rows apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from durable import Context, RunInfo, get_run, workflow
from durable.checks.code import check_ends
from durable.core import registry
from durable.core.control_flow import PassAborted
from durable.definitions import Workflow
from durable.errors import EndRefusedError, InvalidTransitionError
from durable.inspection.explanation import explain
from durable.models import Run
from durable.operations import ends
from durable.store import store_for
from tests.benchmarks.passing import claimed, one_pass
from tests.support.databases import migrated, only_with_a_server
from tests.support.worker import work_off

pytestmark = pytest.mark.django_db(transaction=True)

acts: list[Callable[[RunInfo], object]] = []  # each is done once


def note(run: RunInfo) -> None:
    Group.objects.create(name=f"{run.id} is {run.state}")
    for each in list(acts):
        acts.remove(each)
        each(run)


@workflow(name="on_end_commits.one", on_end=note)
def one(ctx: Context) -> int:
    return ctx.step("one", lambda: 1)


@workflow(name="on_end_commits.plain")
def plain(ctx: Context) -> int:
    return ctx.step("one", lambda: 1)


@workflow(name="on_end_commits.waiting", on_end=note)
def waiting(ctx: Context) -> None:
    ctx.queue.next("go")


@workflow(name="on_end_commits.parent")
def parent(ctx: Context) -> None:
    ctx.map("waits", waiting, [()] * 3)


@pytest.fixture(autouse=True)
def _nothing_to_do() -> Iterator[None]:
    acts.clear()
    yield
    acts.clear()


def rows() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def statements_of(work: Callable[[], object]) -> list[str]:
    statements: list[str] = []

    def noted(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(noted):
        work()
    return statements


def test_it_costs_one_statement_and_its_own() -> None:
    only_with_a_server()
    record = claimed(plain.start())
    without = len(statements_of(lambda: one_pass(record)))
    record = claimed(one.using(id="a").start())
    statements = statements_of(lambda: one_pass(record))
    assert len(statements) == without + 2, statements  # the limits of its time, and its row
    assert rows() == ["a is completed"]


def test_a_verb_too() -> None:
    only_with_a_server()
    run = plain.start()
    without = len(statements_of(run.cancel))
    run = one.using(id="a").start()
    statements = statements_of(run.cancel)
    assert len(statements) == without + 2, statements


def test_an_error_of_sql_that_it_catches_is_no_end() -> None:
    def careless(_run: RunInfo) -> None:
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")

    only_with_a_server()  # a statement that fails takes nothing back on SQLite
    run = one.using(id="a").start()
    acts.append(careless)
    one_pass(claimed(run))
    assert (run.state, rows()) == ("sleeping", [])
    assert "caught an error of the database" in run.info().summary
    one_pass(claimed(run))
    assert (run.state, rows()) == ("completed", ["a is completed"])


def test_it_may_not_end_its_transaction() -> None:
    def commits(_run: RunInfo) -> None:
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")

    run = one.using(id="a").start()
    acts.append(commits)
    with pytest.raises(PassAborted, match="ended the transaction"):
        one_pass(claimed(run))
    assert (run.state, rows()) == ("completed", ["a is completed"])


def test_a_statement_is_stopped_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_run: RunInfo) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    only_with_a_server()
    monkeypatch.setattr("durable.store.ends.LIMIT", 0.2)
    run = one.using(id="a").start()
    acts.append(slow)
    one_pass(claimed(run))
    assert (run.state, rows()) == ("sleeping", [])
    assert "statement timeout" in run.info().summary
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_a_row_that_another_transaction_has_locked_is_not_waited_for() -> None:
    """A view locks its row and then the run's, an end the run's and then the row: the end gives way."""
    only_with_a_server()
    group = Group.objects.create(name="order")
    run = waiting.using(id="a").start()
    one_pass(claimed(run))
    record = claimed(run)
    run.send("go")
    acts.append(lambda _run: Group.objects.filter(pk=group.pk).update(name="ended"))
    locked, is_free, errors = threading.Event(), threading.Event(), list[BaseException]()

    def view() -> None:
        try:
            with transaction.atomic():
                Group.objects.select_for_update().get(pk=group.pk)
                locked.set()
                assert is_free.wait(60)
                run.send("more")  # locks the row of the run
                Group.objects.filter(pk=group.pk).update(name="seen")
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=view)
    thread.start()
    assert locked.wait(60)
    is_free.set()
    one_pass(record)
    thread.join(60)
    assert errors == []
    if run.state != "completed":
        one_pass(claimed(run))
    assert run.state == "completed"
    assert "a is completed" in rows()


def test_a_connection_that_is_cut_within_it() -> None:
    def cut(_run: RunInfo) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    only_with_a_server()
    run = one.using(id="a").start()
    acts.append(cut)
    one_pass(claimed(run))  # as any commit that is not answered, it is made again at once
    assert (run.state, rows()) == ("completed", ["a is completed"])


def test_what_follows_its_commit_may_fail() -> None:
    def later(_run: RunInfo) -> None:
        transaction.on_commit(lambda: [][0])

    run = one.using(id="a").start()
    acts.append(later)
    one_pass(claimed(run))
    assert (run.state, rows()) == ("completed", ["a is completed"])


@pytest.fixture(scope="module")
def other_database(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    file = tmp_path_factory.mktemp("other") / "other.sqlite3"
    config = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    with django_db_blocker.unblock(), migrated("other_of_on_end", config, apps=["auth"]):
        yield "other_of_on_end"


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_another_database_is_refused(other_database: str) -> None:
    run = one.using(id="a").start()
    acts.append(lambda _run: Group.objects.using(other_database).count())
    one_pass(claimed(run))
    assert 'used the database "other_of_on_end"' in run.info().summary
    acts.append(lambda _run: Group.objects.using(other_database).create(name="apart"))
    with pytest.raises(EndRefusedError, match="other_of_on_end"):
        run.cancel()
    assert (run.state, rows()) == ("sleeping", [])


def test_a_worker_that_has_lost_the_run_calls_nothing() -> None:
    run = one.using(id="a").start()
    stale = claimed(run)
    store_for("default").release([(stale.id, stale.fence)], stale.created_at)
    one_pass(claimed(run))
    with suppress(BaseException):
        one_pass(stale)
    assert rows() == ["a is completed"]


def test_a_cancel_and_an_end_at_once() -> None:
    """Two connections: one of them ends the run, and the function is called once."""
    only_with_a_server()
    for number in range(5):
        run = waiting.using(id=f"r{number}").start()
        one_pass(claimed(run))
        barrier, outcomes = threading.Barrier(2), list[str]()

        def cancels(run: Any = run, barrier: Any = barrier, outcomes: Any = outcomes) -> None:
            barrier.wait(60)
            try:
                run.cancel()
                outcomes.append("cancelled")
            except InvalidTransitionError:
                outcomes.append("too late")
            finally:
                connections.close_all()

        thread = threading.Thread(target=cancels)
        thread.start()
        run.send("go")
        barrier.wait(60)
        work_off("default", store=store_for("default"), seconds=3600)
        thread.join(60)
        work_off("default", store=store_for("default"), seconds=3600)
        assert run.state in ("completed", "cancelled")
        assert [each for each in rows() if each.startswith(f"r{number} ")] == [f"r{number} is {run.state}"]


def test_the_children_of_a_cancelled_parent_are_ended_by_a_worker() -> None:
    ends.declare(store_for("default"))
    run = parent.using(id="a").start()
    work_off("default", store=store_for("default"), seconds=3600)
    acts.append(lambda _run: _refused())
    run.cancel()
    assert {child.state for child in run.children()} == {"pending"}
    work_off("default", store=store_for("default"), seconds=3600)
    [waits] = [child for child in run.children() if child.state == "sleeping"]
    waits.wake()
    work_off("default", store=store_for("default"), seconds=3600)
    assert rows() == sorted(f"{child.id} is cancelled" for child in run.children())


def _refused() -> None:
    raise ValueError("not yet")


def test_a_process_without_the_code_leaves_the_end_to_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ends.declare(store_for("default"))
    run = waiting.using(id="a").start()
    work_off("default", store=store_for("default"), seconds=3600)
    registry.registry.unregister(waiting)
    try:
        statements = statements_of(lambda: run.cancel(reason="enough"))
        if connection.vendor == "postgresql":
            assert any("durable_workflowend" in each for each in statements)
        assert (run.state, run.info().summary) == ("pending", "to be cancelled by a worker: enough")
        work_off("default", store=store_for("default"), seconds=3600)  # a worker that lacks it too
        assert 'a worker that knows the workflow "on_end_commits.waiting"' in run.info().summary
        assert run.state == "sleeping"
    finally:
        registry.register(waiting)
    run.wake()
    work_off("default", store=store_for("default"), seconds=3600)
    assert (run.state, rows()) == ("cancelled", ["a is cancelled"])
    assert get_run("a").info().state == "cancelled"


def test_the_table_follows_the_code() -> None:
    store = store_for("default")
    ends.declare(store)
    assert store.calls_at_end("on_end_commits.one")
    assert not store.calls_at_end("on_end_commits.plain")
    function, one.on_end = one.on_end, None
    try:
        ends.declare(store)  # a worker only adds
        assert store.calls_at_end("on_end_commits.one")
        ends.declare(store, removing=True)
        assert not store.calls_at_end("on_end_commits.one")
    finally:
        one.on_end = function


def test_why_names_the_function_and_its_error() -> None:
    run = one.using(id="a").start()
    acts.append(lambda _run: _refused())
    one_pass(claimed(run))
    explained = explain(Run.objects.get(pk="a"), timezone.now())
    assert explained.headline.startswith("It cannot end: its on_end, tests.execution.test_on_end.note, failed")
    assert "ValueError: not yet" in explained.detail


@pytest.mark.parametrize("path", ["tests.nowhere.ended", "tests.execution.test_on_end.acts"])
def test_the_check_finds_a_name_that_is_no_function(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    lost: Workflow[[], None] = Workflow(lambda ctx: None, "on_end_commits.lost", on_end=path)
    monkeypatch.setattr(registry, "all", lambda: [lost, one, plain])
    [message] = check_ends()
    assert message.id == "durable.E025"
    assert path in message.msg
