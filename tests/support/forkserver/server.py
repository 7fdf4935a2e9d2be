"""The process that forks: `python server.py NUMBER`, where the number is that of its socket.

Owns what is imported before a command begins. At its start that is what needs no settings. A copy of it, which is
forked when a client asks for one, has also set Django up for one command with one environment: `prepare` says when it
must not.

It ends when the client does. It has one thread, and of files its socket alone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    _found = sys.path[1 + len(os.environ["PYTHONPATH"].split(os.pathsep)) :]
    sys.path[0] = str(ROOT)

from tests.support.forkserver import client  # noqa: E402
from tests.support.forkserver.clone import clone_as_sibling, set_name  # noqa: E402
from tests.support.forkserver.program import become, open_streams, run, search_path, set_environment  # noqa: E402
from tests.support.forkserver.protocol import Request, answer, receive  # noqa: E402

# What most commands import, and what reads neither settings nor the environment at that time.
MODULES: Final = (
    "concurrent.futures.thread",
    "django.apps",
    "django.core.handlers.wsgi",
    "django.core.mail",
    "django.core.management",
    "django.core.management.base",
    "django.core.management.commands.migrate",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.db.migrations.executor",
    "django.db.models",
    "django.forms",
    "django.http",
    "django.template",
    "django.test.signals",
    "django.urls",
    "django.views",
    "cron_descriptor",
    "cronsim",
    "dateutil.relativedelta",
    "dateutil.tz",
    "dj_database_url",
    "durable.context",
    "durable.lint",
    "psycopg",
    "redis",
    "rq",
    "rq.cron",
)
# What a command imports when it has begun, and what depends on settings alone.
AFTERWARDS: Final = {"durable_worker": ("durable.worker.process", "durable.worker.supervisor")}


class Server:
    """`found` is the part of `sys.path` that every command has."""

    def __init__(self, connection: socket.socket, found: list[str]) -> None:
        self.connection = connection
        self.found = found
        self.is_prepared = False
        self.added: dict[str, str] = {}  # variables that the preparation has set

    def serve(self) -> Callable[[], None]:
        """Fork for each request. Returns in the forks alone: what is to be run there."""
        while (received := receive(self.connection)) is not None:
            request, descriptors = received
            if (pid := clone_as_sibling()) == 0:
                self.connection.close()
                if not request.prepare:
                    return lambda: self._begin(request, descriptors)
                self.connection = socket.socket(fileno=descriptors[0])
                is_prepared = self._prepare(request)
                answer(self.connection, int(is_prepared))
                if not is_prepared:
                    break
                continue
            for each in descriptors:
                os.close(each)
            answer(self.connection, pid)
        os._exit(0)

    def _begin(self, request: Request, descriptors: list[int]) -> None:
        become(request, descriptors, found=self.found, added=self.added, is_prepared=self.is_prepared)
        if self.is_prepared:
            _continue_set_up()
            if client.is_supervisor(request) and self._is_standby(request):
                return self.serve()()
        return run(request.arguments)

    def _is_standby(self, request: Request) -> bool:
        """Fork the process that will fork the workers of this command. True in that one."""
        mine, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            set_name(client.STANDBY)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _leave_files(theirs.fileno())
            self.connection = theirs
            return True
        theirs.close()
        preparation = client.Preparation.of(request._replace(environment=dict(os.environ)))
        assert preparation is not None
        client.install(client.Standby(client.Channel(mine, pid), preparation))
        return False

    def _prepare(self, request: Request) -> bool:
        """Set Django up as the command would. False if that shows: as output, as a thread, as a file or as an error."""
        try:
            with tempfile.TemporaryFile() as output:
                files = _numbers_in("/proc/self/fd")
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.chdir(request.directory)
                set_environment(request.environment)
                open_streams()
                sys.path[:] = search_path(request, self.found)
                importlib.invalidate_caches()
                sys.argv = list(request.arguments)
                _set_up(request.arguments[1])
                sys.stdout.flush()
                sys.stderr.flush()
                has_said = os.fstat(1).st_size > 0
                has_opened = _numbers_in("/proc/self/fd") != files or len(_numbers_in("/proc/self/task")) > 1
            _leave_files(self.connection.fileno())
        except Exception:  # the command itself will report it
            return False
        self.added = {name: value for name, value in os.environ.items() if name not in request.environment}
        self.is_prepared = True
        _keep_memory()
        is_same = all(os.environ.get(name) == value for name, value in request.environment.items())
        return is_same and not has_said and not has_opened


def _set_up(command: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")  # as manage.py
    import django
    from django.core.management import get_commands, load_command_class

    django.setup()
    if (app := get_commands().get(command)) is not None:
        load_command_class(app, command)
    for name in AFTERWARDS.get(command, ()):
        importlib.import_module(name)


def _continue_set_up() -> None:
    """Leave to the command what remains of `django.setup`: nothing.

    Called twice, it would configure logging once more.
    """
    import django

    original = django.setup

    def skip(set_prefix: bool = True) -> None:
        django.setup = original

    django.setup = skip
    from durable.execution import connections

    connections._started_in = os.getpid()  # a command that was not forked


def _keep_memory() -> None:
    """Let no fork copy what it does not change: the collector would write into every object."""
    gc.collect()
    gc.freeze()


def _numbers_in(directory: str) -> list[int]:
    return sorted(int(each.name) for each in Path(directory).iterdir())


def _leave_files(*kept: int) -> None:
    """Close all files but the given ones, and give the streams none."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for each in _numbers_in("/proc/self/fd"):
        if each > 2 and each not in kept:
            with contextlib.suppress(OSError):  # the directory that was just listed
                os.close(each)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the commands; the server ends with its client
    for name in MODULES:
        importlib.import_module(name)
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]  # a project may have its own
    _keep_memory()
    connection = socket.socket(fileno=int(sys.argv[1]))
    _leave_files(connection.fileno())  # what the client's own shell may have left open
    Server(connection, _found).serve()()


if __name__ == "__main__":
    main()
