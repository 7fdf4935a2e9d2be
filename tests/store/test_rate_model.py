"""A model of rates, whatever attempts do in whatever order.

On every store, no more units begin in any time than the rate gives in it, and the burst. All stores compute the same.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable.core.limits import rates as gcra
from durable.core.limits.rates import Cell, LimitClosing, Rate, RateWant, Want, nanoseconds
from durable.store import Store
from durable.store.database import DatabaseStore
from durable.store.memory import MemoryStore
from durable.store.tables import rates
from tests.store.making import LEASE, NOW, a_run, check_windows

pytestmark = pytest.mark.slow

RUNS = 5
SECOND = 1_000_000_000

_numbers = count()
#: What happens: an attempt asks, the time that passes before it, its units, whether it takes its moment alone; a
#: closing.
ASKS = st.tuples(
    st.just("ask"),
    st.integers(0, RUNS - 1),
    st.sampled_from([0, 0, 0.001, 0.3, 1, 2.5, 60]),
    st.sampled_from([1, 1, 1, 2, 5]),
    st.booleans(),
)
CLOSES = st.tuples(st.just("close"), st.integers(1, 20), st.sampled_from([0, 0.5]), st.just(1), st.just(False))
BACKWARDS = st.tuples(st.just("ask"), st.integers(0, RUNS - 1), st.just(-30), st.just(1), st.just(True))
CANCELS = st.tuples(
    st.just("cancel"), st.integers(0, RUNS - 1), st.sampled_from([0, 0.3]), st.sampled_from([1, 2]), st.just(False)
)
ACTS = st.lists(st.one_of(ASKS, ASKS, ASKS, CANCELS, CLOSES, BACKWARDS), max_size=40)
RATES = st.sampled_from(["1/s", "3/s", "7/min", "1/7 s"])


@settings(max_examples=300, deadline=None)
@given(acts=ACTS, rate=RATES, burst=st.integers(1, 4), patience=st.sampled_from([0, SECOND // 10]))
def test_no_window_has_more_than_the_rate_and_the_burst(
    acts: list[tuple[str, int, float, int, bool]], rate: str, burst: int, patience: int
) -> None:
    spacing, cell, at, closed = Rate.of(rate).spacing, Cell(), nanoseconds(NOW), 0
    waiting: dict[tuple[int, int], int] = {}
    begun: list[tuple[int, int]] = []
    for act, number, passed, units, may_begin in acts:
        at += round(passed * SECOND)
        if act == "close":
            closed = at + number * SECOND
            continue
        last = max(waiting.values(), default=None)
        if act == "cancel":
            waiting.pop((number, units), None)
            continue
        reservation = waiting.pop((number, units), None)
        wanted = Want(
            units=units,
            at=at,
            patience=patience,
            closed_until=closed,
            reservation=reservation,
            may_begin=may_begin,
            last=last,
        )
        begins, moment = gcra.reserve(cell, spacing, burst, wanted)
        if begins and may_begin:
            assert at <= moment <= at + patience
            assert moment >= closed
            begun.append((moment, units))
        else:
            waiting[number, units] = moment
    check_windows(begun, spacing, max([burst, *(units for _, units in begun)]))


def forgotten(store: Store, run_id: str) -> None:
    """Delete the reservations of a run, as its end does."""
    if isinstance(store, MemoryStore):
        store._rates.forget(run_id)
    else:
        assert isinstance(store, DatabaseStore)
        rates.forget(store.alias, run_id)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS, rate=RATES, burst=st.integers(1, 4))
def test_every_store_computes_what_the_algorithm_says(
    store: Store, acts: list[tuple[str, int, float, int, bool]], rate: str, burst: int
) -> None:
    number = next(_numbers)
    ids = [f"rated-{number}-{each}" for each in range(RUNS)]
    store.create([a_run(each) for each in ids])
    held = [store.claim_run(each, now=NOW, lease_until=NOW + LEASE, worker="w") for each in ids]
    given_rate, limit = Rate.of(rate, burst), f"model-{number}"
    cell, at, closed = Cell(), NOW, 0
    waiting: dict[int, tuple[int, int]] = {}  # of each run: units and moment
    for act, of, passed, units, may_begin in acts:
        at += timedelta(seconds=passed)
        if act == "close":
            until = at + timedelta(seconds=of)
            store.close_rate(limit, "k", LimitClosing(until=until))
            closed = nanoseconds(until)
            continue
        run = held[of]
        assert run is not None
        want = RateWant(limit, "k", units, given_rate)
        last = max((moment for _, moment in waiting.values()), default=None)
        if act == "cancel":  # without the end of the run, which has others to make in this test
            forgotten(store, run.id)
            waiting.pop(of, None)
            continue
        answer = store.reserve(run.id, run.fence, "s", want, at, may_begin=may_begin, patience=0.1)
        before = waiting.pop(of, None)
        wanted = Want(
            units=units,
            at=nanoseconds(at),
            patience=SECOND // 10,
            closed_until=closed,
            reservation=before[1] if before is not None and before[0] == units else None,
            may_begin=may_begin,
            last=last,
        )
        begins, moment = gcra.reserve(cell, given_rate.spacing, burst, wanted)
        stored = -(-moment // 1_000) * 1_000  # moments of rows have microseconds
        assert (answer.begins, nanoseconds(answer.at)) == (begins, stored)
        if not (begins and may_begin):
            waiting[of] = (units, stored)
