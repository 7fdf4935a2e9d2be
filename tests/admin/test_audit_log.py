"""The audit log in the admin: a bulk is one row, and the log is searched by person, verb, reason and day."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from durable.models import OperatorAction
from durable.operations import Actor, acting_as, bulk
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import log_url, text_of, url

DAY = datetime(2026, 3, 5, 12, tzinfo=UTC)


def rows(client: Client, **query: str) -> list[tuple[str, str]]:
    page = client.get(log_url(), query)
    assert page.status_code == 200
    return [(each.action, each.run_id) for each in page.context["cl"].result_list]


def an_action(**columns: Any) -> OperatorAction:
    given = {"action": "wake", "source": "cli", "outcome": "done", "run_id": "run", "created_at": DAY, **columns}
    return OperatorAction.objects.create(**given)


def test_a_bulk_is_one_row_that_leads_to_its_result(stage: Stage, operator: Client) -> None:
    for name in ("a", "b"):
        stage.start(flows.approve, id=name)
    with acting_as(Actor("cli", label="ops")):
        report = bulk.apply("pause", ["a", "b", "nowhere"])
    an_action(run_id="alone")
    assert rows(operator) == [("pause", report.bulk_id), ("wake", "alone")]
    body = text_of(operator.get(log_url()))
    assert url("bulk_result", report.bulk_id) in body
    assert "bulk: pause 3 runs" in body


def test_the_rows_of_a_bulk_are_found_by_bulk_by_run_and_by_outcome(stage: Stage, operator: Client) -> None:
    for name in ("a", "b"):
        stage.start(flows.approve, id=name)
    with acting_as(Actor("cli", label="ops")):
        report = bulk.apply("pause", ["a", "b", "nowhere"], as_id="the-bulk")
    assert sorted(rows(operator, bulk=report.bulk_id)) == [
        ("pause", each) for each in ("a", "b", "nowhere", "the-bulk")
    ]
    assert rows(operator, q="a") == [("pause", "a")]
    assert rows(operator, outcome="missing") == [("pause", "nowhere")]
    assert rows(operator, bulk=report.bulk_id, outcome="missing") == [("pause", "nowhere")]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("schedule", "billing.nightly"),
        ("schedule", 'of "the" <b>'),
        ("queue", "slow"),
        ("workflow", "shop.order"),
        ("limit", "crm"),
        ("cause", "0123456789abcdef"),
    ],
)
def test_an_action_that_is_not_about_a_run_names_what_it_is_about(operator: Client, kind: str, name: str) -> None:
    action = an_action(run_id="", subject_kind=kind, subject=name, detail="4 at once before")
    link = f'{kind} <a href="{url(kind, name)}"><bdi>{escape(name)}</bdi></a>'
    assert link in text_of(operator.get(log_url()))
    assert link in text_of(operator.get(log_url("change", action.pk)))


def test_a_refused_action_and_one_of_another_kind_show_their_detail(operator: Client) -> None:
    an_action(run_id="", subject_kind="queue", subject="slow", outcome="refused", detail="it is paused already")
    an_action(run_id="", detail="view stuck orders: state=failed")
    an_action(run_id="")
    body = text_of(operator.get(log_url()))
    assert "it is paused already</td>" in body
    assert "view stuck orders: state=failed</td>" in body
    assert ">—</td>" in body


def test_by_person(operator: Client) -> None:
    olga = User.objects.create_user("olga")
    an_action(run_id="by-olga", actor=olga, actor_label="olga")
    an_action(run_id="by-cron", actor_label="cron of olga")
    assert rows(operator, person="olga") == [("wake", "by-olga")]
    assert rows(operator, person="CRON") == [("wake", "by-cron")]
    assert rows(operator, person="nobody") == []


def test_by_verb_reason_and_day_together(operator: Client) -> None:
    an_action(run_id="before", reason="Bank is back", created_at=DAY - timedelta(days=1))
    an_action(run_id="that-day", reason="the bank is back")
    an_action(run_id="another-reason", reason="night")
    an_action(run_id="another-verb", reason="the bank is back", action="pause")
    an_action(run_id="after", reason="the bank is back", created_at=DAY + timedelta(days=1))
    assert rows(operator, reason="bank", action="wake") == [("wake", "after"), ("wake", "that-day"), ("wake", "before")]
    day = {"since": "2026-03-05", "until": "2026-03-05"}
    assert rows(operator, **day, reason="BANK", action="wake") == [("wake", "that-day")]
    assert rows(operator, since="2026-03-06") == [("wake", "after")]


def test_a_reason_of_long_ago_is_found_before_its_day(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable.admin.audit_log._WINDOW", 3)
    an_action(run_id="old", reason="the bank")
    for number in range(5):
        an_action(run_id=f"new-{number}", created_at=DAY + timedelta(days=1))
    assert rows(operator, reason="bank") == []
    assert rows(operator, reason="bank", until="2026-03-05") == [("wake", "old")]


@pytest.mark.parametrize("name", ["person", "reason", "since", "until", "bulk"])
def test_hostile_filters_are_answered(operator: Client, name: str) -> None:
    for value in ("\x00", "x" * 5_000, "2026-13-45", "0001-01-01", "9999-12-31", "<b>", "\u202e", "%_"):
        assert operator.get(log_url(), {name: value}).status_code == 200, value


def test_a_filter_keeps_the_others(operator: Client) -> None:
    query = {"person": "olga", "action": "wake"}
    body = text_of(operator.get(log_url(), query))
    assert '<input type="hidden" name="person" value="olga">' in body
    assert 'value="olga" maxlength="200"' in body


def test_no_counts_of_the_whole_log_are_offered(operator: Client) -> None:
    an_action()
    for query in ({}, {"_facets": "True"}):
        assert operator.get(log_url(), query).context["cl"].add_facets is False


def test_a_row_of_a_bulk_has_a_page_too(operator: Client) -> None:
    row = an_action(action="Recover, by", bulk_id="many")
    for name in ("change", "history"):
        page = operator.get(reverse(f"admin:durable_operatoraction_{name}", args=[row.pk]), follow=True)
        assert "Recover, by" in text_of(page)
        assert url("bulk_result", "many") in text_of(page)
    for missing in ("0", "x", "9" * 30):
        page = operator.get(log_url("change", missing))
        assert "There is no such action" in text_of(page, 404)


def test_it_looks_like_the_other_pages_and_says_what_it_is_filtered_by(operator: Client) -> None:
    an_action(action="give_output")
    body = text_of(operator.get(log_url(), {"action": "give_output", "person": "olga", "q": "gone"}))
    assert 'class="durable-tabs durable-places"' in body
    assert "nav-sidebar" not in body.partition("<main")[2]
    assert "action: give output" in body
    assert 'href="?action=give_output&amp;q=gone"' in body or 'href="?q=gone&amp;action=give_output"' in body
    assert "give_output</option>" not in body
    assert "The log has no such action." in body
    assert "give output" in text_of(operator.get(log_url(), {"action": "give_output"}))
