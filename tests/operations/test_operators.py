"""Operators that act on one run at the same moment, on connections of their own: one wins, and the log has both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from durable import Actor, Context, DurableError, Handle, acting_as, operations, workflow
from durable.models import OperatorAction, Run
from durable.operations import audit, bulk

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

OPERATORS = 4


@workflow(name="tests.operators.waiting")
def waiting(ctx: Context) -> None:
    ctx.step("a", str)
    ctx.queue.next("wait", ["mail"])


def at_the_same_moment(act: Callable[[], Any]) -> list[Any]:
    """What became of each operator's attempt: its value, or the error's class."""
    begin = threading.Barrier(OPERATORS)
    outcomes: list[Any] = []

    def operate(number: int) -> None:
        try:
            with acting_as(Actor("cli", label=f"operator {number}")):
                begin.wait()
                outcomes.append(act())
        except DurableError as error:
            outcomes.append(type(error).__name__)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=operate, args=(number,)) for number in range(OPERATORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def logged() -> list[str]:
    return sorted(OperatorAction.objects.values_list("outcome", flat=True))


def test_one_of_them_cancels(redis_connection: object) -> None:
    run = waiting.using(id="o").start()
    outcomes = at_the_same_moment(run.cancel)
    assert sorted(map(str, outcomes)) == ["InvalidTransitionError"] * (OPERATORS - 1) + ["None"]
    assert logged() == ["done"] + ["refused"] * (OPERATORS - 1)


def test_one_of_those_that_saw_the_same_acts(redis_connection: object) -> None:
    run = waiting.using(id="o").start()
    seen = audit.revision(operations.record("o"))

    def send() -> str:
        with acting_as(Actor("cli"), expected=seen):
            return run.send("mail")

    outcomes = at_the_same_moment(send)
    assert outcomes.count("StaleRunError") == OPERATORS - 1
    assert logged() == ["done"] + ["stale"] * (OPERATORS - 1)
    assert Run.objects.get().inbox.count() == 1


def test_one_new_run_is_made_for_one_id(redis_connection: object) -> None:
    run = waiting.using(id="o").start()
    run.cancel()
    OperatorAction.objects.all().delete()
    outcomes = at_the_same_moment(lambda: run.restart(id="again"))
    assert outcomes == [Handle("again")] * OPERATORS
    assert Run.objects.count() == 2
    assert logged() == ["done"] * OPERATORS


def test_bulks_over_the_same_runs_do_each_once(redis_connection: object) -> None:
    ids = [f"r{number}" for number in range(20)]
    waiting.start_many([()] * 20, ids=ids)
    order = bulk.BulkOrder(verb="cancel", selection=bulk.Ids(tuple(reversed(ids))))
    reports = at_the_same_moment(lambda: bulk.perform_page(order, None)[0])
    done = [each.run_id for report in reports for each in report if each.outcome == "done"]
    assert sorted(done) == sorted(ids)
