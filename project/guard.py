"""A process that ends with the one that started it, however that one ends.

Owns both halves of a small arrangement: `GuardedProcess`, used by the process that wants a server, and the guard, this
same file run as a script, which is the parent of the server. The guard holds the reading end of a pipe; when its writer
dies, by SIGKILL too, the pipe closes and the guard stops the server. As the server's parent it can never signal a
recycled pid. On Linux the kernel ends the server as well should the guard itself be killed.

Standard library only; knows nothing of PostgreSQL or Redis.
"""

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

__all__ = ["GuardedProcess"]

PATIENCE = 20.0  # seconds a server gets to stop in order, before SIGQUIT and then SIGKILL
PR_SET_PDEATHSIG = 1

_guards: "weakref.WeakSet[GuardedProcess]" = weakref.WeakSet()


class GuardedProcess:
    """A running server under guard. `pid` is the server's own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        user: tuple[int, int] | None = None,
        remove: Path | None = None,
    ) -> None:
        """Start `command`, its output appended to `log`, as `user` (uid, gid) if given.

        If this process dies, the server gets `stop_signal` and the directory `remove` is deleted.
        """
        arguments = [sys.executable, "-I", "-S", __file__, "--log", str(log), "--stop-signal", stop_signal.name]
        if user is not None:
            arguments += ["--user", str(user[0]), "--group", str(user[1])]
        if remove is not None:
            arguments += ["--remove", str(remove)]
        self._owner = os.getpid()
        self._guard = subprocess.Popen(
            [*arguments, "--", *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a terminal reaches the programs that use the server; they stop it when they are done with it.
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        with self._guard.stdout as answer:
            line = answer.readline()
        if not line.strip().isdigit():
            self.end()
            raise OSError(f"{command[0]} could not be started; its guard wrote why to standard error.")
        self.pid = int(line)
        _guards.add(self)

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def end(self, how: signal.Signals | None = None) -> None:
        """Stop the server with the signal `how` and wait until it is gone. Harmless when it is, and in a fork."""
        if os.getpid() != self._owner:
            return
        pipe = self._guard.stdin
        assert pipe is not None
        if not pipe.closed:
            with contextlib.suppress(BrokenPipeError), pipe:
                pipe.write((how.name if how else "STOP").encode() + b"\n")
        self._guard.wait()

    def forget_in_fork(self) -> None:
        """A fork must not hold the pipe open: the guard would not notice that the owner died."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()


def _after_fork_in_child() -> None:
    for guard in list(_guards):
        guard.forget_in_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _guard_main() -> int:
    parser = argparse.ArgumentParser(description="Run a server until standard input closes.")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--stop-signal", type=signal.Signals.__getitem__, required=True)
    parser.add_argument("--user", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--remove", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    waker = _wake_on_signals()
    with options.log.open("ab") as log:
        server = subprocess.Popen(
            options.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,
            user=options.user,
            group=options.group,
            extra_groups=None if options.user is None else [],
            preexec_fn=_die_with_parent(os.getpid()),  # safe: the guard has one thread
        )
    print(server.pid, flush=True)  # noqa: T201  the answer that the other half reads

    ordered = _wait_for_order_or_end(server, waker)
    how = signal.Signals[ordered] if ordered.startswith("SIG") else options.stop_signal
    _stop(server, how)
    if options.remove is not None and not ordered:
        shutil.rmtree(options.remove, ignore_errors=True)
    return 0


def _wait_for_order_or_end(server: subprocess.Popen[bytes], waker: int) -> str:
    """Return the order read from the pipe, or "ended" if the server ends by itself.

    Return "" if the owner died, or if the guard was asked to end.
    """
    while server.poll() is None:
        ready, _, _ = select.select([0, waker], [], [])
        if 0 in ready:
            return os.read(0, 64).decode().strip()
        if set(os.read(waker, 64)) - {signal.SIGCHLD}:
            return ""
    return "ended"


def _stop(server: subprocess.Popen[bytes], how: signal.Signals) -> None:
    for step in (how, signal.SIGQUIT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(step)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(PATIENCE)
            return


def _wake_on_signals() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


class _die_with_parent:  # noqa: N801  reads as the function it is
    """What the server's process does before it becomes the server: ask the kernel for SIGQUIT when the guard dies."""

    def __init__(self, parent: int) -> None:
        self.parent = parent
        self.prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def __call__(self) -> None:
        for number in (signal.SIGINT, signal.SIGQUIT):  # a shell's background jobs are started with both ignored
            signal.signal(number, signal.SIG_DFL)
        if self.prctl is None:
            return
        self.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
        if os.getppid() != self.parent:
            os._exit(1)


if __name__ == "__main__":
    sys.exit(_guard_main())
