"""The embedded servers: they start, keep or lose what they should, and leave nothing, however their owner ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from project import servers
from project.guard import GuardedProcess
from project.servers import EmbeddedPostgres, EmbeddedRedis, ServerError
from tests.support.postgres import OLDEST_POSTGRES

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgres() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(fsync=False) as server:
        yield server


@pytest.fixture
def embedded_redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


def scalar(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def wait_until_gone(pids: set[int], timeout: float = 120.0) -> set[int]:
    """The pids still there when the time is over."""
    deadline = time.monotonic() + timeout
    while (left := {pid for pid in pids if psutil.pid_exists(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def family(pid: int) -> set[int]:
    process = psutil.Process(pid)
    return {pid, *(child.pid for child in process.children(recursive=True))}


class TestPostgres:
    @pytest.mark.skipif(bool(os.environ.get("POSTGRES_BIN")), reason="POSTGRES_BIN names another PostgreSQL")
    def test_it_is_a_postgresql_18(self, postgres: EmbeddedPostgres) -> None:
        assert str(scalar(postgres.url, "SHOW server_version")).startswith("18")

    def test_the_environment_names_another_postgresql(
        self, oldest_programs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("POSTGRES_BIN", str(oldest_programs))
        with EmbeddedPostgres(fsync=False) as server:
            assert str(scalar(server.url, "SHOW server_version")).startswith(str(OLDEST_POSTGRES))
            assert scalar(server.url, "SHOW jit") == "on"
            assert scalar(server.url, "SELECT lower('\u00c4')") == "\u00e4"

    def test_a_directory_without_programs_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSTGRES_BIN", str(tmp_path))
        with pytest.raises(ServerError, match=f"POSTGRES_BIN is {tmp_path}, and there is no initdb"):
            EmbeddedPostgres()

    def test_it_has_room_for_workers(self, postgres: EmbeddedPostgres) -> None:
        assert scalar(postgres.url, "SHOW max_connections") == "200"
        assert scalar(postgres.url, "SHOW timezone") == "UTC"
        assert scalar(postgres.url, "SELECT current_database()") == "durable"

    def test_it_listens_on_no_network_address(self, postgres: EmbeddedPostgres) -> None:
        assert not [c for c in psutil.Process(postgres.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]

    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_what_is_committed_survives_a_restart(self, postgres: EmbeddedPostgres, mode: servers.PostgresStop) -> None:
        execute(postgres.url, f"CREATE TABLE kept_{mode} AS SELECT 42 AS answer")
        before = postgres.pid
        postgres.restart(mode)
        assert postgres.pid != before
        assert scalar(postgres.url, f"SELECT answer FROM kept_{mode}") == 42

    def test_a_restart_ends_open_connections(self, postgres: EmbeddedPostgres) -> None:
        connection = psycopg.connect(postgres.url, autocommit=True)
        postgres.restart("immediate")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()

    def test_a_child_process_uses_the_url(self, postgres: EmbeddedPostgres) -> None:
        code = "import os, psycopg; print(psycopg.connect(os.environ['URL']).execute('SELECT 6 * 7').fetchone()[0])"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "URL": postgres.url}, capture_output=True, check=True
        )
        assert done.stdout.strip() == b"42"

    def test_more_databases_are_created_on_demand(self, postgres: EmbeddedPostgres) -> None:
        url = postgres.create_database("beside")
        assert url == postgres.create_database("beside") == postgres.url_of("beside")
        assert scalar(url, "SELECT current_database()") == "beside"

    def test_writes_are_durable_by_default(self, postgres: EmbeddedPostgres) -> None:
        assert scalar(postgres.url, "SHOW fsync") == "off"
        with EmbeddedPostgres(settings={"work_mem": "8MB"}) as careful:
            assert scalar(careful.url, "SHOW fsync") == "on"
            assert scalar(careful.url, "SHOW synchronous_commit") == "on"
            assert scalar(careful.url, "SHOW work_mem") == "8MB"

    def test_a_given_directory_and_its_data_stay(self, open_directory: Path) -> None:
        with EmbeddedPostgres(open_directory / "pg", fsync=False) as first:
            execute(first.url, "CREATE TABLE kept AS SELECT 1 AS one")
        assert not first.running
        with EmbeddedPostgres(open_directory / "pg", fsync=False) as second:
            assert scalar(second.url, "SELECT one FROM kept") == 1

    def test_a_path_too_long_for_a_socket_is_no_obstacle(self, open_directory: Path) -> None:
        with EmbeddedPostgres(open_directory / ("long" * 30), fsync=False) as server:
            assert scalar(server.url, "SELECT 1") == 1

    def test_a_second_server_in_the_same_directory_is_refused_with_its_log(self, open_directory: Path) -> None:
        with EmbeddedPostgres(open_directory / "pg", fsync=False) as server:
            with pytest.raises(ServerError, match=r'lock file "postmaster.pid" already exists'):
                EmbeddedPostgres(open_directory / "pg", fsync=False).start()
            assert scalar(server.url, "SELECT 1") == 1

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another user")
    def test_as_root_a_directory_closed_to_others_is_refused_with_a_reason(self, open_directory: Path) -> None:
        (open_directory / "home").mkdir(mode=0o700)
        with pytest.raises(ServerError, match="Give a directory that others may pass through"):
            EmbeddedPostgres(open_directory / "home" / "pg")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another user")
    def test_as_root_programs_in_a_closed_home_are_copied_along(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("POSTGRES_BIN", raising=False)
        real = servers._reachable
        monkeypatch.setattr(
            servers, "_reachable", lambda path, user: real(path, user) and "site-packages" not in path.parts
        )
        with EmbeddedPostgres(fsync=False) as server:
            assert psutil.Process(server.pid).exe().startswith(str(server.directory))
            assert psutil.Process(server.pid).username() == "nobody"


class TestRedis:
    def test_the_environment_names_another_server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with EmbeddedRedis() as server:
            program = psutil.Process(server.pid).exe()
        other = tmp_path / "valkey-server"
        other.write_text(f'#!/bin/sh\ntouch "{tmp_path}/was-started"\nexec "{program}" "$@"\n')
        other.chmod(0o755)
        monkeypatch.setenv("REDIS_SERVER", str(other))
        with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
            assert client.ping()
        assert (tmp_path / "was-started").exists()

    def test_a_program_that_is_not_there_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDIS_SERVER", str(tmp_path / "redis-server"))
        with pytest.raises(ServerError, match=f"REDIS_SERVER is {tmp_path}/redis-server, and there is no such program"):
            EmbeddedRedis()

    def test_it_answers_only_with_its_password(self, embedded_redis: EmbeddedRedis) -> None:
        with redis.Redis.from_url(embedded_redis.url) as client:
            assert client.set("key", "value")
            assert client.get("key") == b"value"
        with (
            redis.Redis(port=embedded_redis.port, retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.get("key")

    def test_flush_empties_every_logical_database(self, embedded_redis: EmbeddedRedis) -> None:
        for database in (0, 15):
            with redis.Redis.from_url(embedded_redis.url_of(database)) as client:
                client.set("key", "value")
        embedded_redis.flush()
        for database in (0, 15):
            with redis.Redis.from_url(embedded_redis.url_of(database)) as client:
                assert client.get("key") is None

    @pytest.mark.parametrize("mode", ["shutdown", "kill"])
    @pytest.mark.parametrize("persistent", [True, False])
    def test_a_restart_keeps_the_url_and_the_data_only_if_asked(
        self, persistent: bool, mode: servers.RedisStop
    ) -> None:
        with EmbeddedRedis(persistent=persistent) as server:
            url = server.url
            with redis.Redis.from_url(url) as client:
                client.set("key", "value")
            server.restart(mode)
            assert server.url == url
            with redis.Redis.from_url(url) as client:
                assert client.get("key") == (b"value" if persistent else None)

    def test_while_it_is_stopped_there_is_no_answer(self, embedded_redis: EmbeddedRedis) -> None:
        embedded_redis.stop()
        assert not embedded_redis.running
        with (
            redis.Redis.from_url(embedded_redis.url, retry=Retry(NoBackoff(), 0)) as client,
            pytest.raises(redis.ConnectionError),
        ):
            client.ping()
        embedded_redis.start()
        with redis.Redis.from_url(embedded_redis.url) as client:
            assert client.ping()

    def test_several_run_at_once(self, embedded_redis: EmbeddedRedis) -> None:
        with EmbeddedRedis() as other:
            assert other.port != embedded_redis.port
            with redis.Redis.from_url(embedded_redis.url) as client:
                client.set("key", "value")
            with redis.Redis.from_url(other.url) as client:
                assert client.get("key") is None

    def test_its_port_is_unknown_before_it_starts(self) -> None:
        server = EmbeddedRedis()
        with pytest.raises(ServerError, match="call start"):
            _ = server.url
        server.close()


OWNER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
from project.servers import EmbeddedPostgres, EmbeddedRedis
postgres, redis = EmbeddedPostgres(fsync=False).start(), EmbeddedRedis().start()
if sys.argv[1] == "fork" and os.fork() == 0:
    os.close(1)
    time.sleep(30)
    os._exit(0)
print(postgres.pid, redis.pid, postgres.directory, redis.directory, flush=True)
if sys.argv[1] != "exit":
    time.sleep(600)
"""


class TestNothingIsLeftBehind:
    @pytest.mark.parametrize(
        ("how", "number"),
        [("exit", None), ("interrupted", signal.SIGINT), ("killed", signal.SIGKILL), ("fork", signal.SIGKILL)],
    )
    def test_when_the_owner_ends(self, how: str, number: signal.Signals | None) -> None:
        """By itself, by Ctrl-C, by SIGKILL, and by SIGKILL while a fork of it, with its open files, lives on."""
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, how], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as owner:
            assert owner.stdout is not None
            postgres, redis_pid, *directories = owner.stdout.readline().split()
            pids = {int(redis_pid)} if number is None else family(int(postgres)) | family(int(redis_pid))
            forks = {child.pid for child in psutil.Process(owner.pid).children()} - {owner.pid} if number else set()
            if number is not None:
                os.kill(owner.pid, number)
        try:
            assert wait_until_gone(pids | {int(postgres)}) == set()
            deadline = time.monotonic() + 60
            while any(Path(d).exists() for d in directories) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not [d for d in directories if Path(d).exists()]
        finally:
            for pid in forks:
                if psutil.pid_exists(pid) and how == "fork":
                    os.kill(pid, signal.SIGKILL)

    @pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
    def test_when_the_guard_is_killed(self, tmp_path: Path) -> None:
        guarded = GuardedProcess(["/bin/sleep", "600"], log=tmp_path / "log")
        guard = psutil.Process(guarded.pid).ppid()
        assert guard != os.getpid()
        os.kill(guard, signal.SIGKILL)
        assert wait_until_gone({guarded.pid}) == set()
        guarded.end()

    def test_when_a_server_ends_by_itself(self, embedded_redis: EmbeddedRedis) -> None:
        pid = embedded_redis.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_until_gone({pid}) == set()
        embedded_redis.stop()
        with pytest.raises(ServerError, match="is not running"):
            _ = embedded_redis.pid
        embedded_redis.start()
        assert embedded_redis.pid != pid

    def test_a_command_that_does_not_exist_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="could not be started"):
            GuardedProcess(["/nowhere/server"], log=tmp_path / "log")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users may pass through; pytest's own is closed to them."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="durable-test-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
