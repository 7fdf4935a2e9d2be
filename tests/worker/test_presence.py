"""The rows of worker processes: written by themselves, known as dead by the age of the last sign, and deleted."""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from durable import Context, workflow
from durable.conf import conf
from durable.inspection.findings import collect_findings
from durable.inspection.workers import builds, find_worker, worker_overview
from durable.models import Build, WorkerProcess
from durable.store import Store
from durable.worker import presence
from durable.worker.loop import InlinePool, ThreadPool, WorkerLoop
from durable.worker.presence import KEPT, Presence, ShutdownFlag
from durable.worker.timer import Sweep
from tests.support.processes import Run, start_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@workflow(name="presence.double")
def double(ctx: Context, number: int) -> int:
    return 2 * number


def a_row(name: str = "web-1:7:abc", **columns: object) -> WorkerProcess:
    now = timezone.now()
    host, pid, _ = name.split(":")
    given = {"host": host, "pid": int(pid), "queues": ["default"], "slots": 4, "started_at": now, "last_seen_at": now}
    return WorkerProcess.objects.create(name=name, **{**given, **columns})


class TestInThisProcess:
    def test_a_row_lives_as_long_as_the_loop(self, store: Store) -> None:
        stop = ShutdownFlag()
        with WorkerLoop(ThreadPool(3), store=store, stop=stop, queues=["high", "default"]):
            eventually(WorkerProcess.objects.exists)
            row = WorkerProcess.objects.get()
            assert (row.pid, row.queues, row.slots, row.state) == (os.getpid(), ["high", "default"], 3, "serving")
            assert row.name.startswith(f"{row.host}:{row.pid}:")
            assert row.memory is None or row.memory > 1_000_000
            stop.request()
            eventually(lambda: WorkerProcess.objects.filter(state="stopping").exists())
        assert not WorkerProcess.objects.exists()

    def test_a_job_of_another_worker_has_none(self, store: Store) -> None:
        with WorkerLoop(InlinePool(), store=store, stop=ShutdownFlag()) as loop:
            loop.work("default")
            assert not WorkerProcess.objects.exists()

    def test_a_sign_is_one_update_and_seldom(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Presence(queues=["default"], slots=1, stop=ShutdownFlag(), passes=lambda: 0) as made:
            long_ago = timezone.now() - timedelta(minutes=9)
            rows = WorkerProcess.objects.all()
            rows.update(last_seen_at=long_ago)
            made.sign()
            assert rows.get().last_seen_at == long_ago
            monkeypatch.setattr(made, "_next_at", 0.0)
            made.sign()
            assert rows.get().last_seen_at > long_ago
            rows.delete()  # as a sweep does, when the database was away from this worker alone
            monkeypatch.setattr(made, "_next_at", 0.0)
            made.sign()
            assert rows.get().queues == ["default"]
        assert not rows.exists()

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_sign_waits_for_its_turn_on_a_sqlite_that_begins_without_the_lock(
        self, is_first: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Another connection commits before the sign writes, as other workers do at any moment."""
        if connection.vendor != "sqlite":
            pytest.skip("only SQLite has one lock for all writers")
        other = sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)

        def commit_first(execute: Callable[..., Any], *statement: Any) -> Any:
            if statement[0].split()[0] in ("INSERT", "UPDATE") and not beaten:
                beaten.append(statement[0])
                other.execute("INSERT INTO durable_build (name, first_seen_at) VALUES ('7f3a', '2026')")
            return execute(*statement)

        beaten: list[str] = []
        connection.ensure_connection()  # which sets the mode
        monkeypatch.setattr(connections["default"], "transaction_mode", "DEFERRED")
        with closing(other), Presence(queues=["a"], slots=1, stop=ShutdownFlag(), passes=lambda: 0) as made:
            if is_first:
                WorkerProcess.objects.all().delete()
            monkeypatch.setattr(made, "_next_at", 0.0)
            WorkerProcess.objects.update(last_seen_at=timezone.now() - timedelta(minutes=9))
            with connection.execute_wrapper(commit_first):
                made.sign()
            row = WorkerProcess.objects.get()
            assert row.last_seen_at > timezone.now() - timedelta(minutes=8)
        assert beaten
        assert "cannot write its row" not in caplog.text

    def test_the_row_counts_the_passes(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(presence, "SIGN_EVERY", 0.0)
        double.start_many([(1,), (2,), (3,)])
        with WorkerLoop(InlinePool(), store=store, stop=ShutdownFlag(), queues=["default"]) as loop:
            eventually(WorkerProcess.objects.exists)
            loop.work("default")
            eventually(lambda: WorkerProcess.objects.filter(passes=3, recent_passes=3).exists())

    def test_passes_of_long_ago_are_not_recent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        passes = 0
        monkeypatch.setattr(presence, "SIGN_EVERY", 0.0)
        with Presence(queues=["default"], slots=1, stop=ShutdownFlag(), passes=lambda: passes) as made:
            passes = 5
            made.sign()
            monkeypatch.setattr(presence, "RECENT", 1e-9)  # seconds: since the sign before
            passes = 7
            made.sign()
            row = WorkerProcess.objects.get()
            assert (row.passes, row.recent_passes) == (7, 2)

    def test_a_build_is_noted_once(self) -> None:
        with override_settings(DURABLE={"BUILD": "7f3a"}):
            for _ in range(2):
                with Presence(queues=[], slots=1, stop=ShutdownFlag(), passes=lambda: 0):
                    assert WorkerProcess.objects.get().build == "7f3a"
        assert [each.name for each in Build.objects.all()] == ["7f3a"]

    def test_a_locked_table_holds_nothing_up(self, caplog: pytest.LogCaptureFixture) -> None:
        """A migration takes such a lock; the same thread renews the leases."""
        if connection.vendor != "postgresql":
            pytest.skip("only PostgreSQL locks a table for readers")
        signed = threading.Event()

        def sign() -> None:
            with Presence(queues=[], slots=1, stop=ShutdownFlag(), passes=lambda: 0):
                signed.set()
            connections.close_all()

        thread = threading.Thread(target=sign)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE durable_workerprocess IN ACCESS EXCLUSIVE MODE")
            thread.start()
            assert signed.wait(60)
        thread.join()
        assert "cannot write its row" in caplog.text


class TestTheBuild:
    def test_the_environment_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DURABLE_BUILD", "from-ci")
        with override_settings(DURABLE={}):
            assert conf.build == "from-ci"
        with override_settings(DURABLE={"BUILD": "mine"}):
            assert conf.build == "mine"
        with override_settings(DURABLE={"BUILD": None}):
            assert conf.build == ""

    def test_deploys_are_listed_in_their_order(self) -> None:
        now = timezone.now()
        moments = {name: now - timedelta(hours=hours) for name, hours in (("old", 30), ("b", 2), ("a", 5))}
        Build.objects.bulk_create(Build(name=name, first_seen_at=moment) for name, moment in moments.items())
        assert [each.name for each in builds(now - timedelta(days=1))] == ["a", "b"]
        assert [each.name for each in builds(now - timedelta(days=2), now - timedelta(hours=3))] == ["old", "a"]
        assert [(each.name, each.first_seen_at) for each in builds(now - timedelta(days=2), most=1)] == [
            ("b", moments["b"])
        ]


@pytest.mark.redis
class TestInspection:
    def test_a_worker_without_a_sign_is_dead(self) -> None:
        now = timezone.now()
        a_row("web-1:7:a", build="7f3a", memory=5, passes=9, recent_passes=2)
        a_row("web-2:8:b", last_seen_at=now - timedelta(minutes=1))
        a_row("web-3:9:c", state="stopping")
        found = worker_overview()
        assert [(each.name, each.state) for each in found.workers] == [
            ("web-3:9:c", "stopping"),
            ("web-1:7:a", "idle"),
            ("web-2:8:b", "dead"),
        ]
        [queue] = [each for each in found.queues if each.name == "default"]
        assert queue.workers == 1
        worker = find_worker("web-1:7:a")
        assert worker is not None
        assert (worker.build, worker.memory, worker.slots) == ("7f3a", 5, 4)
        assert (worker.passes, worker.recent_passes) == (9, 2)
        assert find_worker("nobody:1:a") is None

    def test_a_worker_of_all_queues_serves_each(self) -> None:
        a_row(queues=["high"], serves_all=True)
        assert {each.name: each.workers for each in worker_overview().queues}["default"] == 1

    def test_without_redis_a_queue_without_a_worker_is_found(self, store: Store) -> None:
        start_run(store, "flows.long", "x")
        with override_settings(DURABLE={"REDIS": False}):
            kinds = [each.kind for each in collect_findings(timezone.now(), worker_overview())]
            assert "no_worker" in kinds
            a_row()
            kinds = [each.kind for each in collect_findings(timezone.now(), worker_overview())]
            assert "no_worker" not in kinds

    def test_a_sweep_deletes_rows_of_workers_long_dead(self, store: Store) -> None:
        now = timezone.now()
        a_row("web-1:7:a", last_seen_at=now - KEPT - timedelta(minutes=1))
        a_row("web-2:8:b", last_seen_at=now - KEPT + timedelta(minutes=1))
        Sweep(store).tick(now)
        assert [each.name for each in WorkerProcess.objects.all()] == ["web-2:8:b"]
        presence.forget_dead(now + KEPT)
        assert not WorkerProcess.objects.exists()


@pytest.mark.redis
class TestProcesses:
    @pytest.mark.slow
    def test_a_process_tells_what_it_is(self, store: Store, run: Run) -> None:
        program = run("durable_worker", "--concurrency", "2", DURABLE_BUILD="7f3a")
        (pid,) = program.pids()
        start_run(store, "flows.long", "a")
        # RQ's record of a worker comes before the process's own
        eventually(lambda: [(each.state, each.slots) for each in worker_overview().workers] == [("busy", 2)])
        [worker] = worker_overview().workers
        assert (worker.pid, worker.slots, worker.build) == (pid, 2, "7f3a")
        assert [each.worker for each in worker.runs] == [worker.name]
        assert program.end() == 0
        assert not WorkerProcess.objects.exists()

    @pytest.mark.slow
    def test_a_killed_process_is_known_as_dead(self, store: Store, run: Run) -> None:
        program = run("durable_worker")
        (pid,) = program.pids()
        eventually(lambda: WorkerProcess.objects.filter(pid=pid).exists())
        os.kill(pid, signal.SIGKILL)
        program.wait_for(f"died, pid {pid}, signal 9")
        rows = WorkerProcess.objects.filter(pid=pid)
        rows.update(last_seen_at=timezone.now() - timedelta(minutes=1))  # instead of waiting for it
        eventually(lambda: WorkerProcess.objects.count() == 2)
        rows_of = {each.pid: each.is_dead for each in worker_overview().workers if each.slots is not None}
        assert rows_of.pop(pid)
        assert list(rows_of.values()) == [False]
