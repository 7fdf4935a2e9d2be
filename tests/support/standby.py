"""A streaming standby of a test's PostgreSQL, and an alias in Django's connections that reads it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection, connections

from project.servers import EmbeddedPostgres, ServerError

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
