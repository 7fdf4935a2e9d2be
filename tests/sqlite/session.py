"""The second engine: a session of its own that runs tests which use the database on SQLite.

Owns what such a session leaves out and how it is reported. The tests of this directory are the two halves of the round;
both are one test for pytest-xdist, and begin first.
"""

import faulthandler
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection

from tests.plugin import SQLITE_SUMMARY

ROOT = Path(__file__).resolve().parent.parent.parent
ONE_ENGINE = "postgres or e2e or browser or slow or own_database"
#: Folders whose tests start most of the processes of the round: about half of its time.
WITH_PROCESSES = ("tests/development", "tests/docs")
# No process of these tests depends on a file system that loses what it has: as with `EmbeddedPostgres(fsync=False)`.
UNSYNCED = quote("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")

Record = Callable[[str, object], None]


def passes_on_sqlite(record: Record, directory: Path, what: str, *arguments: str) -> None:
    """Run the tests that `arguments` select and that use the database; record the closing line of their session."""
    if connection.vendor == "sqlite":
        pytest.skip("this session runs on SQLite already")
    faulthandler.cancel_dump_traceback_later()  # the other session watches over its own tests
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--database-tests-only", "-m", f"not ({ONE_ENGINE})"]
    command += ["-p", "no:cacheprovider", "--basetemp", str(directory / "tests"), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "DATABASE_URL": f"sqlite:///{directory / 'db.sqlite3'}?init_command={UNSYNCED}"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    closing = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1]
    assert done.returncode == pytest.ExitCode.OK, f"{done.stdout}\n{done.stderr}"
    record(SQLITE_SUMMARY, f"{what}: {closing.strip('= ')}")
