"""A migration that renames a workflow, with Django's own commands and in real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from durable.codec import JsonCodec
from durable.core.ids import new_id
from durable.core.records import RunRecord
from durable.models import Cause, Entry, EntryMetadata, Failure, RenamedName, Run
from durable.notifier import notify
from tests.e2e.workers import Workers
from tests.faults.passing import production_store
from tests.renames.conftest import commanded
from tests.support.locks import other_session, until_sessions_wait_for_locks
from tests.support.processes import Program
from tests.support.waiting import eventually, wait_until_ended

pytestmark = pytest.mark.slow

SETTINGS = "tests.renames.workflow_settings"
OLD, NEW = "renames.bill", "renames.invoice"


@pytest.fixture
def child(child_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    yield {**child_environment, "DJANGO_SETTINGS_MODULE": SETTINGS}
    MigrationRecorder(connection).migration_qs.filter(app="renames").delete()


def resting_runs(count: int, workflow: str = OLD) -> None:
    """Runs that have charged, and are paused."""
    now = timezone.now()
    text = JsonCodec().encode({"args": [], "kwargs": {}})
    for first in range(0, count, 2_000):
        runs = Run.objects.bulk_create(
            Run(
                id=f"run-{n:05}",
                workflow=workflow,
                queue="default",
                input=text,
                state="paused",
                fence=1,
                created_at=now,
            )
            for n in range(first, min(first + 2_000, count))
        )
        entries = Entry.objects.bulk_create(Entry(run=each, location="charge", kind="step", ordinal=0) for each in runs)
        EntryMetadata.objects.bulk_create(
            EntryMetadata(entry=each, status="completed", created_at=now) for each in entries
        )


@pytest.mark.postgres
def test_10_000_runs_are_renamed_by_a_migration_that_was_killed_between_two_batches(child: dict[str, str]) -> None:
    resting_runs(10_000)
    cause = Cause.objects.create(fingerprint="f", place="", error_type="E", pattern="p", first_seen_at=timezone.now())
    Failure.objects.create(
        run_id="run-05000",
        cause=cause,
        workflow=OLD,
        queue="default",
        failed_at=timezone.now(),
        run_created_at=timezone.now(),
    )
    renamed = Run.objects.filter(workflow=NEW)
    with psycopg.connect(**other_session()) as other:
        other.execute("SELECT 1 FROM durable_failure FOR UPDATE")  # the batch of this run waits
        first = Program("migrate", "renames", "--skip-checks", environment=child)
        try:
            until_sessions_wait_for_locks()
            assert renamed.count() == 5_000
            assert RenamedName.objects.get().new == NEW
        finally:
            first.end(signal.SIGKILL)
            first.close()
        other.rollback()
    assert not MigrationRecorder(connection).migration_qs.filter(app="renames").exists()
    eventually(lambda: Run.objects.filter(workflow=OLD).count() == 5_000)
    commanded("migrate", "renames", "--skip-checks", environment=child)
    assert renamed.count() == 10_000
    assert Failure.objects.get().workflow == NEW
    assert RenamedName.objects.count() == 1
    commanded("migrate", "renames", "zero", "--skip-checks", environment=child)
    assert renamed.count() == 0


def test_the_gate_knows_of_a_workflow_that_is_still_to_be_renamed(child: dict[str, str]) -> None:
    resting_runs(60)
    new_code = {**child, "NAME_OF_WORKFLOW": NEW}
    gate = ("durable", "replay-check", "--open")
    in_processes = ("--jobs", "2")
    without = {**new_code, "DJANGO_SETTINGS_MODULE": "tests.renames.settings"}
    found = "\n".join(commanded(*gate, *in_processes, environment=without, code=1))
    assert f"a run of {OLD}, the code has no workflow of this name" in found
    assert "60 runs checked, 60 would diverge" in found
    for chosen in (in_processes, ("--workflow", NEW), ("--workflow", OLD)):
        assert "60 runs checked, none would diverge" in "\n".join(commanded(*gate, *chosen, environment=new_code))
    assert "60 runs checked, none would diverge" in "\n".join(commanded(*gate, environment=child))  # old code
    commanded("migrate", "renames", "--skip-checks", environment=child)
    assert Run.objects.filter(workflow=NEW).count() == 60
    for code, how in ((new_code, in_processes), (child, ())):
        assert "60 runs checked, none would diverge" in "\n".join(commanded(*gate, *how, environment=code))


def test_old_and_new_workers_pass_the_same_runs(child: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = JsonCodec().encode({"args": [str(tmp_path)], "kwargs": {}})

    def start(workflow: str, count: int) -> None:
        now = timezone.now()
        new: Any = [
            RunRecord(id=new_id(), workflow=workflow, queue="default", input=text, created_at=now, wake_at=now)
            for _ in range(count)
        ]
        production_store().create(new)
        notify.notify("default")

    def lines() -> list[list[str]]:
        return [each.split() for each in log.read_text().splitlines()] if log.exists() else []

    def passed_by(name: str, since: int = 0) -> set[str]:
        return {each[0] for each in lines()[since:] if each[-1] == name}

    output = tmp_path / "output"
    with Workers(1, {**child, "NAME_OF_WORKFLOW": OLD}, output, settings=SETTINGS):
        start(OLD, 3)
        eventually(lambda: len(passed_by(OLD)) == 3)
        commanded("migrate", "renames", "--skip-checks", environment=child)
        assert set(Run.objects.values_list("workflow", flat=True)) == {NEW}
        since = len(lines())
        eventually(lambda: len(passed_by(OLD, since)) == 3)  # a worker that has begun before the migration
        with Workers(1, {**child, "NAME_OF_WORKFLOW": NEW}, output, settings=SETTINGS):
            start(OLD, 3)
            start(NEW, 3)
            eventually(lambda: len(passed_by(NEW)) == 9)
            since = len(lines())
            eventually(lambda: len(passed_by(OLD, since)) == 9)  # beside the new one, what either has started
            (tmp_path / "stop").touch()
            wait_until_ended(output)
    assert set(Run.objects.values_list("state", flat=True)) == {"completed"}
    keys: dict[str, set[str]] = {}
    for run_id, scope, key, _ in lines():
        keys.setdefault(f"{run_id} {scope}", set()).add(key)
    assert all(len(each) == 1 for each in keys.values())
