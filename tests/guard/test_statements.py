"""Statements of the database between two operations of a workflow, beside packages that trace too."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import override_settings

from durable import AsyncContext, Context, RollbackContext
from durable.checks.configuration import check_settings
from durable.guard import install, is_guards, observes
from durable.testing import Harness
from tests.guard.passing import passed, refused

pytestmark = pytest.mark.django_db


def number_of_groups() -> int:
    return Group.objects.count()


def create_group(name: str) -> int:
    return Group.objects.create(name=name).pk


class TestWhatIsRefused:
    def test_a_query_names_its_line_and_the_step_to_write(self, h: Harness) -> None:
        def counts(ctx: Context) -> int:
            return number_of_groups()

        told = refused(passed(h, counts))
        assert 'the statement SELECT of auth_group on the database "default"' in told
        line = number_of_groups.__code__.co_firstlineno + 1
        assert f"(tests/guard/test_statements.py, line {line}, in number_of_groups)" in told
        assert 'ctx.step("read auth_group", function)' in told
        assert "atomic" not in told

    def test_a_write_is_not_made(self, h: Harness) -> None:
        def writes(ctx: Context) -> None:
            ctx.step("first", len, "abc")
            create_group("between")

        told = refused(passed(h, writes))
        assert "the statement INSERT of auth_group" in told
        assert 'ctx.step("write auth_group", function, atomic=True)' in told
        assert not Group.objects.exists()

    def test_the_workflow_cannot_swallow_it(self, h: Harness) -> None:
        def swallows(ctx: Context) -> str:
            try:
                create_group("swallowed")
            except Exception:
                ctx.step("after", len, "abc")
            return "done"

        refused(passed(h, swallows))

    def test_the_code_of_a_body_counts(self, h: Harness) -> None:
        def blocks(ctx: Context) -> None:
            ctx.try_block("try", lambda c: number_of_groups())

        refused(passed(h, blocks))

    def test_a_transaction_ends_as_it_should(self, h: Harness) -> None:
        def transacts(ctx: Context) -> None:
            with transaction.atomic():
                create_group("in a transaction")

        refused(passed(h, transacts))
        assert not connection.needs_rollback
        assert not Group.objects.exists()

    def test_a_query_while_the_run_parks(self, h: Harness) -> None:
        def cleans_up(ctx: Context) -> None:
            try:
                ctx.sleep("a nap", 60)
            finally:
                create_group("whenever it parks")

        refused(passed(h, cleans_up))
        assert not Group.objects.exists()

    def test_a_query_of_async_code_names_the_line_that_awaits_it(self, h: Harness) -> None:
        async def counts(ctx: AsyncContext) -> int:
            await ctx.step("first", len, "abc")
            return await Group.objects.acount()

        told = refused(passed(h, counts))
        line = counts.__code__.co_firstlineno + 2
        assert f"test_statements.py, line {line}, in " in told
        assert 'await ctx.step("read auth_group", function)' in told

    def test_a_query_of_a_thread_with_the_workflows_context(self, h: Harness) -> None:
        async def counts(ctx: AsyncContext) -> int:
            return await sync_to_async(number_of_groups)()

        refused(passed(h, counts))

    def test_a_query_of_a_task(self, h: Harness) -> None:
        async def counts(ctx: AsyncContext) -> list[int]:
            return list(await asyncio.gather(Group.objects.acount(), Group.objects.acount()))

        refused(passed(h, counts))


class TestWhatIsLetThrough:
    def test_the_code_of_steps(self, h: Harness) -> None:
        def steps(ctx: Context) -> int:
            ctx.step("create", create_group, "a")
            ctx.step("create too", create_group, "b", atomic=True)
            ctx.join("both", {"c": lambda c: c.step("create", create_group, "c")})
            return ctx.step("count", number_of_groups)

        assert passed(h, steps).output == 3

    def test_the_code_of_async_steps(self, h: Harness) -> None:
        async def acreate(name: str) -> int:
            return (await Group.objects.acreate(name=name)).pk

        async def steps(ctx: AsyncContext) -> int:
            await ctx.step("create", acreate, "a")
            await ctx.step("create too", create_group, "b", atomic=True)
            await ctx.step("and", lambda: acreate("c"))
            return await ctx.step("count", number_of_groups)

        assert passed(h, steps).output == 3

    def test_a_rollback_handler(self, h: Harness) -> None:
        def fails(ctx: Context) -> None:
            ctx.rollback_checkpoint("begin")
            ctx.step("create", create_group, "a", rollback=delete_groups)
            raise ValueError("no more")

        assert passed(h, fails).state == "failed"
        assert not Group.objects.exists()

    def test_code_of_no_workflow(self) -> None:
        create_group("outside")
        assert number_of_groups() == 1

    def test_a_thread_without_the_workflows_context(self, h: Harness) -> None:
        # a thread of its own is not the workflow's code: an exporter of traces, for example
        found: list[Any] = []

        def exports() -> None:
            from durable.guard.events import scope_between_operations

            found.append(scope_between_operations())

        def starts_a_thread(ctx: Context) -> None:
            thread = threading.Thread(target=exports)
            thread.start()
            thread.join()

        assert passed(h, starts_a_thread).state == "completed"
        assert found == [None]

    def test_a_line_that_says_why(self, h: Harness) -> None:
        def says_why(ctx: Context) -> int:
            return number_of_groups()  # durable: allow[W109] the number is shown, and decides nothing

        assert passed(h, says_why).output == 0

    def test_a_comment_about_another_rule_does_not_count(self, h: Harness) -> None:
        def says_something(ctx: Context) -> int:
            return number_of_groups()  # durable: allow[W101] this is not about clocks

        refused(passed(h, says_something))


def delete_groups(_context: RollbackContext, _output: int) -> None:
    Group.objects.all().delete()


class TestModes:
    @pytest.fixture
    def counting(self) -> Callable[[Context], int]:
        def counts(ctx: Context) -> int:
            for _ in range(3):
                number_of_groups()
            return number_of_groups()

        return counts

    def test_off(self, h: Harness, counting: Callable[[Context], int], caplog: pytest.LogCaptureFixture) -> None:
        with override_settings(DURABLE={"GUARD": "off"}):
            assert passed(h, counting).output == 0
        assert caplog.messages == []

    @pytest.mark.parametrize("mode", ["log", "warn"])
    def test_log_tells_each_line_once(
        self, h: Harness, counting: Callable[[Context], int], caplog: pytest.LogCaptureFixture, mode: str
    ) -> None:
        with override_settings(DURABLE={"GUARD": mode}):
            assert check_settings() == []
            assert passed(h, counting).output == 0
            assert passed(h, counting).output == 0
        [told] = [each for each in caplog.records if each.name == "durable.guard"]
        assert told.levelname == "WARNING"
        assert "the statement SELECT of auth_group" in told.getMessage()
        assert told.workflow == "harness.counts"  # type: ignore[attr-defined]  # in `extra`

    def test_a_harness_raises_by_default_outside_of_tests_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from durable.guard import events

        monkeypatch.setattr(events, "is_under_test", lambda: False)
        assert events.mode() == "log"
        with override_settings(DEBUG=True):
            assert events.mode() == "raise"
        with Harness():
            assert events.mode() == "raise"
        assert events.mode() == "log"


class TestConnections:
    def test_the_guards_own_wrapper_observes_nothing(self) -> None:
        install()
        connection.ensure_connection()
        assert [is_guards(each) for each in connection.execute_wrappers] == [True]
        assert not observes(connection)
        with connection.execute_wrapper(lambda execute, *args: execute(*args)):
            assert observes(connection)
        assert not observes(connection)

    @pytest.mark.django_db(transaction=True)
    def test_a_connection_of_another_thread_is_watched_from_its_first_session(self) -> None:
        found: list[bool] = []

        def opens() -> None:
            connection.ensure_connection()
            found.extend(is_guards(each) for each in connection.execute_wrappers)
            connection.close()

        thread = threading.Thread(target=opens)
        thread.start()
        thread.join()
        assert found == [True]

    def test_it_is_put_on_while_another_wrapper_is_in_force(self) -> None:
        connection.execute_wrappers.clear()
        with connection.execute_wrapper(lambda execute, *args: execute(*args)):
            install()
        assert [is_guards(each) for each in connection.execute_wrappers] == [True]


# -- packages that trace stand on the stack between a workflow and what they trace, and export by themselves


def code_of(module: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same code whose frames are those of an installed module."""
    code = function.__code__.replace(co_filename=f"/lib/site-packages/{module.replace('.', '/')}.py")
    return FunctionType(code, {"__name__": module, "__builtins__": __builtins__, "socket": socket})


def calls(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def connects(address: tuple[str, int]) -> None:
    socket.create_connection(address).close()


@pytest.mark.parametrize("module", ["sentry_sdk.integrations.django", "newrelic.api.function_trace", "ddtrace"])
def test_a_statement_that_is_traced_is_the_workflows(h: Harness, module: str) -> None:
    trace = code_of(module, calls)

    def counts(ctx: Context) -> int:
        return int(trace(Group.objects.count))

    refused(passed(h, counts))


def test_a_connection_that_is_traced_is_the_workflows(h: Harness) -> None:
    trace = code_of("opentelemetry.instrumentation.requests", calls)
    library = code_of("requests.sessions", connects)
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused(passed(h, lambda ctx: trace(library, server.getsockname())))


def test_a_function_of_the_application_that_is_traced_is_the_workflows(h: Harness) -> None:
    trace = code_of("sentry_sdk.tracing_utils", calls)
    with socket.create_server(("127.0.0.1", 0)) as server:
        traced = functools.partial(trace, connects, server.getsockname())
        refused(passed(h, lambda ctx: traced()))


def test_what_is_exported_is_not(h: Harness) -> None:
    export = code_of("opentelemetry.sdk.trace.export", calls)
    library = code_of("requests.sessions", connects)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert passed(h, lambda ctx: export(library, server.getsockname())).state == "completed"
