"""Several passes at once in one process, on real databases and a real Redis: slots, leases, hand-over, suspects."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import redis
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from durable.core.control_flow import LeaseLost
from durable.core.records import RunRecord, RunState
from durable.core.witnesses import is_of_first_claim
from durable.execution.environment import Eviction
from durable.execution.passes import PassOutcome
from durable.notifier import redis_clients
from durable.store import Store
from durable.worker import leases, loop, rq, scheduler
from durable.worker.loop import ThreadPool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from durable.worker.rq import SimpleWorker
from tests.support.databases import only_with_a_server
from tests.support.locks import sessions
from tests.support.notifications import jobs, take_job
from tests.support.runs import Passes, assert_released, finish, new_runs, park, state
from tests.support.waiting import eventually
from tests.support.worker import lease_manager

pytestmark = [
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_connection", "unlogged"),
]
QUEUE = "default"
WAIT = 120.0  # seconds until a test gives up


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience ends at once, and is looked at often."""
    monkeypatch.setattr(scheduler, "MAX_WAIT", 0.02)
    monkeypatch.setattr(loop, "TICK", 0.01)
    monkeypatch.setattr(leases, "TICK", 0.01)


class Held(Passes):
    """An executor whose passes last until they are released, one by one or all; how many there are at once."""

    def __init__(self) -> None:
        super().__init__(self.wait)
        self.one_by_one: dict[str, threading.Event] = {}
        self.at_once = 0
        self.most = 0
        self.beside: dict[str, int] = {}
        self._lock = threading.Lock()

    def wait(self, record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
        mine = self.one_by_one.setdefault(record.id, threading.Event())
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.beside[record.id] = self.at_once - 1
        try:
            while not (self.release.is_set() or mine.wait(0.005)):
                if eviction.requested:
                    if eviction.is_lost:
                        raise LeaseLost
                    return park(record, store, None)
        finally:
            with self._lock:
                self.at_once -= 1
        return finish(record, store)

    def let(self, run_id: str) -> None:
        self.one_by_one.setdefault(run_id, threading.Event()).set()


@contextmanager
def at_work(size: int, store: Store, execute: Passes) -> Iterator[WorkerLoop]:
    """A worker with threads whose runs are released at the end, with all its connections closed."""
    with WorkerLoop(ThreadPool(size), store=store, execute=execute, stop=ShutdownFlag()) as made:
        yield made


def room(made: WorkerLoop) -> None:
    made.wait_for_room()


def answer(made: WorkerLoop) -> None:
    """Take durable's jobs, as RQ's worker does."""
    for _ in jobs():
        room(made)
        take_job()
        made.work(QUEUE)


def are_completed(made: WorkerLoop, store: Store, ids: Iterable[str]) -> bool:
    """Whether the runs are, while the worker takes further jobs: what is slow to begin is released, and notified of."""
    answer(made)
    return {state(store, each).state for each in ids} == {RunState.COMPLETED}


@contextmanager
def beside(*calls: Callable[[], object]) -> Iterator[None]:
    """Make the calls, one after the other, in a thread beside the block; it has ended when the block is left."""

    def run() -> None:
        try:
            for call in calls:
                call()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)  # which must not outlive a test that fails
    thread.start()
    yield
    thread.join(WAIT)
    assert not thread.is_alive()


def suspects(store: Store, count: int = 1) -> list[str]:
    """Runs whose worker has died: leased once, and the lease ran out."""
    ids = new_runs(store, count)
    now = timezone.now()
    for each in ids:
        long_ago = now - timedelta(seconds=1)
        assert store.claim_run(each, now=now, lease_until=long_ago, worker="dead") is not None
    return ids


class TestAtOnce:
    def test_runs_that_wait_for_each_other_complete(self, store: Store) -> None:
        ids = new_runs(store, 4)
        meeting = threading.Barrier(4, timeout=WAIT)

        def meet(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            meeting.wait()
            return finish(record, store)

        with at_work(4, store, Passes(meet)) as made:
            made.work(QUEUE)
            eventually(lambda: {state(store, each).state for each in ids} == {RunState.COMPLETED})

    def test_never_more_than_there_are_slots(self, store: Store) -> None:
        ids = new_runs(store, 40)
        seen: list[int] = []
        guard, now = threading.Lock(), [0]

        def count(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            with guard:
                now[0] += 1
                seen.append(now[0])
            outcome = finish(record, store)
            with guard:
                now[0] -= 1
            return outcome

        passes = Passes(count)
        with at_work(3, store, passes) as made:
            made.work(QUEUE)
            eventually(lambda: are_completed(made, store, ids))
        assert sorted(passes.passed) == sorted(ids)
        assert 1 <= max(seen) <= 3

    def test_a_job_ends_while_passes_are_under_way_and_the_next_one_finds_room(self, store: Store) -> None:
        (long,) = new_runs(store)
        held = Held()
        with at_work(2, store, held) as made:
            made.work(QUEUE)
            (quick,) = new_runs(store)  # as a message does: due while another run's step is under way
            room(made)
            made.work(QUEUE)
            held.let(quick)
            eventually(lambda: state(store, quick).state == RunState.COMPLETED)
            assert state(store, long).state == RunState.RUNNING
            held.release.set()
            eventually(lambda: state(store, long).state == RunState.COMPLETED)

    def test_runs_of_other_queues_begin_beside_it(self, store: Store) -> None:
        (long,), (urgent,) = new_runs(store), new_runs(store, queue="high")
        held = Held()
        with at_work(2, store, held) as made:
            made.work(QUEUE)
            made.work("high")
            held.let(urgent)
            eventually(lambda: state(store, urgent).state == RunState.COMPLETED)
            assert state(store, long).state == RunState.RUNNING

    def test_only_what_can_begin_is_claimed_and_the_rest_is_notified_of(self, store: Store) -> None:
        new_runs(store, 5)
        held = Held()
        with at_work(2, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 2)
            assert len(jobs()) == 1
            now = timezone.now()
            left = store.claim(queue=QUEUE, now=now, lease_until=now, worker="another", limit=10)
            assert len(left) == 3

    def test_a_job_ends_while_no_slot_is_free_and_no_other_is_taken(self, store: Store) -> None:
        ids = new_runs(store, 3)
        held = Held()
        with at_work(2, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 2)
            assert len(jobs()) == 1  # for others, and for this worker once it has a slot
            order: list[str] = []
            with beside(lambda: room(made), lambda: order.append("room")):
                order.append("release")
                held.let(held.passed[0])
            assert order == ["release", "room"]
            take_job()
            made.work(QUEUE)
            held.release.set()
            eventually(lambda: {state(store, each).state for each in ids} == {RunState.COMPLETED})

    def test_the_wait_for_a_free_slot_ends_in_time_for_heartbeats(self, store: Store) -> None:
        new_runs(store)
        held = Held()
        with at_work(1, store, held) as made:
            made.work(QUEUE)
            assert not made.wait_for_room(0.0)
            held.release.set()
            assert made.wait_for_room()

    def test_rqs_worker_sends_heartbeats_while_no_slot_is_free(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rq, "SIGN_EVERY", 0.01)
        new_runs(store)
        held = Held()
        beats: list[int] = []

        def beat() -> None:
            beats.append(1)
            if len(beats) < 3:
                raise redis.ConnectionError("Redis is away, which decides nothing")
            held.release.set()

        queue = redis_clients.rq_queue(QUEUE)
        worker = SimpleWorker([queue], connection=queue.connection)
        monkeypatch.setattr(worker, "heartbeat", beat)
        with at_work(1, store, held) as worker.loop:
            worker.loop.work(QUEUE)
            assert worker.dequeue_job_and_maintain_ttl(None) is not None  # for the rest that may be due
        assert len(beats) >= 3

    @pytest.mark.usefixtures("hasty")
    def test_what_waits_behind_long_passes_goes_back(self, store: Store) -> None:
        """Passes were quick, so runs were claimed ahead; then one was long."""
        before = new_runs(store, 20)
        held = Held()
        held.release.set()
        with at_work(1, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: are_completed(made, store, before))
            held.release.clear()
            jobs_before = len(jobs())
            ids = new_runs(store, 5)
            made.work(QUEUE)
            eventually(lambda: held.at_once == 1)
            with beside(lambda: room(made)):
                begun = next(each for each in ids if each in held.passed)
                left = [each for each in ids if each != begun]
                eventually(lambda: {state(store, each).lease_expires_at for each in left} == {None})
                assert state(store, begun).lease_expires_at is not None
                eventually(lambda: len(jobs()) == jobs_before + 1)
                held.release.set()


class TestSuspects:
    def test_it_is_passed_alone(self, store: Store) -> None:
        """Others that are under way finish first, and none begins beside it."""
        innocents = new_runs(store, 2)
        held = Held()
        with at_work(4, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 2)
            [suspect] = suspects(store)
            more = new_runs(store, 1)
            made.work(QUEUE)
            eventually(lambda: held.at_once == 3)
            assert suspect not in held.passed
            for each in (*innocents, *more):
                held.let(each)
            eventually(lambda: suspect in held.passed)
            new_runs(store, 3)
            with beside(lambda: room(made), lambda: made.work(QUEUE)):
                eventually(lambda: held.beside.get(suspect) == 0)
                held.let(suspect)
            eventually(lambda: held.at_once == 3)
            assert held.passed.index(suspect) == 3
        assert held.beside[suspect] == 0

    def test_each_of_several_is_alone(self, store: Store) -> None:
        ids = suspects(store, 3)
        held = Held()
        with at_work(4, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 1)
            others = [each for each in ids if each not in held.passed]
            assert {state(store, each).lease_expires_at for each in others} == {None}  # or their claim would be a crash
            held.release.set()
            eventually(lambda: are_completed(made, store, ids))
        assert held.most == 1

    @pytest.mark.usefixtures("hasty")
    def test_behind_a_long_pass_it_is_left_to_others(self, store: Store) -> None:
        (long,) = new_runs(store)
        held = Held()
        with at_work(2, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 1)
            [suspect] = suspects(store)
            made.work(QUEUE)
            room(made)
            eventually(lambda: state(store, suspect).lease_expires_at is None)
            found = state(store, suspect)
            assert found.crashes == 1
            assert found.wake_at is not None
            assert found.wake_at > timezone.now()  # else this worker would claim it again and again
            (quick,) = new_runs(store)
            made.work(QUEUE)
            held.let(quick)
            eventually(lambda: state(store, quick).state == RunState.COMPLETED)
            assert held.passed == [long, quick]

    @pytest.mark.usefixtures("hasty")
    def test_beside_a_long_pass_it_begins_after_a_while_and_new_runs_do_after_it(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduler, "MAX_DEFERRAL", 0.1)
        monkeypatch.setattr(leases, "DEFERRAL", 0.0)
        monkeypatch.setattr(scheduler, "DRAIN", 0.0)
        monkeypatch.setattr(scheduler, "QUARANTINE", 0.1)
        (long,) = new_runs(store)
        held = Held()
        with at_work(3, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 1)
            [suspect] = suspects(store)

            def serve() -> None:
                while not held.release.is_set():
                    made.work(QUEUE)
                    made.wait_for_room(0.01)

            with beside(serve):
                eventually(lambda: suspect in held.passed)
                assert held.beside[suspect] == 1
                (new,) = new_runs(store)
                eventually(lambda: new in held.passed)
                held.release.set()
            eventually(lambda: are_completed(made, store, [long, suspect, new]))
        assert held.passed == [long, suspect, new]


@pytest.mark.slow
class TestLeases:
    def test_an_old_lease_is_renewed_though_others_are_claimed_all_the_time(self, store: Store) -> None:
        (long,) = new_runs(store)
        held = Held()
        with override_settings(DURABLE={"LEASE": 6.0}), at_work(2, store, held) as made:
            made.work(QUEUE)
            first = state(store, long).lease_expires_at
            assert first is not None

            def is_renewed() -> bool:
                (quick,) = new_runs(store)
                held.let(quick)
                room(made)
                made.work(QUEUE)
                return (state(store, long).lease_expires_at or first) > first + timedelta(seconds=2.0)

            eventually(is_renewed)
            assert is_of_first_claim(state(store, long).fence)
            held.release.set()
            eventually(lambda: state(store, long).state == RunState.COMPLETED)

    def test_a_lost_lease_evicts_that_pass_alone(self, store: Store) -> None:
        ids = new_runs(store, 3)
        held = Held()
        with override_settings(DURABLE={"LEASE": 9.0}), at_work(3, store, held) as made:
            made.work(QUEUE)
            eventually(lambda: held.at_once == 3)
            later = timezone.now() + timedelta(hours=1)
            assert store.claim_run(ids[0], now=later, lease_until=later, worker="another") is not None
            eventually(lambda: held.at_once == 2)
            held.release.set()
            eventually(lambda: {state(store, each).state for each in ids[1:]} == {RunState.COMPLETED})
        assert state(store, ids[0]).worker == "another"
        assert held.passed.count(ids[1]) == held.passed.count(ids[2]) == 1

    def test_the_end_of_a_pass_leaves_a_newer_claim_of_its_run_in_care(self, store: Store) -> None:
        """The run was due again, and was claimed here before the slot had come to its end."""
        (run_id,) = new_runs(store)
        now = timezone.now()
        first = store.claim_run(run_id, now=now, lease_until=now, worker="us")
        second = store.claim_run(run_id, now=now, lease_until=now + timedelta(minutes=1), worker="us")
        assert first is not None
        assert second is not None
        care = lease_manager(store, ShutdownFlag())
        care.add([first], 0.0)
        assert care.pass_started(first, Eviction())
        care.add([second], 0.0)
        care.pass_ended(first)
        assert care.unstarted() == [second]


class TestStop:
    def test_all_are_handed_over_at_once(self, store: Store) -> None:
        ids = new_runs(store, 5)
        held, stop = Held(), ShutdownFlag()
        with WorkerLoop(ThreadPool(3), store=store, execute=held, stop=stop) as made, beside(lambda: made.work(QUEUE)):
            eventually(lambda: held.at_once == 3)
            stop.request()
        assert held.at_once == 0
        assert_released(store, ids)

    def test_nothing_is_claimed_after_a_stop(self, store: Store) -> None:
        new_runs(store)
        passes, stop = Passes(), ShutdownFlag()
        with WorkerLoop(ThreadPool(2), store=store, execute=passes, stop=stop) as made:
            stop.request()
            made.work(QUEUE)
            room(made)
        assert passes.passed == []
        assert len(jobs()) == 1

    def test_leaving_it_is_a_stop(self, store: Store) -> None:
        (run_id,) = new_runs(store)
        with at_work(2, store, Held()) as made:
            made.work(QUEUE)
        found = state(store, run_id)
        assert (found.lease_expires_at, found.crashes) == (None, 0)

    def test_the_second_signal_waits_for_nothing(self, store: Store) -> None:
        new_runs(store)
        held = Held()
        made = WorkerLoop(ThreadPool(1), store=store, execute=held, stop=ShutdownFlag())
        made.__enter__()
        made.work(QUEUE)
        eventually(lambda: held.at_once == 1)
        made.__exit__(SystemExit, SystemExit(), None)
        assert held.at_once == 1
        assert [each.daemon for each in threading.enumerate() if each.name == "durable-worker-thread"] == [True]
        held.release.set()
        made._pool.end()


class TestFaults:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
    def test_what_would_end_a_process_ends_a_pass(
        self, store: Store, error: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        (bad,) = new_runs(store)

        def fail(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            if record.id == bad:
                transaction.set_autocommit(False)
                raise error
            return finish(record, store)

        with at_work(1, store, Passes(fail)) as made:
            made.work(QUEUE)
            room(made)
            good = new_runs(store, 3)
            made.work(QUEUE)
            eventually(lambda: are_completed(made, store, good))
        assert state(store, bad).lease_expires_at is not None  # tried again when that runs out, not at once
        assert error.__name__ in caplog.text
        assert [each for each in caplog.records if each.levelno >= logging.ERROR]

    def test_connections_that_the_server_ended_are_replaced(self, store: Store) -> None:
        only_with_a_server()
        ids = new_runs(store, 6)

        def end_it(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            if record.id == ids[0] and is_of_first_claim(record.fence):
                with connection.cursor() as cursor:  # as a restart does: this slot's connection breaks
                    cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return finish(record, store)

        with at_work(2, store, Passes(end_it)) as made:
            made.work(QUEUE)
            eventually(lambda: are_completed(made, store, ids))


def finish_and_look(seen: set[int]) -> Callable[[RunRecord, Store, Eviction], PassOutcome]:
    """Ends runs, and notes which connection that took."""

    def finish_it(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
        outcome = finish(record, store)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            seen.add(cursor.fetchone()[0])
        return outcome

    return finish_it


class TestConnections:
    def test_each_slot_keeps_one_between_passes_and_none_is_left(self, store: Store) -> None:
        only_with_a_server()
        before, seen = sessions(), set[int]()
        look = finish_and_look(seen)
        meeting = threading.Barrier(4, timeout=WAIT)

        def meet(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            outcome = look(record, store, eviction)
            meeting.wait()
            return outcome

        passes = Passes(meet)
        with at_work(4, store, passes) as made:
            new_runs(store, 4)
            made.work(QUEUE)
            room(made)
            passes.what = look
            ids = new_runs(store, 40)
            made.work(QUEUE)
            eventually(lambda: are_completed(made, store, ids))
            assert len(sessions() - before) <= 5  # the threads', and perhaps the LeaseManager's
        assert len(seen) == 4
        eventually(lambda: not sessions() & seen)

    def test_a_slot_that_rests_gives_its_connection_back(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """With CONN_MAX_AGE at 0, its default."""
        only_with_a_server()
        monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
        monkeypatch.setattr(loop, "FIRST_CHECK", 0.01)
        seen: set[int] = set()
        passes = Passes(finish_and_look(seen))
        with at_work(3, store, passes) as made:
            ids = new_runs(store, 10)
            made.work(QUEUE)
            eventually(lambda: are_completed(made, store, ids))
            eventually(lambda: not sessions() & seen)
            (again,) = new_runs(store)
            made.work(QUEUE)
            eventually(lambda: state(store, again).state == RunState.COMPLETED)
