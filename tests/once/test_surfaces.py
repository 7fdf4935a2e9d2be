"""Runs with a step that waits for a person, on every surface: pages, REST, the command line, alerts and metrics."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db.models import F
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from durable import Context, Found, get_run, operations, runtime, signals, workflow
from durable.alerts import conditions
from durable.alerts.conditions import look_for
from durable.alerts.settings import EVENTS
from durable.inspection.causes import list_causes
from durable.inspection.timeline import build_timeline
from durable.metrics.rows import RowsCollector
from durable.models import Attempt, Cause, EntryMetadata, Run
from durable.operations.audit import Actor, acting_as
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

BROKEN: set[str] = set()


class BankError(Exception):
    """The bank has not said what it did."""


def charge(order: int, amount: int) -> str:
    if BROKEN:
        raise BankError("timeout")
    return "r1"


@workflow(name="tests.seen.order")
def order(ctx: Context, number: int) -> str:
    return ctx.step("charge", charge, number, 990, once=True)


def find(order: int, amount: int) -> Found[str]:
    return Found("r1")


@workflow(name="tests.seen.asked")
def asked(ctx: Context, number: int) -> str:
    return ctx.step("charge", charge, number, 990, once=True, verify=find)


@workflow(name="tests.seen.holding", when_exhausted="hold")
def holding(ctx: Context) -> str:
    return ctx.step("label", charge, 1, 2, max_retries=0)


@workflow(name="tests.seen.failing")
def failing(ctx: Context) -> str:
    return ctx.step("label", charge, 1, 2, max_retries=0)


@pytest.fixture(autouse=True)
def broken() -> Iterator[None]:
    BROKEN.add("the bank")
    yield
    BROKEN.clear()


def held(run_id: str, of: Any = order) -> Run:
    pass_once(of.using(id=run_id).start(*((42,) if of in (order, asked) else ())))
    return Run.objects.get(pk=run_id)


@pytest.fixture
def as_user(client: Client) -> Callable[..., Client]:
    """Logs in a staff user with these permissions; all of durable's without any."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create_user("ada", is_staff=True)
        found = Permission.objects.filter(content_type__app_label="durable")
        user.user_permissions.set(found.filter(codename__in=permissions) if permissions else found)
        client.force_login(user)
        return client

    return log_in


def page(client: Client, name: str, *args: str, **query: str) -> str:
    response = client.get(reverse(f"admin:durable_run_{name}", args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def durable(*arguments: str) -> str:
    out = io.StringIO()
    call_command("durable", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


class TestPages:
    def test_the_page_of_a_run_asks_whether_it_was_done(self, as_user: Callable[..., Client]) -> None:
        held("a")
        client = as_user()
        shown = page(client, "change", "a")
        assert '<span class="durable-state durable-held">held</span>' in shown
        assert "Was it done? charge(42, 990), attempt 1 begun " in shown
        assert "nobody knows whether attempt 1 of" in shown
        history = page(client, "change", "a", part="history")
        assert history.count("Was it done? charge(42, 990)") == 2
        step = page(client, "step", "a", at="charge")
        assert "nobody knows whether its last attempt was done" in step

    def test_arguments_need_the_permission_to_see_payloads(self, as_user: Callable[..., Client]) -> None:
        held("a")
        client = as_user("view_run")
        for part in ("timeline", "history"):
            shown = page(client, "change", "a", part=part)
            assert "Was it done? charge, attempt 1 begun " in shown
            assert "42, 990" not in shown

    def test_the_time_in_which_it_was_held_is_no_work(self, as_user: Callable[..., Client]) -> None:
        run = held("a")
        Attempt.objects.update(finished_at=F("started_at") + timedelta(seconds=1))
        get_run("a").settle("charge", done="r7")
        EntryMetadata.objects.update(completed_at=F("created_at") + timedelta(hours=1))
        run.refresh_from_db()
        [row] = build_timeline(run, timezone.now()).rows
        assert [each.kind for each in row.spans] == ["failed", "wait", "given"]
        shown = page(as_user(), "change", "a", part="timeline")
        assert "1 attempt, given by hand" in shown
        assert "2 attempts" not in shown

    def test_what_verify_has_found_is_no_attempt_more(self, as_user: Callable[..., Client]) -> None:
        run = held("a", asked)
        assert run.state == "completed"
        [row] = build_timeline(run, timezone.now()).rows
        assert [each.kind for each in row.spans] == ["failed", "wait"]
        assert "1 attempt, " in page(as_user(), "change", "a", part="timeline")

    def test_who_has_failed_it_is_told(self, as_user: Callable[..., Client]) -> None:
        held("a")
        with acting_as(Actor("cli", label="ada"), reason="the bank says no"):
            get_run("a").settle("charge", fail=True)
        pass_once(get_run("a"))
        client = as_user()
        for shown in (page(client, "change", "a", part="history"), page(client, "step", "a", at="charge")):
            assert "failed by hand by ada" in shown
            assert "the bank says no" in shown
        BROKEN.clear()
        get_run("a").recover()
        assert "failed by hand" not in page(client, "change", "a", part="history")

    def test_a_run_in_doubt_has_no_attempt(
        self, as_user: Callable[..., Client], caplog: pytest.LogCaptureFixture
    ) -> None:
        run = order.using(id="a").start(42)
        runtime.current().store.put_in_doubt(timezone.now(), 10)
        pass_once(run)
        assert [each.attempt for each in run.info().held] == [0]
        assert "nobody knows whether it was done" in run.summary
        shown = [run.summary, caplog.text, page(as_user(), "change", "a"), durable("why", "a")]
        for each in shown:
            assert "attempt 0" not in each

    def test_the_list_has_the_filter_and_the_word(self, as_user: Callable[..., Client]) -> None:
        held("held-one")
        held("failed-one", failing)
        client = as_user()
        shown = page(client, "changelist", held="1")
        assert "held-one" in shown
        assert "failed-one" not in shown
        assert "durable-state durable-held" in shown
        assert "failed-one" in page(client, "changelist", state="failed")
        assert "held-one" not in page(client, "changelist", state="failed")

    def test_a_cause_says_how_many_are_failed_and_held(self, as_user: Callable[..., Client]) -> None:
        held("a", holding)
        held("b", failing)
        held("c", failing)
        client = as_user()
        [cause] = list_causes(timezone.now())
        assert "2 failed, 1 held" in page(client, "cause", cause.fingerprint)
        assert "2 failed, 1 held" in page(client, "causes")
        for run_id in ("a", "b"):  # of the open one and of the one that has ended
            assert "3 runs are failed or held for this cause" in page(client, "change", run_id)
        index = client.get(reverse("admin:index")).content.decode()
        assert "2 failed, 1 held" in index
        assert "3 runs failed" not in index

    def test_the_overview_counts_it_among_what_needs_a_person(self, as_user: Callable[..., Client]) -> None:
        held("a")
        client = as_user()
        shown = page(client, "overview")
        assert "A run has a step that waits for a person" in shown
        assert "?held=1" in shown
        assert "Nothing needs a person" not in shown

    def test_in_german(self, as_user: Callable[..., Client]) -> None:
        held("a")
        client = as_user()
        with translation.override("de"):
            client.cookies["django_language"] = "de"
            shown = client.get(reverse("admin:durable_run_change", args=["a"]), headers={"accept-language": "de"})
        assert "Wurde er ausgeführt? charge(42, 990), Versuch 1 begonnen" in shown.content.decode()


class TestREST:
    def get(self, client: Client, address: str) -> Any:
        response = client.get(f"/api{address}")
        assert response.status_code == 200, response.content
        return response.json()

    def test_a_run_its_history_and_its_list(self, as_user: Callable[..., Client]) -> None:
        held("a")
        held("b", failing)
        client = as_user()
        [step] = self.get(client, "/runs/a")["held"]
        assert (step["location"], step["reason"], step["attempt"], step["until"]) == ("charge", "unknown", 1, None)
        assert step["question"].startswith("Was it done? charge(42, 990), attempt 1 begun ")
        assert self.get(client, "/runs/b")["held"] == []
        [entry] = self.get(client, "/runs/a/entries")["results"]
        assert (entry["status"], entry["held"]["reason"]) == ("held", "unknown")
        [node] = self.get(client, "/runs/a/tree")["roots"]
        assert (node["status"], node["note"]) == ("held", step["question"])
        assert [run["id"] for run in self.get(client, "/runs?held=true")["results"]] == ["a"]
        assert self.get(client, "/runs?held=true")["results"][0]["explanation"]["needs_attention"]
        [cause] = [each for each in self.get(client, "/causes")["results"] if each["held"]["number"]]
        assert cause["runs"]["number"] == 1

    def test_arguments_need_the_permission_to_see_payloads(self, as_user: Callable[..., Client]) -> None:
        held("a")
        client = as_user("view_run")
        assert "42, 990" not in json.dumps([self.get(client, each) for each in ("/runs/a", "/runs/a/tree")])


class TestCommands:
    def test_why_asks_and_names_the_ways(self) -> None:
        held("a")
        told = durable("why", "a")
        assert "Was it done? charge(42, 990), attempt 1 begun " in told
        assert "durable settle a charge --done JSON" in told
        assert "durable settle a charge --not-done" in told
        assert "durable settle a charge --fail" in told

    def test_lists_and_causes(self) -> None:
        held("a")
        held("b", failing)
        assert durable("list", "--held", "-o", "ids").split() == ["a"]
        assert " held " in durable("list", "--held")
        assert "1 held" in durable("causes")
        assert "Was it done? charge, attempt 1" in durable("show", "a")
        assert "Was it done? charge(42, 990), attempt 1" in durable("show", "a", "--payloads")


class TestAlertsAndMetrics:
    def found(self, *events: str) -> list[conditions.Condition]:
        return list(look_for(frozenset(events or EVENTS) - {"queue"}, timezone.now(), []).conditions)

    def test_a_held_step_is_alerted_with_its_link_and_is_no_failure(self) -> None:
        held("a")
        [alert] = self.found()
        assert (alert.kind, alert.path) == ("held", reverse("admin:durable_run_change", args=["a"]))
        assert alert.title == 'A person is waited for at "charge" of tests.seen.order: BankError'
        assert "`durable why a`" in alert.text

    def test_several_lead_to_their_list(self) -> None:
        held("a", holding)
        held("b", holding)
        held("c", failing)
        alerts = {each.kind: each for each in self.found()}
        assert set(alerts) == {"held", "cause"}
        assert "?held=1&cause=" in alerts["held"].path
        assert alerts["held"].text.startswith("2 runs stay open")
        assert alerts["cause"].text.startswith("1 run failed")

    def test_it_is_over_once_all_are_settled_and_silent_if_muted(self) -> None:
        held("a")
        [alert] = self.found("held")
        Cause.objects.update(muted_at=timezone.now())
        muted = look_for(frozenset({"held"}), timezone.now(), [alert.key])
        assert (list(muted.conditions), set(muted.silent)) == ([], {alert.key})
        Cause.objects.update(muted_at=None)
        operations.settle("a", "charge", done="by hand")
        over = look_for(frozenset({"held"}), timezone.now(), [alert.key])
        assert (list(over.conditions), set(over.silent), set(over.unknown)) == ([], set(), set())
        assert conditions.path_of(alert.key).startswith("/admin/durable/run/")

    def test_the_gauge_counts_by_workflow_and_reason(self) -> None:
        held("a")
        held("b", holding)
        held("c", holding)
        [family] = [each for each in RowsCollector().collect() if each.name == "durable_held_runs"]
        assert {tuple(sorted(each.labels.items())): each.value for each in family.samples} == {
            (("reason", "unknown"), ("workflow", "tests.seen.order")): 1,
            (("reason", "exhausted"), ("workflow", "tests.seen.holding")): 2,
        }

    def test_the_log_and_the_signal_tell_it(self, caplog: pytest.LogCaptureFixture) -> None:
        heard: list[dict[str, Any]] = []

        def hear(**details: Any) -> None:
            heard.append(details)

        signals.step_held.connect(hear)
        try:
            held("a")
        finally:
            signals.step_held.disconnect(hear)
        assert [(each["run"], each["location"], each["reason"]) for each in heard] == [("a", "charge", "unknown")]
        [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert record.getMessage() == (
            "run a of tests.seen.order waits for a person: step charge, attempt 1: nobody knows if it was done: "
            "BankError: timeout"
        )
        assert record.__dict__["cause"] == ["charge", "BankError", "timeout"]


class TestImports:
    @pytest.mark.parametrize(("of", "location"), [(order, "charge"), (holding, "label")])
    def test_an_exported_held_run_is_imported_and_asks_again(self, of: Any, location: str, tmp_path: Any) -> None:
        held("a", of)
        path = tmp_path / "runs.jsonl"
        path.write_text(durable("export", "--history", "a"))
        Run.objects.filter(pk="a").delete()
        durable("import", str(path))
        run = Run.objects.get(pk="a")
        assert run.state == "paused"
        operations.resume("a")
        pass_once(get_run("a"))
        assert [each.location for each in operations.held("a")] == [location]
        assert durable("list", "--held", "-o", "ids").split() == ["a"]
