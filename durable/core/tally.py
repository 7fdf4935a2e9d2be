"""Selections of runs: those given by ids, and the counts of a selection's runs by state and workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: The word, beside the states, for an open run with a step that waits for a person, where a verb is meant for it.
HELD: Final = "held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of runs by (state, workflow).

    The workflow is "" if it was not read; the state is "" for ids that no run has. `partial` holds the states that
    have, or may have, more runs than were counted.
    """

    numbers: Mapping[tuple[str, str], int]
    partial: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GivenIds:
    """Runs that are given by their ids, read page by page."""

    ids: tuple[str, ...]

    @property
    def total(self) -> int | None:
        return len(self.ids)

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return the ids from a position on, and the next position."""
        begin = 0 if cursor is None else int(cursor)
        end = begin + limit
        return self.ids[begin:end], str(end) if end < len(self.ids) else None
