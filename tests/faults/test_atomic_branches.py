"""Atomic steps in branches of one run: they lock its own row, and do not wait for each other in a circle."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from durable import Context, get_run, workflow
from project.shop.models import Mail
from tests.faults.passing import pass_once
from tests.support.locks import until_sessions_wait_for_locks

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
