"""Notice files that are written or changed, sockets and processes between two operations.

An audit hook of Python's tells of them. Use it in development and in tests only: a hook stays for the life of the
process, and is called for each audited event.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from durable.core.scope import Scope
from durable.guard.places import scope_between_operations
from durable.guard.telling import step_call, tell

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
    scope = scope_between_operations()
    if scope is not None:
        judge(scope, args)


def _file(scope: Scope, args: tuple[Any, ...]) -> None:
    path, mode, flags = args
    if isinstance(path, int) or not _is_for_writing(mode, flags):
        return
    name = os.fsdecode(path)
    if name.startswith("/dev/"):
        return
    what = f"the file {name[:_SHOWN]} opened for writing"
    tell(scope, "W105", "file", what, _remedy(scope, "write the file"))


def _change(doing: str) -> Callable[[Scope, tuple[Any, ...]], None]:
    """Return what tells of a file or directory that is changed without being opened."""

    def judge(scope: Scope, args: tuple[Any, ...]) -> None:
        path = args[0]
        name = f"descriptor {path}" if isinstance(path, int) else os.fsdecode(path)
        tell(scope, "W105", doing, f"the file {name[:_SHOWN]} {doing}", _remedy(scope, "change the file"))

    return judge


def _is_for_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(each in mode for each in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _connection(scope: Scope, args: tuple[Any, ...]) -> None:
    connecting, address = args
    shown = ":".join(str(each) for each in address[:2]) if isinstance(address, tuple) else str(address)
    what = f"a connection to {shown[:_SHOWN]}"
    try:
        tell(scope, "W106", "network", what, _remedy(scope, "call the service"))
    except BaseException:
        connecting.close()  # its owner expects an OSError, and would leave it open
        raise


def _process(scope: Scope, args: tuple[Any, ...]) -> None:
    what = f"the process {args[0]!s:.{_SHOWN}}" if args and args[0] else "another process"
    tell(scope, "W106", "process", what, _remedy(scope, "run the program"))


def _remedy(scope: Scope, name: str) -> str:
    return f"put it into a function, which returns what the workflow needs, and write {step_call(scope, name)}"


_JUDGES: Final[dict[str, Callable[[Scope, tuple[Any, ...]], None]]] = {
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
    "os.spawn": lambda scope, args: _process(scope, args[1:]),
    "os.system": _process,
    "os.fork": _process,
}
