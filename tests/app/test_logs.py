"""Log records say which run they are about, whoever logs them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from durable import AsyncContext, Context, current_step, signals
from durable.logs import RunFilter
from durable.testing import Harness

logger = logging.getLogger("somebody.else")


@pytest.fixture
def records() -> Iterator[list[tuple[Any, ...]]]:
    """What went through a handler with the filter, by message."""
    seen: list[tuple[Any, ...]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            values: Any = record
            seen.append((record.getMessage().partition(":")[0], values.run_id, values.workflow, values.location))

    handler = Handler()
    handler.addFilter(RunFilter())
    logging.getLogger().addHandler(handler)
    logger.setLevel(logging.INFO)
    yield seen
    logging.getLogger().removeHandler(handler)


def _work() -> None:
    logger.info("working")


async def _work_async() -> None:
    logger.info("working at %s", current_step().location)


def logging_workflow(ctx: Context) -> None:
    logger.info("between")
    ctx.step("a", _work)
    ctx.try_block("block", lambda c: c.logger.warning("own"))


async def logging_async(ctx: AsyncContext) -> None:
    await ctx.step("a", _work)
    await ctx.step("b", _work_async)


def _fail() -> None:
    raise ValueError("no")


def test_a_record_has_run_workflow_and_location(records: list[tuple[Any, ...]]) -> None:
    with Harness() as h:
        h.finish(h.start(logging_workflow, id="one"))
        logger.info("outside")
    assert records == [
        ("between", "one", "harness.logging_workflow", ""),
        ("working", "one", "harness.logging_workflow", "a"),
        ("own", "one", "harness.logging_workflow", "block"),
        ("outside", "", "", ""),
    ]


def test_in_an_async_workflow_too(records: list[tuple[Any, ...]]) -> None:
    with Harness() as h:
        h.finish(h.start(logging_async, id="one"))
    assert [record[1:] for record in records] == [
        ("one", "harness.logging_async", "a"),
        ("one", "harness.logging_async", "b"),
    ]


def test_what_a_receiver_says_is_about_the_run(records: list[tuple[Any, ...]]) -> None:
    def receive(**_: object) -> None:
        logger.info("received")

    signals.run_completed.connect(receive)
    try:
        with Harness() as h:
            h.finish(h.start(lambda ctx: None, id="one"))
    finally:
        signals.run_completed.disconnect(receive)
    assert records == [("received", "one", "harness.lambda", "")]


def test_what_durable_says_of_a_failure_has_them_as_well(records: list[tuple[Any, ...]]) -> None:
    with Harness() as h:
        h.finish(h.start(lambda ctx: ctx.step("a", _fail, max_retries=0), id="one"))
    assert [record[1:] for record in records if record[0] == "run one"] == [("one", "harness.lambda", "a")]
    assert all(record[1:3] == ("one", "harness.lambda") for record in records)
