"""The Supervisor: the parent process of `manage.py durable_worker`, and its N workers, each an interpreter of its own.

Owns the worker processes. The parent runs the timer and the sweep, restarts workers that die, passes signals on, and
must not execute workflows: its workers do (`durable.worker.process`). Each worker has the reading end of a pipe whose
writing end only the parent has: when the parent is gone, for any reason, the worker hands over and exits. Without Redis
the parent writes the names of queues with due runs to that pipe. It hears of them from PostgreSQL
(`durable.worker.listener`), or its timer polls the database for them.

No process is forked without exec: the parent has threads and connections.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Final

from durable.conf import conf
from durable.notifier import channel, wakeups
from durable.worker import presence
from durable.worker.timer import Chores, DeadlineListener, Periodic, Sweep, Ticker, Timer

COMMAND: Final = "durable_worker"
PARENTS: Final = (COMMAND, "durable_dev")  # the commands that start workers
# environment variable of a worker: the file descriptor to write a byte to once it is ready
READY_FD: Final = "DURABLE_READY_FD"
CHILD_OPTION: Final = "--as-child"
# Seconds before a worker that died starts again: at first, so that one crash costs little, and at most, so that a
# worker that cannot start uses little of a processor.
RESTART: Final = (0.2, 10.0)
# Seconds after which a worker's death counts as its first again: longer than the pauses and a start.
HEALTHY: Final = 30.0
# Seconds within which a second signal counts as an echo of the first: a process manager may signal the group as well.
AGAIN: Final = 0.5

Echo = Callable[[str], None]


@dataclass(slots=True)
class _Child:
    """One worker: its process (None while it waits to be restarted), and the pipe on which it reports readiness."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    ready_fd: int = -1
    is_ready: bool = False
    started_at: float = 0.0
    start_at: float = 0.0
    pause: float = field(default=RESTART[0])


class Supervisor:
    """Runs `processes` workers until a stop is requested. `say` prints one line.

    With `reloads`, a worker that cannot start is restarted when the code has changed (`code_changed`). `ends_with` is
    called about once a second; when it returns an exit status, everything ends with that status.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        *,
        say: Echo,
        reloads: bool = False,
        ends_with: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.command = list(command)
        self.children = [_Child(number) for number in range(1, processes + 1)]
        self.say = say
        self._signals: list[int] = []
        self._pipes_in_use = threading.Lock()  # the timer writes to the pipes
        self._stopping_since: float | None = None
        self._reloads = reloads
        self._ends_with = ends_with
        self._status = 0
        self.ticked_at = time.monotonic()  # time of the last tick
        self.had_worker_at = time.monotonic()  # time of the last tick with a running worker
        self._periodic: tuple[Periodic, ...] = ()
        self._changed: SimpleQueue[str] = SimpleQueue()
        self._leaving: list[_Child] = []  # stopping workers that are replaced already
        self._wakeup: socket.socket | None = None

    def run(self) -> int:
        """Run until a signal ends it, and return the exit status. Must be called in the main thread."""
        from durable.store import store_for

        reader, writer = socket.socketpair()
        reader.settimeout(0)
        writer.settimeout(0)
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        before = {each: signal.signal(each, self._on_signal) for each in handled}
        wakeup_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._wakeup = writer
        try:
            store = store_for(conf.DATABASE)
            wakeups.listen(self)
            with (
                Timer(store) as timer,
                DeadlineListener(timer),
                _listener(timer),
                Sweep(store) as sweep,
                Ticker(store),
                Chores(store),
            ):
                self._periodic = (timer, sweep)
                self._supervise(reader)
        finally:
            wakeups.unlisten(self)
            for child in (*self.children, *self._leaving):
                self._kill(child)
            self._wakeup = None
            signal.set_wakeup_fd(wakeup_before)
            # otherwise the command ends now, and a further signal must not interrupt that
            if self._stopping_since is None:
                for number, handler in before.items():
                    signal.signal(number, handler)
            reader.close()
            writer.close()
        self.say("stopped")
        return self._status

    @property
    def is_stopping(self) -> bool:
        """True once a stop was requested."""
        return self._stopping_since is not None

    @property
    def ready_workers(self) -> int:
        """The number of running workers that have reported that they are ready."""
        return sum(each.process is not None and each.is_ready for each in self.children)

    @property
    def database_answered_at(self) -> float | None:
        """When the database last answered the timer or the sweep (monotonic); None if it never has."""
        answered = [each.succeeded_at for each in self._periodic if each.succeeded_at is not None]
        return max(answered, default=None)

    @property
    def claims_nothing(self) -> str:
        """Why workers claim nothing in the database, as the last sweep has found it; "" if they may."""
        return next((each.holds_back for each in self._periodic if isinstance(each, Sweep)), "")

    def code_changed(self, paths: Sequence[Path]) -> None:
        """Restart all workers with the changed code. May be called from any thread."""
        names = [os.path.relpath(each) for each in paths[:3]]
        self._changed.put(f"{', '.join(names)}{' and others' if len(paths) > 3 else ''} changed")
        if (wakeup := self._wakeup) is not None:
            with contextlib.suppress(OSError):  # the socket is full, which wakes us anyway, or we are ending
                wakeup.send(b"\0")

    def run_is_due(self, queue: str) -> None:
        """Report a due run of `queue` to the workers, which do not poll. Called in the timer's thread."""
        for child in self.children:
            # the pipe is full, or its reader has ended
            with self._pipes_in_use, contextlib.suppress(OSError, ValueError):
                if child.process is not None and child.process.stdin is not None:
                    os.write(child.process.stdin.fileno(), f"{queue}\n".encode())

    def run_is_due_at(self, queue: str, moment: datetime) -> None:
        """Do nothing: the timer queries the database."""

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:  # SIGCHLD only has to wake the loop, as every signal does
            self._signals.append(number)

    def _supervise(self, wakeup: socket.socket) -> None:
        while True:
            self._handle_signals()
            self._reap()
            self.ticked_at = time.monotonic()
            if any(each.process is not None for each in self.children):
                self.had_worker_at = self.ticked_at
            if self._stopping_since is None:
                self._look_whether_to_end()
            if self._stopping_since is None:
                self._replace_changed()
                self._start_due()
            elif all(each.process is None for each in (*self.children, *self._leaving)):
                return
            select.select([wakeup], [], [], self._until_next_start())
            with contextlib.suppress(BlockingIOError):
                wakeup.recv(4096)

    def _until_next_start(self) -> float:
        waiting = [each.start_at for each in self.children if each.process is None]
        return min([1.0, *(max(0.0, each - time.monotonic()) for each in waiting)]) if waiting else 1.0

    def _start_due(self) -> None:
        for child in self.children:
            if child.process is None and time.monotonic() >= child.start_at:
                self._start(child)
                assert child.process is not None
                self.say(f"worker {child.number} started, pid {child.process.pid}")

    def _start(self, child: _Child) -> None:
        child.ready_fd, child_end = os.pipe()
        os.set_blocking(child.ready_fd, False)
        try:
            child.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                start_new_session=True,  # the Supervisor passes Ctrl+C in a terminal on by itself
                pass_fds=[child_end],
                env={**os.environ, READY_FD: str(child_end)},
            )
        finally:
            os.close(child_end)
        assert child.process.stdin is not None
        os.set_blocking(child.process.stdin.fileno(), False)
        child.is_ready = False
        child.started_at = time.monotonic()

    def _hear(self, child: _Child) -> None:
        """Record that the worker has reported that it is ready, if it has."""
        if child.process is not None and not child.is_ready:
            with contextlib.suppress(OSError):
                child.is_ready = os.read(child.ready_fd, 1) != b""

    def _look_whether_to_end(self) -> None:
        if (status := self._ends_with()) is not None:
            self._status = status
            self._stop()

    def _replace_changed(self) -> None:
        """Start workers with the new code; the old ones hand over their runs and may still execute a step."""
        changed = []
        while not self._changed.empty():
            changed.append(self._changed.get())
        if not changed:
            return
        self.say(f"{', '.join(changed)}: starting the workers again")
        for index, child in enumerate(self.children):
            if child.process is not None:
                child.process.terminate()
                self._leaving.append(child)
            self.children[index] = _Child(child.number)

    def _reap(self) -> None:
        for child in self._leaving:
            if child.process is not None and child.process.poll() is not None:
                self._forget(child)
        self._leaving = [each for each in self._leaving if each.process is not None]
        for child in self.children:
            self._hear(child)
            if child.process is None or (status := child.process.poll()) is None:
                continue
            pid, how = child.process.pid, f"signal {-status}" if status < 0 else f"status {status}"
            self._hear(child)
            self._forget(child)
            if self._stopping_since is not None:
                self.say(f"worker {child.number} stopped, pid {pid}")
                continue
            if self._reloads and status > 0 and not child.is_ready:
                child.start_at = math.inf
                self.say(f"worker {child.number} cannot start, {how}; it is tried again when the code changes")
                continue
            lived = time.monotonic() - child.started_at
            child.pause = RESTART[0] if lived >= HEALTHY else min(child.pause * 2, RESTART[1])
            child.start_at = time.monotonic() + child.pause
            presence.note_death(pid, status)
            self.say(f"worker {child.number} died, pid {pid}, {how}; starting again in {child.pause:g} s")

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stopping_since is None:
                self._stop()
                self.say(f"{signal.Signals(number).name}: handing over; a second signal ends at once")
            elif time.monotonic() - self._stopping_since >= AGAIN:
                self.say(f"{signal.Signals(number).name} again: ending at once")
                for child in (*self.children, *self._leaving):
                    self._kill(child)

    def _stop(self) -> None:
        self._stopping_since = time.monotonic()
        for child in self.children:
            if child.process is not None:
                child.process.terminate()

    def _kill(self, child: _Child) -> None:
        if child.process is None:
            return
        child.process.kill()
        child.process.wait()
        self._forget(child)

    def _forget(self, child: _Child) -> None:
        with self._pipes_in_use:
            if child.process is not None and child.process.stdin is not None:
                child.process.stdin.close()
            if child.ready_fd >= 0:
                os.close(child.ready_fd)
            child.process, child.ready_fd = None, -1


def _listener(timer: Timer) -> AbstractContextManager[object]:
    """Return what hears of due runs from PostgreSQL in its `with` block, where durable uses that."""
    if not channel.is_used():
        return contextlib.nullcontext()
    from durable.worker.listener import PostgresListener  # it needs psycopg

    return PostgresListener(timer)


def worker_command(queues: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """Return the command line of one worker: the invocation of this process, as a child."""
    return command_line(COMMAND, CHILD_OPTION, *options, *queues)


def command_line(name: str, *arguments: str) -> list[str]:
    """Return the command line of a management command, run in the same way as this process.

    `manage.py durable_worker` and `django-admin durable_worker` are repeated as they were, so that everything they do
    before Django starts is done again. For any other caller, code for example, the command line is `python -m django`.
    """
    interpreter = [sys.executable, *(f"-W{each}" for each in sys.warnoptions)]
    program = Path(sys.argv[0])
    is_command_line = len(sys.argv) > 1 and sys.argv[1] in PARENTS and program.is_file()
    if is_command_line and program.name != "__main__.py":
        start = [*interpreter, str(program)]
    else:
        start = [*interpreter, "-m", "django"]
    return [*start, name, *arguments]
