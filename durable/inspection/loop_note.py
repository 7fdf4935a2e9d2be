"""What a loop's record says of its iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable.core.records import EntryStatus

__all__ = ["loop_note"]


def loop_note(status: str, data: Mapping[str, Any]) -> str:
    """Return how many iterations a loop has made and which of them are pruned, in words."""
    iteration, pruned = data.get("iteration", 0), data.get("pruned", 0)
    if status == EntryStatus.COMPLETED:
        note = f"{iteration + 1:,} iteration{'s' if iteration else ''}"
    else:
        note = f"in iteration {iteration:,}"
    if pruned:
        last = f" to {pruned - 1:,}" if pruned > 1 else ""
        note += f"; the records of iteration{'s' if last else ''} 0{last} are pruned, as a loop does to stay small"
    return note
