"""Steps and workflows that leave a transaction open: no record is written inside it, and what they lose is reported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import override_settings

from durable import AsyncContext, Context, RollbackContext, workflow
from durable.core import clock
from durable.core.control_flow import PassAborted
from durable.handles import Handle
from durable.testing import Harness
from tests.faults.passing import pass_once
from tests.support.locks import other_session

pytestmark = pytest.mark.postgres
production = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def unguarded() -> Iterator[None]:
    """Let wrong workflows open transactions between their steps: the guard would refuse the queries in them first."""
    with override_settings(DURABLE={**settings.DURABLE, "GUARD": "off"}):
        yield


def leave_atomic() -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="lost")


def leave_nested() -> None:
    leave_atomic()
    transaction.atomic().__enter__()
    transaction.atomic(savepoint=False).__enter__()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Group.objects.create(name="lost")


def leave_begun() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Group.objects.create(name="lost")


def leave_and_raise() -> None:
    leave_nested()
    raise ValueError("after all")


_what: dict[str, Callable[[], object]] = {}


@pytest.fixture(params=[leave_atomic, leave_nested, leave_autocommit_off, leave_begun, leave_and_raise])
def leave(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    monkeypatch.setitem(_what, "leave", request.param)
    return request.param  # type: ignore[no-any-return]  # of the list above


def do() -> None:
    _what["leave"]()


async def do_async() -> None:
    await sync_to_async(do)()


@workflow(name="faults.left_open")
def in_step(ctx: Context) -> str:
    ctx.step("before", lambda: 1)
    ctx.step("leave", do)
    return "went on"


@workflow(name="faults.left_open_atomic")
def in_atomic_step(ctx: Context) -> str:
    ctx.step("leave", do, atomic=True)
    return "went on"


@workflow(name="faults.left_open_branch")
def in_branch(ctx: Context) -> str:
    ctx.join("both", {"a": lambda c: c.step("leave", do), "b": lambda c: c.step("other", lambda: 1)})
    return "went on"


@workflow(name="faults.left_open_async")
async def in_async_step(ctx: AsyncContext) -> str:
    await ctx.step("leave", do_async)
    return "went on"


@workflow(name="faults.left_open_plain")
async def in_plain_step(ctx: AsyncContext) -> str:
    await ctx.step("leave", do)
    return "went on"


def seen_from_outside(handle: Handle) -> dict[str, tuple[str, str]]:
    """Status and type of the last failure of the run's steps, as another session sees them."""
    with psycopg.connect(**other_session()) as other:
        rows = other.execute(
            "SELECT e.location, m.status, coalesce(m.error::jsonb->>'type', '') FROM durable_entry e"
            " JOIN durable_entrymetadata m ON m.entry_id = e.id WHERE e.run_id = %s AND e.kind = 'step'",
            [handle.id],
        ).fetchall()
    return {location: (status, error) for location, status, error in rows}


@production
@pytest.mark.parametrize("program", [in_step, in_atomic_step, in_branch, in_plain_step, in_async_step])
def test_a_step_that_leaves_a_transaction_open_fails_and_is_recorded_outside_it(
    program: Any, leave: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is in_atomic_step and leave in (leave_autocommit_off, leave_begun):
        return  # inside a transaction Django refuses the one, and the other does nothing
    handle = program.start()
    assert pass_once(handle).state == "sleeping"
    steps = seen_from_outside(handle)
    [(status, error)] = [found for location, found in steps.items() if location.endswith("leave")]
    assert (status, error) == ("failed", "ValueError" if leave is leave_and_raise else "OpenTransactionError")
    assert all(status == "completed" for location, (status, _) in steps.items() if not location.endswith("leave"))
    assert connection.get_autocommit()
    assert not connection.in_atomic_block
    monkeypatch.setitem(_what, "leave", lambda: Group.objects.create(name="kept"))
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
    assert pass_once(handle).output == "went on"
    assert [group.name for group in Group.objects.all()] == ["kept"]


@production
def test_a_workflow_that_ends_inside_a_transaction_fails() -> None:
    handle = ending_inside.start()
    ended = pass_once(handle)
    assert ended.error is not None
    assert ended.error.type == "OpenTransactionError"
    with psycopg.connect(**other_session()) as other:
        row = other.execute("SELECT state FROM durable_run WHERE id = %s", [handle.id]).fetchone()
    assert row == ("failed",)
    assert not Group.objects.exists()


@workflow(name="faults.ending_inside")
def ending_inside(ctx: Context) -> None:
    ctx.step("before", lambda: 1)
    leave_nested()


@workflow(name="faults.left_open_before_children")
def before_children(ctx: Context) -> list[str]:
    do()
    return ctx.map("children", child, [(1,), (2,)]).outputs


@workflow(name="faults.left_open_child")
def child(ctx: Context, number: int) -> str:
    return f"child {number}"


@production
def test_no_child_of_a_map_is_started_by_a_run_that_fails_as_it_starts_them(
    leave: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = before_children.start()
    assert pass_once(handle).state == "failed"
    assert handle.children() == []
    monkeypatch.setitem(_what, "leave", lambda: None)
    handle.recover()
    while pass_once(handle).state == "sleeping":
        for each in handle.children(state="pending"):
            pass_once(each)
    assert handle.output == ["child 1", "child 2"]


@workflow(name="faults.open_before_atomic")
def open_before_atomic(ctx: Context) -> str:
    do()
    ctx.step("write", lambda: Group.objects.create(name="written").pk, atomic=True)
    return "went on"


@workflow(name="faults.open_before_atomic_async")
async def open_before_atomic_async(ctx: AsyncContext) -> str:
    await do_async()
    await ctx.step("write", lambda: Group.objects.create(name="written").pk, atomic=True)
    return "went on"


@production
@pytest.mark.parametrize("program", [open_before_atomic, open_before_atomic_async])
def test_an_atomic_step_is_no_part_of_a_transaction_that_was_open_before(
    program: Any, leave: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if leave is leave_and_raise:
        return
    handle = program.start()
    assert pass_once(handle).state != "completed"
    assert all(status == "failed" for status, _ in seen_from_outside(handle).values())
    assert connection.get_autocommit()
    assert not Group.objects.exists()
    monkeypatch.setitem(_what, "leave", lambda: None)
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
    if handle.state == "failed":
        handle.recover()
    assert pass_once(handle).output == "went on"
    assert [group.name for group in Group.objects.all()] == ["written"]


@workflow(name="faults.open_at_end")
def open_at_end(ctx: Context) -> None:
    do()


@workflow(name="faults.open_at_end_async")
async def open_at_end_async(ctx: AsyncContext) -> None:
    await do_async()


@production
@pytest.mark.parametrize("program", [open_at_end, open_at_end_async])
def test_a_run_does_not_complete_with_what_it_wrote_taken_back(program: Any, leave: Callable[[], object]) -> None:
    handle = program.start()
    ended = pass_once(handle)
    assert ended.error is not None
    assert ended.error.type == ("ValueError" if leave is leave_and_raise else "OpenTransactionError")
    assert not Group.objects.exists()
    with psycopg.connect(**other_session()) as other:
        row = other.execute("SELECT state FROM durable_run WHERE id = %s", [handle.id]).fetchone()
    assert row == ("failed",)


def undo(context: RollbackContext, output: Any) -> None:
    do()


async def undo_async(context: RollbackContext, output: Any) -> None:
    await do_async()


@workflow(name="faults.left_open_rollback")
def undone(ctx: Context) -> None:
    ctx.rollback_checkpoint("begin")
    ctx.step("charge", lambda: 1, rollback=undo)
    raise ValueError("no")


@workflow(name="faults.left_open_rollback_async")
async def undone_async(ctx: AsyncContext) -> None:
    await ctx.rollback_checkpoint("begin")
    await ctx.step("charge", lambda: 1, rollback=undo_async)
    raise ValueError("no")


@production
@pytest.mark.parametrize("program", [undone, undone_async])
def test_a_rollback_handler_that_leaves_a_transaction_open_has_failed(
    program: Any, leave: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = program.start()
    assert pass_once(handle).state == "rolling_back"
    [step] = [entry for entry in handle.history() if entry.kind == "step"]
    assert step.rollback_completed_at is None
    assert step.rollback_error.type == ("ValueError" if leave is leave_and_raise else "OpenTransactionError")
    monkeypatch.setitem(_what, "leave", lambda: Group.objects.create(name="kept"))
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
    assert pass_once(handle).state == "failed"
    assert [group.name for group in Group.objects.all()] == ["kept"]


_seen: list[bool] = []


@workflow(name="faults.left_open_before_branches")
def open_around_branches(ctx: Context) -> None:
    _what["leave"]()

    def branch(c: Context) -> None:
        c.step("step", lambda: 1)
        _seen.append(any(location.endswith("/step") for location in seen_from_outside(Handle(ctx.run_id))))

    ctx.join("both", {"a": branch, "b": branch})


@production
@pytest.mark.parametrize("leave", [leave_autocommit_off, leave_begun])
def test_no_branch_has_its_step_committed_inside_what_came_before_it(
    leave: Callable[[], object], monkeypatch: Any
) -> None:
    """The pass's own connection commits for the branches: what is open there would take their records back."""
    monkeypatch.setitem(_what, "leave", leave)
    _seen.clear()
    ended = pass_once(open_around_branches.start())
    assert ended.error is not None
    assert ended.error.type == "OpenTransactionError"
    assert all(_seen), "a step has returned before its result was committed"
    assert connection.get_autocommit()
    assert not Group.objects.exists()


@workflow(name="faults.left_open_beside_a_step")
def open_beside_a_step(ctx: Context) -> None:
    is_under_way, may_end = threading.Event(), threading.Event()

    def last() -> None:
        is_under_way.set()
        may_end.wait(120)

    def leave(c: Context) -> None:
        is_under_way.wait(120)
        leave_autocommit_off()
        try:
            c.step("step", lambda: 1)
        finally:
            may_end.set()

    ctx.join("both", {"a": lambda c: c.step("last", last), "b": leave})


@production
def test_a_branch_that_leaves_one_open_is_reported_whatever_another_one_does() -> None:
    handle = open_beside_a_step.start()
    assert pass_once(handle).state == "sleeping"
    assert seen_from_outside(handle) == {
        "both/a/last": ("completed", ""),
        "both/b/step": ("failed", "OpenTransactionError"),
    }
    assert not Group.objects.exists()


@workflow(name="faults.held_open")
async def held_open(ctx: AsyncContext) -> None:
    is_open, may_end = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        await sync_to_async(leave_atomic)()
        is_open.set()
        await may_end.wait()

    async def other() -> None:
        await is_open.wait()

    await ctx.join("both", {"a": lambda c: c.step("hold", hold, timeout=10), "b": lambda c: c.step("other", other)})


@pytest.mark.slow
@production
def test_no_commit_is_made_inside_the_transaction_of_another_branch() -> None:
    handle = held_open.start()
    with pytest.raises(PassAborted, match="holds a transaction open"):
        pass_once(handle)
    transaction.atomic().__exit__(ValueError, ValueError(), None)
    assert all(status != "completed" for status, _ in seen_from_outside(handle).values())


@workflow(name="faults.left_open_beside_a_held_one")
async def left_beside_a_held_one(ctx: AsyncContext) -> None:
    is_open, may_end = asyncio.Event(), asyncio.Event()
    held = transaction.atomic()

    def begin() -> None:
        held.__enter__()
        Group.objects.create(name="held")

    async def hold() -> None:
        await sync_to_async(begin)()
        is_open.set()
        await may_end.wait()
        await sync_to_async(held.__exit__)(None, None, None)

    async def leave(c: AsyncContext) -> None:
        await is_open.wait()
        try:
            await c.try_step("leave", do, max_retries=0)
        finally:
            may_end.set()

    await ctx.join("both", {"a": lambda c: c.step("hold", hold), "b": leave})


@production
def test_a_step_that_leaves_one_open_takes_back_nothing_of_another_branch(leave: Callable[[], object]) -> None:
    """Both functions use the one connection of the pass's thread."""
    if leave in (leave_autocommit_off, leave_begun):
        return  # inside a transaction Django refuses the one, and the other does nothing
    handle = left_beside_a_held_one.start()
    with pytest.raises(PassAborted, match="holds a transaction open"):
        pass_once(handle)
    assert all(status != "completed" for status, _ in seen_from_outside(handle).values())
    connection.close()


@pytest.mark.django_db
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("leave", [leave_atomic, leave_nested])
def test_the_transaction_of_a_test_lives_on(leave: Callable[[], object], atomic: bool) -> None:
    Group.objects.create(name="of the test")

    def ship(ctx: Context) -> None:
        ctx.step("leave", leave, atomic=atomic, max_retries=0)

    with Harness() as h:
        ended = h.run(h.start(ship))
    assert ended.error is not None
    assert 'step "leave" left a transaction open on the database "default"' in ended.error.message
    assert [group.name for group in Group.objects.all()] == ["of the test"]


@pytest.mark.django_db
@pytest.mark.parametrize("program", [in_step, in_atomic_step])
@pytest.mark.parametrize("leave", [leave_atomic, leave_nested])
def test_the_transaction_around_a_worker_lives_on(
    program: Any, leave: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that lets RQ's worker execute jobs inside its own transaction."""
    monkeypatch.setitem(_what, "leave", leave)
    Group.objects.create(name="of the test")
    handle = program.start()
    assert pass_once(handle).state == "sleeping"
    [step] = [entry for entry in handle.history() if entry.location == "leave"]
    assert step.error is not None
    assert step.error.type == "OpenTransactionError"
    assert [group.name for group in Group.objects.all()] == ["of the test"]
    assert connection.in_atomic_block
