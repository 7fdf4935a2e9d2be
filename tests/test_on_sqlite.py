"""The second engine: every test that uses the database, run once more in a session whose database is SQLite."""

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

ONE_ENGINE = "postgres or e2e or browser or slow"
# No process of these tests depends on a file system that loses what it has: as with `EmbeddedPostgres(fsync=False)`.
UNSYNCED = quote("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")


@pytest.mark.slow
def test_what_uses_the_database_passes_on_sqlite_too(
    pytestconfig: pytest.Config, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("this session runs on SQLite already")
    faulthandler.cancel_dump_traceback_later()  # the other session watches over its own tests
    command = [sys.executable, "-m", "pytest", "-q", "--database-tests-only", "-m", f"not ({ONE_ENGINE})"]
    command += ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "tests")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    done = subprocess.run(
        command,
        cwd=pytestconfig.rootpath,
        env={**environment, "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}?init_command={UNSYNCED}"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    closing = (done.stdout.strip().splitlines() or ["nothing was printed"])[-1]
    assert done.returncode == pytest.ExitCode.OK, f"{done.stdout}\n{done.stderr}"
    record_property(SQLITE_SUMMARY, closing.strip("= "))
