"""`durable schedules` and the verbs on schedules."""

import re

import pytest

from durable.models import OperatorAction, Run, Schedule, Tick
from durable.operations.schedules.rows import arguments_of
from durable.schedules.rules import text_of
from tests.cli.conftest import Shell
from tests.cli.workflows import echo, napping

pytestmark = pytest.mark.usefixtures("stage")


def create(shell: Shell, name: str = "nightly", *more: str) -> None:
    done = shell("create-schedule", name, napping.name, "30 2 * * *", "--zone", "Europe/Berlin", *more)
    assert done.status == 0, done.err


def test_a_schedule_is_created_listed_and_shown(shell: Shell) -> None:
    create(shell, "nightly", "--overlap", "queue", "--window", "2 hours", "--reason", "new team")
    listed = shell("schedules")
    assert "At 02:30 (Europe/Berlin)" in listed.out
    [data] = shell("schedules", "-o", "json").all_json
    assert (data["name"], data["state"], data["overlap"], data["window"]) == ("nightly", "active", "queue", 7200)
    assert len(data["next"]) == 5
    shown = shell("schedules", "nightly")
    assert "operators" in shown.out
    assert OperatorAction.objects.get(action="create_schedule").reason == "new team"


def test_an_edit_replaces_the_keyword_arguments(shell: Shell) -> None:
    assert shell("create-schedule", "nightly", echo.name, "30 2 * * *", "-k", "tea=1").status == 0
    assert shell("edit-schedule", "nightly", "-k", "milk=2").status == 0
    assert arguments_of(Schedule.objects.get()) == ([], {"milk": 2})


def test_moments_are_in_utc_and_by_the_clock_of_the_rule(shell: Shell) -> None:
    create(shell)
    shell("create-schedule", "abroad", napping.name, "30 2 * * *", "--zone", "Asia/Tokyo")
    shell("create-schedule", "plain", napping.name, "30 2 * * *", "--zone", "UTC")
    listed = {line.split()[0]: line for line in shell("schedules").lines[1:]}
    assert re.search(r"\d (00|01):30:00 UTC \(02:30 CES?T\)", listed["nightly"])
    assert re.search(r"\d 17:30:00 UTC \(\d{4}-\d\d-\d\d 02:30 JST\)", listed["abroad"])
    assert re.search(r"\d 02:30:00 UTC +[^(]", listed["plain"])
    assert shell("schedules", "nightly").out.count(" UTC (02:30 CE") == 5


def test_it_is_paused_edited_run_backfilled_and_deleted(shell: Shell) -> None:
    create(shell)
    assert shell("pause-schedule", "nightly", "--reason", "holiday").status == 0
    assert "holiday" in shell("schedules", "nightly").out
    shell("resume-schedule", "nightly")
    shell("edit-schedule", "nightly", "--rule", "every 1 day", "--catch-up", "none")
    done = shell("run-schedule", "nightly")
    assert done.lines == [Run.objects.get().id]
    again = shell("run-schedule", "nightly")
    assert again.status == 1
    assert "skipped" in again.err
    assert shell("run-schedule", "nightly", "--force").status == 0
    planned = shell("backfill", "nightly", "3 days", "1 minute", "--dry-run")
    assert planned.out.startswith(("3 runs", "2 runs"))
    assert shell("backfill", "nightly", "3 days", "1 minute").status == 2
    assert shell("backfill", "nightly", "3 days", "1 minute", "--yes").status == 0
    assert Run.objects.count() >= 4
    assert "run_now" in {each["kind"] for each in shell("schedules", "nightly", "-o", "json").json["ticks"]}
    assert shell("delete-schedule", "nightly").status == 2
    assert shell("delete-schedule", "nightly", "--yes").status == 0
    assert shell("schedules", "nightly").status == 1


def test_a_tick_that_waits_while_its_schedule_is_paused_says_so(shell: Shell) -> None:
    create(shell, "nightly", "--overlap", "queue")
    shell("run-schedule", "nightly")
    shell("pause-schedule", "nightly")
    waits = shell("run-schedule", "nightly")
    assert (waits.status, "waiting: the schedule is paused: " in waits.err) == (0, True)
    shown = shell("schedules", "nightly")
    assert "until it is resumed, and for the end of nightly@" in shown.out
    assert "the schedule is paused: this tick begins when it is resumed" in shown.out
    assert " UTC (02:30 CE" not in shown.out  # it has no next moment
    awaited = f"nightly@{text_of(Tick.objects.get(outcome='waiting').moment)}"
    for command in ("why", "show"):
        told = shell(command, awaited)
        assert told.status == 1
        assert "its schedule has started none for that moment: waiting: the schedule is paused" in told.err


def test_an_overridden_rule_of_the_code_is_listed(shell: Shell) -> None:
    Schedule.objects.create(name="s", workflow=napping.name, rule="0 * * * *", origin="code")
    assert shell("override-schedule", "s", "every 2 hours").status == 0
    assert "overridden" in shell("schedules").out


def test_refusals_say_why(shell: Shell) -> None:
    for words in (
        ("create-schedule", "a/b", napping.name, "every 1 hour"),
        ("create-schedule", "a", "no.such", "every 1 hour"),
        ("create-schedule", "a", napping.name, "every now"),
        ("run-schedule", "nobody"),
    ):
        done = shell(*words)
        assert done.status == 1
        assert done.err.startswith("durable: ")


def test_the_schedules_of_the_code_are_written(shell: Shell) -> None:
    Schedule.objects.create(name="gone", workflow="tests.gone", rule="0 * * * *", origin="code")
    planned = shell("schedules", "--sync", "--dry-run")
    assert '"gone" is no longer in the code' in planned.out
    assert not Schedule.objects.get(name="gone").paused
    assert shell("schedules", "--sync").status == 0
    assert Schedule.objects.get(name="gone").paused
    assert "as the code declares them" in shell("schedules", "--sync").err
    assert shell("schedules", "--dry-run").status == 2


def test_the_doctor_says_what_the_code_has_left_behind(shell: Shell) -> None:
    Schedule.objects.create(name="renamed", workflow="tests.old", rule="0 0 * * *", origin="code")
    assert '"renamed" is no longer in the code' in shell("doctor").out
    shell("schedules", "--sync")
    assert "no longer in the code, and paused: renamed" in shell("doctor").out


@pytest.mark.slow
def test_the_doctor_says_which_schedules_skip_moments(shell: Shell) -> None:
    create(shell)
    assert "ticks_skipped" not in shell("doctor").out
    shell("run-schedule", "nightly")
    assert "ticks_skipped" not in shell("doctor").out
    for _ in range(2):
        shell("run-schedule", "nightly")
    found = next(each for each in shell("doctor", "-o", "json").all_json if each["kind"] == "ticks_skipped")
    assert found["found"] == "skipped in the last day, while an earlier run had not ended: 2, of nightly"
    assert found["verdict"] == "note"
