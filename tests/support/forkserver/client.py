"""What asks for forks: `subprocess.Popen` in pytest's own processes, and in the parent of `durable_worker`'s workers.

Owns which commands are forked, and by which server. What is not forked is executed as ever: a command with an option of
the interpreter, one with a function to call before it, one whose `PYTHONPATH` does not begin with the directory of
`sitecustomize`, and all of them on a machine without `clone_as_sibling`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tests.support.forkserver.clone import is_possible
from tests.support.forkserver.protocol import Request, answered, send

ROOT: Final = Path(__file__).resolve().parents[3]
START: Final = str(ROOT / "tests/support/start")
MANAGE: Final = str(ROOT / "manage.py")
SERVER: Final = str(ROOT / "tests/support/forkserver/server.py")
MOST_PREPARED: Final = 3
PATIENCE: Final = 120.0  # seconds that a server has to answer in
WORKER: Final = "durable_worker"
STANDBY: Final = "standby"  # what `ps` and `/proc` call a process that waits to fork workers
# Commands that run others in ways of their own, or change the environment before Django is set up.
UNPREPARED: Final = frozenset({"demo", "durable_dev", "runserver", "shell", "test"})
# Read when a command begins, and set in each fork.
PER_COMMAND: Final = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONPATH", "PYTHONUNBUFFERED"})
# Read by an interpreter or a library before a fork could set them: a command must have the server's.
BEFORE_FORKS: Final = ("PYTHON", "LC_", "LANG", "LD_", "PSYCOPG", "COVERAGE")
# Differ from command to command; nothing reads them while Django is set up.
UNREAD: Final = frozenset({"PYTEST_CURRENT_TEST", "DURABLE_READY_FD"})

_execute: Final = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # where a process begins
_NAMES: Final = [*inspect.signature(_execute).parameters][1:]


class Forks(Protocol):
    """Something that forks for a command."""

    def fork(self, request: Request, descriptors: list[int]) -> int | None:
        """The pid of the new child of this process; None if the command is to be executed."""

    def close(self) -> None: ...


class Preparation(NamedTuple):
    """What Django is set up for: the same in each command that one process is prepared for."""

    program: str
    command: str
    directory: str
    environment: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, request: Request) -> Preparation | None:
        """None if the command is none of this project's, or can read what a test has changed meanwhile."""
        program, *others = request.arguments
        path = request.environment["PYTHONPATH"].split(os.pathsep)
        if program != MANAGE or not others or others[0] in UNPREPARED or not {*path[1:]} <= {str(ROOT)}:
            return None
        read = frozenset(each for each in request.environment.items() if each[0] not in UNREAD)
        return cls(program, others[0], request.directory, read)


class Channel:
    """The way to one server, of this process alone: a fork of it has none."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        connection.settimeout(PATIENCE)

    def ask(self, request: Request, descriptors: list[int]) -> int | None:
        """The server's answer; None if it is gone."""
        with contextlib.suppress(OSError):
            send(self.connection, request, descriptors)
            return answered(self.connection)
        return None

    def close(self) -> None:
        self.connection.close()
        with contextlib.suppress(ChildProcessError):  # somebody has waited for all children
            os.waitpid(self.pid, 0)


class Servers:
    """The server of this process, begun with the first command, and copies of it that have set Django up.

    A copy is made for the second command that needs the same: most are needed once. Commands that start workers, which
    need the same as they do, get it at once.
    """

    def __init__(self) -> None:
        self._first: Channel | None = None
        self._is_broken = False
        self._prepared: OrderedDict[Preparation, Channel | None] = OrderedDict()
        self._asked: Counter[Preparation] = Counter()
        self._environment = dict(os.environ)

    def fork(self, request: Request, descriptors: list[int]) -> int | None:
        if self._is_broken or not self._is_like_mine(request.environment):
            return None
        for channel in filter(None, (self._prepared_for(request), self._begun())):
            if pid := channel.ask(request, descriptors):
                return pid
        self._is_broken = True
        return None

    def close(self) -> None:
        for channel in (*self._prepared.values(), self._first):
            if channel is not None:
                channel.close()

    def _is_like_mine(self, environment: dict[str, str]) -> bool:
        """Whether the interpreter would begin with `environment` as it did in the server."""
        names = {name for name in {*environment, *self._environment} - PER_COMMAND if name.startswith(BEFORE_FORKS)}
        return all(environment.get(name) == self._environment.get(name) for name in names)

    def _begun(self) -> Channel | None:
        if self._first is None and not self._is_broken:
            mine, theirs = socket.socketpair()
            self._first = Channel(mine, _spawn(theirs.fileno(), {**self._environment, "PYTHONPATH": START}))
            theirs.close()
        return self._first

    def _prepared_for(self, request: Request) -> Channel | None:
        if (preparation := Preparation.of(request)) is None:
            return None
        self._asked[preparation] += 1
        if preparation in self._prepared:
            self._prepared.move_to_end(preparation)
        elif preparation.command == WORKER or self._asked[preparation] > 1:
            self._prepared[preparation] = self._prepare(request)
            if len(self._prepared) > MOST_PREPARED and (oldest := self._prepared.popitem(last=False)[1]) is not None:
                oldest.close()
        return self._prepared.get(preparation)

    def _prepare(self, request: Request) -> Channel | None:
        """A copy that has set Django up; None if it must not, as it says."""
        if (first := self._begun()) is None:
            return None
        mine, theirs = socket.socketpair()
        with theirs:
            pid = first.ask(request._replace(prepare=True), [theirs.fileno()])
        if pid is None:
            mine.close()
            return None
        channel = Channel(mine, pid)
        if answered(mine):
            return channel
        channel.close()
        return None


class Standby:
    """The fork of a command that starts workers, made before it did anything: its workers begin as it did."""

    def __init__(self, channel: Channel, preparation: Preparation) -> None:
        self._channel = channel
        self._preparation = preparation

    def fork(self, request: Request, descriptors: list[int]) -> int | None:
        if Preparation.of(request) != self._preparation:
            return None
        return self._channel.ask(request, descriptors)

    def close(self) -> None:
        self._channel.close()


def is_supervisor(request: Request) -> bool:
    """Whether the command will start workers that need what it needs."""
    return request.arguments[:2] == [MANAGE, WORKER] and "--as-child" not in request.arguments


class _Hook:
    """Python's own way to begin a process, and the forks that replace it."""

    def __init__(self) -> None:
        self.forks: Forks | None = None
        self.owner = 0
        self.lock = threading.Lock()

    def begin(self, process: Any, *given: Any) -> None:
        values = dict(zip(_NAMES, given, strict=True))
        if self.forks is None or self.owner != os.getpid() or (asked := _request(values)) is None:
            _execute(process, *given)
            return
        sys.audit("subprocess.Popen", sys.executable, values["args"], values["cwd"], values["env"])
        with self.lock:
            pid = self.forks.fork(*asked)
        if pid is None:
            _execute(process, *given)
            return
        process._child_created = True
        process.pid = pid
        process._close_pipe_fds(*(values[name] for name in _PIPES))


_PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_hook: Final = _Hook()


def install(forks: Forks | None = None) -> None:
    """Have `subprocess.Popen` fork what can be forked, from now on and in this process alone."""
    if forks is None and not is_possible():
        return
    _hook.forks, _hook.owner = forks or Servers(), os.getpid()

    def begin(self: Any, *given: Any) -> None:
        _hook.begin(self, *given)

    subprocess.Popen._execute_child = begin  # type: ignore[attr-defined]


def remove() -> None:
    """End the servers. Their forks go on."""
    subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]
    if _hook.forks is not None and _hook.owner == os.getpid():
        _hook.forks.close()
    _hook.forks = None


def _request(values: dict[str, Any]) -> tuple[Request, list[int]] | None:
    """What the server is asked for; None if Python alone can do it."""
    command = values["args"]
    if values["shell"] or isinstance(command, str | bytes | os.PathLike) or len(command) < 2:
        return None
    interpreter, *arguments = command
    environment = dict(os.environ if values["env"] is None else values["env"])
    if interpreter != sys.executable or not all(isinstance(each, str) for each in (*arguments, *environment.values())):
        return None
    kind = arguments[0]
    if (kind not in ("-c", "-m") and (kind.startswith("-") or not kind.endswith(".py"))) or kind == SERVER:
        return None
    if (
        environment.get("PYTHONPATH", "").split(os.pathsep)[0] != START
        or sys.warnoptions
        or (len(arguments) < 2 and kind in ("-c", "-m"))
    ):
        return None
    usual = {"preexec_fn": None, "executable": None, "startupinfo": None, "close_fds": True}
    if any(values[name] != value for name, value in usual.items()):
        return None
    if any(
        values[name] not in (None, -1)
        for name in _NAMES
        if name.endswith(("gid", "gids", "uid", "umask", "process_group"))
    ):
        return None
    directory = str(Path(values["cwd"] or ".").absolute())
    streams = [values[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    descriptors = [*(number if each == -1 else each for number, each in enumerate(streams)), *values["pass_fds"]]
    if not Path(directory).is_dir() or not all(map(_is_open, descriptors)):
        return None
    numbers = [0, 1, 2, *values["pass_fds"]]
    has_session = bool(values[next(name for name in _NAMES if name.endswith("start_new_session"))])
    return Request(False, list(arguments), environment, directory, numbers, has_session), descriptors


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _spawn(descriptor: int, environment: dict[str, str]) -> int:
    """Start a server whose socket is `descriptor`."""
    number = 3
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(3)]
    actions.append((os.POSIX_SPAWN_DUP2, descriptor, number))
    return os.posix_spawn(sys.executable, [sys.executable, SERVER, str(number)], environment, file_actions=actions)
