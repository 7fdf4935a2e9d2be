"""What async code calls, on a real database: no connection outlives its call, and one that was cut is replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path
from django_tasks import default_task_backend, task

from durable import AsyncContext, Context, Handle, aget_run, workflow
from durable.models import Run
from durable.store import store_for
from durable.testing import Harness
from tests.api.serving import asgi_server
from tests.support.databases import only_with_a_server
from tests.support.waiting import eventually
from tests.support.worker import work_off

pytestmark = [
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_connection", "no_outages"),
]
MANY = 12


@workflow(name="tests.twins.double")
def double(ctx: Context, number: int) -> int:
    return number * 2


@workflow(name="tests.twins.answer")
def answer(ctx: Context) -> str:
    message = ctx.queue.next("ask", names=["ask"], completable=True)
    message.complete(message.body * 2)
    return "answered"


@workflow(name="tests.twins.nested")
async def nested(ctx: AsyncContext, number: int) -> int:
    """Waits for another run within an async step, and counts rows in a plain one."""

    async def wait() -> int:
        run = await double.using(id=f"{ctx.run_id}-child").astart(number)
        return int(await run.aresult(timeout=60))

    doubled: int = await ctx.step("wait", wait)
    return doubled + int(await ctx.step("count", int))


@task
def shout(text: str) -> str:
    return text.upper()


def pass_all() -> None:
    work_off("default", store=store_for("default"))


def pass_all_elsewhere() -> None:
    """In a thread and on a connection of its own, as a worker would."""

    def work() -> None:
        try:
            pass_all()
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def other_sessions() -> set[int]:
    """The processes of PostgreSQL that serve other connections to this database than the one of this thread."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in cursor.fetchall()}


def cut_others() -> None:
    with connection.cursor() as cursor:
        for pid in other_sessions():
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    eventually(lambda: not other_sessions())


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """An event loop without Django's request cycle; its thread of synchronous code ends without a connection."""
    with asyncio.Runner() as runner:
        yield runner
        runner.run(sync_to_async(connections.close_all)())


async def call_each(run: Handle, started: Handle) -> list[Any]:
    """Every kind of call from async code."""
    return [
        await (await aget_run(run.id)).aresult(timeout=60),
        await (await double.using(id="again").astart(2)).ahistory(),
        await started.asend("other", 1, id="once"),
        await run.arestart(id="restarted"),
    ]


class TestPlainLoop:
    def test_waits_at_once_leave_no_session(self, loop: asyncio.Runner) -> None:
        only_with_a_server()
        runs = [double.start(number) for number in range(MANY)]

        async def wait() -> list[Any]:
            waits = [asyncio.create_task(run.aresult(timeout=60)) for run in runs]
            await asyncio.sleep(0)
            await asyncio.to_thread(pass_all_elsewhere)
            return await asyncio.gather(*waits)

        assert loop.run(wait()) == [number * 2 for number in range(MANY)]
        eventually(lambda: not other_sessions())

    @pytest.mark.slow
    def test_more_waits_than_threads_end_at_their_time(self, loop: asyncio.Runner) -> None:
        runs = [double.start(number) for number in range(100)]  # more than an executor has threads

        async def wait() -> list[Any]:
            return await asyncio.gather(*(run.aresult(timeout=0.01) for run in runs), return_exceptions=True)

        assert {type(each) for each in loop.run(wait())} == {TimeoutError}

    def test_an_ask_is_answered_and_leaves_no_session(self, loop: asyncio.Runner) -> None:
        only_with_a_server()
        run = answer.start()

        async def ask() -> Any:
            asked = asyncio.create_task(run.aask("ask", 21, timeout=60))
            await asyncio.to_thread(eventually, lambda: _in_thread_of_its_own(_has_message))
            await asyncio.to_thread(pass_all_elsewhere)
            return await asked

        assert loop.run(ask()) == 42
        eventually(lambda: not other_sessions())

    def test_a_task_that_is_enqueued_leaves_no_session(self, loop: asyncio.Runner) -> None:
        only_with_a_server()

        async def enqueue() -> str:
            result = await shout.aenqueue("a")
            return str((await default_task_backend.aget_result(result.id)).status)

        with override_settings(TASKS={"default": {"BACKEND": "durable.tasks.backport.DurableBackend"}}):
            assert loop.run(enqueue()) == "READY"
        eventually(lambda: not other_sessions())

    @pytest.mark.parametrize("call", [call_each, None], ids=["calls", "waits"])
    def test_a_session_that_was_cut_is_replaced(
        self, loop: asyncio.Runner, call: Callable[[Handle, Handle], Awaitable[Any]] | None
    ) -> None:
        """Also one that the code of the loop has opened, and keeps."""
        only_with_a_server()
        run, waiting = double.start(21), answer.start()
        pass_all()

        async def everything() -> Any:
            if call is not None:
                return await call(run, waiting)
            return await asyncio.gather(*(run.aresult(timeout=60) for _ in range(MANY)))

        before = loop.run(everything())
        loop.run(sync_to_async(Run.objects.count)())
        assert len(other_sessions()) == 1  # the loop's own
        cut_others()
        assert loop.run(everything()) == before
        assert len(other_sessions()) == 1


def _has_message() -> bool:
    from durable.models import QueueMessage

    return QueueMessage.objects.exists()


def _in_thread_of_its_own(look: Callable[[], bool]) -> bool:
    try:
        return look()
    finally:
        connection.close()


async def wait_for_a_run(request: HttpRequest, run_id: str) -> JsonResponse:
    run = await aget_run(run_id)
    return JsonResponse({"output": await run.aresult(timeout=60)})


urlpatterns = [path("wait/<str:run_id>", wait_for_a_run)]


def test_a_server_goes_on_after_its_sessions_were_cut() -> None:
    only_with_a_server()
    run = double.start(21)
    pass_all()
    with override_settings(ROOT_URLCONF=__name__), asgi_server() as address:

        async def ask_all() -> list[Any]:
            async with httpx.AsyncClient(timeout=120) as client:
                answers = await asyncio.gather(*(client.get(f"{address}/wait/{run.id}") for _ in range(MANY)))
                return [each.json() for each in answers]

        assert asyncio.run(ask_all()) == [{"output": 42}] * MANY
        eventually(lambda: not other_sessions())
        cut_others()
        assert asyncio.run(ask_all()) == [{"output": 42}] * MANY
        eventually(lambda: not other_sessions())


def test_a_wait_belongs_to_the_transaction_of_its_caller() -> None:
    async def start_and_wait() -> None:
        run = await double.astart(21)
        assert run.id == (await aget_run(run.id)).id
        with pytest.raises(TimeoutError, match="wait after it"):
            await run.aresult(timeout=0.01)

    with transaction.atomic():
        async_to_sync(start_and_wait)()
        assert connection.in_atomic_block
        transaction.set_rollback(True)
    assert not Run.objects.exists()


def test_a_cancelled_wait_ends_at_once(loop: asyncio.Runner) -> None:
    run = double.start(21)

    async def give_up() -> None:
        async with asyncio.timeout(0.01):
            await run.aresult()

    with pytest.raises(TimeoutError):
        loop.run(give_up())


async def test_under_a_harness_what_is_due_happens_meanwhile() -> None:
    with Harness():
        run = await double.astart(21)
        assert await run.aresult(timeout=1) == 42
        assert await (await nested.astart(4)).aresult(timeout=1) == 8
        asked = await answer.astart()
        assert await asked.aask("ask", 2, timeout=1) == 4
