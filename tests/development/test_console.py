"""The lines that a worker prints at `-v 2`: what each says, and that nothing in a name or a message gets out raw."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management.color import color_style, no_style
from django.test import override_settings

from durable import Context, CriticalError, Unknown, workflow
from durable.cli import console
from durable.core.control_flow import LeaseLost, PassAborted
from durable.core.errors import ErrorInfo
from durable.core.journal import Event
from durable.core.records import RunRecord
from durable.core.run_pass import PassOutcome
from durable.instrumentation import observers
from durable.testing import Harness
from tests.development.conftest import Run, Start
from tests.development.project import Project
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

Lines = list[str]
TIMES = re.compile(r"(<1|\d+) ms|\d+(\.\d+)? s\b")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """The lines printed in 2026, with their times as T."""
    monkeypatch.setattr(console, "moments", SimpleNamespace(now=lambda: datetime(2026, 6, 1, tzinfo=UTC)))
    found: Lines = []
    printer = console.StepLines(lambda line: found.append(TIMES.sub("T", line)), no_style())
    observers.install(printer)
    yield found
    observers.uninstall(printer)


def nothing() -> None:
    """A step that works."""


def broken() -> None:
    raise ConnectionError("503")


def cannot_tell() -> Unknown:
    return Unknown("the bank is away")


def undo(rollback: object, output: object) -> None:
    """A rollback handler that works."""


def finish(flow: Any, **options: Any) -> None:
    """Pass the run "a" of this workflow to its end, in a harness with these options."""
    with Harness(**options) as h:
        h.start(flow, id="a")
        h.finish("a")


def settle(flow: Any, **options: Any) -> None:
    """Pass the run "a" of this workflow until it rests."""
    with Harness(**options) as h:
        h.start(flow, id="a")
        h.settle()


class TestWording:
    def test_steps_and_a_sleep(self, lines: Lines) -> None:
        @workflow(name="shop.packs")
        def packs(ctx: Context) -> None:
            ctx.step("charge", nothing)
            ctx.step("pack", nothing)
            ctx.sleep("cool off", timedelta(days=400))
            ctx.step("ship", nothing)

        with Harness(now=datetime(2026, 1, 1, 14, 30, tzinfo=UTC)) as h:
            h.start(packs, id="order-1")
            h.finish("order-1")
        assert lines == [
            "shop.packs order-1: charge, T",
            "shop.packs order-1: pack, T; sleeps until 5 Feb 2027 14:30",
            "shop.packs order-1: ship, T; completed",
        ]

    def test_a_moment_of_today_is_a_time(self) -> None:
        from durable.core import clock

        today = clock.now().astimezone(UTC)
        with override_settings(TIME_ZONE="UTC"):
            assert console._at(today.replace(hour=14, minute=0, second=0)) == "14:00"
            assert console._at(today.replace(hour=14, minute=0, second=5)) == "14:00:05"

    def test_messages(self, lines: Lines) -> None:
        @workflow(name="shop.asks")
        def asks(ctx: Context) -> None:
            ctx.queue.next("approval", names=["rejected", "approved"])
            ctx.queue.next_batch("more", names=["more"], timeout="2 days")

        with Harness(now=datetime(2026, 1, 1, tzinfo=UTC)) as h:
            h.start(asks, id="a")
            h.settle()
            h.send("a", "approved")
            h.finish("a")
        assert lines == [
            "shop.asks a: waits for a message in approved or rejected",
            "shop.asks a: waits for a message in more until 3 Jan 00:00",
            "shop.asks a: completed",
        ]

    def test_a_link(self, lines: Lines) -> None:
        @workflow(name="shop.pays")
        def pays(ctx: Context) -> None:
            branches = {
                "paid": lambda c: c.link("paid").wait("answer"),
                "cancelled": lambda c: c.queue.next("word", names=["cancel"]),
            }
            ctx.race("first", branches)

        settle(pays, now=datetime(2026, 1, 1, tzinfo=UTC))
        assert lines[0] == "shop.pays a: waits for the answer of link paid or a message in cancel"

    @pytest.mark.parametrize("verify", [None, cannot_tell])
    def test_a_step_that_is_held_because_nobody_knows(self, lines: Lines, verify: Any) -> None:
        @workflow(name="shop.charges")
        def charges(ctx: Context) -> None:
            ctx.step("charge", broken, once=True, verify=verify)

        settle(charges)
        failed = "shop.charges a: charge failed after T, attempt 1: ConnectionError: 503"
        if verify is None:
            assert lines == [f"{failed}; held, waits for a person"]
        else:
            first, second, third = lines
            assert first == f"{failed}; verify is asked"
            assert second == "shop.charges a: charge verified, T"
            assert third.startswith("shop.charges a: charge failed, attempt 1: ConnectionError: 503")
            assert third.endswith("; held, waits for a person")

    def test_a_step_that_is_held_because_its_attempts_are_used_up(self, lines: Lines) -> None:
        @workflow(name="shop.delivers", when_exhausted="hold")
        def delivers(ctx: Context) -> None:
            ctx.step("ship", broken, max_retries=0)

        settle(delivers)
        assert lines == [
            "shop.delivers a: ship failed after T, attempt 1: ConnectionError: 503; held, waits for a person"
        ]

    def test_a_held_step_that_fails_by_itself_is_no_sleep(self, lines: Lines) -> None:
        @workflow(name="shop.charges_for_a_day")
        def charges(ctx: Context) -> None:
            ctx.step("charge", broken, once=True, unknown_timeout="1 day")

        with Harness(now=datetime(2026, 1, 1, tzinfo=UTC)) as h:
            h.run(h.start(charges, id="a"))
        held = "held, waits for a person, until 2 Jan 00:00"
        assert lines == [f"shop.charges_for_a_day a: charge failed after T, attempt 1: ConnectionError: 503; {held}"]

    def test_a_step_in_doubt_has_no_attempt(self, lines: Lines) -> None:
        @workflow(name="shop.charges_in_doubt")
        def charges(ctx: Context) -> None:
            ctx.step("charge", broken)

        with Harness() as h:
            run = h.start(charges, id="a")
            h.put_in_doubt()
            h.run(run)
        [line] = lines
        assert line.startswith(
            "shop.charges_in_doubt a: charge may have been done: DatabaseWentBack: the database went"
        )
        assert line.endswith("; held, waits for a person")

    def test_failures_and_the_end(self, lines: Lines) -> None:
        @workflow(name="shop.fails")
        def fails(ctx: Context) -> None:
            ctx.rollback_checkpoint("from here")
            ctx.step("charge", nothing, rollback=undo)
            ctx.step("ship", broken, max_retries=1, retry_backoff_base=86_400, retry_backoff_max=86_400)

        finish(fails, now=datetime(2026, 1, 1, tzinfo=UTC))
        first, second, third, fourth = lines
        assert first == "shop.fails a: charge, T"
        assert second.startswith(
            "shop.fails a: ship failed after T, attempt 1: ConnectionError: 503; tries again at 2 Jan"
        )
        assert third == "shop.fails a: ship failed after T, attempt 2: ConnectionError: 503; is not tried again"
        assert fourth.startswith("shop.fails a: charge undone, T; failed: StepExhaustedError")

    def test_branches(self, lines: Lines) -> None:
        @workflow(name="shop.both")
        def both(ctx: Context) -> None:
            ctx.join("ship", {"label": lambda c: c.step("buy", nothing), "mail": lambda c: c.step("send", nothing)})

        finish(both)
        assert lines == ["shop.both a: ship / label / buy, T", "shop.both a: ship / mail / send, T; completed"]

    def test_a_critical_error(self, lines: Lines) -> None:
        def declined() -> None:
            raise CriticalError("declined")

        @workflow(name="shop.declined")
        def charge(ctx: Context) -> None:
            ctx.step("charge", declined)

        finish(charge)
        assert (
            lines[0] == "shop.declined a: charge failed after T, attempt 1: CriticalError: declined; is not tried again"
        )
        assert lines[1].startswith("shop.declined a: failed: CriticalError")

    def test_code_that_does_not_fit(self, lines: Lines) -> None:
        names = ["one", "two"]

        @workflow(name="shop.changes")
        def changes(ctx: Context) -> None:
            ctx.step(names.pop(0), nothing)
            ctx.sleep("nap", 3600)

        with Harness(strict=False) as h:  # in the second pass it takes another way
            h.start(changes, id="a")
            h.finish("a")
        assert "HistoryDivergedError" in lines[-1]

    def test_a_mistake_in_the_code(self, lines: Lines) -> None:
        @workflow(name="shop.typo")
        def typo(ctx: Context) -> object:
            ctx.step("charge", nothing)
            return undefined_name  # type: ignore[name-defined]  # noqa: F821 - that is the mistake

        finish(typo)
        [line] = lines
        assert line.startswith("shop.typo a: charge, T; stopped by a mistake in the code, nothing was undone: ")
        assert "undefined_name" in line

    def test_a_mistake_that_is_tried_again(self, lines: Lines) -> None:
        printer = console.StepLines(lines.append, no_style())
        run = RunRecord(id="a", workflow="w", queue="default", input="", created_at=datetime.now(UTC))
        retry_at = datetime(2026, 6, 1, 14, tzinfo=UTC)
        for name in ("run_mistaken", "run_diverged"):
            ends = printer.pass_begins(run, retry_at)
            printer.event_happened(run, Event(name, {"error": ErrorInfo("NameError", "x"), "retry_at": retry_at}))
            ends(PassOutcome(state="sleeping", wake_at=retry_at), None)
        assert lines == [
            "w a: a mistake in the code, tried again at 14:00: NameError: x",
            "w a: the code does not fit its history, tried again at 14:00: NameError: x",
        ]

    def test_passes_that_were_cut_short(self, lines: Lines) -> None:
        printer = console.StepLines(lines.append, no_style())
        run = RunRecord(id="a", workflow="w", queue="default", input="", created_at=datetime.now(UTC))
        printer.pass_begins(run, datetime.now(UTC))(None, LeaseLost("a"))
        printer.pass_begins(run, datetime.now(UTC))(None, PassAborted("the store did not answer"))
        assert lines == [
            "w a: taken over by another worker",
            "w a: cut short, and tried again: the store did not answer",
        ]


class TestSafety:
    def test_what_is_not_printable_is_escaped(self, lines: Lines) -> None:
        def attack() -> None:
            raise ValueError("\x1b[2Jgone\r\nshop.other order-2: completed \u202egnp\udcff")

        @workflow(name="shop.attack")
        def attacked(ctx: Context) -> None:
            ctx.step("a\x1b[31mred\nstep", attack, max_retries=0)

        finish(attacked)
        assert all(line.isprintable() for line in lines)
        assert "\\x1b[2Jgone shop.other" in lines[0]
        assert "\\u202e" in lines[0]
        assert all(line.startswith("shop.attack a: ") for line in lines)

    def test_a_line_has_an_end(self, lines: Lines) -> None:
        def verbose() -> None:
            raise ValueError("ä" * 100_000)

        @workflow(name="shop.long")
        def long(ctx: Context) -> None:
            ctx.step("ü" * 128, verbose, max_retries=0)

        finish(long)
        assert max(len(line.encode()) for line in lines) < 4096 - 2

    def test_colours_are_the_styles(self) -> None:
        found: Lines = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DJANGO_COLORS", "dark")
            printer = console.StepLines(found.append, color_style(force_color=True))
        observers.install(printer)

        @workflow(name="shop.plain")
        def plain(ctx: Context) -> None:
            ctx.step("one", nothing)

        try:
            with Harness() as h:
                h.start(plain, id="a")
                h.finish("a")
        finally:
            observers.uninstall(printer)
        assert found[0].startswith("\x1b[")

    def test_lines_of_several_threads_do_not_mix(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
            write = console._writer(stream)
            found: Lines = []
            collector = threading.Thread(target=lambda: found.extend(line.rstrip("\n") for line in reader))
            collector.start()
            texts = [str(number) * 900 for number in range(8)]
            threads = [threading.Thread(target=lambda text=text: [write(text) for _ in range(50)]) for text in texts]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            stream.close()
            collector.join()
        assert sorted(found) == sorted(text for text in texts for _ in range(50))

    def test_a_reader_that_is_gone_ends_nothing(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            console._writer(stream)("nobody reads this")

    def test_failures_are_printed_once(self) -> None:
        logger = logging.getLogger("durable.pass")
        filters, observed = list(logger.filters), observers._installed
        stream = io.StringIO()
        try:
            console.install(stream, no_style())
            record = logger.makeRecord("durable.pass", logging.WARNING, "", 0, "text", (), None)
            assert logger.filter(record)  # this project has handlers
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(logger, "hasHandlers", lambda: False)
                assert not logger.filter(record)
        finally:
            logger.filters[:] = filters
            observers._installed = observed


@pytest.mark.django_db(transaction=True)
class TestWorker:
    def test_a_worker_tells_at_v_2_and_is_quiet_without(
        self, manage: Run, start: Start, store: Any, site: Project
    ) -> None:
        program = manage("durable_worker", "-v", "2", "--concurrency", "2")
        for number in range(5):
            start("shop.one", f"a{number}")
        start("shop.fails", "b")
        assert all(
            re.fullmatch(r"shop\.one a\d: tell, .*; completed", line) for line in program.wait_for("shop.one", 5)
        )
        assert r"ValueError: 503 \x1b[31m broken; tries again at" in program.wait_for("shop.fails b: fail failed")[0]
        program.wait_for("shop.fails b: failed: StepExhaustedError")
        assert not [line for line in program.lines if "step fail failed" in line or "\x1b" in line]
        program.end()
        quiet = manage("durable_worker")
        start("shop.one", "c")
        eventually(lambda: "c" in site.calls())
        quiet.end()
        assert not [line for line in quiet.lines if not line.startswith("durable_worker: ")]
