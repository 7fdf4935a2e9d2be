"""The verbs that a run's state allows.

For display, not for decisions: the verb itself decides again, under the run's lock.
`durable.operations.audit.PERMISSIONS` has the permission that each verb needs.
"""

from __future__ import annotations

from durable.core.bulk_runs import is_stopped
from durable.core.records import ENDED, Request, RunState
from durable.models import Run

_INTERNAL = "durable."  # workflows of durable itself, such as a bulk operation
_WITH_WORKER = (RunState.RUNNING, RunState.ROLLING_BACK)
_ALIVE = (RunState.PENDING, RunState.SLEEPING, RunState.RUNNING)


def possible_verbs(run: Run) -> tuple[str, ...]:
    """Return the verbs that fit the run's current state, in the order in which an operator is likely to want them."""
    is_asked_to_pause = run.pending_request == Request.PAUSE
    is_asked_to_cancel = run.pending_request in (Request.CANCEL, Request.CANCEL_ROLLBACK)
    is_internal = run.workflow.startswith(_INTERNAL)
    is_stopped_bulk = is_stopped(run.workflow, run.state, run.waiting_for)
    is_compensating = bool(run.state_after_rollback) or run.state == RunState.ROLLING_BACK
    possible = {
        "go_on": is_stopped_bulk,
        "stop_here": is_stopped_bulk,
        "recover": run.state == RunState.FAILED,
        "resume": run.state == RunState.PAUSED or is_asked_to_pause,
        "wake": run.state in (*_ALIVE, RunState.ROLLING_BACK),
        "send": run.state not in ENDED and not is_internal,
        "pause": run.state in (*_ALIVE, RunState.ROLLING_BACK) and not is_asked_to_pause,
        "cancel": run.state in (*_ALIVE, RunState.PAUSED) and not is_compensating and not is_asked_to_cancel,
        "abandon": run.state in _WITH_WORKER
        and run.lease_expires_at is not None,  # the activities say whether a step runs
        "replay": run.started_at is not None
        and not is_internal,  # the plan says whether a replay from a certain step is possible
        "restart": not is_internal,
    }
    return tuple(verb for verb, is_possible in possible.items() if is_possible)
