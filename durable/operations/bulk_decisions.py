"""The decision about a bulk that its canary has stopped: continue with the rest, or stop there.

The bulk's run receives the decision as a message, so that it survives a crash and counts once.
"""

from __future__ import annotations

from typing import Any

from durable import runtime
from durable.core.errors import BulkNotStoppedError
from durable.core.ids import new_id
from durable.core.places import Place, of_message
from durable.core.records import OutgoingMessage, RunRecord
from durable.core.registry import BULK, CANARY, DECISION, is_stopped
from durable.operations.audit import audited
from durable.operations.common import in_async, require_step
from durable.runtime import Runtime


def go_on(run_id: str, *, canary: bool = False) -> None:
    """Continue a bulk that its canary has stopped: apply the verb to the rest of the runs.

    With `canary`, the next runs are tried alone first, as many as before; if they fail, the bulk stops again.

    The actor needs the permission of the bulk's verb too. Raises RunNotFoundError, BulkNotStoppedError,
    OperationDeniedError.
    """
    _decide("go_on", run_id, decision=CANARY if canary else True)


def stop_here(run_id: str) -> None:
    """End a bulk that its canary has stopped, without acting on the rest of the runs. Raises as `go_on` does."""
    _decide("stop_here", run_id, decision=False)


ago_on = in_async(go_on)
astop_here = in_async(stop_here)


def _decide(action: str, run_id: str, *, decision: object) -> None:
    require_step("deciding about a bulk", "decide in a step")
    at = runtime.current()
    with audited(at, action, run_id) as attribution, at.store.transaction():
        run = attribution.lock()
        # With a message in its inbox the run is due, and the decision has been made.
        if not is_stopped(run.workflow, run.state, run.waiting_for) or at.store.inbox(run.id, [DECISION], 1, None):
            raise BulkNotStoppedError(run.id, "taken up again" if run.workflow == BULK else f"a run of {run.workflow}")
        if decision and attribution.acting is not None:
            attribution.acting.check(_verb_of(at, run))
        message_id = new_id()
        detail = "with another canary" if decision == CANARY else ""
        body = at.encode(decision, "a decision", of_message(run.id, "message", message_id, DECISION))
        message = OutgoingMessage(id=message_id, to=run.id, queue=DECISION, body=body, sent_at=at.now())
        _, queues = at.store.send([message])
        at.store.log([attribution.done(before=run.state, after=run.state, detail=detail)])
    if queues:
        at.notify(queues)


def _verb_of(at: Runtime, run: RunRecord) -> str:
    given: Any = at.decode(run.input, Place(run.id, "input"))
    [order] = given["args"]
    return str(order.verb)
