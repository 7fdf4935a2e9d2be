"""The history of a run: its entries with their attempts, a tree and a waterfall of them, its messages and its log; and
the plan of a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from durable.core.outcomes import HELD, HeldReason
from durable.core.places import RecordedValue, of_message, values_of
from durable.core.records import EntryKind, EntryStatus, MessageState
from durable.inspection.counting import fitting
from durable.inspection.entry_detail import entry_facts, field_of, note_links, whole_data
from durable.inspection.events import LEVELS, read_logs
from durable.inspection.history_counts import LONG, remembered
from durable.inspection.pagination import cursor_of, key_of
from durable.inspection.payloads import payload
from durable.inspection.reading import read_alias
from durable.inspection.shown import values_of as published_values
from durable.listings.listing import Filter, Listing, Page, list_of
from durable.listings.runs import Error, error_of
from durable.listings.shapes import Seen, Shape, field
from durable.models import Attempt as AttemptRow
from durable.models import Entry as EntryRow
from durable.models import QueueMessage
from durable.models import Run as RunRow
from durable.models.rows import weight

#: Columns without another limit of their length.
_LARGE: Final = ("data", "metadata__error", "metadata__rollback_error")
_PAYLOADS: Final = ("output", "arguments")
_BLOCK: Final = 2_000  # entries whose order one search finds


@dataclass(frozen=True, kw_only=True)
class SeenHistory(Seen):
    """`Seen`, with the run whose history it is. `with_payloads`: with those of entries too, for users who may see
    payloads.
    """

    run: RunRow
    with_payloads: bool = False
    saved: Any = None
    failed_attempts: Sequence[AttemptRow] = ()


def seen_history(seen: Seen, run: RunRow, **more: Any) -> SeenHistory:
    """Return the `SeenHistory` of the run."""
    return seen.more(SeenHistory, run=run, **more)


class Held(Shape):
    """Why and since when a step waits for a person."""

    reason: str = field(
        choices=[reason.value for reason in HeldReason],
        help="unknown: nobody knows whether its last attempt was done; exhausted: its attempts are used up.",
    )
    since: datetime
    until: datetime | None = field(help="When it fails by itself. Null for never.")


def _held(entry: EntryRow) -> Any:
    held = whole_data(entry).get(HELD)
    if held is None or entry.metadata.status != EntryStatus.HELD:
        return None
    since = datetime.fromisoformat(held["since"])
    return SimpleNamespace(reason=held["reason"], since=since, until=entry.metadata.next_attempt_at)


class Entry(Shape):
    """The record of one operation."""

    location: str
    kind: str = field(choices=[kind.value for kind in EntryKind])
    status: str = field("metadata.status", choices=[status.value for status in EntryStatus])
    ordinal: int = field(help="The order in which the entries of a run began.")
    attempts: int = field("metadata.attempts")
    created_at: datetime = field("metadata.created_at")
    last_attempt_at: datetime | None = field("metadata.last_attempt_at")
    next_attempt_at: datetime | None = field("metadata.next_attempt_at")
    completed_at: datetime | None = field("metadata.completed_at")
    rollback_completed_at: datetime | None = field("metadata.rollback_completed_at")
    error: Error | None = field(
        lambda entry, seen: error_of(seen.run, entry.metadata.error, payloads=seen.payloads),
        help="Of the last failed attempt.",
    )
    held: Held | None = field(
        lambda entry, _seen: _held(entry), help="Of a step that waits for a person; null for any other."
    )
    rollback_error: Error | None = field(
        lambda entry, seen: error_of(seen.run, entry.metadata.rollback_error, payloads=seen.payloads)
    )
    data: dict[str, Any] = field(
        lambda entry, seen: entry_facts(seen.run, entry),
        help="What the kind of entry has beside: a sleep its deadline, a loop its iteration.",
    )
    payloads: dict[str, Any] | None = field(
        lambda entry, seen: _values(seen.run, entry) if seen.with_payloads and seen.payloads else None,
        help="Arguments, outputs and messages, where they were asked for and may be seen.",
    )


class Attempt(Shape):
    """A failed attempt of a step."""

    number: int
    worker: str
    started_at: datetime
    finished_at: datetime
    error: Error = field(lambda attempt, seen: error_of(seen.run, attempt.error, payloads=seen.payloads))


class EntryDetail(Entry):
    """An entry with its failed attempts, at most 1,000 and 8 MiB."""

    failed_attempts: list[Attempt] = field(lambda _entry, seen: seen.failed_attempts)
    saved: Any = field(
        lambda _entry, seen: seen.saved,
        help="What the step has saved last. Null without the permission to see payloads.",
    )


def _keys_after(run: RunRow, after: int, begin: int, most: int) -> tuple[int, list[tuple[int, int]]]:
    """Return ordinals and keys of the first entries after an ordinal, and the beginning of the block that has them.

    No index has their order, so that a search reads a block. In a long history it is remembered for the next pages,
    whose cursors name it.
    """

    def read() -> list[tuple[int, int]]:
        found = EntryRow.objects.using(read_alias()).filter(run=run, ordinal__gt=begin).order_by("ordinal")
        return list(found.values_list("ordinal", "pk")[:_BLOCK])

    block = remembered(run, f"entries after {begin}", read, lambda found: LONG + 1 if len(found) == _BLOCK else 0)
    page = [each for each in block if each[0] > after][:most]
    if len(page) < most and len(block) == _BLOCK and begin < after:
        return _keys_after(run, after, after, most)
    return begin, page


def _entries(seen: Seen, *, run: RunRow, limit: int, cursor: str | None = None, payloads: bool = False) -> Page:
    after, begin = key_of(cursor, int, int) or (-1, -1)
    # The page is selected by its keys, so that metadata and payloads of other entries are not read.
    begin, page = _keys_after(run, after, begin, limit + 1)
    entries = EntryRow.objects.using(read_alias()).filter(run=run)
    found = entries.filter(pk__in=[key for _, key in page[:limit]])
    size_of_row = weight(*_LARGE, *(_PAYLOADS if payloads else ()))
    chosen, _ = fitting(found.order_by("ordinal").values_list("pk", size_of_row))
    ordinals = {key: ordinal for ordinal, key in page}
    more = len(page) > len(chosen)
    shown = entries.filter(pk__in=chosen).select_related("metadata").order_by("ordinal")
    results = list(shown if payloads else shown.defer(*_PAYLOADS))
    note_links(run, results)
    return Page(
        results=results,
        next_cursor=cursor_of(ordinals[chosen[-1]], begin) if more and chosen else None,
        seen=seen_history(seen, run, with_payloads=payloads),
    )


ENTRIES: Final = Listing(
    name="entries",
    of_run=True,
    item=Entry,
    page=list_of(Entry, "EntryPage", "A page of a history, in the order in which its entries began."),
    read=_entries,
    about="history",
    is_paged=True,
    filters=(Filter(name="payloads", kind=bool),),
    over_rest=(
        "Return the entries in the order in which they began; with `payloads=true` their arguments and results.\n\n"
        "A page ends before `limit` where it would take more than 8 MiB. Payloads need `durable.view_payload`."
    ),
)


class TreeNode(Shape):
    """A location in the history: an entry, or a scope such as an iteration or a branch."""

    location: str
    title: str
    summary: str = field(help="The line of text that a step's call has for people; empty for none.")
    kind: str = field(help="That of the entry, or iteration, branch or block.")
    status: str = field(
        help="That of the entry; a join or race that raised an error is failed. A scope's is the worst inside it."
    )
    running_since: datetime | None = field(
        help="Of an attempt or a rollback handler that runs now. A first attempt has no entry yet."
    )
    is_caught: bool = field(help="It has failed, and the workflow went on all the same.")
    failed_attempts: int = field(help="Of a step; those before a recovery are counted.")
    position: int
    is_winner: bool = field(help="Of a race's branches.")
    note: str
    children: list[TreeNode]


class Tree(Shape):
    """A page of a history as a tree, with the scopes around it."""

    roots: list[TreeNode]
    start: int
    total: int
    next_start: int | None
    previous_start: int | None
    is_cut: bool = field(help="The history is longer than what is read of one.")


class Side(Shape):
    """One of two compared runs at a place."""

    status: str
    attempts: int
    took: float | None = field(help="Seconds; null if it has not completed.")
    error: str
    is_given: bool = field(help="Whether a person gave the output by hand.")
    output: Any = field(help="Null without `durable.view_payload`.")


class Difference(Shape):
    """A place of both runs."""

    location: str
    kind: str
    differs: list[str] = field(help="What is not the same; empty: all is.")
    left: Side | None = field(help="Of this run; null if it has nothing there.")
    right: Side | None = field(help="Of the other run.")


class Comparison(Shape):
    """A page of the places of two runs."""

    rows: list[Difference]
    total: int
    is_cut: bool = field(help="Whether a history is longer than what is read.")
    next_start: int | None
    inputs: list[Any] | None = field(help="Both inputs if they differ, on the first page, with `durable.view_payload`.")


# -- messages


class Message(Shape):
    """A message in a run's inbox."""

    id: str
    queue: str
    sent_at: datetime
    order: int
    state: str = field(choices=[state.value for state in MessageState])
    received_by: str = field(help="The location of the wait that received it; empty before.")
    body: Any = field(
        lambda message, seen: _message_value(message, seen, "message", "body"),
        help="Null without the permission to see payloads.",
    )
    response: Any = field(
        lambda message, seen: _message_value(message, seen, "response", "response"),
        help="Of a refused message, the reason. Null without the permission to see payloads.",
    )


def _message_value(message: QueueMessage, seen: SeenHistory, name: str, column: str) -> Any:
    """Return the column, which is read only for users who may see it."""
    if not seen.payloads:
        return None
    place = of_message(seen.run.id, name, message.id, message.queue)
    return payload(seen.run.workflow, f"{name}:{message.queue}", getattr(message, column), place)


class MessageReference(Shape):
    """The id of a message that was sent."""

    id: str
    run: str


class EventReference(Shape):
    """The id of an event that was published."""

    id: str


class Answer(Shape):
    """A run's response to a message. If there is none yet, look at the message again later."""

    message: str = field(help="The message's id.")
    is_answered: bool
    response: Any


def _messages(seen: Seen, *, run: RunRow, limit: int, cursor: str | None = None) -> Page:
    after = key_of(cursor, int)
    found = QueueMessage.objects.using(read_alias()).filter(run=run).order_by("order")
    if after is not None:
        found = found.filter(order__gt=after[0])
    size_of_row = weight(*(("body", "response") if seen.payloads else ()))
    page = list(found.values_list("pk", size_of_row)[: limit + 1])
    chosen, _ = fitting(page[:limit])
    more = len(page) > len(chosen)
    rows = QueueMessage.objects.using(read_alias()).filter(pk__in=chosen).order_by("order")
    shown = list(rows if seen.payloads else rows.defer("body", "response"))
    return Page(
        results=shown,
        next_cursor=cursor_of(shown[-1].order) if more and shown else None,
        seen=seen_history(seen, run),
    )


MESSAGES: Final = Listing(
    name="messages",
    of_run=True,
    item=Message,
    page=list_of(Message, "MessagePage", "A page of an inbox, in the order of the messages."),
    read=_messages,
    about="messages",
    is_paged=True,
    over_rest=(
        "Return the messages in their order, in any state.\n\n"
        "A page ends before `limit` where it would take more than 8 MiB."
    ),
)


# -- the log


class LogLine(Shape):
    """A line of a log."""

    id: int = field(help="Greater for later lines.")
    at: datetime
    level: str
    logger: str
    location: str = field(help='Of the step or the scope that logged it; "" for the run itself.')
    text: str = field(help="The message, with a traceback below it if there is one.")


class LogPage(Shape):
    """A page of a log."""

    results: list[LogLine]
    next_after: int | None = field("about", help="The `after` of the next page; null at the end.")


def _logs(seen: Seen, *, run: RunRow, level: str, place: str, after: int, limit: int) -> Page:
    lines = read_logs(run, level=level, place=place, after=after, limit=limit + 1)
    page = lines[:limit]
    return Page(results=page, about=page[-1].id if len(lines) > limit else None, seen=seen)


LOGS: Final = Listing(
    name="logs",
    of_run=True,
    item=LogLine,
    page=LogPage,
    read=_logs,
    about="history",
    reads_with=("view_run", "view_payload"),
    filters=(
        Filter(
            name="level",
            choices=sorted(LEVELS, key=LEVELS.__getitem__),
            default="",
            does="Without lines below this level.",
            metavar="LEVEL",
        ),
        Filter(
            name="place",
            longest=1024,
            default="",
            does="Lines of this location, and of those within it.",
            metavar="LOCATION",
        ),
        Filter(name="after", kind=int, default=0, least=0, most=2**63 - 1, does="Lines with a greater `id`."),
        Filter(name="limit", kind=int, default=200, least=1, most=1_000, does="How many at most."),
    ),
    over_rest=(
        "Return the run's log in the order in which it was written.\n\n"
        "Lines are kept only where the project has switched on `durable.logs.RunLogHandler`, and the newest of each run\n"
        "only. Give the greatest `id` as `after` to read what was written since. They need `durable.view_payload`."
    ),
)


# -- what it has published


class Value(Shape):
    """The newest value that a run has published under a name."""

    name: str
    form: str = field(
        choices=["number", "text", "markdown", "table", "json"], help="How it is meant to be shown; a table has rows."
    )
    value: Any = field(help="Null if it is left out because of its size: its entry has it.")
    is_left_out: bool
    location: str
    at: datetime


VALUES: Final = Listing(
    name="values",
    of_run=True,
    item=Value,
    page=list_of(Value, "ValueList", "The published values of a run, at most 50.", is_paged=False),
    read=lambda seen, *, run: Page(results=published_values(run), seen=seen),
    about="history",
    reads_with=("view_run", "view_payload"),
    over_rest="Return what the run has published with `ctx.publish`, the newest value of each name.",
)


# -- the payloads of an entry


#: The values of an entry, by kind, except those of messages and branches, which are shown together.
_VALUES: Final = {
    EntryKind.STEP: ("arguments", "output"),
    EntryKind.LOOP: ("state", "output"),
    EntryKind.SEND: ("body",),
    EntryKind.CHILD: ("output",),
    EntryKind.MAP: ("output",),
    EntryKind.PUBLISH: ("output",),
}


def _values(run: RunRow, entry: EntryRow) -> dict[str, Any]:
    data, kind = whole_data(entry), EntryKind(entry.kind)
    values = list(values_of(run.id, entry))

    def shown(value: RecordedValue) -> Any:
        return payload(run.workflow, field_of(value, entry.location), value.text, value.place)

    if kind == EntryKind.MESSAGE:
        return {"bodies": [shown(each) for each in values if each.name == "message"]}
    if kind in (EntryKind.JOIN, EntryKind.RACE):
        outputs = {each.of: shown(each) for each in values if each.name == "branch"}
        return {"outputs": {name: outputs.get(name) for name in data.get("branches", {})}}
    named = {each.name: each for each in values}
    return {name: shown(named[name]) for name in _VALUES.get(kind, ())}


class TimelineSpan(Shape):
    """A span of time in a row."""

    kind: str = field(
        help='attempt, given, failed, backoff, sleep, wait, rollback, "rollback failed", moment, scope (all that is '
        "inside) or folded (from the first member to the last)"
    )
    begins_at: datetime
    ends_at: datetime | None


class TimelineRow(Shape):
    """A place of the history, or several that are folded into one row."""

    place: str = field(help='A location; where it is folded, with "#" for numbers.')
    title: str
    kind: str = field(help="That of the entry, or iteration, branch or block.")
    depth: int
    status: str = field(help="That of the entry or of the worst one inside, or caught.")
    is_folded: bool
    count: int = field(help="Members of a folded row; 0 if their number is not known.")
    location: str = field(help="That of its entry; empty if it has none or stands for several.")
    opens: str = field(help="The `open` that shows what is inside; empty for nothing.")
    begins_at: datetime
    ends_at: datetime | None = field(help="Null while it goes on.")
    p50: float | None = field(help="Seconds that half of the members took at most.")
    p95: float | None = field(help="Seconds that 95 of 100 members took at most.")
    failed: int = field(help="Entries that have failed, caught or not.")
    failed_attempts: int = field(help="Those before a recovery are counted.")
    note: str
    spans: list[TimelineSpan]


class TimelineMark(Shape):
    """A mark of an operator's verb."""

    at: datetime
    title: str


class TimelineGap(Shape):
    """A long stretch in which no step was executed."""

    begins_at: datetime
    ends_at: datetime


class Timeline(Shape):
    """The waterfall of a run: at most 120 rows and 400 failed attempts, of the whole history."""

    begins_at: datetime = field("axis.begins_at")
    ends_at: datetime = field("axis.ends_at")
    gaps: list[TimelineGap] = field("axis.gaps")
    rows: list[TimelineRow]
    marks: list[TimelineMark] = field("actions")
    left_out: int = field(help="Rows that were too many; none of them has failed.")
    attempts_left_out: int = field(help="Older failed attempts, which are counted only.")
    is_sampled: bool = field(help="Durations are those of some entries; numbers are exact.")
    more: int | None = field(help="The `after` of the next members of what is open.")


class ReturnedMessage(Shape):
    """A message that becomes pending again."""

    id: str
    queue: str
    wait: str = field(help="The location of the wait that had received it.")


class StartsAgain(Shape):
    """Children that are started again, as new runs with new idempotency keys."""

    location: str = field(
        help="The operation that has started them, or a loop around it: of one whose older iterations are pruned, all "
        "children are counted that were ever started in it."
    )
    workflow: str = field(help="The workflow of the children.")
    number: int = field(help="How many.")


class PlanCounts(Shape):
    """The length of each list of a plan."""

    removed: int
    reruns: int
    resends: int
    starts: int
    started_children: int = field(help="The sum of the numbers of `starts`.")
    kept: int
    siblings: int
    messages: int
    children: int
    not_compensated: int


class ReplayPlan(Shape):
    """The effects of a replay. Each list has the first 50."""

    run_id: str
    target: str = field(help="What was asked for.")
    boundary: str = field(help="Where the run would go on.")
    why: list[str] = field(help="Why the boundary is not the target.")
    removed: list[str] = field(help="The entries that go.")
    reruns: list[str] = field(help="The steps among them, which run again when the code comes to them.")
    resends: list[str] = field(help="The sends among them, which are made again.")
    starts: list[StartsAgain] = field(
        help="The operations among them that start their children again: what the children before did stays, and is "
        "done again."
    )
    kept: list[str] = field(help="The entries that stay.")
    siblings: list[str] = field(help="The branches beside the boundary whose records stay.")
    messages: list[ReturnedMessage] = field(help="The messages that return to the queue.")
    children: list[str] = field(help="The children that a replay in place cancels: what goes has started them.")
    not_compensated: list[str] = field(
        help="The completed steps with a rollback handler, and the children that are compensated with their parent, that go: "
        "their handlers are not run."
    )
    refusals: list[str] = field(help="What prevents a new run.")
    in_place_refusals: list[str] = field(help="What prevents a replay in place.")
    notes: list[str] = field(help="Further notes for the operator.")
    counts: PlanCounts = field(help="How many there are of each list.")
    hash: str = field(help="To be given to the replay, which refuses a stale one.")
