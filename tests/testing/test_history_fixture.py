"""The fixture `durable_histories`: a pytest of another project, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from durable import Context, workflow
from durable.core import registry
from durable.histories import written_history
from tests.support.child_path import child_path
from tests.support.stores import in_force, settle

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
from durable import workflow

@workflow(name={name!r})
def order(ctx):
    ctx.step({step!r}, len, "ab")
    ctx.sleep("wait", "1 day")

def test_history(durable_histories):
    durable_histories.assert_replays()
"""

COUNTING = """
from functools import wraps
import pytest

@pytest.fixture(scope="session", autouse=True)
def migrations_are_read():
    from durable.replay_check import checking
    read, times = checking.all_migrations, []

    @wraps(read)
    def counted():
        times.append(1)
        return read()

    checking.all_migrations = counted
    yield
    print("the migrations were read", len(times), "time(s)")
"""

MIGRATION = """
from django.db import migrations
from durable.migrations import RenameStep, RenameWorkflow

class Migration(migrations.Migration):
    dependencies = [("durable", "0002_routines")]
    operations = [
        RenameStep("fixture.order", "charge", "charge card"),
        RenameWorkflow("fixture.order", "fixture.purchase"),
    ]
"""


@pytest.fixture
def project(db: None, tmp_path: Path) -> Path:
    """A directory with two files of histories."""

    def order(ctx: Context) -> None:
        ctx.step("charge", len, "ab")
        ctx.sleep("wait", "1 day")

    made = workflow(name="fixture.order")(order)
    directory = tmp_path / "tests" / "histories"
    directory.mkdir(parents=True)
    try:
        with in_force():
            for name in ("first", "second"):
                made.using(id=name).start()
                settle()
                lines = [f"{line}\n" for line in written_history(name)]
                (directory / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    finally:
        registry.registry.unregister(made)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def outcome_of(
    project: Path,
    step: str,
    name: str = "fixture.order",
    settings: str = "project.settings",
    *,
    finds: bool = False,
    options: Sequence[str] = (),
) -> tuple[int, str]:
    """Run the project's tests.

    Unless pytest `finds` its plugins, it has those that are needed, and is forked: other imports take as long.
    Those that take longest to import are never found.
    """
    (project / "test_order.py").write_text(TESTS.format(step=step, name=name), encoding="utf-8")
    needless = ("schemathesis", "hypothesispytest", "pytest_httpx", "respx")
    plugins = [f"-pno:{each}" for each in needless] if finds else ["-ppytest_django.plugin", "-pdurable.pytest_plugin"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            *plugins,
            f"--ds={settings}",
            *options,
            "test_order.py",
        ],
        cwd=project,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{project}" if finds else child_path(ROOT, project),
            "COLUMNS": "300",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "" if finds else "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_run_of_each_file_is_a_test_and_the_migrations_are_read_once_for_all(project: Path) -> None:
    (project / "conftest.py").write_text(COUNTING, encoding="utf-8")
    status, said = outcome_of(project, "charge", finds=True, options=["-s"])
    assert status == 0, said
    assert "test_history[first-first] PASSED" in said
    assert "test_history[second-second] PASSED" in said
    assert "2 passed" in said
    assert "the migrations were read 1 time(s)" in said


def test_code_that_would_diverge_fails_with_the_line_of_the_check(project: Path) -> None:
    status, said = outcome_of(project, "charge card")
    assert status == 1, said
    assert "2 failed" in said
    assert 'first (fixture.order, sleeping): at "charge card" the history has step "charge"' in said


def test_no_file_and_a_file_that_is_none_are_told(project: Path) -> None:
    (project / "tests/histories/first.jsonl").write_text("{}\n", encoding="utf-8")
    status, said = outcome_of(project, "charge")
    assert status != 0
    assert "first.jsonl, line 1: expected the beginning of a history" in said
    for each in (project / "tests/histories").iterdir():
        each.unlink()
    status, said = outcome_of(project, "charge")
    assert status != 0
    assert "no file of histories is like tests/histories/*.jsonl" in said


def test_what_a_migration_of_the_project_renames_fits_under_both_names(project: Path) -> None:
    directory = project / "migrations_of_project"
    directory.mkdir()
    (directory / "__init__.py").touch()
    (directory / "0001_names.py").write_text(MIGRATION, encoding="utf-8")
    (project / "settings_of_project.py").write_text(
        'from project.settings import *\n\nMIGRATION_MODULES = {"shop": "migrations_of_project"}\n', encoding="utf-8"
    )
    for step in ("charge", "charge card"):
        for name in ("fixture.order", "fixture.purchase"):
            status, said = outcome_of(project, step, name, "settings_of_project")
            assert status == 0, said
            assert "2 passed" in said
    status, said = outcome_of(project, "pay", "fixture.purchase", "settings_of_project")
    assert status == 1, said
    assert 'at "pay" the history has step "charge"' in said
