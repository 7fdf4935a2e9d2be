"""The runs that a filter describes, as what a bulk operation is done to: read page by page, along the list's own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durable.inspection.runs import RunFilter, list_runs

__all__ = ["Filtered"]


@dataclass(frozen=True, slots=True)
class Filtered:
    """The runs that `wanted` describes at the moment in which each page is read; how many, nobody knows."""

    wanted: RunFilter

    @property
    def total(self) -> int | None:
        """Unknown: it would have to be counted."""
        return None

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Up to `limit` ids behind `cursor`, and the cursor behind them; None at the end."""
        page = list_runs(self.wanted, cursor=cursor, limit=limit)
        return [run.id for run in page.runs], page.next_cursor
