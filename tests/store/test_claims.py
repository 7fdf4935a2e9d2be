"""Claiming, renewing and releasing runs; and runs that become due behind the point at which claims begin."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connections

from durable.conf import conf
from durable.core import transitions
from durable.core.records import Request, RunChange, RunRecord, RunState
from durable.core.witnesses import is_of_first_claim
from durable.store import Store
from durable.store.base import Claimed, Released
from durable.store.postgres import PostgresStore
from durable.worker.claim_bounds import ClaimBounds
from tests.store.conftest import POSTGRES
from tests.store.making import (
    LEASE,
    NOW,
    a_message,
    a_run,
    at,
    changed,
    claimed,
    commit,
    finished,
    park,
    started,
    the,
)
from tests.support.locks import other_session


def claim(store: Store, queue: str = "q", limit: int = 10, seconds: float = 0) -> list[RunRecord]:
    now = at(seconds)
    return store.claim(queue=queue, now=now, lease_until=now + LEASE, worker="w1", limit=limit)


def test_a_claimed_run_has_a_new_fence_a_lease_a_worker_and_a_start(store: Store) -> None:
    store.create([a_run(fence=4)])
    [run] = claim(store)
    assert (run.lease_expires_at, run.worker, run.started_at) == (NOW + LEASE, "w1", NOW)
    assert run.fence == the(store).fence > 4
    assert (run.state, run.crashes) == (RunState.RUNNING, 0)
    assert the(store) == run


def test_the_longest_due_come_first(store: Store) -> None:
    store.create(
        [a_run("c", wake_at=at(-1)), a_run("a", wake_at=at(-3)), a_run("b", wake_at=at(-2)), a_run("d", wake_at=at(-1))]
    )
    assert [run.id for run in claim(store, limit=3)] == ["a", "b", "c"]
    assert [run.id for run in claim(store)] == ["d"]


def test_only_the_queue_asked_for_is_served(store: Store) -> None:
    store.create([a_run("a"), a_run("b", queue="other")])
    assert [[run.id for run in claim(store, each)] for each in ("none", "q", "other")] == [[], ["a"], ["b"]]


@pytest.mark.parametrize("values", [{"wake_at": None}, {"wake_at": at(0.000001)}, {"state": RunState.PAUSED}])
def test_a_run_that_is_not_due_is_left(store: Store, values: dict[str, Any]) -> None:
    store.create([a_run(**values)])
    assert claim(store) == []


def test_an_ended_run_is_left(store: Store) -> None:
    held = started(store)
    finished(store, held)
    assert claim(store, seconds=1000) == []
    assert store.claim_run("run", now=at(1000), lease_until=at(2000), worker="w") is None


def test_a_live_lease_protects(store: Store) -> None:
    started(store)
    assert claim(store, seconds=29.9) == []
    assert store.claim_run("run", now=at(29.9), lease_until=at(60), worker="w") is None


def test_a_lease_that_ran_out_counts_as_a_crash(store: Store) -> None:
    first = started(store)
    [second] = claim(store, seconds=30)
    assert (second.crashes, second.started_at) == (1, NOW)
    assert second.fence > first.fence
    [third] = claim(store, seconds=90)
    assert third.crashes == 2


def test_rolling_back_stays_rolling_back(store: Store) -> None:
    store.create([a_run(state=RunState.ROLLING_BACK)])
    assert [run.state for run in claim(store)] == [RunState.ROLLING_BACK]


@pytest.mark.parametrize("wake_at", [None, at(3600), at(-60)])
def test_a_run_can_be_taken_whether_or_not_it_is_due(store: Store, wake_at: object) -> None:
    store.create([a_run(wake_at=wake_at)])
    run = claimed(store, worker="w1")
    assert (run.worker, run.state, run.lease_expires_at) == ("w1", RunState.RUNNING, NOW + LEASE)
    assert is_of_first_claim(run.fence)
    assert the(store) == run


def test_a_run_taken_before_it_was_due_is_found_again_when_its_worker_dies(store: Store) -> None:
    store.create([a_run(wake_at=None)])
    store.claim_run("run", now=NOW, lease_until=NOW + LEASE, worker="w1")
    assert [run.crashes for run in claim(store, seconds=31)] == [1]


def test_a_paused_or_missing_run_is_not_taken(store: Store) -> None:
    store.create([a_run(state=RunState.PAUSED)])
    assert store.claim_run("run", now=NOW, lease_until=NOW + LEASE, worker="w1") is None
    assert store.claim_run("none", now=NOW, lease_until=NOW + LEASE, worker="w1") is None


def test_renewing_prolongs_what_is_held_and_tells_of_requests(store: Store) -> None:
    a, b = started(store, "a"), started(store, "b", pending_request=Request.PAUSE)
    assert store.renew([("a", a.fence), ("b", b.fence)], at(99)) == ({"a": "", "b": "pause"}, frozenset())
    assert the(store, "a").lease_expires_at == the(store, "b").lease_expires_at == at(99)


def test_what_was_lost_is_missing_from_a_renewal(store: Store) -> None:
    held = started(store)
    [again] = claim(store, seconds=31)
    assert store.renew([("run", held.fence), ("none", 1)], at(999)) == ({}, frozenset())
    assert the(store) == again


def test_a_lease_that_ran_out_but_was_not_taken_can_be_renewed(store: Store) -> None:
    held = started(store)
    assert store.renew([("run", held.fence)], at(99)) == ({"run": ""}, frozenset())
    assert claim(store, seconds=98) == []


def test_a_renewal_that_comes_after_the_run_was_parked_gives_it_no_lease(store: Store) -> None:
    held = started(store)
    park(store, held)
    assert store.renew([("run", held.fence)], at(99)) == ({}, frozenset())
    assert the(store).lease_expires_at is None


def test_a_released_run_is_due_at_once_and_no_crash(store: Store) -> None:
    held = started(store)
    store.release([("run", held.fence)], at(1))
    run = the(store)
    assert (run.lease_expires_at, run.worker, run.state, run.crashes) == (None, "", RunState.PENDING, 0)
    assert run.wake_at == NOW, "it keeps its place among the due"
    [again] = claim(store, seconds=1)
    assert again.crashes == 0


def test_a_crash_that_was_counted_stays_counted_when_the_run_is_released(store: Store) -> None:
    started(store)
    [second] = claim(store, seconds=31)
    store.release([("run", second.fence)], at(32))
    assert the(store).crashes == 1


def test_releasing_what_was_lost_changes_nothing(store: Store) -> None:
    held = started(store)
    [again] = claim(store, seconds=31)
    store.release([("run", held.fence), ("none", 7)], at(32))
    assert the(store) == again


def test_a_release_says_which_queue_a_run_has_been_moved_to(store: Store) -> None:
    held = [(each, started(store, each).fence) for each in ("here", "there")]
    changed(store, "there", transitions.requeued, queue="new", now=NOW)
    assert store.release(held, at(1)) == Released(frozenset(), frozenset({"q", "new"}))


def test_renewing_and_releasing_nothing_is_allowed(store: Store) -> None:
    assert store.renew([], NOW) == ({}, frozenset())
    assert store.release([], NOW) == Released(frozenset(), frozenset())


def test_the_next_deadline_is_the_earliest_later_one_of_the_queues(store: Store) -> None:
    store.create(
        [
            a_run("past", wake_at=at(-5)),
            a_run("now", wake_at=NOW),
            a_run("b", wake_at=at(20)),
            a_run("a", wake_at=at(10)),
            a_run("other", wake_at=at(1), queue="other"),
            a_run("paused", wake_at=at(2), state=RunState.PAUSED),
            a_run("never", wake_at=None),
        ]
    )
    assert store.next_deadline(["q"], NOW) == at(10)
    assert store.next_deadline(["q", "other"], NOW) == at(1)
    assert store.next_deadline(["q"], at(20)) is None
    assert store.next_deadline([], NOW) is None


def test_the_due_queues_have_due_runs_and_runs_whose_lease_ran_out(store: Store) -> None:
    store.create(
        [
            a_run("due", queue="b"),
            a_run("due too", queue="b"),
            a_run("later", queue="c", wake_at=at(5)),
            a_run("paused", queue="d", state=RunState.PAUSED),
            a_run("crashed", queue="a"),
        ]
    )
    store.claim_run("crashed", now=NOW, lease_until=at(1), worker="w")
    assert store.due_queues(NOW) == ["b"]
    assert store.due_queues(at(1)) == ["a", "b"]


# -- runs that become due behind the point at which claims begin: the next look at all runs finds them


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
        found = self.store.claim(queue="q", now=now, lease_until=now + LEASE, worker="w", limit=limit, since=since)
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


@pytest.mark.slow
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
        batch = store.claim(queue="q", now=NOW, lease_until=NOW + LEASE, worker="w", limit=LIMIT, since=since)
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
