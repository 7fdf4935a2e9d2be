"""A pass that pauses its run writes the request that it has read.

By then the pause may have been taken back or overtaken.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from durable.core.records import Request, RunChange, RunPatch, RunRecord, RunState
from durable.store import Store
from tests.store.making import at, commit, started, the

PAUSED: dict[str, Any] = {
    "state": RunState.PAUSED,
    "wake_at": None,
    "lease_expires_at": None,
    "worker": "",
    "pending_request": Request.NONE,
    "summary": "paused",
}


def requested(store: Store, *requests: str, **columns: Any) -> RunRecord:
    """A run in the hands of a worker, of which this was asked, one after the other."""
    run = started(store)
    for request in requests:
        change(store, {"pending_request": request, **columns})
    return run


def change(store: Store, columns: dict[str, Any]) -> None:
    store.change("run", lambda _run, _entries: RunChange(run=cast("RunPatch", columns)))


def test_a_pause_that_is_still_asked_for_happens(store: Store) -> None:
    commit(store, requested(store, "pause"), run=PAUSED)
    run = the(store)
    assert (run.state, run.wake_at, run.pending_request, run.summary) == (RunState.PAUSED, None, "", "paused")


@pytest.mark.parametrize("requests", [["pause", ""], ["pause", "cancel"], ["pause", "cancel_rollback"]])
def test_one_that_was_withdrawn_leaves_the_run_due(store: Store, requests: list[str]) -> None:
    done = commit(store, requested(store, *requests), run=PAUSED, now=at(5))
    run = the(store)
    assert (run.state, run.wake_at, run.pending_request, run.summary) == (RunState.PENDING, at(5), requests[-1], "")
    assert run.lease_expires_at is None
    assert done.queues_to_notify == {"q"}
    [again] = store.claim(queues=["q"], now=at(6), lease_until=at(60), worker="other", limit=1)
    assert again.pending_request == requests[-1]


def test_a_compensating_run_goes_on_compensating(store: Store) -> None:
    run = requested(store, "pause", "", state_after_rollback="failed", state=RunState.ROLLING_BACK)
    commit(store, run, run=PAUSED, now=at(5))
    after = the(store)
    assert (after.state, after.wake_at) == (RunState.ROLLING_BACK, at(5))


def test_a_verb_pauses_whatever_was_asked_for_before(store: Store) -> None:
    started(store)
    change(store, PAUSED)
    assert the(store).state == RunState.PAUSED
