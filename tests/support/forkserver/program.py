"""What makes a fork of the server the command that `subprocess.Popen` was given.

Owns the steps that the kernel and the interpreter take at the start of a command: files, session, directory,
environment, signals, streams, `sys.path` and `__main__`. Must not import what the command would not.
"""

from __future__ import annotations

import builtins
import fcntl
import importlib
import io
import os
import signal
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Literal

from tests.support.forkserver.clone import set_name
from tests.support.forkserver.protocol import Request

_HERE: Final = str(Path(__file__).resolve().parent)
_HIGH: Final = 200  # above every descriptor that a command is given


def become(
    request: Request, descriptors: list[int], *, found: list[str], added: dict[str, str], is_prepared: bool
) -> None:
    """Take on all that `request` says. `found` is the part of `sys.path` that every command here has.

    `added` are variables that the preparation has set, and that it would set again.
    """
    set_name(Path(sys.executable).name)
    _place(descriptors, request.numbers)
    if request.new_session:
        os.setsid()
    os.chdir(request.directory)
    set_environment({**added, **request.environment})
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_prepared:
        _set_stream("stdin", 0, "r")
        # what has been set up may have kept this object
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=not os.environ.get("PYTHONUNBUFFERED") and os.isatty(1))
    else:
        open_streams()
    if os.environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    sys.path[:] = search_path(request, found)
    importlib.invalidate_caches()
    sys.orig_argv = [sys.executable, *request.arguments]
    sys.excepthook = _report


def run(arguments: list[str]) -> None:
    """Run the command as `__main__`."""
    kind = arguments[0]
    if kind == "-m":
        import runpy

        sys.argv = ["-m", *arguments[2:]]
        sys.modules["__main__"] = _main_module()
        runpy._run_module_as_main(arguments[1], alter_argv=True)  # type: ignore[attr-defined]  # what `python -m` runs
        return
    module = sys.modules["__main__"] = _main_module()
    if kind == "-c":
        sys.argv = ["-c", *arguments[2:]]
        code = compile(arguments[1], "<string>", "exec")
        if sys.version_info >= (3, 13):  # where a traceback shows the lines of the command
            import linecache

            lines = arguments[1].splitlines(keepends=True)
            linecache.cache["<string>"] = (len(arguments[1]), None, lines, "<string>")
    else:
        sys.argv = list(arguments)
        loader = SourceFileLoader("__main__", kind)
        module.__file__, module.__loader__ = kind, loader
        module.__dict__["__cached__"] = None
        code = compile(Path(kind).read_bytes(), kind, "exec")
    exec(code, module.__dict__)


def set_environment(variables: dict[str, str]) -> None:
    zone = os.environ.get("TZ")
    os.environ.clear()
    os.environ.update(variables)
    if os.environ.get("TZ") != zone:
        time.tzset()


def search_path(request: Request, found: list[str]) -> list[str]:
    """Return `sys.path` as the interpreter and `site` would make it."""
    kind = request.arguments[0]
    if kind == "-c":
        first = ""
    elif kind == "-m":
        first = request.directory
    else:
        first = str(Path(request.directory, kind).resolve().parent)
    given = request.environment.get("PYTHONPATH", "")
    listed = [str(Path(request.directory, each).absolute()) for each in given.split(os.pathsep)] if given else []
    return [first, *dict.fromkeys([*listed, *found])]


def _place(descriptors: list[int], numbers: list[int]) -> None:
    """Give each descriptor its number, and close what the command was not given."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, _HIGH) for each in descriptors]
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number)
    for each in (*moved, *descriptors):
        if each not in numbers:
            os.close(each)


def open_streams() -> None:
    _set_stream("stdin", 0, "r")
    _set_stream("stdout", 1, "w")
    _set_stream("stderr", 2, "w")


def _set_stream(name: str, number: int, mode: Literal["r", "w"]) -> None:
    """Set a stream with the buffers that the interpreter gives it, and the encoding of the server's."""
    like = getattr(sys, f"__{name}__")
    raw = io.FileIO(number, mode, closefd=False)
    setattr(raw, "name", f"<{name}>")  # noqa: B010  # as the interpreter does, and so the mode below
    is_buffered = not os.environ.get("PYTHONUNBUFFERED")
    binary: Any = raw
    if mode == "r":
        binary = io.BufferedReader(raw)
    elif is_buffered:
        binary = io.BufferedWriter(raw)
    stream = io.TextIOWrapper(
        binary,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=is_buffered and (raw.isatty() or number == 2),
        write_through=not is_buffered,
    )
    setattr(stream, "mode", mode)  # noqa: B010
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _main_module() -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    module.__annotations__ = {}
    return module


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unhandled exception without the frames of the server."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
