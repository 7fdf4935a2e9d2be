"""Deadlines beside other options of a start: a key, and a message with the start."""

from __future__ import annotations

import pytest

from durable import Context, workflow
from durable.models import RunLimit
from durable.testing import Harness

HOUR = 3600.0


@workflow(name="tests.limits.waiting")
def waiting(ctx: Context) -> None:
    ctx.queue.next("never")


def test_a_run_with_a_key_has_its_deadline() -> None:
    with Harness() as h:
        run = waiting.using(key="a", deadline="1 hour").start()
        h.settle()
        h.advance("1 hour")
        h.settle()
        assert run.error is not None
        assert run.error.type == "RunDeadlineError"


@pytest.mark.django_db(transaction=True)
def test_however_it_is_started_its_limits_are_stored() -> None:
    plain = waiting.using(deadline="1 hour").start()
    keyed = waiting.using(key="a", deadline="1 hour").start()
    sent = waiting.using(key="b", deadline="1 hour").start_or_send("x", 1)
    many = waiting.using(deadline="1 hour").start_many([()] * 2)
    lengths = dict(RunLimit.objects.values_list("run_id", "length"))
    assert lengths == {each.id: HOUR for each in (plain, keyed, sent, *many)}
    waiting.using(key="c").start()
    assert RunLimit.objects.count() == 5
