"""How many things went on at once."""

from __future__ import annotations

from collections.abc import Iterable


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of these spans overlap at most."""
    edges = sorted(edge for begins, ends in spans for edge in ((begins, 1), (ends, -1)))
    most = now = 0
    for _moment, change in edges:
        now += change
        most = max(most, now)
    return most
