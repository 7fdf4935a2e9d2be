"""`durable rates`, `set-rate`, `close-limit` and `open-limit`; and what `durable why` tells of a run that waits."""

from __future__ import annotations

from typing import Any

import pytest

from durable import Context, workflow
from durable.models import OperatorAction, RateLimit
from tests.cli.conftest import Shell, Stage

pytestmark = pytest.mark.usefixtures("stage")


@workflow(name="cli.rated")
def rated(ctx: Context, name: str) -> str:
    return ctx.step("call", lambda: name, rate="cli-api/acme")


@pytest.fixture(autouse=True)
def defined(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"cli-api": {"rate": "1/hour"}}}


def three_runs(stage: Stage) -> None:
    for name in ("first", "second", "third"):
        stage.start(rated, name, id=name)


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
    assert shell("open-limit", "none").status == 1
    actions = OperatorAction.objects.filter(outcome="done").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["set_rate", "take_back_rate", "close_limit", "open_limit"]
