"""The zone in which pages tell moments.

It is the one that a middleware has chosen, else the browser's by a cookie, else the project's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from durable import Context, Schedule, acting_as, workflow
from durable.admin.moments import COOKIE
from durable.models import OperatorAction, Run
from durable.operations.audit import Actor
from durable.operations.schedules.verbs import run_now

pytestmark = pytest.mark.django_db

BERLIN = "Europe/Berlin"
EARLY = datetime(2026, 1, 1, 11, 30, tzinfo=UTC)
AUCKLAND = f"{__name__}.in_auckland"


@workflow(name="tests.zone.job")
def job(ctx: Context) -> None:
    return None


def in_auckland(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware of a project that knows the zone of its users."""

    def answer(request: HttpRequest) -> HttpResponse:
        with timezone.override("Pacific/Auckland"):
            return get_response(request)

    return answer


def shown(client: Client, address: str, zone: str | None = None) -> str:
    if zone is not None:
        client.cookies[COOKIE] = zone
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def schedule() -> str:
    """The address of a schedule's page."""
    Schedule.objects.create(name="s", workflow=job.name, rule="0 12 15 1 *")
    return reverse("admin:durable_run_schedule", args=["s"])


def test_a_cookie_names_the_zone_of_the_page(admin_client: Client, schedule: str) -> None:
    in_utc = re.compile(r"<time [^>]*>[^<]*12:00 UTC")  # the clock of the rule stands beside it
    assert in_utc.search(shown(admin_client, schedule))
    page = shown(admin_client, schedule, BERLIN)
    assert "13:00 CET" in page
    assert not in_utc.search(page)
    assert f"In the zone of this page, {BERLIN}." in page
    assert f'data-zone="{timezone.get_default_timezone_name()}" data-root="/admin/"' in page
    assert timezone.get_current_timezone_name() == timezone.get_default_timezone_name(), "it ends with the answer"


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "../../../etc/passwd", "/etc/localtime", "Europe", "x" * 5_000, "Europe/Berlin\x00", "é"],
)
def test_a_cookie_that_names_no_zone_is_ignored(admin_client: Client, schedule: str, zone: str) -> None:
    assert "12:00 UTC" in shown(admin_client, schedule, zone)


def test_a_zone_that_the_project_has_chosen_comes_first(admin_client: Client, schedule: str) -> None:
    from django.conf import settings

    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, AUCKLAND]):
        page = shown(admin_client, schedule, BERLIN)
    assert "01:00 NZDT" in page
    assert " CET" not in page


def test_the_overview_and_the_audit_log_are_in_the_zone_too(admin_client: Client, schedule: str) -> None:
    with acting_as(Actor("cli", label="ops"), reason="look"):
        run_now("s")
    OperatorAction.objects.update(created_at=datetime(2025, 7, 1, 12, tzinfo=UTC))
    [action] = OperatorAction.objects.all()
    admin_client.cookies[COOKIE] = BERLIN
    for address in (
        reverse("admin:durable_operatoraction_changelist"),
        reverse("admin:durable_operatoraction_change", args=[action.pk]),
    ):
        assert "14:00 CEST" in shown(admin_client, address)
    assert f" {datetime.now(ZoneInfo(BERLIN)).tzname()}" in shown(
        admin_client, reverse("admin:app_list", args=["durable"])
    )


def test_a_moment_in_a_filter_gets_the_offset_of_the_viewer(admin_client: Client) -> None:
    Run.objects.create(id="early", workflow="w", state="paused", input="{}", created_at=EARLY)
    admin_client.cookies[COOKIE] = BERLIN
    answer = admin_client.get("/admin/durable/run/", {"created_from": "2026-01-01T12:00", "state": "paused"})
    assert answer.status_code == 302
    assert answer["Location"] == "?created_from=2026-01-01T12%3A00%3A00%2B01%3A00&state=paused"
    address = f"/admin/durable/run/{answer['Location']}"
    page = shown(admin_client, address)
    assert "early" in page
    assert 'value="2026-01-01T12:00:00"' in page
    for other in ("Asia/Tokyo", "UTC"):
        assert "early" in shown(admin_client, address, other), "the same runs for everybody who has the address"
    wrong = admin_client.get("/admin/durable/run/", {"created_from": "soon"})
    assert wrong.status_code == 200


def test_a_page_that_answers_a_post_is_not_asked_for_again(admin_client: Client, schedule: str) -> None:
    answer = admin_client.post(reverse("admin:durable_run_schedule_act", args=["s", "backfill"]), {"since": "soon"})
    assert answer.status_code == 422
    assert b"data-root" not in answer.content
