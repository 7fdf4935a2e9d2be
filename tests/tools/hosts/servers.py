"""The programs of the study: where they are, and each one as a process that can be killed, frozen and started again."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import psutil

from project.guard import GuardedProcess
from project.servers import ServerError, unprivileged_user
from tests.support.postgres import OLDEST_POSTGRES, oldest_postgres

T = TypeVar("T")
PATIENCE: Final = 90.0  # seconds

#: Each program that is needed, with Debian's package of it.
PROGRAMS: Final = {
    "patroni": "patroni",
    "etcd": "etcd-server",
    "pgbouncer": "pgbouncer",
    "haproxy": "haproxy",
    "redis-server": "redis-server",
    "redis-sentinel": "redis-sentinel",
    "faketime": "faketime",
}


def missing_packages() -> list[str]:
    """Return Debian's packages of the programs that are not installed."""
    missing = [package for program, package in PROGRAMS.items() if found(program) is None]
    return missing if oldest_postgres() else [*missing, f"postgresql-{OLDEST_POSTGRES}"]


def found(program: str) -> str | None:
    """Return the path of a program, or None. Daemons are in directories that a user's PATH may lack."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def until(ask: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Return the first answer that is true. An answer that fails is none yet."""
    deadline = time.monotonic() + seconds
    problem: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if answer := ask():
                return answer
        except Exception as error:
            problem = error
        time.sleep(0.1)
    raise ServerError(f"{what}: not within {seconds:g} s ({problem})")


class Server:
    """A guarded program. As root it runs as `nobody`, because PostgreSQL and PgBouncer refuse to run as root."""

    def __init__(self, command: Sequence[str], log: Path, *, pid_file: Path | None = None) -> None:
        """`pid_file` is that of a daemon which the program starts, and which belongs to it."""
        program = found(command[0])
        assert program is not None, command
        self._command = ["/usr/bin/env", "-u", "PYTHONPATH", program, *command[1:]]
        self._log = log
        self._pid_file = pid_file
        self._process: GuardedProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        if not self.is_running:
            self._process = GuardedProcess(self._command, log=self._log, user=unprivileged_user())

    def stop(self) -> None:
        """End in order."""
        if self._process is not None:
            self.thaw()
            self._process.end()

    def kill(self) -> None:
        """End it and all that it has started, by SIGKILL."""
        processes = self._processes()
        _send(processes, signal.SIGSTOP)  # or else a parent would start another child
        processes = self._processes()
        _send(processes, signal.SIGKILL)
        if self._process is not None:
            self._process.end(signal.SIGKILL)
        psutil.wait_procs(processes, PATIENCE)

    def freeze(self) -> None:
        _send(self._processes(), signal.SIGSTOP)

    def thaw(self) -> None:
        _send(self._processes(), signal.SIGCONT)

    def _processes(self) -> list[psutil.Process]:
        pids = [self._process.pid] if self._process is not None and self._process.running else []
        if self._pid_file is not None and self._pid_file.exists():
            pids.append(int(self._pid_file.read_text().split()[0]))
        processes: dict[int, psutil.Process] = {}
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(pid)
                processes |= {each.pid: each for each in (parent, *parent.children(recursive=True))}
        return list(processes.values())


def _send(processes: list[psutil.Process], what: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(what)
