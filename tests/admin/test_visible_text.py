"""Names, texts and moments that hide, reorder or cannot be read are shown on every page; and the zone of moments."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.db import connection, models
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from durable import Context, Schedule, get_run, workflow
from durable.admin.moments import COOKIE
from durable.admin.text import with_visible_text
from durable.core.errors import CriticalError
from durable.inspection.wording import command
from durable.models import EntryMetadata, Failure, OperatorAction, QueueMessage, Run, WorkerProcess
from durable.operations import acting_as
from durable.operations.audit import Actor
from durable.operations.schedules.verbs import run_now
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.flows import value_of
from tests.admin.pages import log_url, text_of, url
from tests.api.conftest import ALL, MakeApi, make_api  # noqa: F401  # a fixture
from tests.cli.conftest import Shell, shell  # noqa: F401  # a fixture
from tests.support.databases import only_with_a_server
from tests.support.worker import a_worker

pytestmark = pytest.mark.django_db


HEBREW = "\u05d0\u05d1\u05d2"
EVIL = f"a/\u202e b\u2066\u200dc \N{FAMILY} {HEBREW}"
RAW = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]|a\u200d|\u200dc")
CODE = r"a/\u202e b\u2066\u200dc"


@workflow(name=f"tests.hostile {EVIL}")
def hostile(ctx: Context) -> None:
    ctx.step(EVIL, value_of, EVIL)
    ctx.queue.next(f"wait {EVIL}", names=[EVIL])
    raise CriticalError(EVIL)


def texts_of(page: str) -> str:
    """The page without values of attributes, text areas and options."""
    page = re.sub(r"<textarea.*?</textarea>|<title>.*?</title>|<option.*?</option>", "", page, flags=re.DOTALL)
    return re.sub(r"<(?!/?bdi>)[^>]*>", "|", page)


def test_every_page_isolates_hostile_names(stage: Stage, operator: Client) -> None:
    run_id = f"run-{HEBREW}"
    stage.start(hostile, id=run_id)
    sending = operator.get(url("send", run_id))
    get_run(run_id).send(EVIL, EVIL)
    run = stage.settle(run_id)
    assert run.state == "failed", run.summary
    location = "a%2F" + EVIL[2:]
    at = "?at=" + location.replace("%", "%25")
    addresses = [url("changelist"), url("overview"), "/admin/durable/", url("act", run_id, "recover")]
    addresses += [url("change", run_id), url("live", run_id), url("step", run_id) + at, url("replay", run_id) + at]
    for page in [sending, *(operator.get(address) for address in addresses)]:
        text = texts_of(text_of(page))
        assert RAW.search(text) is None, page.request["PATH_INFO"]
        assert CODE in text, page.request["PATH_INFO"]
        isolated = re.sub(r"<bdi>[^<]*</bdi>", "", text)
        assert HEBREW not in isolated, page.request["PATH_INFO"]


def test_the_audit_log_too(stage: Stage, operator: Client) -> None:
    stage.start(hostile, id=f"run-{HEBREW}")
    get_run(f"run-{HEBREW}").cancel(reason=EVIL)
    text = texts_of(text_of(operator.get("/admin/durable/operatoraction/")))
    assert CODE in text
    assert RAW.search(text) is None
    assert HEBREW not in re.sub(r"<bdi>[^<]*</bdi>", "", text)


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>plain</p>", "<p>plain</p>"),
        ("<b title='\u202e'>x</b>", "<b title='\u202e'>x</b>"),  # an attribute's value is sent back by forms
        ("<textarea>\u202e</textarea>", "<textarea>\u202e</textarea>"),
        ("<option>\u202e" + HEBREW + "</option>", r"<option>\u202e" + HEBREW + "</option>"),
        (
            f"<p>in {HEBREW} until 42, or {HEBREW}</p>",
            f"<p>in <bdi>{HEBREW}</bdi> until 42, or <bdi>{HEBREW}</bdi></p>",
        ),
        ("<p>\U0001f469\u200d\U0001f680 \u0915\u094d\u200d\u0937</p>",) * 2,  # what a joiner is there for
    ],
)
def test_texts_are_shown_and_values_stay(html: str, shown: str) -> None:
    assert with_visible_text(html) == shown


@pytest.mark.parametrize("word", [EVIL, "it's \\ \u202e1", "plain", "a b", "\x1b[2J", "\U000e0041x"])
def test_a_command_to_copy_holds_nothing_hidden_and_means_the_same(word: str) -> None:
    line = command("show", word)
    assert RAW.search(line) is None
    assert "\x1b" not in line
    quoted = line.removeprefix("python manage.py durable show ")
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    said = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True, env=environment)
    assert said.stdout.decode() == word


# -- A run with a time that Python cannot read is shown among the others, on every surface


UNREADABLE = (
    ["infinity", "-infinity", "20000-01-01 00:00:00+00"]
    if connection.vendor == "postgresql"
    else ["20000-01-01 00:00:00"]
)
LAST = "9999-12-31 23:59:59.999999"


@pytest.fixture(params=[*UNREADABLE, LAST])
def moment(request: pytest.FixtureRequest, stage: Stage) -> str:
    """A time of each kind that the run "odd" is due at; the run "plain" has a usual one."""
    stage.start(flows.nap, id="plain")
    stage.start(flows.nap, id="odd")
    given: str = request.param
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_run SET wake_at = %s WHERE id = 'odd'", [given])
    return given


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_admin_shows_both(operator: Client, moment: str, zone: str) -> None:
    expected = "before the year 1" if moment.startswith("-") else "after the year 9999"
    with override_settings(TIME_ZONE=zone):
        page = operator.get("/admin/durable/run/")
        assert page.status_code == 200
        assert {f"{run_id}" in page.content.decode() for run_id in ("plain", "odd")} == {True}
        page = operator.get("/admin/durable/run/odd/change/")
        assert page.status_code == 200
        assert expected in page.content.decode()


#: Every time that durable's tables have.
TIMES = [
    (model, field.name)
    for model in apps.get_app_config("durable").get_models()
    for field in model._meta.concrete_fields
    if isinstance(field, models.DateTimeField)
]
ADDRESSES = [
    *("/admin/durable/", "/admin/durable/run/", "/admin/durable/run/schedules/", "/admin/durable/run/running/"),
    *(f"/admin/durable/run/odd/change/{part}" for part in ("", "?part=history", "?part=timeline")),
]
PATHS = [
    *("/runs", "/runs/odd", "/runs/odd/entries", "/runs/odd/tree", "/runs/odd/timeline"),
    *("/schedules", "/workers", "/limits", "/queues"),
]
COMMANDS = [["list"], ["show", "odd"], ["why", "odd"], ["schedules"], ["workers"], ["limits"], ["running"], ["doctor"]]


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_no_time_that_sql_has_written_keeps_a_surface_from_answering(
    stage: Stage,
    operator: Client,
    make_api: MakeApi,  # noqa: F811
    shell: Shell,  # noqa: F811
    time: str,
) -> None:
    only_with_a_server()
    api = make_api(*ALL)
    stage.start(flows.nap, id="odd")
    stage.start(flows.nap, id="held", settle=False)
    stage.claim("held")
    stage.start(flows.broken_branch, id="failed")
    flows.approve.using(id="asked").start().send("approved")
    a_worker("host:4711:abc")
    with connection.cursor() as cursor:
        for model, name in TIMES:
            cursor.execute(f'UPDATE {model._meta.db_table} SET "{name}" = %s WHERE "{name}" IS NOT NULL', [time])
    read = {model for model, _ in TIMES if list(model._default_manager.all())}
    assert read >= {Run, EntryMetadata, Failure, QueueMessage, WorkerProcess}
    found = {each: operator.get(each).status_code for each in ADDRESSES}
    found |= {each: api.get(each).status_code for each in PATHS}
    assert set(found.values()) == {200}, found
    answered = {each[0]: shell(*each).status for each in COMMANDS}
    assert answered == {**dict.fromkeys(answered, 0), "doctor": 1}


@pytest.mark.usefixtures("moment")
def test_rest_and_the_command_line_list_both(make_api: MakeApi, shell: Shell) -> None:  # noqa: F811
    api = make_api(*ALL)
    assert {run["id"] for run in api.get("/runs").json()["results"]} == {"plain", "odd"}
    assert api.get("/runs/odd").status_code == 200
    assert set(shell("list", "-o", "ids").lines) == {"plain", "odd"}
    assert shell("list").status == 0
    assert shell("show", "odd").status == 0
    assert shell("why", "odd").status == 0
    assert Run.objects.count() == 2


# -- the zone in which pages tell moments


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
    return url("schedule", "s")


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
        log_url(),
        log_url("change", action.pk),
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
    answer = admin_client.post(url("schedule_act", "s", "backfill"), {"since": "soon"})
    assert answer.status_code == 422
    assert b"data-root" not in answer.content
