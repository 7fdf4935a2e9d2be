"""What must not be done between the steps of a workflow, and is noticed at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from durable import Context, OutsideStepError, get_run, workflow
from durable.testing import Harness


@workflow(name="tests.misuse.child")
def child(ctx: Context) -> int:
    return 1


def test_a_start_without_an_id_between_steps_is_refused() -> None:
    def ship(ctx: Context) -> None:
        child.start()

    with Harness() as h:
        ended = h.run(h.start(ship))
    assert ended.error is not None
    assert ended.error.type == OutsideStepError.__name__
    assert "start it in a step, or with using(id=...)" in ended.error.message


def test_a_start_in_a_step_or_with_an_id_is_not() -> None:
    def ship(ctx: Context) -> list[Any]:
        inside = ctx.step("start", lambda: child.start().id)
        named = child.using(id=f"{ctx.run_id}-child").start()
        ctx.sleep("nap", "1 hour")
        return [inside, named.id]

    with Harness() as h:
        handle = h.start(ship, id="parent")
        inside, named = h.finish(handle).output
        assert named == "parent-child"
        assert [h.peek(each).state for each in (inside, named)] == ["completed", "completed"]


def test_a_harness_that_is_not_in_force_says_so() -> None:
    with pytest.raises(RuntimeError, match="with Harness"):
        Harness().start(child)


def test_the_mistakes_of_a_first_day_are_explained() -> None:
    with pytest.raises(TypeError, match=r"start a run of it with \.start"):
        child(42)  # type: ignore[call-overload]  # the mistake
    with pytest.raises(TypeError, match=r"get_run\(str"):
        get_run(42)  # type: ignore[call-overload]  # the mistake
    with pytest.raises(TypeError, match="takes no context"):

        @workflow  # type: ignore[arg-type]  # the mistake
        def bare() -> None: ...


def test_a_failure_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def ship(ctx: Context) -> None:
        ctx.step("charge", lambda: 1 / 0, max_retries=0)

    with Harness() as h, caplog.at_level(logging.WARNING, logger="durable"):
        h.run(h.start(ship, id="order-1"))
    texts = [record.getMessage() for record in caplog.records]
    assert any("step charge failed, attempt 1: ZeroDivisionError" in text for text in texts)
    assert any("run order-1 of harness.ship failed: StepExhaustedError" in text for text in texts)
