"""A migration that renames a queue, with Django's own commands and in real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.models import Lane, RenamedName, Run
from durable.operations.bulk import apply as bulk
from tests.e2e.workers import Workers
from tests.renames.conftest import commanded
from tests.support.locks import other_session, until_sessions_wait_for_locks
from tests.support.processes import Program
from tests.support.waiting import eventually, wait_until_ended

pytestmark = pytest.mark.slow

SETTINGS = "tests.renames.queue_settings"
OLD, NEW = "default", "orders"
WITHOUT_REDIS = {"WITHOUT_REDIS": "1"}


@pytest.fixture
def child(child_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    yield {**child_environment, "DJANGO_SETTINGS_MODULE": SETTINGS}
    MigrationRecorder(connection).migration_qs.filter(app="renames").delete()


@pytest.mark.postgres
def test_10_000_runs_are_renamed_by_a_migration_that_was_killed_between_two_batches(child: dict[str, str]) -> None:
    now = timezone.now()
    for first in range(0, 10_000, 2_000):
        Run.objects.bulk_create(
            Run(
                id=f"run-{n:05}",
                workflow="renames.rest",
                queue=OLD,
                input="{}",
                state="paused",
                head_start=7 if n == 5_000 else None,
                created_at=now,
            )
            for n in range(first, first + 2_000)
        )
    new_code = {**child, "NAME_OF_QUEUE": NEW}
    renamed = Run.objects.filter(queue=NEW)
    with psycopg.connect(**other_session()) as other:
        other.execute(
            "INSERT INTO durable_lane (queue, head_start) VALUES (%s, 7)", [NEW]
        )  # the batch of that run waits
        first_try = Program("migrate", "renames", "--skip-checks", environment=new_code)
        try:
            until_sessions_wait_for_locks()
            assert renamed.count() == 5_000
            assert RenamedName.objects.get().new == NEW
        finally:
            first_try.end(signal.SIGKILL)
            first_try.close()
        other.rollback()
    assert not MigrationRecorder(connection).migration_qs.filter(app="renames").exists()
    eventually(lambda: Run.objects.filter(queue=OLD).count() == 5_000)
    commanded("migrate", "renames", "--skip-checks", environment=new_code)
    assert renamed.count() == 10_000
    assert Lane.objects.get().queue == NEW
    assert RenamedName.objects.count() == 1
    commanded("migrate", "renames", "zero", "--skip-checks", environment=child)
    assert renamed.count() == 0


@pytest.mark.parametrize("transport", [{}, WITHOUT_REDIS], ids=["redis", "polling"])
def test_old_and_new_workers_beside_each_other_execute_all_runs(
    child: dict[str, str], tmp_path: Path, transport: dict[str, str]
) -> None:
    old = {**child, **transport, "NAME_OF_QUEUE": OLD}
    new = {**child, **transport, "NAME_OF_QUEUE": NEW}
    log = tmp_path / "log"

    def start(code: dict[str, str], count: int) -> None:
        for _ in range(count):
            commanded("durable", "start", "renames.order", json.dumps(str(tmp_path)), environment=code)

    def lines() -> list[list[str]]:
        return [each.split() for each in log.read_text().splitlines()] if log.exists() else []

    def passed_by(queue: str, since: int = 0) -> set[str]:
        return {each[0] for each in lines()[since:] if each[-1] == queue}

    output = tmp_path / "output"
    with Workers(1, new, output, settings=SETTINGS, queue=NEW):
        with Workers(1, old, output, settings=SETTINGS, queue=OLD):
            start(old, 2)
            eventually(lambda: len(passed_by(OLD)) == 2)
            commanded("migrate", "renames", "--skip-checks", environment=new)
            assert set(Run.objects.values_list("queue", flat=True)) == {NEW}
            eventually(lambda: len(passed_by(NEW)) == 2)
            start(old, 1)
            start(new, 1)
            assert sorted(Run.objects.values_list("queue", flat=True)) == [OLD, NEW, NEW, NEW]
            since = len(lines())
            eventually(lambda: len(passed_by(OLD, since)) == len(passed_by(NEW, since)) == 4)
        since = len(lines())
        eventually(lambda: len(passed_by(NEW, since)) == 4)  # no worker of the old name is left
    start(new, 1)
    start(old, 1)
    with Workers(1, old, output, settings=SETTINGS, queue=OLD):  # the deploy is taken back
        since = len(lines())
        eventually(lambda: len(passed_by(OLD, since)) == 6)
        (tmp_path / "stop").touch()
        wait_until_ended(output)
    assert set(Run.objects.values_list("state", flat=True)) == {"completed"}
    keys: dict[str, set[str]] = {}
    for run_id, scope, key, _ in lines():
        keys.setdefault(f"{run_id} {scope}", set()).add(key)
    assert all(len(each) == 1 for each in keys.values())


def test_a_worker_that_has_begun_before_the_migration_goes_on_alone(child: dict[str, str], tmp_path: Path) -> None:
    """The new code comes late: the rewritten runs have a name that no code of a worker has."""
    log, output = tmp_path / "log", tmp_path / "output"
    with Workers(1, child, output, settings=SETTINGS, queue=OLD):
        commanded("durable", "start", "renames.order", json.dumps(str(tmp_path)), environment=child)
        eventually(log.exists)
        commanded("migrate", "renames", "--skip-checks", environment={**child, "NAME_OF_QUEUE": NEW})
        assert Run.objects.get().queue == NEW
        (tmp_path / "stop").touch()
        wait_until_ended(output)
    assert Run.objects.get().state == "completed"


def test_the_gate_knows_of_a_queue_that_is_still_to_be_renamed(child: dict[str, str], tmp_path: Path) -> None:
    """Runs at rest, and runs that wait for a child, which the code starts in the queue by the name that it has."""
    for number in range(3):
        commanded("durable", "start", "renames.family", "--id", f"family-{number}", environment=child)
    with Workers(1, child, tmp_path / "output", settings=SETTINGS, queue=OLD):
        eventually(lambda: Run.objects.filter(state="sleeping").count() == 6)
    assert set(Run.objects.values_list("queue", flat=True)) == {OLD}
    new = {**child, "NAME_OF_QUEUE": NEW}

    def checked(code: dict[str, str]) -> str:
        how = ("--jobs", "2") if code is new else ()
        return "\n".join(commanded("durable", "replay-check", "--open", *how, environment=code))

    for code in (child, new):  # the migration is still to be applied
        assert "6 runs checked, none would diverge" in checked(code)
    commanded("migrate", "renames", "--skip-checks", environment=new)
    assert set(Run.objects.values_list("queue", flat=True)) == {NEW}
    for code in (child, new):
        assert "6 runs checked, none would diverge" in checked(code)


def test_a_bulk_in_the_background_goes_on_in_a_queue_that_is_renamed_under_it(
    child: dict[str, str], tmp_path: Path
) -> None:
    """The bulk's own run is in that queue too: a worker of old code begins it, and one of new code goes on with it."""
    now = timezone.now()
    Run.objects.bulk_create(
        Run(id=f"run-{n:03}", workflow="renames.rest", queue=OLD, input="{}", state="paused", created_at=now)
        for n in range(500)
    )
    new = {**child, "NAME_OF_QUEUE": NEW}
    output = tmp_path / "output"
    cancelled = Run.objects.filter(state="cancelled")
    with Workers(1, child, output, settings=SETTINGS, queue=OLD):
        # one run every two seconds: it is under way for longer than any of this takes
        bulk("cancel", Filtered(RunCriteria(queue=OLD, states=frozenset({"paused"}))), rate=0.5)
        eventually(cancelled.exists)
        commanded("migrate", "renames", "--skip-checks", environment=new)
    assert set(Run.objects.exclude(state="cancelled").values_list("queue", flat=True)) == {NEW}
    before = cancelled.count()
    with Workers(1, new, output, settings=SETTINGS, queue=NEW):
        eventually(lambda: cancelled.count() > before + 2)
    assert set(cancelled.values_list("workflow", flat=True)) == {"renames.rest"}


def test_django_shows_the_operation(child: dict[str, str]) -> None:
    assert 'Rename the queue "default" to "orders"' in "\n".join(commanded("migrate", "--plan", environment=child))
