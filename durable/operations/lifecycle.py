"""The verbs that steer a run: each is one change, decided and made under the run's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from durable import runtime
from durable.core import transitions
from durable.core.errors import InvalidTransitionError
from durable.core.ids import check_reason
from durable.core.names.renames import names_of_queue
from durable.core.outcomes import may_need_undoing
from durable.core.records import (
    WITH_WORKER,
    EntryKind,
    EntryRecord,
    EntryStatus,
    Request,
    RunChange,
    RunRecord,
    RunState,
    is_leased,
)
from durable.core.summary import Summary, SummaryKind
from durable.core.transitions import ALLOWED
from durable.core.words import Sentence, gettext_noop
from durable.operations import audit
from durable.operations.audit import audited
from durable.operations.common import announce, announce_parent, check_served, check_state, send_run_changed
from durable.operations.settle import tried_again
from durable.runtime import Runtime
from durable.store.recovery import Decide, recover_with_children

__all__ = ["abandon", "cancel", "move", "pause", "recover", "resume", "take_stack", "wake"]

_SUMMARY = 200  # characters of a reason that lists show


def wake(run_id: str, *, end_sleeps: bool = False) -> None:
    """Make the run due now and retry steps in backoff at once; with `end_sleeps`, end its sleeps too."""

    def decide(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
        check_state(run, "wake", ALLOWED["wake"])
        now = at.now()
        changed = [woken for each in entries() if (woken := _woken(each, end_sleeps, now))]
        return RunChange(run=transitions.woken(run, now=now), entries=changed)

    at = runtime.current()
    _changed(at, "wake", run_id, decide)


def _woken(entry: EntryRecord, end_sleeps: bool, now: datetime) -> EntryRecord | None:
    is_waiting = entry.kind == EntryKind.STEP and entry.status in (EntryStatus.FAILED, EntryStatus.UNKNOWN)
    if is_waiting and entry.next_attempt_at is not None:
        return replace(entry, next_attempt_at=None)
    if entry.is_compensable and entry.data["rollback"].get("retry_at"):
        return replace(entry, data={**entry.data, "rollback": {**entry.data["rollback"], "retry_at": None}})
    if end_sleeps and entry.kind == EntryKind.SLEEP and entry.data.get("state") == "pending":
        return replace(
            entry, status=EntryStatus.COMPLETED, completed_at=now, data={**entry.data, "state": "interrupted"}
        )
    return None


def move(run_id: str, *, queue: str) -> None:
    """Move the run to another queue, whose workers claim it from now on. A worker that has it finishes its pass.

    Its children stay in their queues. Raises ValueError for a queue that no worker can serve, and
    InvalidTransitionError if the run has ended or is in that queue.
    """

    def decide(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        check_state(run, "move", ALLOWED["move"])
        check_served(queue)
        if queue in names_of_queue(run.queue):
            problem = Sentence(gettext_noop('run "{run}" is in the queue "{queue}" already'), run=run.id, queue=queue)
            raise InvalidTransitionError(run.state, ALLOWED["move"], "move", run.id, problem=problem)
        left = f"; worker {run.worker} goes on to its next park" if is_leased(run, at.now()) else ""
        told.append(f'from the queue "{run.queue}" to "{queue}"{left}')
        return RunChange(run=transitions.requeued(run, queue=queue, now=at.now()))

    at = runtime.current()
    told: list[str] = []
    _changed(at, "move", run_id, decide, detail=lambda: told[0])


def pause(run_id: str) -> None:
    """Pause the run until it is resumed: a parked run at once, a running one at its next operation."""

    def decide(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        check_state(run, "pause", ALLOWED["pause"])
        _check_not_being_cancelled(run, "pause")
        if is_leased(run, at.now()):
            return RunChange(run=transitions.pause_requested(run))
        return RunChange(run=transitions.paused_at_once(run, summary=Summary(SummaryKind.PAUSED)))

    at = runtime.current()
    _changed(at, "pause", run_id, decide)


def resume(run_id: str) -> None:
    """Continue a paused run, or withdraw a pause that a running run has not reached yet."""

    def decide(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        if run.pending_request == Request.PAUSE:
            return RunChange(run=transitions.pause_withdrawn(run))
        check_state(run, "resume", ALLOWED["resume"])
        resumed = transitions.rollback_resumed if run.state_after_rollback else transitions.resumed
        return RunChange(run=resumed(run, now=at.now(), summary=Summary(SummaryKind.RESUMED)))

    at = runtime.current()
    _changed(at, "resume", run_id, decide)


def cancel(run_id: str, *, reason: str = "", rollback: bool = False, interrupt: bool = False) -> None:
    """Cancel the run for good: a parked run at once, a running one at its next operation; with `rollback`, compensate.

    With `interrupt`, the attempts of steps that run are abandoned, so that the next operation comes soon. Without a
    `reason` argument, the acting operator's reason is recorded with the run.

    An end at once calls the `on_end` of the workflow. A process that does not have its code leaves the end to a worker.
    Raises EndRefusedError if the function fails.
    """
    from durable.store.ends import hands_over  # what ends runs: processes that end none do without

    check_reason(reason)

    def decide(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
        check_state(run, "cancel", ALLOWED["cancel"])
        now = at.now()
        if run.state_after_rollback:  # paused during its compensation
            raise InvalidTransitionError(RunState.ROLLING_BACK, ALLOWED["cancel"], "cancel", run.id)
        request = Request.CANCEL_ROLLBACK if rollback else Request.CANCEL
        _check_not_being_cancelled(run, "cancel", unless=request)
        if is_leased(run, at.now()):
            if interrupt:
                abandoned.extend(at.store.ask_activities(run, "", now, abandon=True))
            return RunChange(run=transitions.cancel_requested(run, request=request, reason=reason))
        if rollback and any(map(may_need_undoing, entries())):
            summary = Summary(SummaryKind.COMPENSATING)
            patch = transitions.cancelled_with_rollback(run, now=now, reason=reason, summary=summary)
        elif hands_over(at.store, run.workflow):
            summary = Summary(SummaryKind.CANCELLING, reason=reason[:_SUMMARY])
            patch = transitions.cancel_handed_over(run, now=now, reason=reason, summary=summary)
        else:
            ended = Summary(SummaryKind.CANCELLED, reason=reason[:_SUMMARY]) if reason else ""
            patch = transitions.cancelled_at_once(run, now=now, reason=reason, summary=ended)
        return RunChange(run=patch)

    at = runtime.current()
    reason = reason or audit.reason()
    abandoned: list[str] = []
    _changed(at, "cancel", run_id, decide, reason=reason, detail=lambda: _abandoned(abandoned))


def abandon(run_id: str, *, location: str = "") -> None:
    """Abandon the running attempt at `location`, or all running attempts: the worker interrupts it as its timeout
    would.

    The attempt then counts as failed with AttemptAbandonedError, and the step's policy decides about the next one. If
    the function cannot be interrupted, the worker gives the run up after ten seconds, and can record nothing more of
    it. Raises InvalidTransitionError if no step has run for more than a second.
    """
    _ask(run_id, "abandon", location, abandon=True)


def take_stack(run_id: str, *, location: str = "") -> None:
    """Ask the run's worker for the stack of the step running at `location`, or of all running steps.

    It answers within a few seconds (`durable.inspection.activities.read_stack`). Raises InvalidTransitionError if no
    step has run for more than a second.
    """
    _ask(run_id, "take_stack", location, stack=True)


def _ask(run_id: str, action: str, location: str, *, stack: bool = False, abandon: bool = False) -> None:
    def decide(run: RunRecord, _entries: Callable[[], list[EntryRecord]]) -> RunChange:
        check_state(run, action, WITH_WORKER)
        if is_leased(run, at.now()):
            asked.extend(at.store.ask_activities(run, location, at.now(), stack=stack, abandon=abandon))
        if not asked:
            text = (
                gettext_noop(
                    'no step of run "{run}" has run at "{place}" for more than a second: it has ended, or its worker is gone; '
                    "look at the run again"
                )
                if location
                else gettext_noop(
                    'no step of run "{run}" has run for more than a second: it has ended, or its worker is gone; look at the '
                    "run again"
                )
            )
            problem = Sentence(text, run=run.id, place=location[:_SUMMARY])
            raise InvalidTransitionError(run.state, WITH_WORKER, action, run.id, problem=problem)
        return RunChange(run={"change_seq": run.change_seq})

    at = runtime.current()
    asked: list[str] = []
    _changed(at, action, run_id, decide, detail=lambda: ", ".join(asked))


def recover(run_id: str) -> None:
    """Continue a failed run: the failed operation is tried again, and compensated steps are executed again. Of an open
    run, try the held steps again; `verify` is asked first about those of which nobody knows whether they were done.

    Children that made it fail are recovered with it, in the same transaction; cancelled ones are started anew. If more
    than a hundred children of a map have failed, the run's next pass recovers the others in batches.
    """
    at = runtime.current()

    def change(each: str, decide: Decide, is_consequence: bool) -> None:
        def decided(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
            _check_not_its_children(at, run)
            if run.state in ALLOWED["settle"] and (again := tried_again(run, entries(), at.now())) is not None:
                return again
            check_state(run, "recover", ALLOWED["recover"])
            return decide(run, entries)

        _changed(at, "recover", each, decided, is_consequence=is_consequence)

    recover_with_children(at.store, run_id, at.now(), _acting(), change)


def _check_not_its_children(at: Runtime, run: RunRecord) -> None:
    """Raise InvalidTransitionError if a completed run has failed children; the error says how to recover them.

    A restart, which is the advice for other ended runs, would do the work of all its children again.
    """
    failed = at.store.children_of(run.id, RunState.FAILED.value, None) if run.state == RunState.COMPLETED else []
    if not failed:
        return
    text = (
        gettext_noop(
            'cannot recover run "{run}": it has completed, and its output stays as it is. {number} child of it has failed: '
            'recover that with {command}, with recover_children(), with "Recover the failed child" on the page of the run, or '
            "with a bulk over REST that has children_of"
        )
        if len(failed) == 1
        else gettext_noop(
            'cannot recover run "{run}": it has completed, and its output stays as it is. {number} children of it have '
            'failed: recover these with {command}, with recover_children(), with "Recover the failed children" on the page of '
            "the run, or with a bulk over REST that has children_of"
        )
    )
    from shlex import quote  # for this alone, and django.setup() imports this module

    command = f"`durable recover --children-of {quote(run.id)}`"
    problem = Sentence(text, run=run.id, number=len(failed), command=command)
    raise InvalidTransitionError(run.state, ALLOWED["recover"], "recover", run.id, problem=problem)


def _acting() -> dict[str, Any]:
    """Return the current actor's columns for audit rows that a pass writes when it recovers children."""
    acting = audit.acting()
    actor = audit.code_actor() if acting is None else acting.actor
    return {
        "source": str(actor.source),
        "actor_id": actor.user_key if isinstance(actor.user_key, int | str) else None,
        "actor_label": actor.name,
        "reason": audit.reason(),
        "bulk_id": audit.bulk_id(),
    }


def _changed(
    at: Runtime,
    action: str,
    run_id: str,
    decide: Callable[[RunRecord, Callable[[], list[EntryRecord]]], RunChange],
    *,
    reason: str = "",
    detail: Callable[[], str] = str,
    is_consequence: bool = False,
) -> None:
    """Make an audited change. The log's detail is `detail()`, or else the request that the change makes of the worker.

    `is_consequence`: the operator requested the change for another run, and has seen only that one.
    """
    previous = ""
    with audited(at, action, run_id, reason=reason) as attribution:

        def attributing(run: RunRecord, entries: Callable[[], list[EntryRecord]]) -> RunChange:
            nonlocal previous
            previous = run.state
            if not is_consequence:
                attribution.check_seen(run)
            change = decide(run, entries)
            change.action = attribution.done(
                before=run.state, after=change.run.get("state", run.state), detail=detail() or _asked(change)
            )
            return change

        changed = at.store.change(run_id, attributing)
    announce(at, changed.queue, changed.wake_at)
    announce_parent(at, changed)
    if changed.state != previous:
        send_run_changed(at, [changed], previous)


def _abandoned(locations: Sequence[str]) -> str:
    return f"requested of its worker, which interrupts {', '.join(locations)}" if locations else ""


def _asked(change: RunChange) -> str:
    """Describe, for the log, a request that the run's state does not show yet."""
    request = change.run.get("pending_request")
    return "requested of its worker: takes effect at the next operation" if request else ""


def _check_not_being_cancelled(run: RunRecord, action: str, unless: Request | None = None) -> None:
    """Raise InvalidTransitionError if a requested cancel has not reached the worker yet.

    The cancel stays in force.
    """
    if run.pending_request in (Request.CANCEL, Request.CANCEL_ROLLBACK) and run.pending_request != unless:
        text = (
            gettext_noop('cannot {verb} run "{run}": it is being cancelled with its rollback, at its next operation')
            if run.pending_request == Request.CANCEL_ROLLBACK
            else gettext_noop('cannot {verb} run "{run}": it is being cancelled, at its next operation')
        )
        problem = Sentence(text, verb=action, run=run.id)
        raise InvalidTransitionError(run.state, ALLOWED[action], action, run.id, problem=problem)
