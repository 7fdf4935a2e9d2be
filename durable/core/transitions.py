"""The life of a run on one page: its states, the transitions between them, and the columns that each one writes.

Owns what a transition writes to a run's row. A column that a transition has to reset is reset here. The code that
decides that a transition happens (a pass, a verb, a claim) calls its function, which returns a `RunPatch`, and gives
that to the store. Statements that compute a transition in the database have to write the same; a test compares them.
Must not decide whether a transition happens, and must not write.

The diagram. "new" is a run that does not exist yet, "same" the state in which the run was. A test compares the
diagram with `TRANSITIONS`.

    from outside: the verbs

    new                                         --started-->                 pending
    pending, sleeping, running, rolling_back    --woken-->                   same
    pending, paused                             --moved-->                   same
    pending, sleeping, running, paused          --requeued-->                same
    rolling_back                                --requeued-->                same
    running, rolling_back                       --pause_requested-->         same
    pending, sleeping, running, rolling_back    --pause_withdrawn-->         same
    pending, sleeping, running, rolling_back    --paused_at_once-->          paused
    paused                                      --resumed-->                 pending
    paused                                      --rollback_resumed-->        rolling_back
    running                                     --cancel_requested-->        same
    pending, sleeping, running, paused          --cancel_handed_over-->      pending
    pending, sleeping, running, paused          --cancelled_at_once-->       cancelled
    pending, sleeping, running, paused          --cancelled_with_rollback--> rolling_back
    pending, sleeping, running, paused          --settled-->                 same
    rolling_back                                --settled-->                 same
    failed                                      --recovered-->               pending
    failed                                      --rollback_recovered-->      rolling_back
    pending, sleeping, running, paused          --replayed-->                pending
    completed, failed, cancelled                --replayed-->                pending
    completed, failed, cancelled                --undone_by_parent-->        rolling_back
    pending, sleeping, running, paused          --sent_to-->                 same
    rolling_back, completed, failed, cancelled  --sent_to-->                 same

    by a worker, around a pass

    pending, sleeping, running                  --claimed-->                 running
    rolling_back                                --claimed-->                 same
    running, rolling_back                       --renewed-->                 same
    running, rolling_back                       --fence_raised-->            same
    running                                     --released-->                pending
    rolling_back                                --released-->                same
    running                                     --deferred-->                pending
    rolling_back                                --deferred-->                same
    running                                     --given_up-->                pending
    rolling_back                                --given_up-->                same

    by the end of a child

    pending, sleeping, running, paused          --child_ended-->             same
    rolling_back                                --child_ended-->             same

    by a pass

    running, rolling_back                       --progressed-->              same
    running                                     --parked-->                  sleeping
    rolling_back                                --parked-->                  same
    running                                     --diverging-->               sleeping
    rolling_back                                --diverging-->               same
    running                                     --handed_over-->             pending
    rolling_back                                --handed_over-->             same
    running, rolling_back                       --paused-->                  paused
    running                                     --pause_dropped-->           pending
    rolling_back                                --pause_dropped-->           same
    running                                     --cancelled-->               cancelled
    running                                     --completed-->               completed
    running                                     --failed-->                  failed
    running                                     --stopped-->                 failed
    running, rolling_back                       --crash_limit_reached-->     failed
    running                                     --rollback_begun-->          rolling_back
    running                                     --cancel_rollback_begun-->   rolling_back
    rolling_back                                --rolled_back-->             failed
    rolling_back                                --cancel_rolled_back-->      cancelled
    running, rolling_back                       --rollback_stopped-->        failed

A run that is `running` or `rolling_back` has a worker with a live lease, or waits for one: a crashed worker leaves its
run in the state in which it was, due, with a lease that expires. A verb on a run with a live lease only leaves a
request (`pause_requested`, `cancel_requested`), which the pass carries out at its next operation. On any other run the
verb acts at once. An end that needs the code of the workflow's `on_end` is handed over to a worker
(`cancel_handed_over`), where no process with that code makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from durable.core.errors import ErrorInfo, InvalidTransitionError
from durable.core.records import ENDED, MovedPatch, Request, RequeuedPatch, RunPatch, RunRecord, RunState
from durable.core.witnesses import raised

PENDING, RUNNING, SLEEPING, PAUSED = RunState.PENDING, RunState.RUNNING, RunState.SLEEPING, RunState.PAUSED
ROLLING_BACK, COMPLETED = RunState.ROLLING_BACK, RunState.COMPLETED
FAILED, CANCELLED = RunState.FAILED, RunState.CANCELLED

Arrows = Mapping[RunState | None, RunState]


def _to(state: RunState, *states: RunState | None) -> Arrows:
    return dict.fromkeys(states, state)


def _same(*states: RunState) -> Arrows:
    return {state: state for state in states}


#: By transition: the states in which it may start (None: there is no run yet), and the state to which each leads.
TRANSITIONS: Final[Mapping[str, Arrows]] = {
    # from outside: the verbs
    "started": _to(PENDING, None),
    "woken": _same(PENDING, SLEEPING, RUNNING, ROLLING_BACK),
    "moved": _same(PENDING, PAUSED),
    "requeued": _same(PENDING, SLEEPING, RUNNING, PAUSED, ROLLING_BACK),
    "pause_requested": _same(RUNNING, ROLLING_BACK),
    "pause_withdrawn": _same(PENDING, SLEEPING, RUNNING, ROLLING_BACK),
    "paused_at_once": _to(PAUSED, PENDING, SLEEPING, RUNNING, ROLLING_BACK),
    "resumed": _to(PENDING, PAUSED),
    "rollback_resumed": _to(ROLLING_BACK, PAUSED),
    "cancel_requested": _same(RUNNING),
    "cancel_handed_over": _to(PENDING, PENDING, SLEEPING, RUNNING, PAUSED),
    "cancelled_at_once": _to(CANCELLED, PENDING, SLEEPING, RUNNING, PAUSED),
    "cancelled_with_rollback": _to(ROLLING_BACK, PENDING, SLEEPING, RUNNING, PAUSED),
    "settled": _same(PENDING, SLEEPING, RUNNING, PAUSED, ROLLING_BACK),
    "recovered": _to(PENDING, FAILED),
    "rollback_recovered": _to(ROLLING_BACK, FAILED),
    "replayed": _to(PENDING, PENDING, SLEEPING, RUNNING, PAUSED, COMPLETED, FAILED, CANCELLED),
    "undone_by_parent": _to(ROLLING_BACK, COMPLETED, FAILED, CANCELLED),
    "sent_to": _same(*RunState),
    # by a worker, around a pass
    "claimed": {**_to(RUNNING, PENDING, SLEEPING, RUNNING), **_same(ROLLING_BACK)},
    "renewed": _same(RUNNING, ROLLING_BACK),
    "fence_raised": _same(RUNNING, ROLLING_BACK),
    "released": {**_to(PENDING, RUNNING), **_same(ROLLING_BACK)},
    "deferred": {**_to(PENDING, RUNNING), **_same(ROLLING_BACK)},
    "given_up": {**_to(PENDING, RUNNING), **_same(ROLLING_BACK)},
    # by the end of a child
    "child_ended": _same(PENDING, SLEEPING, RUNNING, PAUSED, ROLLING_BACK),
    # by a pass
    "progressed": _same(RUNNING, ROLLING_BACK),
    "parked": {**_to(SLEEPING, RUNNING), **_same(ROLLING_BACK)},
    "diverging": {**_to(SLEEPING, RUNNING), **_same(ROLLING_BACK)},
    "handed_over": {**_to(PENDING, RUNNING), **_same(ROLLING_BACK)},
    "paused": _to(PAUSED, RUNNING, ROLLING_BACK),
    "pause_dropped": {**_to(PENDING, RUNNING), **_same(ROLLING_BACK)},
    "cancelled": _to(CANCELLED, RUNNING),
    "completed": _to(COMPLETED, RUNNING),
    "failed": _to(FAILED, RUNNING),
    "stopped": _to(FAILED, RUNNING),
    "crash_limit_reached": _to(FAILED, RUNNING, ROLLING_BACK),
    "rollback_begun": _to(ROLLING_BACK, RUNNING),
    "cancel_rollback_begun": _to(ROLLING_BACK, RUNNING),
    "rolled_back": _to(FAILED, ROLLING_BACK),
    "cancel_rolled_back": _to(CANCELLED, ROLLING_BACK),
    "rollback_stopped": _to(FAILED, RUNNING, ROLLING_BACK),
}

#: The columns that no transition writes. Any other column of a run is written by at least one.
NEVER_WRITTEN: Final = frozenset(
    {"id", "workflow", "created_at", "parent_id", "replay_of_id", "seed", "began_at", "carried"}
)


def starts_of(*transitions: str) -> tuple[RunState, ...]:
    """Return the states in which at least one of the transitions may start, in the order of the table."""
    states = (state for name in transitions for state in TRANSITIONS[name])
    return tuple(dict.fromkeys(state for state in states if state is not None))


#: The states of a run in which each verb is allowed. A pause that a running run has not reached yet can be resumed too.
ALLOWED: Final[Mapping[str, tuple[RunState, ...]]] = {
    "wake": starts_of("woken"),
    "move": starts_of("requeued"),
    "pause": starts_of("paused_at_once", "pause_requested"),
    "resume": starts_of("resumed", "rollback_resumed"),
    "cancel": starts_of("cancelled_at_once", "cancelled_with_rollback", "cancel_requested"),
    "recover": starts_of("recovered", "rollback_recovered"),
    "settle": starts_of("settled"),
}


# -- what several transitions write alike


def _led(run: RunRecord, transition: str) -> RunState:
    """Return the state to which the transition leads. Raises InvalidTransitionError if the transition may not start."""
    arrows = TRANSITIONS[transition]
    state = arrows.get(RunState(run.state))
    if state is None:
        problem = (
            f'run "{run.id}" is {run.state}, in which the transition "{transition}" may not start; '
            f"it starts in {', '.join(starts_of(transition))}"
        )
        raise InvalidTransitionError(run.state, starts_of(transition), transition, run.id, problem=problem)
    return state


def _noticed(run: RunRecord, transition: str) -> RunPatch:
    """Return what each verb writes: the state, and a higher `change_seq`, so that a pass that parks notices it."""
    return {"state": _led(run, transition), "change_seq": run.change_seq + 1}


def _taken_away(run: RunRecord, transition: str) -> RunPatch:
    """Return what a verb that acts at once writes. Afterwards a worker whose lease has expired cannot write the run."""
    return {
        **_noticed(run, transition),
        "fence": run.fence + 1,
        "worker": "",
        "lease_expires_at": None,
        "pending_request": Request.NONE,
    }


def _left(run: RunRecord, transition: str, summary: str) -> RunPatch:
    """Return what the end of each pass writes: no worker has the run, and it waits for no message."""
    return {
        "state": _led(run, transition),
        "worker": "",
        "lease_expires_at": None,
        "waiting_for": "",
        "summary": summary,
    }


def _ended(now: datetime) -> RunPatch:
    """Return what the end of each run writes: the run is never due, and no request is pending."""
    return {"wake_at": None, "finished_at": now, "pending_request": Request.NONE, "diverged_at": None}


def _compensating(state_after: RunState, summary: str) -> RunPatch:
    """Return what the beginning of each compensation writes: the run waits for no message and has a new grace
    period.
    """
    return {"state_after_rollback": state_after, "waiting_for": "", "diverged_at": None, "summary": summary}


def _reopened(run: RunRecord, transition: str, now: datetime, summary: str) -> RunPatch:
    """Return what each verb that reopens an ended run writes: it is due, and earlier crashes and divergences no longer
    count.
    """
    return {
        **_noticed(run, transition),
        "wake_at": now,
        "finished_at": None,
        "pending_request": Request.NONE,
        "crashes": 0,
        "diverged_at": None,
        "summary": summary,
    }


def _earliest(first: datetime | None, *others: datetime) -> datetime:
    return min(others if first is None else (first, *others))


# -- from outside: the verbs


def started(wake_at: datetime) -> RunPatch:
    """The creation of a run, due at `wake_at`. Its other columns have the defaults of `RunRecord`."""
    return {"state": PENDING, "wake_at": wake_at}


def woken(run: RunRecord, *, now: datetime) -> RunPatch:
    """A wake: the run is due now."""
    return {**_noticed(run, "woken"), "wake_at": now}


def settled(run: RunRecord, *, now: datetime) -> RunPatch:
    """A held step is settled, or tried again: the run is due now, unless it is paused."""
    patch = _noticed(run, "settled")
    return patch if run.state == PAUSED else {**patch, "wake_at": now}


def moved(run: RunRecord, *, wake_at: datetime, input: str | None) -> MovedPatch:
    """A later start under the key of a run that has not begun: the run is due later, with that start's input if it is
    given.
    """
    patch: MovedPatch = {"state": _led(run, "moved"), "change_seq": run.change_seq + 1}
    if run.state != PAUSED:
        patch["wake_at"] = wake_at
    if input is not None:
        patch["input"] = input
    return patch


def requeued(run: RunRecord, *, queue: str, now: datetime) -> RequeuedPatch:
    """A move to another queue.

    A due run becomes due in the new queue now, so that claims there do not overtake others. A worker that has the run
    keeps its lease: no pass looks at the queue.
    """
    patch: RequeuedPatch = {**_noticed(run, "requeued"), "queue": queue}
    if run.wake_at is not None and run.wake_at < now:
        patch["wake_at"] = now
    return patch


def pause_requested(run: RunRecord) -> RunPatch:
    """A pause of a run that a worker has: a request to that worker."""
    return {**_noticed(run, "pause_requested"), "pending_request": Request.PAUSE}


def pause_withdrawn(run: RunRecord) -> RunPatch:
    """The withdrawal of a pause that no worker has carried out yet."""
    return {**_noticed(run, "pause_withdrawn"), "pending_request": Request.NONE}


def paused_at_once(run: RunRecord, *, summary: str) -> RunPatch:
    """A pause of a run that no worker has. `waiting_for` stays: pages show it."""
    return {**_taken_away(run, "paused_at_once"), "wake_at": None, "summary": summary}


def resumed(run: RunRecord, *, now: datetime, summary: str) -> RunPatch:
    """A resume. A divergence has a new grace period."""
    return {**_noticed(run, "resumed"), "wake_at": now, "diverged_at": None, "summary": summary}


def rollback_resumed(run: RunRecord, *, now: datetime, summary: str) -> RunPatch:
    """A resume of a run that was paused during its compensation."""
    return {**_noticed(run, "rollback_resumed"), "wake_at": now, "diverged_at": None, "summary": summary}


def cancel_requested(run: RunRecord, *, request: str, reason: str) -> RunPatch:
    """A cancel of a run that a worker has, with or without its rollback: a request to that worker."""
    return {**_noticed(run, "cancel_requested"), "pending_request": request, "request_reason": reason}


def cancel_handed_over(run: RunRecord, *, now: datetime, reason: str, summary: str) -> RunPatch:
    """A cancel of a run that no worker has, and whose end another process has to make: a request to the next worker.

    The run is due, even if it was paused.
    """
    return {
        **_taken_away(run, "cancel_handed_over"),
        "pending_request": Request.CANCEL,
        "request_reason": reason,
        "wake_at": now,
        "waiting_for": "",
        "summary": summary,
    }


def cancelled_at_once(run: RunRecord, *, now: datetime, reason: str, summary: str) -> RunPatch:
    """A cancel of a run that no worker has."""
    return {
        **_taken_away(run, "cancelled_at_once"),
        **_ended(now),
        "waiting_for": "",
        "request_reason": reason,
        "summary": summary,
    }


def cancelled_with_rollback(run: RunRecord, *, now: datetime, reason: str, summary: str) -> RunPatch:
    """A cancel, with its rollback, of a run that no worker has."""
    return {
        **_taken_away(run, "cancelled_with_rollback"),
        **_compensating(CANCELLED, summary),
        "wake_at": now,
        "request_reason": reason,
    }


def recovered(run: RunRecord, *, now: datetime, generations: dict[str, int], summary: str) -> RunPatch:
    """A recovery of a failed run.

    Nothing of its failure, or of a cancel whose compensation failed, stays in the row.
    """
    return {
        **_reopened(run, "recovered", now, summary),
        "error": None,
        "origins": [],
        "state_after_rollback": "",
        "request_reason": "",
        "generations": generations,
    }


def rollback_recovered(run: RunRecord, *, now: datetime, summary: str) -> RunPatch:
    """A recovery of a run whose compensation has stopped. The failure that is being compensated stays in the row."""
    return _reopened(run, "rollback_recovered", now, summary)


def replayed(run: RunRecord, *, now: datetime, generations: dict[str, int], summary: str) -> RunPatch:
    """A replay in place. Nothing of the run's end stays in the row."""
    return {
        **_reopened(run, "replayed", now, summary),
        "fence": run.fence + 1,
        "worker": "",
        "lease_expires_at": None,
        "waiting_for": "",
        "output": None,
        "error": None,
        "origins": [],
        "state_after_rollback": "",
        "request_reason": "",
        "generations": generations,
    }


def undone_by_parent(run: RunRecord, *, now: datetime, reason: str, summary: str) -> RunPatch:
    """The compensation of an ended child whose parent is compensated. Its output stays, and shows that it had
    completed.
    """
    return {
        **_reopened(run, "undone_by_parent", now, summary),
        **_compensating(CANCELLED, summary),
        "request_reason": reason,
    }


def sent_to(run: RunRecord, *, count: int, awaited_since: datetime | None, is_noticed: bool = True) -> RunPatch:
    """The arrival of `count` messages in the run's inbox.

    `awaited_since`: when the first of them was sent for which the run waits; None if there is none. `is_noticed` is
    False for the messages of a run to itself, of which its pass knows.
    """
    patch: RunPatch = {
        "state": _led(run, "sent_to"),
        "message_count": run.message_count + count,
        "change_seq": run.change_seq + count * is_noticed,
    }
    if awaited_since is not None and run.state not in ENDED:
        patch["wake_at"] = _earliest(run.wake_at, awaited_since)
    return patch


# -- by a worker, around a pass


def claimed(run: RunRecord, *, now: datetime, lease_until: datetime, worker: str, drawn: int | None = None) -> RunPatch:
    """A claim by a worker. The run stays due, so that another worker finds it when the lease expires.

    `drawn` is the random part of the fence, if it was drawn for several runs at once (`durable.core.witnesses`).
    """
    return {
        "state": _led(run, "claimed"),
        "fence": raised(run.fence, drawn),
        "crashes": run.crashes + (run.lease_expires_at is not None),
        "lease_expires_at": lease_until,
        "worker": worker,
        "started_at": run.started_at or now,
        "wake_at": _earliest(run.wake_at, now),
    }


def renewed(run: RunRecord, *, lease_until: datetime) -> RunPatch:
    """A renewal of the lease by its worker."""
    return {"state": _led(run, "renewed"), "lease_expires_at": lease_until}


def fence_raised(run: RunRecord) -> RunPatch:
    """A higher fence for the same worker.

    A commit whose result the worker does not know can no longer happen afterwards.
    """
    return {"state": _led(run, "fence_raised"), "fence": raised(run.fence), "change_seq": run.change_seq}


def released(run: RunRecord, *, now: datetime) -> RunPatch:
    """A release by a worker that has not begun the pass: the run is due. The count of crashes stays."""
    return {
        "state": _led(run, "released"),
        "worker": "",
        "lease_expires_at": None,
        "wake_at": _earliest(run.wake_at, now),
    }


def given_up(run: RunRecord, *, now: datetime) -> RunPatch:
    """A release by a worker that cannot interrupt a step that an operator has abandoned: it may not write the run any
    more.
    """
    return {
        "state": _led(run, "given_up"),
        "fence": run.fence + 1,
        "worker": "",
        "lease_expires_at": None,
        "wake_at": _earliest(run.wake_at, now),
        "change_seq": run.change_seq,
    }


def deferred(run: RunRecord, *, wake_at: datetime) -> RunPatch:
    """A release by a worker that has not begun the pass: the run is due at `wake_at`."""
    return {
        "state": _led(run, "deferred"),
        "worker": "",
        "lease_expires_at": None,
        "wake_at": wake_at,
        "change_seq": run.change_seq,
    }


# -- by the end of a child


def child_ended(run: RunRecord, *, at: datetime) -> RunPatch:
    """The end of a child that the run waits for: the run is due from that moment."""
    return {"state": _led(run, "child_ended"), "wake_at": _earliest(run.wake_at, at)}


# -- by a pass


def progressed(run: RunRecord) -> RunPatch:
    """The first commit of a pass, which ends a series of crashes."""
    _led(run, "progressed")
    return {"crashes": 0}


def parked(run: RunRecord, *, wake_at: datetime | None, waiting_for: str, summary: str) -> RunPatch:
    """A park: the run waits for a time, a message, or both. Its code fits the history."""
    return {
        **_left(run, "parked", summary),
        "wake_at": wake_at,
        "waiting_for": waiting_for,
        "diverged_at": None,
    }


def diverging(run: RunRecord, *, since: datetime, wake_at: datetime | None, summary: str) -> RunPatch:
    """A park until a worker has other code: this one does not fit, has a mistake, or lacks the workflow.

    So does a run whose end the workflow's `on_end` has refused.
    """
    return {**_left(run, "diverging", summary), "wake_at": wake_at, "diverged_at": since}


def handed_over(run: RunRecord, *, now: datetime, summary: str) -> RunPatch:
    """The end of an evicted pass: the run is due for another worker.

    The code fitted as far as the pass came, so a later divergence has a new grace period.
    """
    return {**_left(run, "handed_over", summary), "wake_at": now, "diverged_at": None}


def paused(run: RunRecord, *, summary: str) -> RunPatch:
    """A requested pause, carried out by the pass."""
    return {**_left(run, "paused", summary), "wake_at": None, "pending_request": Request.NONE}


def pause_dropped(run: RunRecord, pause: RunPatch, *, now: datetime) -> RunPatch:
    """The end of a pass that was to pause, when the pause was meanwhile withdrawn or replaced by another request: the
    run is due.
    """
    return {
        **pause,
        "state": _led(run, "pause_dropped"),
        "pending_request": run.pending_request,
        "summary": "",
        "wake_at": now,
    }


def cancelled(run: RunRecord, *, now: datetime) -> RunPatch:
    """A requested cancel, carried out by the pass."""
    return {**_left(run, "cancelled", ""), **_ended(now)}


def completed(run: RunRecord, *, now: datetime, output: str) -> RunPatch:
    """The end of a run whose code returned."""
    return {**_left(run, "completed", ""), **_ended(now), "output": output, "error": None, "origins": []}


def failed(run: RunRecord, *, now: datetime, error: ErrorInfo, origins: Iterable[str] = ()) -> RunPatch:
    """The end of a run whose code raised, or diverged beyond the grace period; nothing is compensated."""
    return {**_left(run, "failed", ""), **_ended(now), "error": error, "origins": list(origins)}


def stopped(run: RunRecord, *, now: datetime, error: ErrorInfo, summary: str, origins: Iterable[str] = ()) -> RunPatch:
    """The end of a run whose code has a mistake beyond the grace period, or has broken a rule of durable.

    `diverged_at` stays: it marks such a run.
    """
    return {
        **_left(run, "stopped", summary),
        **_ended(now),
        "error": error,
        "origins": list(origins),
        "diverged_at": run.diverged_at or now,
    }


def crash_limit_reached(run: RunRecord, *, now: datetime, error: ErrorInfo, summary: str) -> RunPatch:
    """The end of a run that has crashed too many workers in a row; nothing is compensated.

    The count stays, because operators have to see it. It is written, because the first commit of a pass resets it.
    """
    patch: RunPatch = {**_left(run, "crash_limit_reached", summary), **_ended(now), "crashes": run.crashes}
    if run.state == ROLLING_BACK:  # the failure that it is about stays in the row
        return {**patch, "error": run.error or error}
    return {**patch, "error": error, "origins": []}


def rollback_begun(run: RunRecord, *, error: ErrorInfo, origins: Iterable[str], summary: str) -> RunPatch:
    """The beginning of a compensation because the code raised.

    A request that has arrived meanwhile stays: the compensation carries out a pause.
    """
    return {
        "state": _led(run, "rollback_begun"),
        **_compensating(FAILED, summary),
        "error": error,
        "origins": list(origins),
    }


def cancel_rollback_begun(run: RunRecord, *, summary: str) -> RunPatch:
    """The beginning of a compensation that a requested cancel asks for."""
    return {
        "state": _led(run, "cancel_rollback_begun"),
        **_compensating(CANCELLED, summary),
        "pending_request": Request.NONE,
    }


def rolled_back(run: RunRecord, *, now: datetime, summary: str) -> RunPatch:
    """The end of the compensation of a failed run. Its error stays."""
    return {**_left(run, "rolled_back", summary), **_ended(now), "state_after_rollback": ""}


def cancel_rolled_back(run: RunRecord, *, now: datetime, summary: str) -> RunPatch:
    """The end of the compensation of a cancelled run."""
    return {**_left(run, "cancel_rolled_back", summary), **_ended(now), "error": None, "state_after_rollback": ""}


def rollback_stopped(run: RunRecord, *, now: datetime, error: ErrorInfo, summary: str) -> RunPatch:
    """The end of a compensation that cannot continue. `state_after_rollback` stays, so that a recovery continues it."""
    return {**_left(run, "rollback_stopped", summary), **_ended(now), "error": run.error or error}
