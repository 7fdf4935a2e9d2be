"""The rows of an atomic step and its record are one commit, whatever the step's function does to its transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction

from durable import AsyncContext, Context, Handle, current_step, workflow
from durable.codec import JsonCodec
from durable.core.control_flow import PassAborted
from durable.execution.commits import CommitSession
from durable.models import Run
from durable.store import Store
from durable.testing import Harness
from project.shop.models import Mail
from tests.faults.passing import pass_once, production_store
from tests.support.locks import other_session

pytestmark = pytest.mark.django_db(transaction=True)


def post(key: str) -> None:
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key=key)


def passed(handle: Handle, store: Store | None = None) -> Run:
    """The run's row when it has ended; failed attempts are retried at once."""
    for _ in range(10):
        outcome = pass_once(handle, store=store)
        if outcome.state in ("completed", "failed"):
            break
        handle.wake()
    return Run.objects.get(pk=handle.id)


def post_and_tell() -> str:
    post(f"posted {Mail.objects.count()}")
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


def by_sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def by_driver(method: str) -> None:
    getattr(connection.connection, method)()


def commit_and_begin() -> None:
    by_sql("COMMIT")
    by_sql("BEGIN")


#: What ends the transaction of an atomic step, and how many of the rows written before it stay.
ENDINGS: dict[str, tuple[Callable[[], None], int]] = {
    "COMMIT": (partial(by_sql, "COMMIT"), 1),
    "ROLLBACK": (partial(by_sql, "ROLLBACK"), 0),
    "PREPARE TRANSACTION": (partial(by_sql, "PREPARE TRANSACTION 'of a step'"), 0),
    "commit()": (partial(by_driver, "commit"), 1),
    "rollback()": (partial(by_driver, "rollback"), 0),
    "COMMIT and BEGIN": (commit_and_begin, 1),
}


def end_transaction(ending: str, after: str) -> str:
    post("before")
    ENDINGS[ending][0]()
    if after == "raises":
        raise ValueError("after all")
    if after == "writes":
        post("after")
    return "ended"


@workflow(name="faults.ending")
def ending_step(ctx: Context, ending: str, after: str) -> str:
    value: str = ctx.step("end", end_transaction, ending, after, atomic=True)
    return value


@workflow(name="faults.ending_async")
async def ending_step_async(ctx: AsyncContext, ending: str, after: str) -> str:
    value: str = await ctx.step("end", end_transaction, ending, after, atomic=True)
    return value


@workflow(name="faults.ending_branch")
def ending_in_branch(ctx: Context, ending: str, after: str) -> Any:
    branches: dict[str, Callable[[Context], Any]] = {
        "a": lambda c: c.step("end", end_transaction, ending, after, atomic=True),
        "b": lambda c: c.step("other", lambda: 1),
    }
    return ctx.join("both", branches)


@workflow(name="faults.ending_branch_async")
async def ending_in_async_branch(ctx: AsyncContext, ending: str, after: str) -> Any:
    branches: dict[str, Callable[[AsyncContext], Any]] = {
        "a": lambda c: c.step("end", end_transaction, ending, after, atomic=True),
        "b": lambda c: c.step("other", lambda: 1),
    }
    return await ctx.join("both", branches)


def assert_noticed(handle: Handle, ending: str, store: Store | None = None) -> None:
    assert passed(handle, store).state == "failed"
    [step] = [each for each in handle.history() if each.location.endswith("end")]
    assert (step.status, step.attempts) == ("exhausted", 1), "another attempt would write the rows again"
    assert step.error is not None
    assert "ended the transaction of the atomic step" in step.error.message
    assert Mail.objects.filter(idempotency_key="before").count() == ENDINGS[ending][1]
    assert connection.get_autocommit()
    assert not connection.in_atomic_block


_IN_BRANCHES = [pytest.param(each, marks=pytest.mark.postgres) for each in (ending_in_branch, ending_in_async_branch)]


@pytest.mark.parametrize("after", ["", "writes", "raises"])
@pytest.mark.parametrize("program", [ending_step, ending_step_async, *_IN_BRANCHES])
@pytest.mark.parametrize("ending", [each for each in ENDINGS if each != "PREPARE TRANSACTION"])
def test_a_step_that_ends_its_transaction_is_not_recorded_as_done(program: Any, ending: str, after: str) -> None:
    handle = program.start(ending, after)
    assert_noticed(handle, ending)
    if connection.vendor == "postgresql":  # SQLite commits each further statement by itself
        assert not Mail.objects.filter(idempotency_key="after").exists()


@pytest.mark.postgres
@pytest.mark.parametrize("after", ["", "writes", "raises"])
def test_a_step_that_prepares_its_transaction_is_not_recorded_as_done(after: str) -> None:
    try:
        assert_noticed(ending_step.start("PREPARE TRANSACTION", after), "PREPARE TRANSACTION")
    finally:
        by_sql("ROLLBACK PREPARED 'of a step'")


def commit_in_first_message() -> None:
    by_sql(f"INSERT INTO {Group._meta.db_table} (name) VALUES ('kept'); COMMIT")


def switch_to_autocommit() -> None:
    raw: Any = connection.connection
    raw.autocommit = True
    Group.objects.create(name="kept")


@workflow(name="faults.ending_at_once")
def ending_at_once(ctx: Context, way: str) -> None:
    ctx.step("end", globals()[way], atomic=True)


@pytest.mark.postgres
@pytest.mark.parametrize("way", ["commit_in_first_message", "switch_to_autocommit"])
def test_a_step_whose_first_statement_is_committed_is_not_recorded_as_done(way: str) -> None:
    handle = ending_at_once.start(way)
    assert passed(handle).state == "failed"
    [step] = handle.history()
    assert (step.status, step.attempts) == ("exhausted", 1)
    assert step.error is not None
    assert "ended the transaction of the atomic step" in step.error.message
    assert Group.objects.count() == 1


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_harness_notices_it_too(ending: str) -> None:
    with Harness() as h:
        ended = h.run(h.start(ending_step, ending, "writes"))
    assert ended.error is not None
    assert "ended the transaction of the atomic step" in ended.error.message


def isolate_and_post() -> str:
    if connection.vendor == "postgresql":
        raw: Any = connection.connection
        raw.isolation_level = 4  # SERIALIZABLE; may be set before the first statement
    post("isolated")
    return "posted"


@workflow(name="faults.isolated")
def isolated(ctx: Context) -> str:
    value: str = ctx.step("post", isolate_and_post, atomic=True)
    return value


def test_a_step_may_set_up_its_transaction() -> None:
    handle = isolated.start()
    try:
        assert passed(handle).state == "completed", handle.error
    finally:
        connections.close_all()
    assert Mail.objects.count() == 1


_left_alone: list[str] = []


def post_and_lose_the_session(times: int) -> str:
    """As under `idle_in_transaction_session_timeout`: the function is silent for too long, and learns nothing of it."""
    post("lost" if len(_left_alone) < times else "kept")
    _left_alone.append("called")
    if len(_left_alone) <= times:
        pid = connection.connection.info.backend_pid
        with psycopg.connect(**other_session()) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    return "posted"


@workflow(name="faults.losing")
def losing(ctx: Context, times: int) -> str:
    value: str = ctx.step("post", post_and_lose_the_session, times, atomic=True, max_retries=2, retry_backoff_base=0)
    return value


@workflow(name="faults.losing_async")
async def losing_async(ctx: AsyncContext, times: int) -> str:
    step = ctx.step("post", post_and_lose_the_session, times, atomic=True, max_retries=2, retry_backoff_base=0)
    value: str = await step
    return value


@workflow(name="faults.losing_branch")
def losing_in_branch(ctx: Context, times: int) -> Any:
    branches: dict[str, Callable[[Context], Any]] = {
        "a": partial(losing.function, times=times),
        "b": lambda c: c.step("other", lambda: 1),
    }
    return ctx.join("both", branches)


@pytest.mark.postgres
@pytest.mark.parametrize("program", [losing, losing_async, losing_in_branch], ids=lambda program: program.name)
def test_a_step_whose_session_ends_before_its_record_has_failed_and_its_attempts_count(program: Any) -> None:
    """It would be called without end otherwise, with all that it does outside of the database."""
    _left_alone.clear()
    handle = program.start(100)
    assert passed(handle).state == "failed"
    [step] = [each for each in handle.history() if each.location.endswith("post")]
    assert (step.status, step.attempts) == ("exhausted", len(_left_alone)) == ("exhausted", 3)
    assert step.error is not None
    assert "idle_in_transaction_session_timeout" in step.error.message
    assert Mail.objects.count() == 0


@pytest.mark.postgres
@pytest.mark.parametrize("program", [losing, losing_async, losing_in_branch], ids=lambda program: program.name)
def test_a_step_whose_session_has_ended_is_tried_again(program: Any) -> None:
    _left_alone.clear()
    handle = program.start(1)
    assert passed(handle).state == "completed"
    assert list(Mail.objects.values_list("idempotency_key", flat=True)) == ["kept"]


class Away:
    """A codec whose values are elsewhere. When it reads the first result, that place does not answer."""

    is_away = False

    def __init__(self) -> None:
        self._json = JsonCodec()

    def encode(self, value: object, *, what: str = "value") -> str:
        return self._json.encode(value, what=what)

    def decode(self, text: str, *, what: str = "value") -> Any:
        if Away.is_away and text == '"posted elsewhere"':
            raise ConnectionError("the place of the values does not answer")
        return self._json.decode(text, what=what)


def post_elsewhere() -> str:
    _left_alone.append("called")
    return "posted elsewhere"


@workflow(name="faults.atomic_elsewhere")
def elsewhere(ctx: Context, options: dict[str, Any]) -> str:
    value: str = ctx.step("post", post_elsewhere, **options)
    return value


@workflow(name="faults.atomic_elsewhere_async")
async def elsewhere_async(ctx: AsyncContext, options: dict[str, Any]) -> str:
    value: str = await ctx.step("post", post_elsewhere, **options)
    return value


@pytest.mark.parametrize("options", [{}, {"atomic": True}, {"once": True}], ids=["plain", "atomic", "once"])
@pytest.mark.parametrize("program", [elsewhere, elsewhere_async], ids=lambda program: program.name)
def test_a_committed_result_that_cannot_be_read_now_is_kept(
    program: Any, options: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DURABLE = {**settings.DURABLE, "CODEC": f"{__name__}.Away"}
    _left_alone.clear()
    handle = program.start(options)
    monkeypatch.setattr(Away, "is_away", True)
    for _ in range(2):  # the first time, and on replay
        assert pass_once(handle).state == "sleeping", "it is tried again, as for other code"
        [step] = production_store().load(handle.id)
        assert (step.status, step.attempts) == ("completed", 1)
        handle.wake()
    monkeypatch.setattr(Away, "is_away", False)
    assert passed(handle).state == "completed"
    assert (handle.output, _left_alone) == ("posted elsewhere", ["called"])


def test_what_fails_behind_the_commit_is_no_failure_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    _left_alone.clear()
    answered = CommitSession._answered

    def out_of_memory(session: CommitSession, committed: Any, **options: Any) -> None:
        monkeypatch.setattr(CommitSession, "_answered", answered)
        raise MemoryError

    handle = elsewhere.start({"atomic": True})
    monkeypatch.setattr(CommitSession, "_answered", out_of_memory)
    with pytest.raises(PassAborted):
        pass_once(handle)
    Run.objects.filter(pk=handle.id).update(lease_expires_at=None)
    assert passed(handle).state == "completed"
    assert _left_alone == ["called"]
