"""A step that does not let itself be interrupted costs its worker process, and no other run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from durable.models import Run
from durable.notifier import notify
from tests.e2e.workers import ROOT, Workers
from tests.faults.workflows import overrunning, patient
from tests.support.waiting import wait_until_ended


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_step_that_swallows_its_interruption_costs_its_process(
    child_environment: dict[str, str], tmp_path: Path, concurrency: str
) -> None:
    ways = ["aswallow"] if concurrency == "4" else ["swallow", "disarm"]
    bad = [overrunning.start(way) for way in ways]
    good = [patient.start() for _ in range(3)]
    log = tmp_path / "worker.log"
    options = ["--concurrency", concurrency]
    with Workers(1, child_environment, log, settings="tests.faults.persistent", options=options):
        wait_until_ended(log)
    said = log.read_text(errors="replace")
    assert [each.output for each in good] == [8, 8, 8], said
    assert set(Run.objects.filter(pk__in=[each.id for each in good]).values_list("crashes", flat=True)) == {0}
    for way, handle in zip(ways, bad, strict=True):
        assert handle.state == "completed", (handle.error, said)
        assert str(handle.output).startswith("exhausted: WorkerDied"), said
        assert f'step "overrun by {way}" of run {handle.id}' in said
    assert "status 70; starting again" in said


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_it_costs_rqs_work_horse(child_environment: dict[str, str], tmp_path: Path) -> None:
    handle = overrunning.start("swallow")
    log = tmp_path / "worker.log"
    environment = {**child_environment, "DJANGO_SETTINGS_MODULE": "tests.faults.persistent"}
    command = [sys.executable, "manage.py", "rqworker", "default"]
    deadline = time.monotonic() + 300
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output)
        try:
            while handle.state not in {"completed", "failed"}:
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                notify.notify("default", force=True)  # rqworker alone has no sweep
                time.sleep(0.2)
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(300)
    assert str(handle.output).startswith("exhausted: WorkerDied"), log.read_text(errors="replace")
    assert f'step "overrun by swallow" of run {handle.id}' in log.read_text(errors="replace")
