"""The verbs on rates: who may, what is logged, what changes for the attempts that wait; from Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durable import Context, StaleLimitError, get_run, workflow
from durable.core.limits.rates import Rate
from durable.operations.audit import Actor, acting_as
from durable.operations.rates import close_limit, open_limit, rate_revision_of, set_rate, take_back_rate
from durable.testing import Harness

NOW = datetime(2026, 3, 4, 14, 0, tzinfo=UTC)


@workflow(name="rate_verbs.call")
def call(ctx: Context, name: str) -> str:
    return ctx.step("call", lambda: name, rate="rate-verbs")


@pytest.fixture
def h(settings: Any) -> Any:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"rate-verbs": {"rate": "1/min"}}}
    with Harness(NOW) as harness:
        for name in ("a", "b", "c"):
            harness.start(call, name, id=name)
        harness.settle()
        yield harness


def wakes(h: Harness, *ids: str) -> list[float]:
    moments = [h.peek(get_run(each)).wake_at for each in ids]
    return [(each - NOW).total_seconds() for each in moments if each is not None]


def logged(h: Harness) -> list[tuple[str, str, str, str]]:
    return [(each.action, each.outcome, each.after, each.detail) for each in h._store._actions]


def test_a_rate_is_set_and_taken_back(h: Harness) -> None:
    assert wakes(h, "b", "c") == [60, 120]
    set_rate("rate-verbs", "2/min")
    assert wakes(h, "b", "c") == [30, 60]
    take_back_rate("rate-verbs")
    assert h._store._rates.rate("rate-verbs") == Rate.of("1/min")
    h.finish("b")
    h.finish("c")
    assert logged(h) == [
        ("set_rate", "done", "2/min", 'limit "rate-verbs": 1/min before'),
        ("take_back_rate", "done", "", 'limit "rate-verbs": 2/min before'),
    ]


def test_a_limit_is_closed_and_opened(h: Harness) -> None:
    with acting_as(Actor("code", label="ada"), reason="they are down"):
        close_limit("rate-verbs", NOW + timedelta(hours=1))
    h.advance(60)
    h.settle()
    assert wakes(h, "b") == [3600]
    open_limit("rate-verbs")
    h.settle()
    assert h.peek(get_run("b")).state == "completed"
    assert wakes(h, "c") == [120]
    open_limit("rate-verbs")
    assert [each[0] for each in logged(h)] == ["close_limit", "open_limit", "open_limit"]


def test_what_is_refused(h: Harness) -> None:
    with pytest.raises(ValueError, match="in the future"):
        close_limit("rate-verbs", NOW)
    with pytest.raises(ValueError, match="a rate is a number"):
        set_rate("rate-verbs", "often")
    with (
        acting_as(Actor("code"), expected=rate_revision_of(Rate.of("5/min"))),
        pytest.raises(StaleLimitError),
    ):
        set_rate("rate-verbs", "2/min")
    with acting_as(Actor("code"), expected="open"):
        close_limit("rate-verbs", NOW + timedelta(hours=1))
    with acting_as(Actor("code"), expected="open"), pytest.raises(StaleLimitError):
        open_limit("rate-verbs")
    assert wakes(h, "b", "c") == [60, 120]
