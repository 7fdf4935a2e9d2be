"""`DURABLE["REDIS"] = False`: no Redis anywhere; workers listen or poll, and are prompt about what they know."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import OperationalError, transaction
from django.test import override_settings
from django.utils import timezone

from durable import get_run
from durable.core.clock import LATEST
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.notifier import channel, notify, wakeups
from durable.operations.holds import pause_queue, resume_queue
from durable.store import Store
from durable.testing import Harness
from durable.worker.loop import SIFTED, DueQueues
from durable.worker.presence import ShutdownFlag
from tests.development.conftest import Run, Start, run_command
from tests.development.project import SETTINGS, Project
from tests.support.processes import is_completed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


class TestWorkers:
    def test_runs_are_finished_without_a_redis(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        before = [start("shop.one", f"before-{number}") for number in range(10)]
        program = manage("durable_worker", "--processes", "2")
        program.pids(2)
        eventually(lambda: is_completed(store, *before))
        after = [start("shop.one", f"after-{number}") for number in range(10)]
        eventually(lambda: is_completed(store, *after))
        assert sorted(site.calls()) == sorted([*before, *after])
        assert program.end() == 0
        assert not [line for line in program.lines if "edis" in line]
        assert not program.family()

    def test_several_runs_at_once(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        held = [start("shop.held", f"held-{number}") for number in range(3)]
        program = manage("durable_worker", "--concurrency", "3")
        eventually(lambda: len(site.calls()) == 3)
        for each in held:
            site.let(each)
        eventually(lambda: is_completed(store, *held))
        assert program.end() == 0

    def test_sleeps_end_and_messages_are_heard(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        manage("durable_worker").pids()
        naps = [start("shop.nap", f"nap-{tenths}", tenths / 10) for tenths in (2, 8, 14)]
        hears = start("shop.hears", "hears")
        eventually(lambda: get_run(hears).waiting_for is not None)
        get_run(hears).send("news", "good")
        eventually(lambda: is_completed(store, *naps, hears))
        assert "hears heard good" in site.calls()

    def test_what_a_pass_starts_begins_too(self, manage: Run, start: Start, store: Store) -> None:
        manage("durable_worker", "--concurrency", "2").pids()
        start("shop.starts", "a")
        eventually(lambda: store.get("a-child") is not None and is_completed(store, "a", "a-child"))

    @pytest.mark.postgres
    def test_workers_hear_of_a_start(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        """Nothing else would tell them within the test: no interval of a poll or a sweep is that short."""
        site.write("mysite/settings.py", f"{SETTINGS}\nDURABLE |= {{'SWEEP_INTERVAL': 3600, 'POLL_INTERVAL': 3600}}\n")
        program = manage("durable_worker", "--processes", "2")
        first = start("shop.one", "first")
        eventually(lambda: is_completed(store, first))
        for number in range(5):
            run = start("shop.one", f"run-{number}")
            notify.notify("default")
            eventually(lambda run=run: is_completed(store, run))  # type: ignore[misc]
        assert program.end() == 0

    def test_queues_are_names_and_no_more(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        other, strange = start("shop.other", "other", queue="other"), start("shop.one", "strange", queue="strange")
        named = manage("durable_worker", "other")
        eventually(lambda: is_completed(store, other))
        assert named.end() == 0
        assert site.calls() == ["other"]
        manage("durable_worker").pids()
        eventually(lambda: is_completed(store, strange))

    def test_many_queues_are_shared_by_workers_of_which_one_is_killed(
        self, manage: Run, start: Start, store: Store, site: Project
    ) -> None:
        queues = [f"tenant-{number}" for number in range(12)]
        paused = [start("shop.one", f"tenant-5-{number}", queue="tenant-5") for number in range(4)]
        pause_queue("tenant-5")  # its name is known by its runs
        programs = [manage("durable_worker", "--processes", "2", *queues) for _ in range(2)]
        for program in programs:
            program.pids(2)
        held = start("shop.held", "held", queue="tenant-0")
        eventually(lambda: site.calls() == ["held begins"])
        [pid] = site.pids()
        served = [each for each in queues if each != "tenant-5"]
        runs = {queue: [start("shop.one", f"{queue}-{number}", queue=queue) for number in range(4)] for queue in served}
        os.kill(pid, signal.SIGKILL)
        site.let(held)
        eventually(lambda: is_completed(store, held, *(each for some in runs.values() for each in some)))
        assert not set(paused) & set(site.calls())
        resume_queue("tenant-5")
        eventually(lambda: is_completed(store, *paused))
        done = [each for each in site.calls() if each.startswith("tenant")]
        assert len(done) == len(set(done)) == 48
        assert [program.end() for program in programs] == [0, 0]

    def test_a_killed_workers_run_goes_on(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        program = manage("durable_worker")
        start("shop.held", "a")
        eventually(lambda: site.calls() == ["a begins"])
        [pid] = set(site.pids())
        os.kill(pid, signal.SIGKILL)
        program.wait_for(f"died, pid {pid}, signal 9")
        site.let("a")
        eventually(lambda: is_completed(store, "a"))

    def test_sigterm_hands_over(self, manage: Run, start: Start, store: Store, site: Project) -> None:
        program = manage("durable_worker", "--concurrency", "2")
        start("shop.held", "a")
        eventually(lambda: site.calls() == ["a begins"])
        program.process.send_signal(signal.SIGTERM)
        program.wait_for("handing over")
        site.let("a")
        assert program.wait() == 0
        run = store.get("a")
        assert run is not None
        assert (run.lease_expires_at, run.crashes) == (None, 0)
        manage("durable_worker").pids()
        eventually(lambda: is_completed(store, "a"))


def test_a_further_signal_does_not_interrupt_the_end(site: Project, environment: dict[str, str]) -> None:
    """A user presses Ctrl+C once more, when everything has ended but the command itself."""
    code = """
import os, signal, sys
import django
django.setup()
from durable.worker.supervisor import Supervisor

def say(line):
    if "started" in line:
        os.kill(os.getpid(), signal.SIGINT)

status = Supervisor([sys.executable, "-c", "input()"], 1, say=say).run()
os.kill(os.getpid(), signal.SIGINT)
print("ended", status)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=site.directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended 0\n"), done.stderr


class TestStarts:
    def test_nothing_is_sent_anywhere(self, no_redis: None) -> None:
        """With RQ_QUEUES set, too: each connection is seen."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            queues = {"default": {"URL": f"redis://127.0.0.1:{server.getsockname()[1]}/0"}}
            server.settimeout(0)
            with override_settings(RQ_QUEUES=queues):
                with transaction.atomic():
                    notify.notify_on_commit(["default"])
                notify.notify("default", force=True)
                notify.notify_at("default", timezone.now() + timedelta(seconds=1))
                notify.acknowledge("default")
                worker_overview()
            with pytest.raises(BlockingIOError):
                server.accept()

    def test_a_listener_of_this_process_hears_at_the_commit(self, no_redis: None) -> None:
        heard: list[str] = []

        class Listener:
            def run_is_due(self, queue: str) -> None:
                heard.append(queue)

            def run_is_due_at(self, queue: str, moment: object) -> None:
                heard.append(f"{queue} later")

        listener = Listener()
        wakeups.listen(listener)
        try:
            with transaction.atomic():
                notify.notify_on_commit(["default", "default"])
                notify.notify_at_on_commit("high", timezone.now() + timedelta(hours=1))
                assert heard == []
            assert heard == ["default", "high later"]
        finally:
            wakeups.unlisten(listener)
        notify.notify("default")
        assert len(heard) == 2


class TestDueQueues:
    def test_the_most_urgent_comes_first(self) -> None:
        due = DueQueues(["high", "low"], serves_all=True, stop=ShutdownFlag())
        due.report(b"strange\nlow\nhi")
        due.report(b"gh\nlow\n")
        assert [due.next(), due.next(), due.next()] == ["high", "low", "strange"]

    def test_queues_that_are_not_served_are_left_alone(self) -> None:
        due = DueQueues(["high"], serves_all=False, stop=ShutdownFlag())
        due.run_is_due("low")
        due.run_is_due_at("low", timezone.now())
        due.run_is_due("high")
        assert due.next() == "high"
        assert due._due == set()

    def test_a_moment_makes_a_queue_due(self) -> None:
        due = DueQueues(["default"], serves_all=False, stop=ShutdownFlag())
        moment = timezone.now() + timedelta(seconds=0.2)
        due.run_is_due_at("default", moment)
        assert due.next() == "default"
        assert timezone.now() >= moment

    @pytest.mark.parametrize("moment", [LATEST, timezone.now() + timedelta(days=109_500)], ids=["never", "300 years"])
    def test_a_moment_that_no_process_lives_to_see_ends_no_wait(self, moment: datetime) -> None:
        due = DueQueues(["default"], serves_all=False, stop=ShutdownFlag())
        due.run_is_due_at("default", moment)
        threading.Timer(0.05, due.run_is_due, ["default"]).start()
        assert due.next() == "default"

    def test_queues_whose_runs_others_have_taken_are_dropped_by_one_look(self) -> None:
        names = [f"tenant-{number:02}" for number in range(SIFTED + 2)]
        due = DueQueues(names, serves_all=False, stop=ShutdownFlag())
        looks: list[list[str]] = []

        def look(queues: Sequence[str]) -> set[str]:
            looks.append(list(queues))
            due.run_is_due(names[1])  # it is told of while the look is under way, which does not see its run yet
            return {names[5], names[3]}

        for each in reversed(names):
            due.run_is_due(each)
        due.sift(look)
        assert looks == [names[:SIFTED]]
        assert [due.next() for _ in range(5)] == [names[1], names[3], names[5], *names[SIFTED:]]

    def test_a_look_that_fails_drops_no_queue(self) -> None:
        due = DueQueues(["high", "low"], serves_all=False, stop=ShutdownFlag())
        due.report(b"low\nhigh\n")
        with pytest.raises(OperationalError):
            due.sift(Mock(side_effect=OperationalError("the server is away")))
        assert [due.next(), due.next()] == ["high", "low"]

    def test_one_queue_needs_no_look(self) -> None:
        due = DueQueues(["high", "low"], serves_all=False, stop=ShutdownFlag())
        due.run_is_due("low")
        due.sift(Mock(side_effect=AssertionError))
        assert due.next() == "low"

    def test_a_stop_ends_the_wait(self) -> None:
        stop = ShutdownFlag()
        due = DueQueues(["default"], serves_all=False, stop=stop)
        threading.Timer(0.05, stop.request).start()
        assert due.next() is None

    def test_a_stop_whose_signal_could_not_wake_the_main_thread_ends_the_wait(self) -> None:
        """Python calls no handler during a wait that began just after the signal."""
        stop = ShutdownFlag()
        due = DueQueues(["default"], serves_all=False, stop=stop)
        waiting = threading.Thread(target=due.next, daemon=True)
        waiting.start()
        eventually(lambda: bool(stop._listeners))
        stop.requested = True  # and nothing is put into any queue
        waiting.join(60)
        assert not waiting.is_alive()


class TestSurfaces:
    def test_nothing_complains_of_a_missing_redis(
        self, site: Project, environment: dict[str, str], store: Store, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_checks(tags=["durable"]) == []
        call_command("durable", "doctor")
        said = capsys.readouterr().out
        assert f'not used (DURABLE["REDIS"] is False): {channel.in_words()}' in said
        assert "problem" not in said
        assert "no issues" in run_command(site, environment, "check")
        call_command("durable", "workers")
        assert "There are no workers" in capsys.readouterr().err

    def test_workers_that_hold_runs_are_listed(self, manage: Run, start: Start, site: Project) -> None:
        manage("durable_worker")
        start("shop.held", "a")
        eventually(lambda: site.calls() == ["a begins"])
        found = worker_overview()
        assert [run.id for worker in found.workers for run in worker.runs] == ["a"]
        assert (found.problem, found.uses_redis) == ("", False)
        assert collect_findings(timezone.now(), found) == []
        site.let("a")

    def test_a_harness_is_as_ever(self, no_redis: None) -> None:
        from durable import workflow

        @workflow(name="polling.plain")
        def plain(ctx: object) -> str:
            return "done"

        with Harness() as h:
            h.start(plain, id="x")
            assert h.finish("x").output == "done"


def test_a_wrong_value_is_found() -> None:
    with override_settings(DURABLE={"REDIS": "no", "POLL_INTERVAL": 0}):
        assert [each.id for each in run_checks(tags=["durable"]) if each.id == "durable.E003"] == ["durable.E003"] * 2
