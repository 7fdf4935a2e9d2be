"""What the settings promise to the app and to its tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from rq.serializers import JSONSerializer, resolve_serializer

pytestmark = pytest.mark.slow

ROOT = Path(settings.BASE_DIR)


def settings_in(environment: dict[str, str], expression: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL", "DEBUG"}}
    code = f"from django.conf import settings; print({expression})"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**clean, "DJANGO_SETTINGS_MODULE": "project.settings", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.django_db
def test_the_session_runs_on_the_database_that_the_environment_names() -> None:
    engine = "sqlite" if os.environ["DATABASE_URL"].startswith("sqlite") else "postgresql"
    assert connection.vendor == engine
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_without_a_database_url_the_database_is_a_file() -> None:
    done = settings_in({}, "settings.DATABASES['default']['NAME']")
    assert done.stdout.strip() == str(ROOT / "var" / "db.sqlite3")


def test_without_debug_a_secret_is_required() -> None:
    done = settings_in({"DEBUG": "0"}, "settings.DEBUG")
    assert done.returncode != 0
    assert "SECRET_KEY must hold" in done.stderr
    assert settings_in({"DEBUG": "0", "SECRET_KEY": "s" * 60}, "settings.DEBUG").stdout.strip() == "False"


@pytest.mark.parametrize("word", ["1", "true", "True", "YES", " yes "])
def test_debug_is_on_for_three_words(word: str) -> None:
    assert settings_in({"DEBUG": word}, "settings.DEBUG").stdout.strip() == "True"


@pytest.mark.parametrize("word", ["0", "False", "FALSE", "off", "no", "", "on?", "2"])
def test_debug_is_off_for_every_other(word: str) -> None:
    done = settings_in({"DEBUG": word, "SECRET_KEY": "s" * 60}, "settings.DEBUG, settings.SESSION_COOKIE_SECURE")
    assert done.stdout.strip() == "False True"
    assert "SECRET_KEY must hold" in settings_in({"DEBUG": word}, "settings.DEBUG").stderr


def test_by_default_debug_is_off_and_the_key_is_random() -> None:
    first, second = (settings_in({}, "settings.DEBUG, settings.SECRET_KEY").stdout for _ in range(2))
    assert first.startswith("False ")
    assert first != second
    assert "development only" not in first


@pytest.mark.parametrize("hosts", ["prod.example", "localhost,prod.example", "*", ".example"])
def test_debug_is_refused_where_others_can_come(hosts: str) -> None:
    done = settings_in({"DEBUG": "1", "ALLOWED_HOSTS": hosts}, "settings.DEBUG")
    assert done.returncode != 0
    assert "ALLOWED_HOSTS has" in done.stderr
    key = {"SECRET_KEY": "s" * 60}
    assert settings_in({"ALLOWED_HOSTS": hosts, **key}, "settings.ALLOWED_HOSTS[-1]").stdout.strip() in hosts
    assert settings_in({"DEBUG": "1", "ALLOWED_HOSTS": "127.0.0.1, localhost"}, "settings.DEBUG").stdout == "True\n"


def test_development_commands_have_debug() -> None:
    clean = {key: value for key, value in os.environ.items() if key not in {"DEBUG", "SECRET_KEY"}}
    code = "import sys, manage, os; sys.argv = ['manage.py', *sys.argv[1:]]; {}; print(os.environ.get('DEBUG'))"
    for command, shown in (("demo", "1"), ("runserver", "1"), ("durable_dev", "1"), ("durable_worker", "None")):
        patched = code.format(
            "import django.core.management as m; m.execute_from_command_line = lambda _: None; manage.main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", patched, command], cwd=ROOT, env=clean, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == shown


@pytest.mark.parametrize("name", ["default", "high"])
def test_queues_speak_json_and_put_no_limit_on_a_job(name: str) -> None:
    queue = settings.RQ_QUEUES[name]
    assert resolve_serializer(str(queue["SERIALIZER"])) is JSONSerializer
    assert queue["DEFAULT_TIMEOUT"] == -1


@pytest.mark.parametrize(("command", "has_pages"), [("durable_worker", False), ("durable", False), ("check", True)])
def test_a_process_without_pages_starts_without_their_modules(command: str, has_pages: bool) -> None:
    code = (
        f"import sys; sys.argv = ['manage.py', {command!r}]; import django; django.setup();"
        "print(*(each for each in ('durable.admin', 'durable.inspection', 'durable.lint') if each in sys.modules));"
        "from django.urls import reverse; print(reverse('admin:durable_run_changelist'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
    )
    found, address = done.stdout.splitlines()
    assert ("durable.admin" in found) is has_pages
    if not has_pages:
        assert found == ""
    assert address == "/admin/durable/run/"


def test_a_worker_loads_of_the_read_side_what_it_says_alone() -> None:
    """Its lines and its look at the migrations: the rest, with a hundred classes, would be a tenth of its start."""
    code = (
        "import sys; sys.argv = ['manage.py', 'durable_worker']; import django; django.setup();"
        "from durable.management.commands.durable_worker import Command;"
        "import durable.cli.console, durable.worker.health, durable.worker.process, durable.worker.supervisor;"
        "import durable.inspection.database;"
        "Command().check(tags=Command.requires_system_checks);"
        "names = [each for each in sys.modules if each.startswith('durable.inspection.')];"
        "print(*sorted(each.removeprefix('durable.inspection.') for each in names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
    )
    assert done.stdout.split() == ["database", "humanize", "reading", "wording"]


def test_each_module_of_the_read_side_can_be_the_first_that_is_loaded() -> None:
    """A worker loads the one whose class an input has recorded, before any other."""
    code = (
        "import sys; sys.argv = ['manage.py', 'durable_worker']; import django; django.setup();"
        "import durable.inspection; from importlib import import_module; from pkgutil import iter_modules\n"
        "def forget():\n"
        "    for name in [each for each in sys.modules if each.startswith('durable.inspection.')]:\n"
        "        del sys.modules[name]\n"
        "        vars(durable.inspection).pop(name.removeprefix('durable.inspection.'), None)\n"
        "for each in iter_modules(durable.inspection.__path__):\n"
        "    forget(); import_module('durable.inspection.' + each.name); print(each.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
    )
    assert done.returncode == 0, done.stderr
    assert {"selection", "children"} <= set(done.stdout.split())
