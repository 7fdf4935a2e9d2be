"""`manage.py durable_worker` and `manage.py rqworker` as processes: real PostgreSQL, real Redis, signals, kill -9."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone
from rq.job import Job

from durable.codec import JsonCodec
from durable.core.records import RunRecord
from durable.notifier import notify, redis_clients
from durable.store import Store
from durable.worker.rq_jobs import ReadsJson
from durable.worker.supervisor import AGAIN, worker_command
from project.servers import EmbeddedRedis
from tests.support.notifications import jobs
from tests.support.processes import Run, flow_log, is_alive, is_completed, is_listening, listeners, start_run
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.django_db(transaction=True)]
ROOT = Path(__file__).resolve().parents[2]
JSON = "rq.serializers.JSONSerializer"


class TestDurableWorker:
    def test_runs_are_finished_by_several_processes(
        self, store: Store, run: Run, redis_connection: redis.Redis
    ) -> None:
        program = run("durable_worker", "--processes", "2", PYTHONPATH=str(ROOT))  # executed, as its workers are
        program.pids(2)
        ids = [start_run(store, "flows.one", f"n{number}") for number in range(20)]
        eventually(lambda: is_completed(store, *ids))
        assert len(flow_log(redis_connection)) == 20
        assert program.end() == 0
        assert program.wait_for("stopped")[-1].endswith("durable_worker: stopped")

    @pytest.mark.parametrize(("count", "concurrency"), [(60, 1), (40, 20)])
    def test_a_burst_is_spread_over_the_processes(
        self, store: Store, run: Run, redis_connection: redis.Redis, count: int, concurrency: int
    ) -> None:
        """Even if one of them had a free slot for each run."""
        program = run("durable_worker", "--processes=4", f"--concurrency={concurrency}", FLOWS_SWEEP="300")
        program.wait_for("worker ready", 4)
        eventually(lambda: listeners(redis_connection) == 4)
        now = timezone.now()
        records = [
            RunRecord(
                id=f"burst-{number}",
                workflow="flows.held",
                queue="default",
                input=JsonCodec().encode({"args": [f"n{number}"], "kwargs": {}}),
                created_at=now,
                wake_at=now,
            )
            for number in range(count)
        ]
        store.create(records)
        notify.notify("default")

        eventually(lambda: len({line.split()[1] for line in flow_log(redis_connection)}) == 4)
        redis_connection.rpush("go", *["go"] * count)
        eventually(lambda: is_completed(store, *(each.id for each in records)))
        assert program.end() == 0

    def test_a_worker_that_comes_before_the_migrations_says_what_to_run_and_waits(
        self, run: Run, tmp_path: Path
    ) -> None:
        url = f"sqlite:///{tmp_path}/empty.sqlite3"
        program = run("durable_worker", DATABASE_URL=url)
        [said] = program.wait_for("migrations are missing")
        assert "durable.0001_tables" in said
        assert "Run: manage.py migrate durable --database default" in said
        assert not any("started, pid" in line for line in program.lines)
        assert run("migrate", "--verbosity=0", DATABASE_URL=url).wait() == 0
        program.pids()

    def test_a_sleep_ends_in_time(self, store: Store, run: Run, redis_connection: redis.Redis) -> None:
        run("durable_worker", "default").pids()
        run_id = start_run(store, "flows.nap", "a", 1.5)
        eventually(lambda: is_completed(store, run_id))

    def test_sigterm_hands_over_at_once(self, store: Store, run: Run, redis_connection: redis.Redis) -> None:
        first = run("durable_worker")
        first.pids()
        run_id = start_run(store, "flows.long", "a")
        eventually(lambda: len(flow_log(redis_connection)) == 1)
        assert first.end() == 0
        found = store.get(run_id)
        assert found is not None
        assert (found.lease_expires_at, found.crashes) == (None, 0)
        assert found.wake_at is not None
        assert found.wake_at <= timezone.now()
        run("durable_worker").pids()
        eventually(lambda: is_completed(store, run_id))

    def test_a_second_signal_ends_at_once(self, store: Store, run: Run, redis_connection: redis.Redis) -> None:
        program = run("durable_worker")
        (pid,) = program.pids()
        program.wait_for("worker ready")  # before that a SIGTERM kills it, stopped or not
        os.kill(pid, signal.SIGSTOP)  # a worker that hears nothing
        program.process.send_signal(signal.SIGINT)
        program.wait_for("handing over")
        time.sleep(AGAIN)  # until then it is an echo of the first; a third one could meet Python's own end
        program.process.send_signal(signal.SIGINT)
        program.wait_for("again: ending at once")
        assert program.wait() == 0
        assert not is_alive(pid)

    def test_a_worker_that_is_killed_starts_again_and_its_run_goes_on(
        self, store: Store, run: Run, redis_connection: redis.Redis
    ) -> None:
        program = run("durable_worker")
        (pid,) = program.pids()
        run_id = start_run(store, "flows.long", "a")
        eventually(lambda: len(flow_log(redis_connection)) == 1)
        os.kill(pid, signal.SIGKILL)
        program.wait_for(f"died, pid {pid}, signal 9")
        redis_connection.set("go a", "1")
        eventually(lambda: is_completed(store, run_id))  # after the lease
        found = store.get(run_id)
        assert found is not None
        assert program.end() == 0

    def test_workers_end_with_a_parent_that_is_killed(
        self, store: Store, run: Run, redis_connection: redis.Redis
    ) -> None:
        program = run("durable_worker", "--processes", "2")
        pids = program.pids(2)
        run_id = start_run(store, "flows.long", "a")
        eventually(lambda: len(flow_log(redis_connection)) == 1)
        program.process.kill()
        eventually(lambda: not any(is_alive(pid) for pid in pids))
        found = store.get(run_id)
        assert found is not None
        assert (found.lease_expires_at, found.crashes) == (None, 0)  # handed over, not dropped

    def test_a_redis_that_restarts_empty_loses_nothing(self, store: Store, run: Run) -> None:
        with EmbeddedRedis() as own:
            program = run("durable_worker", REDIS_URL=own.url)
            program.pids()
            before = start_run(store, "flows.one", "before")  # notifies another Redis: the sweep has to find it
            eventually(lambda: is_completed(store, before))
            own.stop("kill")
            during = start_run(store, "flows.one", "during")
            own.start()
            eventually(lambda: is_completed(store, during))
            assert program.end() == 0

    @pytest.mark.parametrize("command", [("durable_worker",), ("rqworker", "default")], ids=["own", "rqworker"])
    def test_other_jobs_of_the_queue_run_if_the_settings_name_them(
        self, run: Run, redis_connection: redis.Redis, command: tuple[str, ...], tmp_path: Path
    ) -> None:
        run(*command)
        queue = redis_clients.rq_queue("default")
        refused = queue.enqueue_call("os.system", args=(f"touch {tmp_path / 'ran'}",))
        queue.enqueue_call("tests.support.flows.workflows.tell", args=("job",))
        eventually(lambda: len(flow_log(redis_connection)) == 1)
        assert queue.failed_job_registry.get_job_ids() == [refused.id]
        assert not (tmp_path / "ran").exists()

    def test_unknown_queues_are_refused_with_what_there_is(self) -> None:
        with pytest.raises(CommandError, match=r"no queue 'hihg'; did you mean 'high'\? RQ_QUEUES has default, high"):
            call_command("durable_worker", "hihg")
        with pytest.raises(CommandError, match="at least 1"):
            call_command("durable_worker", processes=0)
        two = {"a": {"URL": "redis://127.0.0.1:1/0"}, "b": {"URL": "redis://127.0.0.1:2/0"}}
        with (
            override_settings(RQ_QUEUES=two, DURABLE={"QUEUE": "a"}),
            pytest.raises(CommandError, match="a, b have different ones"),
        ):
            call_command("durable_worker", skip_checks=True)

    def test_a_child_repeats_the_invocation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", [str(ROOT / "manage.py"), "durable_worker", "--processes", "2"])
        assert worker_command(["default"], ["--verbosity=1"])[-5:] == [
            str(ROOT / "manage.py"),
            "durable_worker",
            "--as-child",
            "--verbosity=1",
            "default",
        ]
        monkeypatch.setattr(sys, "argv", ["pytest"])
        assert worker_command(["default"])[-5:] == ["-m", "django", "durable_worker", "--as-child", "default"]


class TestRqworker:
    """Plain `manage.py rqworker`: jobs in forked work horses."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ("default",),
            ("default", "--worker-class", "rq.Worker", "--serializer", JSON),
            ("default", "--worker-class", "rq.SimpleWorker", "--serializer", JSON),
        ],
        ids=["default", "stock", "stock, simple"],
    )
    def test_runs_are_finished_and_handed_over(
        self, store: Store, run: Run, redis_connection: redis.Redis, arguments: tuple[str, ...]
    ) -> None:
        program = run("rqworker", *arguments)
        quick = start_run(store, "flows.one", "quick")
        eventually(lambda: is_completed(store, quick))
        long = start_run(store, "flows.long", "long")
        eventually(lambda: len(flow_log(redis_connection)) == 2)
        assert program.end() == 0
        found = store.get(long)
        assert found is not None
        assert (found.lease_expires_at, found.crashes) == (None, 0)
        assert len(jobs()) == 1  # for the next worker
        assert redis_clients.rq_queue("default").failed_job_registry.count == 0

    def test_a_stock_work_horse_that_is_killed_takes_no_run_and_no_worker_along(
        self, store: Store, run: Run, redis_connection: redis.Redis
    ) -> None:
        program = run("rqworker", "default", "--worker-class", "rq.Worker", "--serializer", JSON)
        long = start_run(store, "flows.long", "long")
        eventually(lambda: len(flow_log(redis_connection)) == 1)
        horse = int(flow_log(redis_connection)[0].rpartition(" ")[2])
        assert horse != program.process.pid
        os.kill(horse, signal.SIGKILL)
        queue = redis_clients.rq_queue("default")
        eventually(lambda: queue.failed_job_registry.count == 1)
        redis_connection.set("go long", "1")

        def goes_on() -> bool:
            notify.notify("default")  # as the sweep of a durable_worker does
            return is_completed(store, long)

        eventually(goes_on)
        [failed] = queue.failed_job_registry.get_job_ids()
        queue.failed_job_registry.requeue(failed)  # as an operator may in django-rq's pages
        eventually(lambda: not Job.exists(failed, redis_connection))  # it is done, and RQ keeps no result of it
        assert (queue.count, queue.started_job_registry.count, queue.failed_job_registry.count) == (0, 0, 0)
        eventually(lambda: is_listening(redis_connection))
        assert program.end() == 0
        assert [line.rpartition(" ")[0] for line in flow_log(redis_connection)] == ["long attempt 1"] * 2 + [
            "long done"
        ]

    def test_a_worker_that_has_not_set_django_up_passes_runs_too(
        self, store: Store, child_environment: dict[str, str], redis_connection: redis.Redis
    ) -> None:
        """RQ's own command, which knows nothing of Django."""
        run_id = start_run(store, "flows.one", "bare")
        subprocess.run(
            [
                sys.executable,
                "-m",
                "rq.cli",
                "worker",
                "--burst",
                "--serializer",
                JSON,
                "--url",
                settings.REDIS_URL,
                "default",
            ],
            env={**child_environment, "DJANGO_SETTINGS_MODULE": "tests.support.flows.settings"},
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=60,
        )
        assert is_completed(store, run_id)

    def test_a_pickled_job_of_a_queue_without_a_serializer_is_read_too(self) -> None:
        from rq.serializers import DefaultSerializer

        both = ReadsJson(DefaultSerializer)
        job: list[object] = ["durable.jobs.work", None, ["default"], {}]
        assert both.loads(b'["durable.jobs.work", null, ["default"], {}]') == job
        assert both.loads(both.dumps(job)) == job


def test_the_tests_database_is_the_childrens(child_environment: dict[str, str]) -> None:
    assert str(connection.settings_dict["NAME"]) in child_environment["DATABASE_URL"]
