"""Log records say which run they are about, for every logger."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import durable
from durable import AsyncContext, Context, current_step, signals
from durable.logs import LOGGERS, OneLine, RunFilter
from durable.testing import Harness

logger = logging.getLogger("somebody.else")


@pytest.fixture
def records() -> Iterator[list[tuple[Any, ...]]]:
    """What went through a handler with the filter, by message.

    Left out is what threads of other tests log meanwhile, and what the collector of garbage makes asyncio say.
    """
    seen: list[tuple[Any, ...]] = []
    own = threading.get_ident()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "asyncio" or (record.thread != own and record.name != logger.name):
                return
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


def test_the_second_replay_logs_nothing_when_all_loggers_are_enabled(
    records: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logging.config` enables each logger that has a name, unless it is told to disable them."""
    for each in logging.root.manager.loggerDict.values():
        if isinstance(each, logging.Logger):
            monkeypatch.setattr(each, "disabled", False)
    with Harness() as h:
        h.finish(h.start(logging_workflow, id="one"))
    assert [record[0] for record in records] == ["between", "working", "own"]


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


# -- what durable itself logs is one line

EVIL = "\x1b[2J\x1b]0;PWNED\x07\r\n2026-01-01 00:00:00,000 INFO auth: admin logged in \u202e\u2028 \ud800"
SHOWN = r"\x1b[2J\x1b]0;PWNED\x07\r\n2026-01-01 00:00:00,000 INFO auth: admin logged in \u202e\u2028 \ud800"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a handler with an ordinary format has written of durable's records."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def _fail_evilly() -> None:
    raise ValueError(EVIL)


def evil(ctx: Context) -> None:
    ctx.step(f"a{EVIL[:40]}", _fail_evilly, max_retries=0)


def test_an_error_forges_no_record_and_no_command_of_a_terminal(written: io.StringIO) -> None:
    with Harness(quiet=False) as h:
        h.start(evil, id="run")
        h.run("run")
    lines = written.getvalue().splitlines()
    told = [line for line in lines if not line.startswith("  ")]
    assert len(told) == 2  # the step, and the run, with its traceback indented below it
    assert all(SHOWN in line for line in told)
    assert all(line.isprintable() for line in lines)


def _receiver(**_: Any) -> None:
    raise RuntimeError(EVIL)


def test_a_traceback_is_indented_below_its_record(written: io.StringIO) -> None:
    with Harness(quiet=False) as h:
        signals.run_failed.connect(_receiver)
        try:
            h.start(evil, id="run")
            h.run("run")
        finally:
            signals.run_failed.disconnect(_receiver)
    first, *rest = written.getvalue().partition("ERROR durable: receiver")[2].rstrip("\n").split("\n")
    assert "_receiver" in first
    assert len(rest) > 3
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert any("admin logged in" in line for line in rest)


def test_numbers_and_records_of_the_workflow_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("durable.pass").warning("%d of %.1f: %s, %r", 3, 0.25, None, "a\nb")
    logging.getLogger("durable.workflow").warning("two\nlines")
    assert [record.getMessage() for record in caplog.records] == [r"3 of 0.2: None, a\nb", "two\nlines"]


def test_every_logger_of_durable_is_guarded() -> None:
    sources = (Path(durable.__file__).parent).rglob("*.py")
    named = {name for source in sources for name in re.findall(r'getLogger\("(durable[^"]*)"\)', source.read_text())}
    assert named - {"durable.workflow"} == set(LOGGERS)
    for name in LOGGERS:
        assert sum(isinstance(each, OneLine) for each in logging.getLogger(name).filters) == 1
