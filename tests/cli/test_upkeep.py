"""prune, doctor, workers: what they find, what they ask, and when a person is needed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.db import OperationalError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings
from django.utils import timezone
from rq import SimpleWorker

from durable import retention
from durable.cli import maintenance
from durable.inspection import database
from durable.inspection.findings import KINDS
from durable.models import OperatorAction, Run
from durable.notifier import redis_clients, registry
from durable.store import store_for
from durable.worker.timer import Sweep
from tests.cli.conftest import Shell, Stage
from tests.cli.workflows import echo, failing, napping

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("stage", "redis_connection")]


def ended(run_id: str, days: float, **columns: Any) -> None:
    then = timezone.now() - timedelta(days=days)
    Run.objects.filter(pk=run_id).update(created_at=then, finished_at=then, **columns)


def runs() -> set[str]:
    return set(Run.objects.values_list("id", flat=True))


class TestPrune:
    @pytest.fixture(autouse=True)
    def _runs(self, stage: Stage) -> None:
        stage.start(echo, id="old")
        stage.start(failing, id="old failure")
        stage.start(echo, id="young")
        stage.start(napping, id="asleep")
        ended("old", 40)
        ended("old failure", 40)
        OperatorAction.objects.create(
            source="cli", action="wake", outcome="done", created_at=timezone.now() - timedelta(days=90)
        )

    def test_what_is_older_goes_and_that_stands_in_the_audit_log(self, shell: Shell) -> None:
        done = shell("prune", "--older-than", "30 days", "--yes", "--reason", "spring")
        assert done.status == 0
        assert runs() == {"young", "asleep"}
        assert done.out == "2 runs, 3 entries, 1 attempts, 0 messages, 1 rows of the audit log are gone\n"
        action = OperatorAction.objects.get()
        assert (action.action, action.outcome, action.reason) == ("prune", "done", "spring")
        assert action.detail == "2 runs, 1 rows of the audit log"

    def test_a_dry_run_counts(self, shell: Shell) -> None:
        done = shell("prune", "--older-than", "30 days", "--dry-run")
        assert done.out == "2 runs, 1 rows of the audit log would go\n"
        data = shell("prune", "--older-than", "30 days", "--dry-run", "-o", "json").json
        assert data == {"runs": 2, "actions": 1}
        assert len(runs()) == 4
        assert OperatorAction.objects.count() == 1

    def test_states_and_workflows(self, shell: Shell) -> None:
        shell("prune", "--older-than", "30 days", "--state", "failed", "--yes")
        assert runs() == {"old", "young", "asleep"}
        shell("prune", "--older-than", "30 days", "--workflow", "cli.echo", "--yes")
        assert runs() == {"young", "asleep"}
        assert OperatorAction.objects.filter(action="wake").exists()

    def test_as_the_settings_say(self, shell: Shell) -> None:
        with override_settings(DURABLE={"RETENTION": {"failed": timedelta(days=30)}}):
            assert shell("prune", "--yes").status == 0
        assert runs() == {"old", "young", "asleep"}

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--older-than", "30 days"], "--dry-run"),
            (["--yes"], "--older-than"),
            (["--state", "failed", "--yes"], "--older-than"),
            (["--older-than", "soon", "--yes"], "3 hours"),
            (["--older-than", "1 day", "--state", "running", "--yes"], "running"),
        ],
    )
    def test_what_cannot_be_meant_deletes_nothing(self, shell: Shell, arguments: list[str], says: str) -> None:
        done = shell("prune", *arguments)
        assert done.status != 0
        assert says in done.err
        assert len(runs()) == 4

    @pytest.mark.parametrize(("answer", "left"), [("y\n", 2), ("\n", 4)])
    def test_an_interactive_prune_shows_the_number_and_asks(self, shell: Shell, answer: str, left: int) -> None:
        done = shell("prune", "--older-than", "30 days", typed=answer)
        assert "Delete 2 runs and 1 rows of the audit log for good?" in done.err
        assert len(runs()) == left

    def test_a_user_without_the_permission_may_not(self, shell: Shell, django_user_model: Any) -> None:
        django_user_model.objects.create_user("ada")
        done = shell("prune", "--older-than", "30 days", "--yes", "--as", "ada")
        assert (done.status, len(runs())) == (1, 4)
        assert "delete_run" in done.err

    def test_an_interruption_leaves_a_trace_of_what_went(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retention, "BATCH", 1)
        monkeypatch.setattr("durable.cli.maintenance.prune", _interrupted_after(1))
        assert shell("prune", "--older-than", "30 days", "--yes").status == 130
        assert len(runs()) == 3
        assert OperatorAction.objects.get(action="prune").detail.startswith("1 runs")


def _interrupted_after(batches: int) -> Any:
    from durable.operations.prune import prune

    def interrupted(policy: Any, *, tell: Any) -> Any:
        def tell_and_stop(so_far: Any) -> None:
            tell(so_far)
            if so_far.runs == batches:
                raise KeyboardInterrupt

        return prune(policy, tell=tell_and_stop)

    return interrupted


@pytest.fixture
def worker(redis_connection: redis.Redis) -> Iterator[SimpleWorker]:
    """A worker that Redis knows; it does no work."""
    found = SimpleWorker(
        [redis_clients.rq_queue("default"), redis_clients.rq_queue("high")], connection=redis_connection
    )
    found.register_birth()  # type: ignore[no-untyped-call]  # RQ's own
    yield found
    found.register_death()  # type: ignore[no-untyped-call]  # RQ's own


class TestDoctor:
    def verdicts(self, shell: Shell, *arguments: str) -> dict[str, str]:
        return {each["kind"]: each["verdict"] for each in shell("doctor", "-o", "json", *arguments).all_json}

    def test_in_good_health(self, shell: Shell, worker: SimpleWorker, stage: Stage) -> None:
        stage.start(napping, id="asleep")
        shell("schedules", "--sync")
        Sweep(store_for("default")).tick(timezone.now())
        done = shell("doctor")
        assert done.status == 0, done.out
        rows = dict(line.split()[:2] for line in done.lines[1:])
        assert rows == dict.fromkeys(("settings", "database", "redis", "workers", "sweep", "mark", "runs"), "ok")

    def test_no_worker_at_work(self, shell: Shell) -> None:
        done = shell("doctor")
        assert done.status == 1
        verdicts = self.verdicts(shell)
        assert (verdicts["workers"], verdicts["sweep"], verdicts["database"]) == ("problem", "problem", "ok")
        assert "manage.py durable_worker" in done.out

    def test_a_sweep_that_was_long_ago(self, shell: Shell, worker: SimpleWorker) -> None:
        registry.record(timezone.now() - timedelta(hours=2), "host:1:abc")
        done = shell("doctor")
        assert done.status == 1
        assert "last 2 h ago, by host:1:abc" in done.out

    def test_overdue_and_failed_runs(self, shell: Shell, worker: SimpleWorker, stage: Stage) -> None:
        stage.start(failing, id="one")
        stage.start(napping, id="two")
        Run.objects.filter(pk="two").update(wake_at=timezone.now() - timedelta(minutes=10))
        Sweep(store_for("default")).tick(timezone.now())
        for number in range(6):
            stage.start(failing, id=f"failed-{number}")
        done = shell("doctor")
        assert done.status == 1
        assert "  and 2 more" in done.lines
        assert "`durable causes` lists failed runs by cause" in done.out
        assert {"exhausted": "problem", "unclaimed": "problem"}.items() <= self.verdicts(shell).items()
        assert "  failed-5" in done.lines
        assert "  two" in done.lines

    def test_what_is_known_can_be_let_pass(self, shell: Shell, worker: SimpleWorker, stage: Stage) -> None:
        stage.start(failing, id="one")
        Sweep(store_for("default")).tick(timezone.now())
        assert shell("doctor").status == 1
        done = shell("doctor", "--ignore", "exhausted")
        assert done.status == 0
        assert "exhausted" in done.out

    def test_what_it_does_not_look_at_cannot_be_let_pass(self, shell: Shell) -> None:
        done = shell("doctor", "--ignore", "exausted")
        assert (done.status != 0, done.out) == (True, "")
        assert "the doctor does not look at 'exausted'; it looks at bulk_stopped, clock, commits_lost, " in done.err
        looked_at = {*re.findall(r'kind="(\w+)"', inspect.getsource(maintenance))}
        assert looked_at - KINDS == maintenance._LOOKED_AT - {"redis"}

    def test_without_redis(self, shell: Shell, stage: Stage) -> None:
        queues = {"default": {"URL": "redis://127.0.0.1:1/0", "SERIALIZER": "rq.serializers.JSONSerializer"}}
        with override_settings(RQ_QUEUES=queues):
            done = shell("doctor")
        assert done.status == 1
        assert "Redis does not answer" in done.out

    def test_without_the_database(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(_connection: object) -> None:
            raise OperationalError("connection refused")

        monkeypatch.setattr("durable.inspection.database.MigrationExecutor", away)
        done = shell("doctor")
        assert done.status == 1
        assert "connection refused" in done.out

    def test_without_a_migration(self, shell: Shell) -> None:
        [newest] = MigrationLoader(connection).graph.leaf_nodes("durable")
        MigrationRecorder(connection).record_unapplied(*newest)
        done = shell("doctor")
        assert done.status == 1
        assert f"migrations are missing: {'.'.join(newest)}" in done.out
        assert "manage.py migrate durable --database default" in done.out

    @pytest.mark.postgres
    @pytest.mark.parametrize(("seconds", "direction"), [(60.0, "ahead of"), (-60.0, "behind")])
    def test_a_clock_that_is_wrong(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch, seconds: float, direction: str
    ) -> None:
        wrong = SimpleNamespace(now=lambda: timezone.now() + timedelta(seconds=seconds))
        monkeypatch.setattr(database, "clock", wrong)
        done = shell("doctor")
        assert done.status == 1
        assert f" s {direction} the database's" in done.out
        assert self.verdicts(shell)["clock"] == "problem"

    def test_with_wrong_settings(self, shell: Shell) -> None:
        with override_settings(DURABLE={"LAESE": 3}):
            done = shell("doctor")
        assert done.status == 1
        assert "LAESE" in done.out


class TestWorkers:
    def test_workers_and_what_they_hold(self, shell: Shell, worker: SimpleWorker) -> None:
        napping.using(id="one").start()
        now = timezone.now()
        name = f"{worker.hostname}:{worker.pid}:abc"
        store_for("default").claim_run("one", now=now, lease_until=now + timedelta(seconds=30), worker=name)
        done = shell("workers")
        assert done.status == 0
        (row,) = done.lines[1:]
        assert row.split()[0] == worker.name
        assert row.split()[-1] == "one"
        data = shell("workers", "-o", "json").json
        assert (data["pid"], data["queues"], data["runs"][0]["id"]) == (worker.pid, ["default", "high"], "one")

    def test_no_worker(self, shell: Shell) -> None:
        done = shell("workers")
        assert (done.status, done.out) == (0, "")
        assert "durable_worker" in done.err


class TestPulse:
    def test_nonsense_in_redis_is_no_sign_of_life(self, redis_connection: redis.Redis) -> None:
        for text in ("", "nonsense", "[]", '{"at": "yesterday"}', '{"at": 5, "interval": 1, "by": ""}'):
            redis_connection.set(registry.KEY, text)
            assert registry.last_sweep() is None

    def test_a_sweep_gives_one_and_goes_on_without_redis(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = timezone.now()
        registry.record(now, "host:1:abc")
        found = registry.last_sweep()
        assert found is not None
        assert (found.at, found.by) == (now, "host:1:abc")
        assert not found.is_overdue(now + timedelta(seconds=20))
        assert found.is_overdue(now + timedelta(seconds=30))

        def away(_names: object) -> None:
            raise redis.ConnectionError("refused")

        monkeypatch.setattr(redis_clients, "one_queue_per_redis", away)
        registry.record(now, "host:1:abc")
