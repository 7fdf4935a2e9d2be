"""Runs, alone and in lists: of all runs, and of the children of one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final

from durable.carriers import unread
from durable.core.errors import ErrorInfo
from durable.core.mistakes import has_stopped
from durable.core.outcomes import HeldReason
from durable.core.places import Place
from durable.core.records import ENDED, RunState
from durable.core.time_limits import RunLimits
from durable.inspection.activities import activities_of_runs
from durable.inspection.children import ChildCursor, children_data, count_children, list_children, list_parents
from durable.inspection.explain_states import Explanation as Explained
from durable.inspection.explain_states import awaited_queues
from durable.inspection.explanation import explain, explain_fully
from durable.inspection.held import has_held, held_of
from durable.inspection.pagination import RunOrder, cursor_of
from durable.inspection.pagination import key_of as key_of_cursor
from durable.inspection.payloads import payload, redacted
from durable.inspection.progress import open_keys_of_long
from durable.inspection.queues import paused_of
from durable.inspection.run_facts import (
    carried_of,
    checked_tags,
    key_of,
    limits_of,
    rank_data,
    tags_and_about_of,
    tags_data,
)
from durable.inspection.run_lanes import WINDOW
from durable.inspection.run_rules import existing_among
from durable.inspection.runs import RunCriteria, list_runs, parse_search, settle_roots
from durable.inspection.schedules import tick_of
from durable.inspection.shown import ShownStatus, statuses_of
from durable.inspection.undone import is_undone
from durable.listings.listing import Filter, Listing, Page, list_of
from durable.listings.shapes import Seen, Shape, field
from durable.models import Run as RunRow
from durable.models.subjects import read_subject
from durable.operations.audit import revision
from durable.operations.verbs import possible_verbs

STATES: Final = [state.value for state in RunState]
SORTS: Final = [order.value for order in RunOrder if order is not RunOrder.BY_ID]


@dataclass(frozen=True, kw_only=True)
class SeenRuns(Seen):
    """`Seen`, with data of the `runs` beyond their rows, each read at its first use. `expand` names the payloads to
    show.

    With `is_brief`, an explanation uses only the run's row.
    """

    runs: Sequence[RunRow]
    expand: Collection[str] = ()
    is_brief: bool = False

    @cached_property
    def existing(self) -> frozenset[str]:
        """The ids of other runs mentioned by these that may be shown."""
        others = [each for run in self.runs for each in (run.parent_id, run.replay_of_id)]
        return existing_among(self.within, others)

    @cached_property
    def _beside(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return tags_and_about_of(self.runs)

    @property
    def tags(self) -> Mapping[str, Any]:
        """The tags of the runs."""
        return self._beside[0]

    @cached_property
    def statuses(self) -> Mapping[str, ShownStatus]:
        """The statuses of those of the runs that have one."""
        return statuses_of(self.runs)

    @property
    def about(self) -> Mapping[str, Any]:
        """What the runs are about."""
        return self._beside[1]

    @cached_property
    def _running(self) -> Mapping[str, Any]:
        return activities_of_runs(self.runs, self.now)

    @cached_property
    def _paused(self) -> Mapping[str, Any]:
        return paused_of(self.runs, self.now)

    def explanation(self, run: RunRow) -> Explained:
        """Return what the run does or waits for."""
        if self.is_brief:
            return explain(run, self.now, within=self.within)
        return explain(
            run,
            self.now,
            running=self._running.get(run.id, ()),
            paused=self._paused.get(run.queue),
            within=self.within,
        )

    def whole_explanation(self, run: RunRow) -> Explained:
        """Return the explanation from all available data."""
        is_parent = self.within is not None and run.state == RunState.COMPLETED
        children = count_children(run.id, self.within) if is_parent else None
        return explain_fully(
            run, self.now, open_keys_of_long(run), children, within=self.within, with_payloads=self.payloads
        )


def seen_runs(seen: Seen, runs: Sequence[RunRow], **more: Any) -> SeenRuns:
    """Return the `SeenRuns` of these runs."""
    return seen.more(SeenRuns, runs=runs, **more)


class Error(Shape):
    """An error: the name of its class and its text."""

    type: str
    message: str
    traceback: str | None = field(help="Null without the permission to see payloads.")


def error_of(run: RunRow, error: ErrorInfo | None, *, payloads: bool) -> Any:
    """Return the part of an error that may be shown: its traceback is a payload."""
    if error is None:
        return None
    return SimpleNamespace(
        type=error.type,
        message=redacted(run.workflow, "error", error.message),
        traceback=redacted(run.workflow, "traceback", error.traceback) if payloads else None,
    )


class Explanation(Shape):
    """An explanation: what the run does or waits for, and what an operator can do about it."""

    headline: str
    detail: str
    needs_attention: bool
    remedies: list[str] = field(help="Actions, the likeliest first.")
    location: str = field(help="The entry that it is about; empty for none.")
    withheld: list[str] = field(help="Actions that are possible and would lead to the same end again.")
    command: str = field(help="A shell command that tells more; empty for none.")


class RunReference(Shape):
    """A run's id, and its state after the action."""

    id: str
    workflow: str
    state: str = field(choices=STATES)


class Status(Shape):
    """What the run's author lets it say, and how far it is."""

    text: str
    done: float | None = field(help="How much is done. Null for not said.")
    of: float | None = field(help="Of how much. Null for not said.")
    eta: datetime | None = field(help="When the run expects to be done. Null for not said.")
    at: datetime = field(help="When it was set.")


class Run(Shape):
    """A run. All times are in UTC."""

    id: str
    workflow: str
    queue: str
    state: str = field(choices=STATES)
    is_mistake: bool = field(
        lambda run, _seen: has_stopped(run.summary),
        help="A mistake in the workflow's code has stopped it: nothing was undone, and it can go on once the code is fixed.",
    )
    is_undone: bool = field(
        lambda run, _seen: is_undone(run), help="It has failed or was cancelled, and its steps were undone."
    )
    explanation: Explanation = field(lambda run, seen: seen.explanation(run))
    status: Status | None = field(
        lambda run, seen: seen.statuses.get(run.id), help="What it says itself; null if it has not said anything."
    )
    waiting_for: list[str] | None = field(
        lambda run, _seen: awaited_queues(run),
        help="The queues of which it waits for a message, [] for any; null if it waits for none.",
    )
    wake_at: datetime | None = field(help="When it goes on by itself.")
    error: Error | None = field(lambda run, seen: error_of(run, run.error, payloads=seen.payloads))
    worker: str = field(help="The worker process that executes it now; empty for none.")
    crashes: int = field(help="How many workers died in a row while they executed it.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    parent: str | None = field(
        lambda run, seen: run.parent_id if run.parent_id in seen.existing else None, help="The run that started it."
    )
    replay_of: str | None = field(
        lambda run, seen: run.replay_of_id if run.replay_of_id in seen.existing else None,
        help="The run that it restarts or replays.",
    )
    actions: list[str] = field(lambda run, _seen: possible_verbs(run), help="The actions that its state allows.")
    tags: dict[str, str | None] = field(
        lambda run, seen: tags_data(seen.tags[run.id]),
        help="The values of its tags by name; null for one of which only the hash is stored.",
    )
    about: list[str] = field(
        lambda run, seen: [each.word for each in seen.about[run.id]],
        help="What it is about, as `app.model:key`: `shop.order:42`.",
    )
    revision: str = field(
        lambda run, _seen: revision(run), help="Give it back with an action that must not hit a newer state."
    )


class GroupCounts(Shape):
    """The children of a group by state."""

    group: str | None = field(help="Its location; null for children that belong to none.")
    states: dict[str, int]


class ChildCounts(Shape):
    """The number of a run's children, by state, and by group and state. With `is_capped` there are more."""

    total: int
    is_capped: bool
    states: dict[str, int]
    groups: list[GroupCounts]


class Scheduled(Shape):
    """A moment of a schedule."""

    name: str = field("schedule.name")
    moment: datetime
    kind: str = field(help="tick, catch_up, run_now or backfill.")


def _limits(run: RunRow) -> RunLimits:
    return limits_of(run) or RunLimits()


def _worked(run: RunRow) -> float | None:
    return None if _limits(run).work_limit is None else _limits(run).worked


def _key(run: RunRow) -> str | None:
    key = key_of(run)
    return None if key is None else key.key


def _payload(name: str) -> Any:
    def shown(run: RunRow, seen: SeenRuns) -> Any:
        if name not in seen.expand:
            return None
        return payload(run.workflow, name, getattr(run, name), Place(run.id, name))

    return shown


class HeldStep(Shape):
    """A step that waits for a person."""

    location: str
    reason: str = field(
        "step.reason",
        choices=[reason.value for reason in HeldReason],
        help="unknown: nobody knows whether its last attempt was done; exhausted: its attempts are used up.",
    )
    attempt: int = field("step.attempt", help="The number of its last attempt, from 1.")
    since: datetime = field("step.since")
    until: datetime | None = field(help="When it fails by itself. Null for never.")
    worker: str = field(help="The process that made the last attempt; empty if that is not recorded.")
    question: str = field(
        lambda held, seen: held.question(seen.now), help="With its arguments, if you may see payloads."
    )


def _held(run: RunRow, seen: SeenRuns) -> Any:
    return held_of(run, with_payloads=seen.payloads) if run.state not in ENDED and has_held(run) else []


class RunDetail(Run):
    """A run, with the requested expansions."""

    explanation: Explanation = field(lambda run, seen: seen.whole_explanation(run))
    deadline: datetime | None = field(
        lambda run, _seen: _limits(run).deadline, help="When it fails if it has not ended. Null for none."
    )
    work_limit: float | None = field(
        lambda run, _seen: _limits(run).work_limit,
        help="For how many seconds workers may work on it, its waits not counted. Null for no limit.",
    )
    worked: float | None = field(
        lambda run, _seen: _worked(run),
        help="For how many seconds its ended passes have worked on it. Null without a limit.",
    )
    key: str | None = field(
        lambda run, _seen: _key(run),
        help="With which it was started: no other open run of its workflow has it. Null without one.",
    )
    priority: str | None = field(
        lambda run, _seen: rank_data(run)["priority"],
        help="As the start gave it: a name or a length. Null without one.",
    )
    head_start: int | None = field(
        lambda run, _seen: rank_data(run)["head_start"],
        help="How many seconds longer than it has waited it counts as waiting. Null without a priority.",
    )
    share: str | None = field(
        lambda run, _seen: rank_data(run)["share"],
        help="Of its queue: runs of different shares take turns. Null without one.",
    )
    weight: float | None = field(
        lambda run, _seen: rank_data(run)["weight"], help="How often such runs have a turn. Null without a share."
    )
    in_doubt_since: datetime | None = field(
        lambda run, _seen: None if run.state in ENDED else _limits(run).in_doubt,
        help="Since when its next steps count as unknown, because its database went back in time; or null.",
    )
    held: list[HeldStep] = field(_held, help="The steps that wait for a person, at most 20.")
    parents: list[RunReference] = field(
        lambda run, seen: list_parents(run, seen.within),
        help="The chain of its parents, the root first; it begins below the first one that you may not see.",
    )
    children: ChildCounts = field(
        lambda run, seen: children_data(count_children(run.id, seen.within)),
        help="The children that you may see, by state and group; the first 10,000 are counted.",
    )
    schedule: Scheduled | None = field(
        lambda run, _seen: tick_of(run.id), help="The schedule that has started it, and the moment; or null."
    )
    carried: Any = field(
        lambda run, seen: carried_of(run) if seen.payloads else None,
        help="What travels with it, by the names of the carriers, with `durable.view_payload`. Null for nothing.",
    )
    carried_unread: list[str] = field(
        lambda run, _seen: unread(run.carried),
        help="The names in `carried` of which this process has no carrier: nobody reads their values here.",
    )
    input: Any = field(_payload("input"), help="With `expand=input`: its `args` and `kwargs`. Else null.")
    output: Any = field(_payload("output"), help="With `expand=output`: what the workflow returned. Else null.")


class RunPage(Shape):
    """A page of runs. More may follow at `next_cursor` even if this page is short."""

    results: list[Run]
    next_cursor: str | None
    looked_through: int | None = field(
        lambda page, _seen: WINDOW if page.is_window else None,
        help="The page ends because so many runs were looked through for it: runs that match may follow at "
        "`next_cursor`. Null for any other page.",
    )


class Result(Shape):
    """The result of a run. If the run has not ended, ask again."""

    id: str
    state: str = field(choices=STATES)
    has_ended: bool
    output: Any
    error: Error | None


HELD_FILTER: Final = Filter(name="held", kind=bool, does="Open runs with a step that waits for a person.")
#: The cause of a failure.
CAUSE_FILTERS: Final = (
    Filter(
        name="cause",
        longest=16,
        does="The fingerprint of a cause: runs that are failed or held because of it.",
        on_shell="failed and held runs of this cause, as `durable causes` lists it",
    ),
    Filter(
        name="place",
        longest=1024,
        does="The place of a cause: runs that are failed or held because of one.",
        on_shell="failed and held runs whose cause has this place",
    ),
)
#: The conditions of runs, those of a list and of a bulk.
RUN_FILTERS: Final = (
    Filter(name="state", choices=STATES, several=True, short="-s", on_shell="may be given again"),
    Filter(name="workflow", short="-w", metavar="NAME", on_shell="runs of this workflow"),
    Filter(name="queue", short="-q", metavar="NAME", on_shell="the workers' queue"),
    Filter(
        name="created_from",
        kind=datetime,
        does="Included.",
        on_shell='started since: "2 hours" (ago), or an ISO 8601 moment',
    ),
    Filter(name="created_until", kind=datetime, does="Excluded.", on_shell="started before then"),
    Filter(
        name="finished_from",
        kind=datetime,
        does="Included.",
        on_shell='ended since: "2 hours" (ago), or an ISO 8601 moment',
    ),
    Filter(name="finished_until", kind=datetime, does="Excluded.", on_shell="ended before then"),
    Filter(name="id_prefix", metavar="TEXT", on_shell="ids that begin with this; the list is by id then"),
    Filter(name="error", metavar="TEXT", does="Part of the type or the message of its error."),
    Filter(
        name="waiting_queue",
        longest=128,
        metavar="QUEUE",
        does="Runs that wait for a message of this queue, or of any.",
    ),
    Filter(
        name="worker",
        longest=300,
        metavar="NAME",
        does="Runs that this worker has, and runs that are failed since it had them.",
    ),
    Filter(name="undone", kind=bool, does="Runs whose end has undone their steps."),
    Filter(name="stuck", kind=bool, does="Failed runs whose compensation has stopped."),
    Filter(
        name="diverged",
        kind=bool,
        does="Runs that the workers' code does not fit: tried again for a while, or failed because of that.",
    ),
    Filter(name="attention", kind=bool, does="Runs that do not go on well without a person."),
    HELD_FILTER,
    Filter(
        name="tag",
        kind=tuple,
        metavar="NAME=VALUE",
        does="`name=value`: runs that have this tag. Given several times, runs that have all of them.",
        on_shell="runs with this tag; with all of them if it is given again",
    ),
    Filter(
        name="about",
        longest=456,
        check=read_subject,
        metavar="MODEL:KEY",
        does="`app.model:key`: runs about this, `shop.order:42`.",
        on_shell="runs about this: shop.order:42",
    ),
    *CAUSE_FILTERS,
)
_LISTED: Final = (
    Filter(
        name="children",
        kind=bool,
        does="Children too. Without it a list by state, workflow, queue, time, error or waiting queue has roots alone; "
        "one by id, cause, place or worker, and one of runs that need attention, has children in any case.",
    ),
    Filter(
        name="alerts",
        kind=bool,
        does="The runs that send alerts and do bulks, and those of quiet workflows too. Without it a list by state, "
        "queue, time, error or waiting queue leaves them out, unless it is of failed runs alone. One by workflow, id, cause, "
        "place or worker, and one of runs that need attention, has them in any case.",
    ),
    Filter(
        name="sort",
        choices=SORTS,
        default=RunOrder.NEWEST.value,
        does="The order; a minus sign for the latest first. By `finished_at` the list has ended runs alone, by "
        "`wake_at` runs that go on by themselves. With `id_prefix` the list is by id.",
        on_shell="the order; a minus sign for the latest first. By finished_at ended runs alone are listed, by wake_at "
        "runs that go on by themselves (default: -created_at; write --sort=-finished_at with the equals sign)",
    ),
)
#: The conditions that have another name in `RunCriteria`.
_CRITERIA: Final = {
    "state": "states",
    "error": "error_text",
    "undone": "is_undone",
    "stuck": "is_stuck",
    "diverged": "is_diverged",
    "attention": "needs_attention",
    "held": "is_held",
    "tag": "tags",
}


def criteria_of(asked: Mapping[str, Any], **more: Any) -> RunCriteria:
    """Return the conditions as criteria. Raises ValueError for impossible ones."""
    given = {_CRITERIA.get(name, name): value for name, value in asked.items() if value is not None}
    given |= {"states": frozenset(given.get("states", ())), "tags": checked_tags(given.get("tags", ()))}
    return RunCriteria(**given, **more)


def _runs(
    seen: Seen,
    *,
    limit: int,
    cursor: str | None = None,
    sort: str,
    children: bool,
    alerts: bool,
    search: str = "",
    **asked: Any,
) -> Page:
    wanted = criteria_of(asked, only_roots=not children, hides_alerts=not alerts)
    wanted = settle_roots(parse_search(search, wanted, seen.within) if search else wanted)
    found = list_runs(wanted, order=RunOrder(sort), cursor=cursor, limit=limit, within=seen.within)
    return Page(
        results=found.runs,
        next_cursor=found.next_cursor,
        is_window=found.is_window,
        seen=seen_runs(seen, found.runs),
    )


RUNS: Final = Listing(
    name="runs",
    item=Run,
    page=RunPage,
    read=_runs,
    about="runs",
    is_paged=True,
    filters=(*RUN_FILTERS, *_LISTED),
    over_rest="Return the runs that match, the newest first unless `sort` says otherwise; by id with `id_prefix`.",
)


# -- the children of a run


class Child(Shape):
    """A child of a run."""

    run: Run
    location: str = field(help="Where its parent has started it.")
    group: str | None = field(
        lambda child, _seen: child.group or None, help="The location of the group that it belongs to."
    )


def _children(
    seen: Seen,
    *,
    run: RunRow,
    limit: int,
    cursor: str | None = None,
    state: Sequence[str] = (),
    group: str | None = None,
) -> Page:
    key = key_of_cursor(cursor, int, str)
    after = None if key is None else ChildCursor(*key)
    found = list_children(run.id, states=state, group=group, after=after, limit=limit, within=seen.within)
    return Page(
        results=found.rows,
        next_cursor=None if found.next_key is None else cursor_of(*found.next_key),
        is_window=found.is_window,
        seen=seen_runs(seen, [each.run for each in found.rows]),
    )


CHILDREN: Final = Listing(
    name="children",
    of_run=True,
    item=Child,
    page=list_of(
        Child, "ChildPage", "A page of children. More may follow at `next_cursor` even if this page is short."
    ),
    read=_children,
    about="runs",
    is_paged=True,
    filters=(
        Filter(name="state", choices=STATES, several=True, short="-s", on_shell="may be given again"),
        Filter(
            name="group",
            longest=1024,
            does="The location of a group.",
            short="-g",
            metavar="LOCATION",
            on_shell="the children of the group at this location",
        ),
    ),
    over_rest="Return the runs that the code of this one has started as its children, in the order of their starts.",
)
