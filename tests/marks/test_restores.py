"""Real servers and workers: a backup is restored, a standby that lagged is promoted, a clone shares a Redis.

What the steps do is noted outside of the database. No run may be claimed in a database that went back, until it is
decided; then all runs go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest
import redis

from project.servers import POSTGRES_PORT, EmbeddedPostgres, EmbeddedRedis
from tests.support import http
from tests.support.child_path import child_path
from tests.support.databases import Standby
from tests.support.postgres import copied
from tests.support.processes import ROOT, Program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.redis]

RUNS: Final = 4
MOST: Final = 40
#: A person who knows the ledger answers for all steps that wait for one, until no run is in doubt any more.
ANSWER: Final = """
import os, time
from pathlib import Path
from durable import get_run
from durable.models import RunLimit

ledger = Path(os.environ["MARKS_LEDGER"])
while left := list(RunLimit.objects.exclude(in_doubt=None).filter(run__finished_at=None)):
    for run in (get_run(each.run_id) for each in left):
        for held in run.info().held:
            number = held.location.removeprefix("note ")
            is_noted = f"{run.id} {number}" in ledger.read_text().splitlines()
            run.settle(held.location, **({"done": int(number)} if is_noted else {"not_done": True}))
            print(run.id, held.location)
    time.sleep(0.25)
"""
FENCES: Final = "SELECT id, state, fence, worker FROM durable_run ORDER BY id"


@dataclass
class Site:
    """A project with its workers. Its database is where `DATABASE_URL` leads, its ledger outside of that."""

    environment: dict[str, str]
    ledger: Path
    workers: list[Program] = field(default_factory=list)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py."""
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def must(self, *arguments: str) -> str:
        """Run a command that must succeed; its output."""
        done = self.manage(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def migrate(self) -> None:
        """Make the tables."""
        self.must("migrate", "-v0")

    def begin(self, most: int = MOST) -> None:
        """Start runs that note so many numbers each."""
        for number in range(RUNS):
            self.must("durable", "start", "marks.counting", str(most), "--id", f"run-{number}")

    def work(self, *options: str) -> Program:
        """Start a durable_worker."""
        program = Program("durable_worker", *options, environment=self.environment)
        self.workers.append(program)
        return program

    def lines(self) -> list[str]:
        """What the steps have noted, in order."""
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def await_lines(self, more: int) -> None:
        """Wait for so many more lines of the ledger."""
        before = len(self.lines())
        eventually(lambda: len(self.lines()) >= before + more)

    def restored(self, *options: str) -> Any:
        """What `durable restored` says, as JSON."""
        done = self.manage("durable", "restored", "-o", "json", *options)
        return json.loads(done.stdout) if done.stdout else done.stderr

    def decide(self, *how: str) -> None:
        """Decide as soon as the mark has rested for long enough."""
        eventually(lambda: self.manage("durable", "restored", *how, "--yes").returncode == 0, every=1)

    def close(self) -> None:
        for each in self.workers:
            if each.process.poll() is None:
                each.end()
            each.close()


def around(url: str, redis_server: EmbeddedRedis, ledger: Path) -> dict[str, str]:
    """The environment of a site."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("DATABASE", "REDIS"))}
    return {
        **others,
        "DATABASE_URL": url,
        "REDIS_URL": redis_server.url,
        "DJANGO_SETTINGS_MODULE": "tests.marks.settings",
        "MARKS_LEDGER": str(ledger),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": child_path(ROOT),
    }


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that a test may flush and stop."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def make_site(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Callable[..., Site]]:
    """Make a site with this database."""
    made: list[Site] = []

    def make(url: str, *, ledger: str = "ledger", **environment: str) -> Site:
        made.append(Site(around(url, own_redis, tmp_path / ledger) | environment, tmp_path / ledger))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def migrated(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of a PostgreSQL that has the tables: those of a test begin as copies of it."""
    with EmbeddedPostgres(fsync=False) as server:
        Site(around(server.url, redis_server, ledger := tmp_path_factory.mktemp("migrated")), ledger).migrate()
        server.stop()
        yield server.data


@pytest.fixture
def primary(migrated: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own."""
    server = EmbeddedPostgres(fsync=False)
    copied(migrated, server.data)
    with server:
        yield server


@dataclass
class Address:
    """A directory by whose name a site finds the server of the moment, as by a name in DNS."""

    path: Path

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{quote(str(self.path), safe='')}:{POSTGRES_PORT}/durable"

    def lead_to(self, server: EmbeddedPostgres) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self.path.symlink_to(server._socket_directory)


@pytest.fixture
def address() -> Iterator[Address]:
    """An address that leads nowhere yet."""
    path = Path(f"/tmp/durable-mark-{os.getpid()}")
    yield Address(path)
    path.unlink(missing_ok=True)


def rows(url: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as session:
        return session.execute(FENCES).fetchall()


def counter(url: str) -> int:
    """How far the database has come."""
    with psycopg.connect(url, autocommit=True) as session:
        [(found,)] = session.execute("SELECT counter FROM durable_databasemark").fetchall()
    return int(found)


@pytest.mark.parametrize("way", ["one at a time", "in threads", "without Redis"])
def test_a_standby_that_lagged_is_promoted_under_workers(
    way: str, primary: EmbeddedPostgres, address: Address, make_site: Callable[..., Site], tmp_path: Path
) -> None:
    options = ("--concurrency", "4") if way == "in threads" else ()
    without = {"MARKS_REDIS": "0", "MARKS_FILE": str(tmp_path / "mark.json")} if way == "without Redis" else {}
    address.lead_to(primary)
    site = make_site(address.url, **without)
    site.begin()
    worker = site.work(*options)
    site.await_lines(8)
    with Standby(primary) as standby:
        standby.catch_up()
        standby.stop()  # it receives nothing any more
        site.await_lines(30)
        primary.stop("immediate")
        standby.start()
        standby.ask("SELECT pg_promote()")
        before = rows(standby.url)
        address.lead_to(standby)
        worker.wait_for("no run is claimed")
        noted = site.lines()
        assert site.restored()["is_behind"]
        for _ in range(3):  # sweeps notify of the due runs meanwhile
            worker_rows = rows(standby.url)
            site.restored()
        assert worker_rows == before, "not one run was claimed"
        assert site.lines() == noted
        doctor = site.manage("durable", "doctor", "-o", "json")
        assert (doctor.returncode, "database_behind" in doctor.stdout) == (1, True)
        site.decide("--go-on")
        site.await_lines(1)
        worker.wait_for("runs are claimed again")
        eventually(lambda: {state for _, state, _, _ in rows(standby.url)} == {"completed"})
    assert set(site.lines()) == {f"run-{run} {number}" for run in range(RUNS) for number in range(MOST)}
    assert len(site.lines()) > RUNS * MOST, "what was lost was done again, as decided"


def test_a_backup_is_restored_under_workers_and_all_open_runs_are_paused(
    primary: EmbeddedPostgres, make_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = make_site(primary.url)
    site.begin()
    worker = site.work()
    site.await_lines(8)
    primary.stop()
    backup = primary.directory / "backup"
    copied(primary.data, backup)
    primary.start()
    site.await_lines(30)
    primary.stop()
    shutil.rmtree(primary.data)
    backup.rename(primary.data)
    primary.start()
    worker.wait_for("no run is claimed")
    noted = site.lines()
    found = site.restored()
    assert found["is_behind"]
    assert {each["id"] for each in found["results"]} == {f"run-{number}" for number in range(RUNS)}
    assert found["lost_seconds"] > 1
    site.decide("--hold")
    assert {state for _, state, _, _ in rows(primary.url)} == {"paused"}
    worker.wait_for("it was decided about the database")
    assert site.lines() == noted
    site.must("durable", "resume", "run-1")
    eventually(lambda: {row[0]: row[1] for row in rows(primary.url)}["run-1"] == "completed")
    assert {each.split()[0] for each in site.lines()[len(noted) :]} == {"run-1"}


def test_a_base_backup_starts_elsewhere_under_workers_and_its_runs_ask_what_they_have_done(
    primary: EmbeddedPostgres, make_site: Callable[..., Site], address: Address
) -> None:
    address.lead_to(primary)
    site = make_site(address.url)
    site.begin(most := 150)
    workers = [site.work("--processes", "2"), site.work("--concurrency", "4")]
    site.await_lines(4)
    with Standby(primary, follows=False) as backup:
        site.await_lines(12)
        eventually(lambda: counter(primary.url) > counter(backup.url) + 1)  # less is a loss between two sweeps
        primary.stop()
        address.lead_to(backup)
        for worker in workers:
            worker.wait_for("no run is claimed")
        before, noted = rows(backup.url), site.lines()
        assert site.restored()["is_behind"]
        assert (rows(backup.url), site.lines()) == (before, noted), "nothing was claimed or done"
        site.decide("--unknown")
        for worker in workers:
            worker.wait_for("it was decided about the database")
        wanted = {f"run-{run} {number}" for run in range(RUNS) for number in range(most)}
        asked = site.must("shell", "-v0", "-c", ANSWER).splitlines()
        eventually(lambda: {state for _, state, _, _ in rows(backup.url)} == {"completed"})
    assert sorted(site.lines()) == sorted(wanted), "each was done once"
    assert len(asked) > RUNS


def test_a_worker_that_starts_in_a_restored_database_claims_nothing(
    primary: EmbeddedPostgres, make_site: Callable[..., Site], own_redis: EmbeddedRedis
) -> None:
    site = make_site(primary.url)
    site.begin()
    worker = site.work()
    site.await_lines(8)
    with psycopg.connect(primary.url, autocommit=True) as session:
        asked = "SELECT counter > 3 FROM durable_databasemark"
        eventually(lambda: session.execute(asked).fetchone() == (True,))
    worker.end()
    with psycopg.connect(primary.url, autocommit=True) as session:  # as of some sweeps ago
        session.execute("UPDATE durable_databasemark SET counter = counter - 3, token = 'old'")
        session.execute("UPDATE durable_databasemark SET written_at = written_at - interval '3 s'")
    before, noted = rows(primary.url), site.lines()
    kinds = ["durable.rq_workers.SimpleWorker", "durable.rq_workers.Worker", "rq.worker.Worker"]
    for kind in kinds:
        with redis.Redis.from_url(own_redis.url) as client:
            client.delete("durable:bell:default")  # the next notification enqueues a job
        site.must("durable", "wake", "run-1")
        before = rows(primary.url)
        command = [sys.executable, "-m", "rq.cli", "worker", "default", "--burst", "--worker-class", kind]
        command += ["--url", own_redis.url, "--serializer", "rq.serializers.JSONSerializer"]
        done = subprocess.run(command, env=site.environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "no run is claimed" in done.stderr + done.stdout, kind
        assert (rows(primary.url), site.lines()) == (before, noted), kind
    again = site.work("--health-port", "0")
    [address] = re.findall(r"http://\S+(?=/livez)", again.wait_for("probes at")[0])
    again.wait_for("no run is claimed")
    assert (rows(primary.url), site.lines()) == (before, noted)
    eventually(lambda: "database: it went back in time: no run is claimed" in http.get(f"{address}/readyz").text)
    assert [http.get(f"{address}/{probe}").status_code for probe in ("readyz", "livez")] == [503, 200]
    site.decide("--go-on")
    eventually(lambda: http.get(f"{address}/readyz").status_code == 200)


def test_a_clone_that_shares_a_redis_is_noticed_and_the_original_goes_on(
    primary: EmbeddedPostgres, make_site: Callable[..., Site]
) -> None:
    site = make_site(primary.url)
    site.begin(10_000)  # they do not end within this test
    worker = site.work()
    site.await_lines(4)
    worker.end()
    with psycopg.connect(primary.url_of("postgres"), autocommit=True) as session:
        session.execute("CREATE DATABASE staging TEMPLATE durable")
    site.work()
    site.await_lines(10)
    clone = make_site(primary.url_of("staging"), ledger="staging")
    worker = clone.work()
    worker.wait_for("no run is claimed")
    refused = clone.manage("durable", "restored", "--go-on", "--yes")
    assert "seems to be in use" in refused.stderr
    assert clone.lines() == []
    site.await_lines(4)  # the original goes on
    clone.must("durable", "restored", "--hold", "--copy", "--yes")
    worker.wait_for("it was decided about the database")
    assert clone.lines() == []
    clone.must("durable", "resume", "run-0")
    clone.await_lines(3)
    site.await_lines(4)
    assert not site.restored()["is_behind"]


def test_a_flushed_redis_alarms_nobody_and_the_mark_comes_back(
    primary: EmbeddedPostgres, make_site: Callable[..., Site], own_redis: EmbeddedRedis
) -> None:
    site = make_site(primary.url)
    site.begin()
    own_redis.stop()
    worker = site.work()  # Redis is away at its start
    site.await_lines(8)
    own_redis.start()
    site.await_lines(8)
    with redis.Redis.from_url(own_redis.url) as client:
        eventually(lambda: client.keys("durable:mark:*"))
        client.flushall()
        eventually(lambda: client.keys("durable:mark:*"))
    site.await_lines(8)
    assert not [each for each in worker.lines if "no run is claimed" in each]
    assert not site.restored()["is_behind"]


def test_a_file_of_sqlite_is_copied_back_under_a_worker(make_site: Callable[..., Site], tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite3"
    environment = {"MARKS_REDIS": "0", "MARKS_FILE": str(tmp_path / "mark.json")}
    environment["MARKS_CONN_MAX_AGE"] = "2"  # a connection shows the file that was there when it was made
    site = make_site(f"sqlite:///{path}", **environment)
    site.migrate()
    site.begin()
    worker = site.work()
    site.await_lines(8)
    backup = tmp_path / "backup.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    site.await_lines(30)
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    backup.replace(path)
    worker.wait_for("no run is claimed")
    with contextlib.closing(sqlite3.connect(path)) as session:
        before = session.execute(FENCES).fetchall()
    noted = site.lines()
    assert site.restored()["is_behind"]
    with contextlib.closing(sqlite3.connect(path)) as session:
        assert session.execute(FENCES).fetchall() == before
    assert site.lines() == noted
    site.decide("--go-on")
    site.await_lines(4)
