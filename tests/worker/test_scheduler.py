"""Which run a worker begins next: room, suspects, patience. A clock of the tests' own; no thread, no database."""

import itertools
import random
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from durable.core.records import RunRecord
from durable.worker.scheduler import DEFERRAL, DRAIN, MAX_DEFERRAL, MAX_WAIT, QUARANTINE, RunningPass, Scheduler

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

    def test_in_batches_it_is_a_whole_one_at_first(self, clock: Clock) -> None:
        """Nothing waits then: the batch before has been executed."""
        assert Scheduler(1, in_batches=True, clock=clock).claim_limit(10) == 10

    @pytest.mark.parametrize(("took", "limit"), [(0.0, 10), (0.025, 10), (0.06, 4), (0.2, 2), (60.0, 2)])
    def test_in_batches_it_is_what_begins_soon(self, clock: Clock, took: float, limit: int) -> None:
        """Two at least: a claim that finds one run is not full, so no other worker is notified."""
        line = Scheduler(1, in_batches=True, clock=clock)
        self.pass_one(line, clock, took)
        assert (line.claim_limit(10), line.claim_limit(1)) == (limit, 1)

    def test_many_free_slots_are_filled_by_several_claims(self, clock: Clock) -> None:
        line = Scheduler(20, clock=clock)
        assert line.claim_limit(10) == 10
        line.add(runs(10))
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
        others = runs(1, crashes=1)
        assert line.add([*runs(1), *others]) == ([], others)  # it would be counted if this one still kills the process
        assert line.startable() == 1
        begin(line)
        assert line.free_slots() == 1

    def test_one_whose_attempt_has_ended_well_is_none_any_more(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        (first, second) = runs(2, crashes=1)
        line.add([first])
        begin(line)
        assert line.free_slots() == 0
        first.crashes = 0  # as the pass notes it
        assert line.free_slots() == 2
        assert line.add([second]) == ([], [])


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

    def put_off(self, line: Scheduler, clock: Clock, suspects: list[RunRecord]) -> None:
        """Have suspects put off for as long as they are left to others; a pass is under way."""
        for each in suspects:
            line.add([each])
            clock.advance(MAX_WAIT)
            assert each in line.pop_expired()[1]
            clock.advance(DEFERRAL)
        clock.advance(MAX_DEFERRAL)

    def test_a_suspect_that_was_put_off_for_long_begins_beside_a_long_pass(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        (suspect,), (long, new) = runs(1, crashes=1), runs(2)
        line.add([long])
        begin(line)
        self.put_off(line, clock, [suspect])
        line.add([suspect])
        assert line.startable() == 1
        turn = begin(line)
        assert turn.record is suspect
        assert line.claim_limit(10) == 0  # nothing begins beside it for a while
        clock.advance(QUARANTINE)
        assert line.claim_limit(10) == 1
        line.add([new])
        assert begin(line).record is new

    def test_it_waits_for_passes_that_may_be_short(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        (suspect,), (long, *others) = runs(1, crashes=1), runs(3)
        line.add([long])
        begin(line)
        self.put_off(line, clock, [suspect])
        line.add(others[:1])
        short = begin(line)
        line.add([suspect])
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [])
        assert (line.free_slots(), line.claim_limit(10), line.startable(), line.next()) == (0, 0, 0, None)
        clock.advance(DRAIN - MAX_WAIT - 0.1)
        assert (line.startable(), line.next()) == (0, None)
        line.end(short)
        assert begin(line).record is suspect

    def test_for_passes_that_are_not_short_it_waits_a_bounded_time(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        (suspect,), (long, other) = runs(1, crashes=1), runs(2)
        line.add([long])
        begin(line)
        self.put_off(line, clock, [suspect])
        line.add([other])
        begin(line)
        line.add([suspect])
        clock.advance(DRAIN)
        assert line.pop_expired() == ([], [])
        assert begin(line).record is suspect

    def test_without_a_free_slot_it_is_left_to_others_still(self, clock: Clock) -> None:
        line = Scheduler(2, clock=clock)
        (suspect,), (long, other) = runs(1, crashes=1), runs(2)
        line.add([long])
        begin(line)
        self.put_off(line, clock, [suspect])
        line.add([other, suspect])
        begin(line)
        clock.advance(MAX_WAIT)
        assert line.pop_expired() == ([], [suspect])

    def test_no_suspect_begins_beside_another_and_new_runs_begin_meanwhile(self, clock: Clock) -> None:
        line = Scheduler(3, clock=clock)
        (first, second), (long, new) = runs(2, crashes=1), runs(2)
        line.add([long])
        begin(line)
        self.put_off(line, clock, [first, second])
        line.add([first])
        turn = begin(line)
        clock.advance(100 * QUARANTINE)
        assert line.add([second, new]) == ([], [second])
        assert begin(line).record is new
        line.end(turn)
        clock.advance(100 * QUARANTINE)
        assert line.add([second]) == ([], [])
        assert begin(line).record is second

    @pytest.mark.parametrize("took", [1.0, 20.0, 1000.0])
    def test_others_have_half_of_the_time_between_two_suspects(self, clock: Clock, took: float) -> None:
        line = Scheduler(4, clock=clock)
        (first, second), (long,) = runs(2, crashes=1), runs(1)
        line.add([long])
        begin(line)
        self.put_off(line, clock, [first, second])
        assert line.add([first, second]) == ([second], [])
        turn = begin(line)
        clock.advance(took)
        line.end(turn)
        began, is_waiting = clock.now, False
        while not line.startable():
            if not is_waiting:
                is_waiting = line.add([second]) == ([], [])
            clock.advance(0.5)
            is_waiting = is_waiting and second not in line.pop_expired()[1]
        assert clock.now - began >= (took if took < QUARANTINE else 0.0)

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


@dataclass(eq=False)
class Job:
    """A run of the simulated worker: its pass lasts `takes`, and kills the worker at its end if it `kills`."""

    record: RunRecord
    takes: float
    kills: bool = False
    due_at: float = 0.0
    began_at: float | None = None
    ended_at: float | None = None
    lost_attempts: int = 0


class Fleet:
    """One worker of the Scheduler on a virtual clock: it claims, begins, dies and starts again."""

    def __init__(self, size: int, jobs: list[Job], clock: Clock) -> None:
        self.size, self.jobs, self.clock = size, jobs, clock
        self.by_id = {job.record.id: job for job in jobs}
        self.line = Scheduler(size, clock=clock)
        self.turns: list[tuple[RunningPass, bool]] = []
        self.waiting: set[str] = set()
        #: The longest time in which runs were due, a slot was free and none began.
        self.longest = self._idle_since = 0.0

    def tick(self) -> None:
        self.clock.advance(0.25)
        self._end_passes()
        self._give_back(*self.line.pop_expired())
        due = sorted((job for job in self.jobs if self._is_due(job)), key=lambda job: job.due_at)
        batch = [job.record for job in due[: self.line.claim_limit(10)]]
        self.waiting |= {each.id for each in batch}
        self._give_back(*self.line.add(batch))
        self._measure(due, self._begin())

    def _is_due(self, job: Job) -> bool:
        is_here = job.record.id in self.waiting or any(turn.record is job.record for turn, _ in self.turns)
        return job.due_at <= self.clock.now and job.ended_at is None and not is_here

    def _begin(self) -> bool:
        has_begun = False
        while self.line.startable() and (turn := self.line.next()) is not None:
            self.waiting.discard(turn.record.id)
            self.turns.append((turn, bool(turn.record.crashes)))
            job = self.by_id[turn.record.id]
            job.began_at = job.began_at or self.clock.now
            has_begun = True
        return has_begun

    def _give_back(self, released: list[RunRecord], deferred: list[RunRecord]) -> None:
        for records, pause in ((released, 0.0), (deferred, DEFERRAL)):
            for each in records:
                self.waiting.discard(each.id)
                self.by_id[each.id].due_at = self.clock.now + pause

    def _end_passes(self) -> None:
        for turn, was_suspect in list(self.turns):
            job = self.by_id[turn.record.id]
            if self.clock.now - turn.began_at < job.takes:
                continue
            if job.kills:
                return self._die(job)
            self.line.end(turn)
            self.turns.remove((turn, was_suspect))
            turn.record.crashes, job.ended_at = 0, self.clock.now
        return None

    def _die(self, killer: Job) -> None:
        """Count a crash for all that the worker had, and an attempt for those whose attempts are recorded before."""
        for turn, was_suspect in self.turns:
            turn.record.crashes += 1
            self.by_id[turn.record.id].lost_attempts += was_suspect
        for each in self.waiting:
            self.by_id[each].record.crashes += 1
        if killer.lost_attempts == 3:
            killer.ended_at = self.clock.now
        self.line, self.turns, self.waiting = Scheduler(self.size, clock=self.clock), [], set()

    def _measure(self, due: list[Job], has_begun: bool) -> None:
        innocents = [job for job in due if not job.record.crashes]
        if has_begun or not innocents or len(self.turns) == self.size:
            self._idle_since = self.clock.now
        self.longest = max(self.longest, self.clock.now - self._idle_since)


@pytest.mark.parametrize("seed", range(8))
def test_beside_long_passes_and_killers_everything_ends_and_nothing_stands_still(clock: Clock, seed: int) -> None:
    """A killer costs no innocent run an attempt: it is beside each one at most once before that one makes progress."""
    chance = random.Random(seed)
    start = clock.now
    long = [Job(run, chance.uniform(300, 900), due_at=start + chance.uniform(10, 60)) for run in runs(3)]
    short = [Job(run, chance.uniform(0.1, 20), due_at=start + chance.uniform(0, 300)) for run in runs(60)]
    killers = [Job(run, chance.uniform(0.1, 30), kills=True, due_at=start + 5) for run in runs(1 + seed % 2)]
    fleet = Fleet(8, [*long, *short, *killers], clock)
    while any(job.ended_at is None for job in fleet.jobs):
        fleet.tick()
        assert clock.now - start < 40_000, "something starves"
    assert [job.lost_attempts for job in killers] == [3] * len(killers)
    assert {job.lost_attempts for job in (*long, *short)} <= ({0} if len(killers) == 1 else {0, 1})
    assert fleet.longest <= 45  # seconds: MAX_WAIT, DRAIN and QUARANTINE
