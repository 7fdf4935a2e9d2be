"""A stale commit and a claim never both stand: all interleavings of the two, on real connections at READ COMMITTED.

A commit F of the worker whose lease has run out and a claim C of another one are two transactions each of a statement and
an end, COMMIT or ROLLBACK. Each order of the four is tried, with each kind of commit and of claim. `pytest -s` prints
what happened, `-v` the orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from typing import Any, Final

import pytest
from django.db import connections, transaction

from durable.core.control_flow import LeaseLost
from durable.core.records import RunRecord
from durable.store import Store
from durable.store.orm import OrmStore
from durable.store.postgres import PostgresStore
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, a_message, an_entry, at, commit, started, the

LockingStore = OrmStore | PostgresStore

#: The orders of F's statement and end, `F` and `f`, and those of C.
ORDERS: Final = ["FfCc", "FCfc", "FCcf", "CFfc", "CFcf", "CcFf"]
ENDS: Final = ["COMMIT", "ROLLBACK"]
PATIENCE: Final = 120.0

COMMITS: Final[dict[str, Callable[[Store, RunRecord], Any]]] = {
    "one entry": lambda store, held: commit(store, held, entries=[an_entry("late")]),
    "two entries": lambda store, held: commit(store, held, entries=[an_entry("late"), an_entry("later")]),
    "an entry, a message, the row": lambda store, held: commit(
        store, held, entries=[an_entry("late")], sends=[a_message("run")], run={"summary": "late"}
    ),
}
CLAIMS: Final[dict[str, Callable[[Store], list[RunRecord]]]] = {
    "claim": lambda store: store.claim(queues=["q"], now=at(60), lease_until=at(60) + LEASE, worker="C", limit=1),
    "claim of one run": lambda store: [
        run for run in [store.claim_run("run", now=at(60), lease_until=at(60) + LEASE, worker="C")] if run is not None
    ],
}


class Actor:
    """One transaction in a thread and on a connection of its own, done statement by statement."""

    def __init__(self, pool: ThreadPoolExecutor, name: str, statement: Callable[[], Any], end: str) -> None:
        self.name = name
        self.statement = statement
        self.end = end
        self.outcome: Any = None
        self._pool = pool
        self._atomic = transaction.atomic(using=POSTGRES)
        self.pid: int = self._pool.submit(self._begin).result(PATIENCE)
        self._step: Future[None] | None = None

    def _begin(self) -> int:
        self._atomic.__enter__()
        with connections[POSTGRES].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    def _execute(self) -> None:
        try:
            self.outcome = self.statement()
        except LeaseLost:
            self.outcome = "refused"

    def _end(self) -> None:
        transaction.set_rollback(self.end == "ROLLBACK", using=POSTGRES)
        self._atomic.__exit__(None, None, None)

    def act(self, step: str) -> str:
        """Execute (a capital) or end; "waits" if that waits for a lock."""
        self._step = self._pool.submit(self._execute if step.isupper() else self._end)
        return self.look()

    def look(self) -> str:
        """Whether the step is done, or waits for a lock; one of the two comes to be."""
        assert self._step is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._step.done():
                self._step.result()
                return "done"
            with connections[POSTGRES].cursor() as cursor:
                cursor.execute("SELECT cardinality(pg_blocking_pids(%s))", [self.pid])
                if cursor.fetchone()[0]:
                    return "waits"
        raise AssertionError(f"{self.name} neither ends nor waits")

    def finish(self) -> None:
        """Wait until the step is done."""
        assert self._step is not None
        self._step.result(PATIENCE)


def play(order: str, actors: dict[str, Actor]) -> list[str]:
    """Do the steps in this order, but for those of an actor that waits: they come when it goes on. What happened."""
    events: list[str] = []
    waiting: set[str] = set()
    left = list(order)
    while left:
        step = next(each for each in left if each.upper() not in waiting)
        left.remove(step)
        actor = actors[step.upper()]
        what = actor.name if step.isupper() else f"{step.upper()} {actor.end}"
        if actor.act(step) == "waits":
            waiting.add(step.upper())
            events.append(f"{what} (waits)")
            continue
        events.append(what)
        for other in list(waiting) if step.islower() else []:
            actors[other].finish()
            waiting.discard(other)
    return events


Pools = tuple[ThreadPoolExecutor, ThreadPoolExecutor]


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    """A thread for each actor, and its connection."""
    pools = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    yield pools
    for pool in pools:
        pool.submit(connections.close_all).result(PATIENCE)
        pool.shutdown()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_stale_commit_and_a_claim_never_both_stand(
    locking_store: LockingStore, pools: Pools, order: str, claim: str
) -> None:
    for number, (kind, (f_end, c_end)) in enumerate(product(COMMITS, product(ENDS, ENDS))):
        held = renewed(locking_store, number)
        f, c = pools
        actors = {
            "F": Actor(f, "F commits", lambda held=held, kind=kind: COMMITS[kind](locking_store, held), f_end),  # type: ignore[misc]  # bound defaults
            "C": Actor(c, "C claims", lambda: CLAIMS[claim](locking_store), c_end),
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
        row = the(locking_store)
        assert row.fence == held.fence + moved, line
        assert bool(locking_store.load("run")) == written, line
        if kind.endswith("the row"):
            assert len(locking_store.messages("run")) == row.message_count == written, line
            assert (row.summary == "late") == written, line
        assert not (written and moved and is_first), f"a stale commit and the claim before it both stand: {line}"


def renewed(store: LockingStore, number: int) -> RunRecord:
    """The run, new, in the hands of a worker whose lease will have run out when the other one claims."""
    if number:
        with connections[POSTGRES].cursor() as cursor:
            for table in ("durable_entrymetadata", "durable_entry", "durable_queuemessage", "durable_run"):
                cursor.execute(f"DELETE FROM {table}")
    return started(store)
