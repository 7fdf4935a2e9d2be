"""What durable's work costs in counts: statements, commits, rows, commands to Redis, bytes. No time is asserted.

A statement outside of a transaction is one round trip and one commit; the commits that wrote rows are also counted by
the rows themselves, whose `xmin` is the transaction that wrote them. Each bound is what is needed today: fewer is fine.
"""

from __future__ import annotations

import math
import re
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.current_thread_executor import CurrentThreadExecutor
from django.db import connection
from django.db.backends.signals import connection_created

from durable import Handle
from durable.conf import conf
from durable.notifier import notify, redis_clients
from durable.store import store_for
from durable.worker import executor, scheduler
from durable.worker.rq import SimpleWorker
from tests.benchmarks import workflows
from tests.benchmarks.measures.one_run import recorded
from tests.benchmarks.passing import claimed, count_rows, one_pass
from tests.benchmarks.workflows import (
    acalls,
    aparallel,
    aquerying,
    asteps,
    counting,
    failing,
    fan_out,
    keyed,
    parallel,
    querying,
    rated,
    receiving,
    slotted,
    steps,
    steps_once,
)
from tests.support.notifications import take_job
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine runs wait so long behind others that they are checked again or released; fewer are claimed."""
    monkeypatch.setattr(executor, "RECHECK_AFTER", math.inf)
    monkeypatch.setattr(scheduler, "MAX_WAIT", math.inf)
    monkeypatch.setattr(scheduler, "BATCH_WINDOW", 3600.0)


def statements_of(work: Callable[[], object]) -> list[str]:
    """The statements that `work` sends on this thread's connection, without BEGIN and COMMIT."""
    statements: list[str] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        work()
    return statements


def commits_of(handle: Handle) -> int:
    """How many transactions wrote the run's entries."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT xmin::text) FROM durable_entry WHERE run_id = %s", [handle.id])
        [(count,)] = cursor.fetchall()
    return int(count)


def work_off_all() -> None:
    work_off("default", store=store_for("default"), seconds=3600)


@pytest.mark.parametrize("workflow", [steps, asteps])
def test_a_step_is_one_statement_one_commit_and_two_rows(workflow: Any) -> None:
    handle = workflow.start(20)
    record = claimed(handle)
    statements = statements_of(lambda: one_pass(record))
    assert len(statements) <= 1 + 20 + 1  # the load, each step, the end
    assert commits_of(handle) == 20
    assert count_rows("durable_entry", handle.id) == 20
    assert count_rows("durable_attempt", handle.id) == 0
    assert count_rows("durable_failure", handle.id) == 0


def test_a_step_that_is_done_once_is_one_statement_more_and_no_row_more() -> None:
    handle = steps_once.start(20)
    record = claimed(handle)
    statements = statements_of(lambda: one_pass(record))
    assert len(statements) <= 1 + 20 * 2 + 1  # the load, the intent and the record of each step, the end
    assert count_rows("durable_entry", handle.id) == 20
    assert count_rows("durable_attempt", handle.id) == 0


def test_a_one_step_run_is_two_statements_and_a_share_of_a_claim() -> None:
    steps.start_many([(1,)] * 30)
    take_job()
    statements = statements_of(work_off_all)
    # step and end; three full claims, one of nothing, and one that takes the place of another job and its claim
    assert len(statements) <= 5 + 30 * 2


def test_a_run_that_fails_records_its_cause_without_a_statement_of_its_own() -> None:
    handle = failing.start()
    record = claimed(handle)
    statements = statements_of(lambda: one_pass(record))
    assert len(statements) <= 3  # the load, the failure of the step, the end
    assert handle.state == "failed"
    assert count_rows("durable_failure", handle.id) == 1


def test_what_runs_do_most_often_is_left_to_functions_whose_plans_are_kept() -> None:
    handle = receiving.start()
    assert statements_of(lambda: receiving.start())[0].startswith("SELECT durable_start_")
    assert any("durable_commit_" in each for each in statements_of(lambda: one_pass(claimed(handle))))  # it parks
    sent = statements_of(lambda: handle.send("news", 0.0))
    assert "FROM durable_send_" in sent[-1]
    statements = statements_of(work_off_all)
    written = [each for each in statements if re.search("durable_(claim|commit|complete)_", each)]
    read = [each for each in statements if each.startswith("SELECT e.") or "ORDER BY" in each]
    assert len(written) + len(read) == len(statements), statements


def test_a_notification_is_one_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    notify.acknowledge("default")
    notify.notify("default")  # Redis knows the script
    notify.acknowledge("default")
    commands = counted_commands(monkeypatch)
    for most, force in enumerate([False, False, False, True], 1):
        notify.notify("default", force=force)
        assert len(commands) <= most, commands


def test_from_one_job_of_the_bell_to_the_next_a_worker_asks_redis_five_times(
    redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = redis_clients.rq_queue("default")
    worker = SimpleWorker([queue], connection=queue.connection)
    commands = counted_commands(monkeypatch)
    counts: list[int] = []

    def work(name: str) -> None:
        counts.append(len(commands))
        notify.acknowledge(name)
        if len(counts) < 6:
            notify.notify(name)
        del commands[:]

    monkeypatch.setattr("durable.worker.rq_jobs.work", work)
    monkeypatch.setattr(worker, "_install_signal_handlers", lambda: None)
    notify.notify("default")
    worker.work(burst=True, logging_level="CRITICAL")
    assert len(counts) == 6
    assert max(counts[1:]) <= 5  # it is done; the next one, its fields, that it is taken, that it is kept


def test_a_run_costs_the_same_statements_among_many_others() -> None:
    def cost() -> int:
        steps.start_many([(1,)] * 10)
        return len(statements_of(work_off_all))

    first = cost()
    steps.using(delay="1 day").start_many([(1,)] * 300)
    assert cost() == first


@pytest.mark.parametrize("count", [10, 1000])
def test_a_replay_is_two_statements_however_long(count: int) -> None:
    handle = recorded(count, is_async=False)
    record = claimed(handle)
    assert len(statements_of(lambda: one_pass(record))) <= 2  # the load, the park


@pytest.mark.parametrize("is_async", [False, True])
def test_a_recorded_history_is_written_without_a_pass_that_executes_its_steps(is_async: bool) -> None:
    def written(count: int) -> int:
        return len(statements_of(lambda: recorded(count, is_async=is_async)))

    assert written(100) == written(10)


def test_a_replay_holds_less_than_5_kb_for_an_entry() -> None:
    count = 2000
    handle = recorded(count, is_async=False)
    one_pass(claimed(handle))
    record = claimed(handle)
    tracemalloc.start()
    try:
        one_pass(record)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / count < 5000


def test_a_loop_keeps_no_more_rows_than_two_prune_intervals() -> None:
    rows: list[int] = []
    handle = counting.start(200)
    record = claimed(handle)
    workflows.watch[:] = [lambda _number: rows.append(count_rows("durable_entry", handle.id))]
    try:
        statements = statements_of(lambda: one_pass(record))
    finally:
        workflows.watch.clear()
    assert len(rows) == 11
    assert max(rows) <= 2 * 20 + 1
    assert len(statements) - len(rows) <= 1 + 201 + 10 + 1  # the load, each step, ten prunings, the end


@pytest.mark.parametrize("workflow", [parallel, aparallel])
def test_a_join_is_a_row_and_a_commit_for_each_branch_and_its_own(workflow: Any) -> None:
    handle = workflow.start(100)
    one_pass(claimed(handle))
    assert handle.output == 100
    assert count_rows("durable_entry", handle.id) <= 101
    assert commits_of(handle) <= 101


@pytest.mark.parametrize(
    ("workflow", "most"),
    [
        (asteps, 40),  # of each step the call and the commit
        (acalls, 6),  # commits, until the session has their statement prepared: then the loop sends them itself
    ],
)
def test_what_an_async_step_asks_of_the_thread_that_waits_for_its_loop(
    monkeypatch: pytest.MonkeyPatch, workflow: Any, most: int
) -> None:
    handle = workflow.start(20)
    record = claimed(handle)
    asked = counted_calls(monkeypatch, CurrentThreadExecutor, "submit")
    one_pass(record)
    assert handle.output == 20
    assert len(asked) <= most  # the end of the run is committed when the loop has ended


def test_async_branches_that_are_ready_together_share_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = acalls.start(100, is_joined=True)
    record = claimed(handle)
    asked = counted_calls(monkeypatch, CurrentThreadExecutor, "submit")
    one_pass(record)
    assert handle.output == 100
    assert len(asked) <= 20  # three when the machine is idle
    assert commits_of(handle) <= 20


def connections_opened_by(workflow: Any, *more: Any) -> int:
    """In one job of six joins of twenty."""
    opened: set[Any] = set()

    def note(*, connection: Any, **_: object) -> None:
        opened.add(connection.connection)  # of one that is restored after a step has used it, receivers hear again

    handles = workflow.start_many([(20, *more)] * 6)
    connection_created.connect(note)
    try:
        work_off_all()
    finally:
        connection_created.disconnect(note)
    assert [handle.output for handle in handles] == [20] * 6
    assert not [each for each in threading.enumerate() if each.name == "durable-branch"]
    return len(opened)


def test_branches_commit_through_the_connection_of_their_pass() -> None:
    assert connections_opened_by(parallel) <= 1  # the LeaseManager's, should it renew


def test_branches_that_use_the_database_open_connections_for_their_threads_once() -> None:
    assert connections_opened_by(querying) <= conf.MAX_BRANCH_THREADS + 1


def test_async_branches_open_connections_for_plain_steps_alone() -> None:
    assert connections_opened_by(aquerying, False) <= 1  # as above
    assert 1 < connections_opened_by(aquerying, True) <= conf.MAX_BRANCH_THREADS + 1


@pytest.mark.parametrize(
    "start", [lambda: steps.start(1), lambda: steps.start_many([(1,)] * 1000)], ids=["one", "many"]
)
def test_a_start_is_one_statement_and_one_command_to_redis(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[], object]
) -> None:
    assert len(statements_of(start)) == 1
    commands = counted_commands(monkeypatch)
    assert len(statements_of(start)) == 1
    assert len(commands) <= 1, commands  # the queue has been notified


def test_children_are_started_a_thousand_at_a_time() -> None:
    handle = fan_out.start(3000)
    record = claimed(handle)
    statements = statements_of(lambda: one_pass(record))
    assert len(statements) <= 1 + 3 * 2 + 1  # the load; a statement and a record for each thousand; the end


def test_a_message_is_received_by_a_pass_of_four_statements() -> None:
    handle = receiving.start()
    one_pass(claimed(handle))
    assert len(statements_of(lambda: handle.send("news", 0.0))) <= 2
    record = claimed(handle)
    assert len(statements_of(lambda: one_pass(record))) <= 4  # load, look, receive, end


@pytest.mark.parametrize(
    ("workflow", "arguments", "most", "slots"),
    [
        (steps, (1,), 3, 0),  # the load, the step, the end: what a run without limits costs
        (keyed, ("acme",), 4, 1),  # and the slot of the workflow, which the end gives up
        (slotted, (), 4, 1),  # and the slot of the step, which the step's own commit gives up, and not the end too
        (rated, (), 4, 0),  # and its moment in the rate
    ],
)
def test_an_admission_is_one_statement_and_its_end_a_part_of_one(
    settings: Any, workflow: Any, arguments: tuple[str, ...], most: int, slots: int
) -> None:
    limits = {"benchmarks-step": {"at_once": 1}, "benchmarks-rate": {"rate": "1000/s", "burst": 100}}
    settings.DURABLE = {**settings.DURABLE, "LIMITS": limits}
    workflow.start(*arguments)  # the first one inserts the rows of the limit
    work_off_all()
    handle = workflow.start(*arguments)
    record = claimed(handle)
    statements = statements_of(lambda: one_pass(record))
    assert handle.state == "completed"
    assert len(statements) <= most, statements
    assert sum("durable_change_slots" in each for each in statements) == slots, statements


def test_the_end_of_a_run_with_a_slot_writes_no_note() -> None:
    def notes() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval(pg_get_serial_sequence('durable_slotnote', 'id'))")
            return cursor.fetchone()[0]

    before = notes()
    handle = keyed.start("acme")
    work_off_all()
    assert handle.info().state == "completed"
    assert notes() == before + 1  # the number that is asked for


def counted_calls(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[str]:
    """An element for each call of the method from now on."""
    calls: list[str] = []
    method: Any = getattr(kind, name)

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return method(self, *args, **kwargs)

    monkeypatch.setattr(kind, name, counting)
    return calls


def counted_commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands sent to Redis from now on, those in pipelines too."""
    commands: list[str] = []
    send: Any = redis.connection.AbstractConnection.send_packed_command

    def counting_send(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        commands.append(str(command)[:80])
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counting_send)
    return commands
