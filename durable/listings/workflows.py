"""Workflows: their parameters and messages, and their runs in numbers."""

from __future__ import annotations

from typing import Any

from durable.listings.shapes import Shape, field
from durable.listings.work import OF_VERB, Count, Hold
from durable.operations import holds


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
