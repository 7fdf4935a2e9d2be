"""Held steps under several at once: people and `verify` on connections of their own, threads of a worker, and bulks."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections

from durable import Context, Found, Handle, RunInfo, Unknown, current_step, get_run, workflow
from durable.conf import conf
from durable.core.records import RunState
from durable.errors import InvalidTransitionError
from durable.models import OperatorAction, Run
from durable.operations import bulk, settle
from durable.store import store_for
from durable.worker.loop import ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.support.databases import only_with_a_server
from tests.support.waiting import at_once, eventually, patiently
from tests.support.worker import work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

CALLS: Final[Counter[str]] = Counter()
ANSWERS: Final[list[Any]] = []
GATE: Final[dict[str, threading.Event]] = {}


def charge(order: int) -> str:
    CALLS[current_step().idempotency_key] += 1
    raise TimeoutError("the bank did not answer")


def find(order: int) -> Any:
    if "asked" in GATE:
        GATE["asked"].set()
        assert GATE["answer"].wait(120)
    return ANSWERS[-1]


@workflow(name="at_once.charged")
def charged(ctx: Context, order: int) -> str:
    return ctx.step("charge", charge, order, once=True, verify=find)


@workflow(name="at_once.branches")
def branches(ctx: Context, order: int) -> list[str]:
    def pay(at: Context) -> str:
        return at.step("charge", charge, order, once=True)

    return sorted(ctx.join("all", {"one": pay, "two": pay}).values())


@pytest.fixture(autouse=True)
def _bank() -> Iterator[None]:
    ANSWERS.append(Unknown())
    yield
    CALLS.clear()
    ANSWERS.clear()
    GATE.clear()


def test_of_people_who_settle_a_step_at_once_one_is_heard_and_the_others_are_told() -> None:
    for order in range(8):
        run = charged.start(order)
        work_off()
        told: list[str] = []

        def answer(number: int, run_id: str = run.id, told: list[str] = told) -> None:
            try:
                settle(run_id, "charge", done=f"by {number}")
            except InvalidTransitionError as refused:
                told.append(str(refused))

        at_once(lambda number, answer=answer: patiently(lambda: answer(number)))  # type: ignore[misc]  # bound default
        assert len(told) == 3
        assert all('cannot settle step "charge"' in each and "it is not held" in each for each in told)
        work_off()
        assert OperatorAction.objects.filter(run_id=run.id, action="settle", outcome="done").count() == 1
        assert run.output in {f"by {number}" for number in range(4)}
    assert set(CALLS.values()) == {1}


def test_a_person_and_a_recovery_at_once_do_not_both_decide() -> None:
    """Settled first, there is nothing to recover; recovered first, `verify` is asked and the person is refused."""
    outputs = Counter[str]()
    for order in range(8):
        run = charged.start(order)
        work_off()
        ANSWERS.append(Found("found"))
        refused: list[str] = []

        def act(number: int, run: Any = run, refused: list[str] = refused) -> None:
            try:
                run.settle("charge", done="by hand") if number else run.recover()
            except InvalidTransitionError as error:
                refused.append(str(error))

        at_once(lambda number, act=act: patiently(lambda: act(number)), threads=2)  # type: ignore[misc]  # as above
        work_off()
        ANSWERS.append(Unknown())
        assert len(refused) == 1
        outputs[str(run.output)] += 1
    assert outputs.keys() <= {"by hand", "found"}
    assert set(CALLS.values()) == {1}


def test_a_person_cannot_settle_a_step_while_verify_is_asked_about_it() -> None:
    only_with_a_server()
    run = charged.start(1)
    work_off()
    GATE.update(asked=threading.Event(), answer=threading.Event())
    ANSWERS.append(Found("found"))
    run.recover()
    worker = threading.Thread(target=_work_in_a_thread)
    worker.start()
    assert GATE["asked"].wait(120)
    with pytest.raises(InvalidTransitionError, match="it is not held, it is unknown"):
        run.settle("charge", done="by hand")
    GATE["answer"].set()
    worker.join(120)
    assert run.output == "found"


def _work_in_a_thread() -> None:
    try:
        work_off()
    finally:
        connections.close_all()


def test_the_threads_of_a_worker_hold_each_step_once() -> None:
    only_with_a_server()
    runs = branches.start_many([(order,) for order in range(20)])
    with WorkerLoop(ThreadPool(4), store=store_for(conf.DATABASE), stop=ShutdownFlag()) as loop:
        # the loop leaves passes to the threads, and what has not begun is released with it

        def worked(condition: Callable[[Handle[Any]], bool]) -> bool:
            loop.work("default")
            return all(map(condition, runs))

        eventually(lambda: worked(lambda run: len(run.info().held) == 2))
        for run in runs:
            assert sorted(each.location for each in run.info().held) == ["all/one/charge", "all/two/charge"]
            run.settle("all/one/charge", done="a")
            run.settle("all/two/charge", done="b")
        eventually(lambda: worked(lambda run: run.state == "completed"))
    assert {tuple(run.output or ()) for run in runs} == {("a", "b")}
    assert len(CALLS) == 40
    assert set(CALLS.values()) == {1}


# -- many ends

MANY: Final = int(os.environ.get("ENDS", "300"))


def ended(run: RunInfo) -> None:
    Group.objects.create(name=f"{run.id} {run.state}")


@workflow(name="at_once.ending", on_end=ended)
def ending(ctx: Context) -> None:
    ctx.sleep("nap", "10 days")


@pytest.mark.slow
def test_a_bulk_that_cancels_many_runs_calls_the_on_end_of_each_once() -> None:
    """`ENDS=10000` makes it many."""
    ids = [f"e{number:05}" for number in range(MANY)]
    ending.start_many([() for _ in ids], ids=ids)
    work_off(seconds=3_600)
    assert Run.objects.filter(state=RunState.SLEEPING.value).count() == MANY
    began = time.monotonic()
    report = bulk.apply("cancel", ids)
    work_off(seconds=3_600)
    print(f"{MANY} runs cancelled in {time.monotonic() - began:.1f} s")
    assert report.run_id is None or get_run(report.run_id).state == "completed"
    assert Run.objects.filter(id__in=ids, state=RunState.CANCELLED.value).count() == MANY
    assert Group.objects.filter(name__endswith=" cancelled").count() == MANY == Group.objects.count()
    assert connection.in_atomic_block is False
