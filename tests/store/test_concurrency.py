"""Several connections at once: real threads on real databases, ordered by locks that are seen to be waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import pytest
from django.db import connections

from durable.core.control_flow import LeaseLost
from durable.core.errors import RunNotFoundError
from durable.core.records import Activity, Hold, HoldKind, RunChange, RunRecord
from durable.core.witnesses import is_of_first_claim
from durable.models import Activity as ActivityRow
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.transactions import RowsLocked
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_message, a_run, an_entry, at, commit, park, sent, started, the
from tests.support.locks import until_sessions_wait_for_locks

T = TypeVar("T")
DEADLINE = 90.0


class Threads:
    """Calls in other threads, each with database connections of its own that it closes."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def start(self, call: Callable[[], T]) -> Future[T]:
        return self._pool.submit(self._run, call)

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """The results of calls that begin at one moment."""
        barrier = threading.Barrier(len(calls))

        def begin(call: Callable[[], T]) -> T:
            barrier.wait(DEADLINE)
            return call()

        futures = [self.start(lambda call=call: begin(call)) for call in calls]  # type: ignore[misc]  # a bound default
        return [future.result(DEADLINE) for future in futures]

    @staticmethod
    def _run(call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            connections.close_all()


@pytest.fixture
def threads() -> Iterator[Threads]:
    with ThreadPoolExecutor(8) as pool:
        yield Threads(pool)


def wait_for_lock_waiters(count: int = 1) -> None:
    until_sessions_wait_for_locks(POSTGRES, count=count, seconds=DEADLINE)


@contextmanager
def open_transaction(store: Store, threads: Threads, work: Callable[[], Any]) -> Iterator[None]:
    """`work` is done in another thread's transaction, which commits when the block ends."""
    done, end = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            work()
            done.set()
            assert end.wait(DEADLINE)

    holding = threads.start(hold)
    assert done.wait(DEADLINE)
    try:
        yield
    finally:
        end.set()
        holding.result(DEADLINE)


def claim(store: Store, seconds: float = 0, limit: int = 1, worker: str = "w2") -> list[RunRecord]:
    return store.claim(queue="q", now=at(seconds), lease_until=at(seconds) + LEASE, worker=worker, limit=limit)


@pytest.mark.parametrize("is_one_step", [True, False])
def test_a_late_commit_waits_for_a_claim_and_is_refused(
    postgres_store: PostgresStore, threads: Threads, is_one_step: bool
) -> None:
    held = started(postgres_store)
    parts: dict[str, Any] = {"entries": [an_entry("late")]}
    if not is_one_step:
        parts |= {"sends": [a_message("run")], "run": {"summary": "late"}, "park_change_seq": held.change_seq}
    with open_transaction(postgres_store, threads, lambda: claim(postgres_store, 60)):
        late = threads.start(lambda: commit(postgres_store, held, **parts))
        wait_for_lock_waiters()
    with pytest.raises(LeaseLost):
        late.result(DEADLINE)
    assert (postgres_store.load("run"), postgres_store.messages("run")) == ([], [])
    assert the(postgres_store).fence > held.fence
    assert the(postgres_store).summary == ""


def test_a_claim_passes_by_a_run_that_is_being_written(postgres_store: PostgresStore, threads: Threads) -> None:
    held = started(postgres_store)
    postgres_store.create([a_run("other", wake_at=at(1))])
    with open_transaction(postgres_store, threads, lambda: commit(postgres_store, held, entries=[an_entry()])):
        assert [run.id for run in claim(postgres_store, 60, limit=5)] == ["other"]
    assert [run.id for run in claim(postgres_store, 60, limit=5)] == ["run"]


def test_a_run_that_is_prolonged_under_a_waiting_take_over_stays_with_its_worker(
    postgres_store: PostgresStore, threads: Threads
) -> None:
    held = started(postgres_store)
    with open_transaction(postgres_store, threads, lambda: postgres_store.renew([("run", held.fence)], at(500))):
        taking = threads.start(lambda: postgres_store.claim_run("run", now=at(60), lease_until=at(90), worker="w2"))
        wait_for_lock_waiters()
    assert taking.result(DEADLINE) is None
    assert the(postgres_store).fence == held.fence


def test_a_renewal_passes_by_a_run_that_somebody_has_locked(postgres_store: PostgresStore, threads: Threads) -> None:
    held = [(name, started(postgres_store, name).fence) for name in ("free", "locked", "parked", "released")]
    lost = ("lost", started(postgres_store, "lost").fence)
    assert postgres_store.claim_run("lost", now=at(60), lease_until=at(600), worker="w2") is not None
    postgres_store.release(held[-1:], NOW)
    park(postgres_store, the(postgres_store, "parked"))
    with open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message("locked"))):
        assert postgres_store.renew([*held, lost], at(500)) == ({"free": ""}, frozenset({"locked"}))
        assert postgres_store.renew(held[1:2], at(500)) == ({}, frozenset({"locked"}))
    assert (the(postgres_store, "free").lease_expires_at, the(postgres_store, "locked").lease_expires_at) == (
        at(500),
        at(30),
    )
    assert postgres_store.renew(held[:2], at(501)) == ({"free": "", "locked": ""}, frozenset())


@pytest.mark.parametrize("due_at", [None, at(90)])
def test_a_release_passes_by_a_run_that_somebody_has_locked(
    postgres_store: PostgresStore, threads: Threads, due_at: datetime | None
) -> None:
    held = [(name, started(postgres_store, name).fence) for name in ("free", "locked")]
    with open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message("locked"))):
        assert postgres_store.release(held, NOW, due_at=due_at).busy == {"locked"}
        assert [the(postgres_store, each).lease_expires_at for each, _ in held] == [None, at(30)]
    assert postgres_store.release(held, NOW, due_at=due_at).busy == frozenset()
    assert [the(postgres_store, each).wake_at for each, _ in held] == [due_at or NOW] * 2


def test_a_change_that_does_not_wait_for_a_lock_is_refused(postgres_store: PostgresStore, threads: Threads) -> None:
    started(postgres_store)

    def change(run_id: str = "run") -> RunRecord:
        return postgres_store.change(run_id, lambda _run, _entries: RunChange(run={"summary": "x"}), wait=False)

    with (
        open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message())),
        pytest.raises(RowsLocked),
    ):
        change()
    assert the(postgres_store).summary == ""
    assert change().summary == "x"
    with pytest.raises(RunNotFoundError):
        change("none")


def test_a_release_of_starts_passes_by_a_run_that_somebody_has_locked(
    postgres_store: PostgresStore, threads: Threads
) -> None:
    hold = Hold(kind=HoldKind.WORKFLOW, name="w", held_at=NOW, held_by="", reason="")
    postgres_store.hold(hold)
    postgres_store.create([a_run(each) for each in "abc"])
    postgres_store.lift(hold.kind, hold.name)
    with open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message("b"))):
        assert [run.id for run in postgres_store.release_starts(NOW, 9)] == ["a", "c"]
        assert postgres_store.release_starts(NOW, 9) == []
    assert [run.id for run in postgres_store.release_starts(NOW, 9)] == ["b"]


def test_nothing_about_activities_waits_for_what_somebody_has_locked(
    postgres_store: PostgresStore, threads: Threads
) -> None:
    """An operator's transaction, say, that has asked for a stack and goes on."""
    runs = [started(postgres_store, name) for name in ("free", "run")]
    free, asked = (
        Activity(
            run_id=run.id, location="it", attempt=1, kind="step", fence=run.fence, worker="w", began_at=NOW, timeout=0.0
        )
        for run in runs
    )
    postgres_store.report([free, asked], [], [])
    rows = ActivityRow.objects.using(postgres_store.alias)
    postgres_store.ask_activities(runs[0], "", NOW, abandon=True)
    [wish] = postgres_store.report([], [], ["free", "run"])[1]
    with open_transaction(postgres_store, threads, lambda: postgres_store.ask_activities(runs[1], "", NOW, stack=True)):
        for begun, ended in [([replace(asked, attempt=2)], [free]), ([], [free, asked])]:
            with pytest.raises(RowsLocked):
                postgres_store.report(begun, ended, ["free", "run"])
        assert rows.filter(attempt=1).count() == 2
        assert postgres_store.report([], [], ["free", "run"]) == ({}, [wish])
        postgres_store.answer_stack(replace(wish, run_id="run"), "frames", NOW)
        postgres_store.release([(run.id, run.fence) for run in runs], NOW)
        postgres_store.forget_activities()
    assert sorted(rows.values_list("run_id", "stack")) == [("free", ""), ("run", "")]
    postgres_store.forget_activities()
    assert not rows.exists()


def test_two_claims_at_once_share_the_due_runs(database_store: Store, threads: Threads) -> None:
    database_store.create([a_run(f"{n:02}") for n in range(40)])
    found = threads.together(*[lambda: claim(database_store, limit=15)] * 3)
    claimed = [run.id for runs in found for run in runs]
    assert len(claimed) == len(set(claimed))
    rest = claim(database_store, limit=40)
    assert sorted([*claimed, *(run.id for run in rest)]) == [f"{n:02}" for n in range(40)]
    assert all(is_of_first_claim(run.fence) for run in rest)


def test_two_processes_that_create_one_id_at_once_both_get_its_row(database_store: Store, threads: Threads) -> None:
    for n in range(5):
        ids = [f"{n}-{each}" for each in "cab"]
        created = threads.together(
            *[
                lambda author=author, ids=ids: database_store.create([a_run(each, workflow=author) for each in ids])
                for author in ("one", "two")
            ]
        )
        for one, two in zip(*created, strict=True):
            assert one[0] == two[0] == the(database_store, one[0].id)
            assert sorted([one[1], two[1]]) == [False, True]


def test_a_create_waits_for_another_one_of_the_same_id(postgres_store: PostgresStore, threads: Threads) -> None:
    with open_transaction(postgres_store, threads, lambda: postgres_store.create([a_run("run", workflow="first")])):
        second = threads.start(lambda: postgres_store.create([a_run("run", workflow="second"), a_run("new")]))
        wait_for_lock_waiters()
    [(run, new), (_, other)] = second.result(DEADLINE)
    assert (run.workflow, new, other) == ("first", False, True)


def test_messages_are_ordered_as_their_senders_commit(postgres_store: PostgresStore, threads: Threads) -> None:
    started(postgres_store)
    with open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message(body="first"))):
        second = threads.start(lambda: sent(postgres_store, a_message(body="second")))
        wait_for_lock_waiters()
        assert postgres_store.messages("run") == []
    assert second.result(DEADLINE).order == 2
    assert [(m.body, m.order) for m in postgres_store.messages("run")] == [("first", 1), ("second", 2)]
    assert the(postgres_store).message_count == 2


def test_a_send_from_a_workflow_takes_its_order_after_one_from_outside(
    postgres_store: PostgresStore, threads: Threads
) -> None:
    held = started(postgres_store, "sender")
    postgres_store.create([a_run()])
    with open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message(body="first"))):
        second = threads.start(lambda: commit(postgres_store, held, sends=[a_message(body="second")]))
        wait_for_lock_waiters()
    second.result(DEADLINE)
    assert [m.body for m in postgres_store.messages("run")] == ["first", "second"]


def test_an_idempotency_id_that_another_sender_is_storing_is_waited_for(
    postgres_store: PostgresStore, threads: Threads
) -> None:
    started(postgres_store)
    first: list[Any] = []
    with open_transaction(
        postgres_store, threads, lambda: first.append(sent(postgres_store, a_message(idempotency_id="x", body="1")))
    ):
        second = threads.start(lambda: postgres_store.send([a_message(idempotency_id="x", body="2"), a_message()]))
        wait_for_lock_waiters()
    [again, new], _ = second.result(DEADLINE)
    assert [again] == first
    assert new is not None
    assert [m.body for m in postgres_store.messages("run")] == ["1", '"hi"']
    assert the(postgres_store).message_count == new.order


def test_a_run_that_parks_while_a_message_is_being_sent_is_due(postgres_store: PostgresStore, threads: Threads) -> None:
    held = started(postgres_store)
    with open_transaction(postgres_store, threads, lambda: sent(postgres_store, a_message())):
        parking = threads.start(lambda: park(postgres_store, held, waiting_for="/mail/"))
        wait_for_lock_waiters()
    assert parking.result(DEADLINE).queues_to_notify == {"q"}
    assert the(postgres_store).wake_at == NOW


def test_a_message_sent_while_a_run_parks_wakes_it(postgres_store: PostgresStore, threads: Threads) -> None:
    held = started(postgres_store)
    with open_transaction(postgres_store, threads, lambda: park(postgres_store, held, waiting_for="/mail/")):
        sending = threads.start(lambda: postgres_store.send([a_message(sent_at=at(3))]))
        wait_for_lock_waiters()
    assert sending.result(DEADLINE)[1] == {"q"}
    assert the(postgres_store).wake_at == at(3)


def test_of_two_operators_the_second_decides_by_what_the_first_did(
    postgres_store: PostgresStore, threads: Threads
) -> None:
    started(postgres_store)
    seen: list[str] = []

    def decide(run: RunRecord, entries: object) -> RunChange:
        seen.append(run.summary)
        return RunChange(run={"summary": run.summary + "x"})

    with open_transaction(postgres_store, threads, lambda: postgres_store.change("run", decide)):
        second = threads.start(lambda: postgres_store.change("run", decide))
        wait_for_lock_waiters()
    assert second.result(DEADLINE).summary == the(postgres_store).summary == "xx"
    assert seen == ["", "x"]


def test_runs_that_send_to_each_other_do_not_deadlock(database_store: Store, threads: Threads) -> None:
    held = {run_id: started(database_store, run_id) for run_id in ("a", "b", "c")}

    def send_around(run_id: str) -> None:
        for _ in range(20):
            commit(database_store, held[run_id], sends=[a_message(to) for to in ("c", "a", "b")])

    threads.together(*[lambda run_id=run_id: send_around(run_id) for run_id in held])
    for run_id in held:
        assert [m.order for m in database_store.messages(run_id)] == list(range(1, 61))


def test_renewals_and_releases_of_the_same_runs_do_not_deadlock(database_store: Store, threads: Threads) -> None:
    held = [(f"{n}", started(database_store, f"{n}").fence) for n in range(20)]

    def renew(order: int) -> None:
        for n in range(10):
            database_store.renew(held[::order], at(100 + n))

    threads.together(lambda: renew(1), lambda: renew(-1))
    threads.together(lambda: database_store.release(held, NOW), lambda: database_store.release(held[::-1], NOW))
    assert [the(database_store, run_id).lease_expires_at for run_id, _ in held] == [None] * 20


def test_writers_of_many_kinds_at_once_lose_nothing(store: Store, threads: Threads) -> None:
    """On SQLite above all: transactions wait for each other, and none fails with "database is locked"."""
    held = started(store)
    rounds = range(15)

    def commit_steps() -> None:
        for n in rounds:
            commit(store, held, entries=[an_entry(f"{n}"), an_entry(f"x{n}")])

    def send() -> None:
        for n in rounds:
            store.send([a_message(idempotency_id=f"{n}")])

    def change() -> None:
        for _ in rounds:
            store.change("run", lambda run, entries: RunChange(run={"crashes": run.crashes + len(entries()) * 0 + 1}))

    def create_and_claim() -> None:
        for n in rounds:
            store.create([a_run(f"new {n}")])
            claimed = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=3)
            store.renew([(run.id, run.fence) for run in claimed], at(99))

    threads.together(commit_steps, send, send, change, create_and_claim)
    assert len(store.load("run")) == 30
    assert [m.order for m in store.messages("run")] == list(range(1, 16))
    assert the(store).crashes == 15
    assert all(is_of_first_claim(the(store, f"new {n}").fence) for n in rounds)
