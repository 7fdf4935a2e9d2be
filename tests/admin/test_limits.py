"""The pages of limits: what is full, who holds it, who waits; and how an operator sets a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from durable import Context, Limit, workflow
from durable.conf import conf
from durable.models import Limit as LimitRow
from durable.models import RateLimit
from durable.store import store_for
from tests.admin.conftest import Stage
from tests.admin.pages import confirm, statements, text_of, url

pytestmark = [pytest.mark.django_db]


@workflow(name="tests.one_at_a_time", limit=Limit("crm", at_once=1, key=lambda tenant: tenant, hold="open"))
def one_at_a_time(ctx: Context, tenant: str) -> None:
    """Waits for ever."""
    ctx.queue.next("never")


TENANT = "<b>acme</b>/\u202e 🎉"


def two_runs(stage: Stage) -> None:
    for name in ("first", "second"):
        stage.start(one_at_a_time, TENANT.replace("\u202e", ""), id=name)


def test_what_is_full_who_holds_it_and_who_waits(operator: Client, stage: Stage) -> None:
    assert "There is no limit yet" in text_of(operator.get(url("limits")))
    two_runs(stage)
    page = text_of(operator.get(url("limits")))
    for expected in (">crm<", "runs wait", "&lt;b&gt;acme&lt;/b&gt;/ 🎉"):
        assert expected in page, expected
    assert "<b>acme" not in page
    page = text_of(operator.get(url("limit", "crm")))
    for expected in (
        "It allows 1 slot of each key at once.",
        ">first<",
        ">second<",
        "number 1 in line",
        "the workflow",
    ):
        assert expected in page, expected
    assert url("limit_act", "crm", "set") not in page, "this operator may not"
    assert "Number 1 in line for limit crm/" in text_of(operator.get(url("change", "second")))


def test_an_operator_sets_a_number_and_takes_it_back(log_in: Callable[..., Client], stage: Stage) -> None:
    client = log_in("view_run", "change_limit")
    two_runs(stage)
    address = url("limit_act", "crm", "set")
    assert address in text_of(client.get(url("limit", "crm")))
    answer = confirm(client, address, at_once="2", reason="they bought more", follow=True)
    assert "The number is set." in text_of(answer)
    store_for(conf.DATABASE).sweep_slots(stage.now, 100)
    page = text_of(client.get(url("limit", "crm")))
    assert "An operator has set this number; the code says 1." in page
    assert "in line" not in page
    assert "please correct" in text_of(confirm(client, address, at_once="-1"), 422)
    assert "what the code says." in text_of(confirm(client, url("limit_act", "crm", "take-back"), follow=True))
    assert LimitRow.objects.get(name="crm").override is None


def test_a_page_reads_its_lines_once_and_the_form_of_a_verb_none(log_in: Callable[..., Client], stage: Stage) -> None:
    client = log_in("view_run", "change_limit")
    two_runs(stage)
    RateLimit.objects.create(name="crm", rate="1/s", spacing=1_000_000_000)
    for address, number in (
        # the keys that wait longest and the others, the lines of all, and the held and waiting slots of one
        (url("limit", "crm"), 5),
        (url("limits"), 3),
        (url("limit_act", "crm", "set"), 0),
    ):
        assert sum("durable_slot" in each for each in statements(client, address)) == number, address


def test_a_limit_that_there_is_not(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "change_limit")
    assert "There is no limit" in text_of(client.get(url("limit", "none")), 404)
