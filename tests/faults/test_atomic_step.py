"""The rows of an atomic step and its record are one commit, whatever the step's function does to its transaction."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from durable import AsyncContext, Context, Handle, current_step, workflow
from durable.models import Run
from project.shop.models import Mail
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db(transaction=True)


def post(key: str) -> None:
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key=key)


def passed(handle: Handle) -> Run:
    """The run's row when it has ended; failed attempts are retried at once."""
    for _ in range(10):
        outcome = pass_once(handle)
        if outcome.state in ("completed", "failed"):
            break
        handle.wake()
    return Run.objects.get(pk=handle.id)


def post_and_tell() -> str:
    post(f"told {Mail.objects.count()}")
    transaction.on_commit(lambda: 1 / 0)
    return "posted"


@workflow(name="faults.hook")
def hook(ctx: Context) -> str:
    value: str = ctx.step("post", post_and_tell, atomic=True)
    return value


def test_a_hook_that_fails_after_the_commit_does_not_undo_the_record(caplog: pytest.LogCaptureFixture) -> None:
    handle = hook.start()
    with caplog.at_level(logging.ERROR, logger="durable"):
        run = passed(handle)
    assert (run.state, handle.output) == ("completed", "posted")
    assert Mail.objects.count() == 1
    [entry] = handle.history()
    assert (entry.status, entry.attempts) == ("completed", 1)
    assert "on_commit" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@workflow(name="faults.hooked")
def hooked(ctx: Context) -> str:
    return str(ctx.queue.next("mail", names=[]).body)


def post_and_start() -> None:
    post("started")
    transaction.on_commit(lambda: hooked.start().send("mail", current_step().location))


@workflow(name="faults.starting_hook")
def starting_hook(ctx: Context) -> None:
    ctx.step("post", post_and_start, atomic=True)


@workflow(name="faults.starting_hook_async")
async def starting_hook_async(ctx: AsyncContext) -> None:
    await ctx.step("post", post_and_start, atomic=True)


@pytest.mark.parametrize("program", [starting_hook, starting_hook_async])
def test_a_hook_of_a_step_may_do_what_the_step_may(program: Any) -> None:
    assert passed(program.start()).state == "completed"
    assert passed(Handle(Run.objects.get(workflow=hooked.name).pk)).output == '"post"'


def post_twice() -> str:
    post("first")
    try:
        post("first")
    except IntegrityError:
        return "swallowed"
    return "impossible"


@workflow(name="faults.swallowing")
def swallowing(ctx: Context) -> str:
    value: str = ctx.step("post", post_twice, atomic=True, max_retries=1)
    return value


def test_a_swallowed_database_error_fails_the_step_and_not_the_worker() -> None:
    handle = swallowing.start()
    run = passed(handle)
    assert run.state == "failed"
    assert run.error is not None
    assert run.error.type == "StepExhaustedError"
    assert "atomic" in run.error.message
    assert run.crashes == 0
    assert handle.history()[0].attempts == 2
    assert Mail.objects.count() == 0


def break_sql() -> str:
    post("raw")
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT * FROM no_such_table")
        except Exception:
            return "swallowed"
    return "impossible"


@workflow(name="faults.raw")
def raw(ctx: Context) -> str:
    result = ctx.try_step("post", break_sql, atomic=True, max_retries=0)
    return "ok" if result.ok else str(result.failure and result.failure.kind)


@pytest.mark.postgres
def test_a_transaction_broken_by_raw_sql_is_a_failure_that_the_workflow_may_handle() -> None:
    handle = raw.start()
    assert passed(handle).state == "completed"
    assert handle.output == "exhausted"
    assert Mail.objects.count() == 0


def give_up() -> str:
    post("given up")
    transaction.set_rollback(True)
    return "rolled back"


@workflow(name="faults.rollback")
def giving_up(ctx: Context) -> str:
    value: str = ctx.step("post", give_up, atomic=True, max_retries=0)
    return value


def test_a_step_that_rolls_its_transaction_back_is_not_recorded_as_done() -> None:
    handle = giving_up.start()
    assert passed(handle).state == "failed"
    assert handle.history()[0].status == "exhausted"
    assert Mail.objects.count() == 0


@workflow(name="faults.slow")
def slow(ctx: Context) -> None:
    def work() -> None:
        post("slow")
        time.sleep(30)

    ctx.step("post", work, atomic=True, timeout=0.05)


def test_a_timeout_rolls_the_rows_back() -> None:
    handle = slow.start()
    assert passed(handle).state == "failed"
    assert Mail.objects.count() == 0


@workflow(name="faults.nested")
def nested(ctx: Context) -> str:
    def work() -> str:
        post("kept")
        with transaction.atomic():
            post("inner")
            transaction.set_rollback(True)
        try:
            with transaction.atomic():
                post("kept")
        except IntegrityError:
            return "savepoints"
        return "impossible"

    value: str = ctx.step("post", work, atomic=True)
    return value


def test_savepoints_inside_an_atomic_step_are_the_users_own() -> None:
    handle = nested.start()
    assert passed(handle).state == "completed"
    assert handle.output == "savepoints"
    assert list(Mail.objects.values_list("idempotency_key", flat=True)) == ["kept"]


@workflow(name="faults.unencodable")
def unencodable(ctx: Context) -> None:
    def work() -> object:
        post("lost")
        return object()

    ctx.step("post", work, atomic=True, max_retries=0)


def test_a_result_that_cannot_be_recorded_takes_the_rows_along() -> None:
    handle = unencodable.start()
    run = passed(handle)
    assert run.state == "failed"
    assert run.error is not None
    assert run.error.type == "PayloadError"
    assert Mail.objects.count() == 0
