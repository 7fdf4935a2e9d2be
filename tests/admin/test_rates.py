"""The rates on the pages of limits: what waits and what is closed; and the verbs that set, close and open."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from durable import Context, workflow
from durable.core.limits.rates import counted, nanoseconds
from durable.models import RateKey
from tests.admin.conftest import Stage
from tests.admin.pages import confirm, log_url, read, statements, text_of, url

pytestmark = [pytest.mark.django_db]
TENANT = "<b>acme</b> 🎉"


@workflow(name="tests.rated_call")
def rated_call(ctx: Context, name: str) -> str:
    return ctx.step("call", lambda: name, rate=f"openai/{TENANT}")


@pytest.fixture(autouse=True)
def three_runs(stage: Stage, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"openai": {"rate": "1/hour"}}}
    for name in ("first", "second", "third"):
        stage.start(rated_call, name, id=name)


def test_what_waits_for_its_moment(operator: Client) -> None:
    page = text_of(operator.get(url("limits")))
    for expected in (">openai<", "1/hour", "runs wait", "&lt;b&gt;acme&lt;/b&gt; 🎉"):
        assert expected in page, expected
    assert "<b>acme" not in page
    page = text_of(operator.get(url("limit", "openai")))
    for expected in (">second<", ">third<", "1/hour"):
        assert expected in page, expected
    assert ">first<" not in page
    assert url("limit_act", "openai", "close") not in page, "this operator may not"
    assert "Rate openai/" in text_of(operator.get(url("change", "third")))


def test_a_step_that_waits_for_its_turn_does_not_run(operator: Client) -> None:
    page = text_of(operator.get(url("change", "third")))
    timeline = page.partition('id="timeline-table"')[2].partition("</table>")[0]
    assert re.search(r"<td[^>]*>waiting [^<]+</td>", timeline)
    assert re.search('<rect class="durable-fall-wait"', timeline)
    assert "running" not in timeline


def test_the_last_minute_is_a_line(operator: Client) -> None:
    later = timezone.now() + timedelta(hours=1)  # however long the page takes
    RateKey.objects.update(recent=counted("", nanoseconds(later), 7))
    page = text_of(operator.get(url("limit", "openai")))
    assert "Units begun in the last minute" in page
    assert re.search(r'<polyline class="durable-stroke-run" points="0\.0,100\.0 9\.1,100\.0 [^"]* 100\.0,12\.5"', page)
    assert "7 units begun in the last minute" in page
    assert '<tr><th scope="row">5</th><td class="durable-number">7</td></tr>' in page


def test_the_command_of_a_verb_names_the_key(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "change_limit")
    for verb, expected in (
        ("close", "close-limit openai '10 minutes' --key acme"),
        ("open", "open-limit openai --key acme"),
    ):
        page = read(client, url("limit_act", "openai", verb) + "?key=acme")
        assert f"python manage.py durable {expected}" in page
    assert "--key" not in text_of(client.get(url("limit_act", "openai", "set-rate") + "?key=acme"))


def test_an_operator_sets_a_rate_and_takes_it_back(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "change_limit")
    address = url("limit_act", "openai", "set-rate")
    assert address in text_of(client.get(url("limit", "openai")))
    given = {"rate": "2/hour", "burst": "1", "reason": "they bought more"}
    assert "The rate is set." in text_of(confirm(client, address, given, follow=True))
    assert "An operator has set this rate" in text_of(client.get(url("limit", "openai")))
    assert "please correct" in text_of(confirm(client, address, {**given, "rate": "often"}), 422)
    back = url("limit_act", "openai", "take-back-rate")
    assert "that the code says." in text_of(confirm(client, back, follow=True))


def test_an_operator_closes_and_opens(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "change_limit")
    address = url("limit_act", "openai", "close")
    given = {"duration": "10 minutes", "key": "", "reason": "they are down"}
    assert "The limit is closed." in text_of(confirm(client, address, given, follow=True))
    page = text_of(client.get(url("limits")))
    assert "closed" in page
    assert "they are down" in page
    assert "they are down" in text_of(client.get(url("change", "third")))
    back = url("limit_act", "openai", "open")
    assert "The limit is open." in text_of(confirm(client, back, key="", follow=True))
    assert "they are down" not in text_of(client.get(url("limits")))
    assert "please correct" in text_of(confirm(client, address, duration="soon", key=""), 422)


def test_a_key_that_no_page_lists_is_opened_too(log_in: Callable[..., Client]) -> None:
    soon = timezone.now() + timedelta(hours=1)
    RateKey.objects.bulk_create(
        RateKey(limit="openai", key=f"k{number:03}", closed_until=soon, closed_by="ada") for number in range(150)
    )
    client = log_in("view_run", "change_limit")
    assert "k149" not in text_of(client.get(url("limit", "openai")))
    address = url("limit_act", "openai", "open") + "?key=k149"
    assert "The limit is open." in text_of(confirm(client, address, key="k149", follow=True))
    assert RateKey.objects.filter(closed_until__isnull=True, key="k149").exists()
    assert f'limit <a href="{url("limit", "openai")}"><bdi>openai</bdi></a>' in text_of(client.get(log_url()))


def test_the_form_of_a_verb_reads_no_key_that_it_does_not_show(log_in: Callable[..., Client]) -> None:
    client = log_in("view_run", "change_limit")
    for verb, most in (("set-rate", 1), ("open", 2)):  # whether all keys are closed, and the key of the address
        made = statements(client, url("limit_act", "openai", verb))
        assert not any('"durable_reservation"' in each for each in made)
        assert sum('"durable_ratekey"' in each for each in made) <= most
