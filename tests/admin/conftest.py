"""Runs on the real store, passed in this thread on a clock that the test moves, and users with some permissions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from durable import Handle, runtime
from durable.conf import conf
from durable.execution.environment import Eviction
from durable.execution.passes import execute_pass
from durable.models import Run
from tests.admin import flows
from tests.support.browsers import complaints_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

LEASE = timedelta(seconds=30)
MOST_PASSES = 50


@dataclass
class Stage:
    """Starts and passes runs. `now` is what the backend takes for the time."""

    now: datetime

    def advance(self, **span: float) -> None:
        """Let time pass."""
        self.now += timedelta(**span)

    def claim(self, run_id: str) -> Any:
        """Take a run, as a worker does."""
        store = runtime.current().store
        return store.claim_run(run_id, now=self.now, lease_until=self.now + LEASE, worker="host:4711:abc")

    def run(self, run_id: str) -> Run:
        """One pass; the run's row."""
        record = self.claim(run_id)
        assert record is not None, "it cannot be claimed"
        execute_pass(record, store=runtime.current().store, eviction=Eviction())
        return Run.objects.using(conf.DATABASE).get(pk=run_id)

    def settle(self, run_id: str) -> Run:
        """Passes until nothing is due."""
        for _ in range(MOST_PASSES):
            run = self.run(run_id)
            if run.wake_at is None or run.wake_at > self.now:
                return run
        raise AssertionError(f"{run_id} does not settle")

    def start(self, workflow: Any, *args: Any, id: str, settle: bool = True) -> Run:
        """A new run, passed until it rests."""
        handle: Handle = workflow.using(id=id).start(*args)
        return self.settle(handle.id) if settle else Run.objects.using(conf.DATABASE).get(pk=handle.id)


@pytest.fixture(autouse=True)
def _switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the steps of `flows` call is not broken, unless the test says so."""
    for name in flows.SWITCH:
        monkeypatch.setitem(flows.SWITCH, name, False)


@pytest.fixture
def stage(db: None) -> Iterator[Stage]:
    """See `staged`."""
    with staged() as stage:
        yield stage


@contextmanager
def staged() -> Iterator[Stage]:
    """The backend of production without Redis, on a clock of the test's own; branches run in turn."""
    stage = Stage(now=timezone.now())
    installed = replace(
        runtime.production(),
        now=lambda: stage.now,
        notify=lambda queues: None,
        notify_at=lambda queue, moment: None,
        poll_wait=lambda seconds: None,
        sequential_branches=True,
    )
    runtime.activate(installed)
    yield stage
    runtime.deactivate(installed)


MakeUser = Callable[..., User]


@pytest.fixture
def make_user(db: None) -> MakeUser:
    """A staff user with these permissions of durable's.

    Only who logs in by hand needs a password, which takes its time.
    """

    def make(*permissions: str, name: str = "ada", is_staff: bool = True, password: str | None = None) -> User:
        user = User.objects.create_user(name, password=password, is_staff=is_staff)
        found = Permission.objects.filter(content_type__app_label="durable", codename__in=permissions)
        assert len(found) == len(permissions), permissions
        user.user_permissions.set(found)
        return user

    return make


@pytest.fixture
def log_in(client: Client, make_user: MakeUser) -> Callable[..., Client]:
    """The test's client, as a staff user with these permissions."""

    def log(*permissions: str, name: str = "ada", is_staff: bool = True) -> Client:
        client.force_login(make_user(*permissions, name=name, is_staff=is_staff))
        return client

    return log


OPERATOR = ("view_run", "view_payload", "start_run", "operate_run", "replay_run")


@pytest.fixture
def operator(log_in: Callable[..., Client]) -> Client:
    """A client that may do everything."""
    return log_in(*OPERATOR)


# -- in a browser


@pytest.fixture
def complaints(page: "Page") -> list[str]:
    return complaints_of(page)


@pytest.fixture
def sign_in(page: "Page", live_server: "LiveServer", make_user: MakeUser) -> Callable[..., "Page"]:
    """The page with the session of a staff user with these permissions, at no address yet unless `to` is one.

    Superusers may do everything.
    """

    def sign(*permissions: str, is_superuser: bool = False, to: str = "") -> "Page":
        user = make_user(*permissions)
        User.objects.filter(pk=user.pk).update(is_superuser=is_superuser)
        client = Client()
        client.force_login(user)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}])
        if to:
            page.goto(to)
        return page

    return sign
