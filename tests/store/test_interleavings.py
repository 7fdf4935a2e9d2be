"""A stale commit and a claim never both stand: all interleavings of the two, on real connections at READ COMMITTED.

A, of the worker whose lease has run out, and B, a claim of another one, are two transactions each of a statement and an
end. Each order of the four is tried, with each kind of commit and of claim. `pytest -s` prints what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from durable.core import transitions
from durable.core.limits.ranks import Ranking
from durable.core.records import RunRecord
from durable.store import Store
from tests.store.actors import Race
from tests.store.making import LEASE, a_message, a_new_run, an_entry, at, changed, commit, started, the

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

COMMITS: Final[dict[str, dict[str, Any]]] = {
    "one entry": {"entries": [an_entry("late")]},
    "two entries": {"entries": [an_entry("late"), an_entry("later")]},
    "an entry, a message, the row": {
        "entries": [an_entry("late")],
        "sends": [a_message("run")],
        "run": {"summary": "late"},
    },
}
CLAIMS: Final[dict[str, Callable[[Store], Any]]] = {
    "claim": lambda store: store.claim(queue="q", now=at(60), lease_until=at(60) + LEASE, worker="B", limit=1),
    "claim of one run": lambda store: store.claim_run("run", now=at(60), lease_until=at(60) + LEASE, worker="B"),
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("kind", COMMITS)
def test_a_stale_commit_and_a_claim_never_both_stand(race: Race, kind: str, claim: str) -> None:
    store = race.store
    held = started(store)
    outcome, found = race.run(lambda: commit(store, held, **COMMITS[kind]), lambda: CLAIMS[claim](store))
    accepted, taken = outcome != "refused", bool(found)
    is_first = race.order.index("B") < race.order.index("A")
    if is_first:  # the commit came to the row when the claim had it, or had had it
        assert taken
        assert accepted == (not race.b_commits)
    else:
        assert accepted
        is_under_way = race.order.index("B") < race.order.index("a")
        assert taken == (not is_under_way or claim == "claim of one run")
    written = accepted and race.a_commits
    moved = taken and race.b_commits
    row = the(store)
    assert (row.fence > held.fence) == moved
    assert bool(store.load("run")) == written
    if "run" in COMMITS[kind]:
        assert len(store.messages("run")) == row.message_count == written
        assert (row.summary == "late") == written
    assert not (written and moved and is_first), "a stale commit and the claim before it both stand"


@pytest.mark.parametrize("is_ranked", [False, True])
def test_a_move_and_a_claim_of_the_queue_before_leave_the_run_to_one_queue(race: Race, is_ranked: bool) -> None:
    """Claims of the old queue take it before the move, with a lease that the move leaves alone; or they pass it by."""
    store = race.store
    ranking = Ranking(priority="high", head_start=600, share="acme") if is_ranked else None
    store.create([a_new_run("run", wake_at=at(0), created_at=at(0), ranking=ranking)])

    def move() -> RunRecord:
        return changed(store, "run", transitions.requeued, queue="other", now=at(60))

    _, found = race.run(move, lambda: CLAIMS["claim"](store))
    row, took = the(store), bool(found)
    is_first = race.order.index("B") < race.order.index("A")
    is_under_way = race.order.index("B") < race.order.index("a")
    assert took == (is_first or (not is_under_way and not race.a_commits))
    assert row.queue == ("other" if race.a_commits else "q")
    assert (row.worker == "B") == (took and race.b_commits)
    again = store.claim(queue=row.queue, now=at(61), lease_until=at(61) + LEASE, worker="D", limit=1)
    assert [each.id for each in again] == ([] if row.worker == "B" else ["run"])
