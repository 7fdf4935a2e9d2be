"""Where claims begin: at the oldest end while that is cheap, else where the last one ended, and never so for long."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis
from django.test import override_settings

from durable.conf import conf
from durable.core import clock as moments
from durable.core.records import RunRecord
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome
from durable.notifier import notify
from durable.store import Store, store_for
from durable.store.base import Claimed
from durable.worker.claim_bounds import CHEAP, MARGIN, ClaimBounds
from durable.worker.claim_bounds import bounds as process_bounds
from durable.worker.timer import Sweep
from tests.store.making import NOW, a_run, at
from tests.support.runs import finish, new_runs
from tests.support.worker import work_off

DEAR = 100_000  # entries passed over: two seconds of rest


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bounds(clock: Clock) -> ClaimBounds:
    return ClaimBounds(clock=clock)


def claimed(*seconds: float, passed_over: int = 0) -> Claimed:
    return Claimed((a_run(f"run-{each}", wake_at=at(each)) for each in seconds), passed_over=passed_over)


def test_the_first_claim_looks_at_all(bounds: ClaimBounds) -> None:
    assert bounds.since("q", NOW) is None


def test_while_that_is_cheap_every_claim_does(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=CHEAP), 1)
    assert bounds.since("q", NOW) is None


def test_after_a_dear_one_claims_go_on_where_the_last_one_ended(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-9, -8, passed_over=DEAR), 2)
    since = bounds.since("q", NOW)
    assert since == (at(-8), "run--8")
    bounds.note("q", since, NOW, claimed(-7, -6), 2)
    assert bounds.since("q", NOW) == (at(-6), "run--6")
    assert bounds.since("other", NOW) is None


def test_one_that_found_all_there_was_goes_on_a_little_before_its_moment(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=DEAR), 2)
    assert bounds.since("q", at(60)) == (NOW - MARGIN, "")


def test_what_has_just_become_due_is_looked_at_again(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-0.1, 0, passed_over=DEAR), 2)
    assert bounds.since("q", NOW) == (NOW - MARGIN, "")


def test_a_clock_that_was_set_back_hides_nothing_that_becomes_due(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=DEAR), 2)
    earlier = NOW - timedelta(hours=1)
    assert bounds.since("q", earlier) == (earlier - MARGIN, "")


def test_all_is_looked_at_again_after_a_rest_that_grows_with_the_cost(bounds: ClaimBounds, clock: Clock) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=DEAR), 1)
    clock.seconds += 1.9
    assert bounds.since("q", NOW) is not None
    clock.seconds += 0.2
    assert bounds.since("q", NOW) is None


def test_and_after_a_sweeps_interval_whatever_it_costs(bounds: ClaimBounds, clock: Clock) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=100 * DEAR), 1)
    for _ in range(3):  # claims in between put nothing off
        since = bounds.since("q", NOW)
        assert since is not None
        bounds.note("q", since, NOW, claimed(passed_over=100 * DEAR), 1)
    clock.seconds += conf.SWEEP_INTERVAL
    assert bounds.since("q", NOW) is None


def test_a_sweep_may_ask_for_it(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=DEAR), 1)
    bounds.forget("q")
    assert bounds.since("q", NOW) is None


def test_a_run_that_is_handed_back_is_found_again(bounds: ClaimBounds) -> None:
    bounds.note("q", None, NOW, claimed(-9, -8, -7, passed_over=DEAR), 3)
    bounds.include(a_run("run--8", wake_at=at(-8)))
    assert bounds.since("q", NOW) == (at(-8), "run--8")
    bounds.include(a_run("later", wake_at=at(-1)))
    assert bounds.since("q", NOW) == (at(-8), "run--8")


def test_a_look_at_all_may_move_back_to_what_came_late(bounds: ClaimBounds, clock: Clock) -> None:
    bounds.note("q", None, NOW, claimed(-9, passed_over=DEAR), 1)
    clock.seconds += 60
    bounds.note("q", None, NOW, claimed(-900, passed_over=DEAR), 1)
    assert bounds.since("q", NOW) == (at(-900), "run--900")


# -- in a worker


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
@override_settings(DURABLE={"SWEEP_INTERVAL": 3600})  # and so long may a process go on from where its last claim ended
def test_a_job_finds_late_runs_once_a_sweep_has_notified(redis_connection: redis.Redis) -> None:
    store = store_for("default")
    try:
        process_bounds.note("default", None, moments.now(), Claimed(passed_over=10_000 * DEAR), 1)
        [late] = new_runs(store, wake_at=moments.now() - timedelta(minutes=3))
        notify.notify("default")
        work_off("default", store=store, execute=_finish)
        assert store.states([late]) == {late: "pending"}, "the claim begins where the last one ended"
        Sweep(store).tick(moments.now())
        work_off("default", store=store, execute=_finish)
        assert store.states([late]) == {late: "completed"}
    finally:
        process_bounds.clear()


def _finish(record: RunRecord, *, store: Store, eviction: Eviction) -> PassOutcome:
    return finish(record, store)
