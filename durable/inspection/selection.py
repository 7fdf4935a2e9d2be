"""The runs that match a filter, as the selection of a bulk operation: read page by page, by the list's own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durable.inspection.runs import RunCriteria, list_runs

__all__ = ["Filtered"]


@dataclass(frozen=True, slots=True)
class Filtered:
    """The runs that match `wanted` when each page is read; their number is unknown."""

    wanted: RunCriteria

    @property
    def total(self) -> int | None:
        """Always None: the runs would have to be counted."""
        return None

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids after `cursor`, and the next cursor; None at the end."""
        page = list_runs(self.wanted, cursor=cursor, limit=limit)
        return [run.id for run in page.runs], page.next_cursor
