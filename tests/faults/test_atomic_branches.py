"""Branches of one run at once: atomic steps do not wait in a circle, and a mistake in one hides no other work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from durable import AsyncContext, Context, get_run, workflow
from durable.core import clock
from durable.core.control_flow import PassAborted
from durable.models import Limit, Run, Slot
from project.shop.models import Mail
from tests.faults.passing import pass_once, production_store
from tests.support.locks import sessions, until_sessions_wait_for_locks
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


_has_locked = threading.Event()


def post_and_send(run: str) -> str:
    """Lock the run's own row, and go on once its other branch waits for it."""
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key=run)
    get_run(run).send("mail", "from myself")
    _has_locked.set()
    until_sessions_wait_for_locks()
    return "sent"


@workflow(name="faults.atomic_branches")
def branching(ctx: Context) -> list[Any]:
    def atomic(c: Context) -> Any:
        return c.step("send", post_and_send, ctx.run_id, atomic=True)

    def plain(c: Context) -> Any:
        return c.step("wait", _has_locked.wait, 20)

    both = ctx.join("both", {"atomic": atomic, "plain": plain})
    return [both, ctx.queue.next("own", names=["mail"]).body]


def test_a_step_that_sends_to_its_own_run_does_not_deadlock_with_another_branch() -> None:
    """The plain step's commit waits for the row that the atomic step has locked; that one must not wait for it."""
    _has_locked.clear()
    handle = branching.start()
    outcome = pass_once(handle)
    assert outcome.output == [{"atomic": "sent", "plain": True}, "from myself"]
    assert [step.attempts for step in handle.history() if step.kind == "step"] == [1, 1]
    assert Mail.objects.count() == 1


_both = threading.Barrier(2)


def write(name: str) -> int:
    """Write beside the other branch, each on a connection of its own."""
    _both.wait(120)
    Mail.objects.create(to=name, subject="purr", body="", idempotency_key=name)
    _both.wait(120)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [(pid,)] = cursor.fetchall()
    return int(pid)


def write_atomically(name: str) -> bool:
    Mail.objects.create(to=name, subject="purr", body="", idempotency_key=name)
    return connection.in_atomic_block


@workflow(name="faults.async_branches")
async def writing(ctx: AsyncContext) -> dict[str, Any]:
    async def branch(c: AsyncContext, name: str) -> tuple[int, bool]:
        pid = await c.step("write", write, name)
        return pid, await c.step("atomic", write_atomically, f"{name} again", atomic=True)

    return await ctx.join("both", {"a": lambda c: branch(c, "a"), "b": lambda c: branch(c, "b")})


def test_synchronous_steps_of_async_branches_use_the_orm_at_the_same_time() -> None:
    before = sessions()
    outcome = pass_once(writing.start())
    (first, is_first_atomic), (second, is_second_atomic) = outcome.output["a"], outcome.output["b"]
    assert first != second
    assert is_first_atomic
    assert is_second_atomic
    assert Mail.objects.count() == 4
    eventually(lambda: sessions() <= before)


_has_ended = threading.Event()


@workflow(name="faults.limited_branches")
def limited(ctx: Context) -> Any:
    def one(c: Context) -> str:
        found = c.step("s", lambda: "one", limit="faults-branches", atomic=True)
        _has_ended.set()
        return found

    def two(c: Context) -> str:
        assert _has_ended.wait(60)
        return c.step("s", lambda: "two", limit="faults-branches", atomic=True)

    return ctx.join("both", {"one": one, "two": two})


@pytest.fixture
def refused_slot() -> Iterator[None]:
    """The database refuses the slot of the second branch once, as it does when it cannot serialize two transactions."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE refusals")
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.location = 'both/two/s' AND "
            "nextval('refusals') = 1 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$"
        )
        cursor.execute("CREATE TRIGGER refuse BEFORE INSERT ON durable_slot FOR EACH ROW EXECUTE FUNCTION refuse()")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER refuse ON durable_slot")
        cursor.execute("DROP FUNCTION refuse()")
        cursor.execute("DROP SEQUENCE refusals")


@pytest.mark.usefixtures("refused_slot")
def test_an_atomic_step_gives_up_its_slot_in_its_own_transaction() -> None:
    """The pass is cut short where the other branch asks for the only slot: its next pass need not wait for itself."""
    _has_ended.clear()
    Limit.objects.create(name="faults-branches", at_once=1)
    handle = limited.start()
    with pytest.raises(PassAborted, match="refused"):
        pass_once(handle)
    assert not Slot.objects.exists()
    production_store().release([(handle.id, Run.objects.get(pk=handle.id).fence)], clock.now())
    assert pass_once(handle).output == {"one": "one", "two": "two"}
    assert not Slot.objects.exists()


# -- A mistake in one branch while others are at work, in threads or tasks of their own


LEDGER: list[str] = []
CODE = {"is wrong": True}
MISTAKEN = threading.Event()
AT_WORK = threading.Event()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    LEDGER.clear()
    CODE["is wrong"] = True
    MISTAKEN.clear()
    AT_WORK.clear()
    yield
    MISTAKEN.set()


def do(name: str) -> str:
    LEDGER.append(name)
    return name


def undo(_rollback: Any, name: str) -> None:
    LEDGER.append(f"undo {name}")


def work_on(name: str) -> str:
    """A step that is under way when another branch makes its mistake."""
    AT_WORK.set()
    assert MISTAKEN.wait(60)
    return do(name)


async def work_on_async(name: str) -> str:
    AT_WORK.set()
    await reached(MISTAKEN)
    return do(name)


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 60)


def err() -> None:
    if CODE["is wrong"]:
        assert AT_WORK.wait(60)
        MISTAKEN.set()
        raise KeyError("a typo")
    MISTAKEN.set()


@workflow(name="tests.mistaken_branches")
def in_threads(ctx: Context) -> dict[str, Any]:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", do, "charge", rollback=undo)

    def wrong(c: Context) -> str:
        err()
        return str(c.step("after", do, "after"))

    def good(c: Context) -> str:
        c.step("work", work_on, "work", rollback=undo)
        return str(c.step("more", do, "more"))

    return ctx.join("j", {"good": good, "wrong": wrong})


@workflow(name="tests.mistaken_tasks")
async def in_tasks(ctx: AsyncContext) -> dict[str, Any]:
    await ctx.rollback_checkpoint("from here")
    await ctx.step("charge", do, "charge", rollback=undo)

    async def wrong(c: AsyncContext) -> str:
        await reached(AT_WORK)
        err()
        return str(await c.step("after", do, "after"))

    async def good(c: AsyncContext) -> str:
        await c.step("work", work_on_async, "work", rollback=undo)
        return str(await c.step("more", do, "more"))

    return await ctx.join("j", {"wrong": wrong, "good": good})


@pytest.mark.parametrize("flow", [in_threads, in_tasks])
def test_the_others_keep_what_they_did(flow: Any) -> None:
    run = flow.start()
    pass_once(run)
    row = Run.objects.get(pk=run.id)
    assert (row.state, row.error) == ("sleeping", None)
    assert row.summary.startswith("a mistake in the code, trying again until the grace period ends: KeyError")
    assert not [each for each in LEDGER if each.startswith("undo")]
    assert "more" not in LEDGER, "the others end at their next operation"
    CODE["is wrong"] = False
    run.wake()
    pass_once(run)
    assert run.output == {"good": "more", "wrong": "after"}
    assert sorted(LEDGER) == ["after", "charge", "more", "work"]
