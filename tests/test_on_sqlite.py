"""The second engine: what depends on the database, tried again on SQLite by a session of its own.

The store's contract is not here: tests/store tries it with each store already. `DATABASE_URL=sqlite:///db.sqlite3
uv run pytest --all` runs everything on SQLite.
"""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest
from django.db import connection

ROOT: Final = Path(__file__).resolve().parent.parent
#: Operations, what they are made of, and each address of the admin and of REST.
TRIED: Final = (
    "tests/carry",
    "tests/operations",
    "tests/schedules",
    "tests/subjects",
    "tests/tags",
    "tests/retention",
    "tests/rollups",
    "tests/admin/test_addresses.py",
    "tests/api/test_addresses.py",
)
#: Of these each case is another statement; of other tests one case is tried.
EACH_CASE: Final = (
    "tests/operations/test_every_state.py",
    "tests/admin/test_addresses.py",
    "tests/api/test_addresses.py",
)
# No process of these tests depends on a file system that loses what it has: as with `EmbeddedPostgres(fsync=False)`.
UNSYNCED: Final = quote("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")


@pytest.mark.slow
def test_what_depends_on_the_database_passes_on_sqlite_too(tmp_path: Path) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("this session runs on SQLite already")
    faulthandler.cancel_dump_traceback_later()  # the other session watches over its own tests
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not (postgres or e2e or browser or slow)"]
    command += ["-k", "not memory"]  # tests of several stores have been tried with the one in memory
    command += [f"--cases={path}" for path in EACH_CASE]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "tests"), *TRIED],
        cwd=ROOT,
        env={**environment, "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}?init_command={UNSYNCED}"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.OK, f"{done.stdout}\n{done.stderr}"
