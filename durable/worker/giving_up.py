"""The change that gives a run up whose step cannot be interrupted: other workers may claim it, this one writes no more.

Owns what is written then. The attempt is recorded as begun, with a mark, so that the next pass settles it as failed by
the step's own policy, like an attempt whose worker died. What the pass has recorded before it and not committed yet (a
checkpoint, a loop that has begun, an ephemeral step) is written too: without it the code would not fit the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from durable.core import transitions
from durable.core.current import timed_step
from durable.core.records import EntryRecord, EntryStatus, RunChange, RunRecord
from durable.core.steps import ABANDONED, ATOMIC

__all__ = ["given_up"]


def given_up(
    run: RunRecord, entries: Callable[[], Sequence[EntryRecord]], step: timed_step, fence: int, now: datetime
) -> RunChange:
    """Return the change of a locked run.

    It changes nothing, the fence neither, if the attempt has ended, the lease is lost, or a commit is under way.
    """
    nothing = RunChange(run={"change_seq": run.change_seq})
    if run.fence != fence or run.lease_expires_at is None:
        return nothing
    released = transitions.given_up(run, now=now)
    begun = step.call.entry
    if begun is None:  # a rollback handler is called again, and its attempt is not counted
        return RunChange(run=released)
    attempt = step.info.attempt
    history = {each.location: each for each in entries()}
    recorded = history.get(begun.location)
    if recorded is not None and recorded.attempts >= attempt and recorded.status != EntryStatus.RUNNING:
        return nothing
    assert step.call.uncommitted is not None
    earlier = step.call.uncommitted(begun, history)
    if earlier is None:
        return nothing
    marked = replace(
        begun,
        status=EntryStatus.RUNNING,
        attempts=attempt,
        data={**begun.data, ABANDONED: True, **({ATOMIC: True} if step.call.record is not None else {})},
        output=None,  # the function may have returned in this moment
        completed_at=None,
        finished_ordinal=None,
    )
    return RunChange(run=released, entries=[*earlier.entries, marked], deleted=earlier.deleted)
