"""What a pass costs in round trips: one to load (none the first time), none to replay, one for each commit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Break, Context, Continue, Handle, workflow
from durable.conf import conf
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.store import store_for
from tests.support.locks import other_session, until_sessions_wait_for_locks

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

STEPS = 7


@workflow(name="tests.queries.steps")
def steps(ctx: Context, count: int) -> int:
    for number in range(count):
        ctx.step(f"step {number}", lambda: "x" * 30)
    ctx.sleep("pause", "1 hour")
    return count


@workflow(name="tests.queries.loop")
def counting(ctx: Context, until: int) -> int:
    def once(c: Context, number: int) -> Break | Continue:
        c.step("count", lambda: number)
        return Break(number) if number == until else Continue(number + 1)

    value: int = ctx.loop("count", once, state=0, history_prune_interval=5)
    return value


@workflow(name="tests.queries.message")
def receiving(ctx: Context) -> str:
    message = ctx.queue.next("wait", names=["news"])
    return str(message.body)


@workflow(name="tests.queries.atomic")
def charging(ctx: Context) -> int:
    value: int = ctx.step("charge", lambda: 1, atomic=True)
    return value


def run_pass(handle: Handle) -> tuple[PassOutcome, list[str]]:
    """One pass of the run; its outcome and the statements it sent."""
    store = store_for("default")
    now = timezone.now()
    claimed = store.claim_run(handle.id, now=now, lease_until=now + timedelta(seconds=conf.LEASE), worker="test")
    assert claimed is not None
    with CaptureQueriesContext(connection) as queries:
        outcome = execute_pass(claimed, store=store, eviction=Eviction())
    return outcome, [query["sql"] for query in queries.captured_queries]


@contextmanager
def counted(most: int) -> Iterator[None]:
    with CaptureQueriesContext(connection) as queries:
        yield
    assert len(queries) == most, [query["sql"][:120] for query in queries.captured_queries]


def test_a_step_is_one_statement_and_one_commit() -> None:
    outcome, statements = run_pass(steps.start(STEPS))
    assert outcome.state == "sleeping"
    assert len(statements) == STEPS + 1, statements  # each step, the park; a first pass has nothing to load


def test_replay_touches_no_database() -> None:
    handle = steps.start(STEPS)
    run_pass(handle)
    outcome, statements = run_pass(handle)
    assert outcome.state == "sleeping"
    assert len(statements) == 2, statements  # the load and the park


def test_an_iteration_of_one_step_is_one_statement_however_many_came_before() -> None:
    outcome, statements = run_pass(counting.start(19))
    assert outcome.state == "completed"
    # 20 steps, a pruning at each fifth iteration but the last one's end, and the end of the run
    assert len(statements) == 20 + 3 + 1, [each[:80] for each in statements]


def test_a_message_is_received_and_recorded_in_one_statement() -> None:
    handle = receiving.start()
    run_pass(handle)
    handle.send("news", "good")
    outcome, statements = run_pass(handle)
    assert outcome.output == "good"
    assert len(statements) == 1 + 1 + 1 + 1, statements  # load, look into the inbox, receive, complete


def test_an_atomic_step_adds_a_transaction_and_no_more() -> None:
    _, statements = run_pass(charging.start())
    assert len(statements) == 3 + 1, statements  # BEGIN, the commit's statement, COMMIT; complete


def test_a_start_is_one_statement() -> None:
    with counted(1):
        steps.start(1)


def test_many_starts_are_one_statement() -> None:
    with counted(1):
        steps.start_many([(number,) for number in range(100)])


def test_a_send_looks_and_then_is_one_statement() -> None:
    handle = receiving.start()
    with counted(2):
        handle.send("news", "good")


def test_garbage_is_collected_while_the_load_of_a_history_waits_for_a_lock() -> None:
    handle = steps.start(STEPS)
    run_pass(handle)
    handle.wake()

    def another_pass() -> str | None:
        try:
            return run_pass(handle)[0].state
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(**other_session()) as other:
            other.execute("LOCK TABLE durable_entry IN ACCESS EXCLUSIVE MODE")
            passing = pool.submit(another_pass)
            until_sessions_wait_for_locks()
            assert gc.isenabled()
        assert passing.result(60) == "sleeping"
