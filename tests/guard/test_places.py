"""Where the guard takes code for a workflow's: runs in steps of others, receivers, other databases, tools of tests."""

from __future__ import annotations

import bdb
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connections
from django.db.models.signals import post_save
from django.dispatch import Signal

from durable import AsyncContext, Context, RollbackContext, current_step
from durable.testing import Harness
from tests.guard.passing import passed, refused


def count_groups() -> int:
    return Group.objects.count()


counted: list[int] = []
_SQLITE: Final = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {}}


def count_again(context: RollbackContext, _count: int) -> None:
    counted.append(count_groups())


def within_a_step(h: Harness, inner: Callable[..., Any]) -> Any:
    """Pass a run of `inner` in a harness of its own, in a step of another run."""

    def passes() -> str:
        with Harness() as other:
            found = other.run(other.start(inner))
        assert found.error is not None, found
        return found.error.type

    return passed(h, lambda ctx: ctx.step("pass", passes)).output


@pytest.mark.django_db
class TestARunInAStepOfAnother:
    def test_it_is_guarded(self, h: Harness) -> None:
        assert within_a_step(h, lambda ctx: count_groups()) == "OutsideStepError"

    def test_an_async_one_is_guarded(self, h: Harness) -> None:
        async def inner(ctx: AsyncContext) -> int:
            return await Group.objects.acount()

        assert within_a_step(h, inner) == "OutsideStepError"

    def test_the_outer_step_is_none_of_its_own(self, h: Harness) -> None:
        def inner(ctx: Context) -> str:
            return current_step().location

        assert within_a_step(h, inner) == "RuntimeError"

    def test_the_outer_step_goes_on(self, h: Harness) -> None:
        def passes() -> list[Any]:
            with Harness() as other:
                found = other.run(other.start(lambda ctx: ctx.step("count", count_groups)))
            return [found.output, current_step().location, count_groups()]

        assert passed(h, lambda ctx: ctx.step("outer", passes)).output == [0, "outer", 0]


@pytest.mark.django_db
class TestReceivers:
    def test_a_receiver_of_a_signal_that_the_workflow_sends_is_its_code(self, h: Harness) -> None:
        shipped = Signal()

        def receive(**_: Any) -> None:
            count_groups()

        shipped.connect(receive)
        assert "in count_groups" in refused(passed(h, lambda ctx: shipped.send(sender=None)))

    def test_one_of_a_row_that_a_step_saves_is_the_steps(self, h: Harness) -> None:
        found: list[int] = []

        def receive(**_: Any) -> None:
            found.append(count_groups())

        post_save.connect(receive, sender=Group)
        try:
            assert passed(h, lambda ctx: ctx.step("save", lambda: Group.objects.create(name="a").name)).output == "a"
        finally:
            post_save.disconnect(receive, sender=Group)
        assert found == [1]

    def test_a_rollback_handler_may_query(self, h: Harness) -> None:
        counted.clear()

        def fails(ctx: Context) -> None:
            ctx.rollback_checkpoint("here")
            ctx.step("count", count_groups, rollback=count_again)
            raise ValueError("undo it")

        found = h.finish(h.start(fails))
        assert found.error is not None
        assert (found.error.type, counted) == ("ValueError", [0])

    def test_a_step_may_be_made_async(self, h: Harness) -> None:
        async def counts(ctx: AsyncContext) -> int:
            return await ctx.step("count", sync_to_async(count_groups))

        assert passed(h, counts).output == 0


class TestOtherDatabases:
    @pytest.fixture
    def other(self, django_db_setup: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[str]:
        # a file: Django does not close a connection to a database in memory
        settings = {**connections.databases["default"], **_SQLITE, "NAME": str(tmp_path / "other.sqlite3")}
        connections.databases["of_the_guard"] = settings
        try:
            with django_db_blocker.unblock():
                yield "of_the_guard"
        finally:
            connections["of_the_guard"].close()
            del connections["of_the_guard"]
            del connections.databases["of_the_guard"]

    def test_a_cursor_of_another_database_is_refused(self, h: Harness, other: str) -> None:
        def reads(ctx: Context) -> Any:
            with connections[other].cursor() as cursor:
                cursor.execute("SELECT 1")
                return cursor.fetchone()[0]

        assert f'on the database "{other}"' in refused(passed(h, reads))

    def test_so_are_many_statements_at_once(self, h: Harness, other: str) -> None:
        with connections[other].cursor() as cursor:
            cursor.execute("CREATE TABLE noted (word text)")

        def writes(ctx: Context) -> None:
            with connections[other].cursor() as cursor:
                cursor.executemany("INSERT INTO noted VALUES (%s)", [["a"], ["b"]])

        assert "the statement INSERT of noted" in refused(passed(h, writes))
        with connections[other].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM noted")
            assert cursor.fetchone() == (0,)

    def test_a_step_may_use_it(self, h: Harness, other: str) -> None:
        def reads() -> Any:
            with connections[other].cursor() as cursor:
                cursor.execute("SELECT 1")
                return cursor.fetchone()[0]

        assert passed(h, lambda ctx: ctx.step("read", reads)).output == 1


class TestToolsOfTests:
    def test_code_that_a_debugger_traces_is_right_code(self, h: Harness) -> None:
        class Debugger(bdb.Bdb):
            lines: list[int]

            def user_line(self, frame: Any) -> None:
                self.lines.append(frame.f_lineno)

        debugger = Debugger()
        debugger.lines = []

        def works(ctx: Context) -> int:
            value = ctx.step("first", int, "1")
            return value + ctx.step("second", int, "2")

        before = sys.gettrace()
        try:
            found = debugger.runcall(lambda: passed(h, works))
        finally:
            sys.settrace(before)
        assert found is not None
        assert found.output == 3
        assert debugger.lines
