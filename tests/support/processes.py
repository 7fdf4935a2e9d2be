"""Commands of manage.py as processes: their lines, their signals, and the runs that they execute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from django.utils import timezone

from durable.codec import JsonCodec
from durable.core.records import RunRecord, RunState
from durable.notifier import notify
from durable.store import Store
from tests.support.child_path import child_path

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """A `manage.py` command as a process; its lines can be waited for."""

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        self.begin([sys.executable, str(ROOT / "manage.py"), *arguments], environment=environment)

    def begin(self, command: list[str], *, environment: dict[str, str], directory: Path | None = None) -> None:
        self.lines: list[str] = []
        self._condition = threading.Condition()
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._condition:
                self.lines.append(line.rstrip())
                self._condition.notify_all()

    def wait_for(self, text: str, count: int = 1) -> list[str]:
        """The lines that have `text`, once there are `count` of them."""

        def found() -> list[str]:
            return [line for line in self.lines if text in line]

        with self._condition:
            assert self._condition.wait_for(lambda: len(found()) >= count, timeout=300), "\n".join(self.lines)
            return found()

    def pids(self, count: int = 1) -> list[int]:
        """The process ids of the workers that were started."""
        return [int(line.rpartition(" ")[2]) for line in self.wait_for("started, pid", count)]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.wait()

    def close(self) -> None:
        """Read to the end, which comes when the last of its processes has ended."""
        self._reader.join(60)
        assert not self._reader.is_alive(), "a process is left"
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait(self) -> int:
        try:
            return self.process.wait(300)
        except subprocess.TimeoutExpired:
            pytest.fail("it does not end:\n" + "\n".join(self.lines))


def printed(module: str, *options: str, environment: dict[str, str] | None = None) -> str:
    """Run `python -m module`, in the environment of a fresh terminal unless one is given; return what it has printed.

    A program with servers of its own does not know those of the session. One that ends with an error fails the test.
    What it starts is forked.
    """
    others = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forkserver", module, *options],
        cwd=ROOT,
        env=environment or {**others, "PYTHONPATH": child_path()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


#: That of a program which needs no server.
WITHOUT_SERVERS = {"DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": "sqlite://", "PATH": "/usr/bin:/bin"}

Run = Callable[..., Program]


def start_run(store: Store, workflow: str, *arguments: object) -> str:
    now = timezone.now()
    text = JsonCodec().encode({"args": list(arguments), "kwargs": {}})
    run_id = f"{workflow}-{arguments[0]}"
    store.create([RunRecord(id=run_id, workflow=workflow, queue="default", input=text, created_at=now, wake_at=now)])
    notify.notify("default")
    return run_id


def is_completed(store: Store, *run_ids: str) -> bool:
    found = [store.get(each) for each in run_ids]
    assert not [each for each in found if each is None or each.state == RunState.FAILED], found
    return all(each is not None and each.state == RunState.COMPLETED for each in found)


def flow_log(redis_connection: redis.Redis) -> list[str]:
    return [line.decode() for line in redis_connection.lrange("flows", 0, -1)]  # type: ignore[union-attr]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A child whose parent is gone and that is not reaped yet is as good as gone.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def is_listening(redis_connection: redis.Redis) -> bool:
    """Whether an RQ worker waits for its next job.

    RQ's own worker may miss a signal at other moments: the exception that its handler raises is lost while it logs.
    """
    return listeners(redis_connection) > 0


def listeners(redis_connection: redis.Redis) -> int:
    """How many RQ workers wait for their next job."""
    return sum(each["cmd"] in {"blpop", "blmove"} for each in redis_connection.client_list())
