"""`DURABLE["EMBEDDED"] = True`: one worker on a machine, started by a web process, and gone with it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from django.conf import settings as own_settings

from durable.store import Store
from durable.worker import embedded
from project.servers import free_port
from tests.development.conftest import Manage, Start, run_command
from tests.development.project import SETTINGS, Project
from tests.support.processes import is_completed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

APPLICATION = """
import os
from django.core.{kind} import get_{kind}_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
application = get_{kind}_application()
"""
#: A server that forks two processes, before each has made the application or after it was made, and replaces what dies.
PREFORK = """
import os, signal, sys, time
from wsgiref.simple_server import make_server

def serve():
    from mysite.wsgi import application
    print("serves", os.getpid(), flush=True)
    make_server("127.0.0.1", 0, application).serve_forever()

if "preload" in sys.argv:
    from mysite.wsgi import application
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

def fork():
    if not (pid := os.fork()):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.set_blocking(0, True)
        serve()
    return pid

children = {fork() for _ in range(2)}
while True:
    pid, _ = os.wait()
    if pid in children:
        children.discard(pid)
        children.add(fork())
"""

#: With `preexec_fn` Python forks as `os.fork` does, and calls what is registered for forks.
FORKS_IN_PYTHON = """
import subprocess

class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, preexec_fn=lambda: None, **options)

subprocess.Popen = Popen
"""


class Server(Manage):
    """A program of the project that serves it."""

    def __init__(self, project: Project, command: list[str], *, environment: dict[str, str]) -> None:
        self.known = {}
        self.begin(command, environment=environment, directory=project.directory)

    def kill(self) -> None:
        """Kill it with the processes that serve; not the worker, which has to notice."""
        web = [each for each in self.family() if not {"--embedded", "--as-child"} & set(each.cmdline())]
        self.process.kill()
        for each in web:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(60)


Serve = Callable[..., Server]


@pytest.fixture
def environment(environment: dict[str, str], site: Project) -> dict[str, str]:
    """With interpreters that are executed, not forked, and a directory for temporary files of its own."""
    path = str(own_settings.BASE_DIR)
    return {**environment, "PYTHONPATH": path, "TMPDIR": str(site.directory), "RUN_MAIN": ""}


@pytest.fixture
def site(site: Project) -> Project:
    site.write(
        "mysite/settings.py",
        f"{SETTINGS}\nDURABLE |= {{'EMBEDDED': True}}\nWSGI_APPLICATION = 'mysite.wsgi.application'\n",
    )
    for kind in ("wsgi", "asgi"):
        site.write(f"mysite/{kind}.py", APPLICATION.format(kind=kind))
    site.write("prefork.py", PREFORK)
    return site


@pytest.fixture
def serve(site: Project, environment: dict[str, str]) -> Iterator[Serve]:
    """Start a server: the arguments of an interpreter."""
    started: list[Server] = []

    def start(*arguments: str) -> Server:
        started.append(Server(site, [sys.executable, *arguments], environment=environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()
    eventually(lambda: not workers(site))
    for each in started:
        each.close()


def workers(site: Project) -> list[psutil.Process]:
    """The embedded workers of this project."""
    found = []
    for each in psutil.process_iter(["cmdline"]):
        words = each.info["cmdline"] or []
        if "--embedded" in words and f"--pythonpath={site.directory}" in words:
            found.append(each)
    return found


def serving(*arguments: str) -> tuple[str, ...]:
    return "manage.py", "runserver", f"127.0.0.1:{free_port()}", *arguments


def uvicorn(*arguments: str) -> tuple[str, ...]:
    return "-m", "uvicorn", "mysite.asgi:application", f"--port={free_port()}", *arguments


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: serving(),
        lambda: serving("--noreload"),
        lambda: uvicorn(),
        lambda: uvicorn("--workers=2"),
        lambda: ("prefork.py",),
        lambda: ("prefork.py", "preload"),
    ],
    ids=["runserver", "runserver --noreload", "uvicorn", "uvicorn --workers", "prefork", "prefork, preloaded"],
)
def test_one_worker_begins_with_the_server_and_ends_with_it(
    arguments: Callable[[], tuple[str, ...]], serve: Serve, start: Start, store: Store, site: Project
) -> None:
    """Without a request, and ended by a signal that nothing can handle."""
    start("shop.one", "a")
    server = serve(*arguments())
    eventually(lambda: is_completed(store, "a"))
    assert len(workers(site)) == 1
    server.kill()
    eventually(lambda: not workers(site))


def test_a_server_whose_processes_are_forked_in_python_has_a_worker(
    serve: Serve, start: Start, store: Store, site: Project
) -> None:
    """As those are that gevent starts."""
    site.write("mysite/asgi.py", FORKS_IN_PYTHON + APPLICATION.format(kind="asgi"))
    start("shop.one", "a")
    serve(*uvicorn())
    eventually(lambda: is_completed(store, "a"))
    workers(site)[0].kill()
    start("shop.one", "b")
    eventually(lambda: is_completed(store, "b"))


def test_another_web_process_goes_on(serve: Serve, start: Start, store: Store, site: Project) -> None:
    """A server replaces the process that has started the worker."""
    serve("prefork.py")
    start("shop.one", "a")
    eventually(lambda: is_completed(store, "a"))
    for number in range(2):
        [worker] = workers(site)
        parent = worker.parent()
        assert parent is not None
        parent.kill()
        start("shop.one", f"b-{number}")
        eventually(lambda number=number: is_completed(store, f"b-{number}"))  # type: ignore[misc]
        eventually(lambda worker=worker: len(workers(site)) == 1 and worker not in workers(site))  # type: ignore[misc]


def test_two_servers_have_one_worker(serve: Serve, start: Start, store: Store, site: Project) -> None:
    first, second = serve(*uvicorn()), serve(*uvicorn())
    start("shop.one", "a")
    eventually(lambda: is_completed(store, "a"))
    for each in (first, second):
        each.wait_for("startup complete")
    [worker] = workers(site)
    owner = worker.parent()
    assert owner is not None
    owner.send_signal(signal.SIGTERM)
    eventually(lambda: len(workers(site)) == 1 and workers(site) != [worker])
    start("shop.one", "b")
    eventually(lambda: is_completed(store, "b"))


def test_a_killed_worker_is_started_again(serve: Serve, start: Start, store: Store, site: Project) -> None:
    serve(*serving("--noreload"))
    eventually(lambda: len(workers(site)) == 1)
    workers(site)[0].kill()
    start("shop.one", "a")
    eventually(lambda: is_completed(store, "a"))


def test_new_code_is_run_by_a_new_worker(serve: Serve, start: Start, store: Store, site: Project) -> None:
    server = serve(*serving())
    eventually(lambda: len(workers(site)) == 1)
    before = workers(site)
    pages = itertools.count()

    def is_replaced() -> bool:
        """Change the code again if the server has not begun to look at it before."""
        if not [line for line in server.lines if "changed, reloading" in line]:
            site.write("mysite/urls.py", f"urlpatterns = []  # {next(pages)}\n")
            time.sleep(0.5)
        return len(workers(site)) == 1 and workers(site) != before

    eventually(is_replaced)
    start("shop.one", "a")
    eventually(lambda: is_completed(store, "a"))


def test_a_step_goes_on_elsewhere_when_the_server_is_killed(
    serve: Serve, start: Start, store: Store, site: Project
) -> None:
    server = serve(*serving("--noreload"))
    start("shop.held", "a")
    eventually(lambda: site.calls() == ["a begins"])
    server.kill()
    site.let("a")
    eventually(lambda: not workers(site))
    serve(*serving("--noreload"))
    eventually(lambda: is_completed(store, "a"))


def test_the_worker_is_in_the_virtual_environment_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under pyuwsgi, `sys.executable` is the interpreter that the environment was made of."""
    monkeypatch.setattr(sys, "executable", str(Path(sys.base_prefix) / "bin" / "python3"))
    show = [embedded._python(), "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip() == sys.prefix


@pytest.mark.parametrize(
    "arguments",
    [
        ("manage.py", "check"),
        ("manage.py", "migrate", "--check"),
        ("manage.py", "shell", "-c", "from django.test import Client; print(Client().get('/').status_code)"),
        ("-c", "import os, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'; django.setup()"),
        ("manage.py", "test", "shop"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_what_serves_no_requests_starts_no_worker(
    arguments: tuple[str, ...], site: Project, environment: dict[str, str]
) -> None:
    """It would print that it serves, and would leave its lock's file."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=site.directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not workers(site)
    assert not list(site.directory.glob("durable-*.lock"))


def test_a_process_may_be_told_to_start_none(serve: Serve, site: Project, environment: dict[str, str]) -> None:
    environment["DURABLE_EMBEDDED"] = "0"
    server = serve(*uvicorn())
    server.wait_for("startup complete")
    assert not list(site.directory.glob("durable-*.lock"))
    assert "no issues" in run_command(site, environment, "check")


def test_a_lock_that_belongs_to_another_user_is_left_alone(
    serve: Serve, site: Project, environment: dict[str, str]
) -> None:
    """The directory for temporary files is everybody's."""
    if os.getuid():
        pytest.skip("only root can make a file of another user")
    code = "import django; django.setup(); from durable.worker import embedded; print(embedded.lock_path())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=site.directory, env=environment, capture_output=True, text=True, check=True
    )
    path = found.stdout.strip()
    with open(path, "w"):  # noqa: PTH123
        os.chown(path, 65534, 65534)
    server = serve(*serving("--noreload"))
    server.wait_for("belongs to another user")
    assert not workers(site)
