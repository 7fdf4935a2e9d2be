"""Migrations that rename, squashed by Django's own command, and the gate with several processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from durable.codec import JsonCodec
from durable.models import Entry, EntryMetadata, RenamedName, RenamedStep, Run
from tests.renames.conftest import commanded

pytestmark = pytest.mark.slow

MIGRATION = """
from django.db import migrations
from durable.migrations import RenameStep, RenameWorkflow

class Migration(migrations.Migration):
    atomic = False
    dependencies = [{dependency}]
    operations = [{operation}]
"""
SETTINGS = """
from tests.renames.settings import *

MIGRATION_MODULES = {"renames": "squashed_migrations"}
"""
FIRST, SECOND = "0001_charge", "0002_rest"


@pytest.fixture
def project(child_environment: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """A project with two migrations that rename, in a directory that its test may change."""
    directory = tmp_path / "squashed_migrations"
    directory.mkdir()
    (directory / "__init__.py").touch()
    (tmp_path / "squashed_settings.py").write_text(SETTINGS)
    for name, dependency, operation in (
        (FIRST, ("durable", "0002_routines"), 'RenameStep("renames.rest", "charge", "charge card")'),
        (SECOND, ("renames", FIRST), 'RenameWorkflow("renames.rest", "renames.pause")'),
    ):
        text = MIGRATION.format(dependency=dependency, operation=operation)
        (directory / f"{name}.py").write_text(text)
    path = f"{child_environment['PYTHONPATH']}:{tmp_path}"  # behind the directory with which forked children begin
    yield {**child_environment, "DJANGO_SETTINGS_MODULE": "squashed_settings", "PYTHONPATH": path}
    MigrationRecorder(connection).migration_qs.filter(app="renames").delete()


def resting_runs(count: int) -> None:
    """Runs of `renames.rest` that have charged, and are paused."""
    now = timezone.now()
    text = JsonCodec().encode({"args": [], "kwargs": {}})
    columns = {"workflow": "renames.rest", "queue": "default", "input": text, "state": "paused", "fence": 1}
    runs = Run.objects.bulk_create(Run(id=f"run-{n:05}", created_at=now, **columns) for n in range(count))
    entries = Entry.objects.bulk_create(Entry(run=each, location="charge", kind="step", ordinal=0) for each in runs)
    EntryMetadata.objects.bulk_create(EntryMetadata(entry=each, status="completed", created_at=now) for each in entries)


def names() -> set[tuple[str, str]]:
    return set(Entry.objects.values_list("run__workflow", "location"))


def squash(project: dict[str, str], directory: Path) -> None:
    commanded("squashmigrations", "renames", "0001", "0002", "--noinput", "--skip-checks", environment=project)
    [squashed] = directory.glob("squashed_migrations/0001_*_squashed_*.py")
    text = squashed.read_text()
    assert "durable.migrations.RenameStep" in text
    assert "durable.migrations.RenameWorkflow" in text
    if "atomic" not in text:  # the command leaves it to the author
        squashed.write_text(text.replace("    replaces =", "    atomic = False\n    replaces ="))


def test_a_squashed_migration_renames_as_those_that_it_replaces(project: dict[str, str], tmp_path: Path) -> None:
    resting_runs(3)
    squash(project, tmp_path)
    gate = ("durable", "replay-check", "--open")
    new_code = {**project, "NAME_OF_STEP": "charge card"}
    assert "none would diverge" in "\n".join(commanded(*gate, environment=new_code))
    commanded("migrate", "renames", "--skip-checks", environment=project)
    assert names() == {("renames.pause", "charge card")}
    assert (RenamedStep.objects.count(), RenamedName.objects.count()) == (1, 1)
    commanded("migrate", "renames", "zero", "--skip-checks", environment=project)
    assert names() == {("renames.rest", "charge")}


def test_where_the_replaced_ones_are_applied_nothing_is_left_to_do(project: dict[str, str], tmp_path: Path) -> None:
    resting_runs(3)
    commanded("migrate", "renames", "--skip-checks", environment=project)
    squash(project, tmp_path)
    assert "No migrations to apply" in "\n".join(commanded("migrate", "renames", "--skip-checks", environment=project))
    for name in (FIRST, SECOND):  # as the author does in the release after that
        (tmp_path / "squashed_migrations" / f"{name}.py").unlink()
    commanded("migrate", "renames", "--skip-checks", environment=project)
    assert names() == {("renames.pause", "charge card")}
    assert (RenamedStep.objects.count(), RenamedName.objects.count()) == (1, 1)
    new_code = {**project, "NAME_OF_STEP": "charge card"}
    found = commanded("durable", "replay-check", "--open", environment=new_code)
    assert "none would diverge" in "\n".join(found)


def test_each_process_of_the_gate_knows_what_is_still_to_be_applied(project: dict[str, str]) -> None:
    resting_runs(60)
    gate = ("durable", "replay-check", "--open", "--jobs", "2")
    new_code = {**project, "NAME_OF_STEP": "charge card"}
    assert "60 runs checked, none would diverge" in "\n".join(commanded(*gate, environment=new_code))
    other_code = {**project, "NAME_OF_STEP": "pay"}
    found = "\n".join(commanded(*gate, environment=other_code, code=1))
    assert "60 runs checked, 60 would diverge" in found
    assert names() == {("renames.rest", "charge")}
