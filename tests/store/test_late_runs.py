"""Runs that become due behind the point at which claims begin.

The next look at all runs finds them, and the sweep calls for one. On every store, and on two connections where a
database has them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connections

from durable.conf import conf
from durable.core.records import RunChange, RunRecord, RunState
from durable.store import Store
from durable.store.base import Claimed
from durable.store.postgres import PostgresStore
from durable.worker.claim_bounds import ClaimBounds
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_message, a_run, at, commit, finished, park, started, the
from tests.support.locks import other_session


class Worker:
    """A process whose looks at all are dear: it begins at its last point whenever it may."""

    def __init__(self, store: Store, *, ahead: float = 0) -> None:
        self.store = store
        self.seconds = 0.0  # by its monotonic clock
        self.ahead = timedelta(seconds=ahead)
        self.bounds = ClaimBounds(clock=lambda: self.seconds)

    def claim(self, now: datetime = NOW, limit: int = 2) -> list[str]:
        now += self.ahead
        since = self.bounds.since("q", now)
        found = self.store.claim(queues=["q"], now=now, lease_until=now + LEASE, worker="w", limit=limit, since=since)
        self.bounds.note("q", since, now, Claimed(found, passed_over=10_000_000), limit)
        return [run.id for run in found]

    def sweep(self, now: datetime = NOW) -> None:
        """The sweep sees what is due, whatever claims begin with, and has workers look at all."""
        if "q" in self.store.due_queues(now + self.ahead):
            self.bounds.forget("q")


def worker_at_work(store: Store, **options: Any) -> Worker:
    """A worker that has claimed six runs, the newest of them due 10 s ago; seven more are due."""
    store.create([a_run(f"early-{number}", wake_at=at(number - 15)) for number in range(6)])
    worker = Worker(store, **options)
    for _ in range(3):
        assert len(worker.claim()) == 2
    for number in range(6):
        finished(store, the(store, f"early-{number}"))
    store.create([a_run(f"next-{number}", wake_at=at(number - 9)) for number in range(7)])
    return worker


def start_late(store: Store) -> None:
    """The start of a transaction that took long."""
    store.create([a_run("late", wake_at=at(-60))])


def wake(store: Store) -> None:
    """By a clock that is behind."""
    store.change("asleep", lambda run, _: RunChange(run={"wake_at": at(-60)}))


def resume(store: Store) -> None:
    store.change("paused", lambda run, _: RunChange(run={"state": RunState.PENDING}))


def recover(store: Store) -> None:
    store.change(
        "failed", lambda run, _: RunChange(run={"state": RunState.PENDING, "finished_at": None, "wake_at": at(-60)})
    )


def send(store: Store) -> None:
    """To a run that waits, from a process whose clock is behind."""
    store.send([a_message("waiting", sent_at=at(-60))])


def expire(store: Store) -> None:
    """The lease of a run that has been due for long."""
    store.renew([("held", the(store, "held").fence)], at(-1))


def release(store: Store) -> None:
    """By another process, which had claimed it."""
    store.release([("held", the(store, "held").fence)], NOW)


def park_due(store: Store) -> None:
    """A pass that was evicted, in a process whose clock is behind."""
    park(store, the(store, "held"), state=RunState.PENDING, wake_at=at(-60))


LATE: dict[Callable[[Store], None], str] = {
    start_late: "late",
    wake: "asleep",
    resume: "paused",
    recover: "failed",
    send: "waiting",
    expire: "held",
    release: "held",
    park_due: "held",
}


def others(store: Store) -> None:
    """Runs that are not due yet, and may be soon."""
    for name in ("asleep", "waiting", "failed", "held"):
        held = started(store, name, wake_at=at(-60))
        if name == "asleep":
            park(store, held, wake_at=at(3600))
        elif name == "waiting":
            park(store, held, waiting_for="/mail/")
        elif name == "failed":
            finished(store, held, RunState.FAILED)
    store.create([a_run("paused", wake_at=at(-60), state=RunState.PAUSED)])


@pytest.mark.parametrize("become_due", LATE, ids=lambda each: each.__name__)
def test_a_run_that_is_due_late_is_found_when_a_sweep_has_called(
    store: Store, become_due: Callable[[Store], None]
) -> None:
    others(store)
    worker = worker_at_work(store)
    become_due(store)
    assert worker.claim() == ["next-0", "next-1"], "it begins where it ended"
    worker.sweep()
    assert worker.claim()[0] == LATE[become_due]
    assert worker.claim(limit=9) == ["next-3", "next-4", "next-5", "next-6"]
    assert worker.claim() == []


@pytest.mark.parametrize("become_due", LATE, ids=lambda each: each.__name__)
def test_or_after_an_interval_though_no_sweep_calls(store: Store, become_due: Callable[[Store], None]) -> None:
    others(store)
    worker = worker_at_work(store)
    become_due(store)
    assert LATE[become_due] not in worker.claim()
    worker.seconds += conf.SWEEP_INTERVAL
    assert worker.claim()[0] == LATE[become_due]


def test_a_clock_that_is_set_back_hides_no_run(store: Store) -> None:
    worker = worker_at_work(store, ahead=3600)
    assert len(worker.claim(limit=9)) == 7
    store.create([a_run("new", wake_at=at(1))])
    worker.ahead = timedelta()
    assert worker.claim(at(1)) == ["new"]


def test_workers_whose_clocks_differ_find_what_either_hands_back(store: Store) -> None:
    right, ahead = worker_at_work(store), Worker(store, ahead=180)
    assert ahead.claim(limit=3) == ["next-0", "next-1", "next-2"]
    assert right.claim(limit=9) == ["next-3", "next-4", "next-5", "next-6"]
    for number in (0, 2, 3, 4, 5, 6):  # else their leases would run out, by one clock
        finished(store, the(store, f"next-{number}"))
    taken = the(store, "next-1")
    park(store, taken, state=RunState.PENDING, wake_at=at(180))  # by its clock
    assert right.claim() == [], "not due yet, by this one's"
    assert ahead.claim() == ["next-1"]
    store.release([("next-1", the(store, "next-1").fence)], at(180))
    right.sweep(at(200))
    assert right.claim(at(200)) == ["next-1"]


def test_runs_of_one_moment_are_claimed_in_turn(store: Store) -> None:
    store.create([a_run(f"run-{number:02}", wake_at=at(-9)) for number in range(9)])
    worker = Worker(store)
    found = [worker.claim() for _ in range(5)]
    assert [name for each in found for name in each] == [f"run-{number:02}" for number in range(9)]


# -- two connections


@pytest.fixture
def session(postgres_alias: str) -> Any:
    connections[POSTGRES].ensure_connection()
    with psycopg.connect(**other_session(POSTGRES)) as other:
        yield other


def test_a_start_that_commits_late_is_found(postgres_store: PostgresStore, session: Any) -> None:
    session.execute(
        "SELECT durable_start_2('late', 'w', 'q', '[]', %s, %s, NULL, NULL)", [at(-60), at(-60)]
    )  # not committed
    worker = worker_at_work(postgres_store)
    assert worker.claim() == ["next-0", "next-1"]
    worker.sweep()
    assert worker.claim() == ["next-2", "next-3"], "no worker sees it yet"
    session.commit()
    assert worker.claim() == ["next-4", "next-5"]
    worker.sweep()
    assert worker.claim() == ["late", "next-6"]


def test_a_run_that_was_locked_while_claims_went_past_it_is_found(postgres_store: PostgresStore, session: Any) -> None:
    postgres_store.create([a_run("locked", wake_at=at(-60))])
    session.execute("SELECT FROM durable_run WHERE id = 'locked' FOR UPDATE")  # a send in a transaction, for example
    worker = worker_at_work(postgres_store)
    session.rollback()
    assert worker.claim() == ["next-0", "next-1"]
    worker.sweep()
    assert worker.claim()[0] == "locked"


# -- a snapshot that is held

RUNS = 3_000
LIMIT = 10


def _complete(store: PostgresStore, run: RunRecord) -> None:
    patch = {"state": RunState.COMPLETED, "wake_at": None, "lease_expires_at": None, "finished_at": NOW}
    commit(store, run, run=patch)


def buffers(since: tuple[datetime, str] | None) -> int:
    """Blocks that a claim reads; it is rolled back."""
    moment, run_id = since or (None, "")
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT * FROM durable_claim_4('q', %s, %s, 'w', %s, %s, %s, NULL)",
            [NOW, NOW + LEASE, LIMIT, moment, run_id],
        )
        [[explained]] = cursor.fetchone()
        cursor.execute("ROLLBACK")
    return int(explained["Plan"]["Shared Hit Blocks"] + explained["Plan"]["Shared Read Blocks"])


@pytest.mark.usefixtures("new_tables")
def test_a_claim_reads_as_much_late_under_a_held_snapshot_as_early(postgres_store: PostgresStore, session: Any) -> None:
    store = postgres_store
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.execute("SELECT 1 FROM durable_run")
    store.create([a_run(f"run-{number:05}", wake_at=at(number - 2 * RUNS)) for number in range(RUNS)])
    bounds = ClaimBounds(clock=lambda: 0.0)  # no time passes: once a look at all was dear, there is no other
    passed_over: list[tuple[bool, int]] = []
    reads: list[int] = []
    for number in range(RUNS // LIMIT - 1):
        since = bounds.since("q", NOW)
        if number in (2, RUNS // LIMIT - 2):
            reads.append(buffers(since))
        batch = store.claim(queues=["q"], now=NOW, lease_until=NOW + LEASE, worker="w", limit=LIMIT, since=since)
        bounds.note("q", since, NOW, batch, LIMIT)
        assert len(batch) == LIMIT
        passed_over.append((since is None, batch.passed_over))
        for run in batch:
            _complete(store, run)
    dead = 2 * RUNS * 0.9
    early, late = reads
    assert buffers(None) > dead, "the snapshot keeps what has ended"
    assert late < early + 200
    bounded = [count for is_whole, count in passed_over if not is_whole]
    assert len(bounded) > RUNS // LIMIT // 2
    assert max(bounded) <= 3 * LIMIT
    assert store.due_queues(NOW) == ["q"]
