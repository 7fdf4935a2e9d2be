"""For development: watch the code of a project, and run Django's server beside the workers of `durable_dev`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from django.apps import apps
from django.conf import settings
from django.utils.autoreload import StatReloader

from durable.cli import guard
from durable.worker.embedded import VARIABLE

logger = logging.getLogger("durable.worker")

LOOK_EVERY: Final = 0.5  # seconds between two scans of the files


class CodeWatch:
    """A thread that calls `on_change` with the paths of changed, added or removed files. A context manager."""

    def __init__(self, on_change: Callable[[Sequence[Path]], None]) -> None:
        self._on_change = on_change
        self._files = StatReloader()
        for directory in _directories():
            self._files.watch_dir(directory, "**/*.py")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="durable-code-watch", daemon=True)

    def __enter__(self) -> Self:
        self._looked_at = time.time()
        self._before = self._look({})
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY):
            looks_at = time.time()
            after = self._look(self._before)
            changed = self._changed(self._before, after)
            self._before, self._looked_at = after, looks_at
            if changed:
                self._on_change(changed)

    def _look(self, otherwise: Mapping[Path, float]) -> Mapping[Path, float]:
        try:
            return dict(self._files.snapshot_files())
        except OSError as error:  # a directory was removed during the scan
            logger.debug("the code cannot be looked at now: %s", error)
            return otherwise

    def _changed(self, before: Mapping[Path, float], after: Mapping[Path, float]) -> list[Path]:
        changed = [path for path, moment in before.items() if after.get(path) != moment]
        # A file that was not there before may be an old file that this process has only now imported.
        added = [path for path, moment in after.items() if path not in before and moment >= self._looked_at - 1]
        return sorted({*changed, *added})


def _directories() -> set[Path]:
    """Return the directories of the project's own code: its apps, its settings; no installed packages."""
    installed = [os.path.realpath(sysconfig.get_path(each)) for each in ("purelib", "platlib", "stdlib")]
    found = {Path(os.path.realpath(each.path)) for each in apps.get_app_configs()}
    if name := getattr(settings, "SETTINGS_MODULE", ""):  # settings that were configured by a call have none
        found.add(Path(os.path.realpath(import_module(name).__file__ or "")).parent)
    return {each for each in found if not any(str(each).startswith(f"{path}{os.sep}") for path in installed)}


GUARD: Final = Path(guard.__file__)


class WebServer:
    """A process that runs `command`. A context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def __enter__(self) -> Self:
        # A separate session: Ctrl+C in a terminal reaches the command that started the server, and that command ends
        # both.
        self._server = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, VARIABLE: "0"},  # the command has a worker
        )
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
