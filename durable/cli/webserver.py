"""The development server as a separate process, beside the workers of `manage.py durable_dev`.

Owns its start and its end: Django's `runserver` is two processes, one that watches the code and one that serves. Both
end when the block is left, or when this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from durable.cli import guard

GUARD: Final = Path(guard.__file__)


class WebServer:
    """A process that runs `command`. A context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def __enter__(self) -> Self:
        # A separate session: Ctrl+C in a terminal reaches the command that started the server, and that command ends
        # both.
        self._server = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), str(self._server.pid)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    @property
    def status(self) -> int | None:
        """The exit status of the server, 128 plus the signal if one has killed it; None while it runs."""
        status = self._server.poll()
        return 128 - status if status is not None and status < 0 else status

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(guard.GRACE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server.pid, signal.SIGKILL)  # the remaining processes of the group
        self._server.wait()
