"""Rates of limits, on every store: the moment of each attempt, what is put off, closings, and what operators change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from durable.core import transitions
from durable.core.control_flow import LeaseLost
from durable.core.errors import RateUnitsError, UnknownLimitError
from durable.core.limits.rates import (
    LimitClosing,
    Rate,
    RateWant,
    RefusedStart,
    Reservation,
    counted,
    counts_of,
    nanoseconds,
)
from durable.core.records import ReservationDropped, RunRecord
from durable.store import Store
from tests.store.making import NOW, at, commit, park, started, the

SECOND = Rate.of("1/s")
API = RateWant("api", "", 1, SECOND)


def reserve(
    store: Store, run: RunRecord, now: float = 0, want: RateWant = API, location: str = "a", **options: object
) -> Reservation:
    return store.reserve(run.id, run.fence, location, want, at(now), **options)  # type: ignore[arg-type]  # named


def runs(store: Store, ids: str) -> list[RunRecord]:
    return [started(store, each) for each in ids]


def test_each_attempt_gets_a_moment_of_its_own_in_order(store: Store) -> None:
    given = [reserve(store, run) for run in runs(store, "abcd")]
    assert [each.at for each in given] == [at(0), at(1), at(2), at(3)]
    assert [each.begins for each in given] == [True, False, False, False]
    assert [each.before for each in given] == [0, 1, 2, 3]


def test_a_burst_begins_at_once(store: Store) -> None:
    want = RateWant("api", "", 1, Rate.of("1/s", 3))
    given = [reserve(store, run, want=want) for run in runs(store, "abcde")]
    assert [each.at for each in given] == [at(0), at(0), at(0), at(1), at(2)]
    assert [each.begins for each in given] == [True, True, True, False, False]


def test_a_rate_that_does_not_divide_keeps_its_burst(store: Store) -> None:
    want = RateWant("api", "", 1, Rate.of("3/s", 3))
    given = [reserve(store, run, want=want) for run in runs(store, "abcd")]
    assert [each.begins for each in given] == [True, True, True, False]
    assert at(0.333333) <= given[3].at <= at(0.333335)


def test_more_units_than_the_burst_cost_time(store: Store) -> None:
    one, two, three = runs(store, "abc")
    large = RateWant("api", "", 10, Rate.of("1/s", 4))
    assert reserve(store, one, want=large) == Reservation(at=at(6), begins=False, before=6)
    assert reserve(store, two, want=RateWant("api")).at == at(7)
    assert reserve(store, one, 6, want=large) == Reservation(at=at(6), begins=True)
    assert reserve(store, two, 7, want=RateWant("api")).begins
    assert reserve(store, three, 7, want=RateWant("api")).at == at(8)


def test_the_units_of_the_last_minute_are_counted(store: Store) -> None:
    ids = [f"r{number}" for number in range(20)]
    expected = ""
    quick = RateWant("api", "", 3, Rate.of("1000/s", 1000))
    for run_id, now in zip(ids, [0, 0, 4, 5, 7, 31, 64, 66, 300, 301], strict=False):
        assert reserve(store, started(store, run_id), now, quick).begins
        expected = counted(expected, nanoseconds(at(now)), 3)
        assert store.rate_keys("api", [""], at(now))[0].recent == expected
    assert counts_of(expected, nanoseconds(at(301)))[-1] == 6
    slow = RateWant("slow", "", 1, SECOND)
    reserve(store, started(store, "x"), 0, slow)
    reserve(store, started(store, "y"), 0, slow)
    assert counts_of(store.rate_keys("slow", [""], at(0))[0].recent, nanoseconds(at(0))) == [0] * 11 + [1]


def test_a_reservation_is_found_again(store: Store) -> None:
    one, two = runs(store, "ab")
    reserve(store, one)
    for now in (0.0, 0.5, 0.9):
        assert reserve(store, two, now) == Reservation(at=at(1), begins=False, before=0 if now else 1)
    assert reserve(store, two, 1).begins
    assert reserve(store, two, 1).at == at(2), "the next attempt"


def test_a_short_wait_begins_in_place(store: Store) -> None:
    one, two, three = runs(store, "abc")
    want = RateWant("api", "", 1, Rate.of("100/s"))
    assert reserve(store, one, want=want, patience=0.1).begins
    assert reserve(store, two, want=want, patience=0.1) == Reservation(at=at(0.01), begins=True, before=1)
    assert reserve(store, three, want=want, patience=0.1) == Reservation(at=at(0.02), begins=True, before=2)


def test_attempts_that_come_due_late_do_not_begin_together(store: Store) -> None:
    given = runs(store, "abcdef")
    for run in given:
        reserve(store, run)
    late = [reserve(store, run, 100) for run in given[1:]]
    assert [each.at for each in late] == [at(100), at(101), at(102), at(103), at(104)]
    assert [each.begins for each in late] == [True, False, False, False, False]
    assert reserve(store, given[0], 100).at == at(105), "behind those who wait"
    assert [reserve(store, run, 101 + n).begins for n, run in enumerate(given[2:])] == [True] * 4


def test_who_is_a_little_late_does_not_go_to_the_end(store: Store) -> None:
    one, two, *others = runs(store, "abcdef")
    for run in (one, two, *others):
        reserve(store, run)
    assert reserve(store, two, 1.4).begins, "0.4 s late"
    assert reserve(store, others[0], 2) == Reservation(at=at(2.4), begins=False)
    assert reserve(store, others[0], 2.4).begins


def test_a_reservation_alone_lets_nothing_begin(store: Store) -> None:
    one, two = runs(store, "ab")
    assert reserve(store, one, may_begin=False).begins
    assert reserve(store, one, 50, may_begin=False).begins, "due"
    assert reserve(store, one, 60).begins
    assert reserve(store, two, 60).at == at(60) + timedelta(seconds=1)


def test_keys_are_independent_and_a_closing_without_a_key_holds_for_all(store: Store) -> None:
    one, two, three = runs(store, "abc")
    acme, other = RateWant("api", "acme/🎉", 1, SECOND), RateWant("api", "other", 1, SECOND)
    assert reserve(store, one, want=acme).begins
    assert reserve(store, two, want=other).begins
    store.close_rate("api", "", LimitClosing(until=at(30)))
    assert reserve(store, three, 2, want=acme).at == at(30)


def test_nothing_begins_while_a_key_is_closed(store: Store) -> None:
    one, two, three = runs(store, "abc")
    reserve(store, one)
    assert reserve(store, two).at == at(1)
    assert store.close_rate("api", "", LimitClosing(until=at(30), by="ada", reason="429")) is None
    assert store.close_rate("api", "", LimitClosing(until=at(10)), is_longer=True) is not None, "closed for longer"
    assert reserve(store, three, 1).at == at(30)
    assert reserve(store, two, 1) == Reservation(at=at(30), begins=False), "checked again when due"
    [row] = store.rate_keys("api", [""], at(1))
    assert row.closing == LimitClosing(until=at(30), by="ada", reason="429")
    assert sorted([reserve(store, two, 30).begins, reserve(store, three, 30).begins]) == [False, True]


def test_opening_moves_the_attempts_that_wait(store: Store) -> None:
    one, two, three = runs(store, "abc")
    reserve(store, one)
    store.close_rate("api", "", LimitClosing(until=at(3600)))
    for run in (two, three):
        answer = reserve(store, run)
        park(store, run, wake_at=answer.at)
    assert the(store, "b").wake_at == at(3600)
    assert store.open_rate("api", "", at(10)) == (LimitClosing(until=at(3600)), frozenset({"q"}))
    assert [the(store, each).wake_at for each in "bc"] == [at(10), at(11)]
    assert store.open_rate("api", "", at(10)) is None
    assert reserve(store, the(store, "b"), 10).begins
    assert reserve(store, the(store, "c"), 10).at == at(11)


def test_an_operators_rate_moves_the_attempts_that_wait(store: Store) -> None:
    given = runs(store, "abcde")
    for run in given:
        answer = reserve(store, run)
        if not answer.begins:
            park(store, run, wake_at=answer.at)
    before, _queues = store.set_rate("api", Rate.of("10/s"), at(0.5)) or (None, None)
    assert before == SECOND
    assert [the(store, each).wake_at for each in "bcde"] == [at(0.55), at(0.65), at(0.75), at(0.85)]
    assert store.set_rate("api", None, at(0.5)) == (Rate.of("10/s"), frozenset())
    assert [reserve(store, the(store, each), 0.5).at for each in "bcde"] == [at(1), at(2), at(3), at(4)]
    assert store.set_rate("none", None, NOW) is None


def test_the_code_says_another_rate(store: Store) -> None:
    assert store.declare_rate("api", SECOND)
    assert not store.declare_rate("api", SECOND)
    assert store.declare_rate("api", Rate.of("2/s"))
    one, two = runs(store, "ab")
    reserve(store, one)
    assert reserve(store, two).at == at(0.5)


def test_a_clock_that_is_set_back_lets_nobody_begin_too_early(store: Store) -> None:
    one, two, three = runs(store, "abc")
    assert reserve(store, one, 0).begins
    assert reserve(store, two, -3600).at == at(1)
    assert not reserve(store, two, -3599).begins
    assert reserve(store, two, 1).begins
    assert reserve(store, three, -3600).at == at(2)


def test_a_run_that_ends_leaves_no_reservation(store: Store) -> None:
    one, two, three = runs(store, "abc")
    reserve(store, one)
    assert reserve(store, two).at == at(1)
    commit(store, two, run=transitions.completed(two, now=NOW, output="1"))
    [row] = store.rate_keys("api", [""], NOW)
    assert row.reserved_until == at(1), "only what has begun"
    assert reserve(store, three).at == at(1), "nobody waits behind it"
    [row] = store.rate_keys("api", [""], NOW)
    assert row.reserved_until == at(2)


def test_the_moments_of_ended_runs_are_given_again_where_nobody_waits_behind_them(store: Store) -> None:
    """Those between others stay reserved: nobody is moved because somebody else has ended."""
    many = runs(store, "abcdefgh")
    assert [reserve(store, each).at for each in many] == [at(number) for number in range(8)]
    for each in (many[2], *many[4:]):
        commit(store, each, run=transitions.completed(each, now=NOW, output="1"))
    late = started(store, "late")
    assert reserve(store, late).at == at(4), "behind the one that waits until 3"
    assert reserve(store, many[1], 1).begins
    assert reserve(store, many[3], 3).begins
    assert reserve(store, late, 4).begins


def test_what_is_refused(store: Store) -> None:
    [one] = runs(store, "a")
    with pytest.raises(UnknownLimitError, match='there is no limit "none" with a rate'):
        reserve(store, one, want=RateWant("none"))
    with pytest.raises(RateUnitsError, match='1,000 units of "rare/k" take more than a year at 1/week'):
        reserve(store, one, want=RateWant("rare", "k", 1_000, Rate.of("1/week")))
    with pytest.raises(LeaseLost):
        store.reserve(one.id, one.fence + 1, "a", API, NOW)


def idle(store: Store, now: float, want: RateWant = API) -> bool:
    """Whether the key of `want` is forgotten when nobody has used it since before `now`."""
    store.forget_limit_keys(at(now), 100)
    return not store.rate_keys(want.limit, [want.key], at(now))


def test_a_key_is_forgotten_once_its_units_are_over(store: Store) -> None:
    one, two = runs(store, "ab")
    five = RateWant("api", "", 5, Rate.of("1/s", 5))
    assert reserve(store, one, want=five).begins
    assert not idle(store, 4)
    assert idle(store, 6)
    assert reserve(store, two, 6, want=five).begins


def test_a_key_for_which_an_attempt_waits_is_kept(store: Store) -> None:
    one, two, three = runs(store, "abc")
    assert reserve(store, one).begins
    assert not reserve(store, two).begins
    assert not idle(store, 100)
    assert reserve(store, three).at == at(2), "its place is behind the one that waits"
    commit(store, three, run=transitions.completed(three, now=at(1), output="1"))
    commit(store, two, run=transitions.completed(two, now=at(1), output="1"))
    assert idle(store, 100)


def test_a_key_that_is_closed_or_has_just_refused_a_start_is_kept(store: Store) -> None:
    [one] = runs(store, "a")
    assert reserve(store, one).begins
    store.close_rate("api", "", LimitClosing(until=at(50)))
    assert not idle(store, 49)
    assert store.rate_keys("api", [""], at(49))[0].closing is not None
    store.note_refused("api", "", RefusedStart(at=at(80), workflow="w", run_id="r"))
    assert not idle(store, 79)
    assert idle(store, 81)


def test_no_more_keys_are_forgotten_than_asked_for(store: Store) -> None:
    [one] = runs(store, "a")
    keys = [RateWant("api", str(number), 1, SECOND) for number in range(5)]
    for want in keys:
        assert reserve(store, one, want=want, location=want.key).begins
    assert [store.forget_limit_keys(at(10), 2) for _ in range(4)] == [2, 2, 1, 0]


def test_what_a_step_reserved_that_waits_no_more_is_given_to_the_next(store: Store) -> None:
    one, two, three = runs(store, "abc")
    assert reserve(store, one).begins
    assert reserve(store, two, location="a").at == at(1)
    assert reserve(store, two, location="lost").at == at(2)
    commit(store, two, changes={ReservationDropped: [ReservationDropped("lost")]})
    assert reserve(store, three).at == at(2)
    assert reserve(store, two, 1, location="a").begins, "the other one is kept"
