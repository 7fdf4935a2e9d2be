"""One job of a worker that executes one run at a time, on real databases and Redis: the loop, leases, outages."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, timedelta
from typing import Any

import pytest
import redis
from django.db import InterfaceError, OperationalError, close_old_connections, connection, connections, transaction
from django.test import override_settings
from django.utils import timezone, translation

from durable import Context, current_step, get_run, workflow
from durable.conf import conf
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.records import RunRecord, RunState
from durable.core.witnesses import is_of_first_claim
from durable.execution import connections as process
from durable.execution.environment import LEASE_LOST, Eviction
from durable.execution.passes import PassOutcome, execute_pass
from durable.models import Run
from durable.notifier import enqueue, notify
from durable.store import Store
from durable.store.base import Renewed
from durable.worker import leases, presence, rq_jobs, scheduler
from durable.worker.executor import Execute
from durable.worker.presence import ShutdownFlag
from tests.support.databases import only_with_a_server
from tests.support.notifications import jobs, take_job
from tests.support.runs import Passes, assert_released, finish, new_runs, park, state
from tests.support.waiting import eventually
from tests.support.worker import work_off

pytestmark = [
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("redis_connection", "unlogged"),
]
QUEUE = "default"


@contextmanager
def in_thread(
    store: Store, execute: Execute, stop: ShutdownFlag | None = None, pulse: Callable[[], object] | None = None
) -> Iterator[threading.Thread]:
    """Do one job in a thread of its own, with connections of its own."""
    stop = stop or ShutdownFlag()

    def run() -> None:
        try:
            work_off(QUEUE, store=store, execute=execute, stop=stop, pulse=pulse)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        stop.request()
        thread.join(120)
        assert not thread.is_alive()


class TestLoop:
    def test_every_due_run_is_passed_once(self, store: Store) -> None:
        ids = new_runs(store, 25)
        passes = Passes()
        work_off(QUEUE, store=store, execute=passes)
        assert sorted(passes.passed) == sorted(ids)
        assert {state(store, each).state for each in ids} == {RunState.COMPLETED}

    def test_other_queues_and_later_runs_are_left_alone(self, store: Store) -> None:
        new_runs(store, queue="high")
        new_runs(store, wake_at=timezone.now() + timedelta(hours=1))
        passes = Passes()
        work_off(QUEUE, store=store, execute=passes)
        assert passes.passed == []

    def test_a_notification_is_acknowledged_before_the_claim(self, store: Store, redis_connection: redis.Redis) -> None:
        notify.notify(QUEUE)
        take_job()
        seen: list[int] = []

        class Watched:
            def __getattr__(self, name: str) -> object:
                if name == "claim":
                    seen.append(int(str(redis_connection.exists(enqueue.KEY.format(QUEUE)))))
                return getattr(store, name)

        work_off(QUEUE, store=Watched(), execute=Passes())  # type: ignore[arg-type]
        assert seen == [0]
        assert jobs() == []  # nothing was due, so no job is needed

    def test_a_full_batch_wakes_another_worker_before_the_work(self, store: Store) -> None:
        new_runs(store, 3)
        counts: list[int] = []

        def note(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            counts.append(len(jobs()))
            return finish(record, store)

        with override_settings(DURABLE={"CLAIM_BATCH": 2}):
            work_off(QUEUE, store=store, execute=Passes(note))
        assert counts == [1, 1, 1]

    def test_a_notification_that_no_worker_has_taken_is_taken_back(self, store: Store) -> None:
        new_runs(store, 4)
        passes = Passes()
        with override_settings(DURABLE={"CLAIM_BATCH": 2}):
            work_off(QUEUE, store=store, execute=passes)
        assert len(passes.passed) == 4
        assert jobs() == []

    def test_a_run_whose_notification_is_taken_back_is_claimed(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It becomes due after the claim that finds nothing, and its notification is coalesced with the pending one."""
        ids = new_runs(store, 2)
        passes, take_back = Passes(), notify.take_back

        def late(queue: str) -> bool:
            if len(ids) == 2:
                ids.extend(new_runs(store))
                notify.notify(QUEUE)
                assert len(jobs()) == 1
            return take_back(queue)

        monkeypatch.setattr(notify, "take_back", late)
        with override_settings(DURABLE={"CLAIM_BATCH": 2}):
            work_off(QUEUE, store=store, execute=passes)
        assert sorted(passes.passed) == sorted(ids)
        assert len(ids) == 3
        assert jobs() == []

    def test_a_batch_that_is_not_full_notifies_no_worker(self, store: Store) -> None:
        new_runs(store, 3)
        work_off(QUEUE, store=store, execute=Passes())
        assert jobs() == []

    def test_a_run_that_is_due_again_is_passed_again(self, store: Store) -> None:
        (run_id,) = new_runs(store)
        parks = [True, True, False]
        passes = Passes(lambda record, store, _: park(record, store, None) if parks.pop(0) else finish(record, store))
        work_off(QUEUE, store=store, execute=passes)
        assert passes.passed == [run_id] * 3

    def test_a_job_whose_time_is_up_notifies_the_queue(self, store: Store) -> None:
        ids = new_runs(store, 3)
        passes = Passes()
        work_off(QUEUE, store=store, execute=passes, seconds=0)
        assert passes.passed == []
        assert len(jobs()) == 1
        assert {state(store, each).lease_expires_at for each in ids} == {None}

    def test_what_a_long_batch_has_not_begun_goes_back_at_the_end(self, store: Store) -> None:
        new_runs(store, 3)
        stop = ShutdownFlag()

        def stop_it(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            stop.request()
            return finish(record, store)

        work_off(QUEUE, store=store, execute=Passes(stop_it), stop=stop)
        assert len(jobs()) == 1
        passes = Passes()
        work_off(QUEUE, store=store, execute=passes)
        assert len(passes.passed) == 2

    def test_a_near_deadline_is_sent_to_the_timers(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        new_runs(store)
        wake_at = timezone.now() + timedelta(seconds=2)
        deadlines: list[object] = []
        monkeypatch.setattr(notify, "notify_at", lambda queue, moment: deadlines.append((queue, moment)))
        passes = Passes(lambda record, store, _: park(record, store, wake_at))
        work_off(QUEUE, store=store, execute=passes)
        assert deadlines == [(QUEUE, wake_at)]

    def test_a_fault_of_the_engine_takes_no_other_run_along(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        ids = new_runs(store, 2)

        def fail_first(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            if record.id == ids[0]:
                raise RuntimeError("a fault")
            return finish(record, store)

        work_off(QUEUE, store=store, execute=Passes(fail_first))
        assert state(store, ids[1]).state == RunState.COMPLETED
        assert state(store, ids[0]).lease_expires_at is not None  # tried again when that runs out, not at once
        assert "a fault" in caplog.text

    def test_a_lost_lease_is_no_error(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        new_runs(store, 2)

        def lose(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            raise LeaseLost

        work_off(QUEUE, store=store, execute=Passes(lose))
        assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []

    def test_many_workers_pass_each_run_once(self, store: Store) -> None:
        ids = new_runs(store, 60)
        passes = Passes()
        with ExitStack() as stack:
            threads = [stack.enter_context(in_thread(store, passes)) for _ in range(4)]
            for each in threads:
                each.join(60)
        assert sorted(passes.passed) == sorted(ids)


class TestContext:
    def test_language_and_time_zone_are_those_of_the_project(self, store: Store) -> None:
        new_runs(store, 2)
        seen: list[object] = []

        def look(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            seen.append((translation.get_language(), timezone.get_current_timezone_name()))
            translation.activate("de")
            timezone.activate(timezone.get_fixed_timezone(120))
            return finish(record, store)

        with translation.override("fr"), timezone.override(timezone.get_fixed_timezone(60)):
            work_off(QUEUE, store=store, execute=Passes(look))
            assert translation.get_language() == "fr"
        assert seen == [("en-us", "UTC")] * 2
        assert timezone.get_current_timezone() == UTC or timezone.get_current_timezone_name() == "UTC"

    def test_a_connection_inside_a_transaction_is_left_alone(self) -> None:
        with transaction.atomic():
            connection.ensure_connection()
            inner = connection.connection
            connection.close_at = 0
            connection.errors_occurred = True
            process.close_stale_connections(all_connections=True)
            process.close_connections()
            assert connection.connection is inner
            connection.errors_occurred = False
            connection.close_at = None

    def test_a_broken_connection_is_closed_between_passes(self, store: Store) -> None:
        only_with_a_server()
        connection.ensure_connection()
        connection.errors_occurred = True
        assert connection.connection is not None
        connection.connection.close()
        process.close_stale_connections(all_connections=False)
        assert connection.connection is None
        close_old_connections()

    def test_the_name_is_the_process(self) -> None:
        name = process.worker_name()
        assert name == process.worker_name()
        assert name.split(":")[1] == str(os.getpid())

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_a_forked_child_leaves_the_parents_connection_alone(self, store: Store) -> None:
        (run_id,) = new_runs(store)  # opens the connection of this process
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:  # in the child nothing of pytest's may go on
            try:
                process.abandon_inherited_connections()
                work_off(QUEUE, store=store, execute=Passes())
                connections.close_all()
                os.write(writer, b"done")
            finally:
                os._exit(0)
        os.close(writer)
        assert os.read(reader, 10) == b"done"
        os.close(reader)
        os.waitpid(pid, 0)
        assert state(store, run_id).state == RunState.COMPLETED  # our connection still works


@pytest.mark.slow
class TestLeases:
    def test_leases_are_renewed_during_a_long_pass(self, store: Store) -> None:
        (run_id,) = new_runs(store)
        passes = Passes()
        passes.what = passes.hold
        with override_settings(DURABLE={"LEASE": 6.0}), in_thread(store, passes):
            assert passes.begun.wait(120)
            first = state(store, run_id).lease_expires_at
            assert first is not None
            eventually(lambda: (state(store, run_id).lease_expires_at or first) > first + timedelta(seconds=2.0))
            assert is_of_first_claim(state(store, run_id).fence)
            passes.release.set()
            eventually(lambda: state(store, run_id).state == RunState.COMPLETED)

    def test_a_lost_lease_evicts(self, store: Store) -> None:
        (run_id,) = new_runs(store)
        reasons: list[str] = []
        evicted = threading.Event()

        def wait(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            later = timezone.now() + timedelta(hours=1)
            assert store.claim_run(record.id, now=later, lease_until=later, worker="another") is not None
            eviction.wait(120)
            reasons.append(eviction.reason)
            evicted.set()
            raise LeaseLost

        with override_settings(DURABLE={"LEASE": 0.3}), in_thread(store, Passes(wait)):
            assert evicted.wait(120)
        assert reasons == [LEASE_LOST]
        assert state(store, run_id).worker == "another"

    def test_runs_that_wait_behind_a_long_pass_go_back(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler, "MAX_WAIT", 0.05)
        monkeypatch.setattr(leases, "TICK", 0.02)
        ids = new_runs(store, 4)
        slow, quick = Passes(), Passes()
        slow.what = slow.hold
        with in_thread(store, slow):
            assert slow.begun.wait(120)
            eventually(lambda: len(jobs()) == 1)
            monkeypatch.setattr(scheduler, "MAX_WAIT", 60.0)  # a pass of the other worker may take its time
            work_off(QUEUE, store=store, execute=quick)
            assert sorted(quick.passed) == sorted(set(ids) - set(slow.passed))
            assert len(slow.passed) == 1
            slow.release.set()
            eventually(lambda: {state(store, each).state for each in ids} == {RunState.COMPLETED})

    def test_leases_that_could_not_be_renewed_in_time_evict(self, store: Store) -> None:
        new_runs(store)
        seen: list[str] = []

        class Away:
            """The database, which does not answer the LeaseManager."""

            def renew(self, *args: object) -> Renewed:
                raise OperationalError("the server is gone")

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

        def wait(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            eviction.wait(120)
            seen.append(eviction.reason)
            raise LeaseLost

        away: Any = Away()
        with override_settings(DURABLE={"LEASE": 0.3}), in_thread(away, Passes(wait)):
            eventually(lambda: seen == [LEASE_LOST])


_stop = ShutdownFlag()


def move_and_stop(run_id: str) -> None:
    """What an operator does to a run that the worker has, before the worker is stopped."""
    get_run(run_id).move("high")
    take_job("high")  # a worker there looks too early: this one has the run
    notify.acknowledge("high")
    _stop.request()
    eventually(current_step().is_evicted)


@workflow(name="tests.loop.moved")
def moved(ctx: Context, run_id: str = "") -> None:
    if run_id:
        ctx.step("move", move_and_stop, run_id)
    ctx.step("after", str)


class TestStop:
    @pytest.mark.parametrize("which", ["begun", "waiting"])
    def test_a_run_that_was_moved_meanwhile_is_announced_in_its_new_queue(self, store: Store, which: str) -> None:
        _stop.clear()
        moved.using(id="begun").start(which)
        moved.using(id="waiting").start()
        with in_thread(store, execute_pass, _stop):
            eventually(lambda: not Run.objects.filter(worker__gt="").exists() and _stop.requested)
        assert dict(Run.objects.values_list("id", "queue")) == {"begun": "default", "waiting": "default", which: "high"}
        assert set(Run.objects.values_list("state", flat=True)) == {"pending"}
        assert len(jobs("high")) == 1

    def test_a_stop_evicts_the_pass_and_hands_back_the_rest(self, store: Store) -> None:
        ids = new_runs(store, 3)
        passes = Passes()
        passes.what = passes.hold
        stop = ShutdownFlag()
        with in_thread(store, passes, stop) as thread:
            assert passes.begun.wait(120)
            stop.request()
            thread.join(120)
            assert not thread.is_alive()
        assert len(passes.passed) == 1
        assert_released(store, ids)

    def test_nothing_is_claimed_after_a_stop(self, store: Store) -> None:
        new_runs(store)
        passes, stop = Passes(), ShutdownFlag()
        stop.request()
        work_off(QUEUE, store=store, execute=passes, stop=stop)
        assert passes.passed == []
        assert len(jobs()) == 1

    def test_the_shutdown_that_rq_notes_in_redis_is_seen(
        self, store: Store, redis_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a work horse of a stock RQ worker, which no signal reaches."""
        monkeypatch.setattr(leases, "TICK", 0.02)
        new_runs(store)
        passes = Passes()
        passes.what = passes.hold
        stop = ShutdownFlag()
        with in_thread(store, passes, stop, lambda: rq_jobs.stop_if_requested(QUEUE, "stock", stop)) as thread:
            assert passes.begun.wait(120)
            redis_connection.hset("rq:worker:stock", "shutdown_requested_date", "2026-01-01T00:00:00Z")
            thread.join(120)
            assert not thread.is_alive()
        assert len(jobs()) == 1

    def test_sigterm_evicts_where_it_would_kill(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(presence.stop, "requested", False)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        (run_id,) = new_runs(store)

        def terminated(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            os.kill(os.getpid(), signal.SIGTERM)
            eviction.wait(120)
            assert eviction.reason == "shutdown"
            return park(record, store, None)

        with rq_jobs._terminated_softly(presence.stop):
            work_off(QUEUE, store=store, execute=Passes(terminated), stop=presence.stop)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert state(store, run_id).lease_expires_at is None
        assert len(jobs()) == 1


class TestOutage:
    def test_a_database_that_is_away_for_a_moment_is_waited_for(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        ids = new_runs(store, 2)
        failures = [OperationalError("restarting"), InterfaceError("closed")]

        class Flaky:
            def claim(self, **kwargs: object) -> list[RunRecord]:
                if failures:
                    raise failures.pop(0)
                return store.claim(**kwargs)  # type: ignore[arg-type]

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

        passes = Passes()
        work_off(QUEUE, store=Flaky(), execute=passes)  # type: ignore[arg-type]
        assert sorted(passes.passed) == sorted(ids)
        assert len([each for each in caplog.records if "trying again" in each.message]) == 1

    @pytest.mark.parametrize("wrapped", [True, False])
    def test_a_run_whose_pass_the_database_cut_short_goes_on_at_once(self, store: Store, wrapped: bool) -> None:
        (run_id,) = new_runs(store)

        def cut_first(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            if not is_of_first_claim(record.fence):
                return finish(record, store)
            if not wrapped:
                raise OperationalError("terminating connection due to administrator command")
            raise PassAborted("the commit was not answered") from OperationalError("terminating connection")

        passes = Passes(cut_first)
        work_off(QUEUE, store=store, execute=passes)
        assert passes.passed == [run_id] * 2
        assert state(store, run_id).state == RunState.COMPLETED

    def test_a_run_that_the_database_refuses_does_not_spin(self, store: Store) -> None:
        (run_id,) = new_runs(store)

        def refused(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            raise PassAborted("the store did not answer") from OperationalError("disk full")

        passes = Passes(refused)
        work_off(QUEUE, store=store, execute=passes)
        assert passes.passed == [run_id] * 2
        assert state(store, run_id).lease_expires_at is not None

    def test_a_database_that_stays_away_ends_the_job_which_notifies_the_queue(self) -> None:
        class Away:
            def claim(self, **kwargs: object) -> list[RunRecord]:
                raise OperationalError("connection refused")

        work_off(QUEUE, store=Away(), execute=Passes(), seconds=0.3)  # type: ignore[arg-type]
        assert len(jobs()) == 1

    def test_connections_that_the_server_ended_are_replaced(self, store: Store) -> None:
        only_with_a_server()
        ids = new_runs(store, 3)

        def end_it(record: RunRecord, store: Store, eviction: Eviction) -> PassOutcome:
            if record.id == ids[0] and is_of_first_claim(record.fence):
                with connection.cursor() as cursor:  # as a restart does: this connection breaks
                    cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return finish(record, store)

        work_off(QUEUE, store=store, execute=Passes(end_it))
        assert {state(store, each).state for each in ids} == {RunState.COMPLETED}


def test_a_claim_is_a_batch_of_the_configured_size(store: Store) -> None:
    new_runs(store, 3)
    sizes: list[int] = []

    class Counted:
        def claim(self, **kwargs: object) -> list[RunRecord]:
            found = store.claim(**kwargs)  # type: ignore[arg-type]
            sizes.append(len(found))
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

    with override_settings(DURABLE={"CLAIM_BATCH": 2}):
        assert conf.CLAIM_BATCH == 2
        work_off(QUEUE, store=Counted(), execute=Passes())  # type: ignore[arg-type]
    assert sizes == [2, 1, 0]
