"""Worker processes of the tests: started, killed with SIGKILL at random moments, and started again."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.support.forkserver.client import STANDBY

HAND_OVER = 30.0  # seconds that a worker has to end in after SIGTERM
ROOT = Path(__file__).resolve().parent.parent.parent


class Workers:
    """Some `durable_worker` commands, each the leader of its own session. A context manager: none outlives it."""

    def __init__(
        self,
        count: int,
        environment: dict[str, str],
        log: Path,
        *,
        settings: str = "tests.e2e.settings",
        options: Sequence[str] = (),
        queue: str = "default",
    ) -> None:
        self.environment = {**environment, "DJANGO_SETTINGS_MODULE": settings, "PYTHONFAULTHANDLER": "1"}
        self.log = log
        self.options = options
        self.queue = queue
        self.kills = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._count = count

    def __enter__(self) -> Self:
        self._processes = [self._start() for _ in range(self._count)]
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            self._end(process)

    def kill_one(self, chooser: random.Random) -> None:
        """SIGKILL a worker with all its processes, and start another one in its place."""
        self._kill(chooser.randrange(len(self._processes)))

    def kill_all(self) -> None:
        """SIGKILL each worker with all its processes, and start others in their place."""
        for index in range(len(self._processes)):
            self._kill(index)

    def _kill(self, index: int) -> None:
        self._end(self._processes[index])
        self.kills += 1
        self._processes[index] = self._start()

    def terminate_one(self, chooser: random.Random) -> None:
        """SIGTERM a worker, wait until it has handed over, and start another one in its place."""
        index = chooser.randrange(len(self._processes))
        process = self._processes[index]
        process.terminate()
        try:
            process.wait(HAND_OVER)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a worker goes on after SIGTERM:\n{self._stacks(process)}") from None
        finally:
            self._end(process)
        self._processes[index] = self._start()

    def _stacks(self, process: subprocess.Popen[bytes]) -> str:
        """Where its processes are, as faulthandler writes it into the log when they are aborted."""
        states = [f"{child.pid} {child.status()}" for child in _children(process)]
        for child in _children(process):
            child.send_signal(signal.SIGABRT)
        psutil.wait_procs(_children(process), timeout=30)
        return f"{states}\n{self.log.read_text(errors='replace')[-8000:]}"

    @property
    def children(self) -> list[psutil.Process]:
        """The processes that pass runs, of all workers."""
        return [child for process in self._processes for child in _children(process)]

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "durable_worker", self.queue, "--skip-checks", *self.options],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
            )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            return
        # Each child leads a session of its own, and would hand over if its parent alone were gone.
        process.send_signal(signal.SIGSTOP)
        for child in _children(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(process.pid).children(recursive=True)
    return [each for each in found if not _is_standby(each)]


def _is_standby(process: psutil.Process) -> bool:
    """Whether it only waits to fork workers for a `durable_worker` that a test has started."""
    try:
        return process.name() == STANDBY
    except psutil.NoSuchProcess:
        return False
