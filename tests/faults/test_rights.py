"""The rights that docs/guides/operating.md names are enough, and needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from django.db import connection

from durable import get_run
from tests.e2e.workers import ROOT, Workers
from tests.support.waiting import wait_until_ended

pytestmark = [pytest.mark.postgres, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

ROLE: Final = "durable_least"
GRANTS: Final = (
    f"GRANT USAGE ON SCHEMA public TO {ROLE}",
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE}",
    f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {ROLE}",
)
#: Starts a run, sends to it, and says its id; as a web process does.
START: Final = """
import django; django.setup()
from tests.faults.workflows import allowed
handle = allowed.start()
handle.send("go", 20)
print(handle.id)
"""


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for each in statements:
            cursor.execute(each)


@pytest.fixture
def environment(child_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """That of a process which connects as a role with the documented rights, and EXECUTE as PUBLIC has it."""
    execute(f"DROP ROLE IF EXISTS {ROLE}", f"CREATE ROLE {ROLE} LOGIN PASSWORD 'least'", *GRANTS)
    parts = urlsplit(child_environment["DATABASE_URL"])
    place = parts.netloc.rpartition("@")[2]
    url = parts._replace(netloc=f"{ROLE}:least@{place}").geturl()
    yield {**child_environment, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.faults.settings"}
    execute(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")


def start(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_role_with_the_documented_rights_starts_runs_and_passes_them(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = start(environment)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "worker.log"
    with Workers(1, environment, log, settings="tests.faults.settings"):
        wait_until_ended(log)
    assert get_run(done.stdout.strip()).output == 21, log.read_text(errors="replace")


def test_without_the_right_to_execute_the_error_names_the_function(environment: dict[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'durable%%'")
        functions = [name for (name,) in cursor.fetchall()]
    execute(*(f"REVOKE EXECUTE ON FUNCTION {each} FROM PUBLIC" for each in functions))
    try:
        done = start(environment)
        assert done.returncode == 1
        assert "permission denied for function durable_start_" in done.stderr
    finally:
        execute(*(f"GRANT EXECUTE ON FUNCTION {each} TO PUBLIC" for each in functions))
