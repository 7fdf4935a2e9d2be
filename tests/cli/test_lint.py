"""`durable lint`: its formats, its exit status, and the system check of the same rules."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.checks import run_checks

from durable.core import registry
from durable.lint import RULES
from durable.management.commands.durable_worker import Command
from tests.cli.conftest import Shell

BAD = """\
import time
from durable import Context, workflow

@workflow(name="lint.bad")
def bad(ctx: Context, lines: list):
    ctx.step("a", lambda: time.time())
    time.time()
    lines.append(1)
"""
HINT = """\
from django.core.mail import send_mail
from durable import Context, workflow

@workflow(name="lint.hint")
def hint(ctx: Context):
    ctx.step("mail", lambda: send_mail("a", "b", "c", ["d"]))
"""


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "workflows.py"
    path.write_text(BAD)
    return str(path)


def test_findings_for_people(shell: Shell, bad: str) -> None:
    done = shell("lint", bad)
    assert done.status == 1
    assert done.lines[0] == f"{bad}:7: error W101: `time.time` reads the clock between steps. (lint.bad)"
    assert "Write ctx.now()" in done.out
    assert done.err == "1 error, 1 warning\n"


def test_the_format_has_the_name_that_it_has_elsewhere(shell: Shell, bad: str) -> None:
    for format in ("json", "sarif", "text"):
        done = shell("lint", bad, "--format", format)
        for option in ("-o", "--output"):
            assert shell("lint", bad, option, format) == done


def test_findings_for_programs(shell: Shell, bad: str) -> None:
    done = shell("lint", bad, "--format", "json")
    assert done.status == 1
    error, warning = done.json
    assert {name: error[name] for name in ("id", "path", "line", "workflow", "level")} == {
        "id": "W101",
        "path": bad,
        "line": 7,
        "workflow": "lint.bad",
        "level": "error",
    }
    assert sorted(error) == ["fix", "id", "level", "line", "message", "path", "workflow"]
    assert (warning["id"], warning["level"], warning["line"]) == ("W123", "warning", 8)


def test_findings_for_code_hosts(shell: Shell, bad: str) -> None:
    done = shell("lint", bad, "--format", "sarif")
    assert done.status == 1
    log = done.json
    [run] = log["runs"]
    assert log["version"] == "2.1.0"
    assert [each["id"] for each in run["tool"]["driver"]["rules"]] == [rule.id for rule in RULES]
    first = run["results"][0]
    assert (first["ruleId"], first["level"]) == ("W101", "error")
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": Path(bad).as_uri()}, "region": {"startLine": 7}}


def test_hints_alone_are_no_failure(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "workflows.py").write_text(HINT)
    done = shell("lint", str(tmp_path))
    assert (done.status, done.err) == (0, "1 hint\n")
    assert "hint W153" in done.out


def test_what_is_ignored_is_left_out(shell: Shell, bad: str) -> None:
    done = shell("lint", bad, "--ignore", "W101", "--ignore", "W123", "--format", "json")
    assert (done.status, done.json) == (0, [])


def test_an_unknown_finding_to_ignore_is_refused(shell: Shell, bad: str) -> None:
    done = shell("lint", bad, "--ignore", "W999")
    assert (done.status != 0, done.out) == (True, "")
    assert "there is no finding 'W999'; there are W100, W101, " in done.err


def test_a_path_that_does_not_exist(shell: Shell) -> None:
    done = shell("lint", "nowhere/at/all")
    assert done.status == 2
    assert "there is no file or directory nowhere/at/all" in done.err


def test_without_paths_the_files_of_all_workflows_are_read(shell: Shell) -> None:
    done = shell("lint")
    assert (done.status, done.out, done.err) == (0, "", "No findings.\n")


def test_an_unreadable_file_is_a_finding(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    done = shell("lint", str(tmp_path), "--format", "json")
    assert (done.status, done.json[0]["id"], done.json[0]["path"]) == (1, "W100", str(path))


def test_a_name_cannot_write_to_the_terminal(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred.py"
    path.write_text(BAD.replace("lint.bad", "\\x1b[31m"))
    done = shell("lint", str(tmp_path))
    assert "\x1b" not in done.out
    assert "\\x1b[31mred.py:7" in done.out


def test_the_system_check_warns_and_keeps_nothing_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "workflows.py"
    path.write_text(BAD)
    before = registry.all()
    names: dict[str, object] = {"__name__": "lint_shop.workflows"}
    exec(compile(BAD, str(path), "exec"), names)
    bad = names["bad"]
    try:
        assert [each.id for each in run_checks(tags=["durable"]) if "W1" in str(each.id)] == []  # no app brings it
        registry.registry.unregister(bad)  # type: ignore[arg-type]  # made by exec
        registry.register(bad, discovered=True)  # type: ignore[arg-type]  # made by exec
        found = [each for each in run_checks(tags=["durable"]) if "W1" in str(each.id)]
        assert [each.id for each in found] == ["durable.W101", "durable.W123"]
        assert not any(each.is_serious() for each in found)
        assert all(each.hint for each in found)
        worker = Command(stderr=io.StringIO())
        worker.check(tags=["durable"])
        assert "W101" not in worker.stderr.getvalue()  # it would read all code at each start of each of its processes
    finally:
        registry.registry.unregister(bad)  # type: ignore[arg-type]  # made by exec
    assert registry.all() == before


def test_json_is_one_line_of_ascii(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "café.py").write_text(BAD)
    done = shell("lint", str(tmp_path), "--format", "json")
    assert done.out.isascii()
    assert "café" in json.loads(done.out)[0]["path"]
