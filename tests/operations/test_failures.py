"""What verbs do to the failure of a run: those that let it continue close it, the others leave it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from durable import CriticalError, Handle, operations, workflow
from durable.testing import Harness

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: What the step raises next; it succeeds once the list is empty.
errors: list[Exception] = []


def charge() -> None:
    if errors:
        raise errors.pop(0)


@workflow(name="tests.failures.order")
def order(ctx: Any) -> None:
    ctx.step("reserve", int)
    ctx.step("charge", charge)


@pytest.fixture
def h() -> Iterator[Harness]:
    errors.clear()
    with Harness(now=NOW) as harness:
        yield harness
    errors.clear()


def failed(h: Harness, *more: Exception) -> Handle:
    """A run that has failed, and what its step raises then."""
    errors[:] = [CriticalError("no 1"), *more]
    run = order.start()
    h.run(run)
    assert run.state == "failed"
    assert is_open(h, run)
    return run


def is_open(h: Harness, run: Handle) -> bool:
    failure = h._store.failure(run.id)
    assert failure is not None
    return failure.is_open


def test_recover_closes_it(h: Harness) -> None:
    run = failed(h)
    run.recover()
    assert not is_open(h, run)
    h.run(run)
    assert run.state == "completed"
    assert not is_open(h, run)


def test_a_run_that_fails_again_has_the_new_cause(h: Harness) -> None:
    run = failed(h, ValueError("other"))
    run.recover()
    for _ in range(9):
        h.run_due()
        h.advance(3600)
    assert run.state == "completed"
    run = failed(h, CriticalError("quite another"))
    run.recover()
    h.run(run)
    failure = h._store.failure(run.id)
    assert failure is not None
    assert failure.is_open
    assert failure.cause.pattern == "quite another"


def test_a_replay_in_place_closes_it(h: Harness) -> None:
    run = failed(h)
    operations.replay(run.id, "reserve", in_place=True)
    assert not is_open(h, run)


def test_a_replay_as_a_new_run_and_a_restart_leave_it(h: Harness) -> None:
    run = failed(h)
    replayed = operations.replay(run.id, "reserve")
    again = operations.restart(run.id)
    assert is_open(h, run)
    assert [h._store.failure(each) for each in (replayed.id, again.id)] == [None, None]
