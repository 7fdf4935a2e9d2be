"""A step that does not let itself be interrupted costs its worker process, and no other run."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from durable.core.effects import StepInfo
from durable.core.records import RunRecord
from durable.drivers.loop_threads import LeftBehind
from durable.execution.environment import Eviction
from durable.models import Run
from durable.notifier import notify
from durable.store import store_for
from durable.worker import leases, overruns
from durable.worker.presence import ShutdownFlag
from tests.e2e.workers import ROOT, Workers
from tests.faults.workflows import leaving, overrunning, patient
from tests.support.runs import new_runs
from tests.support.waiting import eventually, wait_until_ended
from tests.support.worker import lease_manager


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_run_beside_it_whose_step_goes_on_too_is_no_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process knows which run it ends for: it counts no crash for the others, however long their steps take."""
    monkeypatch.setattr(overruns, "HAND_OVER", 0.0)
    store, stop = store_for("default"), ShutdownFlag()
    ended: list[int] = []
    now = timezone.now()
    held = []
    for run_id in new_runs(store, 3):
        record = store.claim_run(run_id, now=now, lease_until=now + timedelta(hours=1), worker="us")
        assert record is not None
        held.append(record)
    guilty, beside, unbegun = held
    manager = lease_manager(store, stop)
    manager._overruns = overruns.Overruns(stop.request, end=ended.append)
    monkeypatch.setattr(leases, "running_steps", lambda: [step_of(guilty, 3600.0), step_of(beside, 1.0)])
    manager.add(held, time.monotonic())
    with manager:
        assert manager.pass_started(guilty, Eviction())
        assert manager.pass_started(beside, Eviction())
        eventually(lambda: overruns.STATUS in ended)
    later = timezone.now() + timedelta(seconds=1)
    found = store.claim(queue="default", now=later, lease_until=later, worker="next", limit=9)
    assert {each.id: each.crashes for each in found} == {guilty.id: 1, beside.id: 0, unbegun.id: 0}


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_process_that_hands_over_before_the_next_look_ends_for_what_a_step_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last pass ends at once when it is evicted, and its parent is to see why the process has ended."""
    left = LeftBehind(run_id="r", location="leave", what="the task sleep", since=time.monotonic() - 3600)
    monkeypatch.setattr(overruns, "left_behind", lambda: [left])
    store, stop = store_for("default"), ShutdownFlag()
    ended: list[int] = []
    now = timezone.now()
    [run_id] = new_runs(store, 1)
    record = store.claim_run(run_id, now=now, lease_until=now + timedelta(hours=1), worker="us")
    assert record is not None
    manager = lease_manager(store, stop)
    manager._overruns = overruns.Overruns(stop.request, end=ended.append)
    eviction = Eviction()
    manager.add([record], time.monotonic())
    assert manager.pass_started(record, eviction)
    with manager:
        eventually(lambda: eviction.requested)
        assert ended == []
        manager.pass_ended(record)
    assert set(ended) == {overruns.STATUS}


def step_of(record: RunRecord, seconds: float) -> Any:
    """What the LeaseManager sees of a step that began so long ago, and has a timeout of one second."""
    info = StepInfo(record, "step", 1, str, timeout=1.0)
    return SimpleNamespace(info=info, since=time.monotonic() - seconds, is_of=lambda _record: False)


def looked_at(info: StepInfo, seconds: float) -> list[str]:
    """What a worker does that finds this step, which began so long ago, in two looks."""
    done: list[str] = []
    found = overruns.Overruns(lambda: done.append("stop"), end=lambda status: done.append(f"end {status}"))
    for _ in range(2):
        found.look([(info, time.monotonic() - seconds)], lambda: {info.run_id}, lambda _: None, lambda _: None)
    return done


def test_a_step_that_misses_its_heartbeat_and_does_not_end_costs_the_process_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overruns, "HAND_OVER", 0.0)
    record = RunRecord(id="r", workflow="w", queue="q", input="", created_at=timezone.now())

    def step(timeout: float, heartbeat: float, signed: float | None = None) -> StepInfo:
        info = StepInfo(record, "step", 1, str, timeout=timeout, heartbeat=heartbeat)
        if signed is not None:
            info._progress = SimpleNamespace(signed_at=time.monotonic() - signed)  # type: ignore[assignment]
        return info

    assert looked_at(step(0, 10), 10 + 59) == []
    assert looked_at(step(0, 10), 10 + 61) == ["stop", "end 70"]
    assert "at its heartbeat of 10 s" in caplog.text
    assert looked_at(step(3600, 10), 10 + 61) == ["stop", "end 70"]
    assert looked_at(step(0, 10, signed=30), 3600) == []
    assert looked_at(step(0, 10, signed=71), 3600) == ["stop", "end 70"]
    assert looked_at(step(100, 10, signed=1), 161) == ["stop", "end 70"]
    assert "at its timeout of 100 s" in caplog.text


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_step_that_swallows_its_interruption_costs_its_process(
    child_environment: dict[str, str], tmp_path: Path, concurrency: str
) -> None:
    ways = ["aswallow"] if concurrency == "4" else ["swallow", "disarm", "silence"]
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


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_async_steps_leave_costs_no_run_anything_and_then_its_process(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    task, thread = leaving.start("task"), leaving.start("thread")
    good = [patient.start() for _ in range(2)]
    log = tmp_path / "worker.log"
    with Workers(1, child_environment, log, settings="tests.faults.persistent"):
        wait_until_ended(log)
        eventually(lambda: "status 70; starting again" in log.read_text(errors="replace"))
    said = log.read_text(errors="replace")
    assert (task.output, thread.output) == ("left _aswallow", "timeout"), said
    assert [each.output for each in good] == [8, 8], said
    assert set(Run.objects.values_list("crashes", flat=True)) == {0}
    assert f'step "leave a task" of run {task.id} has left the task _aswallow' in said
    assert f'step "leave a thread" of run {thread.id} has left a thread or an asynchronous generator' in said


@pytest.mark.postgres
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_async_steps_leave_keeps_no_process_from_its_end(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    leaving.start("thread")
    log = tmp_path / "worker.log"
    with Workers(1, child_environment, log, settings="tests.faults.settings") as workers:
        wait_until_ended(log)
        workers.terminate_one(random.Random(0))
    assert "has left, still goes on; ending without it" in log.read_text(errors="replace")
