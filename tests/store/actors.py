"""Two transactions on connections of their own, statement by statement.

Which one waits for the other is seen in the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

from django.db import connections, transaction

from durable.core.control_flow import LeaseLost
from tests.store.conftest import POSTGRES

#: The orders of the statements and ends of two transactions, `A` and `a`, `B` and `b`.
ORDERS: Final = ["AaBb", "ABab", "ABba", "BAab", "BAba", "BbAa"]
ENDS: Final = ["COMMIT", "ROLLBACK"]
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


def both(
    pools: Pools, order: str, ends: tuple[str, str], first: Callable[[], Any], second: Callable[[], Any]
) -> dict[str, Actor]:
    """Do two transactions in this order, which is printed with what has waited."""
    a, b = pools
    actors = {"A": Actor(a, "A", first, ends[0]), "B": Actor(b, "B", second, ends[1])}
    print(", ".join(play(order, actors)))
    return actors


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
