"""A shell for the tests, and runs on the real store, passed in this thread."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from durable.models import Run
from durable.runtime import Runtime
from tests.cli import workflows
from tests.support.one_parser import one_parser
from tests.support.stores import in_force, passed


class Terminal(io.StringIO):
    """A stream that a person reads or writes."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        (data,) = self.all_json
        return data

    @property
    def all_json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


class Shell:
    """`shell("list", "-o", "ids")`, with what is typed or piped into it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(
        self,
        *arguments: str,
        piped: str | io.StringIO = "",
        typed: str | None = None,
        colour: bool = False,
        columns: int = 160,
    ) -> Done:
        out: io.StringIO = Terminal() if colour else io.StringIO()
        err = io.StringIO()
        with self._patch.context() as patch:
            pipe = io.StringIO(piped) if isinstance(piped, str) else piped
            patch.setattr(sys, "stdin", pipe if typed is None else Terminal(typed))
            patch.setenv("TERM", "xterm-256color")
            patch.delenv("NO_COLOR", raising=False)
            patch.setenv("COLUMNS", str(columns))
            try:
                with one_parser():
                    call_command("durable", *arguments, stdout=out, stderr=err)
            except SystemExit as exit:
                status = int(exit.code or 0)
            except CommandError as error:
                status = error.returncode
                err.write(f"{error}\n")
            else:
                status = 0
        return Done(status, out.getvalue(), err.getvalue())


@pytest.fixture
def shell(db: None, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


class Stage:
    """Starts runs and passes them until they rest."""

    def __init__(self, at: Runtime) -> None:
        self.at = at

    def start(self, workflow: Any, *args: Any, id: str) -> Run:
        workflow.using(id=id).start(*args)
        return self.settle(id)

    def settle(self, run_id: str) -> Run:
        for _ in range(20):
            run = Run.objects.get(pk=run_id)
            if run.wake_at is None or run.wake_at > timezone.now() or run.state == "paused":
                return run
            passed(self.at, run_id)
        raise AssertionError(f"{run_id} does not rest")


@pytest.fixture
def stage(db: None) -> Iterator[Stage]:
    workflows.mended.clear()
    with in_force() as at:
        yield Stage(at)
    workflows.mended.clear()


def state(run_id: str) -> str:
    return Run.objects.get(pk=run_id).state
