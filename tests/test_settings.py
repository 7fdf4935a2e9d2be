"""What the settings promise to the app and to its tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from rq.serializers import JSONSerializer, resolve_serializer

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


@pytest.mark.parametrize("name", ["default", "high"])
def test_queues_speak_json_and_put_no_limit_on_a_job(name: str) -> None:
    queue = settings.RQ_QUEUES[name]
    assert resolve_serializer(str(queue["SERIALIZER"])) is JSONSerializer
    assert queue["DEFAULT_TIMEOUT"] == -1
