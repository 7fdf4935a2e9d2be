"""What a claim by rank costs on PostgreSQL, whom a large backlog delays, and two starts of one share at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import compress
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from durable.core.limits.ranks import UNTAGGED, Ranking
from durable.core.records import RunRecord, RunState
from durable.models import Run
from durable.store.base import Claimed
from durable.store.postgres import PostgresStore
from durable.store.sqlite import SQLiteStore
from durable.worker.claim_bounds import ClaimBounds
from tests.store.actors import Race
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_new_run, at, commit, rows_read, the
from tests.support.locks import other_session

pytestmark = [pytest.mark.postgres]

HIGH = Ranking(priority="high", head_start=600)
LOW = Ranking(priority="low", head_start=-3600)
A, B = Ranking(share="a"), Ranking(share="b")


def start(
    store: SQLiteStore | PostgresStore,
    ids: list[str],
    ranking: Ranking | None = None,
    now: datetime = NOW,
    **values: Any,
) -> None:
    for first in range(0, len(ids), 5000):
        of_all = {"wake_at": now, "created_at": now, "ranking": ranking, **values}
        store.create([a_new_run(each, **of_all) for each in ids[first : first + 5000]])


def claim(
    store: SQLiteStore | PostgresStore, limit: int = 10, now: datetime = NOW, bounds: ClaimBounds | None = None
) -> Claimed:
    since = None if bounds is None else bounds.since("q", now)
    ranked = None if bounds is None else bounds.since_ranked("q", now)
    found = store.claim(
        queue="q", now=now, lease_until=now + LEASE, worker="w", limit=limit, since=since, since_ranked=ranked
    )
    if bounds is not None:
        bounds.note("q", since, now, found, limit)
    return found


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:05}" for number in range(count)]


def complete(store: PostgresStore, run: RunRecord) -> None:
    patch = {"state": RunState.COMPLETED, "wake_at": None, "lease_expires_at": None, "finished_at": NOW}
    commit(store, run, run=patch)


def buffers(now: datetime = NOW, limit: int = 10) -> int:
    """Blocks that a claim reads; it is rolled back."""
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT * FROM durable_claim_4('q', %s, %s, 'w', %s, NULL, '', NULL)",
            [now, now + LEASE, limit],
        )
        [[explained]] = cursor.fetchone()
        cursor.execute("ROLLBACK")
    return int(explained["Plan"]["Shared Hit Blocks"] + explained["Plan"]["Shared Read Blocks"])


@pytest.mark.slow
@pytest.mark.usefixtures("new_tables")
def test_a_backlog_of_5_000_runs_delays_another_shares_run_by_no_claim(postgres_store: PostgresStore) -> None:
    store = postgres_store
    start(store, names("a", 5_000), A)
    for claims in range(20):  # two workers in turn, each with ten at a time
        found = [run.id for run in claim(store)]
        assert found == names("a", 5_000)[10 * claims : 10 * claims + 10], "a share's own runs keep their order"
    start(store, ["b"], B, now=at(2))
    assert "b" in [run.id for run in claim(store, now=at(2))]
    start(store, ["plain"], now=at(3), wake_at=at(3))
    assert "plain" in [run.id for run in claim(store, now=at(3))]
    start(store, ["high"], HIGH, now=at(3))
    assert [run.id for run in claim(store, now=at(3), limit=1)] == ["high"]


@pytest.mark.slow
@pytest.mark.usefixtures("new_tables")
def test_neither_a_claim_nor_an_idle_poll_walks_over_sleeping_runs(postgres_store: PostgresStore) -> None:
    store = postgres_store
    for prefix, ranking in (("plain", None), ("high", HIGH), ("low", LOW), ("a", A), ("b", B)):
        start(store, names(prefix, 2_000), ranking, wake_at=at(60))
    idle = claim(store)
    assert (list(idle), idle.passed_over) == ([], 0)
    start(store, ["low-now"], LOW)
    start(store, names("c", 3), Ranking(share="c"))
    found = claim(store)
    assert [run.id for run in found] == [*names("c", 3), "low-now"]
    assert found.passed_over < 20
    assert buffers() < 300


@pytest.mark.slow
@pytest.mark.usefixtures("new_tables")
def test_a_claim_takes_few_of_many_that_are_due(postgres_store: PostgresStore) -> None:
    store = postgres_store
    for prefix, ranking in (("high", HIGH), ("low", LOW), ("a", A), ("b", B)):
        start(store, names(prefix, 2_000), ranking)
    bounds = ClaimBounds(clock=lambda: 0.0)
    found = claim(store, bounds=bounds)
    assert [run.id for run in found] == names("high", 10)
    assert len(claim(store, bounds=bounds, now=at(1))) == 10  # it begins a little before the moment of the first one
    found = claim(store, bounds=bounds, now=at(2))
    assert [run.id for run in found] == names("high", 30)[20:]
    assert found.passed_over < 1_000


@pytest.mark.usefixtures("new_tables")
def test_a_due_backlog_is_passed_over_once_in_a_while(postgres_store: PostgresStore) -> None:
    """Runs without a rank are found behind it, and claims that begin where the last one ended do not walk over it."""
    store = postgres_store
    start(store, names("low", 5_000), LOW)
    bounds = ClaimBounds(clock=lambda: 0.0)  # no time passes: once a look at all was dear, there is no other
    passed_over: list[int] = []
    claimed: list[str] = []
    for second in range(1, 20):
        now = at(second)
        start(store, [f"plain-{second:02}"], now=now, created_at=now)
        found = claim(store, now=now, bounds=bounds, limit=1)
        passed_over.append(found.passed_over)
        claimed += [run.id for run in found]
    assert claimed == [f"plain-{second:02}" for second in range(1, 20)]
    assert passed_over[0] >= 5_000
    assert max(passed_over[1:]) < 200


@pytest.mark.usefixtures("new_tables")
def test_a_claim_that_was_planned_on_a_few_runs_reads_as_few_of_many(postgres_store: PostgresStore) -> None:
    store = postgres_store
    start(store, ["first"], HIGH)
    start(store, ["also"], A)
    with connections[POSTGRES].cursor() as cursor:
        for table in ("durable_run", "durable_lane", "durable_share", "durable_runrank"):
            cursor.execute(f"ANALYZE {table}")
    for number in range(12):  # as often as PostgreSQL plans anew
        start(store, [f"first-{number}"], HIGH)
        start(store, [f"also-{number}"], A)
        assert claim(store, limit=2)
    claim(store, limit=100)
    start(store, names("plain", 2_000), now=at(1))
    for prefix, ranking in (("high", HIGH), ("a", A), ("b", B)):
        start(store, names(prefix, 500), ranking, now=at(2))
    bounds = ClaimBounds(clock=lambda: 0.0)
    assert len(claim(store, bounds=bounds, now=at(2))) == 10
    with transaction.atomic(using=POSTGRES):
        before = rows_read(POSTGRES)
        assert len(claim(store, bounds=bounds, now=at(2))) == 10
        assert rows_read(POSTGRES) - before < 400


RUNS = 1_000


@pytest.fixture
def session(postgres_alias: str) -> Any:
    connections[POSTGRES].ensure_connection()
    with psycopg.connect(**other_session(POSTGRES)) as other:
        yield other


@pytest.mark.slow
@pytest.mark.usefixtures("new_tables")
@pytest.mark.parametrize("ranking", [HIGH, LOW, A])
def test_a_claim_reads_as_much_late_under_a_held_snapshot_as_early(
    postgres_store: PostgresStore, session: Any, ranking: Ranking
) -> None:
    store = postgres_store
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.execute("SELECT 1 FROM durable_run")
    bounds = ClaimBounds(clock=lambda: 0.0)
    passed_over: list[tuple[bool, int]] = []
    for number in range(RUNS // 10):
        now = at(number)
        if number % 20 == 7:  # as autovacuum does at any moment: the next claim is planned anew
            with connections[POSTGRES].cursor() as cursor:
                cursor.execute("ANALYZE durable_run, durable_lane, durable_runrank")
        start(store, [f"run-{number:03}-{each}" for each in range(10)], ranking, now=now)
        since = bounds.since("q", now)
        batch = claim(store, now=now, bounds=bounds)
        assert len(batch) == 10
        passed_over.append((since is None, batch.passed_over))
        for run in batch:
            complete(store, run)
    bounded = [count for is_whole, count in passed_over if not is_whole]
    assert len(bounded) > len(passed_over) // 2
    assert max(bounded) < 200


# -- two transactions


@pytest.mark.slow
def test_two_starts_of_one_share(race: Race) -> None:
    """The second waits for the first, and its run comes behind those that were committed."""
    store = race.store
    start(store, ["first"], A)
    race.run(lambda: start(store, ["x"], A), lambda: start(store, ["y"], A))
    found: list[str] = []
    while batch := claim(store, limit=1):
        found += [run.id for run in batch]
    assert found[0] == "first"
    assert sorted(found[1:]) == list(compress("xy", race.commits))


def test_a_claim_does_not_wait_for_a_start_of_the_share(postgres_store: PostgresStore, session: Any) -> None:
    store = postgres_store
    start(store, ["delayed"], A, wake_at=at(5))
    session.execute("SELECT durable_tag_1('q', 'a', 1, 1, %s, true)", [NOW])  # a start that has not committed
    start(store, ["other"], B)
    assert [run.id for run in claim(store, now=at(5))] == ["other", "delayed"]
    session.rollback()


def test_two_claims_at_once_take_different_runs(postgres_store: PostgresStore, session: Any) -> None:
    store = postgres_store
    start(store, names("high", 3), HIGH)
    start(store, names("plain", 3))
    first = session.execute(
        "SELECT (run).id FROM durable_claim_4('q', %s, %s, 'w', 2, NULL, '', NULL) WHERE run IS NOT NULL",
        [NOW, NOW + LEASE],
    ).fetchall()  # not committed
    del first
    assert [run.id for run in claim(store, limit=2)] == ["high-00002", "plain-00000"]
    session.commit()
    assert [run.id for run in claim(store, limit=9)] == ["plain-00001", "plain-00002"]


def test_several_claims_at_once_take_each_run_once(postgres_store: PostgresStore) -> None:
    store = postgres_store
    rankings = {"plain": None, "high": HIGH, "low": LOW, "a": A, "b": B}
    for prefix, ranking in rankings.items():
        start(store, names(prefix, 60), ranking, wake_at=NOW if prefix != "b" else at(0.5))

    def work() -> list[str]:
        found: list[str] = []
        while batch := claim(store, limit=3, now=at(1)):
            found += [run.id for run in batch]
        connections.close_all()
        return found

    with ThreadPoolExecutor(4) as pool:
        shares = [future.result(120) for future in [pool.submit(work) for _ in range(4)]]
    left = claim(store, limit=1000, now=at(1))  # what others had locked at that moment
    claimed = [run_id for share in shares for run_id in share] + [run.id for run in left]
    assert sorted(claimed) == sorted(name for prefix in rankings for name in names(prefix, 60))


def test_a_claim_waits_for_nobody_who_has_all_its_candidates_locked(
    postgres_store: PostgresStore, session: Any
) -> None:
    store = postgres_store
    start(store, ["high"], HIGH)
    session.execute("SELECT FROM durable_run WHERE id = 'high' FOR UPDATE")
    assert claim(store) == []
    session.rollback()
    assert [run.id for run in claim(store)] == ["high"]


def test_an_old_claim_takes_runs_with_ranks_by_their_time(postgres_store: PostgresStore) -> None:
    """A worker of the release before, while a deploy is under way."""
    store = postgres_store
    start(store, ["low"], LOW, wake_at=at(-9))
    start(store, ["a"], A, wake_at=at(-8))
    start(store, ["plain"], wake_at=at(-7))
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("SELECT (run).id FROM durable_claim_3('q', %s, %s, 'w', 9, NULL, '')", [NOW, NOW + LEASE])
        assert {name for (name,) in cursor.fetchall()} == {"low", "a", "plain", None}
    start(store, ["later"], LOW)
    assert [run.id for run in claim(store)] == ["later"]


def test_a_run_that_was_claimed_so_is_not_due_while_it_sleeps(postgres_store: PostgresStore) -> None:
    store = postgres_store
    start(store, ["a"], A)
    with connections[POSTGRES].cursor() as cursor:
        cursor.execute("SELECT (run).id FROM durable_claim_3('q', %s, %s, 'w', 9, NULL, '')", [NOW, NOW + LEASE])
    commit(
        store,
        the(store, "a"),
        run={"state": RunState.SLEEPING, "wake_at": at(60), "lease_expires_at": None, "worker": ""},
    )
    assert claim(store, now=at(59)) == []
    assert [run.id for run in claim(store, now=at(60))] == ["a"]
    assert timedelta(0) < LEASE


def test_runs_of_one_start_have_their_turns_at_once(postgres_store: PostgresStore) -> None:
    """Each of many has a moment of its own, the last a millisecond after the first."""
    store = postgres_store
    for prefix, ranking in (("a", A), ("b", B)):
        moments = {name: at(number / 20_000) for number, name in enumerate(names(prefix, 20))}
        store.create([a_new_run(each, wake_at=t, created_at=t, ranking=ranking) for each, t in moments.items()])
    assert not Run.objects.using(POSTGRES).filter(start_tag=UNTAGGED).exists()
    assert [run.id[0] for run in claim(store, limit=12, now=at(1))].count("a") in (5, 6, 7)
