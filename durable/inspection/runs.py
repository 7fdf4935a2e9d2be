"""Lists of runs: filters, the search box, and pages by key.

No list reads more of the table as the table grows. A filter that an index serves is followed along that index; any other is
applied to a window of `WINDOW` runs along it. A page that the window did not fill says so, and its cursor goes on
behind the window: nothing is left out, one more click is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import Count as CountOf
from django.db.models import Q

from durable.conf import conf
from durable.core.location import ANY_QUEUE, escape
from durable.core.records import RunState
from durable.inspection.error_text import contains, shown_with
from durable.inspection.pagination import Behind, Cursor, InvalidCursorError, UpTo
from durable.models import Attempt, Run
from durable.models.querysets import RunQuerySet

__all__ = [
    "PAGE",
    "WINDOW",
    "InvalidCursorError",
    "RunFilter",
    "RunPage",
    "failed_attempts",
    "list_runs",
    "searched",
]

PAGE: Final = 50  # runs
WINDOW: Final = 10_000  # runs that one page looks through where no index answers
_LAST = "\U0010ffff"
_COMMON: Final = frozenset({RunState.COMPLETED.value})  # states that most runs are in some day


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list. Everything that is given has to hold; what is empty does not count.

    `states` are the words of `RunState`. The times are aware, from (included) and until (excluded). `error_text` is
    looked for in the type and the message of a run's error, whatever the case: in their beginnings
    (`durable.inspection.error_text`), and, with a redaction hook, in what the hook shows of them. `waiting_queue`: runs
    that wait for a message of that queue, or of any.
    """

    states: frozenset[str] = frozenset()
    workflow: str = ""
    queue: str = ""
    created_from: datetime | None = None
    created_until: datetime | None = None
    finished_from: datetime | None = None
    finished_until: datetime | None = None
    id_prefix: str = ""
    error_text: str = ""
    waiting_queue: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(self.states - {state.value for state in RunState})
        if unknown:
            raise ValueError(f"a run has no state {unknown[0]!r}; the states are {', '.join(RunState)}")

    @property
    def is_empty(self) -> bool:
        """Whether every run passes."""
        return self == RunFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One page of a list. `next_cursor` is None at the end. `is_window`: the page is short because the window ended, and
    there may be more behind `next_cursor`."""

    runs: Sequence[Run]
    next_cursor: str | None = None
    is_window: bool = False


def list_runs(
    wanted: RunFilter, *, cursor: str | None = None, limit: int = PAGE, within: RunQuerySet | None = None
) -> RunPage:
    """A page of the runs that `wanted` describes: the newest first, or by id where it gives a prefix of one.

    `within` limits the runs further, to those that a user may see, say. At most three statements for each state that is
    asked for. Raises InvalidCursorError for a cursor that no page gave.
    """
    by_id = bool(wanted.id_prefix)
    after = Cursor.parsed(cursor, by_id=by_id) if cursor else None
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    plans = _lanes(runs, wanted, is_limited=within is not None)
    hidden = wanted.error_text if conf.REDACT else ""
    lanes = [_Lane(each, by_id=by_id, after=after, shown_text=hidden) for each in plans]
    return _merged([lane.read(limit) for lane in lanes], by_id=by_id, limit=limit)


def searched(text: str, base: RunFilter | None = None, within: RunQuerySet | None = None) -> RunFilter:
    """`base` narrowed to what one search box means: an id, the beginning of one, or else a part of an error's text."""
    base, text = base or RunFilter(), text.strip()
    if not text:
        return base
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    # in the order of the ids, which keeps the database on their index
    if _begins_with(runs, text).order_by("id").values_list("id").first() is not None:
        return replace(base, id_prefix=text)
    return replace(base, error_text=text)


def failed_attempts(runs: Sequence[Run]) -> dict[str, int]:
    """How many failed attempts the steps of each of these runs have had, by id; one statement."""
    found = Attempt.objects.using(conf.DATABASE).filter(run__in=[run.id for run in runs]).order_by()
    return dict(found.values_list("run").annotate(number=CountOf("id")))


# -- which index to follow


@dataclass(frozen=True, slots=True)
class _Plan:
    """Runs along one index, and what has to be looked at one by one."""

    runs: RunQuerySet
    rest: Q
    #: whether `rest` may drop runs, so that a page of them can take any number
    is_sieve: bool


def _lanes(runs: RunQuerySet, wanted: RunFilter, *, is_limited: bool) -> list[_Plan]:
    rest, times = _sieve(wanted), _created(wanted)
    is_sieve = bool(rest) or is_limited
    if wanted.id_prefix:
        rest &= times & _in(state=wanted.states) & _is(workflow=wanted.workflow)
        return [_Plan(_begins_with(runs, wanted.id_prefix), rest, is_limited or bool(rest))]
    runs = runs.filter(times)
    if wanted.workflow and (not wanted.states or wanted.states & _COMMON):
        rest &= _in(state=wanted.states)
        return [_Plan(runs.filter(workflow=wanted.workflow), rest, is_limited or bool(rest))]
    if wanted.states:
        rest &= _is(workflow=wanted.workflow)
        sifts = is_limited or bool(rest)
        return [_Plan(runs.filter(state=state), rest, sifts) for state in sorted(wanted.states)]
    return [_Plan(runs, rest, is_sieve)]


def _begins_with(runs: RunQuerySet, prefix: str) -> RunQuerySet:
    return runs.filter(id__gte=prefix, id__lt=prefix + _LAST)


def _created(wanted: RunFilter) -> Q:
    return _is(created_at__gte=wanted.created_from, created_at__lt=wanted.created_until)


def _sieve(wanted: RunFilter) -> Q:
    """What no index serves."""
    rest = _is(queue=wanted.queue, finished_at__gte=wanted.finished_from, finished_at__lt=wanted.finished_until)
    if wanted.waiting_queue:
        rest &= Q(waiting_for=ANY_QUEUE) | Q(waiting_for__contains=f"/{escape(wanted.waiting_queue)}/")
    if wanted.error_text:
        # with a redaction hook the lane looks at what is shown, see `_Lane.read`
        rest &= Q(error__isnull=False) if conf.REDACT else contains(wanted.error_text)
    return rest


def _is(**conditions: Any) -> Q:
    return Q(**{name: value for name, value in conditions.items() if value})


def _in(**conditions: frozenset[str]) -> Q:
    return Q(**{f"{name}__in": sorted(values) for name, values in conditions.items() if values})


# -- one lane, and several side by side


@dataclass(frozen=True, slots=True)
class _Found:
    """Runs of one lane, and the key up to which it was looked through; None: to its end."""

    runs: list[Run]
    seen_to: Cursor | None


@dataclass(slots=True)
class _Lane:
    plan: _Plan
    by_id: bool
    after: Cursor | None
    shown_text: str  # that the redaction hook has to show of a run's error; "" for any
    _runs: RunQuerySet = field(init=False)

    def __post_init__(self) -> None:
        runs = self.plan.runs.order_by("id") if self.by_id else self.plan.runs.newest_first()
        if self.after is not None:
            runs = runs.filter(Q(id__gt=self.after.id) if self.by_id else Behind(self.after))
        self._runs = runs

    def read(self, limit: int) -> _Found:
        """Up to `limit` runs and one more."""
        end = self._window_end() if self.plan.is_sieve else None
        runs = self._runs.filter(self.plan.rest)
        if end is not None:
            runs = runs.filter(Q(id__lte=end.id) if self.by_id else UpTo(end))
        if self.shown_text:
            # a search must not tell what the project's hook hides: nor may the place where a page ends
            shown, last = shown_with(self.shown_text, runs, limit + 1)
            return _Found(list(shown), end if last is None else Cursor.of(last, by_id=self.by_id))
        found = list(runs.defer("input", "output")[: limit + 1])
        return _Found(found, Cursor.of(found[-1], by_id=self.by_id) if len(found) > limit else end)

    def _window_end(self) -> Cursor | None:
        last = self._runs.values_list("created_at", "id")[WINDOW - 1 : WINDOW].first()
        return None if last is None else Cursor(None if self.by_id else last[0], last[1])


def _merged(lanes: Sequence[_Found], *, by_id: bool, limit: int) -> RunPage:
    """The first runs of all lanes, no further than each of them was looked through."""
    keyed = [(Cursor.of(run, by_id=by_id), run) for lane in lanes for run in lane.runs]
    keyed.sort(key=lambda each: each[0].sort_key, reverse=not by_id)
    ends = [lane.seen_to for lane in lanes if lane.seen_to is not None]
    if ends:
        choose = min if by_id else max
        seen_to = choose(ends, key=lambda each: each.sort_key)
        keyed = [each for each in keyed if not each[0].is_behind(seen_to)]
    runs = [run for _, run in keyed[:limit]]
    if len(keyed) > limit:
        return RunPage(runs=runs, next_cursor=keyed[limit - 1][0].text)
    if ends:
        return RunPage(runs=runs, next_cursor=seen_to.text, is_window=True)
    return RunPage(runs=runs)
