"""What every test may ask for: the session's servers, an environment for child processes, a browser.

Owns fixtures only; which servers a session uses is decided in `tests.plugin`. A test that stops or restarts a server
starts one of its own: the ones here are shared.
"""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
import redis
from django.test import override_settings
from hypothesis import settings as hypothesis_settings

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.plugin import POSTGRES, REDIS
from tests.support.child_path import child_path
from tests.support.postgres import OLDEST_POSTGRES, oldest_postgres

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pytest_django import DjangoDbBlocker
    from pytest_django.live_server_helper import LiveServer

# An example may take its time on a busy machine, and the same commit gives the same result wherever CI runs it.
hypothesis_settings.register_profile("durable", deadline=None, derandomize=os.environ.get("CI") == "true")
hypothesis_settings.load_profile("durable")

# The first one that is there. The headless shell is the same engine without the browser around its pages, and takes
# half of the CPU time.
CHROMIUMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL: the one of the default database, or one beside it if DATABASE_URL was given."""
    if (server := pytestconfig.stash.get(POSTGRES, None)) is not None:
        yield server.start()
        return
    with EmbeddedPostgres(fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def oldest_programs() -> Path:
    """The directory with the programs of the oldest PostgreSQL that is supported; without it the test is skipped."""
    return oldest_postgres() or pytest.skip(f"PostgreSQL {OLDEST_POSTGRES} is not installed; see tests/README.md")


@pytest.fixture(scope="session")
def oldest_postgres_server(oldest_programs: Path) -> Iterator[EmbeddedPostgres]:
    """A running server of the oldest PostgreSQL, with its default settings."""
    with EmbeddedPostgres(fsync=False, programs=oldest_programs) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[EmbeddedRedis]:
    """A running Redis: the one that RQ_QUEUES names, or one beside it if REDIS_URL was given."""
    if (server := pytestconfig.stash.get(REDIS, None)) is not None:
        yield server.start()
        return
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Have the default database's server run before Django creates its test database there.

    On SQLite that is a file: a database in memory locks whole tables between the threads of one process.
    """
    from django.db import connection

    if (server := pytestconfig.stash.get(POSTGRES, None)) is not None:
        server.start()
    if connection.vendor == "sqlite":
        test = connection.settings_dict["TEST"]
        test["NAME"] = test.get("NAME") or str(tmp_path_factory.mktemp("sqlite") / "test.sqlite3")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: "DjangoDbBlocker") -> Iterator[None]:
    """Django's, and a faster flush after tests that commit."""
    from tests.support.flushing import fast_flush

    with ExitStack() as stack:
        with django_db_blocker.unblock():
            stack.enter_context(fast_flush(["default"]))
            _forget_what_the_shop_declares()
        yield


def _forget_what_the_shop_declares() -> None:
    """Delete what `migrate` has made of the shop's limits, and of its schedules, which would tick during a test."""
    from django.db import connection

    from durable.models import Limit, RateLimit, Schedule

    if RateLimit._meta.db_table in connection.introspection.table_names():
        for model in (Schedule, Limit, RateLimit):
            model._default_manager.all().delete()


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords() -> Iterator[None]:
    """Hash the passwords of the tests' users fast: Django's own hasher takes a quarter of a second by intention."""
    hashers = ["django.contrib.auth.hashers.MD5PasswordHasher", "django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    with override_settings(PASSWORD_HASHERS=hashers):
        yield


@pytest.fixture
def redis_connection() -> Iterator["redis.Redis"]:
    """A client of the Redis database that RQ_QUEUES names, empty before the test and after it."""
    from django.conf import settings

    # longer than any test waits in a blocking command: redis-py's own default is 10 s
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=180) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture(autouse=True)
def patience_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Redis in this process longer than in production.

    A web request gives up after a second, in which a busy machine may not have come to run the server. Nothing is sent
    for a while then.
    """
    from durable.notifier import redis_clients

    monkeypatch.setattr(redis_clients, "CONNECT_TIMEOUT", 60.0)
    monkeypatch.setattr(redis_clients, "SOCKET_TIMEOUT", 60.0)


@pytest.fixture(autouse=True)
def answered_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification in this process waits for the answer of Redis: a query of a test on another connection could come
    before what was sent and not waited for."""
    from durable.notifier import enqueue

    notify = enqueue.notify

    def notify_and_wait(name: str, *, force: bool = False) -> None:
        notify(name, force=force)
        with suppress(redis.TimeoutError):
            enqueue._notifiers[name].sender.await_answers()

    monkeypatch.setattr(enqueue, "notify", notify_and_wait)


@pytest.fixture
def child_environment(transactional_db: None, redis_connection: "redis.Redis") -> dict[str, str]:
    """The environment in which a child process, a worker say, uses this test's own database and Redis."""
    from django.conf import settings
    from django.db import connection

    name, options = str(connection.settings_dict["NAME"]), urlsplit(settings.DATABASE_URL).query
    base = "sqlite://" if connection.vendor == "sqlite" else settings.DATABASE_URL.partition("?")[0].rpartition("/")[0]
    return {
        **os.environ,
        "DATABASE_URL": f"{base}/{name}" + (f"?{options}" if options else ""),
        "REDIS_URL": settings.REDIS_URL,
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "PYTHONPATH": child_path(settings.BASE_DIR),
    }


@pytest.fixture(scope="session")
def live_server(live_server: "LiveServer") -> Iterator["LiveServer"]:
    """Django's own live server, which sends at once.

    It writes head and body of an answer one by one. The kernel would hold the body back until the client's kernel has
    confirmed the head, 40 ms later.
    """
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

    begin, serve = ThreadedWSGIServer.process_request, ThreadedWSGIServer.process_request_thread

    def begun(server: ThreadedWSGIServer, *connection: Any) -> None:
        _served.add(1)
        begin(server, *connection)

    def ended(server: ThreadedWSGIServer, *connection: Any) -> None:
        try:
            serve(server, *connection)
        finally:
            _served.add(-1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WSGIRequestHandler, "disable_nagle_algorithm", True)
        patch.setattr(ThreadedWSGIServer, "process_request", begun)
        patch.setattr(ThreadedWSGIServer, "process_request_thread", ended)
        yield live_server


class _Served:
    """The connections that the live server serves."""

    def __init__(self) -> None:
        self._number = 0
        self._changed = threading.Condition()

    def add(self, number: int) -> None:
        with self._changed:
            self._number += number
            self._changed.notify_all()

    def wait_until_none(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._number == 0, timeout=300), "connections of the page are left"


_served = _Served()


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A headless chromium. Without one the test is skipped; with CI=true it fails.

    Per module, not per session: Playwright keeps an event loop running in this thread as long as it lives, beside
    which no asynchronous test can run, and Django needs DJANGO_ALLOW_ASYNC_UNSAFE to use the ORM here.
    """
    from playwright.sync_api import Error, sync_playwright

    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            _no_browser("neither PATH nor Playwright has a chromium")
        try:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            _no_browser(f"{found or 'chromium'} does not start: {error.message.splitlines()[0]}")
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: "Browser", request: pytest.FixtureRequest) -> Iterator["Page"]:
    """A page in a browser context of its own: no cookies of another test. It goes to paths of the live server, if any.

    A page asks for news by itself. The database is emptied after its last answer, or the two would lock each other.
    """
    server = request.getfixturevalue("live_server").url if "live_server" in request.fixturenames else None
    with chromium.new_context(timezone_id="UTC", base_url=server) as context:
        context.set_default_timeout(120_000)  # milliseconds
        yield context.new_page()
    _served.wait_until_none()


def _no_browser(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI is true and there is no browser: {why}")
    pytest.skip(why)


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log in each test what is otherwise logged at most once in half a minute."""
    from durable.notifier import notify
    from durable.worker import executor, leases

    for module in (notify, executor, leases):
        monkeypatch.setattr(module._log_this, "_said", {})


@pytest.fixture
def no_outages(unlogged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the notifier forget the outages of other tests."""
    from durable.notifier import notify, redis_clients

    monkeypatch.setattr(notify, "_quiet_until", {})
    monkeypatch.setattr(redis_clients, "_since", {})
    monkeypatch.setattr(redis_clients, "_poll_until", 0.0)


@pytest.fixture
def rq_redis(redis_connection: "redis.Redis", signal_handlers: None) -> "redis.Redis":
    """An empty Redis for RQ's workers in this process."""
    return redis_connection


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """RQ's workers in this process install signal handlers, which end with the test."""
    from durable.worker.presence import stop

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    stop.clear()
