"""The commands of limits, rates and holds; and what `durable why` tells of a run that waits for one of them."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Context, Limit, workflow
from durable.models import Limit as LimitRow
from durable.models import RateLimit
from tests.cli.conftest import Shell, Stage, state
from tests.cli.workflows import napping

pytestmark = pytest.mark.usefixtures("stage")


@workflow(name="cli.exclusive", limit=Limit("cli-crm", at_once=1, key=lambda tenant: tenant, hold="open"))
def exclusive(ctx: Context, tenant: str) -> str:
    ctx.queue.next("go on")
    return tenant


def two_runs(stage: Stage) -> None:
    for name in ("first", "second"):
        stage.start(exclusive, "acme", id=name)


def next_one(stage: Stage) -> None:
    """What the ticker does, and then a worker."""
    stage.at.store.sweep_slots(stage.at.now(), 100)
    stage.settle("second")


def test_who_holds_and_who_waits(shell: Shell, stage: Stage) -> None:
    assert "no limit yet" in shell("limits").err
    two_runs(stage)
    listed = shell("limits")
    assert next(line.split() for line in listed.lines[1:])[:5] == ["cli-crm", "acme", "1", "1", "1"]
    told = shell("why", "second").out
    assert "Number 1 in line for limit cli-crm/acme" in told
    assert "(1 of 1 held)" in told
    assert 'Run "first" has held one for' in told
    assert 'hold="open"' in told
    data = shell("limits", "cli-crm", "-o", "json").json
    assert (data["at_once"], data["is_overridden"]) == (1, False)
    assert [(each["key"], each["held"], each["waiting"]) for each in data["keys"]] == [("acme", 1, 1)]
    assert shell("limits", "nobody").status == 1


def test_a_higher_number_lets_runs_that_wait_go_on(shell: Shell, stage: Stage) -> None:
    two_runs(stage)
    done = shell("set-limit", "cli-crm", "2", "--reason", "they bought more")
    assert (done.status, done.out) == (0, "")
    next_one(stage)
    assert shell("limits", "-o", "json").json["keys"] == [
        {"key": "acme", "held": 2, "waiting": 0, "oldest_at": None},
    ]
    assert "waiting for a message" in shell("why", "second").out.lower()
    assert "(the code says 1)" in shell("limits").out


def test_what_is_refused(shell: Shell, stage: Stage) -> None:
    two_runs(stage)
    for number in (["--", "-1"], ["1000000"]):
        refused = shell("set-limit", "cli-crm", *number)
        assert refused.status == 1
        assert "whole number from 0 to 999,999" in refused.err


def test_the_doctor_names_limits_that_nothing_uses(shell: Shell, stage: Stage) -> None:
    two_runs(stage)
    LimitRow.objects.create(name="left behind", at_once=3)
    told = {each["kind"]: each for each in shell("doctor", "-o", "json").all_json}
    assert told["limits_unused"]["verdict"] == "note"
    assert told["limits_unused"]["found"] == "neither the settings nor a workflow names: left behind"


# -- `durable rates`, `set-rate`, `close-limit` and `open-limit`; and what `durable why` tells of a run that waits


@workflow(name="cli.rated")
def rated(ctx: Context, name: str) -> str:
    return ctx.step("call", lambda: name, rate="cli-api/acme")


@pytest.fixture
def defined(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"cli-api": {"rate": "1/hour"}}}


def three_runs(stage: Stage) -> None:
    for name in ("first", "second", "third"):
        stage.start(rated, name, id=name)


@pytest.mark.usefixtures("defined")
def test_what_waits_and_why(shell: Shell, stage: Stage) -> None:
    assert "no rate yet" in shell("rates").err
    three_runs(stage)
    data = shell("rates", "cli-api", "-o", "json").json
    assert (data["rate"], data["is_overridden"]) == ("1/hour", False)
    assert [(each["key"], each["waiting"]) for each in data["keys"]] == [("acme", 2)]
    told = shell("why", "third").out
    assert "Rate cli-api/acme (1/hour): begins" in told
    assert "1 before it" in told
    assert shell("rates", "nobody").status == 1


@pytest.mark.usefixtures("defined")
def test_a_rate_is_set_and_a_limit_closed_and_opened(shell: Shell, stage: Stage) -> None:
    three_runs(stage)
    assert shell("set-rate", "cli-api", "1/30 min", "--burst", "2", "--reason", "they bought more").status == 0
    assert RateLimit.objects.get(name="cli-api").now.burst == 2
    assert "(the code says 1/hour)" in shell("rates").out
    assert shell("take-back-rate", "cli-api").status == 0
    assert shell("close-limit", "cli-api", "1 day", "--key", "acme", "--reason", "too many requests").status == 0
    assert "too many requests" in shell("why", "third").out
    assert shell("rates", "-o", "json").json["keys"][0]["closed_why"] == "too many requests"
    assert shell("open-limit", "cli-api", "--key", "acme").status == 0
    assert "too many requests" not in shell("why", "third").out
    assert shell("set-rate", "cli-api", "often").status == 1


# -- `durable queues`, `pause-queue`, `resume-queue`, `hold`, `release`


def test_a_paused_queue_is_listed(shell: Shell, stage: Stage) -> None:
    napping.using(id="one").start()
    assert "is paused" in shell("pause-queue", "default", "--reason", "bank is down").err
    listed = shell("queues")
    assert listed.status == 0
    [row] = [line for line in listed.lines if line.startswith("default")]
    assert row.split()[:3] == ["default", "paused", "1"]
    assert "bank is down" in listed.err
    data = next(each for each in shell("queues", "-o", "json").all_json if each["name"] == "default")
    assert (data["is_paused"], data["due"]["number"], data["hold"]["reason"]) == (True, 1, "bank is down")


def test_every_list_says_that_the_queue_is_paused(shell: Shell, stage: Stage) -> None:
    napping.using(id="one", share="acme").start()
    shell("pause-queue", "default", "--reason", "bank is down")
    said = "is paused"
    assert said in shell("list").out
    assert said in shell("list", "-o", "json").json["explanation"]["headline"]
    assert said in shell("show", "one").out
    why = shell("why", "one").out
    assert said in why
    assert "turn in share" not in why, "it has none while the queue is paused"
    assert said in shell("doctor").out


def test_starts_are_held_and_released(shell: Shell, stage: Stage) -> None:
    assert shell("hold", napping.name, "--reason", "x").status == 0
    napping.using(id="one").start()
    assert state("one") == "paused"
    assert "new starts of" in shell("why", "one").out
    done = shell("release", napping.name)
    assert "1 run resumed" in done.err
    assert state("one") == "pending"
