"""Notice files that are written or changed, sockets and processes between two operations.

A Python audit hook reports them. Use it only in development and in tests: a hook stays for the life of the process, and
is called for each audited event. The same hook watches the function of an `on_end`, which may have no effect outside
of the database: it is called in a commit that may be taken back.

Finds the line of workflow code that caused an effect, from the caller's frames. They are read only after an effect
between two operations, so the cost does not matter.

The guard's mode decides: it ignores the effect, logs it once for each line of code, or stops the run.
"""

from __future__ import annotations

import ast
import linecache
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from django.conf import settings

from durable.conf import conf
from durable.core.current import current_scope, is_in_step, running_run
from durable.core.errors import EndFunctionError, OutsideStepError
from durable.core.records import RunRecord
from durable.core.scope import Scope
from durable.notifier.wakeups import is_under_test

if TYPE_CHECKING:
    from durable.lint.engine import Allowance

#: Packages whose effects are not the workflow's decision: loggers, imports, debuggers.
_LET_THROUGH: Final = frozenset(
    {
        *("logging", "structlog", "loguru"),
        *("importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "pkgutil"),
        *("pdb", "bdb", "ipdb", "pudb", "IPython", "debugpy", "pydevd", "_pydevd_bundle", "warnings", "faulthandler"),
    }
)
#: Packages that trace and measure. They export by themselves, and wrap what they trace.
_TRACING: Final = frozenset(
    {
        *("opentelemetry", "sentry_sdk", "ddtrace", "newrelic", "elasticapm"),
        *("prometheus_client", "statsd", "coverage"),
    }
)
#: Names of packages in which these keep their wrappers of other libraries.
_WRAPPING: Final = frozenset({"instrumentation", "integrations", "contrib", "hooks"})
#: Packages of durable that call workflow code. Effects of its other packages are durable's own.
_CALLING: Final = frozenset({"core", "drivers", "execution", "context", "replay_check"})
#: durable's modules that stand between a call and its caller: the guard, and what counts the effects of a test.
_BETWEEN: Final = (__name__.rpartition(".")[0], "durable.testing.deaths.effects")
_CALLING_AT_END: Final = "durable.operations.ends"
#: Where Django prepares a new session.
_CONNECTING: Final = ("django.db.backends.base.base", "connect")
_PYTHON: Final = sysconfig.get_paths()["stdlib"] + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the application's code, and the lines that called it."""

    path: str
    line: int
    function: str
    lines: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{_shown(self.path)}, line {self.line}, in {self.function}"

    def allows(self, rule: str) -> bool:
        """Return True if a comment on one of the lines allows this rule of the linter."""
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
    """Return the line of the scope's code that made this call; None if the call is let through.

    A Django statement is never attributed to a tracing package.
    """
    found = _frames_of_code(sys._getframe(1), may_export=not is_statement)
    if found is None:
        return None
    if not any(_is_applications(frame) for frame, _ in found):  # in a thread that an async body waits for
        found = [*_frames_awaited(scope.awaited), *found]
    return _place_of(found)


def _place_of(found: Sequence[tuple[FrameType, int]]) -> Place:
    chosen = [each for each in found if _is_applications(each[0])] or found[-1:]
    if not chosen:
        return Place("unknown", 0, "the workflow", ())
    frame, line = chosen[0]
    lines = tuple((each.f_code.co_filename, at) for each, at in chosen)
    return Place(frame.f_code.co_filename, line, frame.f_code.co_qualname, lines)


def _frames_of_code(frame: FrameType | None, *, may_export: bool) -> list[tuple[FrameType, int]] | None:
    """Return the frames from here to the workflow's function, the innermost first; None for a call that is let
    through.
    """
    found: list[tuple[FrameType, int]] = []
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package, _, rest = name.partition(".")
        if package == "durable":
            if rest.partition(".")[0] in _CALLING or name == _CALLING_AT_END:
                break
            if not name.startswith(_BETWEEN):
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


Mode: TypeAlias = Literal["off", "log", "raise"]
#: The modes by the values of `DURABLE["GUARD"]`.
MODES: Final[Mapping[str, Mode]] = {"off": "off", "log": "log", "warn": "log", "raise": "raise"}

_raising: list[None] = []
_refusing: list[None] = []


def mode() -> Mode:
    """Return the mode of `DURABLE["GUARD"]`.

    By default that is "raise" in development and in tests, otherwise "log".
    """
    if _refusing:
        return "raise"
    given = conf.GUARD
    if isinstance(given, str) and given in MODES:  # a system check reports any other value
        return MODES[given]
    return "raise" if is_developing() else "log"


def is_developing() -> bool:
    """Return True with DEBUG, in Django's tests and while a `Harness` is in force."""
    return bool(settings.DEBUG or _raising or is_under_test())


@contextmanager
def raising_by_default() -> Iterator[None]:
    """Within the block, treat code as a test's."""
    _raising.append(None)
    try:
        yield
    finally:
        _raising.pop()


def lets_reads_through() -> bool:
    """Return True while reads of the database are let through (`refusing_effects`)."""
    return bool(_refusing)


@contextmanager
def refusing_effects() -> Iterator[None]:
    """Within the block, refuse every effect whatever the setting says, except reads of the database."""
    _refusing.append(None)
    try:
        yield
    finally:
        _refusing.pop()


logger = logging.getLogger("durable.guard")

_MAX_TOLD: Final = 10_000
_told: set[tuple[str, int, str]] = set()


def tell(scope: Scope, rule: str, kind: str, action: str, remedy: str) -> None:
    """Report an effect of the calling code, unless it is let through, here or by a comment that allows `rule`.

    `kind` distinguishes effects of one line. Raises OutsideStepError in the mode "raise".
    """
    if mode() == "off":
        return
    place = place_of_caller(scope, is_statement=rule == "W109")
    if place is None or place.allows(rule):
        return
    tell_error(scope, OutsideStepError(f"{action} ({place})", f"{remedy} ({rule} of the rules)"), place, kind)


def tell_error(scope: Scope, error: Exception, place: Place | None, kind: str) -> None:
    """Stop the run with the error, even if its code catches it, or log the error."""
    if mode() == "raise":
        scope.journal.stop(error)
    run = scope.journal.run
    key = (place.path, place.line, kind) if place is not None else (run.workflow, 0, kind)
    if key in _told or len(_told) >= _MAX_TOLD:
        return
    _told.add(key)
    about = {"run_id": run.id, "workflow": run.workflow}
    logger.warning("run %s of %s: %s", run.id, run.workflow, error, extra=about)


def step_call(scope: Scope, name: str, options: str = "") -> str:
    """Return the call of a step as code in this scope would write it."""
    return f'{"await " if scope.awaited is not None else ""}ctx.step("{name}", function{options})'


_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_SHOWN: Final = 200  # characters of a path or an address

_lock = threading.Lock()
_is_watching = False


def watch_events() -> None:
    """Install the hook, once in the life of the process."""
    global _is_watching
    if _is_watching:
        return
    with _lock:
        if not _is_watching:
            _is_watching = True
            sys.addaudithook(_notice)


def _notice(event: str, args: tuple[Any, ...]) -> None:
    judge = _JUDGES.get(event)
    if judge is None:
        return
    end = _end.get()
    scope = scope_between_operations() if end is None else None
    if scope is None and end is None:
        return
    effect = judge(args)
    if effect is None:
        return
    try:
        if end is not None:
            _tell_of_end(end, effect)
        elif scope is not None:
            remedy = f"put it into a function, which returns what the workflow needs, and write {step_call(scope, effect.step)}"
            tell(scope, effect.rule, effect.kind, effect.what, remedy)
    except BaseException:
        if event == "socket.connect":
            args[0].close()  # its owner expects an OSError, and would leave it open
        raise


@dataclass(frozen=True, slots=True)
class _Effect:
    """An effect outside of the database, the linter's rule about it, and the name of a step that would have it."""

    rule: str
    kind: str
    what: str
    step: str


def _file(args: tuple[Any, ...]) -> _Effect | None:
    path, mode, flags = args
    if isinstance(path, int) or not _is_for_writing(mode, flags):
        return None
    name = os.fsdecode(path)
    if name.startswith("/dev/"):
        return None
    return _Effect("W105", "file", f"the file {name[:_SHOWN]} opened for writing", "write the file")


def _change(doing: str) -> Callable[[tuple[Any, ...]], _Effect]:
    """Return the description of a file or directory that is changed without being opened."""

    def judge(args: tuple[Any, ...]) -> _Effect:
        path = args[0]
        name = f"descriptor {path}" if isinstance(path, int) else os.fsdecode(path)
        return _Effect("W105", doing, f"the file {name[:_SHOWN]} {doing}", "change the file")

    return judge


def _is_for_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(each in mode for each in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _connection(args: tuple[Any, ...]) -> _Effect:
    _, address = args
    shown = ":".join(str(each) for each in address[:2]) if isinstance(address, tuple) else str(address)
    return _Effect("W106", "network", f"a connection to {shown[:_SHOWN]}", "call the service")


def _process(args: tuple[Any, ...]) -> _Effect:
    what = f"the process {args[0]!s:.{_SHOWN}}" if args and args[0] else "another process"
    return _Effect("W106", "process", what, "run the program")


_JUDGES: Final[dict[str, Callable[[tuple[Any, ...]], _Effect | None]]] = {
    "open": _file,
    "os.chmod": _change("given another mode"),
    "os.link": _change("linked"),
    "os.mkdir": _change("made"),
    "os.remove": _change("removed"),
    "os.rename": _change("renamed"),
    "os.rmdir": _change("removed"),
    "os.symlink": _change("linked"),
    "os.truncate": _change("truncated"),
    "socket.connect": _connection,
    "subprocess.Popen": _process,
    "os.exec": _process,
    "os.posix_spawn": _process,
    "os.spawn": lambda args: _process(args[1:]),
    "os.system": _process,
    "os.fork": _process,
}


@dataclass(slots=True)
class _End:
    """A call of an `on_end`, and the first effect of it that was refused."""

    run: RunRecord
    name: str
    refused: EndFunctionError | None = None


_end: ContextVar[_End | None] = ContextVar("durable_end", default=None)


@contextmanager
def watching_end(run: RunRecord, name: str) -> Iterator[None]:
    """Within the block, a call of `name`, the `on_end` of the run's workflow, refuse or log effects outside of the
    database.

    Raises EndFunctionError for one that was refused, even if the function has caught the error.
    """
    if mode() == "off" or not is_developing():
        yield
        return
    watch_events()
    end = _End(run, name)
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)
    if end.refused is not None:
        raise end.refused


def _tell_of_end(end: _End, effect: _Effect) -> None:
    found = _frames_of_code(sys._getframe(1), may_export=True)
    if found is None:
        return
    place = _place_of(found)
    if place.allows(effect.rule):
        return
    error = EndFunctionError(
        f"{end.name} had an effect outside of the database: {effect.what} ({place}). It is called in the commit that ends "
        "the run, which may be taken back, and be made again: start a run in it that does this in a step"
    )
    if mode() == "raise":
        end.refused = end.refused or error
        raise error
    key = (place.path, place.line, effect.kind)
    if key in _told or len(_told) >= _MAX_TOLD:
        return
    _told.add(key)
    about = {"run_id": end.run.id, "workflow": end.run.workflow}
    logger.warning("run %s of %s: %s", end.run.id, end.run.workflow, error, extra=about)
