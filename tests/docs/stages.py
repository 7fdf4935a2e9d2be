"""What a page takes for granted: modules of the reader's own project, runs that exist. Most pages need nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.db.models.signals import post_save
from django.test import Client, override_settings
from django.utils import timezone

from durable import Context, get_run, runtime, workflow
from durable.core.records import ENDED
from durable.models import Schedule
from durable.testing import Harness
from tests.docs.playing import Play
from tests.support.stores import in_force, passed

Namespace = MutableMapping[str, Any]


def of(name: str, player: Play, namespace: Namespace) -> AbstractContextManager[None]:
    """The stage of a page, set for as long as the page runs."""
    make = STAGES.get(name)
    return nullcontext() if make is None else make(player, namespace)


@contextmanager
def _models(player: Play, _: Namespace) -> Iterator[None]:
    """The models of the shop in this repository, as the shop of the page.

    Without the workflow that a new customer starts there: no page has it, and a harness would look for it every half
    minute of days.
    """
    from project.shop import models
    from project.shop.receivers import welcome_new_customer

    player.module("shop.models", **{name: getattr(models, name) for name in models.__all__})
    assert post_save.disconnect(welcome_new_customer, sender=models.Customer)
    try:
        yield
    finally:
        post_save.connect(welcome_new_customer, sender=models.Customer)


@contextmanager
def _customer(player: Play, names: Namespace) -> Iterator[None]:
    """The models of the shop, and a customer that has not ordered yet."""
    with _models(player, names):
        names["customer"] = player.module("shop.models").Customer.objects.create(name="Ada", email="ada@example.org")
        yield


@contextmanager
def _services(player: Play, _: Namespace) -> Iterator[None]:
    """What the first page's shop does, in two functions."""
    player.module("shop.services", charge_card=lambda order_id: f"payment-{order_id}", send_mail=lambda order_id: None)
    yield


@contextmanager
def _in_one_harness(_: Play, names: Namespace) -> Iterator[None]:
    """A harness from the first block to the last."""
    with Harness() as names["h"]:
        yield


@contextmanager
def _with_key(_: Play, __: Namespace) -> Iterator[None]:
    """The environment has a key for encryption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DURABLE_KEYS", Fernet.generate_key().decode())
        yield


@contextmanager
def _served(_: Play, __: Namespace) -> Iterator[None]:
    """This project answers whatever httpx asks of example.org, in this thread; before a result, a worker comes by."""

    @workflow(name="shop.fulfil")
    def fulfil(ctx: Context, order_id: int) -> dict[str, Any]:
        return {"order": order_id, "approval": ctx.queue.next("approval", names=["approved"]).body}

    User.objects.create_superuser("ada", password="…")
    server = Client()
    Schedule.objects.create(name="nightly", workflow="shop.fulfil", rule="every 24 hours", args=[1])

    with (
        in_force() as at,
        pytest.MonkeyPatch.context() as patch,
        override_settings(ALLOWED_HOSTS=["*"]),
    ):

        def handle(_: object, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/result") and get_run("order-42").state not in ENDED:
                passed(at, "order-42")
            content_type = request.headers.pop("Content-Type", "")
            path = request.url.raw_path.decode()
            answer = server.generic(request.method, path, request.read(), content_type, headers=request.headers)
            return httpx.Response(answer.status_code, headers=dict(answer.items()), content=answer.content)

        patch.setattr(httpx.HTTPTransport, "handle_request", handle)
        yield


@contextmanager
def _failed(_: Play, __: Namespace) -> Iterator[None]:
    """Two hours ago an order failed, and 17 bills for another reason, and a heartbeat was well; nothing since."""

    class BankTimeout(Exception):
        pass

    def charge() -> None:
        raise ConnectionError("503")

    @workflow(name="shop.fulfil")
    def fulfil(ctx: Context, order_id: int) -> None:
        ctx.step("charge", charge, max_retries=2, backoff="constant", retry_backoff_base=15.5)

    @workflow(name="shop.bill")
    def bill(ctx: Context, number: int) -> None:
        raise BankTimeout("503")

    @workflow(name="shop.heartbeat")
    def heartbeat(ctx: Context) -> str:
        return "alive"

    clock = [timezone.now() - timedelta(hours=2, minutes=5)]
    at = replace(runtime.production(), sequential_branches=True, now=lambda: clock[0])
    runtime.activate(at)
    try:
        bills = bill.start_many([(number,) for number in range(17)], ids=[f"bill-{number}" for number in range(17)])
        beat = heartbeat.using(id="heartbeat-9").start()
        for run_id in (beat.id, *(each.id for each in bills), fulfil.using(id="order-42").start(42).id):
            while (run := get_run(run_id)).state not in ENDED:
                clock[0] = max(clock[0], _moment(run.wake_at))
                passed(at, run_id)
    finally:
        runtime.deactivate(at)
    yield


def _moment(moment: datetime | None) -> datetime:
    assert moment is not None, "this run would wait for ever"
    return moment


@contextmanager
def _shop(_: Play, __: Namespace) -> Iterator[None]:
    """A shop whose workflow operators hold."""

    @workflow(name="shop.fulfil")
    def fulfil(ctx: Context, order_id: int) -> None:
        """Ship the order."""

    yield


@contextmanager
def _two_sites(_: Play, __: Namespace) -> Iterator[None]:
    """After the page: the site that it has made has durable's pages, which lead to no page of the first site."""
    yield
    staff = Client()
    staff.force_login(User.objects.create_superuser("ada"))
    for path in ("/staff/", "/staff/durable/", "/staff/durable/run/", "/staff/durable/run/queues/"):
        answer = staff.get(path)
        assert answer.status_code == 200, path
        leads = re.findall(r'(?:href|action|data-durable-live)="(/[^"]*)"', answer.content.decode())
        assert "/staff/durable/run/" in leads, path
        assert not [each for each in leads if each.startswith("/admin/")], path


STAGES: Final[dict[str, Callable[[Play, Namespace], AbstractContextManager[None]]]] = {
    "docs/admin.md": _models,
    "docs/cli.md": _failed,
    "docs/guides/asgi.md": _models,
    "docs/guides/asking-people.md": _models,
    "docs/guides/deploying.md": _in_one_harness,
    "docs/guides/from-celery.md": _models,
    "docs/guides/from-dbos.md": _models,
    "docs/guides/from-django-ox.md": _models,
    "docs/guides/from-procrastinate.md": _models,
    "docs/guides/operating.md": _shop,
    "docs/guides/other-projects.md": _two_sites,
    "docs/guides/security.md": _with_key,
    "docs/guides/state.md": _customer,
    "docs/guides/streams.md": _in_one_harness,
    "docs/guides/subjects.md": _models,
    "docs/guides/transactions.md": _models,
    "docs/index.md": _services,
    "docs/guides/once.md": _in_one_harness,
    "docs/guides/events.md": _in_one_harness,
    "docs/guides/webhooks.md": _in_one_harness,
    "docs/reference/examples/context.md": _in_one_harness,
    "docs/reference/examples/errors.md": _in_one_harness,
    "docs/reference/examples/runs.md": _in_one_harness,
    "docs/reference/examples/testing.md": _in_one_harness,
    "docs/reference/examples/workflows.md": _in_one_harness,
    "docs/rest.md": _served,
}
