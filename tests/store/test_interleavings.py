"""A stale commit and a claim never both stand: all interleavings of the two, on real connections at READ COMMITTED.

A commit F of the worker whose lease has run out and a claim C of another one are two transactions each of a statement
and an end, COMMIT or ROLLBACK. Each order of the four is tried, with each kind of commit and of claim. `pytest -s`
prints what happened, `-v` the orders.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.limits.ranks import Ranking
from durable.core.records import RunChange, RunRecord
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, Actor, Pools, play
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, a_message, a_new_run, an_entry, at, commit, started, the

#: The orders of F's statement and end, `F` and `f`, and those of C.
ORDERS: Final = ["FfCc", "FCfc", "FCcf", "CFfc", "CFcf", "CcFf"]

COMMITS: Final[dict[str, Callable[[Store, RunRecord], Any]]] = {
    "one entry": lambda store, held: commit(store, held, entries=[an_entry("late")]),
    "two entries": lambda store, held: commit(store, held, entries=[an_entry("late"), an_entry("later")]),
    "an entry, a message, the row": lambda store, held: commit(
        store, held, entries=[an_entry("late")], sends=[a_message("run")], run={"summary": "late"}
    ),
}
CLAIMS: Final[dict[str, Callable[[Store], list[RunRecord]]]] = {
    "claim": lambda store: store.claim(queue="q", now=at(60), lease_until=at(60) + LEASE, worker="C", limit=1),
    "claim of one run": lambda store: [
        run for run in [store.claim_run("run", now=at(60), lease_until=at(60) + LEASE, worker="C")] if run is not None
    ],
}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_stale_commit_and_a_claim_never_both_stand(
    postgres_store: PostgresStore, pools: Pools, order: str, claim: str
) -> None:
    for number, (kind, (f_end, c_end)) in enumerate(product(COMMITS, product(ENDS, ENDS))):
        held = renewed(postgres_store, number)
        f, c = pools
        actors = {
            "F": Actor(f, "F commits", lambda held=held, kind=kind: COMMITS[kind](postgres_store, held), f_end),  # type: ignore[misc]  # bound defaults
            "C": Actor(c, "C claims", lambda: CLAIMS[claim](postgres_store), c_end),
        }
        events = play(order, actors)
        accepted, taken = actors["F"].outcome != "refused", bool(actors["C"].outcome)
        line = f"{', '.join(events)}: F {'accepted' if accepted else 'refused'}, C {'took the run' if taken else 'passed by'}"
        print(f"{kind:>28}, {claim}: {line}")

        is_first = order.index("C") < order.index("F")
        if is_first:  # F came to the row when C had it, or had had it
            assert taken
            assert accepted == (c_end == "ROLLBACK"), line
        else:
            assert accepted
            is_under_way = order.index("C") < order.index("f")
            assert taken == (not is_under_way or claim == "claim of one run"), line
        written = accepted and f_end == "COMMIT"
        moved = taken and c_end == "COMMIT"
        row = the(postgres_store)
        assert (row.fence > held.fence) == moved, line
        assert bool(postgres_store.load("run")) == written, line
        if kind.endswith("the row"):
            assert len(postgres_store.messages("run")) == row.message_count == written, line
            assert (row.summary == "late") == written, line
        assert not (written and moved and is_first), f"a stale commit and the claim before it both stand: {line}"


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("is_ranked", [False, True])
@pytest.mark.parametrize("order", [each.replace("F", "M").replace("f", "m") for each in ORDERS])
def test_a_move_and_a_claim_of_the_queue_before_leave_the_run_to_one_queue(
    postgres_store: PostgresStore, pools: Pools, order: str, is_ranked: bool
) -> None:
    """Claims of the old queue take it before the move, with a lease that the move leaves alone; or they pass it by."""
    ranking = Ranking(priority="high", head_start=600, share="acme") if is_ranked else None
    for number, (m_end, c_end) in enumerate(product(ENDS, ENDS)):
        if number:
            empty()
        postgres_store.create([a_new_run("run", wake_at=at(0), created_at=at(0), ranking=ranking)])
        m, c = pools
        actors = {
            "M": Actor(m, "M moves", lambda: moved(postgres_store), m_end),
            "C": claiming(postgres_store, c, c_end),
        }
        line = ", ".join(play(order, actors))
        row, took = the(postgres_store), bool(actors["C"].outcome)
        is_first = order.index("C") < order.index("M")
        is_under_way = order.index("C") < order.index("m")
        assert took == (is_first or (not is_under_way and m_end == "ROLLBACK")), line
        assert row.queue == ("other" if m_end == "COMMIT" else "q"), line
        assert (row.worker == "C") == (took and c_end == "COMMIT"), line
        again = postgres_store.claim(queue=row.queue, now=at(61), lease_until=at(61) + LEASE, worker="D", limit=1)
        assert [each.id for each in again] == ([] if row.worker == "C" else ["run"]), line


def moved(store: Store) -> RunRecord:
    return store.change("run", lambda run, _: RunChange(run=transitions.requeued(run, queue="other", now=at(60))))


def claiming(store: Store, pool: ThreadPoolExecutor, end: str) -> Actor:
    return Actor(pool, "C claims", lambda: CLAIMS["claim"](store), end)


def empty() -> None:
    with connections[POSTGRES].cursor() as cursor:
        for table in ("entrymetadata", "entry", "queuemessage", "runrank", "lane", "share", "run"):
            cursor.execute(f"DELETE FROM durable_{table}")


def renewed(store: PostgresStore, number: int) -> RunRecord:
    """The run, new, in the hands of a worker whose lease will have run out when the other one claims."""
    if number:
        empty()
    return started(store)
