"""A project's tests do not notify its developer's workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.test import override_settings

from durable.checks.configuration import check_settings
from durable.conf import conf
from durable.notifier import wakeups
from tests.support.child_path import child_path

pytestmark = pytest.mark.slow

MODULES: Final = {
    "settings.py": """
        import os
        from pathlib import Path

        SECRET_KEY = "tests"
        INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "durable", "shop"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parent / "db.sqlite3", "TEST": {"MIGRATE": False}}}
        RQ_QUEUES = {"default": {"HOST": "127.0.0.1", "PORT": int(os.environ["PORT"]), "DB": 0}}
        USE_TZ = True
        DURABLE = {"NOTIFY_IN_TESTS": True} if "NOTIFY" in os.environ else {}
    """,
    "shop/__init__.py": "",
    "shop/workflows.py": """
        from durable import Context, workflow

        @workflow(name="shop.fulfil")
        def fulfil(ctx: Context, number: int) -> int:
            return ctx.queue.next("number", timeout=60).body
    """,
    "shop/tests.py": """
        from django.test import TestCase, TransactionTestCase

        from durable.models import Run
        from durable.worker.rq_jobs import work
        from shop.workflows import fulfil

        class Committed(TransactionTestCase):
            def test_a_start_a_message_and_a_pass(self):
                run = fulfil.start(1)
                self.assertIsNotNone(Run.objects.get().wake_at)
                work("default")
                run.send("number", 2)
                work("default")
                self.assertEqual((run.state, run.output), ("completed", 2))

        class RolledBack(TestCase):
            def test_a_start(self):
                with self.captureOnCommitCallbacks(execute=True):
                    fulfil.using(delay=1).start(1).wake()
                self.assertIsNotNone(Run.objects.get().wake_at)
    """,
    "shop/test_it.py": """
        import pytest

        from durable.models import Run
        from shop.workflows import fulfil

        @pytest.mark.django_db(transaction=True)
        def test_a_start_and_a_message():
            fulfil.start(1).send("number", 2)
            assert Run.objects.get().wake_at is not None
    """,
    "pytest.ini": """
        [pytest]
        DJANGO_SETTINGS_MODULE = settings
    """,
}
COMMANDS: Final = {
    "pytest-django": [
        "-m",
        "pytest",
        "-q",
        "-p",
        "pytest_django.plugin",
        "-p",
        "durable.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "shop/test_it.py",
    ],
    "manage.py test": ["-m", "django", "test", "shop"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(line[8:] for line in text.splitlines()))
    return tmp_path


@pytest.fixture
def developers_redis() -> Iterator[tuple[int, list[object]]]:
    """The port of what stands for a Redis, and which addresses connected to it. It hangs up."""
    came: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, address = server.accept()
                except OSError:
                    return
                came.append(address)
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1], came
        server.shutdown(socket.SHUT_RDWR)
    thread.join(120)


@pytest.mark.parametrize("notifies", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_test_run_connects_to_redis_only_where_the_settings_say_so(
    project: Path, developers_redis: tuple[int, list[object]], command: str, notifies: bool
) -> None:
    port, came = developers_redis
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")},
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": child_path(project, Path(__file__).parents[2]),
        "PORT": str(port),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # there are two dozen here
        **({"NOTIFY": "yes"} if notifies else {}),
    }
    done = subprocess.run(
        [sys.executable, *COMMANDS[command]],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert bool(came) == notifies


class TestWhoDecides:
    def test_the_settings_as_they_were_loaded_decide_for_tests_that_override_others(self) -> None:
        assert conf.NOTIFY_IN_TESTS, "the settings of this project"
        with override_settings(DURABLE={"LEASE": 1}):
            assert not wakeups.is_silent()

    def test_a_test_may_want_to_notify(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(wakeups._loaded, "NOTIFY_IN_TESTS", False)
        with override_settings(DURABLE={}):
            assert wakeups.is_silent()
        with override_settings(DURABLE={"NOTIFY_IN_TESTS": True}):
            assert not wakeups.is_silent()

    def test_a_process_without_tests_notifies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(wakeups._loaded, "NOTIFY_IN_TESTS", False)
        with override_settings(DURABLE={}):
            monkeypatch.setattr("django.test.utils._TestState", object)
            assert not wakeups.is_silent()
            monkeypatch.delitem(sys.modules, "django.test.utils")
            assert not wakeups.is_silent()

    def test_the_setting_is_checked(self) -> None:
        with override_settings(DURABLE={"NOTIFY_IN_TESTS": "no"}):
            assert any("NOTIFY_IN_TESTS" in problem.msg for problem in check_settings())
