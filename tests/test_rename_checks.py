"""Code that has two functions under two names of one workflow: the checks find it before a migration is applied."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from durable.checks.code import check_renamed_workflows, without_code
from durable.core import registry
from durable.core.registry import Registry
from tests.support.definitions import Definition, one, other

OLD, NEW, NEWEST = "renames.bill", "renames.invoice", "renames.receipt"

MIGRATION = """
from django.db import migrations
from durable.migrations import RenameQueue, RenameStep, RenameWorkflow

class Migration(migrations.Migration):
    dependencies = [{dependency}]
    operations = [{operations}]
"""


class Project:
    """A project with a migration of its own, and the workflows that its code has."""

    def __init__(self, directory: Path, settings: Any, registered: Registry) -> None:
        self._directory = directory
        self._settings = settings
        self._registered = registered

    def migrates(self, operations: str, dependency: str = '("durable", "0002_routines")') -> None:
        text = MIGRATION.format(operations=operations, dependency=dependency)
        (self._directory / "0001_renames.py").write_text(text)
        self._settings.MIGRATION_MODULES = {"shop": self._directory.name}
        for each in [name for name in sys.modules if name.startswith(self._directory.name)]:
            del sys.modules[each]

    def has(self, **functions: Any) -> None:
        for name, function in functions.items():
            self._registered.register(Definition(name.replace("_", "."), function))


@pytest.fixture
def project(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    directory = tmp_path / f"migrations_of_{tmp_path.name}"
    directory.mkdir()
    (directory / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    registered = Registry()
    monkeypatch.setattr(registry, "registry", registered)
    monkeypatch.setattr(registry, "all", lambda: list(registered))
    return Project(directory, settings, registered)


def test_two_functions_under_the_two_names_but_for_a_worker_at_its_start(project: Project) -> None:
    project.migrates(f'RenameWorkflow("{OLD}", "{NEW}")')
    project.has(renames_bill=one, renames_invoice=other)
    (message,) = check_renamed_workflows()
    assert (message.id, message.is_serious()) == ("durable.E016", True)
    assert f'"{OLD}" and "{NEW}" names of one workflow' in message.msg
    for function in (one, other):
        assert f"{function.__module__}.{function.__qualname__} (" in message.msg
    assert message.hint
    with without_code():
        assert check_renamed_workflows() == []


def test_names_that_several_migrations_have_given_it(project: Project) -> None:
    project.migrates(f'RenameWorkflow("{OLD}", "{NEW}"), RenameWorkflow("{NEW}", "{NEWEST}")')
    project.has(renames_bill=one, renames_receipt=other)
    (message,) = check_renamed_workflows()
    assert f'"{OLD}" and "{NEWEST}"' in message.msg


@pytest.mark.parametrize(
    "functions",
    [
        {"renames_bill": one},
        {"renames_invoice": one},
        {"renames_bill": one, "renames_invoice": one},
        {"renames_invoice": one, "renames_receipt": other},
    ],
    ids=["old code", "new code", "both names", "beside another workflow"],
)
def test_one_function_is_right(project: Project, functions: dict[str, Any]) -> None:
    project.migrates(f'RenameWorkflow("{OLD}", "{NEW}")')
    project.has(**functions)
    assert check_renamed_workflows() == []


def test_queues_and_steps_are_no_workflows(project: Project) -> None:
    project.migrates(f'RenameQueue("{OLD}", "{NEW}"), RenameStep("{OLD}", "{OLD}", "{NEW}")')
    project.has(renames_bill=one, renames_invoice=other)
    assert check_renamed_workflows() == []


def test_migrations_that_contradict_each_other(project: Project) -> None:
    project.migrates(f'RenameWorkflow("{OLD}", "{NEW}"), RenameWorkflow("{NEWEST}", "{NEW}")')
    (message,) = check_renamed_workflows()
    assert message.id == "durable.E016"
    assert f'"{NEW}" is a name of the workflow "{OLD}"' in message.msg


@pytest.mark.parametrize("dependency", ['("gone", "0001_initial")', '("shop", "0000_gone")'], ids=["app", "migration"])
def test_migrations_that_cannot_be_read_are_left_to_djangos_own_commands(project: Project, dependency: str) -> None:
    project.migrates("", dependency)
    assert check_renamed_workflows() == []
