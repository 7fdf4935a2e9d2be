"""Numbers of runs by state and workflow: what a selection of runs returns when it is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The numbers of runs by (state, workflow).

    The workflow is "" where it was not read, and the state is "" for ids that no run has. `partial` holds the states
    of which there are, or may be, more runs than were counted.
    """

    numbers: Mapping[tuple[str, str], int]
    partial: frozenset[str] = frozenset()
