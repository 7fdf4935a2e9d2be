"""The charts of ended runs: what they draw, what they say in words, and where they lead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.urls import reverse

from durable.admin.charts import ended_charts
from durable.models import Build, RollupProgress, Run
from tests.admin.conftest import Stage
from tests.admin.pages import text_of
from tests.support.rollups import settle

pytestmark = pytest.mark.django_db

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


def test_the_parts_of_a_bar_stand_on_each_other_up_to_the_scale(figures: None) -> None:
    hour, _ = ended_charts(NOW)
    assert hour.scale == ["10", "5", "0"]
    [bar, slow] = [each for each in hour.bars if each.url]
    assert (bar.when, slow.when) == ("12:00 to 12:02", "12:06 to 12:08")
    assert [(part.kind, part.y, part.height) for part in bar.parts] == [
        ("good", "70.0", "30.0"),
        ("idle", "60.0", "10.0"),
        ("bad", "40.0", "20.0"),
    ]


def test_a_bar_says_what_it_draws(figures: None) -> None:
    hour, _ = ended_charts(NOW)
    bar, _slow = [each for each in hour.bars if each.url]
    assert bar.ended == "12:00 to 12:02: 3 completed, 2 failed, 1 cancelled"
    assert bar.took == "12:00 to 12:02: half under 0.9 s, 95 % under 0.9 s"  # within a tenth
    assert [*bar.cells[:3], len(bar.cells)] == ["3", "2", "1", 5]
    assert {(each.ended, each.took, tuple(each.cells)) for each in hour.bars if not each.url} == {("", "", ())}


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


def test_durations_are_drawn_on_a_log_scale(figures: None) -> None:
    hour, _ = ended_charts(NOW)
    assert hour.durations == ["10 m", "7.7 s", "0.1 s"]
    heights = [float(line.split()[0].split(",")[1]) for line in hour.median]
    # 1 s is more than a quarter of the way from 0.1 s to 10 m, and 500 s almost all of it
    assert heights == [pytest.approx(73, abs=3), pytest.approx(3, abs=3)]


def test_a_span_without_runs_is_drawn_too(db: None) -> None:
    for chart in ended_charts(NOW):
        assert chart.scale == ["2", "1", "0"]
        assert (chart.median, chart.slow, chart.uncounted) == ([], [], "0.0")


def test_it_says_up_to_when_runs_are_counted(figures: None) -> None:
    hour, day = ended_charts(NOW)
    assert hour.counted_until == day.counted_until == "12:12 UTC"
    assert float(hour.uncounted) == pytest.approx(29 * 10)  # of 30 bars of two minutes, the last begins at 12:12
    assert float(hour.uncounted) + float(hour.uncounted_width) == hour.width


def test_it_says_how_far_the_counting_is_behind_and_names_another_day(figures: None) -> None:
    hour, _ = ended_charts(NOW + timedelta(minutes=10))
    assert (hour.counted_until, hour.behind) == ("12:12 UTC", "")
    hour, _ = ended_charts(NOW + timedelta(hours=2))
    assert (hour.counted_until, hour.behind) == ("12:12 UTC", "2 h")
    hour, _ = ended_charts(NOW + timedelta(hours=23))
    assert hour.counted_until.endswith(" 12:12 UTC")
    assert hour.behind == "23 h"


def test_the_overview_says_that_it_is_behind(stage: Stage, operator: Client) -> None:
    RollupProgress.objects.create(pk=1, until=stage.now - timedelta(hours=3, minutes=5))
    assert ": the 3 h since then are not counted yet." in unescape(text_of(operator.get("/admin/durable/")))


def test_one_workflow_alone_can_be_drawn(figures: None) -> None:
    hour, day = ended_charts(NOW, "other")
    assert (hour.throughput.total, day.throughput.total) == (1, 1)


def test_a_deploy_is_marked_where_it_was(figures: None) -> None:
    Build.objects.create(name="7f3a", first_seen_at=NOW - timedelta(minutes=28, seconds=30))
    hour, _ = ended_charts(NOW)
    [mark] = hour.marks
    assert (mark.title, mark.when, mark.url) == ("deploy 7f3a", "11:44", "")
    assert float(mark.x) == pytest.approx(hour.width / 2, abs=1)


def test_the_overview_tells_it_in_words_as_well(stage: Stage, operator: Client) -> None:
    ended("one", stage.now - timedelta(minutes=20), "failed", took=2)
    stage_end = settle(stage.now)
    body = unescape(text_of(operator.get("/admin/durable/")))
    assert body.count(": 0 completed, 1 failed, 0 cancelled") == 2
    assert body.count(": half under 2") + body.count(": half under 1.9") + body.count(": half under 2.1") == 2
    assert f"Counted up to {stage_end:%H:%M} UTC." in body
    assert body.count("As a table") == 2
    assert "Nothing is counted yet" not in body
