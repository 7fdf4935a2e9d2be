"""Two runs side by side: at which places their records are not the same. What `handle.compare()` returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from durable.core.records import EntryStatus
from durable.operations.history import HistoryEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryDifference:
    """A place at which two runs differ. A side is None if its run has nothing there.

    `differs` names what is not the same: "place" if only one run has it, else "status", "attempts", "error" (its type
    or message), "output" and "given by hand" (the output of one of them).
    """

    location: str
    left: HistoryEntry | None
    right: HistoryEntry | None
    differs: tuple[str, ...]


def differences(left: Iterable[HistoryEntry], right: Iterable[HistoryEntry]) -> list[HistoryDifference]:
    """Return the places at which two histories differ: those of the left one in its order, then the right one's own."""
    sides = [{each.location: each for each in side} for side in (left, right)]
    found = []
    for location in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(location) for side in sides)
        differs = _differs(one, other)
        if differs:
            found.append(HistoryDifference(location=location, left=one, right=other, differs=differs))
    return found


def _differs(left: HistoryEntry | None, right: HistoryEntry | None) -> tuple[str, ...]:
    if left is None or right is None:
        return ("place",)
    one, other = _compared(left), _compared(right)
    return tuple(name for name in one if one[name] != other[name])


def _compared(entry: HistoryEntry) -> dict[str, Any]:
    error = entry.error if entry.status != EntryStatus.COMPLETED else None
    return {
        "status": entry.status,
        "attempts": entry.attempts,
        "error": None if error is None else (error.type, error.message),
        "output": entry.data.get("output"),
        "given by hand": "given" in entry.data,
    }
