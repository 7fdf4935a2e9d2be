"""The times of a run's work: attempts, backoff, sleeps and waits on lanes, one lane for each branch.

Built from the nodes of one page of the history, and never from more than `MOST` shapes. Positions are fractions of the
whole, from 0 to 1; the surface decides how to draw them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from durable.conf import conf
from durable.core.location import display_location
from durable.core.records import EntryKind, EntryStatus, RunState
from durable.inspection.humanize import shortened
from durable.inspection.tree import TreeNode
from durable.models import Attempt, OperatorAction, Run

__all__ = ["MOST", "Lane", "Shape", "Timeline", "build_timeline"]

MOST: Final = 400  # shapes
_MOST_LANES = 24
_MOST_MARKS: Final = 50
_AT_ONCE: Final = timedelta(seconds=1)  # between an operator's cancel and the end of the run
_DONE: Final = {
    "recover": "recovered",
    "wake": "woken",
    "pause": "paused",
    "resume": "resumed",
    "cancel": "cancelled",
    "replay": "replayed",
    "send": "sent a message",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A span of time. `kind`: attempt, failed, backoff, sleep, wait, rollback or "rollback failed".

    `ends_at` is None if it has not ended.
    """

    kind: str
    location: str
    title: str
    begins_at: datetime
    ends_at: datetime | None
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What an operator did to the run: "recovered by ada: the bank is back". `position` is like that of a shape."""

    title: str
    at: datetime
    position: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A sequence of shapes: those of one branch, or of the run's own code."""

    title: str
    shapes: Sequence[Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The lanes of a run, the failing ones first; `left_out` is the number of shapes that were too many to be drawn."""

    begins_at: datetime
    ends_at: datetime
    lanes: Sequence[Lane]
    marks: Sequence[Mark] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Span:
    kind: str
    node: TreeNode
    begins_at: datetime
    ends_at: datetime | None


def build_timeline(run: Run, nodes: Sequence[TreeNode], now: datetime) -> Timeline:
    """Return the shapes of these nodes of the run's history; two statements, for failed attempts and for operators."""
    attempts: dict[str, list[Attempt]] = {}
    retried = [node.location for node in nodes if node.failed_attempts]
    found = Attempt.objects.using(conf.DATABASE).filter(run=run, location__in=retried).defer("error").order_by("-id")
    for attempt in found[:MOST]:
        attempts.setdefault(attempt.location, []).append(attempt)
    kinds = {node.location: node.kind for node in nodes}
    spans = [span for node in nodes for span in _spans(node, attempts.get(node.location, [])[::-1])]
    if run.state == RunState.FAILED and run.finished_at is not None:
        spans += [
            _Span("rollback failed", node, run.finished_at, run.finished_at) for node in nodes if node.is_not_undone
        ]
    actions = _actions(run, now)
    begins_at = min((span.begins_at for span in spans), default=run.created_at)
    ends_at = max((span.ends_at or run.finished_at or now for span in spans), default=run.finished_at or now)
    ends_at = max([ends_at, *(each.created_at for each in actions)])
    begins_at = min([begins_at, *(each.created_at for each in actions)])
    found_in: dict[str, list[_Span]] = {}
    for span in sorted(spans, key=_is_in_failed)[-MOST:]:  # what failed is drawn in any case
        found_in.setdefault(_lane(span.node.location, kinds), []).append(span)
    lanes: dict[str, list[Shape]] = {}
    left_out = max(0, len(spans) - MOST)
    order = {_lane(span.node.location, kinds): number for number, span in reversed(list(enumerate(spans)))}
    for name in sorted(found_in, key=lambda each: (-max(map(_gravity, found_in[each])), order[each])):
        if len(lanes) >= _MOST_LANES:
            left_out += len(found_in[name])
            continue
        chosen = sorted(found_in[name], key=lambda span: span.begins_at)
        lanes[name] = [_shape(span, begins_at, ends_at) for span in chosen]
    return Timeline(
        begins_at=begins_at,
        ends_at=ends_at,
        lanes=[Lane(title=name, shapes=shapes) for name, shapes in lanes.items()],
        marks=[_mark(each, begins_at, ends_at) for each in actions],
        left_out=left_out,
    )


def _gravity(span: _Span) -> int:
    """Return how soon an operator looks for the span's lane: 2 for a failure that stands, 1 for one that was mended."""
    return 2 if span.node.needs_attention else int(span.kind == "failed")


def _is_in_failed(span: _Span) -> bool:
    return span.node.needs_attention


def _spans(node: TreeNode, failed: Sequence[Attempt]) -> Iterator[_Span]:
    if node.entry is None:
        return
    metadata = node.entry.metadata
    if node.kind == EntryKind.STEP:
        yield from _attempts(node, failed)
        if metadata.rollback_completed_at is not None:
            yield _Span("rollback", node, metadata.rollback_completed_at, metadata.rollback_completed_at)
    elif node.kind == EntryKind.COMPENSATE:
        yield _Span("rollback", node, metadata.created_at, metadata.completed_at)
    elif node.kind in (EntryKind.SLEEP, EntryKind.MESSAGE):
        kind = "sleep" if node.kind == EntryKind.SLEEP else "wait"
        yield _Span(kind, node, metadata.created_at, metadata.completed_at)


def _attempts(node: TreeNode, failed: Iterable[Attempt]) -> Iterator[_Span]:
    assert node.entry is not None
    metadata = node.entry.metadata
    last_end: datetime | None = None
    for attempt in failed:
        if last_end is not None and attempt.started_at > last_end:
            yield _Span("backoff", node, last_end, attempt.started_at)
        yield _Span("failed", node, attempt.started_at, attempt.finished_at)
        last_end = attempt.finished_at
    if metadata.status in (EntryStatus.COMPLETED, EntryStatus.RUNNING):
        began = metadata.last_attempt_at or metadata.created_at
        if last_end is not None and began > last_end:
            yield _Span("backoff", node, last_end, began)
        yield _Span("attempt", node, began, metadata.completed_at)
    elif metadata.status == EntryStatus.FAILED and last_end is not None:
        yield _Span("backoff", node, last_end, metadata.next_attempt_at)


def _actions(run: Run, now: datetime) -> list[OperatorAction]:
    """Return what operators did to the run before its end, in order."""
    found = OperatorAction.objects.using(conf.DATABASE).filter(run_id=run.id, outcome="done", action__in=_DONE)
    before = (run.finished_at or now) + _AT_ONCE
    return list(found.filter(created_at__lte=before).order_by("created_at", "id")[:_MOST_MARKS])


def _mark(action: OperatorAction, begins_at: datetime, ends_at: datetime) -> Mark:
    who = action.actor_label or action.source
    title = f"{_DONE[action.action]} by {who}" + (f": {shortened(action.reason)}" if action.reason else "")
    return Mark(title=title, at=action.created_at, position=_share(action.created_at, begins_at, ends_at))


def _lane(location: str, kinds: dict[str, str]) -> str:
    """Return the innermost branch that contains the location, "" for the run's own code."""
    segments = location.split("/")
    for depth in range(len(segments) - 1, 0, -1):
        around = "/".join(segments[:depth])
        if kinds.get(around) == "branch" or kinds.get("/".join(segments[: depth - 1])) in (
            EntryKind.JOIN,
            EntryKind.RACE,
        ):
            return display_location(around)
    return ""


def _shape(span: _Span, begins_at: datetime, ends_at: datetime) -> Shape:
    return Shape(
        kind=span.kind,
        location=span.node.location,
        title=display_location(span.node.location),
        begins_at=span.begins_at,
        ends_at=span.ends_at,
        start=_share(span.begins_at, begins_at, ends_at),
        end=_share(span.ends_at or ends_at, begins_at, ends_at),
    )


def _share(moment: datetime, begins_at: datetime, ends_at: datetime) -> float:
    """Return where the moment is between the two, from 0 to 1."""
    whole = (ends_at - begins_at).total_seconds() or 1.0
    return min(1.0, max(0.0, (moment - begins_at).total_seconds() / whole))
