"""The canary of a bulk, and the decision about a bulk that it has stopped: continue with the rest, or stop there.

The canary are the first runs of a bulk, which show whether the verb helps before the bulk applies it to the rest. Must
not apply verbs.

The bulk's run receives the decision as a message, so that it survives a crash and counts once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from durable import runtime
from durable.core.duration import Duration, parse_duration
from durable.core.errors import BulkNotStoppedError
from durable.core.ids import new_id
from durable.core.places import Place, of_message
from durable.core.records import ENDED, OutgoingMessage, RunRecord, RunState
from durable.core.registry import BULK, CANARY, DECISION, is_stopped
from durable.core.summary import Summary, is_held
from durable.operations.audit import audited
from durable.operations.common import in_async, require_step
from durable.runtime import Runtime

MAX_FIRST: Final = 100  # runs
WITHIN: Final = timedelta(minutes=10)
MAX_WITHIN: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The trial of a bulk's verb on the `first` runs alone.

    The bulk waits until each of them has ended, is paused, or waits longer than the canary does. If `stop_after` of
    them have failed by then, or if one of them is still under way after `within` seconds, the bulk stops until an
    operator decides. Raises ValueError.
    """

    first: int = 5
    stop_after: int = 1
    within: float = WITHIN.total_seconds()

    def __post_init__(self) -> None:
        if not 1 <= self.first <= MAX_FIRST:
            raise ValueError(f"the canary of a bulk is 1 to {MAX_FIRST} runs, not {self.first}")
        if not 1 <= self.stop_after <= self.first:
            raise ValueError(
                f"a bulk stops after 1 to {self.first} failures of its first {self.first} runs, not after {self.stop_after}"
            )
        if not 1 <= self.within <= MAX_WITHIN.total_seconds():
            raise ValueError(
                f"the canary of a bulk is given one second to {MAX_WITHIN.days} days, not {self.within:g} s"
            )

    @classmethod
    def of(cls, first: int, stop_after: int | None = None, within: Duration | None = None) -> Canary:
        """Return the canary with these settings; None means the default. `stop_after` is at most `first`."""
        return cls(
            first=first,
            stop_after=1 if stop_after is None else stop_after,
            within=(WITHIN if within is None else parse_duration(within)).total_seconds(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLook:
    """The state of a canary's runs: how many are `failed`, and how many are `open`, that is, under way.

    A run with a step that waits for a person again counts as failed.

    `is_over`: the canary's time has passed.
    """

    failed: int
    open: int
    is_over: bool


def look(run_ids: Sequence[str], until: datetime) -> CanaryLook:
    """Query the state of a canary's runs; `until` is the end of its time.

    A deleted run counts as ended. One query.
    """
    at = runtime.current()
    runs: Collection[RunRecord] = at.store.get_many(run_ids).values()
    now = at.now()
    held = {each.id for each in runs if _is_held(each, now)}
    return CanaryLook(
        failed=sum(each.state == RunState.FAILED or each.id in held for each in runs),
        open=sum(not (each.id in held or _is_stable(each, until)) for each in runs),
        is_over=now >= until,
    )


def _is_held(run: RunRecord, now: datetime) -> bool:
    """Return whether the run waits for a person to settle a step of it, and nobody has settled it since."""
    is_due = run.wake_at is not None and run.wake_at <= now
    return run.state in (RunState.SLEEPING, RunState.ROLLING_BACK) and not is_due and is_held(run.summary)


def _is_stable(run: RunRecord, until: datetime) -> bool:
    """Return whether the run will stay as it is until then, unless an operator acts on it."""
    if run.state in ENDED or run.state == RunState.PAUSED:
        return True
    if run.state != RunState.SLEEPING or run.diverged_at is not None or Summary.load(run.summary).is_trying_again:
        return False
    return run.wake_at is None or run.wake_at > until


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
