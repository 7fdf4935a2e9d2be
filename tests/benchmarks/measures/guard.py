"""The guard of what workflow code does between its operations."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from django.test import override_settings

from durable.guard import statements
from durable.testing import Harness
from tests.benchmarks.measuring import Bench, Figure, measure

_ROUNDS = 5


@measure("guard")
def guard(bench: Bench) -> Iterator[Figure]:
    """What the guard adds to one statement of a step: µs, the least of five rounds.

    That is all that it adds to an operation. Statements between two operations cost more, and are told. A step without
    statements costs the same with each mode.
    """
    count = bench.size(200_000, 50_000)
    with override_settings(DURABLE={"GUARD": "log"}), Harness() as h:
        for name in ("off", "log"):
            wrapped = name == "log"
            run = h.start(lambda ctx, wrapped=wrapped: ctx.step("time", _microseconds, count, wrapped))
            yield Figure(f"guard {name}", h.run(run).output, "µs/statement")


def _microseconds(count: int, wrapped: bool) -> float:
    least = float("inf")
    for _ in range(_ROUNDS):
        began = perf_counter()
        if wrapped:
            for _ in range(count):
                statements._notice(_send, "SELECT 1", None, False, {})
        else:
            for _ in range(count):
                _send("SELECT 1", None, False, {})
        least = min(least, perf_counter() - began)
    return least / count * 1e6


def _send(_sql: str, _params: object, _many: bool, _context: dict[str, object]) -> None:
    """Send nothing."""
