"""Steps that send mails, write rows, start runs and call mocks."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from django.core import mail
from django.core.mail import EmailMessage, send_mail
from django.db import transaction
from django.db.models import F
from django.test import TestCase, TransactionTestCase

from durable import Context, current_step, workflow
from durable.testing import Harness
from tests.testing.dying.models import Item, Payment

#: Whatever is outside of the process: the cases put mocks in the place of its functions.
services: Any = SimpleNamespace(charge=None, rate=None, post=None, book=None)


@workflow(name="dying.mails")
def mails(ctx: Context) -> None:
    ctx.step("mail", lambda: send_mail("Order 42", "text", "shop@example.org", ["you@example.org"]))
    ctx.step("with a key", lambda: with_key().send())


def with_key() -> EmailMessage:
    headers = {"X-Idempotency-Key": current_step().idempotency_key}
    return EmailMessage("Paid", "text", "shop@example.org", ["you@example.org"], headers=headers)


def test_mails(durable_harness: Harness, mailoutbox: list[EmailMessage]) -> None:
    assert durable_harness.finish(durable_harness.start(mails)).state == "completed"
    assert len(mailoutbox) == 2


def insert(order: int) -> Any:
    return Payment.objects.create(order=order).pk


def insert_with_key() -> Any:
    return Payment.objects.get_or_create(key=current_step().idempotency_key, defaults={"order": 1})[0].pk


def insert_elsewhere(order: int) -> Any:
    return Payment.objects.using("other").create(order=order).pk


def take(pk: int) -> None:
    Item.objects.filter(pk=pk).update(stock=F("stock") - 1)


def take_and_save(pk: int) -> None:
    item = Item.objects.get(pk=pk)
    item.stock -= 1
    item.save()


def take_once(pk: int) -> None:
    Item.objects.filter(pk=pk, is_paid=False).update(stock=F("stock") - 1, is_paid=True)


def pay(pk: int) -> None:
    with transaction.atomic():
        Item.objects.filter(pk=pk).update(is_paid=True)


@workflow(name="dying.rows")
def rows(ctx: Context, pk: int) -> None:
    ctx.step("insert", insert, pk)
    ctx.step("insert with a key", insert_with_key)
    ctx.step("insert atomically", insert, pk, atomic=True)
    ctx.step("insert elsewhere", insert_elsewhere, pk)
    ctx.step("take", take, pk)
    ctx.step("take and save", take_and_save, pk)
    ctx.step("take atomically", take, pk, atomic=True)
    ctx.step("pay 🚀/\n`x`", pay, pk)
    ctx.step("take once", take_once, pk)


@pytest.mark.django_db(databases=["default", "other"])
def test_rows(durable_harness: Harness) -> None:
    assert durable_harness.finish(durable_harness.start(rows, Item.objects.create().pk)).state == "completed"


class RowsTests(TestCase):
    databases = {"default", "other"}

    def test_rows_in_a_test_case(self) -> None:
        with Harness(store="database") as h:
            assert h.finish(h.start(rows, Item.objects.create().pk)).state == "completed"
        assert Payment.objects.count() == 3


class CommittedRowsTests(TransactionTestCase):
    databases = {"default", "other"}

    def test_rows_that_are_committed(self) -> None:
        with Harness() as h:
            assert h.finish(h.start(rows, Item.objects.create().pk)).state == "completed"


@workflow(name="dying.started")
def started(ctx: Context) -> None:
    ctx.step("nothing", lambda: None)


@workflow(name="dying.starts")
def starts(ctx: Context) -> None:
    ctx.step("start", lambda: started.start().id)
    ctx.step("start under an id", lambda: started.using(id="one").start().id)


def test_starts(durable_harness: Harness) -> None:
    assert durable_harness.finish(durable_harness.start(starts)).state == "completed"


@workflow(name="dying.mocks")
def mocks(ctx: Context) -> None:
    ctx.step("stand-in", services.charge, 42)
    ctx.step("post", lambda: services.post("/charges"))
    ctx.step("post with a key", lambda: services.post("/charges", key=current_step().idempotency_key))
    ctx.step("rate", lambda: services.rate("EUR"))


def test_mocks(durable_harness: Harness) -> None:
    with (
        mock.patch.object(services, "charge", return_value=1),
        mock.patch.object(services, "post", return_value=1),
        mock.patch.object(services, "rate", return_value=1),
    ):
        assert durable_harness.finish(durable_harness.start(mocks)).state == "completed"
        assert services.charge.call_count == 1


@workflow(name="dying.saga")
def saga(ctx: Context) -> None:
    ctx.rollback_checkpoint("begin")
    ctx.step("book", lambda: services.book(1), rollback=unbook)
    ctx.step("mail twice", lambda: [send_mail("Hello", "", "a@example.org", ["b@example.org"]) for _ in "12"] and None)
    raise ValueError("full")


def unbook(rollback: Any, output: Any) -> None:
    services.post("/unbook")


def test_rollback(durable_harness: Harness) -> None:
    mail.outbox = []
    with mock.patch.object(services, "book", return_value=1), mock.patch.object(services, "post", return_value=1):
        assert durable_harness.finish(durable_harness.start(saga)).state == "failed"


@workflow(name="dying.retries")
def retries(ctx: Context) -> None:
    ctx.step("post", flaky, retry_backoff_base=1)


def flaky() -> None:
    services.post("/flaky", key=current_step().idempotency_key)
    if current_step().attempt == 1:
        raise ConnectionError("503")


def test_retries(durable_harness: Harness) -> None:
    with mock.patch.object(services, "post", return_value=1):
        assert durable_harness.finish(durable_harness.start(retries)).state == "completed"


@workflow(name="dying.between")
def between(ctx: Context) -> None:
    ctx.step("first", lambda: None)
    send_mail("Between", "", "a@example.org", ["b@example.org"])
    ctx.step("second", lambda: None)


def test_between_the_steps() -> None:
    with Harness(strict=False) as h:
        assert h.finish(h.start(between)).state == "completed"


@workflow(name="dying.fails")
def fails(ctx: Context) -> None:
    def unique() -> Any:
        return Payment.objects.create(order=1, key="always").pk

    ctx.step("insert a unique row", unique, max_retries=0)


@pytest.mark.django_db
def test_a_run_that_fails_only_after_a_death(durable_harness: Harness) -> None:
    assert durable_harness.finish(durable_harness.start(fails)).state == "completed"
