"""Steps that bear a death."""

from typing import Any

import httpx
import pytest
import respx
from django.test import TestCase

from durable import Context, current_step, workflow
from durable.testing import Harness
from tests.testing.dying.models import Payment

BANK = "https://bank.example/charges"


def charge(order: int) -> int:
    return httpx.post(
        BANK, headers={"Idempotency-Key": current_step().idempotency_key}, json={"order": order}
    ).status_code


def mark_paid(order: int) -> Any:
    return Payment.objects.create(order=order).pk


@workflow(name="dying.green")
def green(ctx: Context, order: int) -> None:
    ctx.step("charge", charge, order)
    ctx.sleep("cool off", "3 hours")
    ctx.step("mark paid", mark_paid, order, atomic=True)


class GreenTests(TestCase):
    @respx.mock
    def test_an_order_is_paid_once(self) -> None:
        respx.post(BANK)
        with Harness() as h:
            h.finish(h.start(green, 42))
        assert Payment.objects.count() == 1


@respx.mock
@pytest.mark.django_db(transaction=True)
def test_rows_that_are_committed(durable_harness: Harness) -> None:
    respx.post(BANK)
    durable_harness.finish(durable_harness.start(green, 42))
    assert Payment.objects.count() == 1
