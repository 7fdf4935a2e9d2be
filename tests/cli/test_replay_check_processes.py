"""`durable replay-check` with several processes, and as one that is interrupted."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final

import pytest
from django.db import connection
from django.utils import timezone

from durable.core import registry
from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.replay_check.checking import check_stored, in_processes
from durable.runtime import production
from tests.cli.conftest import Shell
from tests.cli.workflows import deadly, napping
from tests.support.waiting import eventually

#: A module of a workflow that raises at import in a process that `multiprocessing` has started.
ONLY_HERE: Final = """
import multiprocessing
from durable import Context, workflow

if multiprocessing.parent_process() is not None:
    raise RuntimeError("not in this process")


@workflow(name="cli.only_here")
def only_here(ctx: Context) -> None:
    ctx.sleep("nap", "1 day")
"""

ROOT: Final = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


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


def test_a_process_that_is_killed_ends_the_check() -> None:
    for number in range(400):
        napping.using(id=f"run-{number}").start()
    before = alive()
    verdicts = in_processes(check_stored, (f"run-{number}" for number in range(400)), 2, with_decision=False)
    next(verdicts)
    os.kill(min(each for each in alive() - before if each is not None), signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        deque(verdicts, maxlen=0)
    eventually(lambda: alive() <= before)


@pytest.mark.parametrize("output", [(), ("--format", "json")], ids=["text", "json"])
def test_a_killed_process_is_no_fine_record(shell: Shell, output: tuple[str, ...]) -> None:
    """The code of a workflow has its process killed, as it is if the system has no memory left for it."""
    napping.using(id="run-1").start()
    deadly.using(id="run-2").start()
    done = shell("replay-check", "--open", "--jobs", "2", *output)
    assert done.status == 2
    assert "could not check: one of the processes could not begin, or was killed" in done.err
    if output:
        assert done.json["is_complete"] is False
    else:
        assert "checked so far" in done.err
    assert shell("replay-check", "--open", "--workflow", napping.name, "--jobs", "2").status == 0


def test_a_workflow_that_fails_at_import_in_a_process_is_no_fine_record(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The module of the workflow can be imported once, and not in another process."""
    module = "only_here_" + tmp_path.name
    (tmp_path / f"{module}.py").write_text(ONLY_HERE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = importlib.import_module(module)
    try:
        found.only_here.using(id="run-1").start()
        done = shell("replay-check", "--open", "--jobs", "2")
    finally:
        registry.registry.unregister(found.only_here)
    assert done.status == 2
    assert "could not check" in done.err
    assert "RuntimeError: not in this process" in capfd.readouterr().err


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
