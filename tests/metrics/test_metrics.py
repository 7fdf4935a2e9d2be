"""Metrics: what is counted, what is read from the rows, who may read it, and that all processes are seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, ProgrammingError, connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import include, path
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from durable import Context, Limit, workflow
from durable.core.control_flow import LeaseLost
from durable.errors import StartRefusedError
from durable.metrics import MULTIPROCESS, exposition, rows
from durable.metrics.instruments import Instruments
from durable.models import Run
from durable.testing import Harness
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
urlpatterns = [path("metrics/", include("durable.metrics.urls"))]


@workflow(name="tests.metrics.charging")
def charging(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", lambda: 1, rollback=undo)
    ctx.step("fail", fail, max_retries=1)


def undo(_rollback: Any, _output: Any) -> None: ...


def fail() -> None:
    raise ValueError("no")


@workflow(name="tests.metrics.sleeping")
def sleeping(ctx: Context) -> None:
    ctx.sleep("nap", "1 hour")


@workflow(name="tests.metrics.leaf")
def leaf(ctx: Context, number: int) -> int:
    return ctx.step("number", lambda: number)


@workflow(name="tests.metrics.fanning_out")
def fanning_out(ctx: Context) -> int:
    ctx.child("one", leaf, 7)
    return len(ctx.map("some", leaf, [(number,) for number in range(4)], at_once=2).outputs)


class Counts:
    """The instruments in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.instruments = Instruments(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def counts() -> Iterator[Counts]:
    found = Counts()
    found.instruments.connect()
    yield found
    found.instruments.disconnect()


@pytest.fixture
def h() -> Iterator[Harness]:
    with Harness() as found:
        yield found


class TestInstruments:
    def test_runs_passes_and_calls_are_counted(self, h: Harness, counts: Counts) -> None:
        h.finish(charging.start())
        name = "tests.metrics.charging"
        assert counts("durable_runs_started_total", workflow=name) == 1
        assert counts("durable_runs_ended_total", workflow=name, state="failed") == 1
        passes = {"workflow": name, "queue": "default"}
        assert counts("durable_passes_total", outcome="sleeping", **passes) == 1
        assert counts("durable_passes_total", outcome="failed", **passes) == 1
        assert counts("durable_pass_seconds_count", workflow=name) == 2
        assert counts("durable_step_calls_total", workflow=name, kind="step", outcome="returned") == 1
        assert counts("durable_step_calls_total", workflow=name, kind="step", outcome="raised") == 2
        assert counts("durable_step_calls_total", workflow=name, kind="rollback", outcome="returned") == 1
        assert counts("durable_step_failures_total", workflow=name, kind="step", then="retried") == 1
        assert counts("durable_step_failures_total", workflow=name, kind="step", then="final") == 1

    def test_children_are_counted_as_started_by_the_pass_of_their_parent(self, h: Harness, counts: Counts) -> None:
        assert h.finish(fanning_out.start()).output == 4
        assert counts("durable_runs_started_total", workflow="tests.metrics.leaf") == 5
        assert counts("durable_runs_ended_total", workflow="tests.metrics.leaf", state="completed") == 5
        assert counts("durable_runs_started_total", workflow="tests.metrics.fanning_out") == 1

    def test_how_late_a_pass_is(self, h: Harness, counts: Counts) -> None:
        sleeping.start()
        h.settle()
        h.advance("1 hour")
        h.advance("2 s")
        h.settle()
        assert counts("durable_wake_up_seconds_count", queue="default") == 2
        assert counts("durable_wake_up_seconds_sum", queue="default") == pytest.approx(2)
        assert counts("durable_wake_up_seconds_bucket", queue="default", le="2.5") == 2
        assert counts("durable_wake_up_seconds_bucket", queue="default", le="1.0") == 1

    def test_a_pass_after_a_crash_was_not_waited_for(self, h: Harness, counts: Counts) -> None:
        run_id = sleeping.start().id
        claim = {"now": h.now, "lease_until": h.now + timedelta(seconds=1), "worker": "killed"}
        assert h._store.claim_run(run_id, **claim) is not None  # type: ignore[arg-type]
        h.advance("30 s")
        h.settle()
        assert (
            counts("durable_passes_total", workflow="tests.metrics.sleeping", queue="default", outcome="sleeping") == 1
        )
        assert counts("durable_wake_up_seconds_count", queue="default") is None

    def test_a_lost_lease(self, h: Harness, counts: Counts) -> None:
        def loses(ctx: Context) -> None:
            claim: dict[str, Any] = {"now": h.now, "lease_until": h.now + timedelta(seconds=9), "worker": "another"}
            h._store.expire_lease(ctx.run_id, h.now)
            ctx.step("slow", lambda: h._store.claim_run(ctx.run_id, **claim) is None)

        handle = h.start(loses)
        with pytest.raises(LeaseLost):
            h.run(handle)
        assert counts("durable_leases_lost_total", queue="default") == 1
        assert counts("durable_passes_total", workflow="harness.loses", queue="default", outcome="lease_lost") == 1


@pytest.fixture
def _single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MULTIPROCESS, raising=False)


def scraped(text: str) -> dict[str, float]:
    """The gauges of the rows, by name and label."""
    return {
        "/".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in rows.NAMES
    }


@pytest.mark.django_db
@pytest.mark.usefixtures("_single_process")
class TestRows:
    def runs(self, count: int, state: str = "pending", *, late: float = 0, queue: str = "default") -> None:
        now = timezone.now()
        Run.objects.bulk_create(
            Run(
                id=f"{queue} {state} {late} {number}",
                workflow="w",
                queue=queue,
                state=state,
                input="{}",
                created_at=now,
                wake_at=now - timedelta(seconds=late) if state not in ("completed", "paused") else None,
                finished_at=now if state == "completed" else None,
            )
            for number in range(count)
        )

    def gauges(self) -> dict[str, float]:
        return scraped(exposition.exposition("")[0].decode())

    def test_where_the_runs_stand_and_how_long_they_have_been_due(self) -> None:
        self.runs(3, late=100)
        self.runs(2, "sleeping", late=-1000)
        self.runs(4, "completed")
        self.runs(1, "paused")
        gauges = self.gauges()
        assert gauges["durable_database_up"] == 1
        numbers = {"pending": 3, "sleeping": 2, "completed": 4, "paused": 1, "failed": 0}
        assert {each: gauges[f"durable_runs/{each}"] for each in numbers} == numbers
        assert (gauges["durable_due_runs/default"], gauges["durable_due_runs/high"]) == (3, 0)
        assert 100 <= gauges["durable_due_age_seconds/default"] < 200
        assert gauges["durable_due_age_seconds/high"] == 0

    def test_counting_stops_and_costs_the_same_for_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("durable.inspection.workflows.STATE_CAP", 5)
        monkeypatch.setattr(rows, "STATE_CAP", 5)
        self.runs(1, late=10)
        with CaptureQueriesContext(connection) as few:
            self.gauges()
        self.runs(20, late=5)
        with CaptureQueriesContext(connection) as many:
            gauges = self.gauges()
        assert len(few) == len(many)
        assert (gauges["durable_runs/pending"], gauges["durable_due_runs/default"]) == (5, 5)

    @pytest.mark.parametrize("error", [OperationalError("the server is away"), ProgrammingError("no such table")])
    def test_without_the_database_the_counters_are_still_exported(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def away() -> None:
            raise error

        monkeypatch.setattr(rows, "count_by_state", away)
        assert self.gauges() == {"durable_database_up": 0}


@pytest.mark.django_db
@pytest.mark.usefixtures("_single_process")
class TestEndpoint:
    @pytest.fixture(autouse=True)
    def _served(self) -> Iterator[None]:
        with override_settings(ROOT_URLCONF=__name__, DURABLE={"METRICS_TOKEN": "secret"}):
            yield

    def test_it_is_closed_but_to_the_token(self, client: Client) -> None:
        wrong = ("Bearer wrong", "Basic secret", "Bearer ")
        for headers in ({}, *({"Authorization": each} for each in wrong)):
            refused = client.get("/metrics/", headers=headers)
            assert (refused.status_code, refused["WWW-Authenticate"]) == (401, 'Bearer realm="durable"')
            assert b"durable_runs" not in refused.content
        answer = client.get("/metrics/", headers={"Authorization": "Bearer secret"})
        assert answer.status_code == 200
        assert answer["Content-Type"].startswith("text/plain; version=")
        assert "no-store" in answer["Cache-Control"]
        assert scraped(answer.content.decode())["durable_database_up"] == 1

    @override_settings(DURABLE={})
    def test_without_a_token_in_the_settings_there_is_none(self, client: Client) -> None:
        assert client.get("/metrics/", headers={"Authorization": "Bearer "}).status_code == 401

    def test_being_staff_is_not_enough(self, client: Client) -> None:
        user = User.objects.create_user("op", is_staff=True)
        client.force_login(user)
        assert client.get("/metrics/").status_code == 401
        user.user_permissions.add(Permission.objects.get(codename="view_run", content_type__app_label="durable"))
        assert client.get("/metrics/").status_code == 200

    def test_it_is_only_read(self, client: Client) -> None:
        assert client.post("/metrics/", headers={"Authorization": "Bearer secret"}).status_code == 405

    def test_the_newer_format_is_given_on_request(self, client: Client) -> None:
        wanted = {"Authorization": "Bearer secret", "Accept": "application/openmetrics-text; version=1.0.0"}
        answer = client.get("/metrics/", headers=wanted)
        assert answer["Content-Type"].startswith("application/openmetrics-text")
        assert answer.content.endswith(b"# EOF\n")

    @pytest.mark.parametrize("accept", ["text/plain;version=\xff", "application/openmetrics-text;version=x.y"])
    def test_an_unknown_format_is_answered_with_text(self, client: Client, accept: str) -> None:
        answer = client.get("/metrics/", headers={"Authorization": "Bearer secret", "Accept": accept})
        assert (answer.status_code, answer["Content-Type"].partition(";")[0]) == (200, "text/plain")


def printed(code: str, **environment: str) -> str:
    """What another process prints, which shares no directory of counts."""
    given = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment}
    given.pop(MULTIPROCESS, None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_nothing_is_counted_unless_it_is_asked_for() -> None:
    code = "import django; django.setup(); import sys; print('durable.metrics.instruments' in sys.modules)"
    assert printed(code).split() == ["False"]


@pytest.mark.slow
def test_django_prometheus_shows_them_too(tmp_path: Path) -> None:
    """Its own registry is prometheus_client's, which then has both kinds; it is exported without tables too."""
    code = """
import django
from django.apps import apps
is_installed = apps.is_installed
apps.is_installed = lambda name: name == "django_prometheus" or is_installed(name)
django.setup()
from prometheus_client import REGISTRY, generate_latest
from durable import Context, Limit, workflow
from durable.metrics import exposition
from durable.testing import Harness
with Harness() as h:
    h.finish(h.start(lambda ctx: ctx.step("a", lambda: 1)))
print(generate_latest(REGISTRY).decode())
print(exposition.exposition("")[0].decode().count("# HELP durable_database_up "))
"""
    out = printed(code, DATABASE_URL=f"sqlite:///{tmp_path / 'empty.sqlite3'}")
    assert 'durable_passes_total{outcome="completed",queue="default",workflow="harness.lambda"} 1.0' in out
    assert "durable_database_up 0.0" in out
    assert out.splitlines()[-1] == "1"


@pytest.mark.e2e
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_the_counts_of_all_workers_are_served_at_one_port(child_environment: dict[str, str], tmp_path: Path) -> None:
    from tests.e2e.workflows import bystander

    log = tmp_path / "worker.log"
    command = [sys.executable, str(ROOT / "manage.py"), "durable_worker", "default", "--skip-checks"]
    command += ["--processes", "2", "--metrics-port", "0"]
    environment = {**child_environment, "DJANGO_SETTINGS_MODULE": "tests.e2e.settings"}
    environment.pop(MULTIPROCESS, None)
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        ) as worker,
    ):
        try:
            eventually(lambda: "metrics at" in log.read_text())
            (url,) = re.findall(r"metrics at (http://\S+)", log.read_text())
            for number in range(20):
                bystander.start(number)
            eventually(lambda: Run.objects.filter(state="completed").count() == 20)
            with urllib.request.urlopen(url) as answer:
                text = answer.read().decode()
        finally:
            worker.terminate()
            worker.wait(120)
    assert 'durable_passes_total{outcome="completed",queue="default",workflow="e2e.bystander"} 20.0' in text
    assert scraped(text)["durable_runs/completed"] == 20
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


@workflow(name="tests.metrics.rated")
def rated(ctx: Context) -> None:
    ctx.step("call", int, rate="metrics-api", units=3)


def test_units_waits_and_refused_starts_are_counted(h: Harness, counts: Counts, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"metrics-api": {"rate": "3/min", "burst": 3}}}
    for each in ("a", "b"):
        h.start(rated.using(id=each))
    h.settle()
    assert counts("durable_rate_units_total", limit="metrics-api") == 3
    assert counts("durable_rate_wait_seconds_count", limit="metrics-api") == 1
    assert counts("durable_rate_wait_seconds_sum", limit="metrics-api") == 60
    with pytest.raises(StartRefusedError):
        rated.using(rate="metrics-api", when_full="drop").start()
    assert counts("durable_starts_refused_total", limit="metrics-api") == 1


@workflow(name="tests.metrics.limited", limit=Limit("one at a time", at_once=1, hold="open"))
def limited(ctx: Context) -> None:
    ctx.queue.next("never")


def test_answers_to_runs_that_ask_for_slots_are_counted(h: Harness, counts: Counts) -> None:
    for each in ("a", "b"):
        h.start(limited.using(id=each))
    h.settle()
    name = "durable_slots_asked_total"
    assert counts(name, limit="one at a time", answer="held") == 1
    assert counts(name, limit="one at a time", answer="waits") == 1
