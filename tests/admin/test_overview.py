"""The overview: one sentence, a row with its list and its verb for all that needs a person, an ETag, and charts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durable import get_run
from durable.admin import charts, overview
from durable.admin.charts import ended_charts
from durable.admin.overview import Row, headline
from durable.inspection import findings
from durable.inspection.counting import Count
from durable.inspection.findings import Finding
from durable.inspection.runs import RunCriteria
from durable.models import Activity, Build, Cause, Failure, RollupProgress, Run, Schedule, Tick
from durable.operations import holds
from durable.operations.schedules.tick import tick_due
from tests.admin import flows
from tests.admin.addresses import a_hung_step
from tests.admin.conftest import Stage
from tests.admin.pages import confirm, read, statements, url
from tests.support.hourly import hourly_half_an_hour_from
from tests.support.rollups import settle

pytestmark = pytest.mark.django_db


OVERVIEW = "/admin/durable/"


@pytest.fixture(autouse=True)
def _broken() -> None:
    flows.SWITCH["broken"] = True


def attention(operator: Client) -> list[Row]:
    """The rows of what needs a person."""
    found: list[Row] = operator.get(url("overview")).context["rows"]
    return found


def row(*, is_cause: bool = True, is_new: bool = False, is_urgent: bool = True, title: str = "one") -> Row:
    columns = charts.spark([1]) if is_cause else ""
    return Row(
        key=title,
        title=title,
        url="",
        list_url="",
        count=Count(number=1),
        is_urgent=is_urgent,
        is_new=is_new,
        columns=columns,
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "Nothing needs a person"),
        ([row(is_urgent=False, is_cause=False)], "Nothing needs a person"),
        ([row()], "1 cause of failure needs a person"),
        ([row(is_new=True)], "1 cause of failure needs a person, and it is new"),
        ([row(), row(is_new=True), row()], "3 causes of failure need a person, 1 of them is new"),
        ([row(is_new=True), row(is_new=True)], "2 causes of failure need a person, all of them new"),
        ([row(is_cause=False, title="Redis is away")], "Redis is away"),
        ([row(is_cause=False), row(is_cause=False)], "2 findings need a person"),
        ([row(), row(), row(is_cause=False)], "2 causes of failure and 1 other finding need a person"),
    ],
)
def test_one_sentence_says_what_is_wrong(rows: list[Row], sentence: str) -> None:
    assert headline(rows) == sentence


def test_the_sentence_says_that_there_are_more_causes_than_rows() -> None:
    assert headline([row(), row()], has_more=True) == "2+ causes of failure need a person"
    assert headline([row(is_new=True), row()], further=3) == "5 causes of failure need a person"
    assert headline([row()], further=49, has_more=True) == "50+ causes of failure need a person"
    assert headline([row(), row(is_cause=False)], further=1) == (
        "2 causes of failure and 1 other finding need a person"
    )


def test_every_row_leads_to_a_list_and_to_a_verb_or_a_command(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="failed")
    stage.start(flows.quick, id="due", settle=False)
    stage.start(flows.approve, id="diverging")
    Run.objects.filter(pk="diverging").update(diverged_at=stage.now, wake_at=stage.now + timedelta(hours=1))
    stage.advance(minutes=3)
    shown = read(operator, OVERVIEW)
    rows = attention(operator)
    assert len(rows) >= 3
    for each in rows:
        assert each.list_url, each.title
        assert operator.get(each.list_url).status_code == 200
        assert each.list_url in shown
        assert each.verbs or each.command or each.advice, each.title
    for command in [each.command for each in rows if each.command]:
        assert f'<code class="durable-copy">{command}</code>' in shown


def test_causes_come_with_the_newest_incident_first(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="old")
    stage.advance(hours=1)
    stage.start(flows.saga, id="new")
    stage.advance(hours=1)
    stage.start(flows.switched, 2, id="old again")
    assert [each.title for each in attention(operator) if each.columns] == [
        "Code of the workflow itself · CriticalError",
        "charge · GatewayTimeout",
    ]


def test_a_cause_whose_runs_were_compensated_says_so(stage: Stage, operator: Client) -> None:
    stage.start(flows.saga, id="undone")
    assert "a recovery does the undone steps again" in read(operator, OVERVIEW)


def test_a_queue_that_no_run_needs_now_is_not_urgent(stage: Stage, operator: Client) -> None:
    assert all(not each.is_urgent for each in attention(operator))
    assert "Nothing needs a person" in read(operator, OVERVIEW)


def test_times_that_only_go_on_are_no_change(stage: Stage, operator: Client) -> None:
    stage.now = stage.now.replace(second=10, microsecond=0)
    stage.start(flows.switched, 1, id="failed")
    first = operator.get(url("overview"))
    known = {"If-None-Match": first["ETag"]}
    stage.advance(seconds=40)
    again = operator.get(url("overview"))
    assert again.content != first.content
    assert operator.get(url("overview"), headers=known).status_code == 304
    stage.start(flows.switched, 2, id="failed too")
    assert operator.get(url("overview"), headers=known).status_code == 200


def test_the_overview_costs_the_same_with_many_causes_and_queues(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="failed")
    stage.start(flows.quick, id="due", settle=False)
    before = len(statements(operator, url("overview")))
    for number in range(5):
        stage.start(flows.saga, number, id=f"other-{number}")
        stage.start(flows.quick, id=f"due-{number}", settle=False)
    assert len(statements(operator, url("overview"))) == before


def test_the_page_of_a_cause_names_where_its_runs_failed(stage: Stage, operator: Client) -> None:
    for number in range(3):
        stage.start(flows.switched, number, id=f"failed-{number}")
    cause = Failure.objects.get(run_id="failed-1").cause.fingerprint
    spread = operator.get(url("cause", cause)).context["spread"]
    assert (spread.workflows, spread.queues) == ([("tests.switched", 3)], [("default", 3)])
    assert [number for _, number in spread.workers] == [3]


def test_the_list_reads_the_query_of_a_filter(stage: Stage, operator: Client) -> None:
    wanted = RunCriteria(states=frozenset({"failed", "sleeping"}), workflow="a b", queue="q", cause="c" * 16)
    response = operator.get(url("changelist") + overview.query_of(wanted))
    form = response.context["form"]
    assert form.is_valid()
    assert form.wanted() == wanted


@pytest.mark.parametrize("limit", [0, 5])
def test_whatever_fails_in_durable_s_card_the_project_s_index_is_shown(
    stage: Stage, operator: Client, settings: Any, caplog: pytest.LogCaptureFixture, limit: float
) -> None:
    settings.DURABLE = {**settings.DURABLE, "STATEMENT_TIMEOUT": limit}

    def broken(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute("SELECT no_such_column" if '"durable_' in sql else sql, params, many, context)

    stage.start(flows.switched, 1, id="failed")
    with connection.execute_wrapper(broken):
        answer = operator.get("/admin/")
    assert answer.status_code == 200
    shown = answer.content.decode()
    assert "cannot show here what needs a person" in shown
    assert "Recent actions" in shown  # of the project, read after the card
    assert "cannot be shown" in caplog.text
    assert "no_such_column" in caplog.text


def test_the_index_leads_to_the_overview_and_says_what_needs_a_person(stage: Stage, operator: Client) -> None:
    def badge() -> str:
        found = re.search(r'<p class="durable-entry">.*?</p>', read(operator, "/admin/"), re.S)
        assert found is not None
        assert f'<a href="{OVERVIEW}"><strong>Durable</strong>' in found[0]
        return " ".join(re.sub("<[^>]+>", " ", found[0]).split())

    assert badge() == "Durable Nothing needs a person"
    stage.start(flows.switched, 1, id="failed")
    with CaptureQueriesContext(connection) as one:
        assert badge().startswith("Durable 1 1 cause of failure needs a person")
    stage.start(flows.saga, id="other")
    with CaptureQueriesContext(connection) as two:
        assert badge().startswith("Durable 2 2 causes of failure need a person")
    assert len(one) == len(two)
    for cause in Failure.objects.values_list("cause__fingerprint", flat=True):
        operator.post(url("save_cause", cause, "mute"))
    assert badge() == "Durable Nothing needs a person"


def test_the_age_of_a_hung_step_is_no_change_within_a_minute(
    stage: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_hung_step(stage)
    stage.now = timezone.now().replace(second=10, microsecond=0)
    Activity.objects.update(began_at=stage.now - timedelta(minutes=30, seconds=5))
    first = operator.get(url("overview"))
    assert "for 30 m (timeout 9 s)" in unescape(first.content.decode())
    stage.advance(seconds=40)
    assert operator.get(url("overview"), headers={"If-None-Match": first["ETag"]}).status_code == 304
    stage.advance(seconds=60)
    assert "for 31 m (timeout 9 s)" in unescape(operator.get(url("overview")).content.decode())


def test_the_row_of_a_hung_step_has_its_verbs(
    stage: Stage, log_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_hung_step(stage)
    stage.now = timezone.now()

    def verbs(*permissions: str, name: str) -> list[str]:
        shown = unescape(log_in(*permissions, name=name).get("/admin/durable/").content.decode())
        row = shown.partition('data-durable-key="hung_step')[2].partition("</li>")[0]
        return re.findall(r'class="button" href="([^"]+)"', row)

    act = [url("act", "hung", name) for name in ("take_stack", "abandon", "cancel")]
    address = url("running")
    everything = [f"{act[0]}?at=charge", f"{act[1]}?at=charge", f"{act[2]}?interrupt=on", address]
    assert verbs("view_run", "view_payload", "operate_run", name="ada") == everything
    assert verbs("view_run", "view_payload", name="bob") == [everything[0], address]
    assert verbs("view_run", name="cid") == [address]


def ways_on(client: Client, kind: str) -> tuple[str, list[str]]:
    """Where the title of a finding's row leads, and its buttons."""
    shown = read(client, OVERVIEW).partition(f'data-durable-key="{kind}')[2].partition("</li>")[0]
    [title] = re.findall(r'<p class="durable-what"><a href="([^"]+)"', shown)
    return title, re.findall(r'class="button" href="([^"]+)"', shown)


def test_a_paused_queue_leads_to_its_page_and_is_resumed_from_there(
    stage: Stage, log_in: Callable[..., Client]
) -> None:
    holds.pause_queue("default")
    title, buttons = ways_on(log_in("view_run", "pause_queue"), "queue_paused default")
    assert title == url("queue", "default")
    assert buttons[0] == url("queue_hold", "default", "resume")
    assert ways_on(log_in("view_run", name="bob"), "queue_paused default")[1] == buttons[1:]
    row = read(log_in("view_run", name="cid"), OVERVIEW).partition('data-durable-key="queue_paused')[2]
    assert "durable-bad" not in row.partition("</li>")[0]
    assert ">0<" not in row.partition("</li>")[0]  # nothing is due, so no number is shown


def test_held_starts_lead_to_the_workflow_and_are_released_from_there(
    stage: Stage, log_in: Callable[..., Client]
) -> None:
    holds.hold_starts("tests.switched")
    title, buttons = ways_on(log_in("view_run", "hold_workflow"), "starts_held")
    assert title == url("workflow", "tests.switched")
    assert buttons[0] == url("workflow_hold", "tests.switched", "release")


def test_a_missed_tick_leads_to_its_schedule_and_is_made_up_for(stage: Stage, log_in: Callable[..., Client]) -> None:
    at = stage.now - timedelta(hours=3)
    schedule = Schedule.objects.create(name="nightly", workflow=flows.quick.name, rule=hourly_half_an_hour_from(at))
    Schedule.objects.filter(pk=schedule.pk).update(next_at=at, due_at=at, catch_up="none")
    tick_due(timezone.now())
    missed = sorted(Tick.objects.filter(outcome="missed").values_list("moment", flat=True))
    assert len(missed) > 1
    client = log_in("view_run", "operate_schedule", "view_schedule")
    title, buttons = ways_on(client, "tick_missed")
    assert title == url("schedule", "nightly")
    assert buttons[-1] == title
    form = client.get(buttons[0]).context["form"]
    assert (form.initial["since"], form.initial["until"]) == (missed[0], missed[-1])
    assert len(buttons) == 2
    planned = confirm(client, url("schedule_act", "nightly", "backfill"), since=str(missed[0]), until=str(missed[-1]))
    # The first one was set by hand, and is no moment of the rule.
    assert f"{len(missed) - 1} runs would be started" in planned.content.decode()
    assert ways_on(log_in("view_run", name="bob"), "tick_missed")[1] == [title]


#: Findings that have no list of runs.
WITHOUT_LIST = {
    *("messages_left", "commits_lost", "bulk_stopped", "hung_step", "redis", "slot_free", "slot_idle", "line_still"),
    *("line_long", "slot_kept", "old_snapshot", "retention_late", "transaction_ids"),
    *("schedule_late", "tick_refused", "tick_missed"),
}


def test_every_finding_leads_somewhere() -> None:
    """A finding that neither has a list nor is known to `_ways_on` is a dead end."""
    source = inspect.getsource(findings)
    kinds = {
        *re.findall(r'kind="(\w+)"', source),
        *re.findall(r'_(?:finding|of_ticks|of_lines|of_slots)\(\s*"(\w+)"', source),
    }
    assert {"tick_missed", "queue_paused", "wait_overdue", "line_still", "redis"} <= kinds
    documented = re.search(r"Kinds: (.*?)\.", Finding.__doc__ or "", re.S)
    assert documented is not None
    assert {"no_worker", "unknown_queue"} | kinds == findings.KINDS == set(re.split(r",\s+", documented[1]))
    for kind in kinds:
        finding = Finding(
            kind=kind,
            title="it",
            advice="do",
            count=Count(number=1),
            runs=[("a", "w")],
            names=["n"],
            wanted=None if kind in WITHOUT_LIST else RunCriteria(queue="q", workflow="w"),
        )
        [row] = overview.rows_of_findings([finding])
        assert row.url, kind
        assert row.list_url, kind


def test_an_abandoned_attempt_is_not_abandoned_again(
    stage: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_hung_step(stage)
    stage.now = timezone.now()
    address = url("act", "hung", "abandon")
    assert f'href="{address}"' in read(operator, url("change", "hung"))
    confirm(operator, address)
    page = read(operator, url("change", "hung"))
    assert f'href="{address}"' not in page
    assert "An operator abandoned the attempt" in page


def test_a_page_that_interrupts_has_the_command_that_does(
    stage: Stage, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_hung_step(stage)
    stage.now = timezone.now()
    address = url("act", "hung", "cancel")
    assert "durable cancel hung</code>" in read(operator, address)
    assert "durable cancel hung --interrupt</code>" in read(operator, f"{address}?interrupt=on")


def test_the_index_recovers_what_it_shows(stage: Stage, operator: Client, log_in: Callable[..., Client]) -> None:
    for number in (1, 2):
        stage.start(flows.switched, number, id=f"failed-{number}")
        stage.advance(seconds=1)
    shown = read(operator, "/admin/")
    [form] = re.findall(r'<form method="post" action="[^"]*/bulk/">.*?</form>', shown, re.S)
    assert f'formaction="{url("act", "failed-2", "recover")}"' in form
    given = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    get_run("failed-2").recover()
    stage.settle("failed-2")  # it has failed again: what the page shows is no longer so
    refused = operator.post(url("act", "failed-2", "recover"), given)
    assert refused.status_code == 409
    assert "has changed since this page was made" in refused.content.decode()
    viewer = read(log_in("view_run", name="bob"), "/admin/")
    assert "charge · GatewayTimeout" in viewer
    assert "<summary" not in viewer
    assert "no answer for" not in viewer


def test_a_cause_is_new_since_the_newest_build_appeared(stage: Stage, operator: Client) -> None:
    stage.start(flows.switched, 1, id="failed")
    assert [each.is_new for each in attention(operator) if each.columns] == [True]
    stage.advance(seconds=3601)
    assert [each.is_new for each in attention(operator) if each.columns] == [False]
    first_seen = Cause.objects.get().first_seen_at
    Build.objects.create(name="old", first_seen_at=first_seen - timedelta(days=2))
    assert [each.is_new for each in attention(operator) if each.columns] == [True]
    Build.objects.create(name="new", first_seen_at=first_seen + timedelta(seconds=1))
    assert [each.is_new for each in attention(operator) if each.columns] == [False]


def test_the_index_says_nothing_to_others(stage: Stage, log_in: Callable[..., Client]) -> None:
    stage.start(flows.switched, 1, id="failed")
    outsider = log_in("operate_run")
    assert "durable_failure" not in str(statements(outsider, "/admin/"))
    assert "durable-entry" not in read(outsider, "/admin/")


# -- the charts of ended runs: what they draw, what they say in words, and where they lead


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = NOON + timedelta(minutes=12, seconds=30)


def ended(run_id: str, at: datetime, state: str = "completed", took: float = 1.0, workflow: str = "w") -> None:
    begin = at - timedelta(seconds=took)
    Run.objects.create(
        id=run_id, workflow=workflow, queue="q", input="[]", state=state, created_at=begin, finished_at=at
    )


@pytest.fixture
def figures(db: None) -> None:
    """Three completed, two failed and one cancelled run in the two minutes after noon, a slow one later."""
    for number, state in enumerate(["completed"] * 3 + ["failed"] * 2 + ["cancelled"]):
        ended(f"run-{number}", NOON + timedelta(seconds=20 * number), state)
    ended("slow", NOON + timedelta(minutes=6), took=500, workflow="other")
    settle(NOW)


def test_the_charts_draw_and_tell_what_ended(figures: None) -> None:
    """The parts of a bar stand on each other up to the scale; durations are drawn on a log scale."""
    hour, day = ended_charts(NOW)
    assert hour.scale == ["10", "5", "0"]
    [bar, slow] = [each for each in hour.bars if each.url]
    assert (bar.when, slow.when) == ("12:00 to 12:02", "12:06 to 12:08")
    assert [(part["kind"], part["y"], part["height"]) for part in bar.parts] == [
        ("good", "70.0", "30.0"),
        ("idle", "60.0", "10.0"),
        ("bad", "40.0", "20.0"),
    ]
    assert bar.ended == "12:00 to 12:02: 3 completed, 2 failed, 1 cancelled"
    assert bar.took == "12:00 to 12:02: half under 0.9 s, 95 % under 0.9 s"  # within a tenth
    assert [*bar.cells[:3], len(bar.cells)] == ["3", "2", "1", 5]
    assert {(each.ended, each.took, tuple(each.cells)) for each in hour.bars if not each.url} == {("", "", ())}
    assert hour.durations == ["10 m", "7.7 s", "0.1 s"]
    heights = [float(line.split()[0].split(",")[1]) for line in hour.median]
    # 1 s is more than a quarter of the way from 0.1 s to 10 m, and 500 s almost all of it
    assert heights == [pytest.approx(73, abs=3), pytest.approx(3, abs=3)]
    assert hour.counted_until == day.counted_until == "12:12 UTC"
    assert float(hour.uncounted) == pytest.approx(29 * 10)  # of 30 bars of two minutes, the last begins at 12:12
    assert float(hour.uncounted) + float(hour.uncounted_width) == hour.width
    assert [each.throughput.total for each in ended_charts(NOW, "other")] == [1, 1]


def test_the_address_of_the_list_is_looked_up_once(figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(name: str, **how: Any) -> str:
        asked.append(name)
        return reverse(name, **how)

    monkeypatch.setattr("durable.admin.charts.reverse", counted)
    charts = ended_charts(NOW)
    assert sum(bool(bar.url) for chart in charts for bar in chart.bars) == 3
    assert len(asked) == 1


def test_a_bar_leads_to_the_runs_that_it_counts(figures: None, operator: Client) -> None:
    hour, _ = ended_charts(NOW)
    [url, _] = [each.url for each in hour.bars if each.url]
    found = operator.get(url)
    assert {row.run.id for row in found.context["rows"]} == {f"run-{number}" for number in range(6)}
    [_, other] = [each.url for each in ended_charts(NOW, "w")[0].bars if each.url] * 2
    assert parse_qs(urlsplit(other).query)["workflow"] == ["w"]


def test_a_span_without_runs_is_drawn_too(db: None) -> None:
    for chart in ended_charts(NOW):
        assert chart.scale == ["2", "1", "0"]
        assert (chart.median, chart.slow, chart.uncounted) == ([], [], "0.0")


def test_it_says_how_far_the_counting_is_behind_and_names_another_day(figures: None) -> None:
    for later, behind in ((timedelta(minutes=10), ""), (timedelta(hours=2), "2 h")):
        hour, _ = ended_charts(NOW + later)
        assert (hour.counted_until, hour.behind) == ("12:12 UTC", behind)
    hour, _ = ended_charts(NOW + timedelta(hours=23))
    assert hour.counted_until.endswith(" 12:12 UTC")
    assert hour.behind == "23 h"


def test_the_overview_says_that_it_is_behind(stage: Stage, operator: Client) -> None:
    RollupProgress.objects.create(pk=1, until=stage.now - timedelta(hours=3, minutes=5))
    assert ": the 3 h since then are not counted yet." in read(operator, "/admin/durable/")


def test_a_deploy_is_marked_where_it_was(figures: None) -> None:
    Build.objects.create(name="7f3a", first_seen_at=NOW - timedelta(minutes=28, seconds=30))
    hour, _ = ended_charts(NOW)
    [deploy] = hour.annotations
    assert (deploy.title, deploy.when, deploy.url) == ("deploy 7f3a", "11:44", "")
    assert float(deploy.x) == pytest.approx(hour.width / 2, abs=1)


def test_the_overview_tells_it_in_words_as_well(stage: Stage, operator: Client) -> None:
    ended("one", stage.now - timedelta(minutes=20), "failed", took=2)
    stage_end = settle(stage.now)
    body = read(operator, "/admin/durable/")
    assert body.count(": 0 completed, 1 failed, 0 cancelled") == 2
    assert body.count(": half under 2") + body.count(": half under 1.9") + body.count(": half under 2.1") == 2
    assert f"Counted up to {stage_end:%H:%M} UTC." in body
    assert body.count("As a table") == 2
    assert "Nothing is counted yet" not in body
