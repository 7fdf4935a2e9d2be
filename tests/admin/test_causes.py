"""Causes in the admin: on the overview, on their own pages, with their verbs; who may see and do what."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import URLResolver, reverse
from django.utils import timezone

from durable.models import Cause, Failure, OperatorAction, Run
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import confirm, hidden, read, rows_of, text_of, url

pytestmark = pytest.mark.django_db

OVERVIEW = "/admin/durable/"


@pytest.fixture(autouse=True)
def _broken() -> None:
    flows.SWITCH["broken"] = True


@pytest.fixture
def failed(stage: Stage) -> str:
    """Three failed runs of one workflow, two of one cause, whose fingerprint it is, and the newest of another."""
    for number in (1, 2):
        stage.start(flows.switched, number, id=f"run-{number}")
        stage.advance(minutes=1)
    stage.start(flows.saga, id="other")
    return Failure.objects.get(run_id="run-1").cause.fingerprint


def retry_url(fingerprint: str) -> str:
    return f"{url('bulk')}?verb=recover&all=on&filter=%3Fcause%3D{fingerprint}"


def test_the_overview_has_causes_with_the_newest_first(failed: str, operator: Client) -> None:
    shown = read(operator, OVERVIEW)
    assert shown.index("CriticalError") < shown.index("GatewayTimeout")
    assert "no answer for #" in shown
    assert "Recover these 2" in shown
    assert retry_url(failed) in shown
    assert f"?cause={failed}" in shown
    assert shown.count('class="durable-spark"') == 2


@pytest.mark.parametrize(("shown", "has_more"), [(1, True), (2, False)])
def test_the_index_leads_to_the_causes_that_it_leaves_out(
    failed: str, operator: Client, monkeypatch: pytest.MonkeyPatch, shown: int, has_more: bool
) -> None:
    monkeypatch.setattr("durable.admin.overview.CAUSES", shown)
    index = read(operator, reverse("admin:index"))
    assert index.count('name="durable-incident"') == shown
    assert (f'href="{url("causes")}">More causes, muted ones too</a>' in index) is has_more


def test_causes_that_have_no_row_have_a_line_with_their_verbs(
    failed: str, operator: Client, log_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has the first in full, and the overview too; behind the last line stands how many there may be."""
    monkeypatch.setattr("durable.admin.overview.CAUSES", 1)
    recover = retry_url(failed)

    def line(client: Client, address: str) -> str:
        found = re.search(r'<ul class="durable-further".*?</ul>', read(client, address), re.S)
        assert found is not None
        return found[0]

    for address in (reverse("admin:index"), reverse("admin:app_list", args=["durable"])):
        shown = line(operator, address)
        assert shown.count("<li") == 1
        assert f'<a href="{recover}" aria-label="Recover these 2: charge · GatewayTimeout">Recover 2</a>' in shown
        assert f'<a href="{url("act", "run-2", "recover")}"' in shown
    assert "2 causes of failure need a person" in read(operator, reverse("admin:index"))
    monkeypatch.setattr("durable.admin.overview.MOST", 1)
    assert "1+ cause of failure needs a person" in read(operator, reverse("admin:index"))
    monkeypatch.setattr("durable.admin.overview.MOST", 50)
    viewed = line(log_in("view_run", name="bob"), reverse("admin:index"))
    assert "Recover" not in viewed
    assert f'href="{url("changelist")}?cause={failed}">2</a>' in viewed


def test_addresses_are_looked_up_once_for_all_causes(
    stage: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    resolver: Any = URLResolver
    look_up = resolver._reverse_with_prefix

    def counted(self: URLResolver, name: str, *arguments: Any, **options: Any) -> str:
        asked.append(name)
        address: str = look_up(self, name, *arguments, **options)
        return address

    def addresses(*, causes: int) -> int:
        for number in range(causes):
            run_id = f"run-{Run.objects.count()}"
            stage.start(flows.switched, number, id=run_id)
            new = Cause.objects.create(
                fingerprint=f"{run_id:x>16}"[-16:], place=run_id, error_type="E", first_seen_at=stage.now
            )
            Failure.objects.filter(run=run_id).update(cause=new)
        read(operator, url("causes"))  # so that nothing is looked up for the first time
        del asked[:]
        shown = read(operator, url("causes"))
        number = len(asked)
        assert shown.count('class="durable-spark"') == Run.objects.count()
        assert all(f'href="{url("change", each)}"' in shown for each in Run.objects.values_list("pk", flat=True))
        return number

    monkeypatch.setattr(URLResolver, "_reverse_with_prefix", counted)
    assert addresses(causes=1) == addresses(causes=4) > 0


def test_the_open_runs_of_a_workflow_of_the_cause_are_paused_and_no_others(
    failed: str, stage: Stage, operator: Client
) -> None:
    stage.start(flows.saga, id="of-another", settle=False)
    page = operator.get(url("cause", failed))
    [pause] = page.context["pauses"]
    assert pause.title == "Pause the open runs of tests.switched"
    assert pause.url in unescape(text_of(page))
    assert operator.get(pause.url).context["eligibility"].count == 0  # its runs have failed
    for number in (1, 2):
        stage.start(flows.switched, number, id=f"open-{number}", settle=False)
    confirmation = operator.get(pause.url)
    assert "Pause <strong>2</strong> runs." in text_of(confirmation)
    operator.post(url("bulk"), hidden(confirmation) | {"reason": "the bank is down"})
    bulk = stage.settle(Run.objects.get(workflow="durable.bulk").id)
    paused = {"open-1", "open-2"}
    assert set(Run.objects.filter(state="paused").values_list("id", flat=True)) == paused
    logged = OperatorAction.objects.filter(action="pause", outcome="done").values_list("run_id", "reason")
    assert set(logged) == {(run_id, "the bank is down") for run_id in (*paused, bulk.id)}


def test_a_cause_leads_to_the_hold_of_new_starts_of_its_workflow(failed: str, log_in: Callable[..., Client]) -> None:
    def page_of_others(name: str) -> str:
        return text_of(log_in(*OPERATOR, name=name).get(url("cause", failed)))

    assert "new starts" not in page_of_others("eve")
    operator = log_in(*OPERATOR, "hold_workflow")
    hold, release = (url("workflow_hold", "tests.switched", verb) for verb in ("hold", "release"))
    page = operator.get(url("cause", failed)).content.decode()
    assert f'href="{hold}">Hold new starts of tests.switched</a>' in page
    assert release not in page
    confirm(operator, hold, reason="the bank is down")
    page = operator.get(url("cause", failed)).content.decode()
    assert f'href="{release}">Release new starts of tests.switched</a>' in page
    assert hold not in page
    page = page_of_others("bob")
    assert "Pause the open runs of tests.switched" in page
    assert "new starts" not in page


def test_a_retry_of_a_cause_is_confirmed_and_acts_on_its_runs_alone(failed: str, operator: Client) -> None:
    confirmation = operator.get(retry_url(failed))
    assert confirmation.status_code == 200
    assert confirmation.context["eligibility"].count == 2
    assert confirmation.context["title"] == "Recover: all runs with the cause “charge · GatewayTimeout”"
    assert set(Run.objects.values_list("state", flat=True)) == {"failed"}  # a GET does nothing
    token = confirmation.context["form"]["token"].value()
    posted = {"verb": "recover", "all": "on", "filter": f"?cause={failed}", "confirmed": "1", "token": token}
    answer = operator.post(url("bulk"), posted)
    assert answer.status_code == 302
    [order] = Run.objects.filter(workflow="durable.bulk")
    assert failed in order.input


def test_the_list_says_by_which_cause_it_is_filtered(failed: str, operator: Client) -> None:
    response = operator.get(url("changelist"), {"cause": failed})
    assert rows_of(response) == ["run-2", "run-1"]
    assert f"cause:{failed}" not in response.content.decode()
    assert "Cause: charge · GatewayTimeout" in response.content.decode()
    searched = operator.get(url("changelist"), {"q": f"cause:{failed}"})
    assert len(searched.context["rows"]) == 2
    assert len(operator.get(url("changelist"), {"place": "charge"}).context["rows"]) >= 2


def test_an_iteration_is_told_in_words(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="run")
    Cause.objects.update(place="polling / ~ / poll")
    fingerprint = Cause.objects.get().fingerprint
    listed = f"{url('changelist')}?cause={fingerprint}"
    for address in (OVERVIEW, url("cause", fingerprint), listed, retry_url(fingerprint)):
        shown = read(operator, address)
        assert "polling / any iteration / poll" in shown
        assert "/ ~ /" not in shown


def test_the_page_of_a_cause(failed: str, operator: Client) -> None:
    shown = read(operator, url("cause", failed))
    for each in ("GatewayTimeout", "no answer for #", "run-1", "run-2", "Recover these 2", "tests.switched", failed):
        assert each in shown
    assert url("change", "other") not in shown
    assert "There is no cause" in read(operator, url("cause", "0" * 16), 404)


@pytest.mark.parametrize(("span", "days"), [("day", 0.5), ("week", 5), ("month", 25)])
def test_the_chart_of_a_cause_shows_a_day_a_week_or_a_month(
    failed: str, operator: Client, span: str, days: float
) -> None:
    Failure.objects.update(failed_at=timezone.now() - timedelta(days=days))
    page, drawn = url("cause", failed), dict[str, bool]()
    for each in ("day", "week", "month", "none"):
        text = read(operator, f"{page}?span={each}")
        drawn[each] = "durable-fill-bad" in text
        assert text.count('aria-current="true">The last') == 1
    order = ["day", "week", "month"]
    assert drawn == {each: order.index(each) >= order.index(span) for each in order} | {"none": span == "day"}


def test_a_muted_cause_is_no_longer_on_the_overview(failed: str, operator: Client) -> None:
    answer = operator.post(url("save_cause", failed, "mute"), {"reason": "the bank knows"}, follow=True)
    assert "It is muted." in answer.content.decode()
    cause = Cause.objects.get(fingerprint=failed)
    assert (cause.muted_at is not None, cause.muted_by) == (True, "ada")
    assert "GatewayTimeout" not in read(operator, OVERVIEW)
    everything = read(operator, url("causes"))
    assert everything.index("CriticalError") < everything.index("Muted") < everything.index("GatewayTimeout")
    operator.post(url("save_cause", failed, "unmute"))
    assert "GatewayTimeout" in read(operator, OVERVIEW)
    logged = OperatorAction.objects.order_by("id").values_list("action", "outcome", "reason", "actor_label")
    assert list(logged) == [("mute", "done", "the bank knows", "ada"), ("unmute", "done", "", "ada")]
    [(kind, name, detail), _] = OperatorAction.objects.order_by("id").values_list("subject_kind", "subject", "detail")
    assert (kind, name) == ("cause", failed)
    assert f"cause {failed}: charge GatewayTimeout" in detail


def test_a_note_tells_other_operators_that_somebody_looks_at_a_cause(
    failed: str, operator: Client, log_in: Callable[..., Client]
) -> None:
    address, text = url("save_cause", failed, "note"), "being looked at <3:10>"
    operator.post(address, {"note": "mine"})
    operator.post(address, {"note": ""})
    cause = Cause.objects.get(fingerprint=failed)
    assert (cause.note, cause.noted_by, cause.noted_at) == ("", "", None)
    assert "The note is saved." in operator.post(address, {"note": f" {text} "}, follow=True).content.decode()
    assert operator.post(address, {"note": "x" * 1001}).status_code == 422
    cause = Cause.objects.get(fingerprint=failed)
    assert (cause.note, cause.noted_by, cause.noted_at is not None) == (text, "ada", True)
    viewer = log_in("view_run", name="bob")
    for shown in (OVERVIEW, url("causes"), url("cause", failed)):
        assert text in read(viewer, shown)
        assert "ada" in read(viewer, shown)
    assert b"being looked at &lt;3:10&gt;" in viewer.get(url("cause", failed)).content
    assert viewer.post(address, {"note": "me too"}).status_code == 403
    assert text in read(log_in(*OPERATOR, name="eve"), "/admin/")
    logged = OperatorAction.objects.order_by("id").values_list("action", "outcome", "actor_label")
    assert list(logged) == [*[("note", "done", "ada")] * 3, ("note", "denied", "bob")]
    last = OperatorAction.objects.order_by("id")[2]
    assert last.detail == f"cause {failed}: charge GatewayTimeout: {text}"


def test_without_failed_runs_there_are_no_causes(stage: Stage, operator: Client) -> None:
    assert "None: no run is failed" in read(operator, url("causes"))
    assert "durable-spark" not in read(operator, OVERVIEW)


def test_a_cause_that_does_not_exist_cannot_be_muted(stage: Stage, operator: Client) -> None:
    assert operator.post(url("save_cause", "0" * 16, "mute")).status_code == 404
    assert operator.post(url("save_cause", "0" * 16, "praise")).status_code == 404
    assert list(OperatorAction.objects.values_list("action", "outcome")) == [("mute", "invalid")]


def test_a_user_who_may_only_see_runs_gets_no_pattern_and_no_verbs(failed: str, log_in: Callable[..., Client]) -> None:
    viewer = log_in("view_run")
    for address in (OVERVIEW, url("causes"), url("cause", failed)):
        shown = read(viewer, address)
        assert "GatewayTimeout" in shown
        assert "no answer for #" not in shown
        assert "Recover these" not in shown
        assert 'value="Mute"' not in shown
    assert "In the list" in read(viewer, OVERVIEW)
    assert viewer.get(retry_url(failed)).status_code == 403
    assert OperatorAction.objects.count() == 0
    assert viewer.post(url("save_cause", failed, "mute")).status_code == 403
    assert list(OperatorAction.objects.values_list("action", "outcome")) == [("mute", "denied")]


def hide_all(_workflow: str, field: str, value: object) -> object:
    return "hidden" if field == "error" else value


@override_settings(DURABLE={"REDACT": "tests.admin.test_causes.hide_all"})
def test_a_pattern_is_redacted(failed: str, operator: Client) -> None:
    for address in (OVERVIEW, url("causes"), url("cause", failed)):
        assert "no answer" not in read(operator, address)
