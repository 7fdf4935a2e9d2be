"""Durations in classes, each a fifth longer than the last: percentiles of any number of runs from a few counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

SHORTEST: Final = 0.001  # seconds; what is shorter is in class 0
CLASSES: Final = 4  # for each doubling


def class_of(seconds: float) -> int:
    """Return the class of a duration."""
    return math.floor(math.log(max(seconds, SHORTEST) / SHORTEST) / math.log(2) * CLASSES)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the seconds that this share of the runs took at most, within a tenth; None without runs.

    `counts` is the number of runs in each class.
    """
    total = sum(counts.values())
    if not total:
        return None
    seen, wanted = 0, share * total
    for each in sorted(counts):
        seen += counts[each]
        if seen >= wanted:
            break
    return float(SHORTEST * 2 ** ((each + 0.5) / CLASSES))
