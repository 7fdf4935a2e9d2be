"""The demo's workers: `manage.py durable_worker` with a few processes, under guard so that none is left behind."""

import os
import re
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from django.conf import settings

from project.guard import GuardedProcess

__all__ = ["Workers"]

_STARTED = re.compile(r"worker \d+ started, pid (\d+)")


class Workers:
    """One worker command with several processes. A context manager: at its end they are asked to stop, and do."""

    def __init__(self, logs: Path, *, processes: int) -> None:
        self.processes = processes
        self._log = logs / "workers.log"
        self._command: GuardedProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._command is not None:
            self._command.end()

    def start(self) -> None:
        """Start them; they need their tables, so this comes after the migrations."""
        self._log.unlink(missing_ok=True)
        self._command = GuardedProcess(
            [
                sys.executable,
                str(settings.BASE_DIR / "manage.py"),
                "durable_worker",
                "--processes",
                str(self.processes),
            ],
            log=self._log,
        )

    @property
    def pids(self) -> set[int]:
        """The processes that were started, as the command says in its log; those that died included."""
        return {int(pid) for pid in _STARTED.findall(self.logged())}

    def kill(self, pid: int) -> None:
        """SIGKILL one of ours: it gets to do nothing more, not even to say so."""
        assert pid in self.pids
        os.kill(pid, signal.SIGKILL)

    def logged(self) -> str:
        """What the workers wrote."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""
