"""Two transactions on connections of their own, statement by statement.

Which one waits for the other is seen in the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from django.db import connections, transaction

from durable.core.control_flow import LeaseLost
from durable.store.postgres import PostgresStore
from tests.store.emptying import POSTGRES

#: The orders of the statements and ends of two transactions, `A` and `a`, `B` and `b`.
ENDS: Final = ["COMMIT", "ROLLBACK"]
ORDERS: Final = ["AaBb", "ABab", "ABba", "BAab", "BAba", "BbAa"]


def races() -> list[tuple[str, str, str]]:
    """Return the orders with the ends of `A` and of `B` that show something else than the others.

    At most one of the two is rolled back: with both, nothing is left that the one rollback does not leave. Where one
    begins after the end of the other, its own rollback shows nothing either: nobody meets it.
    """
    return [
        (order, *ends)
        for order in ORDERS
        for ends in product(ENDS, ENDS)
        if "COMMIT" in ends and (order not in ("AaBb", "BbAa") or ends["AB".index(order[-1].upper())] == "COMMIT")
    ]


PATIENCE: Final = 120.0

#: Seconds in which a statement that waits for nobody is mostly done, before the database is asked whether it waits.
SHORT: Final = 0.005

#: How many sessions keep this one waiting. Autovacuum is none of them: it gives way.
_BLOCKING: Final = """SELECT count(*) FROM unnest(pg_blocking_pids(%s)) AS b(pid) JOIN pg_stat_activity AS a ON a.pid = b.pid
  WHERE a.backend_type = 'client backend'"""

Pools = tuple[ThreadPoolExecutor, ThreadPoolExecutor]


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
        self._has_ended = False

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
        self._has_ended = True
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
            if wait([self._step], SHORT).done:
                self._step.result()
                return "done"
            with connections[POSTGRES].cursor() as cursor:
                cursor.execute(_BLOCKING, [self.pid])
                if cursor.fetchone()[0]:
                    return "waits"
        raise AssertionError(f"{self.name} neither ends nor waits")

    def abandon(self) -> None:
        """Roll back what a failed test has left open: the next test would wait for its locks for ever."""
        if not self._has_ended:
            self.end = "ROLLBACK"
            self._pool.submit(self._end)

    def finish(self) -> None:
        """Wait until the step is done."""
        assert self._step is not None
        self._step.result(PATIENCE)


@dataclass(frozen=True)
class Race:
    """Two transactions, A and B: the order of their statements and ends, and which of them commit."""

    store: PostgresStore
    pools: Pools
    order: str = "ABba"
    ends: tuple[str, str] = ("COMMIT", "COMMIT")

    @property
    def commits(self) -> tuple[bool, bool]:
        """Whether A commits, and whether B does."""
        return self.ends[0] == "COMMIT", self.ends[1] == "COMMIT"

    @property
    def a_commits(self) -> bool:
        return self.commits[0]

    @property
    def b_commits(self) -> bool:
        return self.commits[1]

    @property
    def both_commit(self) -> bool:
        return all(self.commits)

    def run(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """Do both, print what has waited, and return what the two statements have returned."""
        a = Actor(self.pools[0], "A", first, self.ends[0])
        b = Actor(self.pools[1], "B", second, self.ends[1])
        print(", ".join(play(self.order, {"A": a, "B": b})))
        return a.outcome, b.outcome


def play(order: str, actors: dict[str, Actor]) -> list[str]:
    """Do the steps in this order, but for those of an actor that waits: they come when it goes on. What happened."""
    try:
        return _play(order, actors)
    except BaseException:
        for each in actors.values():
            each.abandon()
        raise


def _play(order: str, actors: dict[str, Actor]) -> list[str]:
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
