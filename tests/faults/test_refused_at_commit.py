"""The database refuses some writes only at COMMIT: passes write all that they say, and verbs tell their callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection

from durable import AsyncContext, Context, workflow
from durable.core.clock import now
from durable.core.control_flow import PassAborted
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.handles import Handle
from durable.models import OperatorAction, QueueMessage, Run
from durable.store import Store
from tests.faults.passing import claimed, production_store

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

TABLES = ("durable_run", "durable_entry", "durable_queuemessage")


@workflow(name="faults.at_commit.plain")
def plain(ctx: Context) -> list[Any]:
    """What a pass may commit: records, an atomic step, a send, a receipt, an answer, a sleep, an end."""
    found = [ctx.step(f"s{number}", int, number) for number in range(4)]
    found.append(ctx.step("atomic", int, 4, atomic=True))
    ctx.queue.send("mail", 5)
    message = ctx.queue.next("mail", names=["mail"], completable=True)
    message.complete("thanks")
    ctx.sleep("rest", 0.2)
    found += ctx.join("both", {"a": lambda c: c.step("x", int, 6), "b": lambda c: c.step("x", int, 7)}).values()
    return [*found, message.body]


@workflow(name="faults.at_commit.async")
async def in_async(ctx: AsyncContext) -> list[Any]:
    """The same in a coroutine."""
    found = [await ctx.step(f"s{number}", int, number) for number in range(4)]
    found.append(await ctx.step("atomic", int, 4, atomic=True))
    await ctx.queue.send("mail", 5)
    message = await ctx.queue.next("mail", names=["mail"], completable=True)
    await message.complete("thanks")
    await ctx.sleep("rest", 0.2)

    async def branch(c: AsyncContext, value: int) -> int:
        answer: int = await c.step("x", int, value)
        return answer

    found += (await ctx.join("both", {"a": lambda c: branch(c, 6), "b": lambda c: branch(c, 7)})).values()
    return [*found, message.body]


@pytest.fixture
def refusing() -> Iterator[Callable[[], int]]:
    """Two transactions out of three that write to runs, entries or messages fail at COMMIT; how many there were."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE refusals")
        cursor.execute(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              IF current_setting('refuse.asked', true) IS DISTINCT FROM txid_current()::text THEN
                PERFORM set_config('refuse.asked', txid_current()::text, true);
                IF abs(hashint4(nextval('refusals')::integer)) % 3 <> 0 THEN -- in no order that a retry could fit
                  RAISE serialization_failure USING MESSAGE = 'refused at COMMIT';
                END IF;
              END IF;
              RETURN NULL;
            END $$
            """
        )
        for table in TABLES:
            cursor.execute(
                f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION refuse()"
            )

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT last_value FROM refusals")
            [value] = cursor.fetchone()
        return int(value)

    yield count
    connection.close()  # an open transaction of a failed test would hold the tables
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION refuse() CASCADE")
        cursor.execute("DROP SEQUENCE refusals")


def persistently(call: Callable[[], Any]) -> Any:
    """Call until the database takes it. It says so with nothing but OperationalError, and nothing has happened then."""
    for _ in range(50):
        try:
            return call()
        except OperationalError as error:
            if "refused at COMMIT" not in str(error):
                raise
    raise AssertionError("the database never took it")


def finish(handle: Handle, store: Store) -> None:
    """Pass the run until it has ended; a pass that an atomic step's COMMIT has ended is followed by another one."""
    for _ in range(100):
        record = persistently(lambda: claimed(handle))
        try:
            execute_pass(record, store=store, eviction=Eviction())
        except PassAborted as aborted:
            if "refused at COMMIT" not in str(aborted):
                raise
            held = [(handle.id, Run.objects.get(pk=handle.id).fence)]
            persistently(partial(store.release, held, now()))
        if handle.state in ("completed", "failed", "cancelled"):
            return
    raise AssertionError("the run never ended")


@pytest.mark.slow
@pytest.mark.parametrize("flow", [plain, in_async])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_pass_records_all_that_it_returned(
    refusing: Callable[[], int], flow: Any, prepared: bool, settings: Any
) -> None:
    settings.DURABLE = {**settings.DURABLE, "PREPARED_STATEMENTS": prepared}
    handle = persistently(flow.using(id="run").start)
    finish(handle, production_store())
    assert handle.output == [0, 1, 2, 3, 4, 6, 7, 5]
    history = {each.location: each.status for each in handle.history()}
    assert {name: history.get(name) for name in ("s0", "s1", "s2", "s3", "atomic")} == dict.fromkeys(
        ("s0", "s1", "s2", "s3", "atomic"), "completed"
    )
    assert [name for name in history if name.endswith("x")] == ["both/a/x", "both/b/x"]
    [message] = QueueMessage.objects.filter(run="run")
    assert (message.state, message.response) == ("completed", '"thanks"')
    assert refusing() >= 30


@pytest.mark.parametrize("verb", ["pause", "cancel", "wake", "restart"])
def test_verbs_raise_the_databases_error_and_may_be_called_again(refusing: Callable[[], int], verb: str) -> None:
    handle = persistently(plain.using(id="run").start)
    before = refusing()
    persistently(getattr(handle, verb))
    assert refusing() > before
    assert OperatorAction.objects.filter(run_id="run", action=verb).count() == 1


def test_starts_and_sends_raise_the_databases_error(refusing: Callable[[], int]) -> None:
    persistently(lambda: plain.using(id="run").start())
    persistently(lambda: plain.start_many([(), ()], ids=["a", "b"]))
    persistently(lambda: Handle("run").send("mail", 1, id="once"))
    assert sorted(Run.objects.values_list("pk", flat=True)) == ["a", "b", "run"]
    assert QueueMessage.objects.count() == 1


def test_the_twins_for_async_code_raise_it_too(refusing: Callable[[], int]) -> None:
    async def persistently_async(call: Callable[[], Any]) -> Any:
        for _ in range(50):
            try:
                return await call()
            except OperationalError as error:
                if "refused at COMMIT" not in str(error):
                    raise
        raise AssertionError("the database never took it")

    async def use() -> None:
        handle = await persistently_async(in_async.using(id="run").astart)
        await persistently_async(lambda: handle.asend("mail", 1, id="once"))
        await persistently_async(handle.apause)

    async_to_sync(use)()
    assert Run.objects.get(pk="run").state == "paused"
    assert QueueMessage.objects.count() == 1


@pytest.mark.slow
def test_a_replay_is_planted_whole_or_not_at_all(refusing: Callable[[], int]) -> None:
    handle = persistently(plain.using(id="run").start)
    finish(handle, production_store())
    copy = persistently(lambda: handle.replay("rest"))
    assert copy.id != "run"
    assert Run.objects.filter(replay_of="run").count() == 1
    assert "s3" in {each.location for each in copy.history()}
