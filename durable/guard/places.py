"""The line of workflow code that runs, and whether an effect is its own doing.

Owns the look at the frames of the caller. It is taken only when something has happened between two operations, so its
cost does not matter.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from durable.core.current import current_scope, is_in_step, running_run
from durable.core.scope import Scope

if TYPE_CHECKING:
    from durable.lint.engine import Allowance

#: Packages whose code between two steps is not the workflow's decision: loggers, imports, debuggers.
_LET_THROUGH: Final = frozenset(
    {
        *("logging", "structlog", "loguru"),
        *("importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "pkgutil"),
        *("pdb", "bdb", "ipdb", "pudb", "IPython", "debugpy", "pydevd", "_pydevd_bundle", "warnings", "faulthandler"),
    }
)
#: Packages that trace and measure. They export by themselves, and they stand between the application and what they
#: trace.
_TRACING: Final = frozenset(
    {
        *("opentelemetry", "sentry_sdk", "ddtrace", "newrelic", "elasticapm"),
        *("prometheus_client", "statsd", "coverage"),
    }
)
#: Names of packages in which these have their wrappers of other libraries.
_WRAPPING: Final = frozenset({"instrumentation", "integrations", "contrib", "hooks"})
#: Packages of durable that call workflow code. What its other packages do is durable's own doing.
_CALLING: Final = frozenset({"core", "drivers", "execution", "context", "replay_check"})
_GUARD: Final = __name__.rpartition(".")[0]
#: Where Django prepares a new session.
_CONNECTING: Final = ("django.db.backends.base.base", "connect")
_PYTHON: Final = sysconfig.get_paths()["stdlib"] + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the application's code, and the lines that have called it."""

    path: str
    line: int
    function: str
    lines: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{_shown(self.path)}, line {self.line}, in {self.function}"

    def allows(self, rule: str) -> bool:
        """Return True if a comment on one of the lines lets through what this rule of the linter is about."""
        return any(
            rule in each.ids and each.reason and line in each.lines
            for path, line in self.lines
            for each in _allowances_in(path)
        )


def scope_between_operations() -> Scope | None:
    """Return the scope whose code runs here, between two of its operations; None anywhere else."""
    scope = current_scope()
    if scope is None or scope.guard.busy is not None or is_in_step() or running_run() is None:
        return None
    return scope


def place_of_caller(scope: Scope, *, is_statement: bool = False) -> Place | None:
    """Return the line of the scope's code that this call comes from; None if what calls is to be let through.

    A statement of Django's is never the doing of a package that traces.
    """
    found = _frames_of_code(sys._getframe(1), may_export=not is_statement)
    if found is None:
        return None
    if not any(_is_applications(frame) for frame, _ in found):  # in a thread that an async body waits for
        found = [*_frames_awaited(scope.awaited), *found]
    chosen = [each for each in found if _is_applications(each[0])] or found[-1:]
    if not chosen:
        return Place("unknown", 0, "the workflow", ())
    frame, line = chosen[0]
    lines = tuple((each.f_code.co_filename, at) for each, at in chosen)
    return Place(frame.f_code.co_filename, line, frame.f_code.co_qualname, lines)


def _frames_of_code(frame: FrameType | None, *, may_export: bool) -> list[tuple[FrameType, int]] | None:
    """Return the frames from here to the workflow's function, the innermost first; None for one that is let through."""
    found: list[tuple[FrameType, int]] = []
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package, _, rest = name.partition(".")
        if package == "durable":
            if rest.partition(".")[0] in _CALLING:
                break
            if not name.startswith(_GUARD):
                return None
        elif package in _LET_THROUGH or (name, frame.f_code.co_name) == _CONNECTING:
            return None
        elif package in _TRACING:
            if (
                may_export
                and _WRAPPING.isdisjoint(rest.split("."))
                and not any(_is_applications(each) for each, _ in found)
            ):
                return None
        else:
            found.append((frame, frame.f_lineno))
        frame = frame.f_back
    return found


def _frames_awaited(awaited: Any) -> list[tuple[FrameType, int]]:
    """Return the frames of a coroutine and of what it awaits, the innermost first."""
    found = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None)
        if frame is not None:
            found.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None)
    return [each for each in found[::-1] if not str(each[0].f_globals.get("__name__", "")).startswith("durable.")]


def _is_applications(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return not ("site-packages" in path or "dist-packages" in path or path.startswith(("<frozen ", _PYTHON)))


def _shown(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


@lru_cache(maxsize=256)
def _allowances_in(path: str) -> Sequence[Allowance]:
    return tuple(_read_allowances("".join(linecache.getlines(path))))


def _read_allowances(text: str) -> Iterator[Allowance]:
    if "durable:" not in text:
        return
    from durable.lint.engine import allowances  # a worker rarely needs the linter

    try:
        yield from allowances(text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):  # the file has changed since it was imported
        return
