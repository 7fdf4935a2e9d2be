"""Alerts: one for each beginning and each end of a condition, to each target."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core import mail
from django.db import connections
from pytest_django import Settings

from durable import get_run, runtime
from durable.alerts import Alert, AlertSettings
from durable.alerts.watch import Watch
from durable.checks.configuration import check_alerts
from durable.core.places import Place
from durable.core.registry import ALERT
from durable.models import Activity, AlertState, Cause, Run
from durable.operations import causes
from durable.store import store_for
from durable.worker.timer import CHORES, Chores
from tests.admin import flows
from tests.admin.conftest import Stage

pytestmark = pytest.mark.django_db

SwitchOn = Callable[..., None]
CALLED: list[Alert] = []
CALL = {"type": "call", "function": f"{__name__}.called"}


def called(alert: Alert) -> None:
    CALLED.append(alert)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLED.clear()
    monkeypatch.setattr(flows, "SWITCH", {"broken": True, "rollback_broken": False})


@pytest.fixture
def switch_on(settings: Settings) -> SwitchOn:
    """Set the setting; without targets, a function of this module is called."""

    def switch(*targets: Mapping[str, Any], **others: Any) -> None:
        alerts = {"targets": list(targets) or [CALL], "events": ["cause", "rollback"], **others}
        settings.DURABLE = {**settings.DURABLE, "ALERTS": alerts}

    return switch


class Hook:
    """`received` has headers and body of each request; `statuses` are the answers to come, then 200."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.received.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(hook.statuses.pop(0) if hook.statuses else 200)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_args: object) -> None:
                """Keep quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A web server that notes requests."""
    found = Hook()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def look(stage: Stage, watch: Watch | None = None) -> list[Run]:
    """Look, and pass the runs that send; all of them, the newest last."""
    (watch or Watch(patience=timedelta(0))).look(stage.now)
    found = Run.objects.filter(workflow=ALERT).order_by("created_at", "id")
    for run in found:
        if run.wake_at is not None and run.wake_at <= stage.now:
            stage.settle(run.id)
    return list(found.all())


class TestCauses:
    def test_a_new_one_is_told_once(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on(site="https://shop.example.org/")
        for number in range(3):
            stage.start(flows.switched, number, id=f"run-{number}")
        for _ in range(3):  # each as another process
            look(stage)
        [alert] = CALLED
        fingerprint = Cause.objects.get().fingerprint
        assert (alert.kind, alert.key, alert.number, alert.is_over) == ("cause", f"cause:{fingerprint}", 1, False)
        assert alert.title == 'Runs fail at "charge" of tests.switched: GatewayTimeout'
        assert "3 runs failed for this cause" in alert.text
        assert alert.url == f"https://shop.example.org/admin/durable/run/causes/{fingerprint}/"
        assert "no answer" not in json.dumps(alert.data())  # no text of an error

    def test_its_end_is_told_and_that_it_begins_again(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on(site="https://shop.example.org")
        stage.start(flows.switched, id="run")
        watch = Watch(patience=timedelta(seconds=60))
        look(stage, watch)
        flows.SWITCH["broken"] = False
        get_run("run").recover()
        assert stage.settle("run").state == "completed"
        stage.advance(seconds=30)
        look(stage, watch)
        assert [each.is_over for each in CALLED] == [False]  # perhaps it fails again at once
        stage.advance(seconds=61)
        look(stage, watch)
        look(stage, watch)
        flows.SWITCH["broken"] = True
        stage.start(flows.switched, id="another")
        look(stage, watch)
        assert [(each.number, each.is_over) for each in CALLED] == [(1, False), (1, True), (2, False)]
        assert CALLED[1].title == CALLED[0].title
        assert CALLED[1].url == CALLED[0].url != ""
        assert CALLED[1].ended_at > CALLED[1].began_at
        assert len({each.id for each in CALLED}) == 3

    def test_what_failed_long_ago_is_not_told(self, stage: Stage, switch_on: SwitchOn) -> None:
        stage.start(flows.switched, id="run")
        stage.advance(hours=2)
        switch_on()
        assert look(stage) == []

    def test_it_stays_told_of_while_its_runs_are_failed(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on()
        stage.start(flows.switched, id="run")
        look(stage)
        stage.advance(days=3)
        look(stage)
        assert AlertState.objects.get().ended_at is None
        assert len(CALLED) == 1

    def test_muted_ones_are_silent(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on()
        stage.start(flows.switched, id="run")
        causes.mute(Cause.objects.get().fingerprint)
        assert look(stage) == []
        causes.unmute(Cause.objects.get().fingerprint)
        look(stage)
        causes.mute(Cause.objects.get().fingerprint)
        look(stage)
        assert [each.is_over for each in CALLED] == [False]
        assert AlertState.objects.get().ended_at is not None

    def test_a_stuck_compensation_is_one_of_its_own(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on(events=["rollback"])
        flows.SWITCH["rollback_broken"] = True
        stage.start(flows.saga, id="stuck")
        stage.start(flows.switched, id="failed")
        look(stage)
        [alert] = CALLED
        assert alert.kind == "rollback"
        assert alert.title.startswith('A compensation has stopped at "charge"')

    def test_alerts_that_cannot_be_sent_alert_nobody(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on({"type": "call", "function": f"{__name__}.nowhere"})
        stage.start(flows.switched, id="run")
        [sending] = look(stage)
        for _ in range(60):
            stage.advance(hours=1)
            if stage.settle(sending.id).state == "failed":
                break
        assert Run.objects.get(pk=sending.id).state == "failed"
        assert len(look(stage)) == 1

    def test_without_the_setting_nothing_is_read(self, stage: Stage, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(0):
            Watch().look(stage.now)

    def test_looks_cost_a_constant_number_of_queries(
        self, stage: Stage, switch_on: SwitchOn, django_assert_max_num_queries: Any
    ) -> None:
        switch_on(events=["cause", "rollback", "queue"])
        stage.start(flows.switched, id="run")
        look(stage)
        with django_assert_max_num_queries(40) as first:
            Watch().look(stage.now)
        for number in range(40):
            stage.start(flows.switched, number, id=f"run-{number}")
        with django_assert_max_num_queries(40) as second:
            Watch().look(stage.now)
        assert len(first) == len(second)


class TestHungSteps:
    def test_one_step_in_many_runs_is_one_alert_until_none_hangs(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on(events=["hung_step"])
        for number in range(3):
            run = stage.start(flows.approve, id=f"run-{number}", settle=False)
            claimed = stage.claim(run.id)
            lease = stage.now + timedelta(hours=1)
            Run.objects.filter(pk=run.pk).update(lease_expires_at=lease)
            began_at = stage.now - timedelta(minutes=40 + number)
            what = {"location": "prepare", "attempt": 1, "kind": "step", "fence": claimed.fence}
            Activity.objects.create(run=run, began_at=began_at, timeout=3060, **what)
        look(stage)
        look(stage)
        [alert] = CALLED
        assert alert.title == 'Step "prepare" of tests.approve hangs in 3 runs'
        assert "run-2" in alert.text
        Activity.objects.all().delete()
        look(stage)
        assert [each.is_over for each in CALLED] == [False, True]


class TestQueues:
    def test_one_without_a_worker_is_told_after_a_while(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on(events=["queue"], site="https://shop.example.org")
        stage.start(flows.approve, id="run")
        watch = Watch(patience=timedelta(seconds=60))
        watch.look(stage.now)
        assert not AlertState.objects.exists()
        stage.advance(seconds=61)
        watch.look(stage.now)
        assert AlertState.objects.get().key == "queue:default"
        assert AlertState.objects.get().title == 'No worker serves the queue "default"'
        sent = runtime.current().decode(Run.objects.get(workflow=ALERT).input, Place("", "input"))["args"][1]
        assert "Move them to another queue (`durable move`), or start a worker: " in sent["text"]
        assert sent["url"] == "https://shop.example.org/admin/durable/run/queues/default/show/"


class TestOnce:
    @pytest.mark.django_db(transaction=True)
    def test_of_processes_that_look_at_once_one_tells(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on()
        stage.start(flows.switched, id="run")
        together = threading.Barrier(4)

        def process() -> None:
            together.wait()
            try:
                Watch().look(stage.now)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=process) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert Run.objects.filter(workflow=ALERT).count() == 1
        assert AlertState.objects.get().number == 1

    @pytest.mark.django_db(transaction=True)
    def test_a_look_that_dies_before_its_commit_is_made_up_for(
        self, stage: Stage, switch_on: SwitchOn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        switch_on()
        stage.start(flows.switched, id="run")

        def die(*_args: object) -> None:
            raise SystemExit

        with monkeypatch.context() as dying:
            dying.setattr("durable.alerts.watch.asdict", die)
            with pytest.raises(SystemExit):
                Watch().look(stage.now)
        assert not AlertState.objects.exists()
        look(stage)
        assert len(CALLED) == 1


class TestTargets:
    def test_mail(self, stage: Stage, switch_on: SwitchOn, mailoutbox: list[mail.EmailMessage]) -> None:
        switch_on({"type": "mail", "to": ["ops@example.org"]}, from_email="durable@example.org")
        stage.start(flows.switched, id="run")
        look(stage)
        [message] = mailoutbox
        assert message.subject == '[durable] Alert: Runs fail at "charge" of tests.switched: GatewayTimeout'
        assert (message.to, message.from_email) == (["ops@example.org"], "durable@example.org")
        cause = Cause.objects.get().fingerprint
        assert f"1 run failed for this cause. `durable recover --cause {cause}` recovers it once" in str(message.body)
        assert str(message.body).endswith(f"\n\nSince {stage.now:%Y-%m-%d %H:%M} UTC")
        flows.SWITCH["broken"] = False
        get_run("run").recover()
        stage.settle("run")
        began = stage.now
        stage.advance(minutes=3)
        look(stage)
        assert str(mailoutbox[-1].body).endswith(
            f"\n\nSince {began:%Y-%m-%d %H:%M} UTC until {stage.now:%Y-%m-%d %H:%M} UTC"
        )

    def test_a_signed_webhook(self, stage: Stage, switch_on: SwitchOn, hook: Hook) -> None:
        switch_on({"type": "webhook", "url": hook.url, "secret": "s3cret"})
        stage.start(flows.switched, id="run")
        [run] = look(stage)
        assert run.state == "completed"
        [(headers, body)] = hook.received
        assert json.loads(body)["kind"] == "cause"
        parts = dict(each.split("=") for each in headers["Durable-Signature"].split(","))
        expected = hmac.new(b"s3cret", parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
        assert parts["v1"] == expected
        assert headers["Content-Type"] == "application/json"
        assert "s3cret" not in run.input  # the settings are not recorded

    def test_a_webhook_that_refuses_is_tried_again(self, stage: Stage, switch_on: SwitchOn, hook: Hook) -> None:
        switch_on({"type": "webhook", "url": hook.url, "secret": "s3cret"})
        hook.statuses += [500, 302, 429]
        stage.start(flows.switched, id="run")
        [run] = look(stage)
        for _ in range(3):
            stage.advance(minutes=1)
            stage.settle(run.id)
        assert Run.objects.get(pk=run.id).state == "completed"
        assert len(hook.received) == 4  # the redirect was not followed
        assert len({headers["Idempotency-Key"] for headers, _ in hook.received}) == 1

    def test_one_that_fails_holds_up_no_other(self, stage: Stage, switch_on: SwitchOn, hook: Hook) -> None:
        switch_on(CALL, {"type": "webhook", "url": hook.url, "secret": "x"}, {**CALL})
        hook.statuses += [500]
        stage.start(flows.switched, id="run")
        assert len(look(stage)) == 3
        assert len(CALLED) == 2

    def test_one_that_was_taken_out_ends_its_runs(self, stage: Stage, switch_on: SwitchOn) -> None:
        switch_on(CALL, CALL)
        stage.start(flows.switched, id="run")
        Watch().look(stage.now)
        switch_on(CALL)
        outputs = sorted(get_run(run.id).result() for run in look(stage))
        assert outputs == ["sent", "the settings no longer have this target"]


class TestTheSetting:
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({}, "it has no targets"),
            ({"targets": []}, "it has no targets"),
            ({"targets": [{"type": "pager"}]}, "a target has no known type"),
            ({"targets": [CALL], "event": []}, "it has an unknown key"),
            ({"targets": [CALL], "events": ["causes"]}, "events is not a list of known events"),
            ({"targets": [CALL], "site": "shop"}, "site is not an address"),
            ({"targets": [{"type": "mail", "to": "ops@example.org"}]}, "a mail has no recipients"),
            ({"targets": [{"type": "webhook", "url": "file:///etc/passwd", "secret": "x"}]}, "a webhook has no url"),
            ({"targets": [{"type": "webhook", "url": "https://example.org"}]}, "a webhook has no secret"),
            ({"targets": [{"type": "call", "function": "os.nothing"}]}, "os.nothing cannot be used"),
        ],
    )
    def test_a_mistake_is_an_error_of_check(self, settings: Settings, wrong: Any, said: str) -> None:
        settings.DURABLE = {**settings.DURABLE, "ALERTS": wrong}
        [message] = check_alerts()
        assert (message.id, said in message.msg, bool(message.hint)) == ("durable.E014", True, True)

    def test_a_right_one_is_none(self, switch_on: SwitchOn) -> None:
        switch_on(CALL, {"type": "mail", "to": ["a@example.org"]}, site="https://example.org")
        assert check_alerts() == []

    def test_targets_of_a_type_are_numbered(self) -> None:
        names = [each.name for each in AlertSettings.of({"targets": [CALL, CALL]}).targets]
        assert names == ["call", "call 2"]

    def test_a_wrong_one_stops_no_sweep(
        self, stage: Stage, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.DURABLE = {**settings.DURABLE, "ALERTS": {"target": []}}
        Watch().look(stage.now)
        assert "no alert is sent" in caplog.text


def test_the_process_of_the_sweep_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "durable.alerts.watch.look" in CHORES
    looked = threading.Event()
    monkeypatch.setattr("durable.alerts.watch.look", lambda _now: looked.set())
    with Chores(store_for("default")):
        assert looked.wait(60)
