"""A stale commit and a claim never both stand: all interleavings of the two, on real connections at READ COMMITTED.

A commit F of the worker whose lease has run out and a claim C of another one are two transactions each of a statement
and an end, COMMIT or ROLLBACK. Each order of the four is tried, with each kind of commit and of claim. `pytest -s`
prints what happened, `-v` the orders.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import pytest
from django.db import connections

from durable.core.records import RunRecord
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import ENDS, Actor, Pools, play
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, a_message, an_entry, at, commit, started, the

#: The orders of F's statement and end, `F` and `f`, and those of C.
ORDERS: Final = ["FfCc", "FCfc", "FCcf", "CFfc", "CFcf", "CcFf"]

COMMITS: Final[dict[str, Callable[[Store, RunRecord], Any]]] = {
    "one entry": lambda store, held: commit(store, held, entries=[an_entry("late")]),
    "two entries": lambda store, held: commit(store, held, entries=[an_entry("late"), an_entry("later")]),
    "an entry, a message, the row": lambda store, held: commit(
        store, held, entries=[an_entry("late")], sends=[a_message("run")], run={"summary": "late"}
    ),
}
CLAIMS: Final[dict[str, Callable[[Store], list[RunRecord]]]] = {
    "claim": lambda store: store.claim(queues=["q"], now=at(60), lease_until=at(60) + LEASE, worker="C", limit=1),
    "claim of one run": lambda store: [
        run for run in [store.claim_run("run", now=at(60), lease_until=at(60) + LEASE, worker="C")] if run is not None
    ],
}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_stale_commit_and_a_claim_never_both_stand(
    postgres_store: PostgresStore, pools: Pools, order: str, claim: str
) -> None:
    for number, (kind, (f_end, c_end)) in enumerate(product(COMMITS, product(ENDS, ENDS))):
        held = renewed(postgres_store, number)
        f, c = pools
        actors = {
            "F": Actor(f, "F commits", lambda held=held, kind=kind: COMMITS[kind](postgres_store, held), f_end),  # type: ignore[misc]  # bound defaults
            "C": Actor(c, "C claims", lambda: CLAIMS[claim](postgres_store), c_end),
        }
        events = play(order, actors)
        accepted, taken = actors["F"].outcome != "refused", bool(actors["C"].outcome)
        line = f"{', '.join(events)}: F {'accepted' if accepted else 'refused'}, C {'took the run' if taken else 'passed by'}"
        print(f"{kind:>28}, {claim}: {line}")

        is_first = order.index("C") < order.index("F")
        if is_first:  # F came to the row when C had it, or had had it
            assert taken
            assert accepted == (c_end == "ROLLBACK"), line
        else:
            assert accepted
            is_under_way = order.index("C") < order.index("f")
            assert taken == (not is_under_way or claim == "claim of one run"), line
        written = accepted and f_end == "COMMIT"
        moved = taken and c_end == "COMMIT"
        row = the(postgres_store)
        assert (row.fence > held.fence) == moved, line
        assert bool(postgres_store.load("run")) == written, line
        if kind.endswith("the row"):
            assert len(postgres_store.messages("run")) == row.message_count == written, line
            assert (row.summary == "late") == written, line
        assert not (written and moved and is_first), f"a stale commit and the claim before it both stand: {line}"


def renewed(store: PostgresStore, number: int) -> RunRecord:
    """The run, new, in the hands of a worker whose lease will have run out when the other one claims."""
    if number:
        with connections[POSTGRES].cursor() as cursor:
            for table in ("durable_entrymetadata", "durable_entry", "durable_queuemessage", "durable_run"):
                cursor.execute(f"DELETE FROM {table}")
    return started(store)
