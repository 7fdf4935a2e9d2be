"""A test's own doing is not printed, and can be asserted."""

from __future__ import annotations

import io
import logging
import unittest
from collections.abc import Iterator
from typing import Any

import pytest

from durable import CriticalError
from durable.testing import Harness, SimulatedCrash


class Terminal(io.TextIOWrapper):
    """What is written to it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), write_through=True)

    def getvalue(self) -> str:
        return bytes(self.buffer.getvalue()).decode()  # type: ignore[attr-defined]  # of BytesIO


def declined() -> None:
    raise CriticalError("card declined")


def failing(ctx: Any) -> None:
    ctx.logger.warning("the workflow says so")
    ctx.step("charge", declined)


def failing_late(ctx: Any) -> None:
    for number in range(3):
        ctx.step(f"step {number}", lambda: None)
    failing(ctx)


@pytest.fixture(params=["root", "durable", "durable.pass"])
def printed(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """What a handler at one of the places writes where a project's logging may have one."""
    stream = Terminal()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger(None if request.param == "root" else request.param)
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def test_what_a_pass_provokes_is_not_printed(printed: Terminal) -> None:
    with Harness() as h:
        assert h.finish(h.start(failing)).state == "failed"
        logging.getLogger("durable.pass").warning("of another")
    assert "declined" not in printed.getvalue()
    assert "of another" in printed.getvalue(), "muted during passes alone"


@pytest.mark.parametrize("quiet", [True, False])
def test_nor_is_it_where_the_project_configures_no_logging(quiet: bool) -> None:
    """Python prints warnings then, by itself."""
    stream = Terminal()
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])
        for name in ("durable", "durable.pass", "durable.workflow"):
            patch.setattr(logging.getLogger(name), "handlers", [])
        patch.setattr(logging, "lastResort", handler)
        with Harness(quiet=quiet) as h:
            h.finish(h.start(failing))
    assert ("card declined" in stream.getvalue()) != quiet


def test_it_is_printed_where_the_test_asks_for_it(printed: Terminal) -> None:
    with Harness(quiet=False) as h:
        h.finish(h.start(failing))
    assert "card declined" in printed.getvalue()


def test_what_the_workflow_logs_is_printed() -> None:
    stream = Terminal()
    handler = logging.StreamHandler(stream)
    logging.root.addHandler(handler)
    try:
        with Harness() as h:
            h.finish(h.start(failing))
    finally:
        logging.root.removeHandler(handler)
    assert stream.getvalue().splitlines() == ["the workflow says so"]


class Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_handlers_of_the_tests_caplog_and_assert_logs_have_it(caplog: pytest.LogCaptureFixture) -> None:
    collecting, stream = Collecting(), io.StringIO()
    handlers = [collecting, logging.StreamHandler(stream)]
    for each in handlers:
        logging.getLogger("durable").addHandler(each)
    try:
        with Harness() as h:
            h.finish(h.start(failing))
    finally:
        for each in handlers:
            logging.getLogger("durable").removeHandler(each)
    assert any("card declined" in each for each in collecting.texts)
    assert "card declined" in stream.getvalue()
    assert "card declined" in caplog.text
    assert "the workflow says so" in caplog.text
    with unittest.TestCase().assertLogs("durable.pass") as logs, Harness() as h:
        h.finish(h.start(failing))
    assert any("card declined" in line for line in logs.output)


@pytest.mark.parametrize("quiet", [True, False])
def test_of_the_deaths_of_crash_everywhere_nothing_is_left(
    printed: Terminal, caplog: pytest.LogCaptureFixture, quiet: bool
) -> None:
    with Harness(quiet=quiet) as h:
        deaths = h.crash_everywhere(failing_late)
    assert deaths > 6
    assert bool(printed.getvalue()) != quiet or printed.getvalue() == "the workflow says so\n"
    count = sum("failed: CriticalError: card declined" in each for each in caplog.messages)
    assert count == 1 if quiet else count > 3, "that of the undisturbed run, or those of all"


def test_the_handlers_are_as_before(printed: Terminal) -> None:
    def filters() -> list[int]:
        return [len(each.filters) for each in [*logging.root.handlers, *logging.getLogger("durable").handlers]]

    before = filters()
    with Harness() as h:
        h.crash_everywhere(failing)
        with h.crash_at(1), pytest.raises(SimulatedCrash):
            h.run(h.start(failing))
    assert filters() == before
