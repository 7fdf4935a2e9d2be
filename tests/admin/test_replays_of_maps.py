"""Replays of failed runs that start children again.

The pages say beforehand how many, and the bulk's page says it afterwards.
"""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import translation

from durable.models import OperatorAction, Run
from durable.operations import eligibility
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import hidden, text_of, url

pytestmark = pytest.mark.django_db

NOTE = (
    "8 children of &quot;tests.bill&quot; are started again, as new runs with new idempotency keys: what those before did "
    "stays, and is done again"
)
ALL = {"verb": "replay", "all": "on", "filter": "?workflow=tests.stopping"}


@pytest.fixture
def failures(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Runs "one" and "two", which have failed in maps of four children each, and "plain", which has none."""
    monkeypatch.setitem(flows.SWITCH, "broken", True)
    for run_id in ("one", "two"):
        stage.start(flows.stopping, 4, id=run_id)
        for number in range(3):
            stage.settle(f"{run_id}:bills:{number}")
            if Run.objects.get(pk=f"{run_id}:bills:{number}").state == "failed":
                break
        assert stage.settle(run_id).state == "failed"
    assert stage.start(flows.switched, id="plain").state == "failed"
    monkeypatch.setitem(flows.SWITCH, "broken", False)
    stage.advance(seconds=1)
    return stage


@pytest.mark.parametrize("how", ["ids", "filter"])
def test_the_confirmation_and_the_result_say_how_many(failures: Stage, operator: Client, how: str) -> None:
    chosen = {"verb": "replay", "id": ["one", "two", "plain"]} if how == "ids" else ALL
    before = Run.objects.count()
    page = operator.post(url("bulk"), chosen)
    text = text_of(page)
    assert f"{NOTE}." in text
    assert text.index(NOTE) < text.index('type="submit" value="Replay"'), "it comes before the button"
    assert Run.objects.count() == before
    answer = operator.post(url("bulk"), {**hidden(page), **chosen, "reason": "paper is back"})
    assert answer.status_code == 302
    for order in Run.objects.filter(workflow="durable.bulk"):
        failures.settle(order.id)
    made = Run.objects.filter(replay_of__in=["one", "two"])
    assert made.count() == 2
    result = text_of(operator.get(answer["Location"]))
    assert "<dt>Children that are started again</dt><dd>8</dd>" in result
    details = OperatorAction.objects.filter(run_id__in=["one", "two"], outcome="done").values_list("detail", flat=True)
    assert all(each.endswith("; 4 children are started again") for each in details)


def test_beyond_its_bound_it_says_for_how_many_runs(
    failures: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eligibility, "LOOKED_AT", 1)
    text = text_of(operator.post(url("bulk"), ALL))
    assert "4 children of &quot;tests.bill&quot; are started again" in text
    assert "This was counted for 1 of 2 runs: the others may start more." in text


def test_a_bulk_that_starts_none_says_nothing(failures: Stage, operator: Client) -> None:
    page = operator.post(url("bulk"), {"verb": "replay", "id": ["plain"]})
    assert "started again" not in text_of(page)
    answer = operator.post(url("bulk"), {**hidden(page), "verb": "replay", "id": ["plain"], "reason": "again"})
    assert "started again" not in text_of(operator.get(answer["Location"]))
    assert "started again" not in text_of(operator.post(url("bulk"), {**ALL, "verb": "recover"}))


def test_the_page_of_one_run_says_it_too(failures: Stage, operator: Client) -> None:
    assert "4 children of &quot;tests.bill&quot; are started again" in text_of(
        operator.get(url("act", "one", "replay"))
    )
    assert "started again" not in text_of(operator.get(url("act", "plain", "replay")))


def test_it_is_said_in_german(failures: Stage, operator: Client) -> None:
    with translation.override("de"):
        operator.cookies.load({"django_language": "de"})
        text = text_of(operator.post(url("bulk"), ALL))
    assert "8 Kinder von" in text
    assert "are started again" not in text
