"""What a process of a project imports when it starts: durable, and nothing that this process may not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Modules that `django.setup()` imports because durable is installed, beside the admin, with django-rq and without.
MOST = 150
#: What only some processes do: pages, REST, commands, the linter, workers, alerts, metrics.
NOT_NEEDED = ("durable.api", "durable.cli", "durable.inspection", "durable.lint.", "durable.store.postgres", "rich")
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *APPS,
]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}}
RQ_QUEUES = {"default": {"HOST": "localhost"}}
DURABLE = {"REDIS": "django_rq" in APPS}
"""
#: What a project has to ask for: a server beside the database, spans.
OF_OTHERS = ("redis", "rq", "django_rq", "opentelemetry", "urllib.request", "ctypes")
PROGRAM = """
import json, sys
import django
django.setup()
modules = sorted(sys.modules)
from durable.core import registry
print(json.dumps({"modules": modules, "workflows": [each.name for each in registry.all()]}))
"""


def started(directory: Path, *apps: str) -> dict[str, Any]:
    """The modules and workflows of a process in which Django has just been set up."""
    (directory / "start_settings.py").write_text(f"APPS = {list(apps)!r}\n{SETTINGS}")
    path = os.pathsep.join([str(directory), str(Path(__file__).resolve().parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "start_settings"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("apps", [[], ["django_rq"]], ids=["without Redis", "with Redis"])
def test_a_process_imports_little_and_knows_durables_own_workflows(tmp_path: Path, apps: list[str]) -> None:
    without, with_durable = started(tmp_path, *apps), started(tmp_path, *apps, "durable")
    more = sorted({*with_durable["modules"]} - {*without["modules"]})
    assert len(more) <= MOST, f"{len(more)}: {more}"
    assert [name for name in more if name.startswith(NOT_NEEDED)] == []
    assert [name for name in more if name.partition(".")[0] in OF_OTHERS or name in OF_OTHERS] == []
    assert with_durable["workflows"] == ["durable.alert", "durable.bulk", "durable.task"]
