"""What a measurement is: a function that yields figures, and what it is given.

A measurement makes its own runs, on tables that are empty when it begins, and says in its docstring what it measures,
in which unit, and what it does not show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Figure(NamedTuple):
    """One number, of one round."""

    name: str
    value: float
    unit: str


class Skipped(Exception):
    """What was to be measured is not installed here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What was asked for. `absurd_sql` is the file that creates Absurd's schema."""

    short: bool = False
    absurd_sql: Path | None = None

    def size(self, full: int, short: int) -> int:
        """How much work: `short` with --short."""
        return short if self.short else full

    @property
    def database_url(self) -> str:
        """Durable's database; peers have their own on the same server."""
        return os.environ["DATABASE_URL"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement by its name. With `beside_bare` the bare insert rate is taken before and after it."""

    name: str
    run: Callable[[Bench], Iterator[Figure]]
    beside_bare: bool
    is_peer: bool


#: All measurements, in the order in which a round takes them.
MEASURES: dict[str, Measure] = {}


def measure(
    name: str, *, beside_bare: bool = False, is_peer: bool = False
) -> Callable[[Callable[[Bench], Iterator[Figure]]], Callable[[Bench], Iterator[Figure]]]:
    """Make a function known as the measurement `name`."""

    def decorate(function: Callable[[Bench], Iterator[Figure]]) -> Callable[[Bench], Iterator[Figure]]:
        assert name not in MEASURES
        assert function.__doc__, "a measurement says what it does not show"
        MEASURES[name] = Measure(name, function, beside_bare, is_peer)
        return function

    return decorate


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie; the largest for 1.0."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of these spans overlap at most."""
    edges = sorted(edge for begins, ends in spans for edge in ((begins, 1), (ends, -1)))
    most = now = 0
    for _moment, change in edges:
        now += change
        most = max(most, now)
    return most
