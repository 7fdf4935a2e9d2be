"""Lists of runs as lanes: each lane follows one index, and a page is merged from several lanes.

The indexes on leases, due runs and diverged runs normally hold few runs. Then a list takes its runs from them
(`few_diverged`, `few_attended`); otherwise it examines a window of the runs by state.

Knows nothing of filters: `durable.inspection.runs` chooses the index of each lane and the conditions on its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.db.models.lookups import Exact, IsNull

from durable.core import registry
from durable.core.location import ANY_QUEUE, escape
from durable.core.names.renames import names_of_workflow
from durable.core.new_runs import Subject
from durable.core.records import ENDED, RunState
from durable.core.registry import INTERNAL
from durable.core.summary import SummaryKind
from durable.inspection.counting import Count, Key, OfEach, moment_of, sample_rows
from durable.inspection.explain_states import LATE
from durable.inspection.pagination import FAILURE_KEY, KEY_OF_FAILURE, Cursor, RunOrder, end_of_window, has_own_index
from durable.inspection.payloads import shown_with
from durable.inspection.reading import read_alias
from durable.inspection.workers import queues_with_runs
from durable.models import Child, Failure, Run
from durable.models.rows import unpack
from durable.models.run import KEY_OF_ROW, TAG_KEY, RunQuerySet

FEW: Final = 1_000  # the most runs that a list takes from a small index

_FAILED: Final = RunState.FAILED.value
_RUNNING: Final = RunState.RUNNING.value

#: The states of runs that a worker may have, or had when they failed.
WORKED_ON: Final = frozenset({_RUNNING, RunState.ROLLING_BACK.value, _FAILED})

#: The condition that the workers' code does not fit the run: it is retried for a while, or has failed because of that.
DIVERGED: Final = Q(diverged_at__isnull=False) | Q(
    state=_FAILED, error__startswith='{"type": "HistoryDivergedError"', error__isnull=False
)

#: The condition that a rollback handler has failed for good, and the compensation has stopped.
STUCK: Final = Q(state=_FAILED) & (
    ~Q(state_after_rollback="") | Q(summary__startswith=f'{{"kind":"{SummaryKind.HANDLER_FAILED.value}"')
)

#: The condition for runs that are not durable's own (of bulks and alerts), and for failed ones.
NO_ALERT: Final = ~Q(workflow__startswith=INTERNAL) | Q(state=_FAILED)


def no_alert() -> Q:
    """Return the condition for runs that are neither durable's own nor of a quiet workflow, and for failed ones."""
    quiet = [name for each in registry.all() if each.is_quiet for name in names_of_workflow(each.name)]
    return NO_ALERT & ~Q(workflow__in=sorted(quiet)) | Q(state=_FAILED) if quiet else NO_ALERT


#: The condition for runs that are not children: no run has started it, or a step has. A subquery for each run that has
#: a parent: PostgreSQL might read the table of all children for an EXISTS beside an OR.
ROOT: Final = Q(parent__isnull=True) | Q(
    IsNull(Subquery(Child.objects.filter(run=OuterRef("pk")).values("pk")[:1]), rhs=True)
)


def waiting_for(queue: str) -> Q:
    """Return the condition for runs that wait for a message of the queue, or of any."""
    any_queue = Q(waiting_for=ANY_QUEUE) | Q(waiting_for__startswith=f"{ANY_QUEUE}/")
    waits = any_queue | Q(waiting_for__contains=f"/{escape(queue)}/")
    return ~Q(state=_RUNNING) & waits  # the row of a running one still has what it waited for


def of_worker(worker: str) -> Q:
    """Return the condition for runs that the worker has, and for runs that failed on it and are still failed.

    The failure is looked up for each examined run: with a join, PostgreSQL might read the table of all failures.
    """
    failure = Failure.objects.filter(run=OuterRef("pk"), is_open=True).values("worker")[:1]
    return Q(worker=worker) | (Q(state=_FAILED) & Q(Exact(Subquery(failure), worker)))


def needing_attention(now: datetime) -> Q:
    """Return the condition for runs that need a person to continue well, as far as `explain` sees it in their rows."""
    return Q(state=_FAILED) | (
        ~Q(state__in=_ENDED) & (Q(diverged_at__isnull=False) | _overdue(now) | _lost(now) | has_held())
    )


def has_held() -> Q:
    """Return the condition for runs with a step that waits for a person.

    The failure is looked up for each examined run, as in `of_worker`.
    """
    failure = Failure.objects.filter(run=OuterRef("pk"), is_held=True).values("is_held")[:1]
    return Q(IsNull(Subquery(failure), rhs=False))


def few_attended(now: datetime) -> Sequence[str] | None:
    """Return the ids of the open runs that need attention, except those with a step that waits for a person; None if an
    index has more than `FEW`.

    Two statements.
    """
    runs: RunQuerySet = Run.objects.using(read_alias())
    late = runs.filter(wake_at__isnull=False).exclude(state=RunState.PAUSED.value).filter(_overdue(now))
    diverged = runs.filter(diverged_at__isnull=False).exclude(state__in=_ENDED).order_by("diverged_at")
    leased = runs.filter(_lost(now), lease_expires_at__isnull=False).order_by("lease_expires_at")
    due = [late.filter(queue=queue).order_by("wake_at", "id") for queue in queues_with_runs()]
    return _few([diverged, leased, *due])


def few_diverged() -> Sequence[str] | None:
    """Return the ids of the open runs that have diverged; None if there are more than `FEW`. One statement."""
    runs: RunQuerySet = Run.objects.using(read_alias())
    return _few([runs.filter(diverged_at__isnull=False).exclude(state__in=_ENDED).order_by("diverged_at")])


def _few(indexes: Sequence[RunQuerySet]) -> Sequence[str] | None:
    found = [[run_id for (run_id,) in rows] for rows in sample_rows(indexes, ["id"], FEW + 1)]
    if any(len(each) > FEW for each in found):
        return None
    return list(dict.fromkeys(run_id for each in found for run_id in each))


def _overdue(now: datetime) -> Q:
    unheld = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
    return unheld & ~Q(state__in=[RunState.PAUSED.value, _RUNNING]) & Q(wake_at__lt=now - LATE)


def _lost(now: datetime) -> Q:
    return Q(state=_RUNNING) & (Q(lease_expires_at__lt=now - LATE) | Q(crashes__gt=1))


_ENDED: Final = sorted(each.value for each in ENDED)


WINDOW: Final = 10_000  # runs to examine for one page if no index serves the filter
_FEW: Final = 3  # the most lanes that read their runs at once


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

    #: the condition of the index
    index: Q
    rest: Q = field(default_factory=Q)
    #: whether the index has few enough runs to read all
    is_short: bool = False
    #: whether the index is one of open failures
    is_of_failures: bool = False
    #: the rows of the index without the runs, if known: they say where a window ends
    failures: QuerySet[Failure] | None = None
    #: the key of the cause, if the index is that of a cause's open failures
    cause: int | None = None
    #: `rest` as a condition on rows of failures; None if these cannot tell which runs match
    rest_of_failures: Q | None = None
    #: whether the index has runs of a rare state, or of a cause: then a user's runs are searched for among these
    is_narrow: bool = False
    #: whether errors are searched for a text, which takes twice as long as other conditions
    compares_texts: bool = False
    #: the tags along whose index the runs are found
    tags: tuple[tuple[str, str], ...] = ()
    #: what the runs are about, if they are found along its index
    about: Subject | None = None
    #: the rows of that index, or of the only tag's, without the runs: they say where a window ends, and count
    side_rows: QuerySet[Any] | None = None

    @property
    def is_of_side_table(self) -> bool:
        """Whether the index is one of a side table, whose rows have the key of the list."""
        return bool(self.tags) or self.about is not None


@dataclass(frozen=True, slots=True)
class _Found:
    """The runs found in one lane: their keys, the runs that were read, and the key up to which the lane was searched.

    `seen_to` is None if it was searched to its end.
    """

    keyed: Sequence[tuple[Cursor, Run | None]]
    seen_to: Cursor | None


@dataclass(slots=True)
class Lane:
    """The runs of a plan in an order, after the cursor `after`.

    `within` limits them to those that a user may see. If the database finds these along an index of their own
    (`durable.inspection.pagination`), and the plan's is not narrow, a window covers only them, else all runs of the
    plan's index (`durable.inspection.pagination`). A list by id has no window of all runs: its cursors are ids, and
    must not reveal runs that the user may not see.
    """

    plan: Plan
    order: RunOrder
    after: Cursor | None = None
    shown_text: str = ""  # text that a run's redacted error must contain; "" for any
    within: RunQuerySet | None = None
    is_bounded: bool = False  # whether the plan has bounds of the moment by which the list is sorted
    _ends: dict[int, Cursor | None] = field(init=False, default_factory=dict)  # of windows, by their size

    @property
    def _runs(self) -> RunQuerySet:
        return self._along(Run.objects.using(read_alias()) if self.within is None else self.within)

    def _along(self, runs: RunQuerySet) -> RunQuerySet:
        if self.plan.about is not None:
            runs = runs.about_key(self.plan.about.model, self.plan.about.key)
        elif self.plan.tags:
            runs = runs.tagged(**dict(self.plan.tags))
        if self.plan.is_of_side_table:
            runs = runs.annotate(**{column: F(column) for column in TAG_KEY})
        found = runs.filter(self.plan.index).order_by(*self.order.sorted_by(self._key))
        return found if self.after is None else found.filter(self.after.behind(self._key, is_bounded=self.is_bounded))

    @property
    def _key(self) -> tuple[str, ...]:
        if self.plan.is_of_side_table:
            return TAG_KEY
        return FAILURE_KEY if self.plan.is_of_failures else self.order.key

    @property
    def _rows_of_index(self) -> tuple[QuerySet[Any], tuple[str, ...]] | None:
        """Return the rows of the plan's index without the runs, and their key, if a window covers all of them."""
        if self._is_of_visible:
            return None
        if self.plan.failures is not None:
            return self.plan.failures, KEY_OF_FAILURE
        return None if self.plan.side_rows is None else (self.plan.side_rows, KEY_OF_ROW)

    @property
    def _is_of_visible(self) -> bool:
        """Whether a window covers only visible runs."""
        if self.within is None:
            return False
        return self.order is RunOrder.BY_ID or (not self.plan.is_narrow and has_own_index(self.within))

    def _index(self) -> tuple[QuerySet[Any], tuple[str, ...]]:
        """Return what a window covers, in order, and the columns of its key."""
        if (rows := self._rows_of_index) is not None:
            return self._in_order(*rows), rows[1]
        is_own = self.within is None or self._is_of_visible
        return self._runs if is_own else self._along(Run.objects.using(read_alias())), self._key

    def _in_order(self, rows: QuerySet[Any], key: tuple[str, ...]) -> QuerySet[Any]:
        found = rows.order_by(*self.order.sorted_by(key))
        return found if self.after is None else found.filter(self.after.behind(key, is_bounded=self.is_bounded))

    def _along_failures(self, failures: QuerySet[Failure]) -> QuerySet[Failure]:
        return self._in_order(failures, KEY_OF_FAILURE)

    @property
    def is_of_failures(self) -> bool:
        return self.plan.rest_of_failures is not None and self.within is None and not self.shown_text

    def of_failures(self, window: int) -> tuple[QuerySet[Failure], Cursor | None] | None:
        """Return `matching` as rows of failures, whose keys are those of the runs.

        Return None if the rows of failures do not tell which runs match.
        """
        if self.plan.failures is None or self.plan.rest_of_failures is None or not self.is_of_failures:
            return None
        rows = self._along_failures(self.plan.failures.filter(self.plan.rest_of_failures))
        end = self._window_end(window) if self.plan.rest else None
        return (rows if end is None else rows.filter(end.up_to(KEY_OF_FAILURE, is_bounded=self.is_bounded))), end

    def of_any_cause(self) -> QuerySet[Failure]:
        """Return the failures of a cause, the `Key` of an `OfEach`, with the columns of a run's key."""
        failures = Failure.objects.using(read_alias()).filter(is_open=True, cause=Key())
        return self._along_failures(failures).annotate(created_at=F("run_created_at"), id=F("run_id"))

    def matching(self, window: int | None = None) -> tuple[RunQuerySet, Cursor | None]:
        """Return the matching runs, and the key of the last run to examine for them; None if all are examined.

        `window` is the number of runs to examine, by default `WINDOW`, or half of it if texts are compared or the index
        is one of a side table: then each run is looked up.
        """
        usual = max(1, WINDOW // 2) if self.plan.compares_texts or self.plan.is_of_side_table else WINDOW
        # A page may have to skip any number of runs, except durable's own, of which there are few.
        is_sieve = self.plan.rest not in (Q(), NO_ALERT) or self.within is not None
        end = self._window_end(window or usual) if is_sieve and not self.plan.is_short else None
        runs = self._runs.filter(self.plan.rest)
        return (runs if end is None else runs.filter(end.up_to(self._key, is_bounded=self.is_bounded))), end

    def countable(self) -> tuple[QuerySet[Any], Cursor | None]:
        """Return `matching`, or as many rows of a side table if these alone tell how many runs match."""
        is_told = self.plan.rest == Q() and self.within is None and not self.shown_text
        if is_told and self.plan.side_rows is not None:
            return self._in_order(self.plan.side_rows, KEY_OF_ROW), None
        return self.matching()

    def read(self, limit: int) -> _Found:
        """Read up to `limit` runs and one more."""
        runs, end = self.matching()
        if self.shown_text:
            # A search must not disclose what the project's hook hides, not even by the place where a page ends.
            shown, last = shown_with(self.shown_text, runs, limit + 1)
            return _Found(self._keyed(shown), end if last is None else Cursor.of(last, self.order))
        found = self._keyed(runs.select_related("shown").defer("input", "output")[: limit + 1])
        return _Found(found, found[-1][0] if len(found) > limit else end)

    def _keyed(self, runs: Iterable[Run]) -> list[tuple[Cursor, Run]]:
        return [(Cursor.of(run, self.order), run) for run in runs]

    def _window_end(self, window: int) -> Cursor | None:
        if window not in self._ends:
            self._ends[window] = self._find_end(window)
        return self._ends[window]

    def _find_end(self, window: int) -> Cursor | None:
        rows, key = self._index()
        if self.within is not None and not self._is_of_visible:
            return end_of_window(rows, self.within, self.order, window, key[0])
        last = rows.values_list(*key)[window - 1 : window].first()  # what the index has, and no more
        if last is None:
            return None
        return Cursor(None if self.order is RunOrder.BY_ID else last[0], last[-1], self.order)


def merged(lanes: Sequence[Lane], order: RunOrder, limit: int) -> RunPage:
    """Return the first runs of all lanes together, up to the key that every lane has reached.

    With many lanes, one statement reads the keys and another one the runs of the page; each lane that no index serves
    needs one more, for the end of its window.
    """
    return merged_and_counted(lanes, order, limit)[0]


def merged_and_counted(lanes: Sequence[Lane], order: RunOrder, limit: int) -> tuple[RunPage, Count | None]:
    """Return the page that `merged` returns, and the number of runs in all lanes; None if a lane has more than
    `limit`.
    """
    is_alone = len(lanes) <= _FEW or any(lane.shown_text for lane in lanes)
    found = [lane.read(limit) for lane in lanes] if is_alone else _keys_of(lanes, order, limit)
    ends = [each.seen_to for each in found if each.seen_to is not None]
    count: Count | None = None
    if all(len(each.keyed) <= limit for each in found):
        count = Count(number=sum(len(each.keyed) for each in found), is_capped=bool(ends))
    return _merged(found, ends, order, limit), count


def _merged(found: Sequence[_Found], ends: Sequence[Cursor], order: RunOrder, limit: int) -> RunPage:
    keyed = [row for each in found for row in each.keyed]
    keyed.sort(key=lambda row: row[0].sort_key, reverse=order.is_descending)
    if ends:
        choose = max if order.is_descending else min
        seen_to = choose(ends, key=lambda each: each.sort_key)
        keyed = [row for row in keyed if not row[0].is_behind(seen_to)]
    runs = _in_full(keyed[:limit])
    if len(keyed) > limit:
        return RunPage(runs=runs, next_cursor=keyed[limit - 1][0].text)
    if ends:
        return RunPage(runs=runs, next_cursor=seen_to.text, is_window=True)
    return RunPage(runs=runs)


def matching_of(
    lanes: Sequence[Lane], *, to_count: bool = False
) -> tuple[Sequence[QuerySet[Any] | OfEach], Sequence[Cursor | None]]:
    """Return the result of `Lane.matching` for each lane; with `to_count`, that of `Lane.countable`.

    Lanes of causes share one queryset, of their failures.
    """
    causes = [lane.plan.cause for lane in lanes if lane.is_of_failures and lane.plan.cause is not None]
    if causes and len(causes) == len(lanes):
        return [OfEach(lanes[0].of_any_cause(), causes)], [None] * len(lanes)
    found = [lane.countable() if to_count else lane.matching() for lane in lanes]
    return [runs for runs, _ in found], [end for _, end in found]


def _keys_of(lanes: Sequence[Lane], order: RunOrder, limit: int) -> list[_Found]:
    """Return the keys of the first runs of each lane; one statement, besides those that find the ends of windows."""
    matching, ends = matching_of(lanes)
    found = []
    for end, rows in zip(ends, sample_rows(matching, order.key, limit + 1), strict=True):
        keys = [_cursor(row, order) for row in rows]
        keys.sort(key=lambda key: key.sort_key, reverse=order.is_descending)
        found.append(_Found([(key, None) for key in keys], keys[-1] if len(keys) > limit else end))
    return found


def _cursor(row: Sequence[Any], order: RunOrder) -> Cursor:
    *moments, run_id = row
    return Cursor(moment_of(moments[0]) if moments else None, unpack(run_id), order)


def _in_full(keyed: Sequence[tuple[Cursor, Run | None]]) -> list[Run]:
    """Return the runs in order, reading those that were not read; one statement. Deleted ones are omitted."""
    missing = [key.id for key, run in keyed if run is None]
    rows = Run.objects.using(read_alias()).select_related("shown").defer("input", "output")
    read = rows.in_bulk(missing) if missing else {}
    runs = [run or read.get(key.id) for key, run in keyed]
    return [run for run in runs if run is not None]
