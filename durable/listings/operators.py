"""What operators have done: their actions, and their bulks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q

from durable.core.records import ActionOutcome
from durable.inspection.actions import ActionCriteria, detail_without_runs, search_actions, visible_page
from durable.inspection.bulks import BulkSummary
from durable.inspection.bulks import Refusals as RefusedRuns
from durable.inspection.pagination import cursor_of, moment_key_of
from durable.listings.listing import Filter, Listing, Page, list_of
from durable.listings.shapes import Seen, Shape, data_of, field
from durable.operations.audit import PERMISSIONS, SOURCES

_OUTCOMES: Final = [str(each) for each in ActionOutcome]


class OperatorAction(Shape):
    """An action on a run, or a refused one."""

    id: int
    created_at: datetime
    actor: str = field("actor_label")
    source: str = field(choices=list(SOURCES))
    action: str
    run: str = field("run_id", help="Its id; empty where there was none.")
    reason: str
    before: str = field(help="The run's state before.")
    after: str
    outcome: str = field(choices=_OUTCOMES)
    detail: str
    bulk: str = field(
        "bulk_id",
        help="The bulk that it is a part of; empty if there is none, or one of another user where a user may see some "
        "runs only.",
    )


def _actions(
    seen: Seen, *, limit: int, cursor: str | None = None, run: str = "", bulk: str = "", actor: str = "", **asked: Any
) -> Page:
    wanted = ActionCriteria(run_id=run, bulk_id=bulk, person=actor, **asked)
    found = search_actions(wanted).filter(_behind(cursor))
    if seen.within is not None:
        shown, last = visible_page(found, seen.within, limit)
        for each in shown:
            each.detail = detail_without_runs(each)
            if each.actor_id != seen.user:  # the bulk of another user must not be readable
                each.bulk_id = ""
    else:
        page = list(found.order_by("-created_at", "-id")[: limit + 1])
        shown, last = page[:limit], page[limit - 1] if len(page) > limit else None
    return Page(results=shown, next_cursor=None if last is None else cursor_of(last.created_at.isoformat(), last.pk))


def _behind(cursor: str | None) -> Q:
    """Return the condition for rows after the cursor. Raises InvalidCursorError."""
    key = moment_key_of(cursor, int)
    if key is None:
        return Q()
    moment, number = key
    # With this condition the index begins at the time: with OR, all newer rows would be read.
    return Q(created_at__lte=moment) & ~Q(created_at=moment, id__gte=number)


ACTIONS: Final = Listing(
    name="operator_actions",
    item=OperatorAction,
    page=list_of(OperatorAction, "OperatorActionPage", "A page of the audit log, the newest first."),
    read=_actions,
    is_paged=True,
    filters=(
        Filter(name="run", is_id=True),
        Filter(name="bulk", is_id=True, does="The row of a bulk, and the rows of its runs."),
        Filter(name="actor", does="A user's name, or a part of a name that the log has."),
        Filter(name="action", choices=list(PERMISSIONS)),
        Filter(name="outcome", choices=_OUTCOMES),
        Filter(name="reason", does="A part of the reason."),
        Filter(name="since", kind=datetime, does="Included."),
        Filter(name="until", kind=datetime, does="Excluded."),
    ),
    over_rest=(
        "Return the actions on runs, the newest first, with actor, source and reason; refused ones included.\n\n"
        "Conditions other than run, bulk, user and time are looked for among the newest 100,000 actions before `until`.\n"
        "For a user who may see some runs only, 10,000 actions are looked through for a page."
    ),
)


# -- bulks


class NumberOf(Shape):
    """A number of runs of one workflow, or in one state."""

    name: str = field(lambda pair, _seen: pair[0])
    number: int = field(lambda pair, _seen: pair[1])


class BulkStarts(Shape):
    """The children that the replays of a bulk start again, each from where its run failed."""

    looked_at: int = field(help="The runs that were examined.")
    parents: int = field(help="Those of them that start children again.")
    children: int = field(help="How many children these start again, as new runs.")
    is_partial: bool = field(help="There are or may be more runs, and these may start more.")
    workflows: list[NumberOf] = field(help="The children by workflow, the most frequent first.")
    note: str = field(help="The same as a sentence; empty if there is nothing to say.")


class BulkPlan(Shape):
    """The runs on which a bulk would act."""

    count: int = field("eligible.count", help="The runs whose state allows the verb: the `expected` of the bulk.")
    is_capped: bool = field("eligible.is_capped", help="There are or may be more.")
    by_workflow: list[NumberOf] = field(
        "eligible.by_workflow", help="These runs by workflow, if the workflows are known."
    )
    left_alone: list[NumberOf] = field(
        "eligible.left_alone", help="The other runs by state; the state of ids that no run has is empty."
    )
    starts: BulkStarts | None = field(help="Null unless the verb is replay.")


class Refusals(Shape):
    """The runs that were refused for one reason."""

    outcome: str
    reason: str
    number: int
    runs: list[str] = field(help="The first ones.")


@dataclass(frozen=True, kw_only=True)
class SeenBulk(Seen):
    """`Seen`, with the runs for which the bulk was refused."""

    refusals: Sequence[RefusedRuns]


class Bulk(Shape):
    """A bulk, and what has come of it so far."""

    id: str
    verb: str
    headline: str = field(help="What it does now, as one sentence.")
    run: str | None = field("run.id", help="The run that does it in the background, or null.")
    is_over: bool
    is_stopped: bool = field(
        lambda bulk, _seen: bulk.stopped is not None, help="Whether its canary has stopped it: go on, or stop here."
    )
    total: int | None = field(help="The runs to be processed, if they were counted.")
    done: int = field("done.number")
    refused: int = field("refused.number")
    failed_again: int | None = field("again.number", help="Null for a verb after which a run does not fail.")
    started_children: int | None = field(
        "started.number",
        help="The children that its replays start again, those of the newest 10,000. Null for other verbs.",
    )
    refusals: list[Refusals] = field(lambda _bulk, seen: seen.refusals)
    actor: str
    reason: str
    began_at: datetime


def bulk_data(found: BulkSummary, refused: Sequence[RefusedRuns], seen: Seen) -> dict[str, Any]:
    """Return a bulk with the runs that were refused, as JSON."""
    return data_of(Bulk, found, seen.more(SeenBulk, refusals=refused))
