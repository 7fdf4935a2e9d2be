"""`manage.py durable_worker --concurrency N` as a process: real PostgreSQL, real Redis, signals, kill -9."""

import os
import signal

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.utils import timezone

from durable import get_run
from durable.core.records import RunState
from durable.inspection.workers import worker_overview
from durable.management.commands.durable_worker import _too_small_pools
from durable.store import Store
from project.servers import EmbeddedRedis
from tests.support.locks import sessions
from tests.support.processes import Run, flow_log, is_alive, is_completed, start_run
from tests.support.runs import state
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def work(run: Run) -> Run:
    """Start a `durable_worker` of one process with so many slots."""
    return lambda concurrency, **extra: run("durable_worker", f"--concurrency={concurrency}", **extra)


def go(redis_connection: redis.Redis, *names: str) -> None:
    for name in names:
        redis_connection.set(f"go {name}", "1")


def test_a_busy_worker_hears_of_others(store: Store, work: Run, redis_connection: redis.Redis) -> None:
    """Two synchronous and two asynchronous steps are under way in one process, and do not end by themselves."""
    before = sessions() if connection.vendor == "postgresql" else set()
    program = work(5)
    (pid,) = program.pids()
    names = ["a", "b", "c", "d"]
    flows = ["flows.long", "flows.long", "flows.along", "flows.along"]
    ids = [start_run(store, flow, name) for flow, name in zip(flows, names, strict=True)]
    eventually(lambda: len(flow_log(redis_connection)) == 4)
    assert {line.rpartition(" ")[2] for line in flow_log(redis_connection)} == {str(pid)}

    listener = start_run(store, "flows.hears", "e")
    eventually(lambda: state(store, listener).state == RunState.SLEEPING)
    get_run(listener).send("news", "peace")
    eventually(lambda: is_completed(store, listener))
    assert f"e heard peace {pid}" in flow_log(redis_connection)

    endless = start_run(store, "flows.endless", "f")
    eventually(lambda: is_completed(store, endless))
    assert f"f timeout {pid}" in flow_log(redis_connection)

    [worker] = worker_overview().workers
    assert (worker.pid, worker.state) == (pid, "busy")
    assert sorted(each.id for each in worker.runs) == sorted(ids)
    if connection.vendor == "postgresql":
        # threads, main thread, LeaseManager; and the timer and the sweep of the parent
        assert len(sessions() - before) <= (5 + 2) + 2

    go(redis_connection, *names)
    eventually(lambda: is_completed(store, *ids))
    assert program.end() == 0


def test_sigterm_hands_all_over_at_once(store: Store, work: Run, redis_connection: redis.Redis) -> None:
    program = work(3)
    program.pids()
    names = ["a", "b", "c", "d"]
    ids = [start_run(store, "flows.along" if name == "b" else "flows.long", name) for name in names]
    eventually(lambda: len(flow_log(redis_connection)) == 3)
    assert program.end() == 0
    found = [state(store, each) for each in ids]
    assert {(each.lease_expires_at, each.crashes) for each in found} == {(None, 0)}
    assert all(each.wake_at is not None and each.wake_at <= timezone.now() for each in found)


def test_what_a_killed_worker_held_goes_on_run_by_run(store: Store, work: Run, redis_connection: redis.Redis) -> None:
    """Any of them may have killed it: each is passed alone."""
    program = work(4)
    (pid,) = program.pids()
    names = ["a", "b", "c", "d"]
    ids = [start_run(store, "flows.long", name) for name in names]
    eventually(lambda: len(flow_log(redis_connection)) == 4)
    redis_connection.delete("flows")
    os.kill(pid, signal.SIGKILL)
    program.wait_for(f"died, pid {pid}, signal 9")
    go(redis_connection, *names)
    eventually(lambda: is_completed(store, *ids))
    begun = [line.split()[0] for line in flow_log(redis_connection)]
    assert sorted(begun) == sorted(names * 2)
    assert begun[::2] == begun[1::2], "one began before another one had ended"
    assert program.end() == 0


def test_workers_end_with_a_parent_that_is_killed(store: Store, work: Run, redis_connection: redis.Redis) -> None:
    program = work(2)
    (pid,) = program.pids()
    ids = [start_run(store, "flows.long", name) for name in ("a", "b")]
    eventually(lambda: len(flow_log(redis_connection)) == 2)
    program.process.kill()
    eventually(lambda: not is_alive(pid))
    assert {(state(store, each).lease_expires_at, state(store, each).crashes) for each in ids} == {(None, 0)}


def test_a_redis_that_restarts_empty_loses_nothing(store: Store, work: Run) -> None:
    with EmbeddedRedis() as own:
        program = work(2, REDIS_URL=own.url)
        program.pids()
        before = start_run(store, "flows.one", "before")  # notifies another Redis: the sweep has to find it
        eventually(lambda: is_completed(store, before))
        own.stop("kill")
        during = [start_run(store, "flows.one", f"during {number}") for number in range(3)]
        own.start()
        eventually(lambda: is_completed(store, *during))
        assert program.end() == 0


@pytest.mark.parametrize(
    ("pool", "concurrency", "size"),
    [(True, 8, 4), ({"max_size": 9}, 8, 9), ({"min_size": 2}, 2, 2), ({"max_size": 10}, 8, None), (False, 8, None)],
)
def test_a_pool_in_which_passes_would_wait_for_each_other_is_reported(
    monkeypatch: pytest.MonkeyPatch, pool: object, concurrency: int, size: int | None
) -> None:
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "pool", pool)
    warnings = list(_too_small_pools(concurrency))
    assert len(warnings) == (size is not None)
    if warnings:
        assert f'DATABASES["default"] has {size} connections' in warnings[0]
        assert f"--concurrency {concurrency} uses up to {concurrency + 2}" in warnings[0]


def test_it_is_at_least_one() -> None:
    with pytest.raises(CommandError, match="--concurrency must be at least 1, not 0"):
        call_command("durable_worker", concurrency=0)
