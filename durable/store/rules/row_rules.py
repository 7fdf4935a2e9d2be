"""Rules for a run's row: what a commit, a send or a claim changes in it, as functions of the row.

Shared by the stores that compute in Python. The PostgreSQL store has the same rules in SQL; `tests/store/` compares
both. Must not use a database or keep anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from durable.core import transitions
from durable.core.location import child_token, escape, is_awaited
from durable.core.records import (
    ENDED,
    ActionRecord,
    Batch,
    EntryRecord,
    GroupChange,
    Hold,
    Message,
    MessageCompleted,
    MessageReceived,
    MessageState,
    OutgoingMessage,
    Request,
    RunChange,
    RunRecord,
    RunState,
    Witness,
    is_leased,
)
from durable.core.summary import DROPPED, PARENT_ENDED, Summary, SummaryKind
from durable.core.witnesses import columns_of

#: The columns of the audit log that are equal when one action repeats another.
ALIKE: Final = ("action", "source", "outcome", "actor_id", "actor_label", "bulk_id")
_REPEATED: Final = re.compile(r" \((\d+) more like it until [^()]*\)$")

#: The most places of a line that are counted.
MOST_IN_LINE: Final = 1_000

#: The most runs that one transaction cancels because a run above them has ended.
CASCADED_AT_ONCE: Final = 300
#: A child in one of these states, or with one of these requests, ends by itself when its parent has ended.
ENDING: Final = frozenset({*ENDED, RunState.ROLLING_BACK})
CANCELLING: Final = (Request.CANCEL.value, Request.CANCEL_ROLLBACK.value)

_REASON: Final = 200  # characters of a reason that a summary shows
_NAMES: Final = tuple(each.name for each in fields(RunRecord))
_STATES = frozenset(RunState)
_REQUESTS = frozenset(Request)
_CLAIMABLE: Final = frozenset(transitions.starts_of("claimed"))


def check(run: RunRecord) -> RunRecord:
    """Return `run` if it satisfies the database's constraints; else raise ValueError."""
    ended = run.state in ENDED
    broken = {
        f"the state {run.state!r} is not known": run.state not in _STATES,
        f"the pending request {run.pending_request!r} is not known": run.pending_request not in _REQUESTS,
        f"the state after the rollback {run.state_after_rollback!r} is not an end": bool(run.state_after_rollback)
        and run.state_after_rollback not in ENDED,
        "it has ended, but wakes again": ended and run.wake_at is not None,
        "it has ended, but is leased": ended and run.lease_expires_at is not None,
        "it has ended, but has no finished_at": ended and run.finished_at is None,
        "it has not ended, but has finished_at": not ended and run.finished_at is not None,
        "a count is negative": min(run.fence, run.crashes, run.change_seq, run.message_count) < 0,
    }
    for problem, found in broken.items():
        if found:
            raise ValueError(f'run "{run.id}" cannot be written: {problem}')
    return run


def copied(run: RunRecord) -> RunRecord:
    """Return a copy of `run` that later changes of the original do not affect."""
    copy = RunRecord.__new__(RunRecord)
    for name in _NAMES:  # replace() does the same in three times as long
        setattr(copy, name, getattr(run, name))
    copy.origins, copy.generations = list(run.origins), dict(run.generations)
    return copy


def claimable(run: RunRecord, now: datetime) -> bool:
    """Return True if a worker may claim this run, due or not."""
    return not is_leased(run, now) and run.state in _CLAIMABLE


def is_due(run: RunRecord, now: datetime) -> bool:
    """Return True if a worker may claim this run now."""
    return run.wake_at is not None and run.wake_at <= now and claimable(run, now)


def claimed(
    run: RunRecord, *, now: datetime, lease_until: datetime, worker: str, drawn: int | None = None
) -> RunRecord:
    return replace(run, **transitions.claimed(run, now=now, lease_until=lease_until, worker=worker, drawn=drawn))


def renewed(run: RunRecord, lease_until: datetime) -> RunRecord:
    """Return the run with its lease extended by its worker."""
    return replace(run, **transitions.renewed(run, lease_until=lease_until))


def released(run: RunRecord, now: datetime, due_at: datetime | None = None) -> RunRecord:
    """Return the run as released by a worker that did not begin its pass, due at once or at `due_at`."""
    patch = transitions.released(run, now=now) if due_at is None else transitions.deferred(run, wake_at=due_at)
    return replace(run, **patch)


def after_messages(
    run: RunRecord, queued: Sequence[Message | OutgoingMessage], *, from_outside: bool = True
) -> RunRecord:
    """Return the run after it was sent these messages: due, if it waits for one of them."""
    if not queued:
        return run
    awaited = [each.sent_at for each in queued if is_awaited(run.waiting_for, escape(each.queue))]
    patch = transitions.sent_to(
        run, count=len(queued), awaited_since=min(awaited, default=None), is_noticed=from_outside
    )
    return replace(run, **patch)


def stored(outgoing: OutgoingMessage, order: int) -> Message:
    """Return the message in its stored form, at this place in the inbox."""
    return Message(
        id=outgoing.id,
        run_id=outgoing.to,
        queue=outgoing.queue,
        body=outgoing.body,
        sent_at=outgoing.sent_at,
        order=order,
        idempotency_id=outgoing.idempotency_id,
    )


def should_notify(run: RunRecord, queued: Sequence[Message | OutgoingMessage]) -> bool:
    """Return True if these messages made the run due, so that a worker has to be notified."""
    awaited = [each.sent_at for each in queued if is_awaited(run.waiting_for, escape(each.queue))]
    return bool(awaited) and claimable(run, min(awaited))


def after_commit(
    run: RunRecord, batch: Batch, own: Sequence[Message | OutgoingMessage], pending: Iterable[Message]
) -> tuple[RunRecord, bool]:
    """Return the run after `batch`, and True if its parking was overruled.

    A pause that was withdrawn or replaced by another request does not happen: the run is due. `own` are the messages of
    the batch to this run itself. They make it due if it parks for them, and do not raise its `change_seq`, because the
    pass knows of them. `pending` are its messages that the batch leaves unreceived. If the run parks for a pending one,
    it sent that itself, after its wait had queried the inbox.
    """
    patch = batch.run or {}
    if patch.get("state") == RunState.PAUSED and run.pending_request != Request.PAUSE:
        patched = replace(run, **transitions.pause_dropped(run, patch, now=batch.now))
        return check(after_messages(patched, own, from_outside=False)), True
    patched = replace(run, **patch)
    overruled = False
    if batch.park_change_seq is not None and patched.state not in ENDED:
        overruled = run.change_seq != batch.park_change_seq or any(
            is_awaited(patched.waiting_for, escape(each.queue))
            for each in pending  # at any `sent_at`
        )
    if overruled:
        patched = replace(patched, wake_at=batch.now)
    return check(after_messages(patched, own, from_outside=False)), overruled


def is_in_state(run: RunRecord, witnesses: Iterable[Witness]) -> bool:
    """Return True if the run is in the state that the pass's last commit left, or if that is not known."""
    return all(each.state is None or each.state == run.state for each in witnesses)


def is_there(entry: EntryRecord | None, witness: Witness) -> bool:
    """Return True if the entry of a witness still is as an earlier commit of the pass left it."""
    if entry is None or (witness.has_output and entry.output is None):
        return False
    return all(getattr(entry, name) == value for name, value in columns_of(witness).items())


def after_change(run: RunRecord, change: RunChange) -> RunRecord:
    patch: dict[str, Any] = {"change_seq": run.change_seq + 1, **change.run}
    return check(replace(run, **patch))


def has_ended(before: RunRecord, after: RunRecord) -> bool:
    return after.state in ENDED and before.state not in ENDED


def end_of(run: RunRecord) -> datetime:
    assert run.finished_at is not None, f"{run.id} has not ended"
    return run.finished_at


def after_child(parent: RunRecord, child: RunRecord) -> RunRecord:
    """Return the parent after the end of its child: due, if it waits for that child."""
    if parent.state in ENDED or not is_awaited(parent.waiting_for, child_token(child.id)):
        return parent
    return replace(parent, **transitions.child_ended(parent, at=end_of(child)))


def after_group(parent: RunRecord, group_id: str, at: datetime) -> RunRecord:
    """Return the parent after a group of its children became settled: due, if it waits for that group."""
    if parent.state in ENDED or not is_awaited(parent.waiting_for, child_token(group_id)):
        return parent
    return replace(parent, **transitions.child_ended(parent, at=at))


def group_changes(change: RunChange) -> list[GroupChange]:
    """Return what a verb does to groups of the run's children."""
    return [GroupChange(id=each, is_read=True, is_dropped=True) for each in change.dropped_groups]


def is_ending(child: RunRecord) -> bool:
    """Return True if a child has ended or will end by itself, so that the end of its parent changes nothing."""
    return child.state in ENDING or bool(child.state_after_rollback) or child.pending_request in CANCELLING


def after_parent(child: RunRecord, parent: RunRecord, at: datetime, *, hands_over: bool) -> RunRecord:
    """Return the child after its parent has ended or dropped it: cancelled, or asked to end if a worker has it.

    `hands_over`: its workflow has an `on_end`, so a worker has to end it.
    """
    if is_ending(child):
        return child
    facts = {"parent": parent.id}
    if parent.state in ENDED:
        facts["state"] = str(parent.state)
    kind, why = (SummaryKind.PARENT_ENDED, PARENT_ENDED) if "state" in facts else (SummaryKind.DROPPED, DROPPED)
    reason = why.format(**facts)
    if is_leased(child, at):
        return replace(child, **transitions.cancel_requested(child, request=Request.CANCEL, reason=reason))
    if hands_over:
        summary = Summary(SummaryKind.CANCELLING, reason=reason)
        return replace(child, **transitions.cancel_handed_over(child, now=at, reason=reason, summary=summary))
    summary = Summary(kind, **facts)
    return replace(child, **transitions.cancelled_at_once(child, now=at, reason=reason, summary=summary))


def is_reopened(before: RunRecord, after: RunRecord) -> bool:
    """Return True if a change lets an ended run continue. Compensation by its parent does not count."""
    is_undone = after.state == RunState.ROLLING_BACK and after.state_after_rollback != before.state_after_rollback
    return before.state in ENDED and after.state not in ENDED and not is_undone


def is_failure_over(before: RunRecord, after: RunRecord) -> bool:
    """Return True if a change reopens a failed run in any way. The failure of a held one ends with `HeldOver`."""
    return before.state == RunState.FAILED and after.state not in ENDED


def held_summary(hold: Hold) -> Summary:
    """Return the summary of a run that is paused at its start because its workflow is held."""
    return Summary(SummaryKind.HELD, workflow=hold.name, by=hold.held_by, reason=hold.reason[:_REASON])


def is_held_start(run: RunRecord) -> bool:
    """Return True if the run is paused only because its workflow was held at its start."""
    return run.state == RunState.PAUSED and Summary.load(run.summary).kind is SummaryKind.HELD


class Consumed(NamedTuple):
    """A batch's change of a message in the inbox. `received_by` is the location of the wait, None if it stays."""

    state: str
    received_by: str | None
    response: str | None


def consumed(batch: Batch) -> dict[str, Consumed]:
    """Return the batch's changes of messages, by message id."""
    changes = {
        message: Consumed(str(MessageState.RECEIVED), location, None) for message, location in batch.of(MessageReceived)
    }
    for message, response, is_refused in batch.of(MessageCompleted):
        location = changes[message].received_by if message in changes else None
        state = MessageState.REFUSED if is_refused else MessageState.COMPLETED
        changes[message] = Consumed(str(state), location, response)
    return changes


def entries_to_write(entries: Sequence[EntryRecord]) -> Sequence[EntryRecord]:
    """Return one entry for each location, the last one given."""
    if len(entries) < 2:
        return entries
    return list({entry.location: entry for entry in entries}.values())


def is_repeat(row: ActionRecord, action: ActionRecord) -> bool:
    """Return True if the action repeats that of the row: the same actor, source, verb and outcome."""
    return all(getattr(row, name) == getattr(action, name) for name in ALIKE)


def repeated(detail: str, moment: datetime) -> str:
    """Return the detail of an audit row that counts one more action."""
    found = _REPEATED.search(detail)
    number = 1 if found is None else int(found[1]) + 1
    return f"{_REPEATED.sub('', detail)} ({number:d} more like it until {moment:%Y-%m-%d %H:%M:%S} UTC)"


def changed_columns(before: RunRecord, after: RunRecord) -> Mapping[str, Any]:
    """Return the columns in which two versions of a row differ, with the new values."""
    return {name: value for name in _NAMES if (value := getattr(after, name)) != getattr(before, name)}
