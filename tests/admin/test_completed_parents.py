"""A parent that has completed with failed children: its page, their recovery, and replays of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from durable import get_run
from durable.models import Run
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import hidden, text_of, url

pytestmark = pytest.mark.django_db

CHILDREN = [f"night-1:bills:{number}" for number in range(4)]
RECOVER = "python manage.py durable recover --children-of night-1"
STAYS = "2 of its 4 children have failed; its output stays as it is"
GIVE = "Give the output of this step by hand instead"


@pytest.fixture
def night(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The parent "night-1" has completed; two of its four children have failed, and would complete by now."""
    monkeypatch.setitem(flows.SWITCH, "broken", True)
    stage.start(flows.night, 4, id="night-1")
    for child in CHILDREN:
        stage.settle(child)
    assert stage.settle("night-1").state == "completed"
    monkeypatch.setitem(flows.SWITCH, "broken", False)
    stage.advance(seconds=1)
    return stage


def recovered(night: Stage, operator: Client) -> str:
    """Recover the failed children with the bulk of the page; return its id."""
    page = operator.get(operator.get(url("change", "night-1")).context["recover_children_url"])
    assert operator.post(url("bulk"), {**hidden(page), "reason": "a new card"}).status_code == 302
    [order] = Run.objects.filter(workflow="durable.bulk")
    night.settle(order.id)
    for child in CHILDREN[1:3]:
        assert night.settle(child).state == "completed"
    night.advance(seconds=1)
    return order.id


def test_the_page_says_it_and_has_the_command(night: Stage, operator: Client) -> None:
    page = operator.get(url("change", "night-1"))
    assert f"{STAYS}: {RECOVER}" in page.context["explanation"].detail
    assert RECOVER in page.context["copies"]
    assert STAYS in text_of(page)
    recovered(night, operator)
    page = operator.get(url("change", "night-1"))
    assert RECOVER not in page.context["copies"]
    assert STAYS not in text_of(page)


def test_the_recovery_of_its_children_says_that_its_output_stays(night: Stage, operator: Client) -> None:
    address = operator.get(url("change", "night-1")).context["recover_children_url"]
    text = text_of(operator.get(address))
    assert "the failed children of night-1, which has completed. Its output stays as it is." in text
    assert "if it has failed too" not in text
    assert RECOVER in text
    assert f"{RECOVER} --group bills" in text_of(operator.get(f"{address}&group=bills"))
    before = Run.objects.values().get(pk="night-1")
    order = recovered(night, operator)
    assert Run.objects.values().get(pk="night-1") == before
    for page in (url("bulk_result", order), url("change", order)):
        text = text_of(operator.get(page))
        assert "failed children of &quot;night-1&quot;, which has completed: its output stays as it is" in text
        assert "if it has failed too" not in text


def test_a_replay_from_the_map_says_first_what_it_starts_again(night: Stage, operator: Client) -> None:
    page = operator.get(f"{url('replay', 'night-1')}?at=bills")
    text = text_of(page)
    assert "4 children of &quot;tests.bill&quot; are started again, as new runs with new idempotency keys" in text
    look, title, names, more = page.context["parts"][0]
    assert (look, title, names, more) == ("grave", "Children that are started again", ["bills: 4 of tests.bill"], 0)
    assert Run.objects.filter(workflow="tests.bill").count() == 4
    assert "started again" not in text_of(operator.get(f"{url('replay', 'night-1')}?at=report"))


def test_an_output_can_be_given_for_a_step_alone(night: Stage, log_in: Callable[..., Client]) -> None:
    boss = log_in(*OPERATOR, "give_output")
    for location, is_offered in (("bills", False), ("report", True), ("numbers", True)):
        assert (GIVE in text_of(boss.get(f"{url('replay', 'night-1')}?at={location}"))) is is_offered, location


def test_a_replay_in_place_from_behind_the_children_still_says_what_was_recovered(
    night: Stage, operator: Client
) -> None:
    """The report is made anew of what the map has recorded, which knows nothing of the recoveries."""
    recovered(night, operator)
    said = "2 of these were recovered after this run had ended, last by ada: a new card"
    assert said in text_of(operator.get(url("change", "night-1")))
    get_run("night-1").replay("report", in_place=True)
    assert night.settle("night-1").output is not None
    assert get_run("night-1").result() == {"failed": 2}
    said = "2 of these were recovered after this run had read how they ended, last by ada: a new card"
    assert said in text_of(operator.get(url("change", "night-1")))


def test_a_replay_in_place_that_reads_the_children_anew_says_nothing_of_recoveries(
    night: Stage, operator: Client
) -> None:
    recovered(night, operator)
    get_run("night-1").replay("bills", in_place=True)
    night.settle("night-1")
    for child in Run.objects.filter(workflow="tests.bill", state="pending").values_list("id", flat=True):
        night.settle(child)
    assert night.settle("night-1").state == "completed"
    assert get_run("night-1").result() == {"failed": 0}
    assert Run.objects.filter(workflow="tests.bill").count() == 8
    assert "recovered after" not in text_of(operator.get(url("change", "night-1")))
