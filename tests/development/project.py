"""A project of a user's own in an empty directory, without Redis: settings, an app with workflows, addresses.

Its steps write lines to a file, so that tests see what was done without asking any server.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

MANAGE: Final = """
import os, sys
from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""
SETTINGS: Final = """
import os
from pathlib import Path

from project.settings import database_from

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "a project of the tests"
DEBUG = True
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "django.contrib.messages",
    "django.contrib.staticfiles", "durable", "shop",
]
ROOT_URLCONF = "mysite.urls"
DATABASES = {"default": database_from(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
STATIC_URL = "static/"
DURABLE = {"REDIS": os.environ.get("WITH_REDIS") == "1", "LEASE": 2, "SWEEP_INTERVAL": 1}
if DURABLE["REDIS"]:
    INSTALLED_APPS += ["django_rq"]
    RQ = {"WORKER_CLASS": "durable.rq_workers.Worker"}
    RQ_QUEUES = {
        name: {"URL": os.environ["REDIS_URL"], "SERIALIZER": "rq.serializers.JSONSerializer"}
        for name in ("default", "other")
    }
"""
URLS: Final = """
from django.http import HttpResponse
from django.urls import path

from shop.workflows import one


def place(request, name):
    print("placing", name)
    return HttpResponse(one.using(id=name).start(name).state)


urlpatterns = [path("place/<name>", place)]
"""
STEPS: Final = """
import os
import time
from pathlib import Path

from django.conf import settings


def tell(line):
    with (settings.BASE_DIR / "calls.log").open("a") as log:
        log.write(f"{line} {os.getpid()}\\n")
    return line


def until_let(name):
    tell(f"{name} begins")
    while not (settings.BASE_DIR / f"go {name}").exists():
        time.sleep(0.01)
    return name


def fail():
    raise ValueError("503 \\x1b[31m\\nbroken")
"""
WORKFLOWS: Final = """
from durable import workflow
from shop import steps


@workflow(name="shop.one")
def one(ctx, name):
    return ctx.step("tell", steps.tell, name)


@workflow(name="shop.nap")
def nap(ctx, name, seconds):
    ctx.step("before", steps.tell, f"{name} sleeps")
    ctx.sleep("nap", seconds)
    return ctx.step("tell", steps.tell, f"{name} woke up")


@workflow(name="shop.hears")
def hears(ctx, name):
    body = ctx.queue.next("news", names=["news"], timeout="2 days").body
    return ctx.step("tell", steps.tell, f"{name} heard {body}")


@workflow(name="shop.held")
def held(ctx, name):
    ctx.step("hold", steps.until_let, name, timeout=0)
    return ctx.step("tell", steps.tell, f"{name} done")


@workflow(name="shop.fails")
def fails(ctx, name):
    ctx.step("fail", steps.fail, max_retries=1, retry_backoff_base=0.01)


@workflow(name="shop.other", queue="other")
def other(ctx, name):
    return ctx.step("tell", steps.tell, name)


@workflow(name="shop.starts")
def starts(ctx, name):
    ctx.step("start", start_child, name)
    return ctx.step("tell", steps.tell, f"{name} started")


def start_child(name):
    one.using(id=f"{name}-child").start(f"{name}-child")
"""


class Project:
    """The project in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for path, source in {
            "manage.py": MANAGE,
            "mysite/__init__.py": "",
            "mysite/settings.py": SETTINGS,
            "mysite/urls.py": URLS,
            "shop/__init__.py": "",
            "shop/steps.py": STEPS,
            "shop/workflows.py": WORKFLOWS,
        }.items():
            self.write(path, source)

    def write(self, path: str, source: str) -> None:
        """Write a file, whole at once: who watches sees the old one or the new one."""
        target = self.directory / path
        target.parent.mkdir(exist_ok=True)
        fresh = target.with_suffix(".new")
        fresh.write_text(textwrap.dedent(source))
        fresh.replace(target)

    def let(self, name: str) -> None:
        """Let the step of the run `name` end that waits for this."""
        (self.directory / f"go {name}").touch()

    def calls(self) -> list[str]:
        """The lines that the steps have written, without the ids of their processes."""
        return [line.rpartition(" ")[0] for line in self._lines()]

    def pids(self) -> list[int]:
        """The ids of the processes that have written those lines."""
        return [int(line.rpartition(" ")[2]) for line in self._lines()]

    def _lines(self) -> list[str]:
        log = self.directory / "calls.log"
        return log.read_text().splitlines() if log.exists() else []
