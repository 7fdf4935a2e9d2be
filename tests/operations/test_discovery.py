"""A start that no worker could ever pass is refused; where that is not certain, it is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from durable.models import Run
from durable.store import store_for
from tests.support.runs import new_runs

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

LATE = """
from durable import workflow

@workflow
def late(ctx):
    return 1
"""
BEGIN = "import django\ndjango.setup()\n"

Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def process(child_environment: dict[str, str], tmp_path: Path) -> Process:
    """Run a program beside a module `views_of_flows` that no installed app imports."""
    (tmp_path / "views_of_flows.py").write_text(LATE)
    environment = {
        **child_environment,
        "DJANGO_SETTINGS_MODULE": "tests.support.flows.settings",
        "PYTHONPATH": f"{child_environment['PYTHONPATH']}:{tmp_path}",
    }

    def run(program: str, begin: str = BEGIN) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", begin + program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.mark.parametrize(
    "start",
    [
        "views_of_flows.late.start()",
        "views_of_flows.late.using(id='x').start()",
        "views_of_flows.late.start_many([()])",
        "asyncio.run(views_of_flows.late.astart())",
    ],
)
def test_a_workflow_that_was_imported_after_the_set_up_is_refused(process: Process, start: str) -> None:
    done = process(f"import asyncio, views_of_flows\n{start}")
    assert done.returncode == 1
    assert (
        'UndiscoveredWorkflowError: no worker would find the workflow "views_of_flows.late", views_of_flows.late ('
        in done.stderr
    )
    assert "import views_of_flows there or in AppConfig.ready()" in done.stderr
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "program",
    [
        # of an installed app
        "from tests.support.flows.workflows import one\none.start('marker')",
        # the same name, whatever module it comes from now
        "from durable import workflow\n@workflow(name='flows.one')\ndef other(ctx): pass\nother.start()",
        # of the program itself: a shell, a script
        "from durable import workflow\n@workflow\ndef mine(ctx): pass\nmine.start()",
        # in a process that works itself
        "import durable.worker.loop, views_of_flows\nviews_of_flows.late.start()",
        # in a harness
        (
            "import views_of_flows\nfrom durable.testing import Harness\n"
            "with Harness() as h: assert h.finish(views_of_flows.late.start()).output == 1\n"
            "from tests.support.flows.workflows import one\none.start('marker')"
        ),
        # by code of a workflow that is being passed
        (
            "import views_of_flows\nfrom durable.core.current import running_workflow\n"
            "with running_workflow('parent'): views_of_flows.late.using(id='child').start()"
        ),
    ],
)
def test_what_a_worker_may_find_is_started(process: Process, program: str) -> None:
    if "parent" in program:
        [parent] = new_runs(store_for("default"))
        program = program.replace("parent", parent)
    before = Run.objects.count()
    done = process(program)
    assert done.returncode == 0, done.stderr
    assert Run.objects.count() == before + 1


def test_what_is_imported_while_the_apps_are_set_up_is_found(process: Process, tmp_path: Path) -> None:
    """From an AppConfig.ready(), say, or from a module of models."""
    (tmp_path / "late_app").mkdir()
    (tmp_path / "late_app" / "__init__.py").touch()
    (tmp_path / "late_app" / "apps.py").write_text(
        "from django.apps import AppConfig\nclass LateConfig(AppConfig):\n"
        "    name = 'late_app'\n    def ready(self):\n        import views_of_flows\n"
    )
    (tmp_path / "late_settings.py").write_text(
        "from tests.support.flows.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'late_app']\n"
    )
    program = (
        "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'late_settings'\n"
        "import django; django.setup()\nimport views_of_flows\nviews_of_flows.late.start()"
    )
    done = process(program, begin="")
    assert done.returncode == 0, done.stderr
    assert Run.objects.count() == 1
