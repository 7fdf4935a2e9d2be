"""The tables are put into partitions while workers go on, by a process that is killed at each point it comes to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.conf import settings
from django.db import IntegrityError, connections, transaction
from django.test import override_settings
from pytest_django.plugin import DjangoDbBlocker

from durable import Context, Handle, workflow
from durable.core.errors import ErrorInfo
from durable.models import Attempt, Entry, EntryMetadata, Run
from durable.store import store_for
from durable.store.partitions.layout import TABLES, partitions
from durable.store.routines import differences
from project.servers import EmbeddedPostgres
from project.settings import database_from
from tests.support.child_path import child_path
from tests.support.databases import migrated
from tests.support.postgres import copied
from tests.support.processes import ROOT
from tests.support.worker import work_off

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow]

ALIAS = "partitioned"
NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEPT = 3_000  # ended runs that are there before, so wide that they are more pages than one transaction copies


@workflow(name="faults.partitioned")
def doubled(ctx: Context, number: int) -> int:
    first = ctx.step("first", int, number)
    ctx.sleep("a moment", 0.2)
    return first + ctx.step("second", int, number)


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Path]:
    """The files of a server whose tables have rows: each test begins with a copy of it."""
    with EmbeddedPostgres(fsync=False) as server:
        with (
            django_db_blocker.unblock(),
            override_settings(DURABLE={"DATABASE": ALIAS}),
            migrated(ALIAS, database_from(server.url)),
            connections[ALIAS].cursor() as cursor,
        ):
            cursor.execute(
                "INSERT INTO durable_run (id, workflow, queue, state, input, origins, waiting_for, summary, fence, worker, "
                "crashes, change_seq, message_count, pending_request, request_reason, state_after_rollback, generations, "
                "created_at, finished_at, parent_id) "
                "SELECT 'kept-' || n, 'faults.kept', 'q', 'completed', repeat('x', 600), '[]', '', '', 1, '', 0, 0, 0, '', '', '', '{}', "
                "now(), now(), CASE WHEN n %% 3 = 0 THEN 'kept-' || n - 1 END FROM generate_series(1, %s) AS n",
                [KEPT],
            )
            cursor.execute(
                "INSERT INTO durable_entry (run_id, location, kind, ordinal, data) "
                "SELECT id, 'a', 'step', 1, jsonb_build_object('pad', repeat('x', 600)) FROM durable_run"
            )
            cursor.execute(
                "INSERT INTO durable_entrymetadata (entry_id, status, attempts, created_at) "
                "SELECT id, 'completed', 1, now() FROM durable_entry"
            )
        server.stop()
        yield server.data


@pytest.fixture
def server(filled: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(fsync=False)
    copied(filled, server.data)
    with (
        server,
        django_db_blocker.unblock(),
        override_settings(DURABLE={"DATABASE": ALIAS}),
        migrated(ALIAS, database_from(server.url), apps=()),
    ):
        yield server


class Beside:
    """What goes on beside: workers execute runs; kept runs are changed and deleted, and noted once that is done."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.has_all_ended = threading.Event()
        self.started: list[tuple[Handle[int], int]] = []
        self.touched: set[int] = set()
        self.deleted: set[int] = set()

    def work(self) -> None:
        while not self.has_all_ended.wait(0.05):
            work_off("default", store=store_for(ALIAS))

    def start(self) -> None:
        number = 0
        while not self.is_over.is_set():
            number += 1
            self.started.append((doubled.start(number), number))
            self.is_over.wait(0.1)

    def change(self) -> None:
        """Change and delete kept runs from both ends: rows that are copied, and rows that are not."""
        runs = Run.objects.using(ALIAS)
        for number in range(1, KEPT // 2):
            if self.is_over.is_set():
                return
            for each in (number, KEPT - number):
                if each % 6 == 1:  # none of them has a child
                    runs.filter(id=f"kept-{each}").delete()
                    self.deleted.add(each)
                else:
                    assert runs.filter(id=f"kept-{each}").update(request_reason="touched") == 1
                    self.touched.add(each)
            self.is_over.wait(0.02)


@pytest.fixture
def beside(server: EmbeddedPostgres) -> Iterator[Beside]:
    found = Beside()

    def run(work: str) -> None:
        try:
            getattr(found, work)()
        finally:
            connections.close_all()

    with ThreadPoolExecutor() as pool:
        threads = [pool.submit(run, work) for work in ("work", "work", "start", "change")]
        yield found
        found.is_over.set()
        found.has_all_ended.set()
        for each in threads:
            each.result(120)


def begin(server: EmbeddedPostgres, *arguments: str) -> subprocess.Popen[str]:
    """Begin `manage.py durable partition` on the database."""
    command = [sys.executable, str(ROOT / "manage.py"), "durable", "partition", *arguments]
    environment = {
        **os.environ,
        "DATABASE_URL": server.url,
        "DURABLE_PARTITIONS": "0",
        "PYTHONPATH": child_path(settings.BASE_DIR),
    }
    return subprocess.Popen(command, cwd=Path(settings.BASE_DIR), env=environment, stderr=subprocess.PIPE, text=True)


def killed_at(server: EmbeddedPostgres, known: set[str]) -> str:
    """Partition until the process tells something that is not known, kill it, and return that; "" if it has ended."""
    with begin(server, "--into", "4") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line not in known:
                process.kill()
                return line
    assert process.returncode == 0
    return ""


def done(server: EmbeddedPostgres, *arguments: str) -> tuple[int, str]:
    """Return the exit status of `manage.py durable partition`, and what it has told."""
    with begin(server, *arguments) as process:
        assert process.stderr is not None
        told = process.stderr.read()
    return process.returncode, told


def test_the_tables_are_partitioned_under_workers_by_a_process_that_is_killed_at_each_point(
    server: EmbeddedPostgres, beside: Beside
) -> None:
    told: list[str] = []
    while line := killed_at(server, set(told)):
        told.append(line)
    assert told[0].startswith("made tables"), told
    assert sum(each.startswith("copied") for each in told) >= 2, told  # more than one transaction copies pages
    assert any("in the place of the old ones" in each for each in told)
    beside.is_over.set()
    assert partitions(ALIAS) == 4
    assert differences(ALIAS) == []
    runs = Run.objects.using(ALIAS)
    assert beside.started, "no run was started meanwhile"
    assert runs.filter(workflow=doubled.name).count() == len(beside.started)
    for handle, number in beside.started:
        assert handle.result(timeout=60) == 2 * number
    entries = Entry.objects.using(ALIAS)
    assert entries.filter(run__workflow=doubled.name).count() == 3 * len(beside.started)
    kept = {f"kept-{n}" for n in range(1, KEPT + 1) if n not in beside.deleted}
    assert beside.deleted
    assert set(runs.filter(workflow="faults.kept").values_list("id", flat=True)) == kept
    assert set(entries.exclude(run__workflow=doubled.name).values_list("run_id", flat=True)) == kept
    assert set(runs.filter(request_reason="touched").values_list("id", flat=True)) == {
        f"kept-{n}" for n in beside.touched
    }
    assert entries.count() == EntryMetadata.objects.using(ALIAS).filter(entry__isnull=False).count()
    assert left_over() == []


def test_foreign_keys_hold_afterwards(server: EmbeddedPostgres) -> None:
    before = foreign_keys()
    assert done(server, "--into", "4")[0] == 0
    assert foreign_keys() == before
    for broken in (
        Attempt(run_id="nobody", location="a", number=1, started_at=NOW, finished_at=NOW, error=ErrorInfo("E", "no")),
        Run(id="child", workflow="w", queue="q", input="", parent_id="nobody", created_at=NOW),
    ):
        with pytest.raises(IntegrityError), transaction.atomic(using=ALIAS):
            broken.save(using=ALIAS)


def test_a_copy_can_be_given_up(server: EmbeddedPostgres) -> None:
    told = {killed_at(server, set())}
    told.add(killed_at(server, told))
    assert done(server, "--into", "8")[0] == 1  # another number than the one that is under way
    assert done(server, "--abandon")[0] == 0
    assert (partitions(ALIAS), left_over()) == (0, [])
    assert Run.objects.using(ALIAS).count() == KEPT
    assert done(server, "--abandon")[0] == 1


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE durable_run ADD COLUMN colour text", "CREATE INDEX colours ON durable_run (worker)"],
)
def test_a_table_that_is_changed_meanwhile_is_not_replaced(server: EmbeddedPostgres, change: str) -> None:
    killed_at(server, set())
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(change)
    Run.objects.using(ALIAS).filter(id="kept-1").update(worker="still written")
    status, told = done(server, "--into", "4")
    assert (status, "--abandon" in told) == (1, True)
    assert partitions(ALIAS) == 0
    assert done(server, "--abandon")[0] == 0
    assert done(server, "--into", "4")[0] == 0
    assert (partitions(ALIAS), differences(ALIAS)) == (4, [])


def test_whole_tables_again(server: EmbeddedPostgres) -> None:
    for into in (3, 5, 0):
        assert done(server, "--into", str(into))[0] == 0
        assert (partitions(ALIAS), left_over(), differences(ALIAS)) == (into, [], [])
        assert Entry.objects.using(ALIAS).count() == KEPT


def test_what_would_stay_with_the_old_tables_is_refused(server: EmbeddedPostgres) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("CREATE VIEW reported AS SELECT id FROM durable_run")
    status, told = done(server, "--into", "4")
    assert (status, "the view reported" in told) == (1, True)
    assert (partitions(ALIAS), left_over()) == (0, [])


def left_over() -> list[str]:
    """What a copy has made, and what it has replaced."""
    names = [name for table in TABLES for name in (table.new, table.old)]
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relname = ANY(%s) OR relname LIKE 'durable_partition%%' "
            "UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'durable_mirror%%'",
            [names],
        )
        return [name for (name,) in cursor.fetchall()]


def foreign_keys() -> set[tuple[str, str, str, bool]]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "SELECT conname, conrelid::regclass::text, pg_get_constraintdef(oid), convalidated FROM pg_constraint "
            "WHERE contype = 'f' AND conparentid = 0 AND confrelid = 'durable_run'::regclass"
        )
        return set(cursor.fetchall())
