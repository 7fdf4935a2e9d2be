"""Blocks of Python, run for real: a page is one program, read from top to bottom.

A block whose first line is a comment that names a file (`# shop/workflows.py`) is run as that module, and the blocks
after it import from there. `settings.py` is put in force for the rest of the page, after durable's system checks have
found nothing amiss; `urls.py` becomes the project's addresses; the tests in `tests.py` and `test_*.py` are run. Any
other block runs in the page's own namespace.
"""

from __future__ import annotations

import configparser
import re
import sys
import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final

from django.core import checks
from django.db import connection
from django.test import override_settings
from django.urls import get_resolver
from sybil import Document, Example
from sybil.evaluators.python import pad

from durable.core import registry
from durable.testing import Harness
from tests.docs import shell
from tests.docs.pages import is_run, language, page

_FILE: Final = re.compile(r"# (?P<path>[\w/]+\.py)\b")
#: What a page's settings may change in a running process; the others are read once, by Django.
_CHANGEABLE: Final = frozenset(
    {"API", "CACHALOT_UNCACHABLE_APPS", "DURABLE", "LOGGING", "REST_FRAMEWORK", "RQ", "RQ_QUEUES", "TASKS"}
)
#: Written for people and for other programs: nothing here could run them.
_PROSE: Final = frozenset({"", "text"})


class Play:
    """One page while it is run: its modules, and what its settings changed."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo
        self.ran: list[str] = []

    def __call__(self, example: Example) -> None:
        """Sybil's evaluator of a block."""
        kind = language(example)
        if not is_run(example) or kind in _PROSE:
            return
        performer = {"python": self._python, "console": self._console, "ini": self._unit, "sql": self._sql}.get(kind)
        assert performer is not None, f"line {example.line}: nothing runs {kind!r}: teach it to, or mark the block"
        try:
            performer(example)
        except Exception as error:
            error.add_note(f"in the block of {example.path}, line {example.line}")
            raise
        self.ran.append(kind)

    def module(self, name: str, **names: Any) -> ModuleType:
        """A module of the page's program; made if there is none yet."""
        *parents, _ = name.split(".")
        for count in range(1, len(parents) + 1):
            self._made(".".join(parents[:count])).__path__ = []
        module = self._made(name)
        vars(module).update(names)
        return module

    def _made(self, name: str) -> ModuleType:
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)
            self._undo.callback(sys.modules.pop, name)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
        return sys.modules[name]

    def _python(self, example: Example) -> None:
        source = pad(example.parsed, example.line + example.parsed.line_offset)
        code = compile(source, example.path, "exec", dont_inherit=True)
        named = _FILE.match(example.parsed)
        if named is None:
            example.namespace.setdefault("__name__", "__main__")
            exec(code, example.namespace)
            return
        path = named["path"]
        module = self.module(path.removesuffix(".py").replace("/", "."))
        if path.endswith("settings.py"):
            vars(module).setdefault("DATABASES", {"default": {}})  # the project's own, which a page adds to
        exec(code, vars(module))
        if path.rpartition("/")[2].startswith("test"):
            self._run_tests(module)
        if path.endswith("settings.py"):
            self._apply_settings(module)
        if path.endswith("urls.py"):
            self._apply_urls(module)

    def _run_tests(self, module: ModuleType) -> None:
        """What `manage.py test` and pytest would run of the module; the fixture `durable_harness` is known."""
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        outcome = suite.run(unittest.TestResult())
        assert outcome.wasSuccessful(), "\n".join(text for _, text in (*outcome.failures, *outcome.errors))
        functions = [value for name, value in vars(module).items() if name.startswith("test_") and callable(value)]
        for function in functions:
            with Harness() as harness:
                function(**{name: {"durable_harness": harness}[name] for name in signature(function).parameters})
        assert outcome.testsRun + len(functions), "there is no test in this block"

    def _apply_settings(self, module: ModuleType) -> None:
        given = {name: value for name, value in vars(module).items() if name in _CHANGEABLE}
        assert given, "these settings change nothing that the tests know of"
        if "DURABLE" in given:
            given["DURABLE"] = {"BASE_URL": "https://testserver", **given["DURABLE"]}  # the project's own
        self._undo.enter_context(override_settings(**given))
        amiss = checks.run_checks(tags=["durable"])
        assert amiss == [], "\n".join(map(str, amiss))

    def _apply_urls(self, module: ModuleType) -> None:
        assert get_resolver(module.__name__).url_patterns, "these addresses are none"
        self._undo.enter_context(override_settings(ROOT_URLCONF=module.__name__))

    def _console(self, example: Example) -> None:
        found = list(shell.commands(example.parsed))
        assert found, "a block of commands has none: each begins with `$ `"
        for each in found:
            shell.run(each)

    def _unit(self, example: Example) -> None:
        """A unit of systemd: what it starts is a command like any other."""
        unit = configparser.RawConfigParser()
        unit.read_string(example.parsed)
        program, _, rest = unit["Service"]["ExecStart"].partition(" ")
        shell.run(shell.Command(line=f"{PurePath(program).name} {rest}", output=None))

    def _sql(self, example: Example) -> None:
        """What an administrator of PostgreSQL runs, for a role that is there; the page's test takes it back."""
        if connection.vendor != "postgresql":
            return
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN CREATE ROLE shop; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
            cursor.execute(example.parsed)


@contextmanager
def play(name: str) -> Iterator[tuple[Play, Document]]:
    """Be ready to run a page: (what runs it, its document). While it runs, the page's workflows are the only ones."""
    with ExitStack() as undo, _workflows_of_its_own():
        player = Play(undo)
        yield player, page(name, player)


@contextmanager
def _workflows_of_its_own() -> Iterator[None]:
    def taken() -> list[registry.WorkflowDefinition]:
        found: list[registry.WorkflowDefinition] = []
        while some := [each for each in registry.all() if not each.function.__module__.startswith("durable.")]:
            found = [*some, *found]  # of several with one name, the newest comes out first
            for each in some:
                registry.registry.unregister(each)
        return found

    discovered = {each.name for each in registry.all() if registry.is_discovered(each.name)}
    others = taken()
    try:
        yield
    finally:
        taken()
        for each in others:
            registry.register(each, discovered=each.name in discovered)
