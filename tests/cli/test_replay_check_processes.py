"""`durable replay-check` with several processes, and as one that is interrupted."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from django.db import connection
from django.utils import timezone

from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.replay_check.checking import check_stored
from durable.replay_check.processes import in_processes
from durable.runtime import production
from tests.cli.conftest import Shell
from tests.cli.workflows import napping
from tests.support.waiting import eventually

ROOT: Final = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _others_see_the_database() -> None:
    if connection.vendor == "sqlite" and "mode=memory" in str(connection.settings_dict["NAME"]):
        pytest.skip("other processes do not see a database in memory")


def alive() -> set[int | None]:
    return {each.pid for each in multiprocessing.active_children() if each.is_alive()}


def with_another_step(run_id: str) -> None:
    now = timezone.now()
    entry = EntryRecord("gone", EntryKind.STEP, 0, now, EntryStatus.COMPLETED, output="1", completed_at=now)
    production().store.import_history(run_id, entries=[entry], attempts=[], messages=[])


def test_three_processes_find_what_one_finds(shell: Shell) -> None:
    for number in range(50):
        napping.using(id=f"run-{number}").start()
    for number in (3, 33):
        with_another_step(f"run-{number}")
    alone = shell("replay-check", "--open", "--format", "json").json
    assert alone["checked"] == 50
    assert sorted(each["run_id"] for each in alone["findings"]) == ["run-3", "run-33"]
    assert shell("replay-check", "--open", "--format", "json", "--jobs", "3").json == alone


def test_processes_end_with_a_check_that_is_interrupted() -> None:
    for number in range(200):
        napping.using(id=f"run-{number}").start()
    before = alive()
    verdicts = in_processes(check_stored, (f"run-{number}" for number in range(200)), 2, with_decision=False)
    next(verdicts)
    assert len(alive() - before) == 2
    with pytest.raises(KeyboardInterrupt):
        verdicts.throw(KeyboardInterrupt)  # type: ignore[attr-defined]  # a generator
    eventually(lambda: alive() <= before)  # the thread of the executor waits for them, too, and says so later


def test_the_command_as_a_process(child_environment: dict[str, str]) -> None:
    napping.using(id="run-1").start()
    command = [sys.executable, str(ROOT / "manage.py"), "durable", "replay-check", "--jobs", "2"]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1  # the project of the process does not have the workflow
    assert done.stdout.startswith("run-1 (cli.napping, pending): the history has a run of cli.napping, the code has no")
    lines = done.stderr.splitlines()
    assert lines[-1] == "1 run checked, 1 would diverge."
    assert set(lines[:-1]) <= {"1 of 1 run checked, 1 would diverge"}  # its progress, where it takes seconds
    unknown = subprocess.run([*command, "--workflow", "none"], env=child_environment, capture_output=True, check=False)
    assert unknown.returncode == 2
