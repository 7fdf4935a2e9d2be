"""Runs execute under an agent whose proxies stand around the driver's connections, and are as safe as without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from durable.conf import conf
from durable.execution.passes import execute_pass
from durable.store import sessions, store_for
from durable.worker.executor import RunExecutor
from durable.worker.presence import ShutdownFlag
from tests.e2e.workers import Workers
from tests.faults.workflows import apolluted, ended_past_django, in_branches, plain, polluted, where_am_i
from tests.support.proxies import WatchedConnection, wrap_connections
from tests.support.waiting import wait_until_ended
from tests.support.worker import lease_manager

WAYS = ["read only", "search_path", "set_config", "temporary table of the engine", "autocommit of the driver", "raw"]


@pytest.fixture
def proxied(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every connection of the test is a proxy."""
    connections.close_all()
    with monkeypatch.context() as patch:
        wrap_connections(patch.setattr)
        yield
        connections.close_all()


@pytest.fixture
def executor(proxied: None) -> Iterator[RunExecutor]:
    stop, store = ShutdownFlag(), store_for(conf.DATABASE)
    with lease_manager(store, stop) as manager:
        yield RunExecutor(store=store, execute=execute_pass, leases=manager, stop=stop)


def work_off(executor: RunExecutor) -> None:
    for record in executor.claim("default", 10, time.monotonic() + 60) or []:
        executor.execute(record)


@pytest.mark.django_db(transaction=True)
def test_a_run_executes_behind_a_proxy(executor: RunExecutor) -> None:
    handle = plain.start(7)
    work_off(executor)
    assert isinstance(connection.connection, WatchedConnection)
    assert handle.output == 7


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_step_changes_in_its_session_is_restored_behind_a_proxy(
    executor: RunExecutor, way: str, *, atomic: bool
) -> None:
    handle = where_am_i.start(way, atomic)
    work_off(executor)
    assert handle.state == "completed", handle.error
    assert handle.result()[0] == handle.result()[1]
    assert isinstance(connection.connection, WatchedConnection)


@pytest.mark.django_db(transaction=True)
def test_the_end_of_an_atomic_step_s_transaction_is_noticed_behind_a_proxy(executor: RunExecutor) -> None:
    handle = ended_past_django.start()
    work_off(executor)
    assert handle.state == "failed"
    assert "ended the transaction of the atomic step" in str(handle.error)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_functions_are_prepared_once_behind_a_proxy(executor: RunExecutor) -> None:
    handles = plain.start_many([(number,) for number in range(10)])
    work_off(executor)
    assert [each.output for each in handles] == list(range(10))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT name) FROM pg_prepared_statements WHERE name LIKE 'durable%'")
        prepared, names = cursor.fetchone()
    assert prepared == names > 0


class _Opaque:
    """A proxy that does not say what it stands for."""

    def __init__(self, inner: object) -> None:
        self.__dict__["inner"] = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["inner"], name, value)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_proxy_that_hides_the_connection_is_looked_behind_too(executor: RunExecutor) -> None:
    connection.ensure_connection()
    inner = connection.connection.__wrapped__
    connection.connection = _Opaque(inner)
    assert sessions.driver_connection(connection) is inner
    handle = where_am_i.start("search_path", False)
    work_off(executor)
    assert handle.state == "completed", handle.error


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_dies_of_what_surrounds_the_database_is_logged_as_an_error(
    executor: RunExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise AttributeError("the agent's proxy has no attribute 'wait'")

    plain.start(1)
    for record in executor.claim("default", 1, time.monotonic() + 60) or []:
        with connection.execute_wrapper(broken):
            executor.execute(record)
    (said,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "was cut short" in said.getMessage()
    assert "has no attribute 'wait'" in logging.Formatter().format(said)
    assert "Traceback" in logging.Formatter().format(said)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("agent", ["wrapt", "ddtrace", "elasticapm"])
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_worker_under_an_agent_ends_every_run(
    child_environment: dict[str, str], tmp_path: Path, agent: str, concurrency: str
) -> None:
    if find_spec(agent) is None:
        pytest.skip(f"{agent} is not installed; .ci/run tries it")
    plain_runs = plain.start_many([(number,) for number in range(20)])
    changing = [each.start(way) for way in WAYS for each in (polluted, apolluted, in_branches)]
    log = tmp_path / "worker.log"
    environment = child_environment | {"AGENT": agent, "DD_TRACE_ENABLED": "true", "ELASTIC_APM_DISABLE_SEND": "true"}
    with Workers(1, environment, log, settings="tests.faults.agents", options=["--concurrency", concurrency]):
        wait_until_ended(log)
    said = log.read_text(errors="replace")
    assert [each.output for each in plain_runs] == list(range(20)), said
    assert [each.output for each in changing] == ["done"] * len(changing), said
    assert "cannot claim" not in said
