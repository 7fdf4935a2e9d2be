"""Worker processes of the tests: started, killed with SIGKILL at random moments, and started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

__all__ = ["Workers"]

ROOT = Path(__file__).resolve().parent.parent.parent


class Workers:
    """Some `durable_worker` commands, each the leader of its own session. A context manager: none outlives it."""

    def __init__(self, count: int, environment: dict[str, str], log: Path) -> None:
        self.environment = {**environment, "DJANGO_SETTINGS_MODULE": "tests.e2e.settings"}
        self.log = log
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
        index = chooser.randrange(len(self._processes))
        self._end(self._processes[index])
        self.kills += 1
        self._processes[index] = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "durable_worker", "default", "--skip-checks"],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
            )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
