"""Databases beside the default one: with durable's tables, a standby of a test's PostgreSQL, a PgBouncer before it."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections

from durable.store import store_for
from project.servers import EmbeddedPostgres, ServerError, free_port
from tests.support.waiting import eventually


@contextmanager
def migrated(alias: str, config: dict[str, Any], apps: Sequence[str] = ("auth", "durable")) -> Iterator[None]:
    """Inside, `alias` is a database with durable's tables and those of users. For a caller that may use databases."""
    connections.databases[alias] = connections.configure_settings({"default": {}, alias: config})[alias]
    for app in apps:
        call_command("migrate", app, database=alias, verbosity=0)
    yield
    connections[alias].close()
    store_for.cache_clear()
    del connections.databases[alias]
    del connections[alias]


def only_with_a_server() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("without a server no connection breaks")


PATIENCE = 60.0  # seconds


class Standby(EmbeddedPostgres):
    """A hot standby, made by pg_basebackup at its first start. The primary must be running then.

    With `follows=False` it is a backup that was restored then: a server of its own.
    """

    def __init__(self, primary: EmbeddedPostgres, *, follows: bool = True) -> None:
        self.primary = primary
        self.follows = follows
        super().__init__(database=primary.database, fsync=False, settings=primary.settings)

    def _initdb(self) -> None:
        command = [self._program("pg_basebackup"), "-D", str(self.data), "-d", self.primary.url, "-X", "stream"]
        command += ["-R"] if self.follows else []
        uid, gid = self._user or (None, None)
        groups: list[int] | None = None if uid is None else []
        done = subprocess.run(
            [*command, "--checkpoint=fast", "--no-sync"],
            cwd="/",
            user=uid,
            group=gid,
            extra_groups=groups,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(done.stderr)

    def ask(self, query: str) -> object:
        """The one value of a query on the standby."""
        with psycopg.connect(self.url, autocommit=True) as session:
            [(value,)] = session.execute(query.encode()).fetchall()
        return value

    def pause(self) -> None:
        """Receive, and apply nothing, until `resume`."""
        self.ask("SELECT pg_wal_replay_pause()")
        self._wait("SELECT pg_get_wal_replay_pause_state() = 'paused'")

    def receive(self) -> None:
        """While paused, wait until something has arrived that is not shown."""
        self._wait("SELECT pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()")

    def resume(self) -> None:
        """Apply what was received, up to what the primary has written by now."""
        self.ask("SELECT pg_wal_replay_resume()")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until what the primary has written by now is shown."""
        with psycopg.connect(self.primary.url, autocommit=True) as session:
            [(written,)] = session.execute("SELECT pg_current_wal_lsn()").fetchall()
        self._wait(f"SELECT pg_last_wal_replay_lsn() >= '{written}'")

    def _wait(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.ask(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.01)


@contextmanager
def alias_of(standby: EmbeddedPostgres, name: str) -> Iterator[None]:
    """Inside, the alias `name` is the tests' database on the standby."""
    found = psycopg.conninfo.conninfo_to_dict(standby.url)
    own = {"HOST": found["host"], "PORT": found.get("port", ""), "NAME": connection.settings_dict["NAME"]}
    # as a mirror, it is not emptied after a test
    test = {**connections.settings["default"]["TEST"], "MIRROR": "default"}
    connections.settings[name] = {**connections.settings["default"], **own, "TEST": test}
    try:
        yield
    finally:
        connections[name].close()
        del connections[name], connections.settings[name]


_SETTINGS = """
[databases]
* = host={host} port={server_port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = extra_float_digits,options
"""


@contextmanager
def pgbouncer(directory: Path, mode: str, *, host: str, server_port: object, user: str) -> Iterator[int]:
    """Pool in this mode ("session" or "transaction"); the local port. Skips the test where it is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") or pytest.skip("no pgbouncer here")
    port = free_port()
    settings = directory / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(host=host, server_port=server_port, user=user, port=port, mode=mode))
    as_nobody = ["-u", "nobody"] if getpass.getuser() == "root" else []  # it does not run as root
    with (directory / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen([program, *as_nobody, str(settings)], stdout=log, stderr=log)
    try:
        eventually(lambda: _accepts(port))
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
