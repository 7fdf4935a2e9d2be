"""A migration that renames, with Django's own commands and in real processes."""

from __future__ import annotations

import importlib.util
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, migrations
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.writer import MigrationWriter
from django.utils import timezone

from durable import Context
from durable.codec import JsonCodec
from durable.core.ids import new_id
from durable.core.records import RunRecord
from durable.migrations import RenameStep
from durable.models import Entry, EntryMetadata, Run
from durable.notifier import notify
from durable.replay_check import check_history
from durable.replay_check.replaying import RecordedRun
from tests.e2e.workers import Workers
from tests.faults.passing import production_store
from tests.renames.conftest import apply
from tests.replay_check.conftest import NAME, Deploys
from tests.support.processes import Program
from tests.support.waiting import eventually, wait_until_ended

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROJECT = {"shop": "tests.renames.project_migrations"}


def old(ctx: Context) -> None:
    ctx.step("charge", print)
    ctx.sleep("cool off", "1 day")


def new(ctx: Context) -> None:
    ctx.step("charge card", print)
    ctx.sleep("cool off", "1 day")


@pytest.fixture
def project(settings: Any) -> None:
    """The project has a migration that renames."""
    settings.MIGRATION_MODULES = PROJECT


@pytest.mark.usefixtures("project")
def test_the_gate_knows_of_a_migration_that_is_still_to_be_applied(deploys: Deploys) -> None:
    deploys.deploy(old).start()
    deploys.deploy(new)
    assert deploys.goes_on()
    deploys.deploy(old)
    assert deploys.goes_on()


def test_without_the_migration_the_gate_reports_the_run(deploys: Deploys) -> None:
    deploys.deploy(old).start()
    deploys.deploy(new)
    assert deploys.finding().location == "charge card"


@pytest.mark.usefixtures("project")
def test_the_gate_reports_a_run_that_has_both_names(deploys: Deploys) -> None:
    def both(ctx: Context) -> None:
        ctx.step("charge", print)
        ctx.step("charge card", print)
        ctx.sleep("wait", "1 day")

    deploys.deploy(both).start()
    deploys.deploy(new)
    assert 'both "charge" and "charge card"' in str(deploys.finding())


def test_after_the_migration_the_gate_reports_neither_code(deploys: Deploys) -> None:
    deploys.deploy(old).start()
    apply(RenameStep(NAME, "charge", "charge card", wait=0))
    assert deploys.goes_on()
    deploys.deploy(new)
    assert deploys.goes_on()


@pytest.mark.usefixtures("project")
def test_a_history_of_a_file_fits_under_the_names_of_all_migrations(deploys: Deploys) -> None:
    deploys.deploy(old).start()
    at = deploys.at
    run = at.store.get("order-1")
    assert run is not None
    recorded = RecordedRun(run=run, entries=list(at.store.load("order-1")))
    deploys.deploy(new)
    assert check_history(recorded).finding is None


@pytest.mark.usefixtures("project", "transactional_db")  # for the schema editor of SQLite
def test_django_shows_and_writes_the_operation() -> None:
    out = io.StringIO()
    call_command("sqlmigrate", "shop", "0001_rename_charge", stdout=out)
    assert out.getvalue().count("THIS OPERATION CANNOT BE WRITTEN AS SQL") == 2
    out = io.StringIO()
    call_command("migrate", "shop", plan=True, stdout=out)
    assert 'Rename the recorded operation "charge" of gate.order to "charge card"' in out.getvalue()
    out = io.StringIO()
    call_command("makemigrations", "durable", check=True, dry_run=True, stdout=out)
    assert "No changes detected" in out.getvalue()


def test_a_written_operation_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    made = RenameStep(NAME, "pages/~/get", "pages/~/fetch", wait=5, elidable=True)
    squashed = type("Migration", (migrations.Migration,), {"operations": [made, RenameStep(NAME, "a", "b")]})
    text = MigrationWriter(squashed("0002_squashed", "shop")).as_string()
    assert "import durable.migrations" in text
    file = tmp_path / "squashed.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("squashed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    read = module.Migration.operations
    assert [each.deconstruct() for each in read] == [made.deconstruct(), RenameStep(NAME, "a", "b").deconstruct()]
    assert RenameStep(NAME, "a", "b").reduce(RenameStep(NAME, "b", "c"), "shop") is False  # both stay


def test_the_package_of_migrations_can_be_imported_before_django_is_set_up() -> None:
    code = "import durable.migrations; durable.migrations.RenameStep('a.b', 'c', 'd')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# -- real processes


@pytest.fixture
def child(child_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    yield {**child_environment, "DJANGO_SETTINGS_MODULE": "tests.renames.settings"}
    MigrationRecorder(connection).migration_qs.filter(app="renames").delete()


def resting_runs(count: int) -> None:
    """Runs of old code that have charged, and sleep."""
    now = timezone.now()
    runs = [
        Run(id=f"run-{n:05}", workflow=NAME, queue="default", input="{}", state="sleeping", fence=1, created_at=now)
        for n in range(count)
    ]
    Run.objects.bulk_create(runs)
    entries = Entry.objects.bulk_create(Entry(run=each, location="charge", kind="step", ordinal=0) for each in runs)
    EntryMetadata.objects.bulk_create(EntryMetadata(entry=each, status="completed", created_at=now) for each in entries)


def test_a_migration_that_was_killed_goes_on_when_it_is_applied_again(child: dict[str, str]) -> None:
    resting_runs(700)
    # a worker has this one: the migration comes to the end of the others, and waits
    Run.objects.filter(pk="run-00042").update(lease_expires_at=timezone.now() + timedelta(hours=2), state="running")
    renamed = Entry.objects.filter(location="charge card")
    first = Program("migrate", "renames", "--skip-checks", environment=child)
    try:
        eventually(lambda: renamed.count() == 699)
        assert first.process.poll() is None
    finally:
        first.end(signal.SIGKILL)
        first.close()
    assert not MigrationRecorder(connection).migration_qs.filter(app="renames").exists()
    Run.objects.filter(pk="run-00042").update(lease_expires_at=None, state="sleeping")
    second = Program("migrate", "renames", "--skip-checks", environment=child)
    assert second.wait() == 0, second.lines
    second.close()
    assert renamed.count() == 700
    assert MigrationRecorder(connection).migration_qs.filter(app="renames").exists()
    back = Program("migrate", "renames", "zero", "--skip-checks", environment=child)
    assert back.wait() == 0, back.lines
    back.close()
    assert renamed.count() == 0


def test_old_and_new_workers_pass_the_same_runs(child: dict[str, str], tmp_path: Path) -> None:
    now = timezone.now()
    text = JsonCodec().encode({"args": [str(tmp_path)], "kwargs": {}})
    log = tmp_path / "log"

    def start(count: int) -> None:
        production_store().create(
            [
                RunRecord(
                    id=new_id(), workflow="renames.order", queue="default", input=text, created_at=now, wake_at=now
                )
                for _ in range(count)
            ]
        )
        notify.notify("default")

    def charged(name: str) -> int:
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(each.endswith(f" {name}") for each in lines)

    output = tmp_path / "output"
    with Workers(1, {**child, "NAME_OF_STEP": "charge"}, output, settings="tests.renames.settings"):
        start(3)
        eventually(lambda: charged("charge") > 3)
        migrate = Program("migrate", "renames", "--skip-checks", environment=child)
        assert migrate.wait() == 0, migrate.lines
        migrate.close()
        with Workers(1, {**child, "NAME_OF_STEP": "charge card"}, output, settings="tests.renames.settings"):
            start(3)  # whichever code begins them
            eventually(lambda: charged("charge card") > 3)
            before = charged("charge")
            eventually(lambda: charged("charge") > before)  # the old worker, beside the new one
            (tmp_path / "stop").touch()
            wait_until_ended(output)
    assert set(Run.objects.values_list("state", flat=True)) == {"completed"}
    keys: dict[str, set[str]] = {}
    for line in log.read_text().splitlines():
        run_id, scope, key, _ = line.split(" ", 3)
        keys.setdefault(f"{run_id} {scope}", set()).add(key)
    assert all(len(each) == 1 for each in keys.values())  # whichever code has charged
