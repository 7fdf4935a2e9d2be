"""A database whose host vanishes without closing its connections: workers say so, and go on with new ones."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from django.db import OperationalError, connections
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable import AsyncContext, Context, workflow
from durable.conf import conf
from durable.handles import Handle
from durable.models import Run
from durable.store import store_for
from durable.worker import unanswered
from durable.worker.presence import ShutdownFlag
from durable.worker.timer import Timer
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.databases import migrated
from tests.support.networks import Network
from tests.support.waiting import eventually
from tests.support.worker import work_off

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]

ALIAS = "vanishing"
LOCK = 4711

_strike: Callable[[], Any] = list


def strike() -> str:
    """Work, during which the host vanishes, once."""
    global _strike
    struck, _strike = _strike, list
    struck()
    return "done"


@workflow(name="faults.unanswered")
def plain(ctx: Context) -> str:
    return ctx.step("strike", strike)


@workflow(name="faults.unanswered_atomic")
def atomic(ctx: Context) -> str:
    return ctx.step("strike", strike, atomic=True)


@workflow(name="faults.unanswered_async")
async def asynchronous(ctx: AsyncContext) -> str:
    return await ctx.step("strike", strike)


def strike_and_close() -> str:
    try:
        return strike()
    finally:
        connections.close_all()  # this thread's


async def strike_beside_the_loop() -> str:
    return await asyncio.to_thread(strike_and_close)


async def nothing() -> None:
    """Do nothing: the step is committed."""


@workflow(name="faults.unanswered_on_loop")
async def on_loop(ctx: AsyncContext) -> str:
    for number in range(8):  # until the session has the statement prepared
        await ctx.step(f"step-{number}", nothing)
    return await ctx.step("strike", strike_beside_the_loop)


@workflow(name="faults.unanswered_branches")
def branches(ctx: Context) -> str:
    found = ctx.join("both", {"one": lambda c: c.step("strike", strike, atomic=True), "two": lambda c: 2})
    return str(found["one"])


def ask_at_length() -> str:
    """Lose all connections but the one that asks something whose answer takes long."""
    strike()
    connection = connections[ALIAS]
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s), pg_advisory_unlock(%s)", [LOCK, LOCK])
    return "answered"


@workflow(name="faults.unanswered_question")
def asking(ctx: Context) -> str:
    return ctx.step("ask", ask_at_length, max_retries=0, timeout=0)


_ended: list[str] = []


def ask() -> str:
    """Ask the database something short. Note the error if the question is ended."""
    strike()
    try:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SELECT 'answered'")
            [answer] = cursor.fetchone()
    except OperationalError as error:
        _ended.append(str(error))
        raise
    return str(answer)


@workflow(name="faults.unanswered_by_another")
def asking_again(ctx: Context, *, atomic: bool) -> str:
    return ctx.step("ask", ask, timeout=0, atomic=atomic)


@pytest.fixture(scope="module")
def directly(postgres_server: EmbeddedPostgres) -> str:
    """The database's URL past the network."""
    return postgres_server.create_database(ALIAS)


@pytest.fixture(scope="module")
def network(directly: str, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Network]:
    config = database_from(directly)
    path = Path(config["HOST"]) / f".s.PGSQL.{config['PORT']}"
    with Network(path) as network:
        config = {**config, "HOST": "127.0.0.1", "PORT": str(network.port)}
        with django_db_blocker.unblock(), migrated(ALIAS, config):
            yield network


@pytest.fixture(autouse=True)
def short_lease(
    network: Network, django_db_blocker: DjangoDbBlocker, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(unanswered._log_this, "_said", {})
    with django_db_blocker.unblock(), override_settings(DURABLE={"DATABASE": ALIAS, "LEASE": 1.5}):
        yield


@contextmanager
def worker(network: Network, handle: Handle[Any], pulse: Callable[[], object] | None = None) -> Iterator[None]:
    """A worker in a thread of its own, which does one job after the other until the run has ended."""
    stop = ShutdownFlag()

    def run() -> None:
        while not stop.requested and handle.info().state not in ("completed", "failed"):
            work_off(conf.QUEUE, store=store_for(ALIAS), stop=stop, pulse=pulse)
        connections.close_all()

    connections[ALIAS].close()  # this thread's, which would get no answer either
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
        thread.join(300)
        assert not thread.is_alive()
    finally:
        stop.request()


def lose_after_renewal(network: Network) -> None:
    """Let the host vanish when the thread of the leases has a connection, too."""

    def lease() -> object:
        return Run.objects.using(ALIAS).values_list("lease_expires_at", flat=True).get(state="running")

    before = lease()
    eventually(lambda: lease() != before)
    network.lose_connections()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "has not answered" in each.getMessage()]


@pytest.mark.parametrize(
    ("flow", "lose"),
    [
        (plain, Network.lose_connections),
        (plain, lose_after_renewal),
        (atomic, lose_after_renewal),
        (asynchronous, Network.lose_connections),
        (on_loop, Network.lose_connections),
        (on_loop, lose_after_renewal),
        (branches, Network.lose_connections),
    ],
    ids=["pass", "pass and leases", "atomic and leases", "async", "loop", "loop and leases", "branch"],
)
def test_a_worker_goes_on_whose_statements_get_no_answer(
    network: Network, caplog: pytest.LogCaptureFixture, flow: Any, lose: Callable[[Network], None]
) -> None:
    global _strike
    _strike = partial(lose, network)
    handle = flow.start()
    with caplog.at_level(logging.WARNING, logger="durable"), worker(network, handle):
        pass
    assert handle.output == "done"
    (line,) = said(caplog)
    assert "docs/guides/deploying.md" in line


def test_what_the_code_of_a_step_asks_the_database_is_not_ended(
    network: Network, directly: str, caplog: pytest.LogCaptureFixture
) -> None:
    global _strike
    _strike = partial(lose_after_renewal, network)
    pulses: list[None] = []
    handle = asking.start()
    holding = psycopg.connect(directly)
    holding.execute("SELECT pg_advisory_lock(%s)", [LOCK])
    with caplog.at_level(logging.WARNING, logger="durable"), worker(network, handle, lambda: pulses.append(None)):
        eventually(lambda: bool(said(caplog)))
        seen = len(pulses)
        eventually(lambda: len(pulses) > seen + 3)
        holding.close()
    assert handle.output == "answered"


@pytest.mark.parametrize("atomic", [False, True])
def test_what_a_step_asks_a_server_that_another_one_has_replaced_is_ended(
    network: Network, directly: str, caplog: pytest.LogCaptureFixture, atomic: bool
) -> None:
    """The new server has no such session, so it executes nothing for the step; the leases are renewed there.

    Where that took longer than a lease, the pass is evicted and records nothing: another one calls the step again.
    """
    global _strike

    def fail_over() -> None:
        connections[ALIAS].ensure_connection()
        lose_after_renewal(network)
        with psycopg.connect(directly, autocommit=True) as session:
            session.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    _strike = fail_over
    _ended.clear()
    handle = asking_again.start(atomic=atomic)
    with caplog.at_level(logging.WARNING, logger="durable"), worker(network, handle):
        pass
    assert handle.output == "answered"
    assert len(_ended) == 1


def test_a_statement_that_waits_for_a_lock_is_not_ended(
    network: Network, directly: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is busy with it, and the pass would have to do its work again."""
    global _strike
    holding, asked = psycopg.connect(directly), threading.Event()
    is_lost = unanswered._is_lost

    def noting(connection: Any, lost: str) -> bool:
        found = is_lost(connection, lost)
        asked.set()
        return found

    monkeypatch.setattr(unanswered, "_is_lost", noting)
    _strike = partial(holding.execute, "SELECT id FROM durable_run FOR UPDATE")
    handle = plain.start()
    with caplog.at_level(logging.WARNING, logger="durable"), worker(network, handle):
        assert asked.wait(300)
        holding.close()
    assert handle.output == "done"
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_timer_goes_on_whose_statement_gets_no_answer(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    store = store_for(ALIAS)
    with caplog.at_level(logging.WARNING, logger="durable"), Timer(store) as timer:
        eventually(lambda: timer.succeeded_at is not None)
        before = timer.succeeded_at
        network.lose_connections()
        eventually(lambda: timer.succeeded_at != before)
