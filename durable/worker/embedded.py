"""The worker of a small site: one `durable_worker` that a web process starts (`DURABLE["EMBEDDED"]`).

Owns which process starts it, that there is one on a machine for a project, and that it ends with its web process. It is
a process of its own: a step that blocks or crashes harms no request. Imports no worker code: web processes need none.

- **Which process.** The one that makes Django's WSGI or ASGI application, or serves as `manage.py runserver`, under its
  reloader the process that is replaced. Any other process when it gets its first request, unless it is a management
  command. Never one that runs tests.
- **One of them.** A lock of a file in the directory for temporary files. The worker itself has it, so it is free when
  the worker is gone, whatever has ended it. Each web process tries for it all the time: where a server replaces the one
  that has started the worker, another one starts the next.
- **Its end.** The worker's standard input is a pipe whose other end only the web process has. It closes when that ends,
  by `kill -9` too: the worker then hands over as on SIGTERM, and after `GRACE` seconds it ends at once.
- **Forks.** A forked child closes what it has inherited of both, so that neither lives longer because of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.signals import request_started
from django.db import connections

from durable.conf import conf
from durable.notifier import wakeups

logger = logging.getLogger("durable.worker")

#: With "0" a process starts no worker, whatever the settings say.
VARIABLE: Final = "DURABLE_EMBEDDED"
# Seconds for which the worker may hand over after its web process has ended.
GRACE: Final = 10.0
# Seconds between two tries to get the lock, and before a worker that has ended starts again: at first and at most.
LOOK_EVERY: Final = 1.0
RESTART: Final = (1.0, 60.0)
# Seconds after which a worker's end counts as its first again.
HEALTHY: Final = 120.0
# Seconds between two signs that the file is in use: what cleans the directory deletes old files.
TOUCH_EVERY: Final = 3_600.0

_FIRST_REQUEST: Final = "durable.worker.embedded"
_APPLICATIONS: Final = {("django.core.wsgi", "get_wsgi_application"), ("django.core.asgi", "get_asgi_application")}
_COMMANDS: Final = ("manage.py", "django-admin")


def begin() -> None:
    """Start the worker if this is a web process, otherwise at the first request. Called when Django has started."""
    if os.environ.get(VARIABLE) == "0" or wakeups.is_under_test():
        return
    command = _management_command()
    if command == "runserver" or _makes_an_application():
        if command != "runserver" or os.environ.get("RUN_MAIN") == "true" or "--noreload" in sys.argv:
            _keep()
    elif command is None or command.startswith("runserver"):
        request_started.connect(_on_first_request, dispatch_uid=_FIRST_REQUEST)


def end_with_parent() -> None:
    """In the worker: hand over when standard input is closed, and end at once some seconds later."""

    def watch() -> None:
        while os.read(0, 4096):
            continue
        for pause in (GRACE, 0.0):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(pause)

    threading.Thread(target=watch, name="durable-parent-watch", daemon=True).start()


def _on_first_request(**_: object) -> None:
    if request_started.disconnect(dispatch_uid=_FIRST_REQUEST) and not wakeups.is_under_test():
        _keep()


def _management_command() -> str | None:
    """Return the name of the management command that this process is; None for any other program."""
    program = Path(sys.argv[0])
    is_command = program.name in _COMMANDS or (program.parent.name, program.name) == ("django", "__main__.py")
    return sys.argv[1] if is_command and len(sys.argv) > 1 else None


def _makes_an_application() -> bool:
    """Return True if Django is being started by the making of a WSGI or ASGI application."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _APPLICATIONS:
            return True
    return False


def _keep() -> None:
    keeper = _Keeper()
    os.register_at_fork(
        before=keeper.changing.acquire, after_in_parent=keeper.changing.release, after_in_child=keeper.forget
    )
    threading.Thread(target=keeper.run, name="durable-embedded", daemon=True).start()


class _Keeper:
    """Keeps a worker running for as long as this process lives, while no other process of the machine does."""

    def __init__(self) -> None:
        #: Held while files are opened and closed, so that no fork of another thread comes between. The start of the
        #: worker may be a fork itself, which calls `forget` too: gevent's `Popen` is.
        self.changing = threading.RLock()
        self._files: set[int] = set()

    def forget(self) -> None:
        """In a forked child: close what belongs to the parent."""
        for each in self._files:
            with contextlib.suppress(OSError):
                os.close(each)
        self._files.clear()
        self.changing.release()

    def run(self) -> None:
        """Start the worker whenever the lock is free, and wait for its end."""
        pause = RESTART[0]
        while True:
            try:
                process = self._start()
            except OSError as error:
                process = None
                logger.warning("cannot start the embedded worker: %s", error)
                time.sleep(RESTART[1])
            if process is None:
                time.sleep(LOOK_EVERY)
                continue
            began = time.monotonic()
            status = self._wait(process)
            pause = RESTART[0] if time.monotonic() - began >= HEALTHY else min(pause * 2, RESTART[1])
            logger.warning("the embedded worker ended, status %d; starting again in %g s", status, pause)
            time.sleep(pause)

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start the worker, with the lock. Return None if another process has it. Raises OSError."""
        with self.changing:
            lock = _locked(lock_path())
            if lock is None:
                return None
            try:
                process = subprocess.Popen(
                    _command(),
                    stdin=subprocess.PIPE,
                    pass_fds=[lock],
                    start_new_session=True,  # Ctrl+C in a terminal ends the server, and so the worker
                )
            finally:
                os.close(lock)
            assert process.stdin is not None
            self._files.add(process.stdin.fileno())
        logger.info("started the embedded worker, pid %d", process.pid)
        return process

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                status = process.wait(TOUCH_EVERY)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.utime(lock_path())
                continue
            assert process.stdin is not None
            with self.changing:
                self._files.discard(process.stdin.fileno())
                process.stdin.close()
            return status


def lock_path() -> Path:
    """Return the file whose lock the worker has: one for each project, database and user of this machine."""
    database = connections.settings[conf.DATABASE]
    place = [str(database.get(each) or "") for each in ("ENGINE", "NAME", "HOST", "PORT")]
    if "sqlite" in place[0]:
        place[1] = str(Path(place[1]).absolute())
    name = hashlib.sha256(json.dumps([_settings_module(), *place]).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"durable-{os.getuid()}-{name}.lock"


def _locked(path: Path) -> int | None:
    """Return the open file with its lock; None if another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(path)
        if os.path.samestat(os.fstat(file), path.stat()):  # otherwise it was deleted before it was locked
            return file
    except BlockingIOError:
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _command() -> list[str]:
    start = [_python(), *(f"-W{each}" for each in sys.warnoptions), "-m", "django", "durable_worker", "--embedded"]
    return [*start, f"--settings={_settings_module()}", f"--pythonpath={_root()}"]


def _python() -> str:
    """Return the interpreter of this process's environment.

    A server that embeds Python may say that it is itself the interpreter, or the one that the virtual environment was
    made of.
    """
    if sys.prefix == sys.base_prefix and Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return str(Path(sys.exec_prefix) / "bin" / "python3")


def _settings_module() -> str:
    return str(getattr(settings, "SETTINGS_MODULE", ""))


def _root() -> Path:
    """Return the directory from which the settings were imported."""
    name = _settings_module()
    module = import_module(name)
    return Path(module.__file__ or "").resolve().parents[name.count(".")]
