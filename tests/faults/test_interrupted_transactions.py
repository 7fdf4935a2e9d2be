"""An interruption between any two lines of a transaction, or swallowed at its commit, leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from durable import Context, workflow
from durable.core import clock
from durable.core.control_flow import PassAborted
from durable.core.records import Batch, Committed
from durable.drivers import timeouts
from durable.store import Store
from durable.testing import Harness
from tests.faults.passing import pass_once, production_store

pytestmark = pytest.mark.django_db(transaction=True)


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


@pytest.mark.slow
@pytest.mark.postgres
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


@pytest.mark.postgres
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


# -- interruptions of a commit in the main thread that the code of a workflow swallows


_calls: list[str] = []


class Interrupted:
    """The production store.

    The first commit is interrupted before it, as by a signal handler of RQ's or of Python's.
    """

    def __init__(self, store: Store, error: BaseException) -> None:
        self._store = store
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def sent_commits(self) -> None:
        """No event loop commits past this store."""

    def commit(self, batch: Batch) -> Committed:
        if self._errors:
            raise self._errors.pop()
        return self._store.commit(batch)


@workflow(name="faults.swallows_interruption")
def swallows(ctx: Context, is_atomic: bool) -> list[int]:
    try:
        first = ctx.step("first", note, "first", atomic=is_atomic)
    except BaseException:
        first = -1
    return [first, ctx.step("second", note, "second")]


def note(name: str) -> int:
    _calls.append(name)
    return len(_calls)


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_nothing_is_built_on_a_result_whose_commit_was_interrupted(error: BaseException, is_atomic: bool) -> None:
    _calls.clear()
    handle = swallows.start(is_atomic)
    store: Any = Interrupted(production_store(), error)
    with pytest.raises(PassAborted):
        pass_once(handle, store=store)
    assert _calls == ["first"]
    assert handle.history() == []
    assert pass_once(handle, at=clock.now() + timedelta(hours=1)).output == [2, 3]
