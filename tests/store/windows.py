"""Whether what has begun keeps a rate, in each window of time."""

from __future__ import annotations


def check(begun: list[tuple[int, int]], spacing: int, most: int) -> None:
    """Check each window between two beginnings: (moment, units), in nanoseconds."""
    begun = sorted(begun)
    for first in range(len(begun)):
        units = 0
        for moment, number in begun[first:]:
            units += number
            assert units * spacing <= moment - begun[first][0] + most * spacing
