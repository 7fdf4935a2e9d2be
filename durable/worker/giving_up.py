"""The change that gives a run up whose step cannot be interrupted: other workers may claim it, this one writes no more.

Owns what is written then. The attempt is recorded as begun, with a mark, so that the next pass settles it as failed by
the step's own policy, like an attempt whose worker died. What the pass has recorded before it and not committed yet (a
checkpoint, a loop that has begun, an ephemeral step) is written too: without it the code would not fit the history.

The steps that other branches run at that moment are recorded as begun as well: they go on in their threads, and nothing
that they return is recorded any more. So these attempts count, and a step without retries is not called again beside
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from durable.core import transitions
from durable.core.current import timed_step
from durable.core.records import EntryRecord, EntryStatus, RunChange, RunRecord, SavedDetails
from durable.core.steps import ABANDONED, ATOMIC, GIVEN_UP


def given_up(
    run: RunRecord,
    entries: Callable[[], Sequence[EntryRecord]],
    step: timed_step,
    beside: Sequence[timed_step],
    fence: int,
    now: datetime,
) -> RunChange:
    """Return the change of a locked run. `beside` are the steps that its other branches run now.

    It changes nothing, the fence neither, if the attempt has ended, the lease is lost, or a commit is under way.
    """
    nothing = RunChange(run={"change_seq": run.change_seq})
    if run.fence != fence or run.lease_expires_at is None:
        return nothing
    released = transitions.given_up(run, now=now)
    begun = step.call.entry
    if begun is None:  # a rollback handler is called again, and its attempt is not counted
        return RunChange(run=released)
    history = {each.location: each for each in entries()}
    if not _is_unrecorded(step, history):
        return nothing
    assert step.call.uncommitted is not None
    earlier = step.call.uncommitted(begun, history)
    if earlier is None:
        return nothing
    written = {each.location: each for each in earlier.entries}
    written[begun.location] = _begun(step, ABANDONED)
    for other in beside:
        entry = other.call.entry
        if entry is None or not _is_unrecorded(other, history) or _has_ended(written.get(entry.location)):
            continue
        if entry.status != EntryStatus.RUNNING or other.call.uncommitted is None:
            return nothing  # its commit is under way
        if other.call.uncommitted(entry, {*history, *written}) is None:
            return nothing
        written[entry.location] = _begun(other, GIVEN_UP)
    saved = _saved([each for each in (step, *beside) if each.info.location in written])
    return RunChange(
        run=released, entries=list(written.values()), deleted=earlier.deleted, saved=saved, tags=earlier.tags
    )


def _is_unrecorded(step: timed_step, history: Mapping[str, EntryRecord]) -> bool:
    """Return True if the attempt, at least its end, is not in the history."""
    recorded = history.get(step.info.location)
    return recorded is None or recorded.attempts < step.info.attempt or recorded.status == EntryStatus.RUNNING


def _has_ended(pending: EntryRecord | None) -> bool:
    return pending is not None and pending.status != EntryStatus.RUNNING


def _saved(steps: Sequence[timed_step]) -> list[SavedDetails]:
    """Return the newest saves of the attempts, for the next ones."""
    progress = [each.info.begun_progress for each in steps]
    return [saved for each in progress if each is not None and (saved := each.newest()) is not None]


def _begun(step: timed_step, mark: str) -> EntryRecord:
    """Return the entry of the attempt as begun, with a mark that says what became of it."""
    entry = step.call.entry
    assert entry is not None
    return replace(
        entry,
        status=EntryStatus.RUNNING,
        attempts=step.info.attempt,
        data={**entry.data, mark: True, **({ATOMIC: True} if step.call.record is not None else {})},
        output=None,  # the function may have returned in this moment
        completed_at=None,
        finished_ordinal=None,
    )
