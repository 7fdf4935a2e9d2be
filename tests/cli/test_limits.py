"""`durable limits`, `set-limit` and `take-back-limit`; and what `durable why` tells of a run in a line."""

from __future__ import annotations

import pytest

from durable import Context, Limit, workflow
from durable.models import Limit as LimitRow
from durable.models import OperatorAction
from tests.cli.conftest import Shell, Stage, state

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
    assert OperatorAction.objects.get(action="set_limit").reason == "they bought more"
    assert shell("take-back-limit", "cli-crm").status == 0
    assert LimitRow.objects.get(name="cli-crm").number == 1


def test_what_is_refused(shell: Shell, stage: Stage) -> None:
    done = shell("set-limit", "nobody", "3")
    assert done.status == 1
    assert 'no limit "nobody"' in done.err
    two_runs(stage)
    for number in ("-1", "1000000"):
        refused = shell("set-limit", "cli-crm", number) if number != "-1" else shell("set-limit", "cli-crm", "--", "-1")
        assert refused.status == 1
        assert "whole number from 0 to 999,999" in refused.err


def test_a_cancelled_holder_lets_the_next_go_on(shell: Shell, stage: Stage) -> None:
    two_runs(stage)
    assert shell("cancel", "first").status == 0
    next_one(stage)
    assert state("first") == "cancelled"
    assert "Waiting for a message" in shell("why", "second").out


def test_the_doctor_names_limits_that_nothing_uses(shell: Shell, stage: Stage) -> None:
    two_runs(stage)
    LimitRow.objects.create(name="left behind", at_once=3)
    told = {each["kind"]: each for each in shell("doctor", "-o", "json").all_json}
    assert told["limits_unused"]["verdict"] == "note"
    assert told["limits_unused"]["found"] == "neither the settings nor a workflow names: left behind"
