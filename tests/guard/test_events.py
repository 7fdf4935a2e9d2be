"""Files, sockets, processes and a changed input between two operations of a workflow."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from durable import AsyncContext, Context
from durable.testing import Harness
from tests.guard.passing import passed, refused


def connect(address: tuple[str, int]) -> str:
    with socket.create_connection(address) as connected:
        return str(connected.getpeername()[0])


def run_program() -> str:
    return subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def server() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


class TestFiles:
    def test_a_file_that_is_written_is_refused(self, h: Harness, tmp_path: Path) -> None:
        target = tmp_path / "written.txt"

        def writes(ctx: Context) -> None:
            target.write_text("between")

        told = refused(passed(h, writes))
        assert f"the file {target} opened for writing (tests/guard/test_events.py, line " in told
        assert not target.exists()

    def test_so_is_one_that_is_opened_by_the_operating_systems_call(self, h: Harness, tmp_path: Path) -> None:
        def writes(ctx: Context) -> None:
            os.close(os.open(tmp_path / "made", os.O_CREAT | os.O_WRONLY))

        refused(passed(h, writes))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("change", "doing"),
        [
            (lambda there: there.unlink(), "removed"),
            (lambda there: there.rename(there.with_name("other")), "renamed"),
            (lambda there: there.replace(there.with_name("other")), "renamed"),
            (lambda there: shutil.move(there, there.with_name("other")), "renamed"),
            (lambda there: there.with_name("new").mkdir(), "made"),
            (lambda there: (there.with_name("a") / "b").mkdir(parents=True), "made"),
            (lambda there: tempfile.mkdtemp(dir=there.parent), "made"),
            (lambda there: (there.parent / "empty").rmdir(), "removed"),
            (lambda there: shutil.rmtree(there.parent / "empty"), "removed"),
            (lambda there: there.with_name("new").symlink_to(there), "linked"),
            (lambda there: there.with_name("new").hardlink_to(there), "linked"),
            (lambda there: there.chmod(0o600), "given another mode"),
            (lambda there: os.truncate(there, 1), "truncated"),
            (lambda there: shutil.copyfile(there, there.with_name("new")), "opened for writing"),
            (lambda there: tempfile.NamedTemporaryFile(dir=there.parent).close(), "opened for writing"),
        ],
    )
    def test_a_file_that_is_changed_without_being_opened_is_refused(
        self, h: Harness, tmp_path: Path, change: Callable[[Path], object], doing: str
    ) -> None:
        there = tmp_path / "there"
        there.write_text("as it was")
        there.chmod(0o644)
        (tmp_path / "empty").mkdir()
        before = there.stat()

        def changes(ctx: Context) -> None:
            change(there)

        told = refused(passed(h, changes))
        assert f" {doing} (tests/guard/test_events.py, line " in told
        assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "there"]
        assert (there.read_text(), there.stat().st_mode) == ("as it was", before.st_mode)

    def test_a_step_may_change_files(self, h: Harness, tmp_path: Path) -> None:
        def cleans(ctx: Context) -> list[str]:
            ctx.step("make", (tmp_path / "made").mkdir)
            ctx.step("remove", (tmp_path / "made").rmdir)
            return [each.name for each in tmp_path.iterdir()]

        assert passed(h, cleans).output == []

    def test_reading_is_left_to_the_linter(self, h: Harness) -> None:
        def reads(ctx: Context) -> int:
            return len(Path(__file__).read_text())

        assert passed(h, reads).state == "completed"

    def test_a_step_may_write(self, h: Harness, tmp_path: Path) -> None:
        target = tmp_path / "written.txt"

        def writes(ctx: Context) -> int:
            return ctx.step("write", lambda: target.write_text("in a step"))

        assert passed(h, writes).output == 9

    def test_what_a_logger_does_is_its_own(self, h: Harness, tmp_path: Path) -> None:
        handler = logging.FileHandler(tmp_path / "workflow.log", delay=True)
        logger = logging.getLogger("durable.workflow")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:

            def logs(ctx: Context) -> None:
                ctx.logger.info("between two steps")

            assert passed(h, logs).state == "completed"
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            handler.close()
        assert (tmp_path / "workflow.log").read_text() == "between two steps\n"

    def test_an_import_may_write_what_it_compiles(
        self, h: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "late_module_of_a_workflow.py").write_text("VALUE = 7\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        monkeypatch.setattr(sys, "pycache_prefix", None)

        def imports(ctx: Context) -> int:
            import late_module_of_a_workflow  # type: ignore[import-not-found]  # written above

            return int(late_module_of_a_workflow.VALUE)

        assert passed(h, imports).output == 7
        assert list((tmp_path / "__pycache__").iterdir())


class TestSocketsAndProcesses:
    def test_a_connection_is_refused(self, h: Harness, server: tuple[str, int]) -> None:
        told = refused(passed(h, lambda ctx: connect(server)))
        assert f"a connection to 127.0.0.1:{server[1]} (tests/guard/test_events.py, line " in told
        assert 'ctx.step("call the service", function)' in told

    def test_a_step_may_connect(self, h: Harness, server: tuple[str, int]) -> None:
        assert passed(h, lambda ctx: ctx.step("call", connect, server)).output == "127.0.0.1"

    def test_an_async_step_may_connect(self, h: Harness, server: tuple[str, int]) -> None:
        async def calls() -> str:
            return connect(server)

        async def workflow(ctx: AsyncContext) -> str:
            return await ctx.step("call", calls)

        assert passed(h, workflow).output == "127.0.0.1"

    def test_async_code_is_refused_too(self, h: Harness, server: tuple[str, int]) -> None:
        async def workflow(ctx: AsyncContext) -> str:
            return connect(server)

        assert 'await ctx.step("call the service", function)' in refused(passed(h, workflow))

    def test_a_process_is_refused(self, h: Harness) -> None:
        assert f"the process {sys.executable}" in refused(passed(h, lambda ctx: run_program()))

    def test_a_step_may_run_one(self, h: Harness) -> None:
        assert passed(h, lambda ctx: ctx.step("run", run_program)).output == "1\n"

    def test_log_lets_it_happen(self, h: Harness, caplog: pytest.LogCaptureFixture) -> None:
        with override_settings(DURABLE={"GUARD": "log"}):
            assert passed(h, lambda ctx: run_program()).output == "1\n"
        assert [each.name for each in caplog.records] == ["durable.guard"]

    def test_off_says_nothing(self, h: Harness, caplog: pytest.LogCaptureFixture) -> None:
        with override_settings(DURABLE={"GUARD": "off"}):
            assert passed(h, lambda ctx: run_program()).output == "1\n"
        assert caplog.records == []


@dataclass
class Order:
    lines: list[str] = field(default_factory=list)


class TestInput:
    def test_a_changed_input_is_told(self, h: Harness) -> None:
        def changes(ctx: Context, event: dict[str, str]) -> None:
            event["name"] = ctx.step("look up", str, "Ada")

        assert 'the input "event" was changed during the pass' in refused(
            passed(h, changes, {"user": "ada"}), "InputChangedError"
        )

    def test_a_step_that_changes_it_is_told_when_the_run_parks(self, h: Harness) -> None:
        def changes(ctx: Context, order: Order) -> None:
            ctx.step("add", lambda: order.lines.append("shipping"))
            ctx.sleep("a nap", 3600)

        refused(passed(h, changes, Order()), "InputChangedError")

    def test_async_workflows_too(self, h: Harness) -> None:
        async def changes(ctx: AsyncContext, *names: list[str]) -> None:
            names[0].append("c")
            await ctx.sleep("a nap", 3600)

        assert "argument 1" in refused(passed(h, changes, ["a", "b"]), "InputChangedError")

    def test_a_copy_may_be_changed(self, h: Harness) -> None:
        def copies(ctx: Context, names: list[str]) -> list[str]:
            names = [*names, "c"]
            names.append("d")
            return names

        assert passed(h, copies, ["a"]).output == ["a", "c", "d"]

    def test_the_error_of_the_workflow_goes_on_if_nothing_was_changed(self, h: Harness) -> None:
        def fails(ctx: Context, names: list[str]) -> None:
            raise ValueError("its own")

        found = passed(h, fails, ["a"])
        assert found.error is not None
        assert found.error.message == "its own"
