"""The benchmark as it is run by hand, in its short form: it comes to its end, and what it counts is within bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.support.postgres import oldest_postgres

pytestmark = pytest.mark.slow

#: Goals that are counted, so that they hold on any machine at any load.
COUNTED = {
    "loop, most rows",
    "memory of 10,000",
    "memory of a map's end",
    "memory of a map's start",
    "writes of the parent of a map",
    "writes of the parent of a map, 50 at once",
}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.redis
def test_the_short_form_measures_all_of_ours_within_what_is_counted(
    postgres_server: EmbeddedPostgres, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    servers = {"DATABASE_URL": postgres_server.create_database("benchmark_command"), "REDIS_URL": redis_server.url}
    done = run("--short", "--only", "ours", "--json", str(file), **servers)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert not [note for note in found["notes"].values() if note.startswith("failed")]
    goals = [goal for goal in found["goals"] if goal["against"].partition(" ")[0] not in ("absurd", "dbos", "rq")]
    missing = [goal["figure"] for goal in goals if goal["found"] is None]
    assert missing == ([] if oldest_postgres() else ["ranked runs, oldest PostgreSQL"])
    assert {goal["figure"] for goal in goals if goal["reached"] and goal["figure"] in COUNTED} == COUNTED


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    done = run("--only", "stepps", "--short")
    assert done.returncode != 0
    assert "did you mean 'steps'" in done.stderr
