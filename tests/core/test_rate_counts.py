"""The units of the last minute, in fives of seconds."""

from __future__ import annotations

from durable.core.limits.rates import BUCKETS, SECONDS, counted, counts_of

START = 1_000 * SECONDS * 1_000_000_000


def at(seconds: float) -> int:
    return START + round(seconds * 1_000_000_000)


def test_nothing_has_begun() -> None:
    assert counts_of("", at(0)) == [0] * BUCKETS


def test_units_are_counted_where_they_begin() -> None:
    recent = ""
    for seconds, units in ((0, 1), (4.999, 2), (5, 10), (54, 100)):
        recent = counted(recent, at(seconds), units)
    assert counts_of(recent, at(55)) == [3, 10, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0]
    assert counts_of(recent, at(60)) == [10, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0]
    assert counts_of(recent, at(114)) == [0] * BUCKETS


def test_a_long_pause_empties_it() -> None:
    recent = counted(counted("", at(0), 7), at(86_400), 1)
    assert counts_of(recent, at(86_400)) == [0] * (BUCKETS - 1) + [1]


def test_a_clock_that_is_set_back_counts_where_the_newest_are() -> None:
    recent = counted(counted("", at(60), 1), at(0), 1)
    assert counts_of(recent, at(60))[-1] == 2
    assert counts_of(recent, at(0))[-1] == 2


def test_the_text_is_short() -> None:
    recent = ""
    for number in range(100):
        recent = counted(recent, at(SECONDS * number), 1_000_000_000)
    assert len(recent) < 200
