"""How long a step may take that does not say it: what the setting says."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from durable.conf import conf
from durable.core.effects import Call
from durable.testing import Harness
from tests.core import undoing
from tests.core.flavours import Flavour


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each call of a function was given, in order."""
    found: list[float] = []
    check = Harness._check_call

    def observe(self: Harness, call: Call) -> None:
        found.append(call.timeout)
        check(self, call)

    monkeypatch.setattr(Harness, "_check_call", observe)
    return found


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 600.0),
        ({"STEP_TIMEOUT": "10 minutes"}, 600.0),
        ({"STEP_TIMEOUT": timedelta(seconds=5)}, 5.0),
        ({"STEP_TIMEOUT": 7}, 7.0),
        ({"STEP_TIMEOUT": None}, 0.0),
        ({"STEP_TIMEOUT": 0}, 0.0),
    ],
)
def test_the_setting_decides(flavour: Flavour, timeouts: list[float], given: dict[str, Any], seconds: float) -> None:
    async def ship(ctx: Any) -> None:
        await ctx.rollback_checkpoint("from here")
        await ctx.step("mine", str, timeout=3)
        await ctx.step("none", str, timeout=0)
        await ctx.step("setting", str, rollback=undoing.undo)
        await ctx.try_step("try", str)
        await ctx.step("retried", str, retry_on_timeout=True)
        raise ValueError("undo it")

    with override_settings(DURABLE=given), Harness() as h:
        assert seconds == conf.STEP_TIMEOUT
        run = h.start(flavour(ship))
        assert h.finish(run).state == "failed"
    assert timeouts == [3.0, 0.0, seconds, seconds, seconds, seconds], "the handler's is the one recorded"


@pytest.mark.parametrize("options", [{"timeout": "109500 days"}, {"heartbeat": "109500 days", "timeout": 0}])
def test_it_may_be_longer_than_any_process_lives(flavour: Flavour, options: dict[str, Any]) -> None:
    async def ship(ctx: Any) -> Any:
        return await ctx.step("charge", flavour.function(lambda: "charged"), **options)

    with Harness() as h:
        done = h.run(h.start(flavour(ship)))
    assert (done.output, done.error) == ("charged", None)


def test_a_step_is_stopped_by_it(flavour: Flavour) -> None:
    async def ship(ctx: Any) -> Any:
        result = await ctx.try_step("wait", threading.Event().wait)
        return result.failure.kind

    with override_settings(DURABLE={"STEP_TIMEOUT": 0.05}), Harness() as h:
        assert h.finish(h.start(flavour(ship))).output == "timeout"
