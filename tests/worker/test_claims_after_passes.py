"""What the end of a pass makes due: its worker claims it, and others hear of it only where it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError

from durable import Context, Limit, workflow
from durable.core.records import RunRecord, RunState
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.models import Run
from durable.notifier import notify
from durable.store import Store
from durable.worker import loop
from durable.worker.executor import Execute
from durable.worker.loop import InlinePool, Pool, ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.support.notifications import jobs, take_job
from tests.support.runs import finish, new_runs, state
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_connection", "unlogged"),
]
QUEUE = "default"

#: What the step of `in_line` waits for.
may_end = threading.Event()
may_end.set()


@workflow(name="tests.claims.in-line", limit=Limit("tests-claims", at_once=1))
def in_line(ctx: Context, number: int) -> int:
    def step() -> int:
        may_end.wait(300)
        return number

    found: int = ctx.step("step", step)
    return found


@workflow(name="tests.claims.child")
def child(ctx: Context, number: int) -> int:
    found: int = ctx.step("step", lambda: number)
    return found


@workflow(name="tests.claims.parent")
def parent(ctx: Context, at_once: int) -> list[int]:
    return ctx.map("children", child, [(number,) for number in range(8)], at_once=at_once).outputs


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker waits for its own threads, however slow the machine is, before it leaves runs to a job."""
    monkeypatch.setattr(loop, "TICK", 120.0)


@contextmanager
def at_work(pool: Pool, store: Store, execute: Execute) -> Iterator[WorkerLoop]:
    with WorkerLoop(pool, store=store, execute=execute, stop=ShutdownFlag()) as made:
        yield made


def ending(queue: str, then: list[str]) -> Execute:
    """Each pass ends its run, starts the next run of `then` and names `queue` as one with due runs."""

    def execute(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        finish(record, store)
        if not then:
            return PassOutcome(state="completed")
        new_runs(store, 1)
        then.pop()  # after the start: else all seem to be done, and a worker that stops notifies others of the last run
        return PassOutcome(state="completed", queues_to_notify=frozenset({queue}))

    return execute


def all_are_completed() -> bool:
    return not Run.objects.exclude(state="completed").exists()


def all_others_wait_in_line() -> bool:
    """Return True if all runs but the one that has the slot are parked.

    A row that is locked would be left to the ticker.
    """
    parked = Run.objects.filter(state="sleeping", lease_expires_at=None)
    return parked.count() == Run.objects.count() - 1


def test_runs_that_hand_a_slot_on_need_one_job_in_all(store: Store) -> None:
    in_line.start_many([(number,) for number in range(12)])
    with at_work(InlinePool(), store, execute_pass) as made:
        made.work(QUEUE, seconds=300)
    assert all_are_completed()


@pytest.mark.usefixtures("patient")
def test_a_thread_claims_each_run_that_its_pass_hands_the_slot_to(store: Store) -> None:
    may_end.clear()
    in_line.start_many([(number,) for number in range(12)])
    with at_work(ThreadPool(2), store, execute_pass) as made:
        try:
            made.work(QUEUE, seconds=300)
            eventually(all_others_wait_in_line)
            notify.acknowledge(QUEUE)
            before = len(jobs())
        finally:
            may_end.set()
        eventually(all_are_completed)
    assert len(jobs()) == before


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("pool", [InlinePool, lambda: ThreadPool(1), lambda: ThreadPool(4)])
def test_children_that_take_turns_need_neither_timer_nor_sweep(
    pool: type[InlinePool], at_once: int, store: Store
) -> None:
    """The end of a child begins the next one, in whichever slot, or notifies a worker that does."""
    parent.start(at_once)
    with at_work(pool(), store, execute_pass) as made:

        def all_end() -> bool:
            if jobs():
                take_job()
                made.work(QUEUE)
            return all_are_completed()

        eventually(all_end)
    assert Run.objects.count() == 9


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("pool", [InlinePool, lambda: ThreadPool(2)])
def test_what_a_pass_has_made_due_is_claimed_without_a_notification(pool: type[InlinePool], store: Store) -> None:
    first = new_runs(store, 1)
    left = ["x"] * 5
    with at_work(pool(), store, ending(QUEUE, left)) as made:
        made.work(QUEUE)
        eventually(lambda: not left and all_are_completed())
    assert Run.objects.count() == len(first) + 5
    assert jobs() == []


def test_another_queue_is_notified(store: Store) -> None:
    new_runs(store, 1)
    with at_work(InlinePool(), store, ending("high", ["x"])) as made:
        made.work(QUEUE)
    assert len(jobs("high")) == 1
    assert jobs() == []


def test_inline_others_hear_of_it_while_runs_wait_here(store: Store) -> None:
    new_runs(store, 3)
    with at_work(InlinePool(), store, ending(QUEUE, ["x"])) as made:
        made.work(QUEUE)
    assert len(jobs()) == 1
    assert all_are_completed(), "and this worker goes on"


def test_a_worker_without_a_place_for_it_has_others_notified(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    new_runs(store, 1)
    left, may_go_on = ["x"], threading.Event()

    def execute(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        assert may_go_on.wait(300)
        return ending(QUEUE, left)(record, store=store, eviction=eviction)

    with at_work(ThreadPool(1), store, execute) as made:
        made.work(QUEUE)  # which leaves the queue to others, because the pass takes long
        take_job()
        notify.acknowledge(QUEUE)
        assert jobs() == []
        monkeypatch.setattr(made._scheduler, "claim_limit", lambda most: 0)
        may_go_on.set()
        eventually(lambda: len(jobs()) == 1)
    assert not left


def test_a_worker_that_cannot_claim_has_others_notified(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    new_runs(store, 1)
    claim, calls = store.claim, []

    def once(**asked: object) -> object:
        calls.append(asked)
        if len(calls) > 1:
            raise OperationalError("the server closed the connection unexpectedly")
        return claim(**asked)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(store, "claim", once)
    with at_work(ThreadPool(2), store, ending(QUEUE, ["x"])) as made:
        made.work(QUEUE)
        eventually(lambda: len(jobs()) == 1)
    assert len(calls) == 2


def test_a_worker_that_is_to_stop_leaves_it_to_others(store: Store) -> None:
    new_runs(store, 1)
    stop = ShutdownFlag()

    def execute(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
        stop.request()
        return ending(QUEUE, ["x"])(record, store=store, eviction=eviction)

    with WorkerLoop(ThreadPool(1), store=store, execute=execute, stop=stop) as made:
        made.work(QUEUE)
    assert len(jobs()) == 1
    assert [each.state for each in Run.objects.filter(finished_at=None)] == ["pending"]


def test_a_run_that_a_thread_has_claimed_while_the_worker_stops_is_released(store: Store) -> None:
    new_runs(store, 1)
    stop = ShutdownFlag()
    claim, calls = store.claim, []

    class Stopping:
        """The store; the worker is asked to stop while a thread claims."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def claim(self, **asked: object) -> object:
            found = claim(**asked)  # type: ignore[arg-type]  # passed on
            calls.append(found)
            if len(calls) > 1:
                stop.request()
            return found

    with WorkerLoop(ThreadPool(1), store=Stopping(), execute=ending(QUEUE, ["x"]), stop=stop) as made:  # type: ignore[arg-type]  # the others are passed on
        made.work(QUEUE)
        eventually(lambda: len(calls) > 1)
    (left,) = Run.objects.filter(finished_at=None)
    found = state(store, left.id)
    assert (found.state, found.lease_expires_at) == (RunState.PENDING, None)
    assert len(jobs()) == 1


def test_a_queue_whose_passes_make_others_due_leaves_room_for_another_queue(store: Store) -> None:
    new_runs(store, 1)
    left = ["x"] * 100_000
    with at_work(ThreadPool(1), store, ending(QUEUE, left)) as made:
        made.work(QUEUE)
        for _ in range(3):
            assert made.wait_for_room(300)
            made.work("high")
            made.work(QUEUE)
        left.clear()
        eventually(all_are_completed)
