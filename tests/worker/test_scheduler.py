"""Which run a worker begins next: room, suspects, patience. A clock of the tests' own; no thread, no database."""

import itertools
from datetime import UTC, datetime

import pytest

from durable.core.records import RunRecord
from durable.worker.scheduler import DEFERRAL, MAX_DEFERRAL, MAX_WAIT, QUARANTINE, RunningPass, Scheduler

NOW = datetime(2026, 1, 1, tzinfo=UTC)
numbers = itertools.count()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def runs(count: int, crashes: int = 0) -> list[RunRecord]:
    return [
        RunRecord(
            id=f"run-{next(numbers)}",
            workflow="tests.none",
            queue="default",
            input="[]",
            created_at=NOW,
            crashes=crashes,
        )
        for _ in range(count)
    ]


def begin(line: Scheduler) -> RunningPass:
    turn = line.next()
    assert turn is not None
    return turn


def test_as_many_begin_as_there_is_room_for(clock: Clock) -> None:
    line = Scheduler(2, clock=clock)
    assert line.free_slots() == 2
    records = runs(3)
    line.add(records)
    assert (line.free_slots(), line.startable()) == (0, 2)
    first, second = begin(line), begin(line)
    assert [first.record, second.record] == records[:2]
    assert line.startable() == 0
    line.end(first)
    assert (line.free_slots(), line.startable()) == (0, 1)  # the third comes before any that might be claimed
    third = begin(line)
    line.end(second)
    line.end(third)
    assert (line.free_slots(), line.is_empty) == (2, True)


def test_a_pass_that_is_ended_twice_makes_room_once(clock: Clock) -> None:
    line = Scheduler(2, clock=clock)
    line.add(runs(2))
    first, _ = begin(line), begin(line)
    line.end(first)
    line.end(first)
    assert line.free_slots() == 1


def test_a_run_that_is_due_again_may_be_claimed_before_its_pass_has_ended_here(clock: Clock) -> None:
    line = Scheduler(2, clock=clock)
    (record,) = runs(1)
    line.add([record])
    first = begin(line)
    line.add([record])
    second = begin(line)
    line.end(first)
    assert (line.free_slots(), line.is_empty) == (1, False)
    line.end(second)
    assert line.is_empty


class TestWanted:
    def pass_one(self, line: Scheduler, clock: Clock, took: float) -> None:
        line.add(runs(1))
        turn = begin(line)
        clock.advance(took)
        line.end(turn)

    def test_at_first_only_what_can_begin_at_once(self, clock: Clock) -> None:
        line = Scheduler(4, clock=clock)
        assert line.claim_limit(10) == 4
        line.add(runs(3))
        begin(line)
        assert line.claim_limit(10) == 1
        line.add(runs(1))
        assert line.claim_limit(10) == 0

    @pytest.mark.parametrize(("took", "ahead"), [(0.0, 10), (0.01, 10), (0.03, 6), (0.15, 1), (10.0, 0)])
    def test_what_begins_soon_is_claimed_ahead(self, clock: Clock, took: float, ahead: int) -> None:
        line = Scheduler(4, clock=clock)
        self.pass_one(line, clock, took)
        assert line.claim_limit(10) == 4 + ahead

    def test_long_passes_end_that(self, clock: Clock) -> None:
        line = Scheduler(4, clock=clock)
        for took in (0.001, 0.001, 10.0):
            self.pass_one(line, clock, took)
        assert line.claim_limit(10) == 4

    def test_there_is_more_when_half_of_it_is_used_up(self, clock: Clock) -> None:
        line = Scheduler(2, clock=clock)
        self.pass_one(line, clock, 0.01)
        line.add(runs(2 + 10))
        turns = [begin(line), begin(line)]
        for left in range(10, 5, -1):
            assert line.claim_limit(10) == 0, left
            line.end(turns.pop())
            turns.append(begin(line))
        assert line.claim_limit(10) == 5

    def test_in_batches_it_is_a_whole_one(self, clock: Clock) -> None:
        """Nothing waits then: the batch before has been executed."""
        line = Scheduler(1, in_batches=True, clock=clock)
        assert line.claim_limit(10) == 10
        self.pass_one(line, clock, 60.0)
        assert line.claim_limit(10) == 10

    def test_nothing_beside_a_suspect(self, clock: Clock) -> None:
        line = Scheduler(2, clock=clock)
        self.pass_one(line, clock, 0.0)
        line.add(runs(1, crashes=1))
        assert line.claim_limit(10) == 0
        alone = begin(line)
        assert line.claim_limit(10) == 0
        line.end(alone)
        assert line.claim_limit(10) == 12


class TestSuspects:
    def test_others_finish_first_and_none_begins_beside_it(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        (suspect,), innocents = runs(1, crashes=1), runs(2)
        line.add([suspect, *innocents])
        turns = [begin(line), begin(line)]
        assert [each.record for each in turns] == innocents
        assert (line.next(), line.startable()) == (None, 0)
        line.end(turns[0])
        assert (line.next(), line.startable()) == (None, 0)
        line.end(turns[1])
        assert line.startable() == 1
        alone = begin(line)
        assert alone.record is suspect
        line.add(runs(1))
        assert (line.next(), line.startable(), line.free_slots()) == (None, 0, 0)
        line.end(alone)
        assert (line.startable(), line.next() is not None) == (1, True)

    def test_further_ones_are_sent_away(self, clock: Clock) -> None:
        """What only waits when a suspect kills the process would be counted as well."""
        line = Scheduler(3, clock=clock)
        (first, second, third), (innocent,) = runs(3, crashes=1), runs(1)
        assert line.add([first, innocent, second, third]) == ([second, third], [])
        turn = begin(line)
        assert turn.record is innocent
        line.end(turn)
        assert begin(line).record is first
        assert line.clear() == []

    def test_one_that_lives_on_has_company_again(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        line.add(runs(1, crashes=1))
        begin(line)
        assert line.free_slots() == 0
        clock.advance(QUARANTINE)
        assert line.free_slots() == 2
        line.add([*runs(1), *runs(1, crashes=1)])
        assert line.startable() == 2
        begin(line)
        assert line.next() is None  # the other suspect


class TestPatience:
    def test_a_run_that_waits_behind_passes_leaves(self, clock: Clock) -> None:
        line = Scheduler(1, clock=clock)
        (first, second), (suspect,) = runs(2), runs(1, crashes=2)
        line.add([first, suspect, second])
        begin(line)
        assert line.pop_expired() == ([], [])
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([second], [suspect])
        assert line.pop_expired() == ([], [])

    def test_in_batches_suspects_are_left_to_others_at_once(self, clock: Clock) -> None:
        """This worker claims none before the pass has ended."""
        line = Scheduler(1, in_batches=True, clock=clock)
        (first,), (suspect,) = runs(1), runs(1, crashes=2)
        line.add([first, suspect])
        turn = begin(line)
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([suspect], [])
        line.end(turn)
        assert line.add([suspect]) == ([], [])
        assert begin(line).record is suspect

    def test_no_run_leaves_that_could_begin(self, clock: Clock) -> None:
        line = Scheduler(1, clock=clock)
        line.add(runs(1))
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [])
        assert line.startable() == 1

    def test_where_one_suspect_found_no_moment_others_do_not_wait_for_one(self, clock: Clock) -> None:
        line = Scheduler(2, clock=clock)
        (suspect, *others), (long,) = runs(3, crashes=1), runs(1)
        line.add([long])
        turn = begin(line)
        line.add([suspect])
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [suspect])
        assert line.add(others) == ([], others)
        assert line.free_slots() == 1
        clock.advance(DEFERRAL)
        assert line.add(others) == (others[1:], [])
        line.end(turn)
        assert begin(line).record is others[0]

    def test_a_suspect_that_was_put_off_for_long_gets_its_turn(self, clock: Clock) -> None:
        line = Scheduler(2, clock=clock)
        (suspect, other), (long,) = runs(2, crashes=1), runs(1)
        line.add([long])
        turn = begin(line)
        line.add([suspect])
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [suspect])
        clock.advance(MAX_DEFERRAL - 1)
        line.add([other])
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [other])
        assert line.add([other, suspect]) == ([], [other])  # busy, but this one has waited for long
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [])
        assert (line.free_slots(), line.next()) == (0, None)
        line.end(turn)
        assert begin(line).record is suspect

    def test_what_was_put_off_is_forgotten_once_it_had_its_turn(self, clock: Clock) -> None:
        line = Scheduler(2, clock=clock)
        (suspect,), (long,) = runs(1, crashes=1), runs(1)
        line.add([long])
        turn = begin(line)
        line.add([suspect])
        clock.advance(MAX_WAIT)
        line.pop_expired()
        line.end(turn)
        line.add([suspect])
        line.end(begin(line))
        clock.advance(MAX_DEFERRAL)
        line.add([long])
        begin(line)
        line.add([suspect])
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [suspect])

    def test_a_waiting_run_can_be_taken_out(self, clock: Clock) -> None:
        line = Scheduler(1, clock=clock)
        first, second = runs(2)
        line.add([first, second])
        turn = begin(line)
        assert line.clear() == [second]
        line.end(turn)
        assert line.is_empty
