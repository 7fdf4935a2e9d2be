"""Which verbs a run's state allows.

For offering and not for deciding: the verb itself decides again, under the run's lock. Which permission each verb needs
is in `durable.operations.audit.PERMISSIONS`.
"""

from __future__ import annotations

from durable.core.records import ENDED, Request, RunState
from durable.models import Run

__all__ = ["possible_verbs"]

_ALIVE = (RunState.PENDING, RunState.SLEEPING, RunState.RUNNING)


def possible_verbs(run: Run) -> tuple[str, ...]:
    """The verbs that make sense for the run as it is, in the order in which an operator wants them."""
    is_asked_to_pause = run.request == Request.PAUSE
    is_compensating = bool(run.outcome) or run.state == RunState.ROLLING_BACK
    possible = {
        "recover": run.state == RunState.FAILED,
        "resume": run.state == RunState.PAUSED or is_asked_to_pause,
        "wake": run.state in (*_ALIVE, RunState.ROLLING_BACK),
        "send": run.state not in ENDED,
        "pause": run.state in (*_ALIVE, RunState.ROLLING_BACK) and not is_asked_to_pause,
        "cancel": run.state in (*_ALIVE, RunState.PAUSED) and not is_compensating,
        "replay": run.started_at is not None,  # whether from a certain step, its plan says
        "restart": True,
    }
    return tuple(verb for verb, is_possible in possible.items() if is_possible)
