"""A database that is behind its mark is noticed, wherever the mark is kept, and one that is not is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from django.conf import settings as project
from django.core import mail
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from durable import Context, marks, workflow
from durable.alerts import Alert
from durable.alerts.watch import Watch
from durable.conf import conf
from durable.core import clock
from durable.core.errors import RestoredDatabaseError
from durable.core.registry import ALERT
from durable.inspection.findings import collect_findings
from durable.inspection.workers import worker_overview
from durable.metrics.rows import RowsCollector
from durable.models import DatabaseMark, OperatorAction, Run, RunLimit
from durable.operations import question_mails, restored
from durable.operations.audit import Actor, OperationDeniedError, acting_as
from durable.store import store_for
from durable.worker import executor
from durable.worker.executor import look_again
from durable.worker.loop import InlinePool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from durable.worker.timer import Sweep
from tests.support.child_path import child_path

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

LONG_AGO: Final = timedelta(minutes=3)


@workflow(name="marks.noting")
def noting(ctx: Context) -> str:
    return ctx.step("note", lambda: "done")


@workflow(name="marks.asking")
def asking(ctx: Context) -> None:
    ctx.ask_person("ok", to="tax@office.example")


@workflow(name="marks.napping")
def napping(ctx: Context) -> None:
    ctx.sleep("nap", "1 day")


CALLED: Final[list[Alert]] = []


def called(alert: Alert) -> None:
    CALLED.append(alert)


@pytest.fixture(autouse=True)
def another_process() -> None:
    """What this process has seen in another test's database is of no use here."""
    marks.forget()
    look_again()
    executor._log_closed.clear("closed")


@pytest.fixture(params=["redis", "file"])
def kept(request: pytest.FixtureRequest, redis_connection: redis.Redis, settings: Settings, tmp_path: Path) -> str:
    """Where the mark is kept."""
    if request.param == "file":
        settings.DURABLE = {**project.DURABLE, "MARK": str(tmp_path / "mark.json")}
    return str(request.param)


def sweep() -> None:
    """One sweep, a second after the one before."""
    DatabaseMark.objects.update(written_at=clock.now() - timedelta(seconds=2))
    marks.keep("a sweep")


def row() -> DatabaseMark:
    return DatabaseMark.objects.get()


def columns(of: DatabaseMark) -> dict[str, Any]:
    return {each.attname: getattr(of, each.attname) for each in DatabaseMark._meta.concrete_fields}


def gone_back(by: int = 3) -> DatabaseMark:
    """The database as it was some sweeps ago, three minutes; this process has seen nothing of it."""
    marks.keep("a sweep")
    DatabaseMark.objects.update(written_at=clock.now() - LONG_AGO - timedelta(seconds=30))
    before = row()
    for _ in range(by):
        DatabaseMark.objects.update(written_at=clock.now() - LONG_AGO)
        mark = row()
        DatabaseMark.objects.update(counter=mark.counter + 1, token=marks.new_token())
        marks.write(marks.Mark.of(row(), "a worker"))
    DatabaseMark.objects.update(**columns(before))
    marks.forget()
    look_again()
    return before


def work(queue: str = "default") -> None:
    """One job of a worker's process."""
    with WorkerLoop(InlinePool(), store=store_for("default"), stop=ShutdownFlag(), learns_names=True) as loop:
        loop.work(queue)


@pytest.mark.usefixtures("kept")
class TestTheMark:
    def test_follows_the_sweeps(self) -> None:
        sweep()
        first = row()
        assert marks.read(first.name) is None  # the first sweep names the database
        sweep()
        sweep()
        assert row().counter == first.counter + 2
        assert marks.read(first.name) == marks.Mark.of(row(), "a sweep")
        assert marks.look().may_claim

    def test_is_raised_at_most_once_a_second_however_many_sweep(self) -> None:
        sweep()
        sweep()
        counted = row().counter
        for _ in range(20):
            marks.keep("another sweep")
        assert row().counter == counted

    def test_is_raised_after_the_clock_was_set_back(self) -> None:
        sweep()
        DatabaseMark.objects.update(written_at=clock.now() + timedelta(hours=1))
        counted = row().counter
        marks.keep("a sweep")
        assert row().counter == counted + 1
        assert marks.look().may_claim

    def test_shows_that_the_database_went_back_and_the_sweep_does_not_let_it_catch_up(self) -> None:
        before = gone_back()
        found = marks.look()
        assert found.is_behind
        assert not found.is_another_history
        assert timedelta(seconds=30) <= found.lost < timedelta(seconds=40)
        for _ in range(5):
            DatabaseMark.objects.update(written_at=before.written_at)
            marks.keep("a sweep")
        assert (row().counter, row().token) == (before.counter, before.token)
        assert "went back in time, by 3" in found.in_words()

    def test_shows_two_histories_that_have_come_as_far(self) -> None:
        sweep()
        sweep()
        marks.forget()
        DatabaseMark.objects.update(token=marks.new_token())
        found = marks.look()
        assert found.is_another_history
        assert not found.may_claim

    def test_that_was_lost_is_written_again_by_a_process_that_has_seen_it(
        self, kept: str, redis_connection: redis.Redis
    ) -> None:
        for _ in range(3):
            sweep()
        before = row()
        sweep()
        if kept == "redis":
            redis_connection.flushdb()
        else:
            Path(conf.MARK).unlink()
        assert marks.look().may_claim
        DatabaseMark.objects.update(**columns(before))
        assert marks.look().is_behind  # this process remembers
        marks.forget()
        assert marks.look().is_behind  # and has written it for the others

    def test_is_lowered_by_nobody(self) -> None:
        gone_back()
        mark = marks.read(row().name)
        marks.write(marks.Mark.of(row(), "a late sweep"))
        assert marks.read(row().name) == mark

    def test_of_another_database_with_another_name_is_another_one(self) -> None:
        gone_back()
        DatabaseMark.objects.all().delete()  # a new database, as a test's
        sweep()
        sweep()
        assert marks.look().may_claim

    def test_is_raised_by_many_at_once_without_a_false_alarm(self) -> None:
        sweep()
        alarms: list[str] = []

        def turn() -> None:
            for _ in range(15):
                DatabaseMark.objects.update(written_at=clock.now() - timedelta(seconds=2))
                alarms.append(marks.keep("a sweep").in_words())
                alarms.append(marks.look().in_words())
            connection.close()

        threads = [threading.Thread(target=turn) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert set(alarms) == {""}
        assert len(alarms) == 120


@pytest.mark.usefixtures("kept")
class TestAWorker:
    def test_claims_nothing_and_goes_on_by_itself_once_it_is_decided(self, caplog: pytest.LogCaptureFixture) -> None:
        run = noting.start()
        before = gone_back()
        work()
        assert run.state == "pending"
        assert Run.objects.get(pk=run.id).fence == 0
        assert "no run is claimed" in caplog.text
        assert "durable restored" in caplog.text
        restored.decide(before.name, "go_on")
        work()
        assert run.state == "completed"
        assert "runs are claimed again" in caplog.text

    def test_looks_before_its_first_claim_and_then_once_in_a_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[marks.Position] = []
        look = marks.look

        def noted() -> marks.Position:
            looks.append(look())
            return looks[-1]

        monkeypatch.setattr(marks, "look", noted)
        sweep()
        looks.clear()
        noting.start()
        work()
        assert len(looks) == 1
        noting.start()
        work()
        if connection.vendor == "postgresql":
            assert len(looks) == 1
        connection.close()
        noting.start()
        work()
        assert len(looks) == 2 if connection.vendor == "postgresql" else len(looks) >= 2

    def test_goes_on_while_the_place_of_the_mark_does_not_answer(
        self, kept: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sweep()
        if kept == "file":
            settings.DURABLE = {**project.DURABLE, "MARK": str(tmp_path / "missing" / "mark.json")}
        else:

            def refuse(*_: Any, **__: Any) -> None:
                raise redis.exceptions.ConnectionError("no")

            monkeypatch.setattr(redis.Redis, "get", refuse)
        run = noting.start()
        work()
        assert run.state == "completed"
        assert marks.look().problem


@pytest.mark.usefixtures("kept")
class TestTheDecision:
    def test_to_go_on_starts_a_new_generation_that_the_mark_follows(self) -> None:
        before = gone_back()
        old = marks.read(before.name)
        assert old is not None
        assert restored.decide(before.name, "go_on") == restored.Decided(name=before.name, paused=0, is_done=True)
        now = row()
        assert (now.generation, now.counter) == (before.generation + 1, old.counter + 1)
        assert (now.went_back_from, now.went_back_to) == (old.at, before.written_at)
        assert marks.look().may_claim
        # what is left of the other history is behind from now on, however far it has come
        DatabaseMark.objects.update(generation=before.generation, counter=1_000_000, token="another")
        marks.forget()
        assert marks.look().is_behind

    def test_to_hold_pauses_all_open_runs_before_one_is_claimed(self) -> None:
        runs = [noting.start() for _ in range(5)]
        ended = noting.start()
        Run.objects.filter(pk=ended.id).update(state="completed", wake_at=None, finished_at=timezone.now())
        napper = napping.using(id="napper").start()
        paused = noting.start()
        paused.pause()
        before = gone_back()
        decided = restored.decide(before.name, "hold")
        assert (decided.paused, decided.is_done) == (6, True)
        assert {each.state for each in (*runs, napper, paused)} == {"paused"}
        assert ended.state == "completed"
        work()
        assert {each.state for each in (*runs, napper, paused)} == {"paused"}
        runs[0].resume()
        work()
        assert runs[0].state == "completed"

    def test_to_hold_many_is_carried_out_by_the_sweep_and_workers_wait_for_that(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = [noting.start() for _ in range(5)]
        before = gone_back()
        monkeypatch.setattr(restored, "HOLD_FOR", 0.0)
        assert not restored.decide(before.name, "hold").is_done
        work()
        assert {each.state for each in runs} == {"pending"}
        [finding] = [each for each in collect_findings(timezone.now(), worker_overview()) if "database" in each.kind]
        assert finding.kind == "database_held"
        monkeypatch.setattr(restored, "HOLD_FOR", 60.0)
        restored.continue_hold(timezone.now())
        assert {each.state for each in runs} == {"paused"}
        assert marks.look().may_claim

    def test_that_the_next_steps_are_unknown_puts_all_open_runs_in_doubt_before_one_is_claimed(self) -> None:
        runs = [noting.start() for _ in range(5)]
        limited = noting.using(deadline="1 day").start()
        ended = noting.start()
        Run.objects.filter(pk=ended.id).update(state="completed", wake_at=None, finished_at=timezone.now())
        napper = napping.using(id="napper").start()
        paused = noting.start()
        paused.pause()
        before = gone_back()
        decided = restored.decide(before.name, "unknown")
        assert (decided.paused, decided.in_doubt, decided.is_done) == (0, 8, True)
        assert not RunLimit.objects.filter(run_id=ended.id).exists()
        assert RunLimit.objects.get(run_id=limited.id).deadline is not None
        later = noting.start()
        work()
        assert [each.location for run in (*runs, limited) for each in run.info().held] == ["note"] * 6
        assert (later.state, napper.state, napper.info().held) == ("completed", "sleeping", ())
        paused.resume()
        work()
        assert len(paused.info().held) == 1
        runs[0].settle("note", done="it was")
        runs[1].settle("note", not_done=True)
        work()
        assert [each.output for each in runs[:2]] == ["it was", "done"]
        assert RunLimit.objects.filter(run_id=runs[1].id, in_doubt=None).exists(), "its doubt is over"

    def test_to_put_many_in_doubt_is_carried_out_by_the_sweep_and_workers_wait_for_that(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = [noting.start() for _ in range(5)]
        before = gone_back()
        monkeypatch.setattr(restored, "HOLD_FOR", 0.0)
        assert not restored.decide(before.name, "unknown").is_done
        work()
        assert {each.state for each in runs} == {"pending"}
        monkeypatch.setattr(restored, "HOLD_FOR", 60.0)
        restored.continue_hold(timezone.now())
        assert marks.look().may_claim
        work()
        assert all(each.info().held for each in runs)

    def test_that_it_is_a_copy_gives_it_a_name_and_leaves_the_mark_of_the_other_one(self) -> None:
        before = gone_back()
        other = marks.read(before.name)
        decided = restored.decide(before.name, "go_on", as_copy=True)
        assert decided.name == row().name != before.name
        assert marks.read(before.name) == other
        assert marks.look().may_claim
        assert marks.read(decided.name) == marks.Mark.of(row(), "an operator's decision")

    def test_is_refused_while_another_database_with_this_name_is_in_use(self) -> None:
        before = gone_back()
        mark = marks.read(before.name)
        assert mark is not None
        DatabaseMark.objects.update(
            generation=mark.generation, counter=mark.counter + 1, token="t", written_at=clock.now()
        )
        marks.write(marks.Mark.of(row(), "a worker of production"))
        DatabaseMark.objects.update(**columns(before))
        marks.forget()
        for how in ("go_on", "hold"):
            with pytest.raises(RestoredDatabaseError, match="seems to be in use"):
                restored.decide(before.name, how)
        assert marks.look().is_behind
        assert restored.decide(before.name, "hold", as_copy=True).is_done

    def test_is_refused_where_there_is_nothing_to_decide_or_of_another_name(self) -> None:
        sweep()
        with pytest.raises(RestoredDatabaseError, match="not behind"):
            restored.decide(row().name, "go_on")
        with pytest.raises(ValueError, match="has the name"):
            restored.decide("another", "go_on")
        with pytest.raises(ValueError, match="is not a decision"):
            restored.decide(row().name, "perhaps")
        run = noting.start()
        assert restored.decide(row().name, "hold").paused == 1  # of a restore that nothing has noticed
        assert run.state == "paused"
        assert marks.look().may_claim

    def test_needs_a_permission_and_is_in_the_audit_log(self) -> None:
        before = gone_back()
        with pytest.raises(OperationDeniedError), acting_as(Actor("api")):
            restored.decide(before.name, "go_on")
        with acting_as(Actor("cli", label="me"), reason="the disk is new"):
            restored.decide(before.name, "go_on")
        done = OperatorAction.objects.get(action="restored", outcome="done")
        assert (done.reason, done.before, done.after, done.subject) == (
            "the disk is new",
            "behind",
            "go_on",
            before.name,
        )
        assert "went back in time" in done.detail


class TestWhatIsSaid:
    @pytest.fixture(autouse=True)
    def in_redis(self, redis_connection: redis.Redis) -> None:
        """The mark is kept in Redis."""

    def test_a_finding_names_how_far_the_database_went_back(self) -> None:
        gone_back()
        marks.keep("a sweep")  # it notes what it has found for those who read a standby
        [finding] = [each for each in collect_findings(timezone.now(), worker_overview()) if "database" in each.kind]
        assert finding.kind == "database_behind"
        assert finding.is_urgent
        assert "went back in time, by 3" in finding.title

    @pytest.mark.slow
    def test_check_finds_it_where_it_asks_the_database(self) -> None:
        sweep()
        assert not [each for each in run_checks(databases=["default"]) if each.id == "durable.W097"]
        gone_back()
        [found] = [each for each in run_checks(databases=["default"]) if each.id == "durable.W097"]
        assert "went back in time" in found.msg

    @pytest.mark.slow
    def test_check_warns_of_a_deployment_that_keeps_no_mark(self, settings: Settings, tmp_path: Path) -> None:
        def warnings() -> list[str]:
            found = run_checks(tags=["durable"], include_deployment_checks=True)
            return [each.msg for each in found if each.id == "durable.W096"]

        assert warnings() == []
        settings.DURABLE = {**project.DURABLE, "REDIS": False}
        assert "no mark of the database is kept" in warnings()[0].lower()
        settings.DURABLE = {**project.DURABLE, "MARK": str(tmp_path / "missing" / "mark")}
        assert "does not exist" in warnings()[0]
        settings.DURABLE = {**project.DURABLE, "REDIS": False, "MARK": str(tmp_path / "mark")}
        assert warnings() == []

    def test_the_command_lists_the_runs_that_do_things_again_and_decides(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        due, later = noting.using(id="due").start(), noting.using(id="later", delay=3600).start()
        Run.objects.filter(pk=due.id).update(wake_at=timezone.now() - timedelta(hours=1))
        gone_back()
        with pytest.raises(SystemExit) as ended:
            call_command("durable", "restored")
        assert ended.value.code == 1
        told = capsys.readouterr().out
        assert "went back in time, by 3" in told
        assert "due " in told
        assert "later" not in told
        with pytest.raises(SystemExit):
            call_command("durable", "restored", "-o", "json")
        data = json.loads(capsys.readouterr().out)
        assert data["is_behind"]
        assert data["moved"] == {"number": 1, "is_capped": False}
        assert data["open"]["number"] == 2
        assert [each["id"] for each in data["results"]] == ["due"]
        call_command("durable", "restored", "--hold", "--yes", "--reason", "to look at them")
        assert {due.state, later.state} == {"paused"}
        call_command("durable", "restored")
        assert "is not behind its mark" in capsys.readouterr().out

    def test_people_get_no_mail_twice_until_it_is_decided(self) -> None:
        asking.start()
        work()
        before = gone_back()
        assert question_mails.remind(timezone.now()) == 0
        assert mail.outbox == []
        restored.decide(before.name, "go_on")
        assert question_mails.remind(timezone.now()) == 1

    def test_an_alert_is_sent_though_no_worker_claims_its_run(self, settings: Settings) -> None:
        CALLED.clear()
        targets = [{"type": "call", "function": f"{__name__}.called"}]
        settings.DURABLE = {**project.DURABLE, "ALERTS": {"targets": targets, "events": ["database"]}}
        before = gone_back()
        watch = Watch(patience=timedelta())
        watch.look(timezone.now())
        watch.look(timezone.now())
        assert [(each.kind, each.is_over) for each in CALLED] == [("database", False)]
        assert "The database went back by 3" in CALLED[0].title
        assert not Run.objects.exists()
        restored.decide(before.name, "go_on")
        watch.look(timezone.now())
        work()  # that it is over is told by a run
        assert [(each.kind, each.is_over) for each in CALLED] == [("database", False), ("database", True)]

    def test_an_alert_that_cannot_be_sent_is_left_to_a_run(self, settings: Settings) -> None:
        targets = [{"type": "call", "function": f"{__name__}.missing"}]
        settings.DURABLE = {**project.DURABLE, "ALERTS": {"targets": targets, "events": ["database"]}}
        gone_back()
        Watch(patience=timedelta()).look(timezone.now())
        assert [each.workflow for each in Run.objects.all()] == [ALERT]

    def test_a_metric_says_by_how_much(self) -> None:
        def behind() -> float:
            [found] = [each for each in RowsCollector().collect() if each.name == "durable_database_behind_seconds"]
            return found.samples[0].value

        sweep()
        assert behind() == 0
        before = gone_back()
        marks.keep("a sweep")
        assert 30 <= behind() < 40
        restored.decide(before.name, "go_on")
        assert behind() == 0


class TestTheFile:
    @pytest.fixture
    def path(self, settings: Settings, tmp_path: Path) -> Path:
        """The file of the mark."""
        path = tmp_path / "mark.json"
        settings.DURABLE = {**project.DURABLE, "REDIS": False, "MARK": str(path)}
        return path

    @pytest.mark.slow
    def test_is_whole_whenever_it_is_read_though_its_writers_are_killed(self, path: Path) -> None:
        program = (
            "import sys, django; django.setup()\n"
            "from durable import marks; from datetime import datetime, UTC\n"
            "from durable.conf import conf; vars(conf)['MARK'] = sys.argv[1]\n"
            "n = int(sys.argv[2])\n"
            "while True:\n"
            "    n += 1\n"
            "    marks.write(marks.Mark(name='a', generation=1, counter=n, token='x' * 4000, at=datetime.now(UTC)))\n"
        )
        environment = {**os.environ, "PYTHONPATH": child_path(Path(project.BASE_DIR))}
        highest = 0
        for _ in range(6):
            writer = subprocess.Popen([sys.executable, "-c", program, str(path), str(highest)], env=environment)
            try:
                before = highest
                while highest < before + 50:
                    found = marks.read("a")  # raises for half a file
                    if found is not None:
                        assert found.counter >= highest
                        highest = found.counter
                    assert writer.poll() is None
            finally:
                writer.kill()
                writer.wait()
        assert marks.read("a") is not None

    def test_that_is_no_mark_is_said_and_written_anew(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        sweep()
        path.write_text('{"half": ')
        assert "is not a file of marks" in marks.look().problem
        assert marks.look().may_claim
        marks._log_this.clear("file")
        sweep()
        assert not marks.look().problem
        assert "is written anew" in caplog.text

    def test_that_cannot_be_written_is_said_once_a_minute_and_work_goes_on(
        self, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.DURABLE = {**project.DURABLE, "REDIS": False, "MARK": str(tmp_path / "no" / "mark")}
        marks._log_this.clear("write")
        sweep()
        sweep()
        sweep()
        assert sum("is not written" in each.message for each in caplog.records) == 1
        run = noting.start()
        work()
        assert run.state == "completed"


def test_without_redis_and_file_nothing_is_kept_but_what_the_process_has_seen(settings: Settings) -> None:
    settings.DURABLE = {**project.DURABLE, "REDIS": False}
    sweep()
    before = row()
    sweep()
    DatabaseMark.objects.update(**columns(before))
    assert marks.look().is_behind
    marks.forget()
    assert marks.look().may_claim


def test_the_sweep_raises_the_mark(redis_connection: redis.Redis) -> None:
    sweep()
    DatabaseMark.objects.update(written_at=clock.now() - timedelta(seconds=2))
    Sweep(store_for("default")).tick(clock.now())
    assert marks.read(row().name) is not None
