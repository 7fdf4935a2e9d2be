"""Lists of runs as lanes: each lane follows one index, and a page is merged from the lanes side by side.

Knows nothing of filters: `durable.inspection.runs` chooses the index of each lane and the conditions on its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db.models import Q

from durable.inspection.error_text import shown_with
from durable.inspection.pagination import FAILURE_KEY, Cursor, RunOrder
from durable.models import Run
from durable.models.run import RunQuerySet

__all__ = ["WINDOW", "Lane", "Plan", "RunPage", "merged"]

WINDOW: Final = 10_000  # runs that one page examines if no index serves the filter


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One page of a list.

    `next_cursor` is None at the end. `is_window`: the page is short because the window ended; more runs may follow at
    `next_cursor`.
    """

    runs: Sequence[Run]
    next_cursor: str | None = None
    is_window: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs along one index, and the conditions that are checked row by row."""

    runs: RunQuerySet
    rest: Q
    #: whether `rest` may drop runs, so that a page may have to read any number of them
    is_sieve: bool
    #: whether the index is that of a cause's open failures
    is_of_cause: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """Runs of one lane, and the key up to which the lane was searched; None: to its end."""

    runs: list[Run]
    seen_to: Cursor | None


@dataclass(slots=True)
class Lane:
    """The runs of a plan in an order, behind the cursor `after`."""

    plan: Plan
    order: RunOrder
    after: Cursor | None = None
    shown_text: str = ""  # text that the redacted error of a run must contain; "" for any
    _runs: RunQuerySet = field(init=False)
    _ends: dict[int, Cursor | None] = field(init=False, default_factory=dict)  # of windows, by their size

    def __post_init__(self) -> None:
        runs = self.plan.runs.order_by(*self.order.sorted_by(self._key))
        self._runs = runs if self.after is None else runs.filter(self.after.behind(self._key))

    @property
    def _key(self) -> tuple[str, ...]:
        return FAILURE_KEY if self.plan.is_of_cause else self.order.key

    def matching(self, window: int | None = None) -> tuple[RunQuerySet, Cursor | None]:
        """Return the matching runs, and the key of the last run that is examined for them; None: all are.

        `window` is the number of examined runs, `WINDOW` unless it is given.
        """
        end = self._window_end(window or WINDOW) if self.plan.is_sieve else None
        runs = self._runs.filter(self.plan.rest)
        return (runs if end is None else runs.filter(end.up_to(self._key))), end

    def read(self, limit: int) -> _Found:
        """Return up to `limit` runs and one more."""
        runs, end = self.matching()
        if self.shown_text:
            # A search must not disclose what the project's hook hides, not even by the place where a page ends.
            shown, last = shown_with(self.shown_text, runs, limit + 1)
            return _Found(list(shown), end if last is None else Cursor.of(last, self.order))
        found = list(runs.defer("input", "output")[: limit + 1])
        return _Found(found, Cursor.of(found[-1], self.order) if len(found) > limit else end)

    def _window_end(self, window: int) -> Cursor | None:
        if window not in self._ends:
            self._ends[window] = self._find_end(window)
        return self._ends[window]

    def _find_end(self, window: int) -> Cursor | None:
        last = self._runs.values_list(self.order.column, "id")[window - 1 : window].first()
        if last is None:
            return None
        return Cursor(None if self.order is RunOrder.BY_ID else last[0], last[1], self.order)


def merged(lanes: Sequence[Lane], order: RunOrder, limit: int) -> RunPage:
    """Return the first runs of all lanes, up to the key that every lane has reached."""
    found = [lane.read(limit) for lane in lanes]
    keyed = [(Cursor.of(run, order), run) for each in found for run in each.runs]
    keyed.sort(key=lambda each: each[0].sort_key, reverse=order.is_descending)
    ends = [each.seen_to for each in found if each.seen_to is not None]
    if ends:
        choose = max if order.is_descending else min
        seen_to = choose(ends, key=lambda each: each.sort_key)
        keyed = [each for each in keyed if not each[0].is_behind(seen_to)]
    runs = [run for _, run in keyed[:limit]]
    if len(keyed) > limit:
        return RunPage(runs=runs, next_cursor=keyed[limit - 1][0].text)
    if ends:
        return RunPage(runs=runs, next_cursor=seen_to.text, is_window=True)
    return RunPage(runs=runs)
