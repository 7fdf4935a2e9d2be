"""The benchmark as it is run by hand, in its short form: it comes to its end, and what it counts is within bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.benchmarks import measures
from tests.benchmarks.measuring import MEASURES
from tests.support.child_path import child_path
from tests.support.postgres import oldest_postgres
from tests.support.processes import ROOT

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
    command = [sys.executable, "-m", "tests.support.forkserver", "tests.benchmarks", *arguments]
    given = {**os.environ, "PYTHONPATH": child_path(ROOT), **environment}
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=900, check=False)


PEERS = ("absurd", "dbos", "rq")
#: The files of measurements in parts, none of which takes much longer than the others.
PARTS = {
    "in one process": ["one_run", "starts", "tables"],
    "runs": ["runs"],
    "maps and limits": ["fan_out", "limits"],
    "waits": ["waits"],
}


@pytest.fixture(scope="module")
def figures_of(
    postgres_server: EmbeddedPostgres, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """What the command writes of a part, which is measured once."""

    @cache
    def measured(part: str) -> dict[str, Any]:
        files = {f"tests.benchmarks.measures.{each}" for each in PARTS[part]}
        names = [name for name, each in MEASURES.items() if each.run.__module__ in files and not each.is_peer]
        file = tmp_path_factory.mktemp("figures") / "figures.json"
        database = postgres_server.create_database(f"benchmark_command_{part.replace(' ', '_')}")
        done = run("--short", "--json", str(file), "--only", *names, DATABASE_URL=database, REDIS_URL=redis_server.url)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    return measured


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.parametrize("part", PARTS)
def test_the_short_form_of_a_part_comes_to_its_end(part: str, figures_of: Callable[[str], dict[str, Any]]) -> None:
    found = figures_of(part)
    assert found["figures"]
    assert not [note for note in found["notes"].values() if note.startswith("failed")]


@pytest.mark.postgres
@pytest.mark.redis
def test_all_of_ours_are_measured_within_what_is_counted(figures_of: Callable[[str], dict[str, Any]]) -> None:
    assert sorted(name for names in PARTS.values() for name in names) == sorted(measures.__all__)
    goals = [goal for part in PARTS for goal in figures_of(part)["goals"]]
    known = {(goal["figure"], goal["against"]) for goal in goals if goal["found"] is not None}
    ours = {(goal["figure"], goal["against"]) for goal in goals if goal["against"].partition(" ")[0] not in PEERS}
    assert [figure for figure, _ in ours - known] == ([] if oldest_postgres() else ["ranked runs, oldest PostgreSQL"])
    assert {goal["figure"] for goal in goals if goal["reached"] and goal["figure"] in COUNTED} == COUNTED


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    done = run("--only", "stepps", "--short")
    assert done.returncode != 0
    assert "did you mean 'steps'" in done.stderr
