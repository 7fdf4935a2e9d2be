"""Transactions about the rate of a limit on several connections at READ COMMITTED, in every order, and at once.

A verb that changes a limit's rate meets
a reservation, a park, an end and a cancel. Afterwards comes one sweep. No order may deadlock, leave an attempt to sleep
behind its moment, or let more begin than the rate gives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.db import connections

from durable.core import transitions
from durable.core.limits.rates import LimitClosing, Rate, RateWant, from_nanoseconds, nanoseconds
from durable.core.records import ENDED, RunRecord, RunState
from durable.models import Reservation
from durable.store import Store
from durable.store.postgres import PostgresStore
from tests.store.actors import Race
from tests.store.conftest import POSTGRES
from tests.store.making import LEASE, NOW, a_message, at, cancel, check_windows, claimed, commit, park, started, the

pytestmark = pytest.mark.slow


Verb = Callable[[PostgresStore], Callable[[], Any]]
SECOND = Rate.of("1/s")
QUICK = Rate.of("100/s")
API = RateWant("api", "k", 1, SECOND)
HOUR = at(3600)
LATER = at(10)


def reserve(store: PostgresStore, run: RunRecord) -> Callable[[], Any]:
    return lambda: store.reserve(run.id, run.fence, "s", API, NOW)


def open_(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.open_rate("api", "k", NOW)


def open_all(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.open_rate("api", "", NOW)


def set_quick(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.set_rate("api", QUICK, NOW)


def take_back(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.set_rate("api", None, NOW)


def close(store: PostgresStore) -> Callable[[], Any]:
    return lambda: store.close_rate("api", "k", LimitClosing(until=at(7200), by="ada"))


#: Each verb, and which key of the limit is closed before it, if one is.
VERBS: list[tuple[Verb, str | None]] = [
    (open_, "k"),
    (open_all, ""),
    (set_quick, None),
    (take_back, None),
    (close, None),
]
each_verb = pytest.mark.parametrize(("verb", "closed"), VERBS)


def prepared(store: PostgresStore, verb: Verb, closed: str | None) -> None:
    """A store in which the rate is slow, or closed, before the verb."""
    store.declare_rate("api", QUICK if verb is take_back else SECOND)
    first = started(store, "first")
    store.reserve(first.id, first.fence, "s", replace(API, units=30), NOW)  # so that the next attempt waits for long
    if verb is take_back:
        store.set_rate("api", SECOND, NOW)
    if closed is not None:
        store.close_rate("api", closed, LimitClosing(until=HOUR))


def waiting(store: PostgresStore, run_id: str) -> RunRecord:
    """A run that is parked until its moment."""
    run = started(store, run_id)
    answer = store.reserve(run.id, run.fence, "s", API, NOW)
    assert not answer.begins
    park(store, run, wake_at=answer.at)
    return the(store, run_id)


def check_rows(store: PostgresStore, *ids: str) -> None:
    """What must hold after the sweep: no run sleeps behind the moment that its attempt was given."""
    store.sweep_slots(NOW, 100)
    for run_id in ids:
        run = the(store, run_id)
        ticket = Reservation.objects.using(POSTGRES).filter(run_id=run_id, location="s").first()
        if run.state in ENDED:
            assert ticket is None, "a reservation outlives its run"
        elif run.state == RunState.SLEEPING and ticket is not None:
            assert run.wake_at is not None
            assert run.wake_at <= max(ticket.at, NOW), "the run sleeps behind its moment"


@pytest.mark.postgres
@each_verb
def test_a_verb_and_a_reservation(race: Race, verb: Verb, closed: str | None) -> None:
    store = race.store
    prepared(store, verb, closed)
    run = started(store, "a")
    _, answer = race.run(verb(store), reserve(store, run))
    if not race.b_commits:
        answer = reserve(store, run)()
    park(store, run, wake_at=answer.at)  # what the pass does next, with the moment that it was told
    check_rows(store, "a")


@pytest.mark.postgres
@each_verb
def test_a_verb_and_the_commit_that_parks(race: Race, verb: Verb, closed: str | None) -> None:
    store = race.store
    prepared(store, verb, closed)
    run = started(store, "a")
    told = store.reserve(run.id, run.fence, "s", API, NOW).at

    parks = partial(park, store, run, wake_at=told)
    race.run(verb(store), parks)
    if not race.b_commits:
        parks()
    check_rows(store, "a")


@pytest.mark.postgres
@each_verb
def test_a_verb_and_a_message_to_a_run_that_waits(race: Race, verb: Verb, closed: str | None) -> None:
    store = race.store
    prepared(store, verb, closed)
    waiting(store, "a")
    race.run(verb(store), lambda: store.send([a_message("a", "q")]))
    check_rows(store, "a")


@pytest.mark.postgres
@each_verb
def test_a_verb_and_the_end_of_a_run_that_has_a_moment(race: Race, verb: Verb, closed: str | None) -> None:
    store = race.store
    prepared(store, verb, closed)
    run = started(store, "a")
    store.reserve(run.id, run.fence, "s", API, NOW)
    waiting(store, "b")
    patch = transitions.completed(run, now=NOW, output="1")
    race.run(verb(store), lambda: commit(store, run, run=patch))
    assert (the(store, "a").state in ENDED) == race.b_commits
    check_rows(store, "a", "b")


@pytest.mark.postgres
@each_verb
def test_a_verb_and_the_cancel_of_a_run_that_waits(race: Race, verb: Verb, closed: str | None) -> None:
    store = race.store
    prepared(store, verb, closed)
    waiting(store, "a")
    waiting(store, "b")
    race.run(verb(store), lambda: cancel(store, "a"))
    assert (the(store, "a").state in ENDED) == race.b_commits
    check_rows(store, "a", "b")


@pytest.mark.postgres
@pytest.mark.parametrize("others", [(set_quick, open_), (set_quick, take_back), (open_, open_all), (close, open_)])
def test_two_verbs(race: Race, others: tuple[Verb, Verb]) -> None:
    store = race.store
    prepared(store, others[0], "k")
    waiting(store, "a")
    waiting(store, "b")
    race.run(others[0](store), others[1](store))
    check_rows(store, "a", "b")


@pytest.mark.postgres
def test_an_attempt_begins_while_unused_keys_are_forgotten(race: Race) -> None:
    store = race.store
    one, two, three = (started(store, each) for each in "abc")
    assert store.reserve(one.id, one.fence, "s", API, NOW).begins
    race.run(lambda: store.reserve(two.id, two.fence, "s", API, HOUR), lambda: store.forget_limit_keys(HOUR, 10))
    given = store.reserve(three.id, three.fence, "s", API, HOUR)
    assert given.at == (HOUR + timedelta(seconds=1) if race.a_commits else HOUR)


def test_a_pass_that_parks_after_its_moment_was_moved_is_due_at_once(store: Store) -> None:
    """An operator opens the limit between the reservation and the park, so that the pass was told the old moment."""
    store.declare_rate("api", SECOND)
    run = started(store, "a")
    store.close_rate("api", "k", LimitClosing(until=HOUR))
    answer = store.reserve(run.id, run.fence, "s", API, NOW)
    assert answer.at == HOUR
    store.open_rate("api", "k", LATER)
    park(store, run, wake_at=answer.at)
    parked = the(store, "a")
    assert parked.wake_at is not None
    assert parked.wake_at <= LATER
    again = claimed(store, "a", LATER)
    assert store.reserve(again.id, again.fence, "s", API, LATER).begins


def test_a_rate_is_edited_while_a_hundred_attempts_wait(store: Store) -> None:
    """The order is kept, nobody is stuck, and from each edit on no time has more than the newer rate gives."""
    ids = [f"run-{number:03}" for number in range(100)]
    store.declare_rate("api", SECOND)
    begun: list[tuple[datetime, str]] = []

    def attempt(run: RunRecord, now: datetime) -> None:
        answer = store.reserve(run.id, run.fence, "s", API, now)
        if answer.begins:
            begun.append((now, run.id))
            commit(store, run, run=transitions.completed(run, now=now, output="1"))
        else:
            park(store, run, wake_at=answer.at)

    for run_id in ids:
        attempt(started(store, run_id), NOW)
    edits = {at(7.5): Rate.of("5/s", 3), at(12.25): Rate.of("1/2 s"), at(30): Rate.of("20/s"), at(30.5): Rate.of("2/s")}
    coming = sorted(edits)
    now: datetime | None = NOW
    while now is not None and (now := store.next_deadline(["q"], now)) is not None:
        assert now < at(200), "somebody is stuck"
        if coming and coming[0] <= now:
            now = coming.pop(0)
            store.set_rate("api", edits[now], now)
        for run in store.claim(queue="q", now=now, lease_until=now + LEASE, worker="w", limit=100):
            attempt(run, now)
    assert [run_id for _, run_id in begun] == ids
    moments = [NOW, *sorted(edits), at(201)]
    for since, until in pairwise(moments):
        rate = edits.get(since, SECOND)
        during = [(nanoseconds(moment), 1) for moment, _ in begun if since <= moment < until]
        assert during
        check_windows(during, rate.spacing, rate.burst)


# -- rates with several connections and the real clock


THREADS = 4
ATTEMPTS = 25  # of each thread
HUNDRED = RateWant("real", "k", 1, Rate.of("100/s", 3))


def together(runs: list[RunRecord], work: Callable[[RunRecord], None]) -> None:
    """Call `work(run)` in a thread for each run, at one moment; each has connections of its own."""
    barrier = threading.Barrier(len(runs))

    def call(run: RunRecord) -> None:
        try:
            barrier.wait(60)
            work(run)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(runs)) as pool:
        for future in [pool.submit(call, run) for run in runs]:
            future.result(120)


def test_two_connections_never_get_the_same_moment(store: Store) -> None:
    runs = [started(store, f"run-{number}") for number in range(THREADS)]
    given: list[datetime] = []

    def reserve(run: RunRecord) -> None:
        for number in range(ATTEMPTS):
            want = RateWant("shared", "k", 1, Rate.of("1/s"))
            given.append(store.reserve(run.id, run.fence, f"s{number}", want, NOW).at)

    together(runs, reserve)
    assert sorted(given) == [NOW + timedelta(seconds=each) for each in range(THREADS * ATTEMPTS)]


def test_with_the_real_clock_no_time_has_more_than_the_rate_and_the_burst(store: Store) -> None:
    runs = [started(store, f"run-{number}") for number in range(THREADS)]
    begun: list[tuple[int, int]] = []

    def attempts(run: RunRecord) -> None:
        for _ in range(ATTEMPTS):
            while True:
                answer = store.reserve(run.id, run.fence, "s", HUNDRED, datetime.now(UTC), patience=0.005)
                if answer.begins:
                    begun.append((nanoseconds(answer.at), 1))
                    break
                time.sleep(max(0.0, (answer.at - datetime.now(UTC)).total_seconds()))

    together(runs, attempts)
    assert len(begun) == THREADS * ATTEMPTS
    check_windows(begun, 10_000_000, 3)
    moments = sorted(each for each, _ in begun)
    assert from_nanoseconds(moments[-1]) - from_nanoseconds(moments[0]) >= timedelta(seconds=0.96)
