"""What Sentry is sent by a project with the integration: tags, causes, check-ins, and no control flow."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from durable import cron, every
from durable.contrib.sentry import DurableIntegration, monitor_config_of, monitor_slug_of
from durable.models import Schedule
from tests.support.processes import WITHOUT_SERVERS, printed

ROOT: Final = Path(__file__).resolve().parent.parent.parent
NIGHT: Final = "program.nightly@2026-01-02T01:30:00Z"
LOOP: Final = "By the loop@2026-01-02T00:00:00Z"


@pytest.fixture(scope="module")
def sent() -> list[dict[str, Any]]:
    """What `sentry_program` has sent, in that order."""
    lines = printed("tests.contrib.sentry_program", environment=WITHOUT_SERVERS).splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def events(sent: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The events by run: exactly one for each run that failed, and what the run `run-5` has said itself."""
    found = [each for each in sent if "type" not in each]
    by_run = {each["contexts"]["durable"]["run_id"]: each for each in found}
    assert sorted(by_run) == sorted(["run-1", "run-2", "run-3", "run-4", "run-5", LOOP])
    assert len(found) == len(by_run)
    return by_run


@pytest.fixture
def check_ins(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The check-ins."""
    return [each for each in sent if each.get("type") == "check_in"]


@pytest.mark.slow
def test_an_event_has_the_run_as_tags_and_a_link_to_its_page(events: dict[str, dict[str, Any]]) -> None:
    tags = {"durable.run_id": "run-1", "durable.workflow": "program.charging", "durable.step": "charge"}
    assert tags.items() <= events["run-1"]["tags"].items()
    assert events["run-1"]["contexts"]["durable"]["url"] == "https://example.org/admin/durable/run/run-1/change/"
    assert events["run-3"]["tags"]["durable.step"] == "both/one/charge"


@pytest.mark.slow
def test_the_fingerprint_is_the_cause(events: dict[str, dict[str, Any]]) -> None:
    """As the admin has it: the step, the class and the pattern of the message, of the failed handler too."""
    assert events["run-1"]["fingerprint"] == ["durable", "charge", "LookupError", "no card for #"]
    assert events["run-2"]["fingerprint"] == events["run-1"]["fingerprint"] == events[LOOP]["fingerprint"]
    assert events["run-3"]["fingerprint"] == ["durable", "both / one / charge", "LookupError", "no card for #"]
    assert events["run-4"]["fingerprint"] == ["durable", "reserve (rollback)", "PermissionError", "locked"]
    assert [each["type"] for each in events["run-1"]["exception"]["values"]] == ["LookupError"]


def test_control_flow_is_no_event_even_if_code_captures_it(events: dict[str, dict[str, Any]]) -> None:
    """The run `run-5` has captured each park and the end of the losing branch, twice by its logger."""
    assert events["run-5"]["message"] == "a word"
    assert events["run-5"]["tags"]["durable.step"] == "speak"
    assert "fingerprint" not in events["run-5"]


def test_a_pass_has_breadcrumbs_of_its_own(events: dict[str, dict[str, Any]]) -> None:
    said = {run: str(event["breadcrumbs"]["values"]) for run, event in events.items()}
    assert "run run-1: step charge failed" in said["run-1"]
    assert "run-1" not in said["run-2"]


def test_the_run_of_a_tick_is_a_check_in(check_ins: list[dict[str, Any]]) -> None:
    """In progress from the tick on, then its end under the same id. Neither "run now" nor backfills are any."""
    found = [(each["monitor_slug"], each["status"]) for each in check_ins]
    loop = monitor_slug_of("By the loop")
    assert found == [
        (loop, "in_progress"),
        ("program-nightly", "in_progress"),
        (loop, "error"),
        ("program-nightly", "ok"),
    ]
    assert check_ins[0]["check_in_id"] == check_ins[2]["check_in_id"] != check_ins[1]["check_in_id"]
    assert check_ins[1]["check_in_id"] == check_ins[3]["check_in_id"]


def test_a_check_in_has_the_configuration_of_its_monitor(check_ins: list[dict[str, Any]]) -> None:
    """From the schedule, and over it what the project has said for all monitors and for this one."""
    assert check_ins[1]["monitor_config"] == check_ins[3]["monitor_config"]
    assert check_ins[1]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "30 2 * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 15,  # five minutes, and the jitter
        "max_runtime": 30,
        "failure_issue_threshold": 2,
    }


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (cron("0 0 L * *"), {"type": "crontab", "value": "0 0 L * *"}),
        (every("90 minutes"), {"type": "interval", "value": 90, "unit": "minute"}),
        (every("6 hours", offset="15 minutes"), {"type": "interval", "value": 6, "unit": "hour"}),
        (every("2 days"), {"type": "interval", "value": 2, "unit": "day"}),
        (every("14 days"), {"type": "interval", "value": 2, "unit": "week"}),
        (every("90 seconds"), None),  # of whole minutes only
        ([cron("0 8 * * *"), cron("30 17 * * *")], None),  # one rule only
    ],
)
def test_a_rule_becomes_the_schedule_of_a_monitor(rule: Any, expected: dict[str, Any] | None) -> None:
    config = monitor_config_of(Schedule(name="x", rule=text_of(rule), zone="UTC", jitter=timedelta(0)))
    assert (None if config is None else config["schedule"]) == expected


def text_of(rule: Any) -> str:
    """The text of rules, as rows have it."""
    return "; ".join(each.text for each in (rule if isinstance(rule, list) else [rule]))


def test_the_operators_rule_is_what_the_monitor_expects() -> None:
    schedule = Schedule(name="x", rule="0 2 * * *", zone="UTC", override_rule="0 3 * * *", override_zone="Asia/Tokyo")
    config = monitor_config_of(schedule)
    assert config is not None
    assert (config["schedule"]["value"], config["timezone"]) == ("0 3 * * *", "Asia/Tokyo")


def test_a_schedule_may_have_no_monitor() -> None:
    schedule = Schedule(name="x", rule="0 2 * * *", zone="UTC")
    assert DurableIntegration(monitors={"x": None}).config_of(schedule) is None
    assert DurableIntegration(monitors={"y": None}).config_of(schedule) is not None


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("shop.nightly_report", "shop-nightly_report"),
        ("Nightly report", "nightly-report-06f212f8"),
        ("2026", "2026-"),
        ("é" * 170, ""),
        ("a" * 51, "a" * 41 + "-"),
    ],
)
def test_a_slug_is_one_that_sentry_takes(name: str, slug: str) -> None:
    found = monitor_slug_of(name)
    assert found.startswith(slug)
    assert 0 < len(found) <= 50
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert not found.isdecimal()
    assert monitor_slug_of(name + "x") != found
