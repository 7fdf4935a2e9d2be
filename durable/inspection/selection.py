"""Runs as the selection of a bulk operation: those that match a filter, and those that an operator chose by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from django.db.models import Q, QuerySet

from durable.conf import conf
from durable.core.records import ENDED, RunState
from durable.core.tally import HELD, GivenIds, Tally
from durable.inspection.counting import count_capped, tally
from durable.inspection.reading import read_alias
from durable.inspection.runs import RunCriteria, along_indexes, learn_names_of, list_runs
from durable.models import Cause, Failure, Run

EXAMINED: Final = 20_000  # runs of a state to examine for a count if no index serves the filter
_LESS: Final = 4  # the fraction of them to examine of a state that the verb leaves alone
_FAILED: Final = frozenset({RunState.FAILED.value})
_OPEN: Final = frozenset(each.value for each in RunState if each not in ENDED)
_LOOKS: Final = 20  # pages to read to count runs by the text that a redaction hook shows


@dataclass(frozen=True, slots=True)
class Filtered:
    """The runs that match `wanted` when each page is read; their number is unknown."""

    wanted: RunCriteria
    total: ClassVar[int | None] = None  # not known without counting

    @property
    def is_everything(self) -> bool:
        return self.wanted.is_empty

    @property
    def place(self) -> str:
        """The place of the filter's cause, or the filter's place; "" without either."""
        if self.wanted.place or not self.wanted.cause:
            return self.wanted.place
        causes = Cause.objects.using(read_alias()).filter(fingerprint=self.wanted.cause)
        return causes.values_list("place", flat=True).first() or ""

    @property
    def _is_of_failures(self) -> bool:
        """Whether the runs are failed, or held, by their failures."""
        return bool(self.wanted.cause or self.wanted.place or self.wanted.is_held)

    def page(self, cursor: str | None, limit: int) -> tuple[Sequence[str], str | None]:
        """Return up to `limit` ids after `cursor`, and the next cursor; None at the end."""
        page = list_runs(self.wanted, cursor=cursor, limit=limit)
        return [run.id for run in page.runs], page.next_cursor

    def narrowed(self, states: Collection[str]) -> Filtered:
        """Return the filter limited to runs in these states."""
        wanted = self._in(frozenset(states))
        return self if wanted is None else Filtered(wanted)

    def failed(self) -> Sequence[tuple[QuerySet[Any], bool]]:
        """Return the failed ones among the matching runs, or their failures, each with whether there may be more.

        Of a cause, those with a held step too. The querysets are disjoint.
        """
        return [*self._lanes(RunState.FAILED.value, EXAMINED), *self._lanes(HELD, EXAMINED)]

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return up to `limit` ids of matching runs in these states."""
        wanted = self._in(frozenset(states))
        return [] if wanted is None else [run.id for run in list_runs(wanted, limit=limit).runs]

    def tally(self, states: Collection[str], most: int) -> Tally:
        """Count the matching runs: in `states` by workflow, in other states by state alone.

        Counts up to `most` runs of each state along an index, of another state less exactly. Two statements, one for
        the other names of a workflow or a queue, and at most one more for each state and each cause.
        """
        learn_names_of(self.wanted)
        if conf.REDACT and self.wanted.error_text:
            return self._tally_of_shown(most)
        numbers: Counter[tuple[str, str]] = Counter()
        partial = set[str]()
        matching, others = list[tuple[str, QuerySet[Any]]](), list[tuple[str, QuerySet[Any]]]()
        is_split = self._is_of_failures and HELD in states  # held runs of all states are counted as one
        every = [RunState.FAILED.value, HELD] if is_split else [each.value for each in RunState]
        for state in every:
            window = EXAMINED if state in states else EXAMINED // _LESS
            for runs, is_window in self._lanes(state, window):
                (matching if state in states else others).append((state, runs))
                partial |= {state} if is_window else set()
        for (state, _), found in zip(
            matching, tally([runs for _, runs in matching], "workflow_of_run", most), strict=True
        ):
            numbers.update({(state, workflow): number for workflow, number in found.items()})
        for (state, _), count in zip(others, count_capped([runs for _, runs in others], most), strict=True):
            numbers[state, ""] += count.number
        totals: Counter[str] = Counter()
        for (state, _), number in numbers.items():
            totals[state] += number
        partial |= {state for state, number in totals.items() if number >= most}
        return Tally(numbers=+numbers, partial=frozenset(partial))

    def _in(self, states: frozenset[str]) -> RunCriteria | None:
        """Return the filter for these states alone; None if no run matches."""
        if self._is_of_failures:
            going = _OPEN if HELD in states else states & _OPEN
            states = going if self.wanted.is_held else (states & _FAILED) | going
            both = states & (self.wanted.states or states)
            is_any = not self.wanted.states and both == (_OPEN if self.wanted.is_held else _FAILED | _OPEN)
            return replace(self.wanted, states=frozenset() if is_any else both) if both else None
        both = (states & self.wanted.states if self.wanted.states else states) - {HELD}
        return replace(self.wanted, states=both) if both else None

    def _lanes(self, state: str, window: int) -> list[tuple[QuerySet[Any], bool]]:
        wanted = self._in(frozenset({state}))
        if wanted is None:
            return []
        if not self._is_of_failures:
            return along_indexes(wanted, window=window)
        if state in (RunState.FAILED, HELD) and not self.wanted.states:  # the rows of failures tell
            wanted = replace(wanted, states=frozenset())
        found = along_indexes(wanted, window=window)
        is_held = state != RunState.FAILED
        return [
            (rows.filter(**{"is_held" if rows.model is Failure else "failure__is_held": is_held}), is_window)
            for rows, is_window in found
        ]

    def _tally_of_shown(self, most: int) -> Tally:
        numbers: Counter[tuple[str, str]] = Counter()
        cursor: str | None = None
        for _ in range(_LOOKS):
            page = list_runs(self.wanted, cursor=cursor, limit=most)
            numbers.update((run.state, run.workflow) for run in page.runs)
            cursor = page.next_cursor
            if cursor is None or numbers.total() >= most:
                break
        return Tally(numbers=numbers, partial=frozenset(RunState) if cursor is not None else frozenset())


@dataclass(frozen=True, slots=True)
class Chosen(GivenIds):
    """The runs with these ids, to be counted; at most a few hundred."""

    is_everything: ClassVar[bool] = False  # the ids are a condition

    def failed(self) -> Sequence[tuple[QuerySet[Any], bool]]:
        """Return the failed ones, and those with a held step, as one queryset, which is not a window."""
        runs = Run.objects.using(read_alias()).filter(pk__in=self.ids)
        return [(runs.filter(Q(state=RunState.FAILED.value) | Q(failure__is_held=True)), False)]

    def sample(self, states: Collection[str], limit: int) -> Sequence[str]:
        """Return the first `limit` ids of runs in these states."""
        found = {run_id for run_id, state, _ in self._runs(states) if state in states}
        return [each for each in self.ids if each in found][:limit]

    def tally(self, states: Collection[str], most: int) -> Tally:  # noqa: ARG002  # few enough to count them all
        """Count the runs by state and workflow, and the ids that no run has. One statement, or two with `HELD`."""
        runs = self._runs(states)
        numbers = Counter((state, workflow) for _, state, workflow in runs)
        numbers["", ""] = len(set(self.ids)) - len(runs)
        return Tally(numbers=+numbers)

    def _runs(self, states: Collection[str]) -> list[tuple[str, str, str]]:
        """Return id, state and workflow of each run; the state is `HELD` if that is wanted, and a step is held."""
        runs = Run.objects.using(read_alias()).filter(pk__in=self.ids)
        rows = list(runs.order_by().values_list("id", "state", "workflow"))
        if HELD not in states:
            return rows
        failures = Failure.objects.using(read_alias()).filter(run__in=self.ids, is_held=True)
        held = set(failures.order_by().values_list("run_id", flat=True))
        return [(run_id, HELD if run_id in held else state, workflow) for run_id, state, workflow in rows]
