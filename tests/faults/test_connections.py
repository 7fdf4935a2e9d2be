"""Connections that the server cuts at a chosen statement, locks that time out, and what a worker makes of it.

The worker's own backend is terminated from another connection, as a failover or an administrator would, at every
statement of a run's life: before it, after it, and at the commit of an atomic step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import redis
from django.db import connection, connections, transaction
from django.utils import timezone

from durable import Context, Handle, current_step, get_run, workflow
from durable.core.control_flow import PassAborted
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.models import Entry, Run
from durable.store import store_for
from project.shop.models import Mail
from tests.faults.workflows import post
from tests.support.locks import other_session
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


def cut() -> None:
    """Terminate this thread's database session from another one, and wait until it is gone."""
    pid = connection.connection.info.backend_pid
    with psycopg.connect(**other_session()) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


class Cutter:
    """Cuts the connection at one statement or commit, counted from 1; `how` is "before" or "after"."""

    def __init__(self, number: int, how: str) -> None:
        self.number = number
        self.how = how
        self.seen: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        return self.around(lambda: execute(sql, params, many, context), sql[:60])

    def around(self, call: Callable[[], Any], what: str) -> Any:
        self.seen.append(what)
        is_here = len(self.seen) == self.number
        if is_here and self.how == "before":
            cut()
        answer = call()
        if is_here and self.how == "after":
            cut()
            with connection.wrap_database_errors:
                connection.connection.execute("SELECT 1")  # notices: the answer is lost
        return answer


@contextmanager
def cutting(cutter: Cutter, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    commit = connection._commit  # type: ignore[attr-defined]  # what every commit comes to
    with monkeypatch.context() as patch, connection.execute_wrapper(cutter):
        patch.setattr(connection, "_commit", lambda: cutter.around(commit, "COMMIT"))
        yield


_calls: list[str] = []


def fail_once() -> None:
    if current_step().attempt == 1:
        raise ValueError("not yet")


def work(run: str) -> int:
    _calls.append(run)
    return 1


@workflow(name="faults.cut")
def cut_off(ctx: Context) -> list[Any]:
    """An atomic step, a plain one, one that fails at first, a message sent, a message received, another atomic step."""
    ctx.step("first", post, f"{ctx.run_id} first", atomic=True, max_retries=5, retry_backoff_base=0)
    value = ctx.step("plain", work, ctx.run_id, max_retries=5, retry_backoff_base=0)
    ctx.step("flaky", fail_once, max_retries=5, retry_backoff_base=0)
    ctx.queue.send("echo", "sent")
    message = ctx.queue.next("wait", names=["go"])
    ctx.step("last", post, f"{ctx.run_id} last", atomic=True, max_retries=5, retry_backoff_base=0)
    return [value, message.body]


def work_until_ended(
    handle: Handle, around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
) -> None:
    """Shifts, as RQ would start them; a lease without a worker expires between them."""
    for _ in range(8):
        with around():
            work_off("default", store=store_for("default"), seconds=120)
        connections.close_all()
        run = Run.objects.get(pk=handle.id)
        if run.state in ("completed", "failed"):
            return
        Run.objects.filter(pk=handle.id, lease_expires_at__isnull=False).update(
            lease_expires_at=timezone.now() - timedelta(seconds=1)
        )
    pytest.fail(f"the run has not ended: {Run.objects.filter(pk=handle.id).values()}")


def live_through(cutter: Cutter, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = cut_off.start()
    handle.send("go", "on")
    work_until_ended(handle, lambda: cutting(cutter, monkeypatch))
    assert (handle.state, handle.output) == ("completed", [1, "on"]), (handle.error, cutter.seen)
    assert _calls.count(handle.id) == 1, "its result waits until the database answers"
    keys = sorted(Mail.objects.values_list("idempotency_key", flat=True))
    assert keys == [f"{handle.id} first", f"{handle.id} last"], cutter.seen
    drawn = Entry.objects.filter(run=handle.id).values_list("ordinal", flat=True)
    assert len(set(drawn)) == len(drawn) == 6
    store = store_for("default")
    attempts = [(each.location, each.number) for each in store.attempts(handle.id)]
    assert attempts.count(("flaky", 1)) == 1, cutter.seen
    assert len(set(attempts)) == len(attempts), cutter.seen
    assert set(attempts) <= {("flaky", 1), ("first", 1), ("last", 1)}, "an atomic step that was cut off has failed once"
    assert [(each.queue, each.order) for each in store.messages(handle.id)] == [("go", 1), ("echo", 2)], cutter.seen


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_that_is_cut_at_any_statement_changes_nothing(
    how: str, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Cutter(0, how)
    live_through(undisturbed, monkeypatch)
    assert "COMMIT" in undisturbed.seen
    for number in range(1, len(undisturbed.seen) + 1):
        Mail.objects.all().delete()
        live_through(Cutter(number, how), monkeypatch)


def test_a_flush_that_waits_too_long_for_a_lock_is_made_again(redis_connection: redis.Redis) -> None:
    """`statement_timeout` cancels the flush while a sender's long transaction holds the run's row."""
    handle = cut_off.start()
    handle.send("go", "on")
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Run.objects.select_for_update().get(pk=handle.id)
            held.set()
            let_go.wait(120)
        connections.close_all()

    run = store_for("default").claim_run(
        handle.id, now=timezone.now(), lease_until=timezone.now() + timedelta(seconds=30), worker="w"
    )
    assert run is not None
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(120)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 100")
    try:
        with pytest.raises(PassAborted, match="statement timeout"):
            execute_pass(run, store=store_for("default"), eviction=Eviction())
    finally:
        let_go.set()
        thread.join()
        connection.close()
    assert not Mail.objects.exists()
    assert handle.history() == []
    store_for("default").release([(run.id, run.fence)], timezone.now())
    work_until_ended(handle)
    assert handle.output == [1, "on"]
    assert handle.history()[0].attempts == 1


class Adversary(threading.Thread):
    """Locks the sender's row, and then wants the receiver's, which the sender's atomic step has locked by then."""

    def __init__(self) -> None:
        super().__init__()
        self.sender = ""
        self.receiver = ""
        self.locked, self.goes_on = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL deadlock_timeout = '60s'")  # so that the other side is the victim
                Run.objects.select_for_update().get(pk=self.sender)
                self.locked.set()
                self.goes_on.wait(120)
                Run.objects.select_for_update().get(pk=self.receiver)
        finally:
            connections.close_all()

    def cross(self) -> None:
        """Once: begin, and come to the deadlock when the caller has locked the receiver."""
        if self.locked.is_set():
            get_run(self.receiver).send("go", "sent")
            return
        self.start()
        assert self.locked.wait(120)
        get_run(self.receiver).send("go", "sent")
        self.goes_on.set()


_adversary = Adversary()


@workflow(name="faults.victim")
def victim(ctx: Context) -> str:
    """Sends in an atomic step, while an adversary has its row."""
    ctx.step("send", lambda: _adversary.cross(), atomic=True)
    return "sent"


def test_a_pass_that_is_the_victim_of_a_deadlock_is_made_again(redis_connection: redis.Redis) -> None:
    global _adversary
    receiver, sender = cut_off.using(queue="high").start(), victim.start()
    _adversary = Adversary()
    _adversary.sender, _adversary.receiver = sender.id, receiver.id
    work_until_ended(sender)
    _adversary.join(120)
    assert sender.output == "sent"
    assert sender.history()[0].attempts == 1
    assert [message.order for message in store_for("default").messages(receiver.id)] == [1]
