"""Lists of runs: filters, the search box, and pages by key.

No list reads more of the table as the table grows. A filter that an index serves follows that index; any other filter
applies to a window of `WINDOW` runs along an index. A page that the window did not fill says so, and its cursor
continues after the window: no run is left out, one more click is needed.
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
from durable.inspection.pagination import FAILURE_KEY, RUN_KEY, Behind, Cursor, InvalidCursorError, UpTo
from durable.inspection.undone import UNDONE, UNDONE_STATES
from durable.models import Attempt, Cause, Run
from durable.models.run import RunQuerySet

__all__ = [
    "PAGE",
    "WINDOW",
    "InvalidCursorError",
    "RunCriteria",
    "RunPage",
    "along_indexes",
    "failed_attempts",
    "list_runs",
    "parse_search",
]

PAGE: Final = 50  # runs
WINDOW: Final = 10_000  # runs that one page examines if no index serves the filter
_LAST = "\U0010ffff"
_CAUSE: Final = "cause:"  # a word of a search
_MOST_CAUSES: Final = 50  # of one place, each of which is read along its own index range
_FAILED: Final = frozenset({RunState.FAILED.value})
_COMMON: Final = frozenset({RunState.COMPLETED.value})  # states that most runs reach


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCriteria:
    """A filter of runs. Every given condition has to hold; an empty one is ignored.

    `states` are values of `RunState`. The times are aware, from (included) and until (excluded). `error_text` is
    searched for in the type and the message of a run's error, ignoring case: in their beginnings
    (`durable.inspection.error_text`), and, with a redaction hook, in the text that the hook shows. `waiting_queue`:
    runs that wait for a message of that queue, or of any. `cause` is the fingerprint of a cause, and `place` the place
    of one (`durable.core.records.Cause`): runs that are failed because of it. `is_undone`: runs that have failed or were
    cancelled, and whose steps were undone (`durable.inspection.undone`).
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
    cause: str = ""
    place: str = ""
    is_undone: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(self.states - {state.value for state in RunState})
        if unknown:
            raise ValueError(f"a run has no state {unknown[0]!r}; the states are {', '.join(RunState)}")

    @property
    def is_empty(self) -> bool:
        """Whether every run matches."""
        return self == RunCriteria()


RunFilter = RunCriteria  # the name under which orders recorded before hold the class


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One page of a list.

    `next_cursor` is None at the end. `is_window`: the page is short because the window ended; more runs may follow at
    `next_cursor`.
    """

    runs: Sequence[Run]
    next_cursor: str | None = None
    is_window: bool = False


def list_runs(
    wanted: RunCriteria, *, cursor: str | None = None, limit: int = PAGE, within: RunQuerySet | None = None
) -> RunPage:
    """Return a page of the runs that match `wanted`: the newest first, or by id if the filter has a prefix of one.

    `within` limits the runs further, for example to those that a user may see. At most three statements for each
    requested state or, for runs of a place, for each of its causes. Raises InvalidCursorError for a text that is not a
    cursor of this list.
    """
    by_id = bool(wanted.id_prefix)
    after = Cursor.parsed(cursor, by_id=by_id) if cursor else None
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    if wanted.is_undone and not wanted.states:  # follow the index on states
        wanted = replace(wanted, states=UNDONE_STATES)
    plans = _lanes(runs, wanted, is_limited=within is not None)
    hidden = wanted.error_text if conf.REDACT else ""
    lanes = [_Lane(each, by_id=by_id, after=after, shown_text=hidden) for each in plans]
    return _merged([lane.read(limit) for lane in lanes], by_id=by_id, limit=limit)


def parse_search(text: str, base: RunCriteria | None = None, within: RunQuerySet | None = None) -> RunCriteria:
    """Narrow `base` by the text of a search box: an id, the beginning of one, or else a part of an error's text.

    The words `cause:<fingerprint>` select the failed runs of a cause; what follows them is searched for among these.
    """
    base, text = base or RunCriteria(), text.strip()
    if text.startswith(_CAUSE):
        fingerprint, _, text = text.removeprefix(_CAUSE).partition(" ")
        base, text = replace(base, cause=fingerprint), text.strip()
    if not text:
        return base
    runs = Run.objects.using(conf.DATABASE) if within is None else within
    # In the order of the ids, which keeps the database on their index.
    if _begins_with(runs, text).order_by("id").values_list("id").first() is not None:
        return replace(base, id_prefix=text)
    return replace(base, error_text=text)


def along_indexes(wanted: RunCriteria, *, window: int) -> list[tuple[RunQuerySet, bool]]:
    """Return the runs that match `wanted` as disjoint querysets, each in the order of the index that it follows.

    Beside each: whether it ends after `window` runs of its index, because no index serves the rest of the filter. Not
    for an error's text under a redaction hook, which no query may compare.
    """
    by_id = bool(wanted.id_prefix)
    plans = _lanes(Run.objects.using(conf.DATABASE), wanted, is_limited=False)
    found = [_Lane(each, by_id=by_id, after=None, shown_text="").matching(window) for each in plans]
    return [(runs, end is not None) for runs, end in found]


def failed_attempts(runs: Sequence[Run]) -> dict[str, int]:
    """Return the number of failed attempts of each run's steps, by run id; one statement."""
    found = Attempt.objects.using(conf.DATABASE).filter(run__in=[run.id for run in runs]).order_by()
    return dict(found.values_list("run").annotate(number=CountOf("id")))


# -- which index to follow


@dataclass(frozen=True, slots=True)
class _Plan:
    """The runs along one index, and the conditions that are checked row by row."""

    runs: RunQuerySet
    rest: Q
    #: whether `rest` may drop runs, so that a page may have to read any number of them
    is_sieve: bool
    #: whether the index is that of a cause's open failures
    is_of_cause: bool = False


def _lanes(runs: RunQuerySet, wanted: RunCriteria, *, is_limited: bool) -> list[_Plan]:
    rest, times = _sieve(wanted), _created(wanted)
    is_sieve = bool(rest) or is_limited
    causes = _causes(wanted)
    if causes is not None and not wanted.id_prefix and len(causes) <= _MOST_CAUSES:
        rest &= times & _in(state=wanted.states) & _is(workflow=wanted.workflow)
        failed = runs.filter(failure__is_open=True)
        sifts = is_limited or bool(rest)
        return [_Plan(failed.filter(failure__cause_id=each), rest, sifts, is_of_cause=True) for each in causes]
    if causes is not None:
        rest &= Q(failure__is_open=True, failure__cause_id__in=causes)
        wanted = wanted if wanted.id_prefix else replace(wanted, states=wanted.states or _FAILED)
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


def _causes(wanted: RunCriteria) -> list[int] | None:
    """Return the keys of the causes that are asked for; None if the filter names none."""
    if not (wanted.cause or wanted.place):
        return None
    found = Cause.objects.using(conf.DATABASE).filter(_is(fingerprint=wanted.cause, place=wanted.place))
    return list(found.order_by("pk").values_list("pk", flat=True))


def _begins_with(runs: RunQuerySet, prefix: str) -> RunQuerySet:
    return runs.filter(id__gte=prefix, id__lt=prefix + _LAST)


def _created(wanted: RunCriteria) -> Q:
    return _is(created_at__gte=wanted.created_from, created_at__lt=wanted.created_until)


def _sieve(wanted: RunCriteria) -> Q:
    """Return the conditions that no index serves."""
    rest = _is(queue=wanted.queue, finished_at__gte=wanted.finished_from, finished_at__lt=wanted.finished_until)
    if wanted.is_undone:
        rest &= UNDONE
    if wanted.waiting_queue:
        rest &= ~Q(state=RunState.RUNNING.value)  # its row still has what it waited for
        rest &= Q(waiting_for=ANY_QUEUE) | Q(waiting_for__contains=f"/{escape(wanted.waiting_queue)}/")
    if wanted.error_text:
        # With a redaction hook the lane searches the shown text, see `_Lane.read`.
        rest &= Q(error__isnull=False) if conf.REDACT else contains(wanted.error_text)
    return rest


def _is(**conditions: Any) -> Q:
    return Q(**{name: value for name, value in conditions.items() if value})


def _in(**conditions: frozenset[str]) -> Q:
    return Q(**{f"{name}__in": sorted(values) for name, values in conditions.items() if values})


# -- one lane, and several side by side


@dataclass(frozen=True, slots=True)
class _Found:
    """Runs of one lane, and the key up to which the lane was searched; None: to its end."""

    runs: list[Run]
    seen_to: Cursor | None


@dataclass(slots=True)
class _Lane:
    plan: _Plan
    by_id: bool
    after: Cursor | None
    shown_text: str  # text that the redacted error of a run must contain; "" for any
    _runs: RunQuerySet = field(init=False)

    def __post_init__(self) -> None:
        runs = self.plan.runs.order_by("id") if self.by_id else self.plan.runs.newest_first()
        if self.plan.is_of_cause:  # the failure has a copy of the key
            runs = runs.order_by(*(f"-{name}" for name in FAILURE_KEY))
        if self.after is not None:
            runs = runs.filter(Q(id__gt=self.after.id) if self.by_id else Behind(self.after, self._key))
        self._runs = runs

    @property
    def _key(self) -> tuple[str, str]:
        return FAILURE_KEY if self.plan.is_of_cause else RUN_KEY

    def matching(self, window: int = WINDOW) -> tuple[RunQuerySet, Cursor | None]:
        """Return the matching runs, and the key of the last run that is examined for them; None: all are."""
        end = self._window_end(window) if self.plan.is_sieve else None
        runs = self._runs.filter(self.plan.rest)
        if end is not None:
            runs = runs.filter(Q(id__lte=end.id) if self.by_id else UpTo(end, self._key))
        return runs, end

    def read(self, limit: int) -> _Found:
        """Return up to `limit` runs and one more."""
        runs, end = self.matching()
        if self.shown_text:
            # A search must not disclose what the project's hook hides, not even by the place where a page ends.
            shown, last = shown_with(self.shown_text, runs, limit + 1)
            return _Found(list(shown), end if last is None else Cursor.of(last, by_id=self.by_id))
        found = list(runs.defer("input", "output")[: limit + 1])
        return _Found(found, Cursor.of(found[-1], by_id=self.by_id) if len(found) > limit else end)

    def _window_end(self, window: int) -> Cursor | None:
        last = self._runs.values_list("created_at", "id")[window - 1 : window].first()
        return None if last is None else Cursor(None if self.by_id else last[0], last[1])


def _merged(lanes: Sequence[_Found], *, by_id: bool, limit: int) -> RunPage:
    """Return the first runs of all lanes, up to the key that every lane has reached."""
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
