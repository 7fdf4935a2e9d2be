"""What works and what holds it back: queues, workers, running steps, limits, rates, causes of failures, workflows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durable.inspection.activities import activities_of, list_activities, saved_by
from durable.inspection.causes import list_causes
from durable.inspection.limits import list_limits, list_rates
from durable.inspection.queues import list_queues
from durable.inspection.workers import worker_overview
from durable.listings.listing import Listing, Page, list_of
from durable.listings.shapes import Seen, Shape, field
from durable.models import Run
from durable.operations import holds, limits, rates

OF_VERB: Final = "For the `revision` of a verb."


class Count(Shape):
    """A number of runs; with `is_capped` there are more than that."""

    number: int
    is_capped: bool


class Counts(Shape):
    """The number of runs in each state, counted up to a cap."""

    states: dict[str, Count]


class Hold(Shape):
    """A hold: since when, by whom and why."""

    name: str
    held_at: datetime
    held_by: str
    reason: str


class Release(Shape):
    """The end of a hold."""

    name: str
    resumed: int | None = field(
        help="How many runs were resumed so far. If there are many, the others follow within minutes; 0 for a queue, "
        "null where a user may see some runs only."
    )


# -- queues and workers


class Queue(Shape):
    """A queue of workers."""

    name: str
    workers: int = field(help="How many serve it.")
    is_known: bool = field(
        help="Whether it is one of the project's RQ_QUEUES; always true where durable uses no Redis."
    )
    has_runs: bool = field(help="Whether runs of it will wake by themselves, or are held.")
    has_workflows: bool
    is_paused: bool = field(help="Whether an operator has paused it: no worker takes its runs.")
    hold: Hold | None = field(help="Since when it is paused, by whom and why; null if it is not.")
    due: Count = field(help="The runs that a worker may take now.")
    oldest_due_at: datetime | None = field(help="When the run became due that has been due for longest.")
    in_hand: Count = field(help="The runs that workers are executing.")
    in_per_minute: float = field(
        "came.per_minute", help="Runs created per minute: of the newest 1,000 of all queues, in the last 10 minutes."
    )
    out_per_minute: float = field(
        "went.per_minute", help="Runs ended per minute: of the last 1,000 of all queues, in the last 10 minutes."
    )
    served_by: list[str] = field(
        lambda queue, _seen: [each.name for each in queue.serving], help="The names of the workers that serve it."
    )
    revision: str = field(lambda queue, _seen: holds.revision_of(queue.hold), help=OF_VERB)


class QueueList(Shape):
    """All queues."""

    results: list[Queue]
    problem: str = field("about.problem", help="Why Redis could not be asked for workers; empty if it was.")
    uses_redis: bool = field("about.uses_redis", help="False where workers poll the database.")


class HeldRun(Shape):
    """A run that a worker is executing."""

    id: str
    workflow: str
    lease_expires_at: datetime


class Worker(Shape):
    """A worker process."""

    name: str
    host: str
    pid: int
    queues: list[str]
    serves_all: bool = field(help="Whether it serves other queues too, after these.")
    state: str = field(
        help="busy, idle, stopping (it hands over its runs), dead (no sign for 45 seconds), another word of RQ's, or "
        "unknown."
    )
    slots: int | None = field(help="How many runs it executes at once.")
    build: str = field(help="Its code; empty where the project names none.")
    memory: int | None = field(help="Its resident set, in bytes.")
    passes: int | None = field(help="How many passes it has executed since its start.")
    recent_passes: int | None = field(help="The same in about the last five minutes.")
    last_heartbeat: datetime | None
    started_at: datetime | None
    runs: list[HeldRun]


class WorkerList(QueueList):
    """The current workers, at most 200."""

    results: list[Worker]  # type: ignore[assignment]  # the same list of other things


def _queues(seen: Seen) -> Page:
    found = worker_overview(seen.within)
    return Page(results=list_queues(seen.now, found, within=seen.within), about=found)


def _workers(seen: Seen) -> Page:
    found = worker_overview(seen.within)
    return Page(results=found.workers, about=found)


QUEUES: Final = Listing(
    name="queues",
    item=Queue,
    page=QueueList,
    read=_queues,
    over_rest=(
        "Return the queues of the project, of runs and of pauses.\n\n"
        "Each says what is due and in hand, what comes in and goes out, and who serves it."
    ),
)
WORKERS: Final = Listing(
    name="workers",
    item=Worker,
    page=WorkerList,
    read=_workers,
    over_rest="Return the worker processes, with the runs that each is executing; those killed in the last hour as dead.",
)


# -- running steps


class Activity(Shape):
    """An attempt of a step, or a call of a step's rollback handler, that runs now."""

    run: str = field("run_id")
    workflow: str
    queue: str
    location: str = field(help="The step's place in the history.")
    summary: str = field(help="The line of text that the step's call has for people; empty for none.")
    kind: str = field(choices=["step", "rollback"], help="The step, or its rollback handler.")
    attempt: int
    worker: str
    began_at: datetime
    seconds: float = field(help="For how long it has run.")
    timeout: float = field(help="In seconds; 0 for none.")
    p50: float | None = field("usual.p50", default=None, help="How long it usually takes, in seconds, if known.")
    p95: float | None = field("usual.p95", default=None, help="How long it takes at most in 95 of 100 cases.")
    is_hung: bool = field(help="It has run for far longer than usual.")
    left: str = field(
        help="What an asynchronous step has left on its event loop: it goes on after it was cancelled, as an activity of "
        "attempt 0. Empty for an attempt of a step."
    )
    stack_asked_at: datetime | None = field(help="When its stack was requested.")
    stack_taken_at: datetime | None = field(help="When a worker answered.")
    abandon_asked_at: datetime | None = field(help="When the attempt was abandoned; it has not ended yet.")
    saved: Any = field(
        lambda step, seen: getattr(seen, "saved", {}).get(step.location),
        help="Of the steps of one run: what the step has saved last. Null without the permission to see payloads.",
    )


class Stack(Shape):
    """The stack of a running step, as its worker has answered."""

    text: str = field(help="The frames, the outermost first; empty until the worker has answered.")
    asked_at: datetime | None
    taken_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class _SeenSteps(Seen):
    """With what the steps of one run have saved, by their locations."""

    saved: Mapping[str, Any]


def _running(seen: Seen, *, limit: int, cursor: str | None = None) -> Page:
    found = list_activities(seen.now, cursor=cursor, limit=limit, within=seen.within)
    return Page(results=found.steps, next_cursor=found.next_cursor)


def _running_of_run(seen: Seen, *, run: Run) -> Page:
    steps = activities_of(run, seen.now)
    saved = saved_by(run, [each.location for each in steps]) if seen.payloads else {}
    return Page(results=steps, seen=seen.more(_SeenSteps, saved=saved))


_ACTIVITIES: Final = list_of(Activity, "ActivityList", "A page of what runs now.")
RUNNING: Final = Listing(
    name="running_steps",
    word="running",
    item=Activity,
    page=_ACTIVITIES,
    read=_running,
    is_paged=True,
    about="runs",
    over_rest="Return the steps that have run for more than a second, the oldest first.",
)
RUNNING_OF_RUN: Final = Listing(
    name="running_steps_of_run",
    word="running",
    of_run=True,
    item=Activity,
    page=_ACTIVITIES,
    read=_running_of_run,
    about="runs",
    over_rest="Return those that have run for more than a second, the oldest first; at most 200.",
)


# -- limits and rates


class LimitKey(Shape):
    """A key of a limit."""

    key: str = field(help="Empty for a limit without keys.")
    held: int = field(help="How many slots are held, counted up to 10,000.")
    waiting: int = field(help="How many runs and steps wait for one, counted up to 1,000.")
    oldest_at: datetime | None = field(help="Since when the first in the line waits; null for an empty line.")


class Limit(Shape):
    """A limit."""

    name: str
    at_once: int = field(help="How many slots of each key may be held at once.")
    code_says: int = field(help="The number of the code or the settings.")
    is_overridden: bool = field(help="Whether an operator has set the number.")
    keys: list[LimitKey] = field(help="The keys with the longest lines first; at most 100.")
    revision: str = field(lambda limit, _seen: limits.revision_of(limit.at_once), help=OF_VERB)


class RateKey(Shape):
    """A key of a rate."""

    key: str = field(help="Empty for a limit without keys.")
    waiting: int = field(help="How many attempts wait for their moments; 1,000 means that or more.")
    next_at: datetime | None = field(help="When the first of them begins; null if none waits.")
    reserved_until: datetime | None = field(help="Until when the rate is taken; null for a key that was not used.")
    closed_until: datetime | None = field("closing.until", default=None, help="Null while it is open.")
    closed_by: str = field("closing.by", default="", help="Who has closed it, if it is closed.")
    closed_why: str = field("closing.reason", default="", help="The reason of the closing.")
    last_minute: list[int] = field(
        help="How many units have begun in each five seconds of the last minute, the oldest first."
    )
    refused: int = field(help="How many starts it has refused, since it was first used.")
    refused_at: datetime | None = field(
        "last_refused.at", default=None, help="When it has refused the last one; null for never."
    )
    refused_workflow: str = field("last_refused.workflow", default="", help="What that one would have started.")
    revision: str = field(
        lambda key, _seen: rates.closing_revision_of(key.closing), help="For the `revision` of close and open."
    )


class Rate(Shape):
    """A limit's rate."""

    name: str = field(help="The name of the limit.")
    rate: str = field("rate.text", help='How many units may begin in each period: "500/min".')
    burst: int = field("rate.burst", help="How many units may begin at once after a pause.")
    code_says: str = field(help="The rate of the code or the settings.")
    is_overridden: bool = field(help="Whether an operator has set the rate.")
    keys: list[RateKey] = field(help="Those for which most attempts wait come first; at most 100.")
    revision: str = field(
        lambda rate, _seen: rates.rate_revision_of(rate.rate), help="For the `revision` of set-rate and take-back-rate."
    )


LIMITS: Final = Listing(
    name="limits",
    item=Limit,
    page=list_of(Limit, "LimitList", "All limits.", is_paged=False),
    read=lambda seen, name="": Page(results=list_limits(name, seen.within)),
    over_rest="Return the limits: how many slots are held of each key, how many runs wait, and since when.",
    one_over_rest="Return a limit: how many slots are held of each key, how many runs wait, and since when.",
    missing='There is no limit "{name}".',
)
RATES: Final = Listing(
    name="rates",
    item=Rate,
    page=list_of(Rate, "RateList", "All rates.", is_paged=False),
    read=lambda seen, name="": Page(results=list_rates(seen.now, name, seen.within)),
    over_rest="Return the rates of limits: until when they are reserved, how many attempts wait, and what is closed.",
    one_over_rest="Return the rate of a limit: until when it is reserved, how many attempts wait, and what is closed.",
    missing='There is no limit "{name}" with a rate.',
)


# -- causes of failures


class Cause(Shape):
    """A cause of failed runs, and of open ones with a step that waits for a person."""

    cause: str = field("fingerprint", help="Give it as `cause` to the list of runs.")
    place: str = field(
        help='The step that failed, "~" for the number of an iteration; empty for the workflow\'s own code.'
    )
    error_type: str = field(help="The name of the innermost error's class.")
    pattern: str | None = field(
        lambda cause, seen: cause.pattern if seen.payloads else None,
        help='The error\'s message, "#" for what differs. Null without the permission to see payloads.',
    )
    runs: Count = field("count", help="How many runs are failed or held because of it.")
    held: Count = field(help="How many of these are held: open, with a step that waits for a person.")
    first_seen_at: datetime
    since: datetime | None = field(help="When the first of these runs failed or was held.")
    last_at: datetime | None = field(help="When the last of these runs failed or was held.")
    workflows: list[str] = field(help="Those of its newest failures.")
    builds: list[str] = field(
        help="The newest build of the code whose workers have seen it; empty where none is named."
    )
    is_muted: bool
    note: str = field(help="What an operator has said of it; empty for nothing.")
    noted_at: datetime | None = field(help="When that was said.")
    noted_by: str


def _causes(seen: Seen, *, muted: bool | None = None) -> Page:
    return Page(results=list_causes(seen.now, muted=muted, within=seen.within))


CAUSES: Final = Listing(
    name="causes",
    item=Cause,
    page=list_of(Cause, "CauseList", "The causes of failed and held runs, at most 50.", is_paged=False),
    read=_causes,
    about="runs",
    over_rest="Return the causes of failed and held runs, muted ones too, the one with the newest failure first.",
)


# -- workflows: their parameters and messages, and their runs in numbers


class Parameter(Shape):
    """A parameter of a workflow's function."""

    name: str
    kind: str = field(
        choices=["positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"]
    )
    is_required: bool
    annotation: str = field(help="As it is written in the code; empty for none.")
    default: str | None = field(help="As Python shows it, … without the permission to see payloads; null for none.")


class DeclaredMessage(Shape):
    """A message that a workflow declares."""

    name: str = field(help="The message queue.")
    schema: Any = field(help="The JSON schema of its body; empty for any.")
    example: Any = field(help="A body that has this shape.")


class Workflow(Shape):
    """A workflow that this process knows."""

    name: str
    queue: str = field(help="Where its runs go, unless a start says otherwise.")
    description: str
    signature: str = field(help="Without the context.")
    parameters: list[Parameter]
    messages: list[DeclaredMessage] | None = field(help="All messages that its runs accept; null if they accept any.")
    on_end: str = field(help="The function that is called in the commit that ends a run; empty for none.")


class WorkflowList(Shape):
    """All workflows, by name."""

    results: list[Workflow]


class StepDurations(Shape):
    """The usual duration of a step: of the attempt that succeeded."""

    place: str = field(help='Its location, "~" for the number of an iteration.')
    sampled: int = field(help="Its executions that were looked at.")
    failed: int = field(help="Those of them that failed for good, recovered or not.")
    attempts: float | None = field(help="For a success, on average; null without one.")
    p50: float | None = field(help="Half took less, in seconds; null without a success.")
    p95: float | None = field(help="95 of 100 took less, in seconds; null without a success.")


class OpenPlace(Shape):
    """A place at which open runs stand."""

    state: str
    place: str = field(help="In words; empty if the state says all.")
    count: int


class BuildInFlight(Shape):
    """A build that workers run now."""

    build: str
    workers: int = field(help="How many of the workers that serve the workflow's queue run it.")


class WorkflowStats(Shape):
    """A workflow in numbers."""

    name: str = field(help="That of the code, also if another one was asked for.")
    other_names: list[str] = field(help="Those before or after migrations have renamed it, the oldest first.")
    sampled: int = field("stats.sampled", help="The runs that completed last, of which p50 and p95 are; at most 200.")
    p50: float | None = field("stats.p50", help="Half took less, in seconds; null without a completed run.")
    p95: float | None = field("stats.p95", help="95 of 100 took less, in seconds; null without a completed run.")
    failed: Count = field("stats.failed", help="The runs that are failed now.")
    steps: list[StepDurations] = field("stats.steps", help="From a sample of its newest runs, the slowest p95 first.")
    flakiest: str = field("stats.flakiest", help="The place of the step that is tried again most; empty if none is.")
    slowest: str = field("stats.slowest", help="The place of the step with the longest p95; empty for fewer than two.")
    places: list[OpenPlace] = field(
        "stats.places", help="Of the open ones among its newest 1,000 runs, the commonest first."
    )
    is_windowed: bool = field("stats.is_windowed", help="Whether it has as many runs as that, or more.")
    hold: Hold | None = field(help="Since when its new starts are held, by whom and why; null if they are not.")
    revision: str = field(lambda workflow, _seen: holds.revision_of(workflow.hold), help=OF_VERB)
    held_starts: Count = field(help="The runs that wait, paused, because it is or was held.")
    builds: list[BuildInFlight] = field(help="The commonest first; [] where workers name none.")
