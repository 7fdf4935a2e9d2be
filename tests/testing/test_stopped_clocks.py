"""Tests that stop or move the clock by freezegun or time-machine.

Right workflows pass, mistakes are still told, waits end.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Final

import freezegun
import pytest
import time_machine
from django.utils import timezone

from durable import Context, workflow
from durable.core import registry
from durable.testing import Harness, NotDeterministicError
from tests.support.worker import work_off

THEN: Final = datetime(2020, 5, 1, 12, tzinfo=UTC)

STOPPED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "freezegun": lambda: freezegun.freeze_time(THEN),
    "freezegun, ticking": lambda: freezegun.freeze_time(THEN, tick=True),
    "time-machine": lambda: time_machine.travel(THEN, tick=False),
    "time-machine, ticking": lambda: time_machine.travel(THEN, tick=True),
}

stopped = pytest.mark.parametrize("stop", STOPPED.values(), ids=list(STOPPED))


def years() -> list[int]:
    today = dt.date.today()  # noqa: DTZ011  # as code does that a test stops the clock for
    return [datetime.now(UTC).year, today.year, timezone.now().year, time.gmtime(time.time()).tm_year]


def right(ctx: Context) -> list[Any]:
    first = ctx.step("read", years)
    began = ctx.now()
    ctx.sleep("a day", "1 day")
    return [first, ctx.step("read again", years), isinstance(began, datetime), ctx.random.random() < 1]


@stopped
def test_a_right_workflow_passes(stop: Callable[[], AbstractContextManager[Any]]) -> None:
    with stop(), Harness() as h:
        assert h.finish(h.start(right)).output == [[2020] * 4, [2020] * 4, True, True]
    with Harness() as h, stop():
        assert h.finish(h.start(right)).output == [[2020] * 4, [2020] * 4, True, True]


def by_class(ctx: Context) -> None:
    ctx.step(f"at {datetime.now(UTC)}", print)  # durable: allow[W101, W131] the code under test


def by_date(ctx: Context) -> None:
    today = dt.date.today()  # noqa: DTZ011  # durable: allow[W101] the code under test
    ctx.step(f"at {today}", print)  # durable: allow[W131] the code under test


def by_time(ctx: Context) -> None:
    ctx.step(f"at {time.time()}", print)  # durable: allow[W101, W131] the code under test


def by_django(ctx: Context) -> None:
    ctx.step(f"at {timezone.now()}", print)  # durable: allow[W101, W131] the code under test


@stopped
@pytest.mark.parametrize("wrong", [by_class, by_date, by_time, by_django])
def test_the_clock_between_steps_is_told(
    stop: Callable[[], AbstractContextManager[Any]], wrong: Callable[[Context], None]
) -> None:
    with stop(), Harness() as h, pytest.raises(NotDeterministicError):
        h.run(h.start(wrong))


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("redis_connection")
class TestWorkers:
    @pytest.fixture
    def flow(self) -> Any:
        made = workflow(name="stopped_clocks.flow")(lambda ctx: ctx.step("read", years))
        yield made
        registry.registry.unregister(made)

    @stopped
    def test_a_worker_in_the_process_executes_runs(
        self, flow: Any, stop: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        with stop():
            handle = flow.start()
            work_off()
            assert handle.result(timeout=10) == [2020] * 4

    @stopped
    def test_a_wait_for_a_result_ends(self, flow: Any, stop: Callable[[], AbstractContextManager[Any]]) -> None:
        with stop():
            handle = flow.start()
            with pytest.raises(TimeoutError, match=r"after 0\.2 s"):
                handle.result(timeout=0.2)
