"""Counts of runs by state and workflow: the result of counting a selection of runs."""

from __future__ import annotations

from collections.abc import Mapping
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
