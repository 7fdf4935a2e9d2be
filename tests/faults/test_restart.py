"""A PostgreSQL that is away for seconds, on a server of the test's own: what a step has done is kept, and done once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable import AsyncContext, Context, workflow
from durable.conf import conf
from durable.store import store_for
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.databases import migrated
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow]

ALIAS = "restarting"
AWAY = 1.0  # seconds

_calls: list[str] = []
_strike: Callable[[], Any] = list


def work(name: str) -> str:
    """Do something once, in whose middle the server goes down."""
    _calls.append(name)
    _strike()
    return name


@workflow(name="faults.restart")
def restarted(ctx: Context) -> list[str]:
    return [ctx.step("plain", work, "plain"), ctx.step("next", str, "next")]


@workflow(name="faults.restart_async")
async def restarted_async(ctx: AsyncContext) -> list[str]:
    return [await ctx.step("plain", work, "plain"), await ctx.step("next", str, "next")]


@workflow(name="faults.restart_branches")
def restarted_branches(ctx: Context) -> list[str]:
    def one(c: Context) -> Any:
        return c.step("plain", work, "one")

    def two(c: Context) -> Any:
        return c.step("plain", work, "two")

    return sorted(ctx.join("both", {"one": one, "two": two}).values())


@pytest.fixture(scope="module")
def server(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[EmbeddedPostgres]:
    with (
        EmbeddedPostgres(fsync=False) as server,
        django_db_blocker.unblock(),
        migrated(ALIAS, database_from(server.url)),
        override_settings(DURABLE={"DATABASE": ALIAS, "LEASE": 30.0}),
    ):
        yield server


@pytest.fixture
def outage(server: EmbeddedPostgres) -> Iterator[threading.Event]:
    """The next step that works stops the server, which is back a second later; set once it is."""
    global _strike
    is_back = threading.Event()

    def start_again() -> None:
        server.start()
        is_back.set()

    def strike() -> None:
        global _strike
        _strike = list
        server.stop("immediate")
        threading.Timer(AWAY, start_again).start()

    _calls.clear()
    _strike = strike
    yield is_back
    _strike = list
    assert is_back.wait(120)


@pytest.mark.parametrize(
    ("flow", "calls", "output"),
    [
        (restarted, ["plain"], ["plain", "next"]),
        (restarted_async, ["plain"], ["plain", "next"]),
        (restarted_branches, ["one", "two"], ["one", "two"]),
    ],
    ids=["sync", "async", "branches"],
)
def test_a_step_that_finished_while_the_server_was_away_is_not_run_again(
    outage: threading.Event, redis_connection: redis.Redis, flow: Any, calls: list[str], output: list[str]
) -> None:
    handle = flow.start()
    work_off(conf.QUEUE, store=store_for(ALIAS), seconds=120)
    assert handle.output == output
    assert sorted(_calls) == calls
    assert {each.attempts for each in handle.history() if each.kind == "step"} == {1}
