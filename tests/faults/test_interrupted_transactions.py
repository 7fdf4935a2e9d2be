"""A timeout interrupts a step between any two lines, of Django's too: of its transactions nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from durable import Context, workflow
from durable.drivers import timeouts
from durable.testing import Harness
from tests.faults.passing import pass_once

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

_EXITS = 60  # lines of Django's transactions that `write` goes through, and more


@contextmanager
def interrupted_at(number: int) -> Iterator[None]:
    """Interrupt what is called in the block where it comes to the line of that number of `transaction.atomic`."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if frame.f_code not in (transaction.Atomic.__enter__.__code__, transaction.Atomic.__exit__.__code__):
            return trace
        if event == "line":
            lines += 1
            if lines == number:
                raise timeouts._Interruption
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def write(number: int) -> None:
    with interrupted_at(number), transaction.atomic():
        Group.objects.create(name="outer")
        with transaction.atomic():
            Group.objects.create(name="inner")
    raise ValueError("in time")


@workflow(name="faults.interrupted_transactions")
def interrupted(ctx: Context, number: int, atomic: bool) -> str:
    attempt = ctx.try_step("write", write, number, atomic=atomic, max_retries=0)
    ctx.step("after", lambda: Group.objects.create(name="after").pk, atomic=True)
    return attempt.failure.error.type if attempt.failure else "none"


@pytest.mark.parametrize("atomic", [True, False])
def test_the_run_and_the_connection_go_on(atomic: bool) -> None:
    ends = []
    for number in range(1, _EXITS):
        ends.append(pass_once(interrupted.start(number, atomic)).output)
        assert (connection.in_atomic_block, connection.get_autocommit()) == (False, True)
        assert Group.objects.filter(name="after").count() == 1
        written = set(Group.objects.exclude(name="after").values_list("name", flat=True))
        assert written == set() or (not atomic and written == {"outer", "inner"})
        Group.objects.all().delete()
    assert ends[0] == "StepTimeoutError"
    assert ends[-1] == "ValueError", "there are more lines to interrupt"


@pytest.mark.django_db
@pytest.mark.parametrize("atomic", [True, False])
def test_the_transaction_of_a_test_lives_on(atomic: bool) -> None:
    """The connection cannot be closed there: its transaction holds the rows of the test."""
    Group.objects.create(name="of the test")
    ends = []
    with Harness() as h:
        for number in range(1, _EXITS):
            ends.append(h.run(h.start(interrupted, number, atomic)).output)
            assert Group.objects.filter(name="after").count() == 1
            written = set(Group.objects.exclude(name__in=["after", "of the test"]).values_list("name", flat=True))
            assert written == set() or (not atomic and written == {"outer", "inner"})
            Group.objects.exclude(name="of the test").delete()
    assert ends[0] == "StepTimeoutError"
    assert ends[-1] == "ValueError", "there are more lines to interrupt"
    assert Group.objects.count() == 1
    assert connection.in_atomic_block
