"""The handler that keeps the log of each run: what it keeps, what it costs a pass, and what it survives."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from durable import Context, workflow
from durable.inspection.events import read_logs
from durable.logs import RunLogHandler
from durable.models import LogLine, Run
from durable.retention import Policy, Pruner
from tests.admin.conftest import Stage
from tests.admin.pages import printed, text_of, url

pytestmark = pytest.mark.django_db(transaction=True)

logger = logging.getLogger("a.library")
LOGGED = [
    ("INFO", "durable.workflow", "", "begun"),
    ("WARNING", "a.library", "charge", "slow bank"),
    ("ERROR", "durable.workflow", "ship", "no label\x1b[31m\n<b>"),
]


def charge() -> None:
    logger.warning("slow %s", "bank")
    logger.debug("not kept")


@workflow(name="tests.talkative")
def talkative(ctx: Context, times: int = 1) -> None:
    ctx.logger.info("begun")
    ctx.step("charge", charge)
    ctx.try_block("ship", lambda scope: scope.logger.error("no label\x1b[31m\n<b>"))
    for _ in range(times - 1):
        ctx.logger.info("x" * 100)


@pytest.fixture
def handler() -> Iterator[RunLogHandler]:
    with _installed(RunLogHandler(logging.INFO)) as handler:
        yield handler


@contextmanager
def _installed(handler: RunLogHandler) -> Iterator[RunLogHandler]:
    """Inside, the handler gets every record."""
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def lines_of(run_id: str = "run", **wanted: Any) -> list[tuple[str, str, str, str]]:
    run = Run.objects.get(pk=run_id)
    return [(each.level, each.logger, each.location, each.text) for each in read_logs(run, **wanted)]


class TestWhatIsKept:
    def test_the_workflow_its_steps_and_libraries(self, stage: Stage, handler: RunLogHandler) -> None:
        logger.warning("of no run")
        stage.start(talkative, id="run")
        handler.flush()
        assert lines_of() == LOGGED
        assert LogLine.objects.count() == len(LOGGED)

    def test_levels_and_places(self, stage: Stage, handler: RunLogHandler) -> None:
        stage.start(talkative, id="run")
        handler.flush()
        assert lines_of(level="WARNING") == LOGGED[1:]
        assert lines_of(place="charge") == [LOGGED[1]]
        assert lines_of(place="char") == []
        first, second, third = LogLine.objects.values_list("id", flat=True)
        assert lines_of(after=first) == LOGGED[1:]
        assert lines_of(before=third, limit=1) == [LOGGED[1]]
        assert second

    @pytest.mark.slow
    def test_the_newest_of_each_run(self, stage: Stage) -> None:
        with _installed(RunLogHandler(lines=20)) as handler:
            for number in range(10):
                stage.start(talkative, 20, id=f"run-{number}")
                handler.flush()
            stage.start(talkative, 50, id="run")
        assert 20 <= LogLine.objects.filter(run="run").count() <= 22
        assert "begun" not in [text for *_, text in lines_of("run")]
        assert LogLine.objects.exclude(run="run").count() <= 10 * 22

    def test_no_more_than_the_bytes(self, stage: Stage) -> None:
        with _installed(RunLogHandler(lines=200, max_bytes=1_000)) as handler:
            stage.start(talkative, 60, id="run")
            handler.flush()
        assert 5 <= LogLine.objects.filter(run="run").count() <= 10

    def test_a_long_line_is_cut(self, stage: Stage, handler: RunLogHandler) -> None:
        stage.start(talkative, id="run")
        logger.info("x" * 1_000_000, extra={"run_id": "run"})
        handler.flush()
        assert len(lines_of()[-1][3]) == 8_000

    def test_lines_of_runs_that_are_gone_are_dropped(self, stage: Stage, handler: RunLogHandler) -> None:
        logger.info("late", extra={"run_id": "gone"})
        handler.flush()
        assert not LogLine.objects.exists()

    def test_they_are_pruned_with_their_run(self, stage: Stage, handler: RunLogHandler) -> None:
        stage.start(talkative, id="run")
        handler.flush()
        stage.advance(days=2)
        for _ in Pruner(Policy.of(86_400), "default").batches(stage.now):
            pass
        assert not Run.objects.exists()
        assert not LogLine.objects.exists()


class TestWhatItCosts:
    def test_a_pass_makes_the_same_statements(self, stage: Stage) -> None:
        def statements(run_id: str) -> list[str]:
            with CaptureQueriesContext(connection) as captured:
                stage.start(talkative, id=run_id)
            return [each["sql"] for each in captured.captured_queries]

        plain = statements("plain")
        with _installed(RunLogHandler()) as handler:
            kept = statements("kept")
            handler.flush()
        assert len(plain) == len(kept)
        assert not any("logline" in each for each in kept)
        assert LogLine.objects.count() == len(LOGGED)

    def test_a_transaction_that_is_rolled_back_loses_no_line(self, stage: Stage, handler: RunLogHandler) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("one transaction at a time writes")
        stage.start(talkative, id="run")
        handler.flush()
        with transaction.atomic():
            Run.objects.select_for_update().get(pk="run")  # as a commit of the run's pass locks it
            logger.error("before the rollback", extra={"run_id": "run"})
            handler.flush()
            assert "before the rollback" in [text for *_, text in lines_of()]
            transaction.set_rollback(True)
        assert "before the rollback" in [text for *_, text in lines_of()]

    def test_the_memory_is_bounded(self, stage: Stage) -> None:
        handler = RunLogHandler(waiting=10)
        with _installed(handler), handler.lock:  # type: ignore[union-attr]  # a handler has one
            for number in range(1_000):
                logger.info("%d", number, extra={"run_id": "run"})
                assert len(handler._waiting) <= 10

    def test_a_forked_child_writes_its_own_lines_alone(self, stage: Stage, handler: RunLogHandler) -> None:
        stage.start(talkative, id="run")
        handler.flush()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # the child's part: no test goes on there
            handler._start()
            alive = [each.name for each in threading.enumerate()]
            os.write(write, json.dumps([len(handler._waiting), alive.count("durable-logs")]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert json.loads(os.read(read, 100)) == [0, 1]
        os.close(read)
        os.close(write)


class TestSurfaces:
    @pytest.fixture
    def logged(self, stage: Stage, handler: RunLogHandler) -> Run:
        run = stage.start(talkative, id="run")
        handler.flush()
        return run

    def page(self, client: Client, **query: str) -> str:
        """The part of the run's page with its log."""
        return text_of(client.get(url("change", "run"), {"part": "logs", **query}))

    def test_the_page_shows_them_escaped_and_filtered(self, logged: Run, operator: Client) -> None:
        page = self.page(operator)
        assert "slow bank" in page
        assert "&lt;b&gt;" in page
        assert "\x1b" not in page
        page = self.page(operator, level="ERROR", place="ship")
        assert "slow bank" not in page
        assert "no label" in page
        assert "No line of the log is like that" in self.page(operator, place="nowhere")

    def test_a_new_line_is_a_change_of_the_page(self, logged: Run, operator: Client, handler: RunLogHandler) -> None:
        page = operator.get(url("live", "run"), {"part": "logs"})
        known = {"If-None-Match": page["ETag"]}
        assert operator.get(url("live", "run"), {"part": "logs"}, headers=known).status_code == 304
        logger.info("news", extra={"run_id": "run"})
        handler.flush()
        assert "news" in text_of(operator.get(url("live", "run"), {"part": "logs"}, headers=known))

    def test_they_need_the_permission_to_see_payloads(self, logged: Run, log_in: Callable[..., Client]) -> None:
        viewer = log_in("view_run")
        assert "slow bank" not in self.page(viewer)
        assert "durable.view_payload" in self.page(viewer)
        assert viewer.get("/api/runs/run/logs").status_code == 403

    def test_rest_pages_them(self, logged: Run, operator: Client) -> None:
        def read(**query: Any) -> Any:
            answer = operator.get("/api/runs/run/logs", query)
            assert answer.status_code == 200, answer.content
            return answer.json()

        assert [each["text"] for each in read()["results"]] == [text for *_, text in LOGGED]
        first = read(limit=2)
        assert [each["location"] for each in read(after=first["next_after"])["results"]] == ["ship"]
        assert read(after=first["next_after"])["next_after"] is None
        assert [each["level"] for each in read(level="ERROR")["results"]] == ["ERROR"]
        assert operator.get("/api/runs/run/logs", {"level": "LOUD"}).status_code == 400
        assert operator.get("/api/runs/nobody/logs").status_code == 404

    def test_the_command_line_prints_them_safely(self, logged: Run) -> None:
        *lines, rest = printed("logs", "run").splitlines()
        assert [line[20:] for line in lines] == [
            "INFO     begun",
            "WARNING  charge: slow bank",
            "ERROR    ship: no label\\x1b[31m",
        ]
        assert rest == "    <b>"
        found = printed("logs", "run", "-o", "json", "--level", "ERROR").splitlines()
        assert [json.loads(line)["location"] for line in found] == ["ship"]

    def test_the_command_line_follows_until_the_end(self, logged: Run) -> None:
        assert printed("logs", "run", "--follow", "--interval", "0.05").count("slow bank") == 1

    def test_redaction_holds(self, logged: Run, operator: Client, settings: Settings) -> None:
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.broken"}
        page = self.page(operator)
        assert "slow bank" not in page
        assert "the redaction hook failed" in page

    def test_a_project_without_the_handler_is_told(self, stage: Stage, operator: Client) -> None:
        stage.start(talkative, id="run")
        assert "switch on durable.logs.RunLogHandler" in self.page(operator)

    def test_a_link_to_the_traces(self, stage: Stage, operator: Client, settings: Settings) -> None:
        from durable.instrumentation.tracing import run_context, trace_id_of

        stage.start(talkative, id="run")
        assert "Traces of this run" not in text_of(operator.get(url("change", "run")))
        settings.DURABLE = {**settings.DURABLE, "TRACE_URL": "https://traces.example.org/{trace_id}?run={run_id}"}
        page = text_of(operator.get(url("change", "run")))
        assert f'href="https://traces.example.org/{trace_id_of("run")}?run=run"' in page
        assert f"{run_context('run').trace_id:032x}" == trace_id_of("run")
