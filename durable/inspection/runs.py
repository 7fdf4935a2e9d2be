"""Lists of runs: filters, the search box, orders, and pages by key.

No list reads more of the table as the table grows. A filter with an index follows that index; any other filter applies
to a window of `WINDOW` runs along an index, or of half as many if errors are searched, or if tags or what runs are
about lead to the runs. The same goes for `within`, unless it begins with an indexed column
(`durable.inspection.pagination`). If the window did not fill a page, the page says so, and its cursor continues after
the window: no run is left out, but one more click is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db.models import Count as CountOf
from django.db.models import F, Q, QuerySet

from durable import runtime
from durable.conf import conf
from durable.core.causes import numberless
from durable.core.names.renames import names_of_queue, names_of_workflow
from durable.core.records import ENDED, RunState
from durable.inspection import run_lanes
from durable.inspection.children import has_children
from durable.inspection.counting import Count, count_capped
from durable.inspection.pagination import Cursor, RunOrder
from durable.inspection.payloads import contains
from durable.inspection.reading import read_alias
from durable.inspection.run_facts import (
    checked_tags,
    has_tag,
    is_about,
    rows_about,
    rows_with_tag,
    split_tags,
    tag_with_value,
)
from durable.inspection.run_lanes import Lane, Plan, RunPage, matching_of, merged, merged_and_counted
from durable.inspection.run_rules import runs_within
from durable.inspection.undone import UNDONE, UNDONE_STATES
from durable.inspection.workers import queues_with_runs
from durable.models import Attempt, Cause, Failure, Run
from durable.models.renames import know_names, learn_names
from durable.models.run import RunQuerySet
from durable.models.subjects import read_subject

PAGE: Final = 50  # runs
FOUND: Final = 10_000  # runs to count for a list
_LAST = "\U0010ffff"
_CAUSE: Final = "cause:"  # a word of a search
_MOST_CAUSES: Final = 50  # of one place, each of which is read along its own index range
_STATES: Final = frozenset(state.value for state in RunState)
_ENDED: Final = frozenset(state.value for state in ENDED)
_FAILED: Final = frozenset({RunState.FAILED.value})
_COMMON: Final = frozenset({RunState.COMPLETED.value})  # states that most runs reach


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCriteria:
    """A filter of runs. Every given condition has to hold; an empty one is ignored.

    `states` are values of `RunState`. The times are aware, from (included) and until (excluded). `error_text` is
    searched for in the type and the message of a run's error, ignoring case: in their beginnings
    (`durable.inspection.payloads`), and, with a redaction hook, in the text that the hook shows. `waiting_queue`: runs
    that wait for a message of that queue, or of any. `cause` is the fingerprint of a cause, and `place` the place of
    one (`durable.core.records.Cause`): runs that are failed or held because of it. `worker`: runs that this worker has,
    and those that failed on it and are still failed. `is_undone`: runs that have failed or were cancelled, and whose
    steps were undone (`durable.inspection.undone`). `is_stuck`: failed runs whose compensation has stopped.
    `is_diverged`: runs that the workers' code does not fit, retried for a while or failed because of that.
    `needs_attention`: runs that do not go on well without a person. `is_held`: open runs with a step that waits for a
    person. `only_roots`: no children, that is, runs that the code of another run has started as its own. A filter that
    looks for trouble, or names a run, finds children all the same (`hides_children`). `hides_alerts`: no runs of
    durable's own, which send alerts and do bulks, and none of quiet workflows, unless they have failed. A filter that
    looks for trouble, or names a run or a workflow, finds these all the same (`leaves_alerts_out`). `tags` are names
    with values, all of which a run has. `about` is what a run is about, written as "shop.order:42".
    Raises ValueError for a state that no run has, for a name or a value that no tag has, and for what no run can be
    about.
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
    worker: str = ""
    is_stuck: bool = False
    is_diverged: bool = False
    needs_attention: bool = False
    is_held: bool = False
    only_roots: bool = False
    hides_alerts: bool = False
    tags: tuple[tuple[str, str], ...] = ()
    about: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(self.states - _STATES)
        if unknown:
            raise ValueError(f"a run has no state {unknown[0]!r}; the states are {', '.join(RunState)}")
        checked_tags(self.tags)
        if self.about:
            read_subject(self.about)

    @property
    def is_empty(self) -> bool:
        """Whether every run matches, or every root."""
        return replace(self, only_roots=False, hides_alerts=False) == RunCriteria()

    @property
    def hides_children(self) -> bool:
        """Whether children are omitted: `only_roots` is set, and no other condition has to find failed children."""
        return self.only_roots and not self._looks_for_trouble

    @property
    def leaves_alerts_out(self) -> bool:
        """Whether runs of durable itself and of quiet workflows are omitted: `hides_alerts` is set.

        They are shown if another condition has to find one of them, or only failed runs.
        """
        return self.hides_alerts and not (self._looks_for_trouble or self.workflow or self.states == _FAILED)

    @property
    def _looks_for_trouble(self) -> bool:
        names = self.id_prefix or self.cause or self.place or self.worker or self.tags or self.about
        return bool(names) or self.is_stuck or self.is_diverged or self.needs_attention or self.is_held


RunFilter = RunCriteria  # the name of the class in orders recorded earlier


def order_of(wanted: RunCriteria, order: RunOrder = RunOrder.NEWEST) -> RunOrder:
    """Return the order of the list of these runs: by id if the filter has a prefix of ids."""
    return RunOrder.BY_ID if wanted.id_prefix else order


def list_runs(
    wanted: RunCriteria,
    *,
    order: RunOrder = RunOrder.NEWEST,
    cursor: str | None = None,
    limit: int = PAGE,
    within: RunQuerySet | None = None,
) -> RunPage:
    """Return a page of the runs that match `wanted`, in `order`; by id if the filter has a prefix of one.

    Five statements, and one more for each requested state, each cause of a place, and in the order of `wake_at` each
    queue, if no index serves the filter. One for the other names of a workflow or a queue. Raises InvalidCursorError
    for a text that is not a cursor of this list.
    """
    learn_names_of(wanted)
    order = order_of(wanted, order)
    return merged(_lanes_of(wanted, order, cursor, within), order, limit)


def list_and_count(
    wanted: RunCriteria,
    *,
    order: RunOrder = RunOrder.NEWEST,
    cursor: str | None = None,
    limit: int = PAGE,
    within: RunQuerySet | None = None,
) -> tuple[RunPage, Count | None]:
    """Return what `list_runs` and `count_runs` do; one statement more than `list_runs` for the first page.

    None more for a first page if no index has led to more runs than a page has: these are counted as they are read.
    """
    learn_names_of(wanted)
    order = order_of(wanted, order)
    first = _lanes_of(wanted, order, None, within)
    known: Count | None = None
    if cursor:
        page = merged(_lanes_of(wanted, order, cursor, within), order, limit)
    else:
        page, known = merged_and_counted(first, order, limit)
    if wanted.error_text and conf.REDACT:
        return page, None
    if known is not None and known.number <= FOUND:
        return page, known
    return page, _count(first)


def count_runs(
    wanted: RunCriteria, *, order: RunOrder = RunOrder.NEWEST, within: RunQuerySet | None = None
) -> Count | None:
    """Return how many runs match, counted up to `FOUND`; None where only a redaction hook can tell.

    It counts the list in `order`, which omits runs that lack the order's time. The count is also capped if no index
    serves the filter and only a window of runs was examined. One statement, in addition to those with which `list_runs`
    finds the windows.
    """
    if wanted.error_text and conf.REDACT:
        return None
    learn_names_of(wanted)
    return _count(_lanes_of(wanted, order_of(wanted, order), None, within))


def learn_names_of(wanted: RunCriteria) -> None:
    """Read all names of the workflow and of the queue into this process, including those given by later migrations."""
    if wanted.workflow or wanted.queue:
        learn_names(read_alias())


def _lanes_of(wanted: RunCriteria, order: RunOrder, cursor: str | None, within: RunQuerySet | None) -> list[Lane]:
    after = Cursor.parsed(cursor, order) if cursor else None
    hidden = wanted.error_text if conf.REDACT else ""
    plans = _plans(wanted, order)
    if wanted.error_text:
        plans = [replace(each, compares_texts=True) for each in plans]
    return [Lane(each, order, after, hidden, within, _is_bounded(wanted, order)) for each in plans]


def _count(lanes: Sequence[Lane]) -> Count:
    matching, ends = matching_of(lanes, to_count=True)
    counts = count_capped(matching, FOUND)
    number = sum(each.number for each in counts)
    is_capped = any(each.is_capped for each in counts) or any(end is not None for end in ends)
    return Count(number=min(number, FOUND), is_capped=is_capped or number > FOUND)


def parse_search(text: str, base: RunCriteria | None = None, within: RunQuerySet | None = None) -> RunCriteria:
    """Narrow `base` by the text of a search box: an id or its beginning, the value of a tag, or else an error's text.

    The value of a tag (an order's number or a customer's address) must be given in full, and is searched for in all
    runs.

    The words `cause:<fingerprint>` select the failed runs of a cause, and `tag:<name>=<value>` those with a tag; what
    follows them is searched for among these. Raises ValueError for words that begin like a tag and are none.
    """
    tags, text = split_tags(text)
    base = base or RunCriteria()
    base = replace(base, tags=(*base.tags, *tags)) if tags else base
    if text.startswith(_CAUSE):
        fingerprint, _, text = text.removeprefix(_CAUSE).partition(" ")
        base, text = replace(base, cause=fingerprint), text.strip()
    if not text:
        return base
    runs = runs_within(within)
    # In the order of the ids, which keeps the database on their index.
    if runs.filter(_begins_with(text)).order_by("id").values_list("id").first() is not None:
        return replace(base, id_prefix=text)
    if within is None and (tag := tag_with_value(text)) is not None:
        return replace(base, tags=(*base.tags, tag))
    return replace(base, error_text=text)


def settle_roots(wanted: RunCriteria) -> RunCriteria:
    """Return the filter with `only_roots` set if it has to omit children.

    While there are no children, no run has to be examined.

    One statement for a filter that hides children, none for others.
    """
    if not wanted.only_roots:
        return wanted
    return replace(wanted, only_roots=wanted.hides_children and has_children())


def along_indexes(wanted: RunCriteria, *, window: int) -> list[tuple[QuerySet[Any], bool]]:
    """Return the runs that match `wanted` as disjoint querysets, each in the order of the index that it follows.

    Each comes with a flag: it ends after `window` runs of its index, because no index serves the rest of the filter.
    Not for an error's text under a redaction hook, which no query may compare. `workflow_of_run` is the column or
    annotation of the workflow. If failures suffice, the rows are failures, whose keys are those of the runs.
    """
    order = order_of(wanted)
    found = list[tuple[QuerySet[Any], bool]]()
    for plan in _plans(wanted, order):
        lane = Lane(plan, order, is_bounded=_is_bounded(wanted, order))
        rows, end = lane.of_failures(window) or lane.matching(window)
        is_looked_up = plan.is_of_failures and rows.model is Run
        workflow = F("failure__workflow" if is_looked_up else "workflow")
        found.append((rows.annotate(workflow_of_run=workflow), end is not None))
    return found


def failed_attempts(runs: Sequence[Run]) -> dict[str, int]:
    """Return the number of failed attempts of each run's steps, by run id; one statement."""
    found = Attempt.objects.using(read_alias()).filter(run__in=[run.id for run in runs]).order_by()
    return dict(found.values_list("run").annotate(number=CountOf("id")))


# -- which index to follow


def _plans(wanted: RunCriteria, order: RunOrder) -> list[Plan]:
    """Return the lanes of the list, which share no run; [] if no run can match."""
    states = _possible(wanted)
    if states is None:
        return []
    wanted = replace(wanted, states=states)
    wanted = replace(wanted, only_roots=wanted.hides_children, hides_alerts=wanted.leaves_alerts_out)
    if not wanted.workflow and not wanted.queue:
        return _plans_of_one(wanted, order)
    know_names(read_alias())
    of_each = [
        replace(wanted, workflow=workflow, queue=queue)
        for workflow in names_of_workflow(wanted.workflow)
        for queue in names_of_queue(wanted.queue)
    ]
    return [plan for each in of_each for plan in _plans_of_one(each, order)]


def _plans_of_one(wanted: RunCriteria, order: RunOrder) -> list[Plan]:
    """Return the lanes of runs with one of the names of their workflow and of their queue."""
    if (wanted.about or wanted.tags) and order.column == "created_at" and not (wanted.cause or wanted.place):
        return [_tagged(wanted)]
    if order is RunOrder.NEXT:
        return _waking(wanted)
    if order.column == "finished_at":
        return _ended(wanted)
    if wanted.is_held and not (wanted.id_prefix or wanted.cause or wanted.place):
        return [_held(wanted)]
    if (wanted.is_diverged or wanted.needs_attention) and not wanted.id_prefix:
        return _rare(wanted)
    return _lanes(wanted)


def _possible(wanted: RunCriteria) -> frozenset[str] | None:
    """Return the states that the filter allows, empty for all; None if its conditions exclude every state."""
    states = wanted.states or _STATES
    for is_given, allowed in (
        (wanted.is_undone, UNDONE_STATES),
        (wanted.is_stuck, _FAILED),
        (wanted.is_held, _STATES - _ENDED),
        (bool(wanted.worker), run_lanes.WORKED_ON),
    ):
        states = states & allowed if is_given else states
    return None if not states else frozenset() if states == _STATES else states


def _tagged(wanted: RunCriteria) -> Plan:
    """Return the lane along the index of what runs are about, or of tags. In lists by another time or of a cause, both
    are looked up for each run, and so are the tags of runs about something.
    """
    times = _is(tag_created_at__gte=wanted.created_from, tag_created_at__lt=wanted.created_until)
    of_rows, wanted = _created(wanted), replace(wanted, created_from=None, created_until=None)
    if wanted.about:
        about = read_subject(wanted.about)
        rows = rows_about(about).filter(of_rows)
        return Plan(times, _of_all(replace(wanted, about="")), about=about, side_rows=rows, is_narrow=True)
    tagged = rows_with_tag(*wanted.tags[0]).filter(of_rows) if len(wanted.tags) == 1 else None
    return Plan(times, _of_all(replace(wanted, tags=())), tags=wanted.tags, side_rows=tagged, is_narrow=True)


def _waking(wanted: RunCriteria) -> list[Plan]:
    """Return a lane for each queue, because the index of due runs begins with the queue."""
    waking = Q(wake_at__isnull=False) & ~Q(state=RunState.PAUSED.value)
    queues = [wanted.queue] if wanted.queue else queues_with_runs()
    rest = _of_all(replace(wanted, queue=""))
    return [Plan(waking & Q(queue=each), rest) for each in queues]


def _ended(wanted: RunCriteria) -> list[Plan]:
    """Return lanes along the indexes of ended runs."""
    ended = Q(finished_at__isnull=False)
    ended &= _is(finished_at__gte=wanted.finished_from, finished_at__lt=wanted.finished_until)
    wanted = replace(wanted, finished_from=None, finished_until=None)
    if not wanted.workflow:
        return [Plan(ended, _of_all(wanted))]
    states = (wanted.states or _ENDED) & _ENDED
    rest = _of_all(replace(wanted, workflow="", states=frozenset()))
    return [Plan(ended & Q(workflow=wanted.workflow, state=each), rest) for each in sorted(states)]


def _rare(wanted: RunCriteria) -> list[Plan]:
    """Return lanes for filters that match few open runs: open ones from their own indexes, ended ones by state."""
    states = wanted.states or _STATES
    ended, going = states & _FAILED, states - _ENDED
    if wanted.cause or wanted.place:  # some of its runs are held
        return _lanes(replace(wanted, states=ended | going))
    lanes = _lanes(replace(wanted, states=ended)) if ended else []
    if not going:
        return lanes
    wanted = replace(wanted, states=going)
    if wanted.is_diverged:
        return lanes + _few(wanted, run_lanes.few_diverged())
    others = [
        replace(each, rest=each.rest & ~run_lanes.has_held())
        for each in _few(wanted, run_lanes.few_attended(runtime.current().now()))
    ]
    return [*lanes, _held(replace(wanted, is_held=True, needs_attention=False)), *others]


def _few(wanted: RunCriteria, found: Sequence[str] | None) -> list[Plan]:
    """Return the lane of these runs, or, if there are too many to be found first, the lanes that examine all."""
    if found is None:
        return _lanes(wanted)
    return [Plan(Q(pk__in=found), _of_all(wanted), is_short=True)] if found else []


def _held(wanted: RunCriteria) -> Plan:
    """Return the lane of runs with a step that waits for a person, along the index of their failures."""
    states = Q() if wanted.states == _STATES - _ENDED else _in(state=wanted.states)
    return _along_failures(wanted, _sieve(replace(wanted, is_held=False, queue="")) & states, is_held=True)


def _along_failures(wanted: RunCriteria, sieve: Q, **columns: bool) -> Plan:
    """Return the lane along the index of failures with these `columns`; `sieve` has the conditions on their runs that
    no index serves, without those on the queue and the workflow.
    """
    times = {"run_created_at__gte": wanted.created_from, "run_created_at__lt": wanted.created_until}
    fixed = {"workflow": wanted.workflow, "queue": wanted.queue}  # these of a run never change
    beside = _is(**{f"failure__{name}": value for name, value in times.items()})
    return Plan(
        beside & Q(**{f"failure__{name}": value for name, value in columns.items()}),
        sieve & _is(**{f"failure__{name}": value for name, value in fixed.items()}),
        is_of_failures=True,
        failures=Failure.objects.using(read_alias()).filter(_is(**times), **columns),
        rest_of_failures=None if sieve else _is(**fixed),
        is_narrow=True,
    )


def _lanes(wanted: RunCriteria) -> list[Plan]:
    rest, times = _sieve(wanted), _created(wanted)
    causes = _causes(wanted)
    if causes is not None and not wanted.id_prefix and len(causes) <= _MOST_CAUSES:
        rest &= times & _in(state=wanted.states) & _is(workflow=wanted.workflow)
        open_ones = Failure.objects.using(read_alias()).filter(is_open=True)
        return [
            Plan(
                Q(failure__is_open=True, failure__cause_id=each),
                rest,
                is_of_failures=True,
                failures=open_ones.filter(cause_id=each),
                cause=each,
                rest_of_failures=None if rest else Q(),
                is_narrow=True,
            )
            for each in causes
        ]
    if causes is not None:
        rest &= Q(failure__is_open=True, failure__cause_id__in=causes)
        if not wanted.id_prefix:
            return _lanes_of_many_causes(wanted, rest)
    if wanted.id_prefix:
        rest &= times & _in(state=wanted.states) & _is(workflow=wanted.workflow)
        return [Plan(_begins_with(wanted.id_prefix), rest)]
    if wanted.workflow and (not wanted.states or wanted.states & _COMMON):
        rest &= _in(state=wanted.states)
        return [Plan(times & Q(workflow=wanted.workflow), rest)]
    if wanted.states:
        rest &= _is(workflow=wanted.workflow)
        states = wanted.states - _FAILED if wanted.only_roots else wanted.states
        lanes = [Plan(times & Q(state=state), rest, is_narrow=state not in _COMMON) for state in sorted(states)]
        return lanes if states == wanted.states else [*lanes, _failed_roots(wanted)]
    return [Plan(times, rest)]


def _lanes_of_many_causes(wanted: RunCriteria, rest: Q) -> list[Plan]:
    """Return the lanes of failed and of held runs, of which `rest` selects those of the causes."""
    states, alone = wanted.states or _STATES, replace(wanted, cause="", place="", only_roots=False)
    failed = replace(alone, states=_FAILED, workflow="", queue="", created_from=None, created_until=None)
    lanes = _lanes(failed) if states & _FAILED and not wanted.is_held else []
    rest &= _created(wanted) & _is(workflow=wanted.workflow)
    lanes = [replace(each, rest=each.rest & rest) for each in lanes]
    going = states - _ENDED
    if not going:
        return lanes
    held = _held(replace(alone, states=going, is_held=True))
    return [*lanes, replace(held, rest=held.rest & rest, rest_of_failures=None)]


def _failed_roots(wanted: RunCriteria) -> Plan:
    """Return the lane of failed runs that are not children.

    It goes along an index of its own, however many children have failed.
    """
    sieve = _sieve(replace(wanted, only_roots=False, hides_alerts=False, queue=""))
    return _along_failures(wanted, sieve, is_open=True, is_held=False, parent__isnull=True)


def _causes(wanted: RunCriteria) -> list[int] | None:
    """Return the keys of the causes that the filter names, or None."""
    if not (wanted.cause or wanted.place):
        return None
    places = {wanted.place, numberless(wanted.place)} if wanted.place else set()  # a run's page has the numbers
    found = Cause.objects.using(read_alias()).filter(_is(fingerprint=wanted.cause), _in(place=frozenset(places)))
    return list(found.order_by("pk").values_list("pk", flat=True))


def _begins_with(prefix: str) -> Q:
    return Q(id__gte=prefix, id__lt=prefix + _LAST)


def _is_bounded(wanted: RunCriteria, order: RunOrder) -> bool:
    return order.column == "created_at" and (wanted.created_from or wanted.created_until) is not None


def _created(wanted: RunCriteria) -> Q:
    return _is(created_at__gte=wanted.created_from, created_at__lt=wanted.created_until)


def _of_all(wanted: RunCriteria) -> Q:
    """Return every condition of the filter."""
    found = _sieve(wanted) & _created(wanted) & _in(state=wanted.states) & _is(workflow=wanted.workflow)
    causes = _causes(wanted)
    return found if causes is None else found & Q(failure__is_open=True, failure__cause_id__in=causes)


def _sieve(wanted: RunCriteria) -> Q:
    """Return the conditions that no index serves."""
    rest = _is(queue=wanted.queue, finished_at__gte=wanted.finished_from, finished_at__lt=wanted.finished_until)
    if wanted.is_undone:
        rest &= UNDONE
    if wanted.is_stuck:
        rest &= run_lanes.STUCK
    if wanted.is_diverged:
        rest &= run_lanes.DIVERGED
    if wanted.needs_attention and wanted.states != _FAILED:  # all failed runs do
        rest &= run_lanes.needing_attention(runtime.current().now())
    if wanted.is_held:
        rest &= run_lanes.has_held()
    if wanted.worker:
        rest &= run_lanes.of_worker(wanted.worker)
    if wanted.waiting_queue:
        rest &= run_lanes.waiting_for(wanted.waiting_queue)
    for name, value in wanted.tags:
        rest &= has_tag(name, value)
    if wanted.about:
        rest &= is_about(wanted.about)
    if wanted.only_roots:
        rest &= run_lanes.ROOT
    if wanted.hides_alerts:
        rest &= run_lanes.no_alert()
    if wanted.error_text:
        # With a redaction hook the lane searches the shown text, see `Lane.read`.
        rest &= Q(error__isnull=False) if conf.REDACT else contains(wanted.error_text)
    return rest


def _is(**conditions: Any) -> Q:
    return Q(**{name: value for name, value in conditions.items() if value})


def _in(**conditions: frozenset[str]) -> Q:
    return Q(**{f"{name}__in": sorted(values) for name, values in conditions.items() if values})
