"""A user's project, its commands as processes, and runs of its workflows started in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from django.test import override_settings
from django.utils import timezone

from durable.codec import JsonCodec
from durable.core.records import RunRecord
from durable.store import Store, store_for
from tests.development.project import Project
from tests.support.processes import Program


class Manage(Program):
    """A `manage.py` command of the user's project, and what it has started."""

    def __init__(self, project: Project, *arguments: str, environment: dict[str, str]) -> None:
        self.known: dict[int, psutil.Process] = {}
        command = [sys.executable, "manage.py", *arguments]
        self.begin(command, environment=environment, directory=project.directory)

    def family(self) -> list[psutil.Process]:
        """Every process that it has started and that lives, as far as it was seen."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self.known.update({each.pid: each for each in found})
        return [each for each in self.known.values() if is_alive(each)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


Run = Callable[..., Manage]
Start = Callable[..., str]


@pytest.fixture
def site(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def environment(child_environment: dict[str, str]) -> dict[str, str]:
    """Where the project finds this test's database, and what would tell of a connection to Redis: there is none."""
    own = {"DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONUNBUFFERED": "1", "REDIS_URL": "redis://127.0.0.1:1/0"}
    return {name: value for name, value in {**child_environment, **own}.items() if name != "COLUMNS"}


@pytest.fixture
def manage(site: Project, environment: dict[str, str]) -> Iterator[Run]:
    """Start a command of the project; it is ended with the test."""
    started: list[Manage] = []

    def start(*arguments: str, **extra: str) -> Manage:
        started.append(Manage(site, *arguments, environment={**environment, **extra}))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end()
        each.close()


@pytest.fixture
def no_redis() -> Iterator[None]:
    """In this process too durable uses no Redis."""
    # with an address for the links of other tests' workflows
    with override_settings(DURABLE={"REDIS": False, "BASE_URL": "https://testserver"}, RQ_QUEUES={}):
        yield


@pytest.fixture
def store(no_redis: None) -> Store:
    return store_for("default")


@pytest.fixture
def start(store: Store) -> Start:
    """Start a run of a workflow of the project: `start("shop.nap", "a", 1.5)` is the run "a"."""

    def started(workflow: str, name: str, *arguments: object, queue: str = "default") -> str:
        now = timezone.now()
        text = JsonCodec().encode({"args": [name, *arguments], "kwargs": {}})
        store.create([RunRecord(id=name, workflow=workflow, queue=queue, input=text, created_at=now, wake_at=now)])
        return name

    return started


def run_command(site: Project, environment: dict[str, str], *arguments: str) -> str:
    """What a command prints that ends by itself."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=site.directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
