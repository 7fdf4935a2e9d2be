"""Every transition of a run as a call, and rows to start from.

The arguments of the calls differ from what a column is reset to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from durable.core import transitions
from durable.core.errors import ErrorInfo
from durable.core.records import ENDED, Request, RunPatch, RunRecord, RunState
from durable.core.witnesses import FIRST

NOW: Final = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


#: A value for each column that no transition sets it to and that is not its default. `odd_run` makes them fit a state.
ODD: Final[dict[str, Any]] = {
    "id": "run",
    "workflow": "tests.odd",
    "queue": "odd",
    "input": '{"args":[],"kwargs":{}}',
    "created_at": at(-900),
    "state": RunState.PENDING,
    "output": '"odd output"',
    "error": ErrorInfo("OddError", "odd", "odd traceback"),
    "origins": ["odd", "odder"],
    "wake_at": at(-300),
    "waiting_for": "/odd/",
    "summary": "odd",
    "fence": 7,
    "lease_expires_at": at(-1),
    "worker": "odd worker",
    "crashes": 2,
    "change_seq": 11,
    "message_count": 5,
    "pending_request": Request.CANCEL_ROLLBACK,
    "request_reason": "an odd reason",
    "state_after_rollback": RunState.COMPLETED,
    "diverged_at": at(-400),
    "started_at": at(-800),
    "finished_at": at(-200),
    "generations": {"odd": 3},
    "parent_id": "parent",
    "replay_of_id": "original",
    "seed": "odd seed",
    "began_at": at(-1000),
    "carried": '{"odd":1}',
}


def odd_run(state: str, **columns: Any) -> RunRecord:
    """A run in this state with an odd value in each column, as far as the constraints of a row allow it."""
    row = RunRecord(**{**ODD, "state": RunState(state)})
    fitting: dict[str, Any] = {"wake_at": None, "lease_expires_at": None} if state in ENDED else {"finished_at": None}
    return replace(row, **{**fitting, **columns})


def patched(run: RunRecord, patch: RunPatch) -> RunRecord:
    """The row after a transition."""
    return replace(run, **patch)


#: What `columns_of` has for a fence that a transition has raised, by a random step.
RAISED: Final = "raised"


def columns_of(run: RunRecord) -> dict[str, Any]:
    """A row by column, so that a failed comparison names the column. Of a raised fence, that it is raised."""
    columns = {each.name: getattr(run, each.name) for each in fields(run)}
    return columns if run.fence < FIRST else columns | {"fence": RAISED}


ERROR: Final = ErrorInfo("ValueError", "why", "traceback")

#: What a pass writes that pauses its run.
PAUSE: Final = transitions.paused(odd_run(RunState.RUNNING), summary="paused")

#: By transition: its call with a run.
CALLS: Final[dict[str, Callable[[RunRecord], RunPatch]]] = {
    "started": lambda run: transitions.started(at(60)),
    "woken": lambda run: transitions.woken(run, now=NOW),
    "moved": lambda run: transitions.moved(run, wake_at=at(60), input='{"args":[1],"kwargs":{}}'),
    "settled": lambda run: transitions.settled(run, now=NOW),
    "requeued": lambda run: transitions.requeued(run, queue="another", now=NOW),
    "pause_requested": transitions.pause_requested,
    "pause_withdrawn": transitions.pause_withdrawn,
    "paused_at_once": lambda run: transitions.paused_at_once(run, summary="paused"),
    "resumed": lambda run: transitions.resumed(run, now=NOW, summary="resumed"),
    "rollback_resumed": lambda run: transitions.rollback_resumed(run, now=NOW, summary="resumed"),
    "cancel_requested": lambda run: transitions.cancel_requested(run, request=Request.CANCEL, reason="enough"),
    "cancel_handed_over": lambda run: transitions.cancel_handed_over(
        run, now=NOW, reason="enough", summary="to cancel"
    ),
    "cancelled_at_once": lambda run: transitions.cancelled_at_once(run, now=NOW, reason="enough", summary="cancelled"),
    "cancelled_with_rollback": lambda run: transitions.cancelled_with_rollback(
        run, now=NOW, reason="enough", summary="compensating"
    ),
    "recovered": lambda run: transitions.recovered(run, now=NOW, generations={"a": 1}, summary="recovered"),
    "rollback_recovered": lambda run: transitions.rollback_recovered(run, now=NOW, summary="recovered"),
    "replayed": lambda run: transitions.replayed(run, now=NOW, generations={"a": 1}, summary="replayed"),
    "undone_by_parent": lambda run: transitions.undone_by_parent(
        run, now=NOW, reason="its parent is compensated", summary="compensating"
    ),
    "sent_to": lambda run: transitions.sent_to(run, count=2, awaited_since=at(-700)),
    "child_ended": lambda run: transitions.child_ended(run, at=at(-700)),
    "claimed": lambda run: transitions.claimed(run, now=NOW, lease_until=at(30), worker="worker"),
    "renewed": lambda run: transitions.renewed(run, lease_until=at(60)),
    "fence_raised": transitions.fence_raised,
    "released": lambda run: transitions.released(run, now=NOW),
    "given_up": lambda run: transitions.given_up(run, now=NOW),
    "deferred": lambda run: transitions.deferred(run, wake_at=at(90)),
    "progressed": transitions.progressed,
    "parked": lambda run: transitions.parked(run, wake_at=at(120), waiting_for="/q/", summary="waiting"),
    "diverging": lambda run: transitions.diverging(run, since=at(-5), wake_at=at(10), summary="diverged"),
    "handed_over": lambda run: transitions.handed_over(run, now=NOW, summary="handed over"),
    "paused": lambda run: transitions.paused(run, summary="paused"),
    "pause_dropped": lambda run: transitions.pause_dropped(run, PAUSE, now=NOW),
    "cancelled": lambda run: transitions.cancelled(run, now=NOW),
    "completed": lambda run: transitions.completed(run, now=NOW, output='"done"'),
    "failed": lambda run: transitions.failed(run, now=NOW, error=ERROR, origins=["a"]),
    "stopped": lambda run: transitions.stopped(run, now=NOW, error=ERROR, summary="stopped"),
    "crash_limit_reached": lambda run: transitions.crash_limit_reached(run, now=NOW, error=ERROR, summary="crashed"),
    "rollback_begun": lambda run: transitions.rollback_begun(run, error=ERROR, origins=["a"], summary="compensating"),
    "cancel_rollback_begun": lambda run: transitions.cancel_rollback_begun(run, summary="compensating"),
    "rolled_back": lambda run: transitions.rolled_back(run, now=NOW, summary="compensated"),
    "cancel_rolled_back": lambda run: transitions.cancel_rolled_back(run, now=NOW, summary="compensated"),
    "rollback_stopped": lambda run: transitions.rollback_stopped(run, now=NOW, error=ERROR, summary="stopped"),
}


def ends(transition: str) -> bool:
    """Whether the transition ends a run."""
    return set(transitions.TRANSITIONS[transition].values()) <= ENDED


# What belongs to the history of a run, not to its state, and what only verbs and messages write.
_ALWAYS: Final = frozenset({"generations", "input", "message_count", "queue", "started_at"})
# What a pass leaves to claims and verbs.
_BY_CLAIMS: Final = _ALWAYS | {"change_seq", "fence"}
# How a run has ended, and how its compensation will.
_OUTCOME: Final = frozenset({"error", "finished_at", "origins", "output", "state_after_rollback"})
# Who has the run; a run that has ended or is paused has no worker.
_LEASE: Final = frozenset({"fence", "lease_expires_at", "worker"})
_REQUEST: Final = frozenset({"pending_request", "request_reason"})

_LEFT: Final = _BY_CLAIMS | _OUTCOME | _REQUEST | {"crashes"}  # by a pass that parks
_UNBEGUN: Final = (
    _ALWAYS | _OUTCOME | _REQUEST | {"diverged_at", "summary", "waiting_for"}
)  # by a worker without a pass

#: The columns that each transition to another state leaves as they are, on purpose. Such a transition writes a new
#: column, or the column is added here.
KEPT: Final[dict[str, frozenset[str]]] = {
    # the verbs: a wait, a failure and the count of crashes stay in sight while a run is paused
    "paused_at_once": _ALWAYS | _OUTCOME | {"crashes", "diverged_at", "request_reason", "waiting_for"},
    "resumed": _ALWAYS | _OUTCOME | _LEASE | _REQUEST | {"crashes", "waiting_for"},
    "rollback_resumed": _ALWAYS | _OUTCOME | _LEASE | _REQUEST | {"crashes", "waiting_for"},
    "cancel_handed_over": _ALWAYS | _OUTCOME | {"crashes", "diverged_at"},
    "cancelled_at_once": _ALWAYS | _OUTCOME - {"finished_at"} | {"crashes"},
    "cancelled_with_rollback": _ALWAYS | _OUTCOME - {"state_after_rollback"} | {"crashes"},
    # a failed run has no lease, no wait and no output; its fence is raised by the next claim
    "recovered": _ALWAYS - {"generations"} | _LEASE | {"output", "waiting_for"},
    # what is being compensated stays
    "rollback_recovered": _ALWAYS | _LEASE | _OUTCOME - {"finished_at"} | {"request_reason", "waiting_for"},
    "replayed": _ALWAYS - {"generations"},
    # what a completed child has done stays, but for what its handlers undo
    "undone_by_parent": _ALWAYS | _LEASE | {"error", "origins", "output"},
    # the worker: what a claim does not touch, the pass decides
    "claimed": _UNBEGUN - {"started_at"} | {"change_seq"},
    "released": _UNBEGUN | {"change_seq", "crashes", "fence"},
    "deferred": _UNBEGUN | {"crashes", "fence"},
    "given_up": _UNBEGUN | {"crashes"},
    # a pass that parks: the run may still have a request, and an outcome if it is being compensated
    "parked": _LEFT,
    "diverging": _LEFT,
    "handed_over": _LEFT,
    "paused": _LEFT - {"pending_request"} | {"diverged_at"},
    "pause_dropped": _LEFT - {"pending_request"} | {"diverged_at"},
    # the end of a run: the count of crashes and the reason of a cancel stay in sight
    "cancelled": _LEFT - {"finished_at", "pending_request"},
    "completed": _BY_CLAIMS | {"crashes", "request_reason", "state_after_rollback"},
    "failed": _BY_CLAIMS | {"crashes", "output", "request_reason", "state_after_rollback"},
    "stopped": _BY_CLAIMS | {"crashes", "output", "request_reason", "state_after_rollback"},
    "crash_limit_reached": _BY_CLAIMS | {"output", "request_reason", "state_after_rollback"},
    "rolled_back": _BY_CLAIMS | {"crashes", "error", "origins", "output", "request_reason"},
    "cancel_rolled_back": _BY_CLAIMS | {"crashes", "origins", "output", "request_reason"},
    "rollback_stopped": _BY_CLAIMS | {"crashes", "origins", "output", "request_reason", "state_after_rollback"},
    # the beginning of a compensation: the pass goes on, so the worker keeps the run
    "rollback_begun": _BY_CLAIMS | _LEASE | _REQUEST | {"crashes", "finished_at", "output", "wake_at"},
    "cancel_rollback_begun": _BY_CLAIMS
    | _LEASE
    | {"crashes", "error", "finished_at", "origins", "output", "request_reason", "wake_at"},
}
